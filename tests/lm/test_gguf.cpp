// The GGUF reader and writer: round trips, and an error that names the culprit for everything that can be
// wrong.
#include "file_bytes.hpp"
#include "gguf/gguf.hpp"
#include "gguf/gguf_writer.hpp"
#include "vocabularies.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace test_gguf {
namespace {

using lm::test::bytes;
using lm::test::ramp;

TEST(Gguf, EveryKindSurvivesARoundTrip) {
    for (std::uint32_t version : {2u, 3u}) {
        lm::gguf_writer writer(version);
        lm::test::put_every_kind(writer);
        const auto written = writer.bytes();
        ASSERT_TRUE(written.ok()) << written.message();
        const auto file = lm::gguf::parse(*written);
        ASSERT_TRUE(file.ok()) << file.message();
        EXPECT_EQ(file->version(), version);
        EXPECT_EQ(file->alignment(), 32u);
        EXPECT_EQ(file->values().size(), 24u);
        EXPECT_TRUE(file->tensors().empty());

        EXPECT_EQ(*file->get_u32("one.u8"), 200u);
        EXPECT_EQ(*file->get_i32("one.i8"), -100);
        EXPECT_EQ(*file->get_i32("one.u16"), 60000);
        EXPECT_EQ(*file->get_i32("one.i16"), -30000);
        EXPECT_EQ(*file->get_u32("one.u32"), 4000000000u);
        EXPECT_EQ(*file->get_i32("one.i32"), -2000000000);
        EXPECT_EQ(*file->get_u64("one.u64"), ~std::uint64_t{0});
        EXPECT_EQ(file->find("one.i64")->integer<std::int64_t>(), -9000000000000000000);
        EXPECT_EQ(*file->get_f32("one.f32"), 1.5f);
        EXPECT_EQ(*file->get_f32("one.f64"), -2.25f);
        EXPECT_TRUE(*file->get_bool("one.bool"));
        EXPECT_EQ(*file->get_string("one.string"), "text");

        EXPECT_EQ(*file->get_i32s("many.i8"), (std::vector<std::int32_t>{-100, 0, -100}));
        EXPECT_EQ(*file->get_i32s("many.u16"), (std::vector<std::int32_t>{60000, 0, 60000}));
        EXPECT_EQ(*file->get_f32s("many.f64"), (std::vector<float>{-2.25f, 0, -2.25f}));
        EXPECT_EQ((*file->get_array("many.bool"))->boolean(2), true);
        const auto strings = *file->get_strings("many.string");
        EXPECT_EQ(strings.size(), 3u);
        EXPECT_EQ(std::vector<std::string>(strings.begin(), strings.end()),
                  (std::vector<std::string>{"first", "", "third one"}));

        lm::gguf_writer copy(version);
        for (const lm::gguf_value& value : file->values())
            copy.set(value);
        EXPECT_EQ(*copy.bytes(), *written);
    }
}

TEST(Gguf, TensorsOfAllTypesSurviveARoundTrip) {
    const bytes data = ramp(1024);
    for (std::uint32_t alignment : {8u, 32u, 4096u}) {
        lm::gguf_writer writer(3, alignment);
        for (const lm::ggml_type_info& info : lm::ggml_types) {
            const std::uint64_t dims[] = {info.block, 1, 3};
            writer.add_tensor(info.name, static_cast<lm::ggml_type>(info.number), dims,
                              std::span(data).first(std::size_t{info.block_bytes} * 3));
        }
        const auto written = writer.bytes();
        ASSERT_TRUE(written.ok()) << written.message();
        const auto file = lm::gguf::parse(*written);
        ASSERT_TRUE(file.ok()) << file.message();
        EXPECT_EQ(file->alignment(), alignment);
        ASSERT_EQ(file->tensors().size(), std::size(lm::ggml_types));
        for (const lm::ggml_type_info& info : lm::ggml_types) {
            const auto tensor = file->get_tensor(info.name);
            ASSERT_TRUE(tensor.ok()) << tensor.message();
            EXPECT_EQ(lm::ggml_type_name((*tensor)->type), info.name);
            EXPECT_EQ((*tensor)->rank, 3u);
            EXPECT_EQ((*tensor)->dims, (std::array<std::uint64_t, 4>{info.block, 1, 3, 1}));
            EXPECT_EQ((*tensor)->elements(), 3u * info.block);
            EXPECT_EQ(static_cast<std::size_t>((*tensor)->data.data() - written->data()) % alignment, 0u);
            EXPECT_TRUE(std::equal((*tensor)->data.begin(), (*tensor)->data.end(), data.begin()));
            EXPECT_EQ((*tensor)->data.size(), 3u * info.block_bytes);
        }
    }
}

TEST(Gguf, AFileIsTheSameOnDiskAndInMemory) {
    const auto directory =
        std::filesystem::temp_directory_path() / ("crumb-gguf-" + std::to_string(::getpid()));
    std::filesystem::create_directories(directory);
    const std::string path = directory / "model.gguf";
    lm::gguf_writer writer;
    lm::test::put_every_kind(writer);
    const std::uint64_t dims[] = {4};
    const bytes data = ramp(16);
    writer.add_tensor("t", lm::ggml_type::f32, dims, data);
    for (int again = 0; again < 2; ++again)
        ASSERT_TRUE(writer.write(path).ok()) << writer.write(path).message();
    auto file = lm::gguf::open(path);
    ASSERT_TRUE(file.ok()) << file.message();
    const lm::gguf moved = std::move(*file);
    EXPECT_EQ(*moved.get_string("one.string"), "text");
    EXPECT_TRUE(std::equal(data.begin(), data.end(), moved.find_tensor("t")->data.begin()));
    EXPECT_EQ(std::filesystem::file_size(path), writer.bytes()->size());
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 1);

    const auto fails = [](const auto& result, std::string_view name, std::string_view reason) {
        EXPECT_FALSE(result.ok());
        const std::string message = result.message();
        EXPECT_NE(message.find(name), message.npos) << message;
        EXPECT_NE(message.find(reason), message.npos) << message;
    };
    fails(lm::gguf::open(directory / "absent"), "absent", "No such file");
    fails(lm::gguf::open(directory), directory.filename().string(), "is a directory");
    fails(writer.write(directory / "no" / "where"), "where", "No such file");
    fails(lm::gguf::open(directory / std::string(200, 'x')), "xxx", "No such file");
    std::filesystem::resize_file(path, 100);
    fails(lm::gguf::open(path), "model.gguf", "do not fit");
    std::filesystem::resize_file(path, 0);
    fails(lm::gguf::open(path), "model.gguf", "is empty");
    std::filesystem::remove_all(directory);
}

TEST(Gguf, GettersNameTheKeyAndTheKind) {
    lm::gguf_writer writer;
    lm::test::put_every_kind(writer);
    writer.set("nan", std::numeric_limits<float>::quiet_NaN());
    writer.set("huge", 1e300);
    const float infinite[] = {1.0f, std::numeric_limits<float>::infinity()};
    writer.set_array("infinite", std::span<const float>(infinite));
    writer.set("over\nline", "text");
    const auto written = writer.bytes();
    const auto file = lm::gguf::parse(*written);
    ASSERT_TRUE(file.ok()) << file.message();

    EXPECT_STREQ(file->get_u32("absent").message(), "key 'absent' is missing");
    EXPECT_STREQ(file->get_strings("absent").message(), "key 'absent' is missing");
    EXPECT_STREQ(file->get_tensor("absent").message(), "tensor 'absent' is missing");
    EXPECT_STREQ(file->get_u32("one.string").message(), "key 'one.string' is string, not an integer");
    EXPECT_STREQ(file->get_u32("many.u32").message(), "key 'many.u32' is an array of u32, not an integer");
    EXPECT_STREQ(file->get_u32("one.i8").message(),
                 "key 'one.i8' holds an integer that does not fit into u32");
    EXPECT_STREQ(file->get_i32("one.u64").message(),
                 "key 'one.u64' holds an integer that does not fit into i32");
    EXPECT_STREQ(file->get_u64("one.f32").message(), "key 'one.f32' is f32, not an integer");
    EXPECT_STREQ(file->get_f32("one.u8").message(), "key 'one.u8' is u8, not a float");
    EXPECT_STREQ(file->get_f32("nan").message(), "key 'nan' holds a number that is not finite");
    EXPECT_STREQ(file->get_f32("huge").message(), "key 'huge' holds a number that is not finite");
    EXPECT_STREQ(file->get_f32s("infinite").message(), "key 'infinite' holds a number that is not finite");
    EXPECT_STREQ(file->get_bool("one.u8").message(), "key 'one.u8' is u8, not a bool");
    EXPECT_STREQ(file->get_string("one.bool").message(), "key 'one.bool' is bool, not a string");
    EXPECT_STREQ(file->get_array("one.u8").message(), "key 'one.u8' is u8, not an array");
    EXPECT_STREQ(file->get_strings("many.u8").message(),
                 "key 'many.u8' is an array of u8, not an array of strings");
    EXPECT_STREQ(file->get_i32s("many.f32").message(),
                 "key 'many.f32' is an array of f32, not an array of integers");
    EXPECT_STREQ(file->get_i32s("many.u32").message(),
                 "key 'many.u32' holds an integer that does not fit into i32");
    EXPECT_STREQ(file->get_f32s("many.i8").message(),
                 "key 'many.i8' is an array of i8, not an array of floats");
    EXPECT_STREQ(file->get_u32("over\nline").message(), "key 'over?line' is string, not an integer");

    EXPECT_EQ(*file->get_u32("absent", 5), 5u);
    EXPECT_EQ(*file->get_f32("absent", 0.5f), 0.5f);
    EXPECT_EQ(*file->get_string("absent", "x"), "x");
    EXPECT_TRUE(*file->get_bool("absent", true));
    EXPECT_EQ(*file->get_u32("one.u8", 5), 200u);
    EXPECT_FALSE(file->get_u32("one.string", 5).ok()) << "a fallback is for missing keys only";
}

TEST(Gguf, LongNamesAreShortenedInMessages) {
    const std::string name(1000, 'k');
    lm::gguf_writer writer;
    writer.set(name, "text");
    const bytes written = *writer.bytes();
    const auto file = lm::gguf::parse(written);
    ASSERT_TRUE(file.ok()) << file.message();
    EXPECT_EQ(file->get_u32(name).message(),
              "key '" + std::string(64, 'k') + "...' is string, not an integer");
}

TEST(GgufWriter, ReportsTheFirstThingThatCannotBeWritten) {
    const bytes data = ramp(64);
    const std::uint64_t dims[] = {16};
    const std::uint64_t ragged[] = {33};
    const auto error = [](const lm::gguf_writer& writer) { return std::string(writer.bytes().message()); };
    const auto error_after = [&](auto&& action) {
        lm::gguf_writer writer;
        action(writer);
        return error(writer);
    };
    EXPECT_EQ(error(lm::gguf_writer(1)), "version 1 cannot be written (2 and 3 can)");
    EXPECT_EQ(error(lm::gguf_writer(3, 24)), "alignment 24 is not a power of two of at least 8");
    EXPECT_EQ(error_after([](auto& w) { w.set("", 1u); }), "a key of 0 bytes (1 to 65535 are possible)");
    EXPECT_EQ(error_after([&](auto& w) { w.add_tensor("", lm::ggml_type::f32, dims, data); }),
              "a tensor's name of 0 bytes (1 to 65535 are possible)");
    EXPECT_EQ(error_after([&](auto& w) { w.add_tensor("t", lm::ggml_type::f16, dims, data); }),
              "tensor 't' has 64 bytes of data, its shape needs 32");
    EXPECT_EQ(error_after([&](auto& w) { w.add_tensor("t", lm::ggml_type::q4_0, ragged, data); }),
              "tensor 't' has rows of 33 elements, not a multiple of Q4_0's 32");
    EXPECT_EQ(error_after([&](auto& w) { w.add_tensor("t", lm::ggml_type{77}, dims, {}); }),
              "tensor 't': type 77 is unknown");
    EXPECT_EQ(error_after([&](auto& w) {
                  w.add_tensor("t", lm::ggml_type::f32, dims, data);
                  w.add_tensor("t", lm::ggml_type::f32, dims, data);
                  w.set("", 1u);
              }),
              "tensor 't' is added twice");
    lm::gguf_writer replaced;
    replaced.set("key", 1u);
    replaced.set("key", "text");
    const bytes written = *replaced.bytes();
    EXPECT_EQ(*lm::gguf::parse(written)->get_string("key"), "text");
}

TEST(Gguf, TheShippedModelsAreRead) {
    for (const char* name : {"gpt2", "llama"}) {
        const auto file = lm::gguf::open(std::string(CRUMB_MODEL_DIR "/novels-") + name + "-5m-q8_0.gguf");
        ASSERT_TRUE(file.ok()) << file.message();
        EXPECT_EQ(*file->get_string("general.architecture"), name);
        EXPECT_EQ(*file->get_u32(std::string(name) + ".block_count"), 6u);
        EXPECT_EQ(file->tensors().size(), std::string_view(name) == "gpt2" ? 77u : 57u);
        const auto embedding = file->get_tensor("token_embd.weight");
        ASSERT_TRUE(embedding.ok()) << embedding.message();
        EXPECT_EQ((*embedding)->type, lm::ggml_type::q8_0);
        EXPECT_EQ((*embedding)->data.size(), 256u * 256 / 32 * 34);
    }
}

} // namespace
} // namespace test_gguf
