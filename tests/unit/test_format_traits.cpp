// What the traits of a format can say: formats of other libraries describe themselves, are decoded by what
// they say, and are refused by the kernels for what these lack.
#include "guarded.hpp"

#include <crumb/format/codebook.hpp>
#include <crumb/format/list.hpp>
#include <crumb/format/nested.hpp>
#include <crumb/format/packed.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>

namespace test_format_traits {
namespace {

using crumb::half;
using crumb::half_multiple;
using crumb::multiplied_format;
using crumb::weight_format;

/// 8 groups of 32: codes of 4 bits, scales and minima of 6 bits under a half each.
struct q4_k_like {
    struct block {
        half d, dmin;
        std::uint8_t s[12], q[128];
    };
    static_assert(sizeof(block) == 144);
    static constexpr const char* name = "q4_k_like";
    using scales = crumb::group_scales<half_multiple, 32, 8>;
    using minima = scales;
    static constexpr half_multiple scale(const block& b, std::size_t g) noexcept {
        return {b.d,
                static_cast<std::int8_t>(g < 4 ? b.s[g] & 63 : (b.s[g + 4] & 15) | b.s[g - 4] >> 6 << 4)};
    }
    static constexpr half_multiple minimum(const block& b, std::size_t g) noexcept {
        return {b.dmin,
                static_cast<std::int8_t>(-(g < 4 ? b.s[g + 4] & 63 : b.s[g + 4] >> 4 | b.s[g] >> 6 << 4))};
    }
    static constexpr int code(const block& b, std::size_t i) noexcept {
        return b.q[i / 64 * 32 + i % 32] >> (i % 64 < 32 ? 0 : 4) & 15;
    }
};

/// 16 groups of 16: codes of 6 bits, signed bytes as scales under a half.
struct q6_k_like {
    struct block {
        std::uint8_t low[128], high[64];
        std::int8_t s[16];
        half d;
    };
    static_assert(sizeof(block) == 210);
    static constexpr const char* name = "q6_k_like";
    using scales = crumb::group_scales<half_multiple, 16, 16>;
    static constexpr half_multiple scale(const block& b, std::size_t g) noexcept { return {b.d, b.s[g]}; }
    static constexpr int code(const block& b, std::size_t i) noexcept {
        const std::size_t n = i / 128, q = i % 128 / 32, l = i % 32;
        const int low = b.low[64 * n + q % 2 * 32 + l] >> (q / 2 * 4) & 15;
        return (low | (b.high[32 * n + l] >> (2 * q) & 3) << 4) - 32;
    }
};

/// 16 groups of 16: codes of 2 bits, scales and minima of 4 bits under a half each.
struct q2_k_like {
    struct block {
        std::uint8_t s[16], q[64];
        half d, dmin;
    };
    static_assert(sizeof(block) == 84);
    static constexpr const char* name = "q2_k_like";
    using scales = crumb::group_scales<half_multiple, 16, 16>;
    using minima = scales;
    static constexpr half_multiple scale(const block& b, std::size_t g) noexcept {
        return {b.d, static_cast<std::int8_t>(b.s[g] & 15)};
    }
    static constexpr half_multiple minimum(const block& b, std::size_t g) noexcept {
        return {b.dmin, static_cast<std::int8_t>(-(b.s[g] >> 4))};
    }
    static constexpr int code(const block& b, std::size_t i) noexcept {
        return b.q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    }
};

/// The values of E2M1 in halves: what MXFP4 and NVFP4 look nibbles up in.
constexpr std::int8_t e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// A group of 32 under a power of two: floats of 4 bits.
struct mxfp4_like {
    struct block {
        std::uint8_t e;
        crumb::stored_indices<4> q;
    };
    static_assert(sizeof(block) == 17);
    static constexpr const char* name = "mxfp4_like";
    using scales = crumb::group_scales<crumb::e8m0, 32>;
    using codes = crumb::index_codes<4, 0>;
    static constexpr auto& codebooks = e2m1;
    static constexpr float table_unit = 0.5f;
    static constexpr crumb::e8m0 scale(const block& b, std::size_t = 0) noexcept { return {b.e}; }
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q.get(i); }
};

/// 4 groups of 16 under small floats, all of them under a float of the tensor.
struct nvfp4_like {
    struct block {
        std::uint8_t s[4], q[32];
    };
    static_assert(sizeof(block) == 36);
    static constexpr const char* name = "nvfp4_like";
    using scales = crumb::group_scales<crumb::ue4m3, 16, 4, true>;
    static constexpr auto& codebooks = e2m1;
    static constexpr float table_unit = 0.5f;
    static constexpr crumb::ue4m3 scale(const block& b, std::size_t g) noexcept { return {b.s[g]}; }
    static constexpr int code(const block& b, std::size_t i) noexcept {
        return b.q[i / 16 * 8 + i % 8] >> (i % 16 < 8 ? 0 : 4) & 15;
    }
};

/// A group of 128 signs under a half.
struct q1_0_like {
    struct block {
        half d;
        std::uint8_t q[16];
    };
    static constexpr const char* name = "q1_0_like";
    using scales = crumb::group_scales<half, 128>;
    static constexpr half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    static constexpr int code(const block& b, std::size_t i) noexcept {
        return (b.q[i / 8] >> (i % 8) & 1) != 0 ? 1 : -1;
    }
};

/// A group of 64 codes of 2 bits under a half.
struct q2_0_like {
    struct block {
        half d;
        std::uint8_t q[16];
    };
    static constexpr const char* name = "q2_0_like";
    using scales = crumb::group_scales<half, 64>;
    static constexpr half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    static constexpr int code(const block& b, std::size_t i) noexcept {
        return (b.q[i / 4] >> (i % 4 * 2) & 3) - 1;
    }
};

/// A group of 256 under a half, five ternary digits per byte.
struct tq1_0_like {
    struct block {
        std::uint8_t q[48], rest[4];
        half d;
    };
    static_assert(sizeof(block) == 54);
    static constexpr const char* name = "tq1_0_like";
    using scales = crumb::group_scales<half, 256>;
    static constexpr half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    static constexpr int code(const block& b, std::size_t i) noexcept {
        constexpr unsigned power[5] = {1, 3, 9, 27, 81};
        const std::uint8_t byte = i < 160   ? b.q[i % 32]
                                  : i < 240 ? b.q[32 + (i - 160) % 16]
                                            : b.rest[(i - 240) % 4];
        const std::size_t digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
        return static_cast<int>((byte * power[digit] & 255) * 3 >> 8) - 1;
    }
};

/// A group of 32 under a half, nibbles looked up in a table: nothing that kernels lack.
struct iq4_nl_like : crumb::codebook_group<4, 0> {
    static constexpr const char* name = "iq4_nl_like";
    static constexpr std::int8_t codebooks[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                  1,    13,   25,  38,  53,  69,  89,  113};
};

// All of them are formats,
static_assert(weight_format<q4_k_like> && weight_format<q6_k_like> && weight_format<q2_k_like> &&
              weight_format<mxfp4_like> && weight_format<nvfp4_like> && weight_format<q1_0_like> &&
              weight_format<q2_0_like> && weight_format<tq1_0_like> && weight_format<iq4_nl_like>);
// one is multiplied,
static_assert(multiplied_format<iq4_nl_like> && crumb::writable_format<iq4_nl_like>);
static_assert(!crumb::needs_codebooks<iq4_nl_like>);
static_assert(!multiplied_format<q4_k_like> && !multiplied_format<q6_k_like> &&
              !multiplied_format<q2_k_like> && !multiplied_format<mxfp4_like> &&
              !multiplied_format<nvfp4_like> && !multiplied_format<q1_0_like> &&
              !multiplied_format<q2_0_like> && !multiplied_format<tq1_0_like>);

/// Which properties kernels multiply, in the order in which `multiplied_format` asks for them.
template <class F>
constexpr std::array<bool, 6> multiplied = {crumb::groups_of_32<F>,   crumb::scales_of_kernels<F>,
                                            crumb::without_minima<F>, crumb::without_tensor_scale<F>,
                                            crumb::whole_values<F>,   crumb::has_packed_codes<F>};
using properties = std::array<bool, 6>;
// and the others are refused for what they are.
static_assert(multiplied<q4_k_like> == properties{true, false, false, true, true, false});
static_assert(multiplied<q6_k_like> == properties{false, false, true, true, true, false});
static_assert(multiplied<q2_k_like> == properties{false, false, false, true, true, false});
static_assert(multiplied<mxfp4_like> == properties{true, false, true, true, false, true});
static_assert(multiplied<nvfp4_like> == properties{false, false, true, false, false, false});
static_assert(multiplied<q1_0_like> == properties{false, true, true, true, true, false});
static_assert(multiplied<q2_0_like> == properties{false, true, true, true, true, false});
static_assert(multiplied<tq1_0_like> == properties{false, true, true, true, true, false});

static_assert(crumb::block_inputs<q4_k_like> == 256 && crumb::block_inputs<nvfp4_like> == 64 &&
              crumb::block_inputs<mxfp4_like> == 32 && crumb::block_inputs<q1_0_like> == 128);
static_assert(crumb::bits_per_weight<q4_k_like> == 4.5 && crumb::bits_per_weight<q6_k_like> == 6.5625 &&
              crumb::bits_per_weight<nvfp4_like> == 4.5 && crumb::bits_per_weight<mxfp4_like> == 4.25 &&
              crumb::bits_per_weight<tq1_0_like> == 1.6875);

// Those of the library are of both kinds; what kernels see of nested weights has no blocks.
template <class... F>
constexpr bool all_are_multiplied(crumb::type_list<F...>) {
    return ((crumb::writable_format<F> && multiplied_format<F>) && ...);
}
static_assert(all_are_multiplied(crumb::format_list{}) && all_are_multiplied(crumb::variant_list{}));
static_assert(multiplied_format<crumb::nested3> && !weight_format<crumb::nested3>);

// A format that says less than it has to is none.
struct without_a_scale : iq4_nl_like {
    static void scale() = delete;
};
struct with_groups_of_48 : iq4_nl_like {
    using scales = crumb::group_scales<half, 48>;
};
struct without_its_minimum : iq4_nl_like {
    using minima = scales;
};
static_assert(!weight_format<without_a_scale> && !weight_format<with_groups_of_48> &&
              !weight_format<without_its_minimum>);

TEST(FormatTraits, ScalesAreTheNumbersThatTheyStandFor) {
    EXPECT_EQ(crumb::to_float(crumb::e8m0{127}), 1.0f);
    EXPECT_EQ(crumb::to_float(crumb::e8m0{0}), 0x1p-127f);
    EXPECT_EQ(crumb::to_float(crumb::e8m0{254}), 0x1p127f);
    EXPECT_TRUE(std::isnan(crumb::to_float(crumb::e8m0{255})));
    EXPECT_FALSE(crumb::is_finite(crumb::e8m0{255}));
    EXPECT_EQ(crumb::to_float(crumb::ue4m3{0}), 0.0f);
    EXPECT_EQ(crumb::to_float(crumb::ue4m3{1}), 0x1p-9f);
    EXPECT_EQ(crumb::to_float(crumb::ue4m3{0x38}), 1.0f);
    EXPECT_EQ(crumb::to_float(crumb::ue4m3{0x7e}), 448.0f);
    EXPECT_TRUE(std::isnan(crumb::to_float(crumb::ue4m3{0x7f})));
    EXPECT_FALSE(crumb::is_finite(crumb::ue4m3{0x7f}));
    for (std::uint8_t bits = 1; bits < 0x7e;
         ++bits) // ascending: each exponent goes on where the one below ends
        EXPECT_LT(crumb::to_float(crumb::ue4m3{bits}), crumb::to_float(crumb::ue4m3{std::uint8_t(bits + 1)}));
    EXPECT_EQ(crumb::to_float(half_multiple{{0x3800}, -128}), -64.0f);
    EXPECT_FALSE(crumb::is_finite(half_multiple{{0x7c00}, 0}));
}

/// The weights of two blocks of any bytes but `scale`s, by the trait; `expected(block, i)` says them in
/// another way.
template <class F>
void expect_weights(const typename F::block (&blocks)[2], float tensor_scale, const auto& expected) {
    constexpr std::size_t inputs = crumb::block_inputs<F>;
    crumb::storage_view<F> view = *crumb::storage<F>(blocks, 1, 2 * inputs);
    view.tensor_scale = tensor_scale;
    EXPECT_EQ(view.stride, 2u);
    for (std::size_t i = 0; i < 2 * inputs; ++i)
        ASSERT_EQ(view.weight(0, i), expected(blocks[i / inputs], i % inputs)) << F::name << ' ' << i;
}
template <class Block>
void fill(Block (&blocks)[2], unsigned seed) {
    std::mt19937 random(seed);
    unsigned char bytes[sizeof blocks];
    for (auto& byte : bytes)
        byte = static_cast<unsigned char>(random());
    std::memcpy(blocks, bytes, sizeof blocks);
}

TEST(FormatTraits, DecodeIntegersUnderHalvesWithMinima) {
    q4_k_like::block four[2];
    fill(four, 1);
    four[0].d = four[1].dmin = half{0x3c00}; // 1
    four[0].dmin = four[1].d = half{0x3800}; // .5
    expect_weights<q4_k_like>(four, 1, [](const q4_k_like::block& b, std::size_t i) {
        // As its own library unpacks the twelve bytes.
        const std::size_t g = i / 32;
        int scale = b.s[g] & 63, minimum = b.s[(g + 4) % 12] & 63;
        if (g >= 4) {
            scale = (b.s[g + 4] & 0xf) | ((b.s[g - 4] >> 6) << 4);
            minimum = (b.s[g + 4] >> 4) | ((b.s[g] >> 6) << 4);
        }
        const int byte = b.q[g / 2 * 32 + i % 32], code = g % 2 != 0 ? byte >> 4 : byte & 15;
        return double(crumb::to_float(b.d)) * scale * code - double(crumb::to_float(b.dmin)) * minimum;
    });
    q2_k_like::block two[2];
    fill(two, 2);
    two[0].d = two[0].dmin = two[1].d = two[1].dmin = half{0x3400}; // .25
    expect_weights<q2_k_like>(two, 1, [](const q2_k_like::block& b, std::size_t i) {
        const int code = b.q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        return .25 * (b.s[i / 16] & 15) * code - .25 * (b.s[i / 16] >> 4);
    });
}

TEST(FormatTraits, DecodeSignedBytesUnderAHalf) {
    q6_k_like::block six[2];
    fill(six, 3);
    six[0].d = six[1].d = half{0x3c00};
    expect_weights<q6_k_like>(six, 1, [](const q6_k_like::block& b, std::size_t i) {
        const std::uint8_t *low = b.low + i / 128 * 64, *high = b.high + i / 128 * 32;
        const std::size_t l = i % 32;
        int code = 0;
        switch (i % 128 / 32) {
        case 0:
            code = (low[l] & 15) | (high[l] & 3) << 4;
            break;
        case 1:
            code = (low[l + 32] & 15) | (high[l] >> 2 & 3) << 4;
            break;
        case 2:
            code = low[l] >> 4 | (high[l] >> 4 & 3) << 4;
            break;
        case 3:
            code = low[l + 32] >> 4 | (high[l] >> 6 & 3) << 4;
            break;
        }
        return double(b.s[i / 16]) * (code - 32);
    });
}

/// The float of 4 bits.
double e2m1_value(int code) {
    const int exponent = code >> 1 & 3, mantissa = code & 1;
    const double magnitude = exponent == 0 ? .5 * mantissa : std::ldexp(1 + .5 * mantissa, exponent - 1);
    return (code & 8) != 0 ? -magnitude : magnitude;
}

TEST(FormatTraits, DecodeFloatsOfFourBits) {
    mxfp4_like::block mx[2];
    fill(mx, 4);
    mx[0].e = 1, mx[1].e = 130;
    expect_weights<mxfp4_like>(mx, 1, [](const mxfp4_like::block& b, std::size_t i) {
        const int byte = b.q.q[i % 16];
        return std::ldexp(e2m1_value(i < 16 ? byte & 15 : byte >> 4), b.e - 127);
    });
    nvfp4_like::block nv[2];
    fill(nv, 5);
    for (auto& b : nv)
        for (std::size_t g = 0; g < 4; ++g)
            b.s[g] = static_cast<std::uint8_t>(0x30 + 9 * g);
    expect_weights<nvfp4_like>(nv, 0.75f, [](const nvfp4_like::block& b, std::size_t i) {
        const int byte = b.q[i / 16 * 8 + i % 8];
        const double scale = double(crumb::to_float(crumb::ue4m3{b.s[i / 16]}));
        return scale * e2m1_value(i % 16 < 8 ? byte & 15 : byte >> 4) * .75;
    });
}

TEST(FormatTraits, DecodeLongGroups) {
    q1_0_like::block one[2];
    fill(one, 6);
    one[0].d = one[1].d = half{0x4000}; // 2
    expect_weights<q1_0_like>(one, 1, [](const q1_0_like::block& b, std::size_t i) {
        return (b.q[i / 8] & 1 << i % 8) != 0 ? 2.0 : -2.0;
    });
    q2_0_like::block two[2];
    fill(two, 7);
    two[0].d = two[1].d = half{0x4000};
    expect_weights<q2_0_like>(two, 1, [](const q2_0_like::block& b, std::size_t i) {
        return 2.0 * ((b.q[i / 4] >> 2 * (i % 4) & 3) - 1);
    });
    // Bytes are ceil(256 / 243 x) of five digits, the first one the most significant.
    tq1_0_like::block ternary[2] = {};
    const auto digit = [](std::size_t place) { return static_cast<int>(place * 7 / 3 % 3); };
    for (auto& b : ternary) {
        b.d = half{0x4000};
        const auto put = [&](std::uint8_t& byte, std::size_t first, std::size_t step, std::size_t digits) {
            unsigned x = 0;
            for (std::size_t n = 0; n < 5; ++n)
                x = 3 * x + (n < digits ? unsigned(digit(first + n * step)) : 0);
            byte = static_cast<std::uint8_t>((x * 256 + 242) / 243);
        };
        for (std::size_t m = 0; m < 32; ++m)
            put(b.q[m], m, 32, 5);
        for (std::size_t m = 0; m < 16; ++m)
            put(b.q[32 + m], 160 + m, 16, 5);
        for (std::size_t m = 0; m < 4; ++m)
            put(b.rest[m], 240 + m, 4, 4);
    }
    expect_weights<tq1_0_like>(ternary, 1,
                               [&](const tq1_0_like::block&, std::size_t i) { return 2.0 * (digit(i) - 1); });
}

// What is multiplied is packed as well.
TEST(FormatTraits, ATableOfTheFormatIsPackedLikeAnyOther) {
    iq4_nl_like::block blocks[2];
    fill(blocks, 8);
    blocks[0].d = blocks[1].d = half{0x3555};
    crumb_test::guarded<std::byte> memory(crumb::packed_bytes<iq4_nl_like>(1, 64));
    const auto view = *crumb::storage<iq4_nl_like>(blocks, 1, 64);
    const auto packed = crumb::pack(view, memory.span());
    ASSERT_TRUE(packed) << packed.message();
    for (std::size_t g = 0; g < 2; ++g) {
        const auto block = crumb::unpack(*packed, 0, g);
        EXPECT_EQ(std::memcmp(&block, &blocks[g], sizeof block), 0);
    }
    EXPECT_EQ(view.weight(0, 3),
              double(crumb::to_float(half{0x3555})) * iq4_nl_like::codebooks[blocks[0].q.get(3)]);
}

} // namespace
} // namespace test_format_traits
