// Files whose parts are valid and disagree with each other, and weights whose results are no numbers.
#include "cli/commands.hpp"
#include "fed.hpp"
#include "gguf/gguf_writer.hpp"
#include "model/ffn_file.hpp"
#include "tiny_model.hpp"

#include <crumb/offline/nested/quantized.hpp>
#include <crumb/offline/weights/quantize.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

namespace test_attacks {
namespace {

using namespace lm::test;
using crumb::errc;
using lm::activation_type;
using lm::architecture;
using lm::ffn_type;
using lm::ggml_type;
using lm::kv_type;
using lm::weight_type;

using tensor_map = std::map<std::string, tiny_model::tensor>;

/// A tiny model whose file is aligned for packed tensors.
bytes file_of(const tiny_model& m) {
    lm::gguf_writer writer(3, crumb::alignment);
    put_bpe(writer, {});
    for (const auto& [key, value] : m.keys)
        std::visit([&, &name = key](const auto& v) { writer.set(name, v); }, value);
    for (const auto& [name, t] : m.tensors)
        writer.add_tensor(name, t.type, t.dims, t.data);
    const auto out = writer.bytes();
    EXPECT_TRUE(out) << out.message();
    return *out;
}

/// Bytes as a tensor of packed weights.
tiny_model::tensor packed(std::span<const std::byte> content) {
    return {ggml_type::i8, {content.size()}, bytes(content.begin(), content.end())};
}

/// n x k nested weights of random codes.
tiny_model::tensor nested(std::size_t n, std::size_t k, int seed, int parent) {
    std::mt19937 random(7);
    std::vector<std::uint8_t> codes(n * k);
    for (auto& c : codes)
        c = static_cast<std::uint8_t>(random() % (1u << parent));
    const std::vector<crumb::half> scales(n * ((k + 31) / 32), crumb::to_half(0.02f));
    lm::buffer memory(crumb::nested_packed_bytes(n, k, parent));
    const auto view =
        crumb::pack({codes.data(), scales.data(), nullptr, n, k, crumb::nested_levels::uniform(seed, parent)},
                    memory.bytes());
    EXPECT_TRUE(view) << view.message();
    return packed(memory.bytes().first(view->bytes()));
}

/// n x k random weights in a format, packed.
template <class F>
tiny_model::tensor quantized(std::size_t n, std::size_t k) {
    std::mt19937 random(9);
    std::vector<float> w(n * k);
    for (float& x : w)
        x = static_cast<float>(random() % 2001) * 1e-4f - 0.1f;
    const auto q = crumb::quantize<F>(crumb::matrix<const float>(w.data(), n, k));
    EXPECT_TRUE(q) << q.message();
    lm::buffer memory(crumb::packed_bytes<F>(n, k));
    const auto view = crumb::pack(*q, memory.bytes());
    EXPECT_TRUE(view) << view.message();
    return packed(memory.bytes().first(view->bytes()));
}

constexpr tiny_shape small{.width = 32, .hidden = 64, .heads = 2, .kv_heads = 1};
const char* const matrices[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                "ffn_gate", "ffn_up", "ffn_down"};

/// All matrices of the layers as nested weights.
void nest(tiny_model& m, int seed, int parent) {
    for (auto& [name, t] : m.tensors)
        if (lm::find_role(name))
            t = nested(t.dims[1], t.dims[0], seed, parent);
}

std::string load_error(const tiny_model& m, const lm::model_options& how = {}) {
    const temporary_file file(file_of(m));
    const auto loaded = lm::model::load(file.path(), how);
    EXPECT_FALSE(loaded);
    return loaded.message();
}

// The vocabulary's matrix has the precisions of the layers, or none: bits that it does not store must not
// select what runs. The reproduction of an indirect call through bytes of the file.
TEST(Attacks, TheOutputMatrixHasThePrecisionsOfTheLayers) {
    auto all = integer_activations();
    all.push_back(activation_type::f32);
    for (const activation_type activations : all) {
        tiny_model plain(small);
        plain.tensors["output.weight"] = nested(256, 32, 2, 2);
        EXPECT_NE(load_error(plain, {weight_type::stored, activations})
                      .find("tensor blk.0.attn_q.weight is not nested, tensor output.weight is 2 to 2 bits"),
                  std::string::npos)
            << load_error(plain, {weight_type::stored, activations});

        tiny_model other(small);
        nest(other, 2, 4);
        other.tensors["output.weight"] = nested(256, 32, 3, 4);
        EXPECT_NE(load_error(other, {weight_type::stored, activations})
                      .find("tensor blk.0.attn_q.weight is 2 to 4 bits, tensor output.weight is 3 to 4 bits"),
                  std::string::npos);

        // A tied embedding is the output matrix.
        tiny_shape shape = small;
        shape.tied = true;
        tiny_model tied(shape);
        tied.tensors["token_embd.weight"] = nested(256, 32, 2, 3);
        EXPECT_NE(load_error(tied, {weight_type::stored, activations})
                      .find("tensor token_embd.weight is 2 to 3 bits"),
                  std::string::npos);
        nest(tied, 2, 4);
        EXPECT_NE(load_error(tied, {weight_type::stored, activations}), "");

        // The same ones, or a plain matrix, are fine.
        tiny_model good(small);
        nest(good, 2, 4);
        for (const bool both : {false, true}) {
            if (both)
                good.tensors["output.weight"] = nested(256, 32, 2, 4);
            const temporary_file file(file_of(good));
            const auto m = lm::model::load(file.path(), {weight_type::stored, activations});
            ASSERT_TRUE(m) << m.message();
            auto s = lm::session::make(*m, lm::team(1), kv_type::f16, 16, 16);
            ASSERT_TRUE(s) << s.message();
            for (int bits = 2; bits <= 4; ++bits) {
                s->precision(bits);
                fed(*s, random_tokens(3, 4), 1);
            }
        }
    }
}

// One matrix of a layer at other precisions than the rest.
TEST(Attacks, MatricesOfLayersHaveTheSamePrecisions) {
    for (const char* name : matrices) {
        tiny_model m(small);
        nest(m, 2, 4);
        auto& t = m.tensors[std::string("blk.1.") + name + ".weight"];
        const auto whole = tiny_model(small).tensors[std::string("blk.1.") + name + ".weight"];
        t = nested(whole.dims[1], whole.dims[0], 2, 3);
        EXPECT_NE(load_error(m).find("2 to 3 bits"), std::string::npos) << name;
        t = whole;
        EXPECT_NE(load_error(m).find("not nested"), std::string::npos) << name;
    }
}

// Scales that are no numbers are refused in packed weights as in plain ones, by the tensor's name.
TEST(Attacks, PackedWeightsAreNumbers) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto check = [&](tiny_model::tensor t, std::size_t at, std::span<const std::byte> bad) {
        for (const activation_type activations : {activation_type::int8, activation_type::f32}) {
            tiny_model m(small);
            m.tensors["blk.1.ffn_up.weight"] = t;
            std::memcpy(m.tensors["blk.1.ffn_up.weight"].data.data() + at, bad.data(), bad.size());
            const std::string said = load_error(m, {weight_type::stored, activations});
            EXPECT_NE(said.find("tensor blk.1.ffn_up.weight: packed weights, "), std::string::npos) << said;
        }
    };
    const crumb::half h = crumb::to_half(nan);
    const auto half_bytes = std::as_bytes(std::span(&h, 1));
    check(quantized<crumb::q8_0>(64, 32), 64, half_bytes);
    check(quantized<crumb::q4_0>(64, 32), 64 + 6, half_bytes);
    check(quantized<crumb::u2>(64, 32), 64 + 126, half_bytes);
    for (const bool of_layer : {true, false}) {
        tiny_model m(small);
        const char* name = of_layer ? "blk.0.attn_k.weight" : "output.weight";
        auto& t = m.tensors[name];
        t = quantized<crumb::q8_0>(t.dims[1], t.dims[0]);
        std::memcpy(t.data.data() + 64, half_bytes.data(), 2);
        EXPECT_NE(load_error(m).find(std::string("tensor ") + name + ": packed weights, scales: number 0 is"),
                  std::string::npos);
    }
    tiny_model m(small);
    nest(m, 2, 4);
    auto& t = m.tensors["blk.0.attn_output.weight"];
    std::memcpy(t.data.data() + 128, half_bytes.data(), 2);
    EXPECT_NE(load_error(m).find("tensor blk.0.attn_output.weight: nested weights, corrections: number 0"),
              std::string::npos)
        << load_error(m);
}

// Finite weights may yield what is not: an error that names where, whichever number of threads runs.
TEST(Attacks, WhatIsNotFiniteIsTheSameErrorForEveryNumberOfThreads) {
    for (const auto arch : {architecture::llama, architecture::gpt2}) {
        const bool llama = arch == architecture::llama;
        tiny_shape shape{.arch = arch, .width = 32, .hidden = 64, .heads = 4, .kv_heads = 4};
        const std::pair<const char*, const char*> large[] = {
            {llama ? "blk.1.attn_q.weight" : "blk.1.attn_qkv.weight", "blk.1.attn_q"},
            {"blk.0.attn_output.weight", "blk.0.attn_output.weight"},
            {"blk.1.ffn_up.weight", "blk.1.ffn_up.weight"},
            {"blk.1.ffn_down.weight", "blk.1.ffn_down.weight"},
            {"output.weight", "output.weight"}};
        for (const auto& [name, said] : large) {
            tiny_model m(shape);
            auto& t = m.tensors[name];
            // One row: the others stay numbers.
            for (std::size_t i = 0; i < t.dims[0]; ++i) {
                const float x = 3e38f;
                std::memcpy(t.data.data() + (5 * t.dims[0] + i) * sizeof x, &x, sizeof x);
            }
            const temporary_file file(m.file());
            const auto model = lm::model::load(file.path(), {weight_type::f32, activation_type::f32});
            ASSERT_TRUE(model) << model.message();
            std::string first;
            for (const std::size_t threads : {1, 2, 3, 4})
                for (const std::size_t batch : {1, 8}) {
                    auto s = lm::session::make(*model, lm::team(threads), kv_type::f16, 32, batch);
                    ASSERT_TRUE(s) << s.message();
                    const auto logits = s->feed(random_tokens(8, 3), 1);
                    ASSERT_FALSE(logits) << name;
                    EXPECT_EQ(logits.error().code(), errc::not_finite);
                    const std::string message = logits.message();
                    EXPECT_NE(message.find(said), std::string::npos) << message;
                    EXPECT_NE(message.find("token"), std::string::npos) << message;
                    if (batch == 8) {
                        first = first.empty() ? message : first;
                        EXPECT_EQ(message, first) << threads << " threads";
                    }
                }
        }
    }
}

/// A tiny model with folded networks, made once.
const bytes& folded_file() {
    static const bytes content = [] {
        const temporary_file source(
            tiny_model({.arch = architecture::gpt2, .width = 32, .hidden = 64, .heads = 2, .kv_heads = 2})
                .file());
        const temporary_file text = text_file(2000);
        const temporary_file out{bytes()};
        lm::calibrate_options o;
        o.model = source.path();
        o.ffn = *lm::ffn_recipe::parse("tardis:coverage=0.5:predictor=u2:fold=q8_0");
        o.text = text.path();
        o.threads = 1;
        o.out = out.path();
        const auto done = lm::calibrate(o);
        EXPECT_TRUE(done) << done.message();
        std::ifstream in(out.path(), std::ios::binary);
        const std::string all{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
        const auto raw = std::as_bytes(std::span(all));
        return bytes(raw.begin(), raw.end());
    }();
    return content;
}

// Fold, predictor and neurons that agree with each other and not with the model read beyond its rows.
TEST(Attacks, FoldedNetworksHaveTheWidthOfTheModel) {
    lm::buffer whole(folded_file().size());
    std::memcpy(whole.bytes().data(), folded_file().data(), folded_file().size());
    const auto file = lm::gguf::parse(whole.bytes());
    ASSERT_TRUE(file) << file.message();
    for (const std::uint64_t width :
         {std::uint64_t{31}, std::uint64_t{30}, std::uint64_t{1}, std::uint64_t{48}}) {
        lm::buffer copy(folded_file().size());
        std::memcpy(copy.bytes().data(), folded_file().data(), folded_file().size());
        const auto set = [&](const char* tensor, std::size_t at) {
            const lm::gguf_tensor* t = file->find_tensor(tensor);
            ASSERT_NE(t, nullptr);
            std::memcpy(copy.bytes().data() + (t->data.data() - whole.bytes().data()) + at, &width,
                        sizeof width);
        };
        for (const char* tensor : {"crumb.ffn.0.fold", "crumb.ffn.0.predictor"})
            set(tensor, 32);            // k
        set("crumb.ffn.0.neurons", 16); // inputs
        const auto m = lm::model::load(std::move(copy), "f",
                                       {weight_type::stored, activation_type::int8, ffn_type::tardis});
        ASSERT_FALSE(m) << width;
        const std::string said = m.message();
        // Where the bytes happen to suffice, the shapes are compared.
        EXPECT_TRUE(said.find("the network has 64 of 32 and 32") != std::string::npos ||
                    said.find("bytes by shape") != std::string::npos)
            << said;
    }
}

TEST(SessionTokens, RefusesTokensThatItCannotTake) {
    const temporary_file file(tiny_model(small).file());
    const auto m = lm::model::load(file.path(), {});
    ASSERT_TRUE(m) << m.message();
    auto s = lm::session::make(*m, lm::team(1), kv_type::f16, 8, 8);
    ASSERT_TRUE(s) << s.message();
    const std::int32_t bad[] = {1, 256};
    EXPECT_STREQ(s->feed(bad, 1).message(), "token 256, the vocabulary has 256");
    const std::int32_t negative[] = {-1};
    EXPECT_STREQ(s->feed(negative, 1).message(), "token -1, the vocabulary has 256");
    EXPECT_STREQ(s->feed(random_tokens(9, 1), 1).message(), "9 tokens behind 0 others, the context has 8");
    EXPECT_STREQ(s->feed(random_tokens(3, 1), 4).message(), "logits behind 4 tokens are wanted, 3 are fed");
    EXPECT_EQ(s->length(), 0u);
    fed(*s, random_tokens(8, 1), 1);
    EXPECT_STREQ(s->feed(random_tokens(1, 1), 1).message(), "1 tokens behind 8 others, the context has 8");
}

} // namespace
} // namespace test_attacks
