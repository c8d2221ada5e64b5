// What can be wrong with a GGUF file: always an error, which names the culprit.
#include "file_bytes.hpp"
#include "gguf/gguf.hpp"
#include "gguf/gguf_writer.hpp"
#include "vocabularies.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <ostream>
#include <span>
#include <string>

namespace test_gguf_errors {
namespace {

using namespace lm::test;

TEST(Gguf, EveryTruncationIsAnError) {
    for (std::uint32_t alignment : {8u, 32u}) {
        const bytes whole = small_file(2, alignment);
        ASSERT_EQ(error_of(whole), "");
        const auto file = lm::gguf::parse(whole);
        const auto last = file->find_tensor("second")->data;
        const auto needed = static_cast<std::size_t>(last.data() + last.size() - whole.data());
        ASSERT_EQ(needed, whole.size());
        for (std::size_t size = 0; size < needed; ++size)
            EXPECT_NE(error_of(bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))), "")
                << "cut to " << size;
    }
    lm::gguf_writer writer;
    lm::test::put_every_kind(writer);
    const bytes whole = *writer.bytes();
    for (std::size_t size = 0; size < whole.size(); ++size)
        EXPECT_NE(error_of(bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))), "")
            << "cut to " << size;
}

TEST(Gguf, EveryByteMayBeAnything) {
    const bytes whole = small_file();
    for (std::size_t at = 0; at < whole.size(); ++at)
        for (int value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
            bytes damaged = whole;
            damaged[at] = static_cast<std::byte>(value);
            error_of(damaged);
        }
}

struct damage {
    const char* name;
    std::function<void(bytes&)> apply;
    const char* message; ///< a part of it

    friend void PrintTo(const damage& self, std::ostream* out) { *out << self.name; }
};

class GgufDamage : public testing::TestWithParam<damage> {};

TEST_P(GgufDamage, IsNamed) {
    bytes file = small_file();
    GetParam().apply(file);
    const std::string error = error_of(file);
    EXPECT_NE(error.find(GetParam().message), error.npos) << "error: " << error;
}

// Within an entry, counted from its name's beginning.
constexpr std::size_t number_kind = 6;             // behind "number"
constexpr std::size_t truth_value = 5 + 4;         // behind "truth" and the kind
constexpr std::size_t string_length = 6 + 4;       // behind "string" and the kind
constexpr std::size_t first_rank = 5;              // behind "first"
constexpr std::size_t first_dims = first_rank + 4; // two of them
constexpr std::size_t first_type = first_dims + 16;
constexpr std::size_t first_offset = first_type + 4;
constexpr std::size_t second_dims = 6 + 4;           // behind "second" and the rank: one of them
constexpr std::size_t second_type = second_dims + 8; // behind "second", the rank and one dimension
constexpr std::size_t second_offset = second_type + 4;

template <class T>
std::function<void(bytes&)> at(const char* entry, std::size_t offset, T value) {
    return [=](bytes& file) { poke(file, find(file, entry) + offset, value); };
}
template <class T>
std::function<void(bytes&)> at(std::size_t offset, T value) {
    return [=](bytes& file) { poke(file, offset, value); };
}
constexpr std::uint64_t huge = ~std::uint64_t{0};

INSTANTIATE_TEST_SUITE_P(
    All, GgufDamage,
    testing::Values(
        damage{"Empty", [](bytes& f) { f.clear(); }, "the file is empty"},
        damage{"Magic", at(0, 'X'), "wrong magic"},
        damage{"VersionOne", at(4, 1u), "GGUF version 1 (only 2 and 3"},
        damage{"VersionFour", at(4, 4u), "GGUF version 4 (only 2 and 3"},
        damage{"VersionZero", at(4, 0u), "GGUF version 0"},
        damage{"BigEndian", at(4, 0x03000000u), "big-endian"},
        damage{"ManyTensors", at(8, huge), "18446744073709551615 tensors do not fit"},
        damage{"ManyKeys", at(16, huge), "18446744073709551615 keys do not fit"},
        damage{"OneKeyTooMany", at(16, std::uint64_t{4}), "tensor 0: a name of"},
        damage{"KeyNameLong", at(24, huge), "key 0: a name of 18446744073709551615 bytes"},
        damage{"KeyNameEmpty", at(24, std::uint64_t{0}), "key 0: a name of 0 bytes"},
        damage{"KeyNameBeyond", at(24, std::uint64_t{60000}), "key 0: its name is truncated"},
        damage{"KindUnknown", at("number", number_kind, 13u), "key 'number': unknown kind 13"},
        damage{"ArrayLong",
               [](bytes& f) {
                   poke(f, find(f, "number") + number_kind, 9u);
                   poke(f, find(f, "number") + number_kind + 4, 0u);
                   poke(f, find(f, "number") + number_kind + 8, huge);
               },
               "key 'number': 18446744073709551615 values do not fit"},
        damage{"ArrayOfStringsLong",
               [](bytes& f) {
                   poke(f, find(f, "number") + number_kind, 9u);
                   poke(f, find(f, "number") + number_kind + 4, 8u);
                   poke(f, find(f, "number") + number_kind + 8, huge / 8);
               },
               "key 'number': 2305843009213693951 values do not fit"},
        damage{"ArrayOfArrays",
               [](bytes& f) {
                   poke(f, find(f, "number") + number_kind, 9u);
                   poke(f, find(f, "number") + number_kind + 4, 9u);
               },
               "key 'number': arrays of arrays"},
        damage{"BoolOfTwo", at("truth", truth_value, std::uint8_t{2}), "key 'truth': a bool of 2"},
        damage{"StringLong", at("string", string_length, huge), "key 'string': string 0 does not fit"},
        damage{"KeyTwice", [](bytes& f) { std::memcpy(f.data() + find(f, "string"), "number", 6); },
               "key 'number' appears twice"},
        damage{"TensorNameEmpty", at("first", std::size_t(-8), std::uint64_t{0}),
               "tensor 0: a name of 0 bytes"},
        damage{"RankZero", at("first", first_rank, 0u), "tensor 'first' has 0 dimensions"},
        damage{"RankFive", at("first", first_rank, 5u), "tensor 'first' has 5 dimensions"},
        damage{"DimensionZero", at("first", first_dims, std::uint64_t{0}),
               "tensor 'first' has a dimension of 0"},
        damage{"DimensionHuge", at("first", first_dims, huge), "tensor 'first' has absurd dimensions"},
        damage{"ProductOverflows",
               [](bytes& f) {
                   poke(f, find(f, "first") + first_dims, std::uint64_t{1} << 33);
                   poke(f, find(f, "first") + first_dims + 8, std::uint64_t{1} << 33);
               },
               "tensor 'first' has absurd dimensions: their product"},
        damage{"BytesOverflow", at("second", second_dims, std::uint64_t{1} << 61),
               "tensor 'second' has absurd dimensions: its size"},
        damage{"RowIsNoMultiple", at("first", first_dims, std::uint64_t{48}),
               "tensor 'first' has rows of 48 elements, not a multiple of Q8_0's 32"},
        damage{"BeyondTheFile", at("first", first_dims + 8, std::uint64_t{4000}),
               "tensor 'first': its 272000 bytes"},
        damage{"OffsetMisaligned", at("first", first_offset, std::uint64_t{8}),
               "tensor 'first': offset 8 is not a multiple of 32"},
        damage{"OffsetHuge", at("second", second_offset, huge - 31), "tensor 'second': its 32 bytes"},
        damage{"Overlap", at("second", second_offset, std::uint64_t{128}),
               "tensors 'first' and 'second' overlap"},
        damage{"SamePlace", at("second", second_offset, std::uint64_t{0}), "overlap"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Gguf, AlignmentMustBeAPowerOfTwo) {
    for (std::uint32_t wrong : {0u, 1u, 4u, 12u, 48u, 0xFFFFFFFFu}) {
        bytes file = small_file(3, 64);
        poke(file, find(file, "general.alignment") + 17 + 4, wrong);
        EXPECT_EQ(error_of(file), "key 'general.alignment' is " + std::to_string(wrong) +
                                      ", not a power of two of at least 8");
    }
    bytes file = small_file(3, 64);
    poke(file, find(file, "general.alignment") + 17, lm::gguf_kind::f32);
    EXPECT_EQ(error_of(file), "key 'general.alignment' is f32, not an integer");
    poke(file, find(file, "general.alignment") + 17, lm::gguf_kind::u32);
    poke(file, find(file, "general.alignment") + 21, 0x80000000u);
    EXPECT_NE(error_of(file).find("tensor 'first'"), std::string::npos);
}

TEST(Gguf, ATensorNameTwiceIsAnError) {
    const bytes data = ramp(8);
    const std::uint64_t dims[] = {2};
    lm::gguf_writer writer;
    writer.add_tensor("same", lm::ggml_type::f32, dims, data);
    writer.add_tensor("sane", lm::ggml_type::f32, dims, data);
    bytes file = *writer.bytes();
    poke(file, find(file, "sane") + 2, 'm');
    EXPECT_EQ(error_of(file), "tensor 'same' appears twice");
}

TEST(Gguf, UnknownTypesAreKeptAndNamed) {
    bytes file = small_file();
    poke(file, find(file, "second") + second_type, 77u);
    const auto parsed = lm::gguf::parse(file);
    ASSERT_TRUE(parsed.ok()) << parsed.message();
    const lm::gguf_tensor* tensor = parsed->find_tensor("second");
    EXPECT_EQ(static_cast<std::uint32_t>(tensor->type), 77u);
    EXPECT_EQ(lm::ggml_type_name(tensor->type), "type 77");
    EXPECT_TRUE(tensor->data.empty());
}

TEST(Gguf, MisalignedMemoryIsRefused) {
    const bytes file = small_file();
    bytes shifted(file.size() + 1);
    std::copy(file.begin(), file.end(), shifted.begin() + 1);
    const auto parsed = lm::gguf::parse(std::span<const std::byte>(shifted).subspan(1));
    EXPECT_EQ(parsed.error().code(), crumb::errc::misaligned);
}

} // namespace
} // namespace test_gguf_errors
