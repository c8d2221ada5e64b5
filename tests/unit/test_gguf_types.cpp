// The tensor types of GGUF: what ggml reads in their blocks, what any bytes can mean, and that blocks are
// made again of what is read in them.
#include "data/gguf_types.hpp"
#include "format_test.hpp"

#include <crumb/format/iq4_nl.hpp>
#include <crumb/format/iq4_xs.hpp>
#include <crumb/format/mxfp4.hpp>
#include <crumb/format/nvfp4.hpp>
#include <crumb/format/packed.hpp>
#include <crumb/format/q1_0.hpp>
#include <crumb/format/q2_0.hpp>
#include <crumb/format/q2_k.hpp>
#include <crumb/format/q3_k.hpp>
#include <crumb/format/q4_1.hpp>
#include <crumb/format/q4_k.hpp>
#include <crumb/format/q5_0.hpp>
#include <crumb/format/q5_1.hpp>
#include <crumb/format/q5_k.hpp>
#include <crumb/format/q6_k.hpp>
#include <crumb/format/tq1_0.hpp>
#include <crumb/format/tq2_0.hpp>
#include <crumb/offline/weights/quantize.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>

namespace test_gguf_types {
namespace {

/// A format, ggml's number of it, and the codes that its bits can say.
template <class F, unsigned Number, int Minimum, int Maximum>
struct described {
    using format = F;
    static constexpr const char* name = F::name;
    static constexpr unsigned number = Number;
    static constexpr int minimum = Minimum;
    static constexpr int maximum = Maximum;
};

using every_type = crumb::type_list<described<crumb::q4_1, 3, 0, 15>, described<crumb::q5_0, 6, -16, 15>,
                                    described<crumb::q5_1, 7, 0, 31>, described<crumb::q2_k, 10, 0, 3>,
                                    described<crumb::q3_k, 11, -4, 3>, described<crumb::q4_k, 12, 0, 15>,
                                    described<crumb::q5_k, 13, 0, 31>, described<crumb::q6_k, 14, -32, 31>,
                                    described<crumb::iq4_nl, 20, 0, 15>, described<crumb::iq4_xs, 23, 0, 15>,
                                    described<crumb::tq1_0, 34, -1, 1>, described<crumb::tq2_0, 35, -1, 2>,
                                    described<crumb::mxfp4, 39, 0, 15>, described<crumb::nvfp4, 40, 0, 15>,
                                    described<crumb::q1_0, 41, -1, 1>, described<crumb::q2_0, 42, -1, 2>>;

template <class Block>
Block random_block(std::mt19937& random) {
    unsigned char bytes[sizeof(Block)];
    for (auto& byte : bytes)
        byte = static_cast<unsigned char>(random());
    Block block;
    std::memcpy(&block, bytes, sizeof block);
    return block;
}

/// What `set` makes of the scales, minima and codes of a block.
template <class F>
typename F::block rebuilt(const typename F::block& b) {
    constexpr std::size_t group = F::scales::group;
    typename F::block out{};
    for (std::size_t g = 0; g < F::scales::block_groups; ++g) {
        int codes[group];
        for (std::size_t i = 0; i < group; ++i)
            codes[i] = F::code(b, g * group + i);
        if constexpr (crumb::has_minima<F>)
            F::set(out, F::scale(b, g), F::minimum(b, g), codes, g);
        else
            F::set(out, F::scale(b, g), codes, g);
    }
    return out;
}

template <class F>
double squared_error(const crumb::storage_view<F>& w, const std::vector<float>& x) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double difference = w.weight(0, i) - double(x[i]);
        sum += difference * difference;
    }
    return sum;
}

template <class T>
struct GgufTypes {};
FORMAT_TEST_SUITE(GgufTypes, every_type);

// Sums with a minimum of 0 are compared as values: ggml subtracts it and crumb adds its negative, and -0 - 0
// is -0 where -0 + 0 is 0. All other weights are compared in all of their bits.
FORMAT_TEST(GgufTypes, DecodeAsGgmlDoes) {
    using F = TypeParam::format;
    static_assert(crumb::weight_format<F> && crumb::writable_format<F>);
    const auto type = crumb_test::read_gguf_type(TypeParam::number);
    ASSERT_EQ(type.block_bytes, sizeof(typename F::block));
    ASSERT_EQ(type.block_inputs, crumb::block_inputs<F>);
    std::vector<typename F::block> blocks(type.blocks.size() / type.block_bytes);
    std::memcpy(blocks.data(), type.blocks.data(), type.blocks.size());
    const std::size_t inputs = blocks.size() * type.block_inputs;
    const auto view = crumb::storage<F>(blocks, 1, inputs);
    ASSERT_TRUE(view) << view.message();
    std::vector<float> decoded(inputs);
    for (std::size_t i = 0; i < inputs; ++i)
        decoded[i] = float(view->weight(0, i)) + (crumb::has_minima<F> ? 0.0f : -0.0f);
    crumb_test::expect_floats(type, decoded);
}

FORMAT_TEST(GgufTypes, AnyBytesAreCodesOfTheirRange) {
    using F = TypeParam::format;
    std::mt19937 random(1);
    std::set<int> seen;
    for (int repetition = 0; repetition < 64; ++repetition) {
        const auto block = random_block<typename F::block>(random);
        for (std::size_t i = 0; i < crumb::block_inputs<F>; ++i) {
            const int code = F::code(block, i);
            ASSERT_GE(code, TypeParam::minimum);
            ASSERT_LE(code, TypeParam::maximum);
            seen.insert(code);
        }
    }
    const bool signs = TypeParam::number == 41; // -1 and 1
    EXPECT_EQ(seen.size(), signs ? 2u : std::size_t(TypeParam::maximum - TypeParam::minimum + 1));
}

FORMAT_TEST(GgufTypes, BlocksAreRebuiltFromWhatIsReadInThem) {
    using F = TypeParam::format;
    std::mt19937 random(2);
    for (int repetition = 0; repetition < 64; ++repetition) {
        const auto block = random_block<typename F::block>(random);
        const auto again = rebuilt<F>(block);
        if constexpr (std::same_as<F, crumb::tq1_0>) { // not all bytes are five digits; the codes stay
            for (std::size_t i = 0; i < crumb::block_inputs<F>; ++i)
                ASSERT_EQ(F::code(again, i), F::code(block, i)) << i;
            const auto once_more = rebuilt<F>(again);
            ASSERT_EQ(std::memcmp(&once_more, &again, sizeof again), 0);
        } else {
            ASSERT_EQ(std::memcmp(&again, &block, sizeof block), 0);
        }
    }
}

// What ggml's quantizer made comes back byte for byte, which random bytes of tq1_0 do not.
FORMAT_TEST(GgufTypes, QuantizedBlocksAreRebuilt) {
    using F = TypeParam::format;
    const auto type = crumb_test::read_gguf_type(TypeParam::number);
    const std::size_t quantized = 2 * std::max<std::size_t>(256, type.block_inputs) / type.block_inputs;
    for (std::size_t b = 0; b < quantized; ++b) {
        typename F::block block;
        std::memcpy(&block, type.blocks.data() + b * sizeof block, sizeof block);
        const auto again = rebuilt<F>(block);
        ASSERT_EQ(std::memcmp(&again, &block, sizeof block), 0) << b;
    }
}

// A group is written without a trace in the others, and its scale without a trace in its minimum.
FORMAT_TEST(GgufTypes, GroupsAreWrittenApart) {
    using F = TypeParam::format;
    constexpr std::size_t group = F::scales::group, groups = F::scales::block_groups;
    std::mt19937 random(3);
    const auto block = random_block<typename F::block>(random),
               other = random_block<typename F::block>(random);
    for (std::size_t g = 0; g < groups; ++g) {
        auto written = block;
        int codes[group];
        for (std::size_t i = 0; i < group; ++i)
            codes[i] = F::code(other, g * group + i);
        F::set(written, F::scale(other, g), codes, g);
        EXPECT_EQ(F::scale(written, g), F::scale(other, g));
        for (std::size_t i = 0; i < groups * group; ++i)
            ASSERT_EQ(F::code(written, i), F::code(i / group == g ? other : block, i)) << g << ' ' << i;
        for (std::size_t h = 0; h < groups; ++h) {
            if constexpr (crumb::has_minima<F>) {
                EXPECT_EQ(F::minimum(written, h), F::minimum(block, h)) << g << ' ' << h;
            }
            if constexpr (requires(typename F::scales::value s) { s.multiplier; }) {
                EXPECT_EQ(F::scale(written, h).multiplier, F::scale(h == g ? other : block, h).multiplier);
            }
        }
    }
}

// The bar is ggml's own quantizer: its squared error on the same floats, and 1 % for decisions between
// equals.
FORMAT_TEST(GgufTypes, EncodeIsAsGoodAsGgmls) {
    using F = TypeParam::format;
    if constexpr (crumb::rounding_format<F>) {
        const auto type = crumb_test::read_gguf_type(TypeParam::number);
        for (int kind = 0; kind < 2; ++kind) {
            const auto x = crumb_test::error_inputs(kind);
            const auto q = crumb::quantize<F>(crumb::matrix(x.data(), 1, x.size()));
            ASSERT_TRUE(q) << q.message();
            const double error = squared_error<F>(q->view(), x);
            EXPECT_LE(error, 1.01 * type.squared_error[kind]) << kind;
            testing::Test::RecordProperty(kind == 0 ? "gaussian" : "heavy_tailed",
                                          std::to_string(error / type.squared_error[kind]));
        }
    } else {
        EXPECT_STREQ(F::name, "nvfp4"); // is made by tools that train for it
    }
}

// Two compilers, two architectures and fused multiply-adds must not change a byte. The floats have zeros of
// both signs.
FORMAT_TEST(GgufTypes, EncodeWritesTheSameBytesEverywhere) {
    using F = TypeParam::format;
    if constexpr (crumb::rounding_format<F>) {
        const std::map<std::string, std::uint32_t> hashes = {
            {"q4_1", 0x31ceac25},   {"q5_0", 0xa66e7483},   {"q5_1", 0x0d8f7f49},  {"q2_k", 0xc6313df1},
            {"q3_k", 0xb5bb86fb},   {"q4_k", 0xed3b4d6d},   {"q5_k", 0x14949d83},  {"q6_k", 0xfd1129c2},
            {"iq4_nl", 0x6cc94c8f}, {"iq4_xs", 0xdf0c0bcf}, {"tq1_0", 0x5c9b894b}, {"tq2_0", 0x523a0adb},
            {"mxfp4", 0xb9fd3142},  {"q1_0", 0x33cbcfde},   {"q2_0", 0x769d13b2},
        };
        std::vector<float> x(16384);
        std::uint64_t state = 1;
        for (float& value : x) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            const int q = int(state >> 48) - 32768;
            value = float(q % 97) * float(q) * 0x1p-20f;
        }
        const auto q = crumb::quantize<F>(crumb::matrix(x.data(), 1, x.size()));
        ASSERT_TRUE(q) << q.message();
        EXPECT_EQ(crumb_test::hash_of(std::as_bytes(std::span(q->blocks))), hashes.at(F::name));
    }
}

/// Floats of the sizes that a quantizer can meet: a row of blocks, each with another scale and shape.
template <class F>
std::vector<float> difficult_floats() {
    constexpr std::size_t inputs = crumb::block_inputs<F>;
    std::vector<float> x;
    std::mt19937 random(4);
    for (const float size : {0.0f, 0x1p-149f, 0x1p-126f, 1e-20f, 1e-15f, 1e-9f, 1e-4f, 1.0f, 1e4f})
        for (int shape = 0; shape < 6; ++shape)
            for (std::size_t i = 0; i < inputs; ++i) {
                const float noise = float(int(random() >> 8) - 8388608) / 8388608;
                x.push_back(size * (shape == 0   ? 1.0f                           // equal
                                    : shape == 1 ? -1.0f                          // and negative
                                    : shape == 2 ? (i % 2 == 0 ? 1.0f : -1.0f)    // two values
                                    : shape == 3 ? (i == 5 ? -1.0f : 0.0f)        // one
                                    : shape == 4 ? 0.5f + 0.5f * std::fabs(noise) // far from 0
                                                 : noise));
            }
    return x;
}

// A weight is never further from its float than the largest float of its block: encoding as zeros were
// better.
FORMAT_TEST(GgufTypes, EncodeIsNeverWorseThanZeros) {
    using F = TypeParam::format;
    if constexpr (crumb::rounding_format<F>) {
        const auto x = difficult_floats<F>();
        const auto q = crumb::quantize<F>(crumb::matrix(x.data(), 1, x.size()));
        ASSERT_TRUE(q) << q.message();
        constexpr std::size_t inputs = crumb::block_inputs<F>;
        for (std::size_t b = 0; b < x.size() / inputs; ++b) {
            double largest = 0;
            for (std::size_t i = 0; i < inputs; ++i)
                largest = std::max(largest, std::fabs(double(x[b * inputs + i])));
            for (std::size_t i = b * inputs; i < (b + 1) * inputs; ++i)
                // Halves are off by 2^-11 of themselves, small ones by 2^-25; minima are up to 63 of them.
                ASSERT_LE(std::fabs(q->view().weight(0, i) - double(x[i])),
                          largest * (1 + 0x1p-10) + 64 * 0x1p-25)
                    << "block " << b << ", " << x[i];
        }
    }
}

FORMAT_TEST(GgufTypes, QuantizeRefusesWhatScalesCannotHold) {
    using F = TypeParam::format;
    if constexpr (crumb::rounding_format<F>) {
        constexpr std::size_t inputs = crumb::block_inputs<F>;
        std::vector<float> x(inputs, 1.0f);
        x[inputs - 1] = std::numeric_limits<float>::infinity();
        EXPECT_FALSE(crumb::quantize<F>(crumb::matrix(x.data(), 1, inputs)));
        for (const float huge : {3e38f, -3e38f}) {
            for (const std::size_t count : {std::size_t{1}, inputs / 2, inputs}) {
                std::fill(x.begin(), x.end(), -huge);
                std::fill(x.begin(), x.begin() + std::ptrdiff_t(count), huge);
                const auto q = crumb::quantize<F>(crumb::matrix(x.data(), 1, inputs));
                const bool half_scales = TypeParam::number != 39; // a power of two can be as large
                EXPECT_EQ(!q, half_scales);
            }
        }
    }
}

} // namespace
} // namespace test_gguf_types
