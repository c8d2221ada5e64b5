// Packed files: the same results from weights that are used as they are mapped.
#include "fed.hpp"
#include "model/packed_file.hpp"
#include "model/session.hpp"
#include "tiny_model.hpp"
#include "train/packing.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <sys/stat.h>

namespace test_pack {
namespace {

using namespace lm::test;
using lm::architecture;
using lm::ggml_type;

/// A packed file of another, gone with the object.
struct packed_copy {
    std::string path;
    explicit packed_copy(const std::string& model) : path(model + ".packed") {
        const auto made = lm::pack_model(model);
        EXPECT_TRUE(made.ok()) << made.message();
        if (made) {
            const auto written = made->file.write(path);
            EXPECT_TRUE(written.ok()) << written.message();
        }
    }
    ~packed_copy() { std::filesystem::remove(path); }
};

std::vector<float> logits_of(const std::string& path) {
    const auto m = lm::model::load(path, {});
    EXPECT_TRUE(m.ok()) << m.message();
    if (!m)
        return {};
    auto s = lm::session::make(*m, lm::team(1), lm::kv_type::f16, m->shape().context, 16);
    EXPECT_TRUE(s.ok()) << s.message();
    std::vector<std::int32_t> text;
    for (std::int32_t i = 0; i < 40; ++i)
        text.push_back(i * 5);
    const auto logits = fed(*s, text, 40);
    return {logits.begin(), logits.end()};
}

/// Small enough for every type: K types have blocks of 256.
tiny_shape shape_of(ggml_type type, architecture arch, bool tied) {
    return {.arch = arch,
            .width = 256,
            .hidden = 256,
            .layers = 1,
            .heads = 4,
            .kv_heads = 4,
            .tied = tied,
            .matrices = type,
            .embedding = type};
}

TEST(Pack, ChangesNoBit) {
    for (const ggml_type type :
         {ggml_type::f32, ggml_type::f16, ggml_type::q8_0, ggml_type::q4_0, ggml_type::q4_1, ggml_type::q4_k,
          ggml_type::q6_k, ggml_type::iq4_nl, ggml_type::iq3_s})
        for (const bool tied : {false, true}) {
            SCOPED_TRACE(lm::ggml_type_name(type) + (tied ? ", tied" : ""));
            tiny_shape shape = shape_of(type, architecture::llama, tied);
            shape.seed = 3;
            const temporary_file file(tiny_model(shape).file());
            const packed_copy packed(file.path());
            const auto expected = logits_of(file.path());
            ASSERT_FALSE(expected.empty());
            EXPECT_EQ(logits_of(packed.path), expected);
            const auto read = lm::gguf::open(packed.path);
            ASSERT_TRUE(read.ok());
            EXPECT_EQ(read->find_tensor("blk.0.ffn_up.weight")->type == ggml_type::i8,
                      type != ggml_type::f32 && type != ggml_type::f16);
            EXPECT_TRUE(lm::is_packed(*read));
            // Weights take no memory but that of the file.
            const auto m = lm::model::load(packed.path, {});
            ASSERT_TRUE(m.ok()) << m.message();
            for (const lm::named_matrix& each : m->matrices())
                EXPECT_EQ(each.m->copied_bytes() != 0, type == ggml_type::f32) << each.name;
            EXPECT_STREQ(lm::pack_model(packed.path).message(), "the file is packed already");
        }
}

std::string load_error(const std::string& path) {
    const auto m = lm::model::load(path, {});
    return m ? std::string() : m.message();
}

TEST(Pack, IsRefusedWhenItsSourceHasChanged) {
    const bytes content = tiny_model(shape_of(ggml_type::q8_0, architecture::gpt2, false)).file();
    const temporary_file file(content);
    const packed_copy packed(file.path());
    EXPECT_EQ(load_error(packed.path), "");
    const auto write_again = [&](const bytes& to) {
        std::ofstream out(file.path(), std::ios::binary);
        out.write(reinterpret_cast<const char*>(to.data()), static_cast<std::streamsize>(to.size()));
    };
    struct stat before = {};
    ASSERT_EQ(::stat(file.path().c_str(), &before), 0);
    const auto set_time = [&](long seconds_later) {
        timespec times[2] = {before.st_mtim, before.st_mtim};
        times[1].tv_sec += seconds_later;
        ASSERT_EQ(::utimensat(AT_FDCWD, file.path().c_str(), times, 0), 0);
    };
    set_time(1);
    EXPECT_NE(load_error(packed.path).find("has changed since (its time): pack it again"), std::string::npos);
    set_time(0);
    EXPECT_EQ(load_error(packed.path), "");
    bytes longer = content;
    longer.resize(longer.size() + 32);
    write_again(longer);
    set_time(0);
    EXPECT_NE(load_error(packed.path).find("has changed since (its size)"), std::string::npos);
    tiny_model other(shape_of(ggml_type::q8_0, architecture::gpt2, false));
    other.keys["gpt2.attention.layer_norm_epsilon"] = 2e-5f;
    write_again(other.file());
    set_time(0);
    EXPECT_NE(load_error(packed.path).find("has changed since (its keys or tensors)"), std::string::npos);
    // Without its source a packed file is a model like any other.
    std::filesystem::rename(file.path(), file.path() + ".away");
    EXPECT_EQ(load_error(packed.path), "");
    std::filesystem::rename(file.path() + ".away", file.path());
}

} // namespace
} // namespace test_pack
