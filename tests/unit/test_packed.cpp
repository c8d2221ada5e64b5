#include "format_test.hpp"
#include "random_numbers.hpp"
#include "random_weights.hpp"

#include <crumb/core/buffer.hpp>
#include <crumb/format/list.hpp>
#include <crumb/format/packed.hpp>
#include <crumb/offline/weights/quantize.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace test_packed {
namespace {

template <class F>
struct Packed {
    /// Weights whose surplus behind k is zero, as unpacking gives them.
    static crumb_test::stored_weights<F> random_weights(std::size_t n, std::size_t k, unsigned seed) {
        std::mt19937 random(seed);
        auto w = crumb_test::random_weights<F>(n, k, random);
        for (std::size_t i = 0; i < w.blocks.size(); ++i) {
            const std::size_t first = i % w.row_blocks() * crumb::block_inputs<F>;
            for (std::size_t g = 0; g < F::scales::block_groups; ++g) {
                int code[32];
                for (std::size_t j = 0; j < 32; ++j)
                    code[j] = first + g * 32 + j < k ? F::code(w.blocks[i], g * 32 + j) : 0;
                auto scale = F::scale(w.blocks[i], g);
                if constexpr (F::scales::block_groups != 1) {
                    if (first + g * 32 >= k)
                        scale.multiplier = 0;
                }
                F::set(w.blocks[i], scale, code, g);
            }
        }
        return w;
    }
};
using formats = crumb_test::types_of<crumb::format_list, crumb::variant_list>;
FORMAT_TEST_SUITE(Packed, formats);

FORMAT_TEST(Packed, IsExactlyReversible) {
    for (std::size_t n : {0, 1, 15, 16, 17, 40}) {
        for (std::size_t k : {0, 1, 31, 32, 33, 100, 256, 300, 513}) {
            const auto w = this->random_weights(n, k, unsigned(n * 1000 + k));
            crumb::buffer memory(crumb::packed_bytes<TypeParam>(n, k));
            const auto packed = crumb::pack(w.view(), memory.bytes());
            ASSERT_TRUE(packed) << packed.message();
            for (std::size_t r = 0; r < n; ++r) {
                for (std::size_t b = 0; b < packed->blocks(); ++b) {
                    const auto block = crumb::unpack(*packed, r, b);
                    ASSERT_EQ(std::memcmp(&block, &w.blocks[r * packed->blocks() + b], sizeof block), 0)
                        << r << ' ' << b;
                }
            }
        }
    }
}

FORMAT_TEST(Packed, IsSpaceNeutral) {
    const std::size_t stored = 64 * 256 / crumb::block_inputs<TypeParam> * sizeof(typename TypeParam::block);
    EXPECT_EQ(crumb::packed_bytes<TypeParam>(64, 256), stored + sizeof(crumb::packed_header));
}

FORMAT_TEST(Packed, PartsMakeTheWhole) {
    using crumb::range;
    for (std::size_t n : {15, 16, 40}) {
        const std::size_t k = 300, bytes = crumb::packed_bytes<TypeParam>(n, k);
        const auto w = this->random_weights(n, k, unsigned(n));
        crumb::buffer whole(bytes), parts(bytes);
        ASSERT_TRUE(crumb::pack(w.view(), whole.bytes()));
        std::memset(parts.data(), 0xa5, bytes);
        for (const range& channels : {range{16, 32}, range{32, n}, range{0, 16}})
            if (channels.begin < n) {
                const auto s = crumb::pack_channels(w.view(), parts.bytes(), channels);
                ASSERT_TRUE(s) << s.message();
            }
        EXPECT_EQ(std::memcmp(whole.data(), parts.data(), bytes), 0) << n;
    }
    const auto w = this->random_weights(40, 64, 1);
    crumb::buffer memory(crumb::packed_bytes<TypeParam>(40, 64));
    EXPECT_FALSE(crumb::pack_channels(w.view(), memory.bytes(), {8, 40}));
    EXPECT_FALSE(crumb::pack_channels(w.view(), memory.bytes(), {0, 24}));
}

FORMAT_TEST(Packed, RowStrideSelectsBlocks) {
    // Rows of two blocks inside rows of three.
    constexpr std::size_t k = crumb::block_inputs<TypeParam>;
    const auto w = this->random_weights(10, 3 * k, 5);
    crumb::buffer memory(crumb::packed_bytes<TypeParam>(10, 2 * k));
    const auto packed =
        crumb::pack(crumb::storage_view<TypeParam>{w.blocks.data(), 10, 2 * k, 3}, memory.bytes());
    ASSERT_TRUE(packed);
    const auto block = crumb::unpack(*packed, 9, 1);
    EXPECT_EQ(std::memcmp(&block, &w.blocks[9 * 3 + 1], sizeof block), 0);
    EXPECT_EQ(crumb::pack(crumb::storage_view<TypeParam>{w.blocks.data(), 10, 3 * k, 2}, memory.bytes())
                  .error()
                  .code(),
              crumb::errc::bad_shape);
}

FORMAT_TEST(Packed, RefusesWhatItCannotHold) {
    auto w = this->random_weights(20, 64, 7);
    const auto view = w.view();
    crumb::buffer memory(crumb::packed_bytes<TypeParam>(20, 64));
    EXPECT_EQ(crumb::pack(view, memory.bytes().first(memory.size() - 1)).error().code(),
              crumb::errc::buffer_too_small);
    crumb::buffer larger(memory.size() + 1);
    EXPECT_EQ(crumb::pack(view, larger.bytes().subspan(1)).error().code(), crumb::errc::misaligned);
    constexpr bool halves = TypeParam::scales::block_groups == 1;
    for (const unsigned bits : {0x7c00u, 0xfc00u, 0x7e00u}) {
        int code[32] = {};
        if constexpr (halves)
            TypeParam::set(w.blocks[3 * 2 + 1], crumb::half{static_cast<std::uint16_t>(bits)}, code);
        else
            TypeParam::set(w.blocks[3], crumb::block_scale{255, 1}, code, 1);
        memory.bytes()[0] = std::byte{42};
        const auto packed = crumb::pack(view, memory.bytes());
        ASSERT_FALSE(packed);
        EXPECT_EQ(packed.error().code(), crumb::errc::not_finite);
        EXPECT_NE(std::string(packed.message()).find(halves ? "row 3, group 1" : "row 3, group 0"),
                  std::string::npos)
            << packed.message();
        EXPECT_EQ(memory.bytes()[0], std::byte{42}) << "the buffer was touched";
    }
    const std::size_t absurd = std::size_t{1} << 62;
    EXPECT_EQ(crumb::packed_bytes<TypeParam>(absurd, 32), 0u);
    EXPECT_EQ(crumb::packed_bytes<TypeParam>(std::size_t{1} << 39, std::size_t{1} << 39), 0u);
}

FORMAT_TEST(Packed, OpensOnlyItsOwnBytes) {
    const auto w = this->random_weights(20, 64, 9);
    crumb::buffer memory(crumb::packed_bytes<TypeParam>(20, 64));
    ASSERT_TRUE(crumb::pack(w.view(), memory.bytes()));
    using view = crumb::packed_view<TypeParam>;
    ASSERT_TRUE(view::open(memory.bytes()));
    for (std::size_t size = 0; size < memory.size(); ++size)
        ASSERT_FALSE(view::open(memory.bytes().first(size))) << size;

    crumb::packed_header header;
    std::memcpy(&header, memory.data(), sizeof header);
    const auto with = [&](auto&& change) {
        crumb::packed_header changed = header;
        change(changed);
        std::memcpy(memory.data(), &changed, sizeof changed);
        return view::open(memory.bytes()).error().code();
    };
    EXPECT_EQ(with([](auto& h) { h.magic[0] = 'X'; }), crumb::errc::wrong_format);
    EXPECT_EQ(with([](auto& h) { h.version = 2; }), crumb::errc::wrong_version);
    EXPECT_EQ(with([](auto& h) { std::memset(h.format, 'z', sizeof h.format); }), crumb::errc::wrong_format);
    EXPECT_EQ(with([](auto& h) { h.n += 16; }), crumb::errc::corrupt);
    EXPECT_EQ(with([](auto& h) { h.n = ~std::uint64_t{0}; }), crumb::errc::bad_shape);
    EXPECT_EQ(with([](auto& h) { h.bytes += 1; }), crumb::errc::corrupt);
}

// The packed layout as docs/layouts.md draws it, byte by byte.
TEST(PackedLayout, NibblesAreWhereTheDocumentSays) {
    const std::size_t n = 32, k = 64, groups = 2;
    std::vector<crumb::q4_0::block> blocks(n * groups);
    for (std::size_t r = 0; r < n; ++r) {
        for (std::size_t g = 0; g < groups; ++g) {
            int code[32];
            for (std::size_t i = 0; i < 32; ++i)
                code[i] = static_cast<int>((r * 5 + g * 3 + i) % 16) - 8;
            crumb::q4_0::set(blocks[r * groups + g], crumb::half{static_cast<std::uint16_t>(r * 7 + g)},
                             code);
        }
    }
    crumb::buffer memory(crumb::packed_bytes<crumb::q4_0>(n, k));
    ASSERT_TRUE(crumb::pack(*crumb::storage<crumb::q4_0>(blocks, n, k), memory.bytes()));
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory.data());
    EXPECT_EQ(std::memcmp(bytes, "CRMB\1\0\0\0q4_0\0", 13), 0);
    for (std::size_t r = 0; r < n; ++r) {
        for (std::size_t g = 0; g < groups; ++g) {
            const std::size_t unit = r / 16 * groups + g;
            const auto* scale = bytes + 64 + unit * 32 + r % 16 * 2;
            EXPECT_EQ(scale[0] | scale[1] << 8, int(r * 7 + g));
            const auto* tile = bytes + 64 + 2 * groups * 32 + unit * 256;
            for (std::size_t i = 0; i < 16; ++i) {
                const unsigned byte = tile[i / 4 * 64 + r % 16 * 4 + i % 4];
                // Sign-toggled: the nibble of the block with its top bit flipped.
                const unsigned stored = blocks[r * groups + g].q[i];
                EXPECT_EQ(byte, stored ^ 0x88u);
            }
        }
    }
}

// The tiles of indices as docs/layouts.md draws them, bit by bit.
TEST(PackedLayout, IndicesAreWhereTheDocumentSays) {
    std::mt19937 random(21);
    const auto w = crumb_test::random_weights<crumb::cb3>(32, 300, random);
    crumb::buffer memory(crumb::packed_bytes<crumb::cb3>(32, 300));
    ASSERT_TRUE(crumb::pack(w.view(), memory.bytes()));
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory.data());
    const std::size_t groups = 10, blocks = 2;
    const std::size_t scales = 64 + 64, codes = scales + 2 * groups * 16; // 2 tiles x 2 blocks x 16 exponents
    for (std::size_t r = 0; r < 32; ++r) {
        for (std::size_t g = 0; g < groups; ++g) {
            const auto& block = w.blocks[r * blocks + g / 8];
            const std::size_t tile = r / 16, c = r % 16, unit = tile * groups + g;
            EXPECT_EQ(bytes[64 + (tile * blocks + g / 8) * 16 + c], block.exponent);
            EXPECT_EQ(static_cast<std::int8_t>(bytes[scales + unit * 16 + c]), block.multiplier[g % 8]);
            for (std::size_t i = 0; i < 32 && g * 32 + i < 300; ++i) {
                const std::size_t j = i % 16 / 4, half = i < 16 ? 0 : 4, low[4] = {1, 2, 0, 3};
                const auto byte = [&](std::size_t row) {
                    return bytes[codes + unit * 192 + row * 64 + 4 * c + i % 4];
                };
                const int pair = byte(j / 2) >> ((j % 2 == 0 ? 2 : 0) + half) & 3;
                const int bit = byte(2) >> (low[j] + half) & 1;
                EXPECT_EQ(2 * pair + bit, crumb::cb3::code(block, g % 8 * 32 + i))
                    << r << ' ' << g << ' ' << i;
            }
        }
    }
}

TEST(Quantize, MatchesTheBlocksOfGguf) {
    // Values whose Q4_0 and Q8_0 blocks follow by hand: d = -8 / -8 = 1, and d = 127 / 127 = 1.
    float x[32] = {-8, 7, 3, -1, 0.4f, -0.6f, 7.9f, 2};
    crumb::q4_0::block four;
    crumb::q4_0::encode(x, four);
    EXPECT_EQ(four.d.bits, 0x3c00);
    const unsigned char nibbles[8] = {0, 15, 11, 7, 8, 7, 15, 10};
    for (std::size_t i = 0; i < 16; ++i)
        EXPECT_EQ(four.q[i], (i < 8 ? nibbles[i] : 8) | 8 << 4) << i;
    float y[32] = {127, -127, 0.5f, -0.5f, 1.5f, 64.25f};
    crumb::q8_0::block eight;
    crumb::q8_0::encode(y, eight);
    EXPECT_EQ(eight.d.bits, 0x3c00);
    const signed char codes[6] = {127, -127, 1, -1, 2, 64};
    for (std::size_t i = 0; i < 32; ++i)
        EXPECT_EQ(eight.q[i], i < 6 ? codes[i] : 0) << i;
}

TEST(Quantize, RefusesWhatIsNotFinite) {
    std::vector<float> w(3 * 40, 1.0f);
    w[2 * 40 + 35] = std::numeric_limits<float>::quiet_NaN();
    const auto q = crumb::quantize<crumb::q4_0>(crumb::matrix<const float>(w.data(), 3, 40));
    ASSERT_FALSE(q);
    EXPECT_STREQ(q.message(), "weight (2, 35) is not finite");
    w[2 * 40 + 35] = 1e9f;
    const auto large = crumb::quantize<crumb::q8_0>(crumb::matrix<const float>(w.data(), 3, 40));
    ASSERT_FALSE(large);
    EXPECT_STREQ(large.message(), "weights of row 2, group 1 are too large for a half-precision scale");
}

TEST(Quantize, RoundTripErrorIsHalfAStep) {
    std::mt19937 random(3);
    crumb_test::normal_numbers<float> normal;
    const std::size_t n = 7, k = 77;
    std::vector<float> w(n * k);
    for (auto& v : w)
        v = normal(random);
    const auto q4 = crumb::quantize<crumb::q4_0>(crumb::matrix<const float>(w.data(), n, k));
    const auto q8 = crumb::quantize<crumb::q8_0>(crumb::matrix<const float>(w.data(), n, k));
    for (std::size_t i = 0; i < n * k; ++i) {
        const auto& b4 = q4->blocks[i / k * 3 + i % k / 32];
        const auto& b8 = q8->blocks[i / k * 3 + i % k / 32];
        const float d4 = std::fabs(crumb::to_float(b4.d)), d8 = crumb::to_float(b8.d);
        // The largest positive Q4_0 value is clipped by up to one step; the half scale adds 2^-11 relative.
        EXPECT_LE(std::fabs(w[i] - crumb::to_float(b4.d) * float(crumb::q4_0::code(b4, i % k % 32))),
                  d4 * 1.01f);
        EXPECT_LE(std::fabs(w[i] - d8 * float(crumb::q8_0::code(b8, i % k % 32))),
                  d8 * (0.5f + 127.0f / 2048.0f));
    }
}

} // namespace
} // namespace test_packed
