// Random models of a given shape.
#include "fed.hpp"
#include "model/session.hpp"
#include "tiny_model.hpp"
#include "train/synth.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

namespace test_synth {
namespace {

using namespace lm::test;
using lm::architecture;
using lm::ggml_type;
using lm::synth_shape;

constexpr synth_shape llama = {architecture::llama, 2, 64, 160, 4, 2, 1200, 256};
constexpr synth_shape gpt2 = {architecture::gpt2, 2, 64, 160, 4, 4, 1100, 64};

bytes file_of(const synth_shape& shape, ggml_type weights, std::uint64_t seed = 1) {
    const auto file = lm::synthesize(shape, "small", weights, seed);
    EXPECT_TRUE(file.ok()) << file.message();
    const auto out = file->bytes();
    EXPECT_TRUE(out.ok()) << out.message();
    return out ? *out : bytes();
}

struct synth_case {
    synth_shape shape;
    ggml_type weights;
    const char* name;
    friend void PrintTo(const synth_case& self, std::ostream* out) { *out << self.name; }
};

class Synth : public testing::TestWithParam<synth_case> {};

TEST_P(Synth, LoadsAndRuns) {
    const auto& [shape, weights, name] = GetParam();
    const temporary_file file(file_of(shape, weights));
    const auto m = lm::model::load(file.path(), {});
    ASSERT_TRUE(m.ok()) << m.message();
    EXPECT_EQ(m->shape().arch, shape.arch);
    EXPECT_EQ(m->shape().layers, shape.layers);
    EXPECT_EQ(m->shape().width, shape.width);
    EXPECT_EQ(m->shape().hidden, shape.hidden);
    EXPECT_EQ(m->shape().heads, shape.heads);
    EXPECT_EQ(m->shape().kv_heads, shape.kv_heads);
    EXPECT_EQ(m->shape().vocabulary, shape.vocabulary);
    EXPECT_EQ(m->shape().context, shape.context);
    auto s = lm::session::make(*m, lm::team(1), lm::kv_type::f16, 40, 16);
    ASSERT_TRUE(s.ok()) << s.message();
    std::vector<std::int32_t> text;
    for (std::int32_t i = 0; i < 40; ++i)
        text.push_back(i * 27);
    const auto logits = fed(*s, text, 40);
    double squares = 0;
    for (const float x : logits) {
        ASSERT_TRUE(std::isfinite(x));
        squares += double{x} * double{x};
    }
    // Neither vanishing nor exploding from layer to layer.
    const double size = std::sqrt(squares / static_cast<double>(logits.size()));
    EXPECT_GT(size, 0.1);
    EXPECT_LT(size, 100);
}

TEST_P(Synth, HasAVocabularyThatReadsAndWritesText) {
    const temporary_file file(file_of(GetParam().shape, GetParam().weights));
    const auto read = lm::gguf::open(file.path());
    ASSERT_TRUE(read.ok()) << read.message();
    const auto tokens = read->get_strings("tokenizer.ggml.tokens");
    ASSERT_TRUE(tokens.ok());
    EXPECT_EQ(std::set<std::string_view>(tokens->begin(), tokens->end()).size(), GetParam().shape.vocabulary);
    const auto t = lm::tokenizer::make(*read);
    ASSERT_TRUE(t.ok()) << t.message();
    const std::string text = "a text with \xC3\xA9, 12 numbers and abc";
    const auto encoded = t->encode(text, false);
    const std::string decoded = t->decode(encoded);
    EXPECT_EQ(decoded.substr(decoded.size() - text.size()), text);
    // Words of letters are more than single letters.
    EXPECT_LT(encoded.size(), text.size());
}

TEST_P(Synth, IsTheSameForTheSameSeed) {
    const auto& [shape, weights, name] = GetParam();
    const bytes one = file_of(shape, weights);
    EXPECT_TRUE(one == file_of(shape, weights));
    EXPECT_FALSE(one == file_of(shape, weights, 2));
    // What is written in pieces is the file in memory.
    const std::string path = testing::TempDir() + "crumb-synth-" + name + ".gguf";
    std::size_t last = 0, all = 0;
    ASSERT_TRUE(
        lm::synthesize(shape, "small", weights, 1)->write(path, [&](std::size_t done, std::size_t of) {
            EXPECT_GT(done, last);
            last = done;
            all = of;
        }));
    EXPECT_EQ(last, all);
    std::ifstream in(path, std::ios::binary);
    const std::vector<char> written{std::istreambuf_iterator<char>(in), {}};
    ASSERT_EQ(written.size(), one.size());
    EXPECT_EQ(std::memcmp(written.data(), one.data(), one.size()), 0);
    std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(All, Synth,
                         testing::Values(synth_case{llama, ggml_type::q4_0, "LlamaQ4_0"},
                                         synth_case{llama, ggml_type::q8_0, "LlamaQ8_0"},
                                         synth_case{llama, ggml_type::f16, "LlamaF16"},
                                         synth_case{gpt2, ggml_type::q4_0, "Gpt2Q4_0"},
                                         synth_case{gpt2, ggml_type::f16, "Gpt2F16"}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(SynthShapes, AreFoundByName) {
    const auto tiny = lm::find_shape("tinyllama-1.1b");
    ASSERT_TRUE(tiny.ok()) << tiny.message();
    EXPECT_EQ(tiny->layers, 22u);
    EXPECT_EQ(tiny->width, 2048u);
    EXPECT_EQ(tiny->kv_heads, 4u);
    const auto cut = lm::find_shape("gpt2-xl:layers=3");
    ASSERT_TRUE(cut.ok()) << cut.message();
    EXPECT_EQ(cut->layers, 3u);
    EXPECT_EQ(cut->vocabulary, 50257u);
    EXPECT_TRUE(lm::find_shape("llama-2-7b:layers=32").ok());
}

TEST(SynthShapes, ErrorsNameTheArgument) {
    EXPECT_STREQ(lm::find_shape("mistral").message(),
                 "--like: 'mistral' is no shape (tinyllama-1.1b, llama-2-7b, gpt2-xl are)");
    for (const char* option :
         {"layers=0", "layers=49", "layers=", "layers=x", "layers=3x", "layers=-1", "depth=3", ""}) {
        const auto s = lm::find_shape(std::string("gpt2-xl:") + option);
        ASSERT_FALSE(s.ok()) << option;
        EXPECT_NE(std::string(s.message()).find("layers=1 to layers=48 can follow gpt2-xl"),
                  std::string::npos)
            << s.message();
    }
}

TEST(SynthShapes, WhatCannotBeWrittenIsAnError) {
    synth_shape shape = llama;
    shape.vocabulary = 353;
    EXPECT_FALSE(lm::synthesize(shape, "", ggml_type::q4_0, 1).ok());
    shape.vocabulary = 354;
    EXPECT_TRUE(lm::synthesize(shape, "", ggml_type::q4_0, 1).ok());
    shape.heads = 3;
    EXPECT_FALSE(lm::synthesize(shape, "", ggml_type::q4_0, 1).ok());
    EXPECT_FALSE(lm::synthesize(llama, "", ggml_type::bf16, 1).ok());
    shape = llama;
    shape.width = 68;
    const auto ragged = lm::synthesize(shape, "", ggml_type::q4_0, 1);
    ASSERT_TRUE(ragged.ok());
    EXPECT_NE(std::string(ragged->bytes().message()).find("not a multiple"), std::string::npos)
        << ragged->bytes().message();
}

} // namespace
} // namespace test_synth
