// What can be wrong with a model: always an error, which names the culprit.
#include "fed.hpp"
#include "model/session.hpp"
#include "tiny_model.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace test_model_errors {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::architecture;
using lm::ggml_type;
using lm::weight_type;

constexpr tiny_shape llama = {.rope_dims = 4};
constexpr tiny_shape gpt2 = {.arch = architecture::gpt2, .heads = 3};
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float inf = std::numeric_limits<float>::infinity();

/// The error of loading a file, behind the file's name; empty if there is none.
std::string load_error(const bytes& content, const lm::model_options& options = {}) {
    const temporary_file file(content);
    const auto m = lm::model::load(file.path(), options);
    if (m)
        return "";
    const std::string message = m.message();
    const std::size_t colon = message.find(": ");
    EXPECT_NE(colon, message.npos) << message;
    return colon == message.npos ? message : message.substr(colon + 2);
}

struct damage {
    const char* name;
    tiny_shape shape;
    std::function<void(tiny_model&)> apply;
    const char* message; ///< its beginning

    friend void PrintTo(const damage& self, std::ostream* out) { *out << self.name; }
};

class ModelDamage : public testing::TestWithParam<damage> {};

TEST_P(ModelDamage, IsNamed) {
    tiny_model m(GetParam().shape);
    ASSERT_EQ(load_error(m.file()), "");
    GetParam().apply(m);
    const std::string error = load_error(m.file());
    EXPECT_EQ(error.substr(0, std::strlen(GetParam().message)), GetParam().message);
}

template <class T>
std::function<void(tiny_model&)> key(const char* name, T value) {
    return [=](tiny_model& m) { m.keys[name] = value; };
}
std::function<void(tiny_model&)> no_key(const char* name) {
    return [=](tiny_model& m) { EXPECT_EQ(m.keys.erase(name), 1u); };
}
std::function<void(tiny_model&)> dims(const char* name, std::vector<std::uint64_t> values) {
    return [=](tiny_model& m) {
        auto& t = m.tensors.at(name);
        std::uint64_t elements = 1;
        for (std::uint64_t dim : values)
            elements *= dim;
        t = {ggml_type::f32, values, bytes(elements * sizeof(float))};
    };
}

INSTANTIATE_TEST_SUITE_P(
    Keys, ModelDamage,
    testing::Values(
        damage{"NoArchitecture", llama, no_key("general.architecture"),
               "key 'general.architecture' is missing"},
        damage{
            "UnknownArchitecture", llama, key("general.architecture", "mamba"),
            "architecture 'mamba' is not supported (llama, gpt2, smollm3, qwen2, qwen3, gemma3, phi3 are)"},
        damage{"ArchitectureIsANumber", llama, key("general.architecture", 1u),
               "key 'general.architecture' is u32, not a string"},
        damage{"NoContext", llama, no_key("llama.context_length"), "key 'llama.context_length' is missing"},
        damage{"NoWidth", llama, no_key("llama.embedding_length"), "key 'llama.embedding_length' is missing"},
        damage{"NoLayerCount", gpt2, no_key("gpt2.block_count"), "key 'gpt2.block_count' is missing"},
        damage{"NoHidden", gpt2, no_key("gpt2.feed_forward_length"),
               "key 'gpt2.feed_forward_length' is missing"},
        damage{"NoHeads", llama, no_key("llama.attention.head_count"),
               "key 'llama.attention.head_count' is missing"},
        damage{"NoEpsilon", gpt2, no_key("gpt2.attention.layer_norm_epsilon"),
               "key 'gpt2.attention.layer_norm_epsilon' is missing"},
        damage{"WidthIsAFloat", llama, key("llama.embedding_length", 24.0f),
               "key 'llama.embedding_length' is f32, not an integer"},
        damage{"ContextZero", llama, key("llama.context_length", 0u), "key llama.context_length is 0"},
        damage{"ContextAbsurd", llama, key("llama.context_length", (64u << 20) + 1),
               "key llama.context_length is 67108865: 1 to 67108864"},
        damage{"WidthZero", llama, key("llama.embedding_length", 0u), "key llama.embedding_length is 0"},
        damage{"WidthAbsurd", gpt2, key("gpt2.embedding_length", ~0u),
               "key gpt2.embedding_length is 4294967295: 1 to 1048576"},
        damage{"LayersZero", gpt2, key("gpt2.block_count", 0u), "key gpt2.block_count is 0"},
        damage{"LayersAbsurd", gpt2, key("gpt2.block_count", 4097u), "key gpt2.block_count is 4097"},
        damage{"HiddenZero", llama, key("llama.feed_forward_length", 0u),
               "key llama.feed_forward_length is 0"},
        damage{"HiddenAbsurd", llama, key("llama.feed_forward_length", ~0u),
               "key llama.feed_forward_length is 4294967295"},
        damage{"HeadsZero", llama, key("llama.attention.head_count", 0u),
               "key llama.attention.head_count is 0"},
        damage{"HeadsDoNotDivide", llama, key("llama.attention.head_count", 5u),
               "key llama.attention.head_count is 5: it must divide the embedding length"},
        damage{"KvHeadsZero", llama, key("llama.attention.head_count_kv", 0u),
               "key llama.attention.head_count_kv is 0"},
        damage{"KvHeadsDoNotDivide", llama, key("llama.attention.head_count_kv", 3u),
               "key llama.attention.head_count_kv is 3: it must divide the number of heads"},
        damage{"Gpt2GroupedQueries", gpt2, key("gpt2.attention.head_count_kv", 1u),
               "tensor blk.0.attn_qkv.bias: shape is 72 x 1, 40 x 1 is needed"},
        damage{"EpsilonZero", llama, key("llama.attention.layer_norm_rms_epsilon", 0.0f),
               "the norm's epsilon 0 is not"},
        damage{"EpsilonLarge", gpt2, key("gpt2.attention.layer_norm_epsilon", 2.0f),
               "the norm's epsilon 2 is not"},
        damage{"EpsilonNaN", llama, key("llama.attention.layer_norm_rms_epsilon", nan),
               "key 'llama.attention.layer_norm_rms_epsilon' holds a number that is not finite"},
        damage{"RopeDimsZero", llama, key("llama.rope.dimension_count", 0u),
               "key llama.rope.dimension_count is 0"},
        damage{"RopeDimsOdd", llama, key("llama.rope.dimension_count", 3u),
               "key llama.rope.dimension_count is 3: it must be even"},
        damage{"RopeDimsLarge", llama, key("llama.rope.dimension_count", 8u),
               "key llama.rope.dimension_count is 8: it must be even"},
        damage{"RopeBaseZero", llama, key("llama.rope.freq_base", 0.0f),
               "key llama.rope.freq_base is not positive"},
        damage{"RopeBaseInfinite", llama, key("llama.rope.freq_base", inf),
               "key 'llama.rope.freq_base' holds a number that is not finite"},
        damage{"RopeOfUnknownScaling", llama, key("llama.rope.scaling.type", "dynamic"),
               "key llama.rope.scaling.type is 'dynamic'; none, linear, yarn and longrope are supported"},
        damage{"RopeFactorNegative", llama, key("llama.rope.scaling.factor", -4.0f),
               "key llama.rope.scaling.factor is -4: a factor is positive"},
        damage{"RopeOldFactorNegative", llama, key("llama.rope.scale_linear", -2.0f),
               "key llama.rope.scale_linear is -2: a factor is positive"},
        damage{"RopeMagnitudeZero", llama, key("llama.rope.scaling.attn_factor", 0.0f),
               "key llama.rope.scaling.attn_factor is 0: a factor is positive"},
        damage{"RopeOfNoContext", llama, key("llama.rope.scaling.original_context_length", 0u),
               "key llama.rope.scaling.original_context_length is 0: it has 1 token or more"},
        damage{"RopeFactorsOfAnotherSize", llama,
               [](tiny_model& m) { m.add("rope_freqs.weight", ggml_type::f32, 1, 3, 1); },
               "tensor rope_freqs.weight: shape is 3 x 1, 2 x 1 is needed"},
        damage{"RopeFactorsNegative", llama,
               [](tiny_model& m) { m.add("rope_freqs.weight", ggml_type::f32, 1, 2, 0, -1); },
               "rope factor 0 is -1: factors of frequencies are positive"},
        damage{"RopeFactorsWhereNoneAre", gpt2,
               [](tiny_model& m) { m.add("rope_freqs.weight", ggml_type::f32, 1, 2, 0, 1); },
               "tensor 'rope_freqs.weight' is not one that architecture gpt2 has here"},
        damage{
            "WindowZero", llama, key("llama.attention.sliding_window", 0u),
            "key llama.attention.sliding_window is 0: a window has 1 token or more; without this key every "
            "layer sees all tokens"},
        damage{"KeyLength", llama, key("llama.attention.key_length", 12u),
               "key llama.attention.value_length is 6: only values as long as keys"},
        damage{"KeyLengthZero", llama, key("llama.attention.key_length", 0u),
               "key llama.attention.key_length is 0: a head has 1 to 512 channels"},
        damage{"ValueLength", llama, key("llama.attention.value_length", 12u),
               "key llama.attention.value_length is 12"},
        damage{"Experts", llama, key("llama.expert_count", 8u), "key llama.expert_count is 8"},
        damage{"Vocabulary", llama, key("tokenizer.ggml.model", "bert"), "key 'tokenizer.ggml.model'"}),
    [](const auto& test) { return std::string(test.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Tensors, ModelDamage,
    testing::Values(
        damage{"LayerMissing", llama, key("llama.block_count", 3u),
               "tensor 'blk.2.attn_norm.weight' is missing"},
        damage{"LayerTooMany", llama, key("llama.block_count", 1u), "tensor 'blk.1."},
        damage{"NotOneOfTheArchitecture", llama,
               [](tiny_model& m) { m.add("blk.0.attn_q_norm.weight", ggml_type::f32, 1, 6, 1); },
               "tensor 'blk.0.attn_q_norm.weight' is not one that architecture llama has here"},
        damage{"BiasOfAnotherSize", llama,
               [](tiny_model& m) { m.add("blk.0.attn_q.bias", ggml_type::f32, 1, 23, 1); },
               "tensor blk.0.attn_q.bias: shape is 23 x 1, 24 x 1 is needed"},
        damage{"BiasOfAFusedMatrixInParts", llama,
               [](tiny_model& m) {
                   for (const char* name : {"attn_q", "attn_k", "attn_v"})
                       m.tensors.erase(std::string("blk.0.") + name + ".weight");
                   m.add("blk.0.attn_qkv.weight", ggml_type::f32, 48, 24, 1);
                   m.add("blk.0.attn_q.bias", ggml_type::f32, 1, 24, 1);
               },
               "tensor 'blk.0.attn_k.bias' is missing"},
        damage{"UnsupportedType", llama,
               [](tiny_model& m) {
                   m.tensors["blk.1.ffn_up.weight"].type = ggml_type::i16;
                   m.tensors["blk.1.ffn_up.weight"].data.resize(std::size_t{2} * 24 * 40);
               },
               "tensor blk.1.ffn_up.weight: type I16 is not supported: F32, F16, BF16 and ggml's types of "
               "blocks are"},
        damage{"UnsupportedVectorType", gpt2,
               [](tiny_model& m) {
                   m.tensors["output_norm.bias"].type = ggml_type::i8;
                   m.tensors["output_norm.bias"].data.resize(24);
               },
               "tensor output_norm.bias: type I8 is not supported"},
        damage{"VocabularySmaller", llama, dims("token_embd.weight", {24, 255}),
               "tensor token_embd.weight: shape is 24 x 255, 24 x 256 is needed"},
        damage{"VocabularyLarger", gpt2, dims("token_embd.weight", {24, 257}),
               "tensor token_embd.weight: shape is 24 x 257, 24 x 256 is needed"},
        damage{"EmbeddingTransposed", gpt2, dims("token_embd.weight", {256, 24}),
               "tensor token_embd.weight: shape is 256 x 24, 24 x 256 is needed"},
        damage{"OutputSmaller", llama, dims("output.weight", {24, 255}),
               "tensor output.weight: shape is 24 x 255, 24 x 256 is needed"},
        damage{"PositionsTransposed", gpt2, dims("position_embd.weight", {48, 24}),
               "tensor position_embd.weight: shape is 48 x 24, 24 x 48 is needed"},
        damage{"MorePositionsThanRows", gpt2, key("gpt2.context_length", 49u),
               "tensor position_embd.weight: shape is 24 x 48, 24 x 49 is needed"},
        damage{"NormShort", llama, dims("output_norm.weight", {23}),
               "tensor output_norm.weight: shape is 23 x 1, 24 x 1 is needed"},
        damage{"NormInTwoDimensions", llama, dims("blk.1.ffn_norm.weight", {12, 2}),
               "tensor blk.1.ffn_norm.weight: shape is 12 x 2, 24 x 1 is needed"},
        damage{"BiasLong", gpt2, dims("blk.0.attn_qkv.bias", {73}),
               "tensor blk.0.attn_qkv.bias: shape is 73 x 1, 72 x 1 is needed"},
        damage{"QueriesNarrow", llama, dims("blk.0.attn_q.weight", {23, 24}),
               "tensor blk.0.attn_q.weight: shape is 23 x 24, 24 x 24 is needed"},
        damage{"KeysOfAllHeads", llama, dims("blk.0.attn_k.weight", {24, 24}),
               "tensor blk.0.attn_k.weight: shape is 24 x 24, 24 x 12 is needed"},
        damage{"FeedForwardTransposed", gpt2, dims("blk.1.ffn_down.weight", {24, 40}),
               "tensor blk.1.ffn_down.weight: shape is 24 x 40, 40 x 24 is needed"},
        damage{"ThreeDimensions", llama, dims("blk.0.ffn_up.weight", {24, 40, 2}),
               "tensor blk.0.ffn_up.weight: shape is 24 x 40, 24 x 40 is needed"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ModelErrors, UnscaledRotaryEmbeddingsMaySaySo) {
    tiny_model m(llama);
    m.keys["llama.rope.scaling.type"] = "none";
    m.keys["llama.rope.scaling.factor"] = 8.0f;
    EXPECT_EQ(load_error(m.file()), "");
    m.keys.erase("llama.rope.scaling.type");
    m.keys["llama.rope.scaling.factor"] = 1.0f;
    EXPECT_EQ(load_error(m.file()), "");
}

TEST(ModelErrors, TensorsOfCrumbItselfAreNoConcern) {
    tiny_model m(llama);
    m.add("crumb.something", ggml_type::f32, 3, 5, 1);
    EXPECT_EQ(load_error(m.file()), "");
}

TEST(ModelErrors, AMissingTensorIsNamed) {
    for (const tiny_shape& shape : {llama, gpt2}) {
        const tiny_model whole(shape);
        for (const auto& [name, tensor] : whole.tensors) {
            tiny_model m = whole;
            m.tensors.erase(name);
            // Without an output matrix the embedding is used.
            EXPECT_EQ(load_error(m.file()),
                      name == "output.weight" ? "" : "tensor '" + name + "' is missing");
        }
    }
}

TEST(ModelErrors, NumbersThatAreNotFiniteAreNamed) {
    const lm::model_options all_options[] = {{weight_type::stored, activation_type::int8},
                                             {weight_type::stored, activation_type::f32},
                                             {weight_type::q8_0, activation_type::f32},
                                             {weight_type::q4_0, activation_type::int8},
                                             {weight_type::f32, activation_type::f32}};
    const auto half = [](std::uint16_t bits) { return crumb::half{bits}; };
    for (const ggml_type type : {ggml_type::f32, ggml_type::f16, ggml_type::q8_0, ggml_type::q4_0}) {
        for (tiny_shape shape : {llama, gpt2}) {
            shape.width = shape.hidden = 32;
            shape.heads = 4;
            shape.layers = 1;
            shape.matrices = shape.embedding = type;
            const tiny_model whole(shape);
            for (const auto& [name, tensor] : whole.tensors) {
                const bool is_float = tensor.type == ggml_type::f32;
                const bool is_half = tensor.type == ggml_type::f16;
                // Scales are the first number of a block, here of the last one.
                const std::size_t last = tensor.data.size() - (is_float                         ? 4
                                                               : is_half                        ? 2
                                                               : tensor.type == ggml_type::q8_0 ? 34
                                                                                                : 18);
                for (const bool is_nan : {true, false}) {
                    tiny_model m = whole;
                    if (is_float)
                        poke(m.tensors[name].data, last, is_nan ? nan : -inf);
                    else
                        poke(m.tensors[name].data, last, half(is_nan ? 0x7e01 : 0x7c00));
                    const bytes file = m.file();
                    for (const lm::model_options& options : all_options) {
                        const std::string error = load_error(file, options);
                        EXPECT_EQ(error.find("tensor " + name + ": "), 0u) << error;
                        EXPECT_NE(error.find("not finite"), error.npos) << error;
                    }
                }
            }
        }
    }
}

TEST(ModelErrors, WeightsBeyondAHalfPrecisionScaleAreNamed) {
    tiny_model m(llama);
    m.add("blk.1.attn_v.weight", ggml_type::f32, 12, 24, 1e9f);
    EXPECT_EQ(load_error(m.file()), "");
    for (const weight_type type : {weight_type::q8_0, weight_type::q4_0}) {
        const std::string error = load_error(m.file(), {type, activation_type::int8});
        EXPECT_EQ(error.find("tensor blk.1.attn_v.weight: weights of row 0, group 0 are too large"), 0u)
            << error;
    }
}

TEST(ModelErrors, HeadsBeyondWhatAttentionAllowsAreAnError) {
    const temporary_file file(
        tiny_model({.width = 514, .hidden = 4, .layers = 1, .heads = 1, .kv_heads = 1}).file());
    const auto m = lm::model::load(file.path(), {});
    ASSERT_FALSE(m.ok());
    EXPECT_NE(
        std::string(m.message()).find("key llama.attention.head_count is 1: a head has 1 to 512 channels"),
        std::string::npos)
        << m.message();
}

TEST(ModelErrors, UnknownTypesDoNotMakeTheirDimensionsTrue) {
    // The reader cannot know the size of such a tensor, so that it may claim to be larger than any memory.
    tiny_model m(gpt2);
    m.keys["gpt2.context_length"] = std::uint32_t{64} << 20;
    bytes file = m.file();
    const std::string name = "position_embd.weight";
    const std::size_t entry = find(file, name) + name.size();
    poke(file, entry + 4 + 8, std::uint64_t{64} << 20);
    poke(file, entry + 4 + 16, 77u);
    EXPECT_EQ(load_error(file),
              "tensor position_embd.weight: type 77 is not supported: F32, F16, BF16 and ggml's types of "
              "blocks are");
}

TEST(ModelErrors, MessagesKeepTheirReasonBehindALongPath) {
    const std::string path = "/nowhere/" + std::string(300, 'd') + "/model.gguf";
    const std::string error = lm::model::load(path, {}).message();
    EXPECT_NE(error.find("model.gguf: "), error.npos) << error;
}

TEST(ModelErrors, TruncatedFilesAreErrors) {
    const bytes whole = tiny_model(llama).file();
    for (std::size_t size = 0; size + 32 < whole.size(); size += 499)
        EXPECT_NE(load_error({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}), "")
            << "cut to " << size;
}

TEST(ModelErrors, AnyByteMayBeAnything) {
    std::mt19937_64 random(1);
    const std::vector<std::int32_t> text = random_tokens(4, 2);
    for (const architecture arch : {architecture::llama, architecture::gpt2}) {
        const tiny_shape shape = {
            .arch = arch, .width = 8, .hidden = 4, .layers = 1, .heads = 2, .kv_heads = 1};
        const bytes whole = tiny_model(shape).file();
        // The first tensors' data is behind keys and table.
        const std::size_t header = find(whole, "token_embd.weight") + 200;
        for (int i = 0; i < 300; ++i) {
            bytes damaged = whole;
            for (std::uint64_t count = 1 + random() % 3; count > 0; --count)
                damaged[random() % header] = static_cast<std::byte>(random());
            const temporary_file file(damaged);
            const auto m = lm::model::load(file.path(), {});
            if (!m)
                continue;
            auto s = lm::session::make(*m, lm::team(1), lm::kv_type::f16,
                                       std::min<std::size_t>(4, m->shape().context), 4);
            if (s && s->context() == 4) {
                // Damaged weights may be too large; then that is said.
                const auto logits = s->feed(text, 1);
                EXPECT_EQ(logits ? logits->size() : 0, logits ? m->shape().vocabulary : 0);
                EXPECT_EQ(logits.error().code(), logits ? crumb::errc::ok : crumb::errc::not_finite);
            }
        }
    }
}

} // namespace
} // namespace test_model_errors
