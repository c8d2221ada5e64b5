// Tensor types that are read but not multiplied: the floats that ggml makes of their blocks.
#include "data/gguf_types.hpp"
#include "gguf/iq_decode.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace test_iq_decode {
namespace {

using lm::ggml_type;

constexpr ggml_type decoded_types[] = {ggml_type::iq1_s,  ggml_type::iq1_m, ggml_type::iq2_xxs,
                                       ggml_type::iq2_xs, ggml_type::iq2_s, ggml_type::iq3_xxs,
                                       ggml_type::iq3_s,  ggml_type::q8_k};

TEST(IqDecode, MakesTheFloatsOfGgml) {
    for (const ggml_type type : decoded_types) {
        SCOPED_TRACE(lm::ggml_type_name(type));
        EXPECT_TRUE(lm::is_decoded(type));
        const auto golden = crumb_test::read_gguf_type(static_cast<std::uint32_t>(type));
        std::vector<float> floats(golden.hashes.size() * 16);
        const auto s = lm::decode(type, golden.blocks, floats.data());
        ASSERT_TRUE(s) << s.message();
        crumb_test::expect_floats(golden, floats);
    }
}

// The blocks of the file do not visit every point of a grid. Of all points in order, each the first of a
// block that is zeros else, there are hashes.
TEST(IqDecode, HasAllPointsOfTheGrids) {
    struct grid {
        ggml_type type;
        std::size_t points;
        std::size_t size;  ///< coordinates of a point
        std::size_t upper; ///< byte of a block that has the upper bits of its first index; 0: none
        std::uint32_t hash;
    };
    constexpr grid grids[] = {
        {ggml_type::iq2_xxs, 256, 8, 0, 0x5b9ba564}, {ggml_type::iq2_xs, 512, 8, 3, 0x468a6815},
        {ggml_type::iq2_s, 1024, 8, 66, 0x0263e2d4}, {ggml_type::iq3_xxs, 256, 4, 0, 0x4b125688},
        {ggml_type::iq3_s, 512, 4, 66, 0x38a2f605},  {ggml_type::iq1_s, 2048, 8, 34, 0x7b098042},
    };
    for (const grid& g : grids) {
        std::vector<float> points;
        for (std::size_t i = 0; i < g.points; ++i) {
            std::vector<std::byte> block(lm::find_ggml_type(g.type)->block_bytes);
            block[1] = std::byte{0x3c}; // the scale 1
            block[2] = static_cast<std::byte>(i & 255);
            if (g.upper != 0)
                block[g.upper] = static_cast<std::byte>(i >> 8);
            float floats[256];
            ASSERT_TRUE(lm::decode(g.type, block, floats));
            points.insert(points.end(), floats, floats + g.size);
        }
        EXPECT_EQ(crumb_test::hash_of(std::as_bytes(std::span(points))), g.hash)
            << lm::ggml_type_name(g.type);
    }
}

TEST(IqDecode, MakesBytesTimesAHalfOfQ8_1) {
    std::vector<std::byte> block(36);
    block[1] = std::byte{0x38}; // 0.5; what follows it, the sum, is not read
    block[3] = std::byte{0x7c};
    for (int i = 0; i < 32; ++i)
        block[static_cast<std::size_t>(4 + i)] = static_cast<std::byte>(8 * i - 128);
    float out[32];
    ASSERT_TRUE(lm::decode(ggml_type::q8_1, block, out));
    for (int i = 0; i < 32; ++i)
        EXPECT_EQ(out[i], 0.5f * static_cast<float>(8 * i - 128)) << i;
}

TEST(IqDecode, RefusesOtherTypesAndPartsOfBlocks) {
    const std::vector<std::byte> bytes(67);
    float out[256];
    const auto other = lm::decode(ggml_type::q4_0, bytes, out);
    EXPECT_EQ(other.code(), crumb::errc::unsupported);
    EXPECT_STREQ(other.message(), "Q4_0 is no type of grids, nor Q8_1 or Q8_K");
    EXPECT_FALSE(lm::is_decoded(ggml_type::q4_0));
    const auto part = lm::decode(ggml_type::iq2_xxs, bytes, out);
    EXPECT_EQ(part.code(), crumb::errc::bad_shape);
    EXPECT_STREQ(part.message(), "67 bytes of IQ2_XXS are no multiple of its 66");
}

} // namespace
} // namespace test_iq_decode
