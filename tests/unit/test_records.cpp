// Packed weights of formats whose scales are records.
#include "format_test.hpp"
#include "guarded.hpp"
#include "random_weights.hpp"

#include <crumb/core/buffer.hpp>
#include <crumb/op/linear/linear.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace test_records {
namespace {

template <class F>
struct Records {};
using formats = crumb_test::types_of<crumb::record_format_list>;
FORMAT_TEST_SUITE(Records, formats);

/// Any bytes, but for scales that are not finite.
template <class F>
std::vector<typename F::block> any_blocks(std::size_t count, std::mt19937& random) {
    std::vector<typename F::block> blocks(count);
    for (auto& block : blocks) {
        bool finite = false;
        while (!finite) {
            unsigned char bytes[sizeof block];
            for (auto& byte : bytes)
                byte = static_cast<unsigned char>(random());
            std::memcpy(static_cast<void*>(&block), bytes, sizeof block);
            finite = true;
            for (std::size_t g = 0; g < F::scales::block_groups; ++g) {
                finite = finite && crumb::has_finite_weights<F>(F::scale(block, g));
                if constexpr (crumb::has_minima<F>)
                    finite = finite && is_finite(F::minimum(block, g));
            }
        }
    }
    return blocks;
}

FORMAT_TEST(Records, AreExactlyReversible) {
    using F = TypeParam;
    std::mt19937 random(1);
    for (const std::size_t n : {0, 1, 15, 16, 17, 40}) {
        for (const std::size_t blocks : {0, 1, 2, 5}) {
            const auto stored = any_blocks<F>(n * blocks, random);
            // Ragged rows keep what their last block has behind the end.
            const std::size_t k = blocks * crumb::block_inputs<F> - (blocks > 1 ? 3 : 0);
            crumb_test::guarded<std::byte> memory(crumb::packed_bytes<F>(n, k));
            const auto packed = crumb::pack(crumb::storage<F>(stored, n, k), memory.span());
            ASSERT_TRUE(packed) << packed.message();
            for (std::size_t r = 0; r < n; ++r)
                for (std::size_t b = 0; b < blocks; ++b) {
                    const auto block = crumb::unpack(*packed, r, b);
                    ASSERT_EQ(std::memcmp(&block, &stored[r * blocks + b], sizeof block), 0)
                        << "n " << n << " k " << k << " row " << r << " block " << b;
                }
        }
    }
}

FORMAT_TEST(Records, AreSpaceNeutral) {
    using F = TypeParam;
    const std::size_t stored = 64 * 256 / crumb::block_inputs<F> * sizeof(typename F::block);
    EXPECT_EQ(crumb::packed_bytes<F>(64, 256), stored + sizeof(crumb::packed_header));
}

FORMAT_TEST(Records, RefuseScalesThatAreNotFinite) {
    using F = TypeParam;
    using value = typename F::scales::value;
    std::mt19937 random(2);
    auto stored = any_blocks<F>(20 * 2, random);
    const std::size_t k = 2 * crumb::block_inputs<F>;
    crumb::buffer memory(crumb::packed_bytes<F>(20, k));
    ASSERT_TRUE(crumb::pack(crumb::storage<F>(stored, 20, k), memory.bytes()));
    std::vector<value> bad;
    if constexpr (std::is_same_v<value, crumb::half>)
        bad = {{0x7c00}, {0xfc00}, {0x7e00}};
    else if constexpr (std::is_same_v<value, crumb::half_multiple>)
        bad = {{{0x7c00}, 1}, {{0xfe00}, 0}};
    else if constexpr (std::is_same_v<value, crumb::e8m0>)
        bad = {{255}, {254}, {253}};
    else
        bad = {{0x7f}, {0xff}};
    const auto good = stored[3 * 2 + 1];
    for (const value scale : bad) {
        int code[F::scales::group];
        std::fill_n(code, F::scales::group, crumb_test::code_range<F>().first);
        F::set(stored[3 * 2 + 1], scale, code, 0);
        memory.bytes()[0] = std::byte{42};
        const auto packed = crumb::pack(crumb::storage<F>(stored, 20, k), memory.bytes());
        ASSERT_FALSE(packed);
        EXPECT_EQ(packed.error().code(), crumb::errc::not_finite);
        EXPECT_NE(std::string(packed.message()).find("row 3, group "), std::string::npos) << packed.message();
        EXPECT_EQ(memory.bytes()[0], std::byte{42}) << "the buffer was touched";
        stored[3 * 2 + 1] = good;
    }
}

// The same in bytes that come from a file.
FORMAT_TEST(Records, AreCheckedWhenTheyAreOpened) {
    using F = TypeParam;
    using view = crumb::packed_view<F>;
    std::mt19937 random(3);
    const std::size_t k = 2 * crumb::block_inputs<F>;
    const auto stored = any_blocks<F>(20 * 2, random);
    crumb::buffer memory(crumb::packed_bytes<F>(20, k));
    const auto packed = crumb::pack(crumb::storage<F>(stored, 20, k), memory.bytes());
    ASSERT_TRUE(packed);
    for (std::size_t size = 0; size < memory.size(); size += 7)
        ASSERT_FALSE(view::open(memory.bytes().first(size))) << size;
    const auto* first = reinterpret_cast<const std::byte*>(packed->scales());
    const auto at = static_cast<std::size_t>(first - memory.data());
    // The second record of channel 5: all formats begin with scales of 16 channels.
    const std::size_t size = F::records::bytes,
                      byte = sizeof(decltype(F::records::scale({}, 0, 0))) == 1 ? 5 : 11;
    const std::byte was = memory.bytes()[at + size + byte];
    constexpr bool exponents = std::is_same_v<typename F::scales::value, crumb::e8m0>;
    memory.bytes()[at + size + byte] = exponents ? std::byte{0xff} : std::byte{0x7f};
    const auto damaged = view::open(memory.bytes());
    ASSERT_FALSE(damaged);
    EXPECT_EQ(damaged.error().code(), crumb::errc::not_finite);
    EXPECT_NE(std::string(damaged.message()).find("block 1 of channel 5"), std::string::npos)
        << damaged.message();
    memory.bytes()[at + size + byte] = was;
    EXPECT_TRUE(view::open(memory.bytes()));
    // The infinity of a tensor's scale, or a byte that has to be 0.
    const auto header = memory.bytes().subspan(offsetof(crumb::packed_header, reserved), sizeof(float));
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(header.data(), &infinity, sizeof infinity);
    EXPECT_EQ(view::open(memory.bytes()).error().code(),
              crumb::has_tensor_scale<F> ? crumb::errc::not_finite : crumb::errc::corrupt);
}

FORMAT_TEST(Records, HaveExactProductsOnly) {
    using F = TypeParam;
    std::mt19937 random(4);
    const auto stored = any_blocks<F>(16, random);
    const std::size_t k = crumb::block_inputs<F>;
    crumb::buffer memory(crumb::packed_bytes<F>(16, k));
    const auto packed = crumb::pack(crumb::storage<F>(stored, 16, k), memory.bytes());
    ASSERT_TRUE(packed);
    for (const auto mode : {crumb::linear_mode::panels, crumb::linear_mode::absorbed}) {
        const auto plan = crumb::linear<F>::plan(*packed, {.mode = mode});
        ASSERT_FALSE(plan);
        EXPECT_EQ(plan.error().code(), crumb::errc::unsupported);
        EXPECT_NE(std::string(plan.message()).find(F::name), std::string::npos) << plan.message();
    }
}

} // namespace
} // namespace test_records
