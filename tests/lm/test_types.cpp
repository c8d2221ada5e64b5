// Every type of GGUF as stored: logits against double precision on the decoded weights, reports, and what is
// refused.
#include "fed.hpp"
#include "model/session.hpp"
#include "naive_model.hpp"
#include "tiny_model.hpp"
#include "train/loading.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace test_types {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::ggml_type;
using lm::kv_type;
using lm::weight_type;

/// The types that this program computes with.
std::vector<ggml_type> computed_types() {
    std::vector<ggml_type> out = {ggml_type::f32, ggml_type::f16, ggml_type::bf16};
    for (const lm::ggml_type_info& info : lm::ggml_types)
        if (const auto type = static_cast<ggml_type>(info.number);
            lm::format_of(type) || lm::is_decoded(type))
            out.push_back(type);
    return out;
}

/// Rows of every block that there is.
constexpr tiny_shape shape = {.width = 256, .hidden = 512, .layers = 1, .heads = 4, .kv_heads = 2};
/// What has its own type in a mixed model.
constexpr const char* matrices[] = {"token_embd",     "output",       "blk.0.attn_q",
                                    "blk.0.attn_k",   "blk.0.attn_v", "blk.0.attn_output",
                                    "blk.0.ffn_gate", "blk.0.ffn_up", "blk.0.ffn_down"};

void set_type(tiny_model& m, const std::string& name, ggml_type type) {
    const auto dims = m.tensors.at(name + ".weight").dims;
    m.add(name + ".weight", type, dims[1], dims[0],
          name == "token_embd" ? 1.0f : 2.5f / std::sqrt(static_cast<float>(dims[0])));
}
tiny_model model_of(ggml_type type) {
    tiny_model m(shape);
    for (const char* name : matrices)
        set_type(m, name, type);
    return m;
}

std::string name_of_test(const testing::TestParamInfo<ggml_type>& test) {
    return lm::ggml_type_name(test.param);
}

class Types : public testing::TestWithParam<ggml_type> {};

std::vector<float> logits_of(const std::string& path, const lm::model_options& options,
                             const std::vector<std::int32_t>& text) {
    const auto m = lm::model::load(path, options);
    EXPECT_TRUE(m.ok()) << m.message();
    if (!m)
        return {};
    auto s = lm::session::make(*m, lm::team(1), kv_type::f32, m->shape().context, 64);
    EXPECT_TRUE(s.ok()) << s.message();
    const auto logits = fed(*s, text, text.size());
    return {logits.begin(), logits.end()};
}

/// Compares logits with those of the naive model. `informative` as in the tests of sessions.
void compare(const tiny_model& model, const lm::model_options& options, double informative) {
    const temporary_file path(model.file());
    const auto file = lm::gguf::open(path.path());
    ASSERT_TRUE(file.ok()) << file.message();
    const auto text = random_tokens(5, 5);
    naive_model naive(*file, {.weights = options.weights,
                              .int8_activations = options.activations == activation_type::int8});
    const auto expected = naive.logits(text);
    const auto tolerance = naive.tolerance(text, expected);
    const auto logits = logits_of(path.path(), options, text);
    ASSERT_EQ(logits.size(), text.size() * 256);
    for (std::size_t t = 0; t < text.size(); ++t) {
        EXPECT_LT(tolerance[t], informative * norm_of(expected[t])) << "token " << t;
        const auto row = logits.begin() + static_cast<std::ptrdiff_t>(t * 256);
        EXPECT_LE(distance({row, row + 256}, expected[t]), tolerance[t]) << "token " << t;
    }
}

TEST_P(Types, MatchTheirValuesInDoublePrecision) {
    const tiny_model m = model_of(GetParam());
    compare(m, {weight_type::stored, activation_type::f32}, 0.01);
    compare(m, {weight_type::stored, activation_type::int8}, 0.3);
}

TEST_P(Types, AreQuantizedAgain) {
    const tiny_model m = model_of(GetParam());
    compare(m, {weight_type::q4_k, activation_type::int8}, 0.3);
}

TEST_P(Types, BatchesDoNotChangeABit) {
    const temporary_file path(model_of(GetParam()).file());
    const auto text = random_tokens(37, 6);
    for (const activation_type activations : integer_activations()) {
        const auto m = lm::model::load(path.path(), {weight_type::stored, activations});
        ASSERT_TRUE(m.ok()) << m.message();
        auto s = lm::session::make(*m, lm::team(2), kv_type::f32, m->shape().context, 64);
        ASSERT_TRUE(s.ok()) << s.message();
        const auto whole = fed(*s, text, text.size());
        const std::vector<float> expected(whole.begin(), whole.end());
        const lm::matrix& q = m->layers()[0].q;
        const bool has_panels =
            activations == activation_type::panels && q.reads_activations() && !q.lacks_panels();
        s->reset();
        std::vector<float> pieces;
        for (const std::int32_t token : text) {
            const auto one = fed(*s, {&token, 1}, 1);
            pieces.insert(pieces.end(), one.begin(), one.end());
        }
        // Panels are for batches, and approximate.
        EXPECT_EQ(pieces == expected, !has_panels);
    }
}

TEST_P(Types, AreNamedInReports) {
    const auto m = lm::model::load(temporary_file(model_of(GetParam()).file()).path(), {});
    ASSERT_TRUE(m.ok()) << m.message();
    std::string name = lm::ggml_type_name(GetParam());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return static_cast<char>(std::tolower(c)); });
    EXPECT_EQ(m->stored_type(), name);
    if (!lm::is_decoded(GetParam())) {
        EXPECT_TRUE(m->notices().empty());
        return;
    }
    ASSERT_EQ(m->notices().size(), 1u);
    EXPECT_EQ(m->notices()[0], "blk.0.attn_q.weight and 7 more matrices: " + lm::ggml_type_name(GetParam()) +
                                   " is decoded and quantized to q8_0, not multiplied as stored");
}

INSTANTIATE_TEST_SUITE_P(All, Types, testing::ValuesIn(computed_types()), name_of_test);

/// A type for every matrix, beginning with number `first`.
tiny_model mixed(std::size_t first) {
    tiny_model m(shape);
    const auto types = computed_types();
    for (std::size_t i = 0; i < std::size(matrices); ++i)
        set_type(m, matrices[i], types[(first + i) % types.size()]);
    return m;
}

TEST(MixedTypes, MatchTheirValuesInDoublePrecision) {
    for (std::size_t first = 0; first < computed_types().size(); first += std::size(matrices)) {
        SCOPED_TRACE(first);
        compare(mixed(first), {weight_type::stored, activation_type::f32}, 0.01);
        compare(mixed(first), {weight_type::stored, activation_type::int8}, 0.3);
    }
}

TEST(MixedTypes, AreCountedInReports) {
    tiny_model m = model_of(ggml_type::q4_k);
    set_type(m, "blk.0.attn_v", ggml_type::q6_k);
    set_type(m, "blk.0.ffn_down", ggml_type::q6_k);
    set_type(m, "blk.0.attn_k", ggml_type::q8_0);
    set_type(m, "output", ggml_type::iq2_xs);
    const temporary_file file(m.file());
    const auto loaded = lm::model::load(file.path(), {weight_type::stored, integer_activations().back()});
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    EXPECT_EQ(loaded->stored_type(), "q4_k 4, q6_k 2, q8_0 1");
    // Of panels nothing is said where there are none.
    ASSERT_EQ(loaded->notices().size(), integer_activations().size());
    EXPECT_EQ(loaded->notices()[0],
              "output.weight: IQ2_XS is decoded and quantized to q8_0, not multiplied as stored");
    if (loaded->notices().size() == 2) {
        EXPECT_EQ(
            loaded->notices()[1],
            "there are no int8 panels of q4_k 4, q6_k 2: batches of these matrices are multiplied exactly");
    }
    // What the user names is what decoded types become.
    const auto other = lm::model::load(file.path(), {weight_type::q5_k, activation_type::int8});
    ASSERT_TRUE(other.ok()) << other.message();
    ASSERT_EQ(other->notices().size(), 1u);
    EXPECT_NE(other->notices()[0].find("quantized to q5_k"), std::string::npos);
    // Whoever loads is told.
    lm::load_options options;
    options.model = file.path();
    options.threads = 1;
    std::vector<std::string> told;
    const auto watched = lm::load(options, {{}, [&](const std::string& text) { told.push_back(text); }});
    ASSERT_TRUE(watched.ok()) << watched.message();
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0], file.path() + ": " + loaded->notices()[0]);
}

/// The scale of a tensor of NVFP4.
void add_scale(tiny_model& m, const std::string& name, std::vector<float> values) {
    m.tensors[name] = {ggml_type::f32, {values.size()}, encode(values, values.size(), ggml_type::f32)};
}

TEST(Nvfp4, IsUnderTheScaleOfTheTensor) {
    tiny_model m = model_of(ggml_type::nvfp4);
    const auto text = random_tokens(5, 2);
    const auto without = logits_of(temporary_file(m.file()).path(), {}, text);
    float scale = 0.5f;
    for (const char* name : matrices)
        add_scale(m, std::string(name) + ".scale", {scale *= 1.25f});
    add_scale(m, "blk.0.ffn_up.input_scale", {0.001f});
    compare(m, {weight_type::stored, activation_type::f32}, 0.01);
    compare(m, {weight_type::stored, activation_type::int8}, 0.3);
    compare(m, {weight_type::q6_k, activation_type::int8}, 0.3);
    EXPECT_NE(logits_of(temporary_file(m.file()).path(), {}, text), without);
}

/// The error of loading a file, behind the file's name.
std::string load_error(const tiny_model& model, const lm::model_options& options = {}) {
    const temporary_file file(model.file());
    const auto m = lm::model::load(file.path(), options);
    const std::string message = m ? "" : m.message();
    return message.substr(std::min(message.size(), message.find(": ") + 2));
}

TEST(TypeErrors, ScalesOfTensors) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const float wrong : {infinity, std::nanf(""), 1e36f}) {
        tiny_model m = model_of(ggml_type::nvfp4);
        add_scale(m, "blk.0.attn_v.scale", {wrong});
        const std::string error = load_error(m);
        EXPECT_EQ(error.find("tensor blk.0.attn_v.scale: weights of NVFP4 under a scale of "), 0u) << error;
        EXPECT_NE(error.find("are not finite"), error.npos) << error;
    }
    tiny_model m = model_of(ggml_type::nvfp4);
    add_scale(m, "blk.0.attn_v.scale", {1, 2});
    EXPECT_EQ(load_error(m), "tensor blk.0.attn_v.scale is not of 1 numbers");
    // Of other types there is none.
    m = model_of(ggml_type::q4_k);
    add_scale(m, "blk.0.attn_v.scale", {1});
    EXPECT_EQ(load_error(m), "tensor 'blk.0.attn_v.scale' is not one that architecture llama has here");
}

/// Numbers over the groups of a block: the first byte of each, and how many bytes it has.
struct block_scales {
    ggml_type type;
    std::vector<std::size_t> halves, bytes;
};
const block_scales all_scales[] = {
    {ggml_type::q4_0, {0}, {}},      {ggml_type::q4_1, {0, 2}, {}}, {ggml_type::q5_0, {0}, {}},
    {ggml_type::q5_1, {0, 2}, {}},   {ggml_type::q8_0, {0}, {}},    {ggml_type::q8_1, {0}, {}},
    {ggml_type::q2_k, {80, 82}, {}}, {ggml_type::q3_k, {108}, {}},  {ggml_type::q4_k, {0, 2}, {}},
    {ggml_type::q5_k, {0, 2}, {}},   {ggml_type::q6_k, {208}, {}},  {ggml_type::iq4_nl, {0}, {}},
    {ggml_type::iq4_xs, {0}, {}},    {ggml_type::mxfp4, {}, {0}},   {ggml_type::nvfp4, {}, {0, 1, 2, 3}},
    {ggml_type::tq1_0, {52}, {}},    {ggml_type::tq2_0, {64}, {}},  {ggml_type::q1_0, {0}, {}},
    {ggml_type::q2_0, {0}, {}},      {ggml_type::iq2_xxs, {0}, {}}, {ggml_type::iq2_xs, {0}, {}},
    {ggml_type::iq2_s, {0}, {}},     {ggml_type::iq3_xxs, {0}, {}}, {ggml_type::iq3_s, {0}, {}},
    {ggml_type::iq1_s, {0}, {}},
};

TEST(TypeErrors, ScalesThatAreNotFinite) {
    const lm::model_options all_options[] = {{weight_type::stored, activation_type::int8},
                                             {weight_type::stored, activation_type::f32},
                                             {weight_type::q6_k, activation_type::int8}};
    tiny_shape small = shape;
    small.hidden = 256;
    for (const block_scales& each : all_scales) {
        const std::string type = lm::ggml_type_name(each.type);
        tiny_model whole(small);
        for (const char* name : {"token_embd", "blk.0.ffn_down"})
            set_type(whole, name, each.type);
        ASSERT_EQ(load_error(whole), "") << type;
        for (const std::string name : {"token_embd.weight", "blk.0.ffn_down.weight"}) {
            const auto check = [&](const tiny_model& m) {
                for (const lm::model_options& options : all_options) {
                    const std::string error = load_error(m, options);
                    EXPECT_EQ(error.find("tensor " + name + ": " + type), 0u) << error;
                    EXPECT_NE(error.find("not finite"), error.npos) << error;
                }
            };
            // In the last block.
            const std::size_t last =
                whole.tensors[name].data.size() - lm::find_ggml_type(each.type)->block_bytes;
            for (const std::size_t at : each.halves)
                for (const int bits : {0x7c00, 0xfc00, 0x7e01}) {
                    tiny_model m = whole;
                    poke(m.tensors[name].data, last + at, static_cast<std::uint16_t>(bits));
                    check(m);
                }
            for (const std::size_t at : each.bytes) {
                tiny_model m = whole;
                // An exponent of 255, or E4M3's NaN.
                m.tensors[name].data[last + at] =
                    each.type == ggml_type::mxfp4 ? std::byte{255} : std::byte{0x7f};
                check(m);
            }
        }
    }
}

TEST(TypeErrors, ExponentsWhoseWeightsAreBeyondFloats) {
    tiny_model m = model_of(ggml_type::mxfp4);
    // 6 times 2^127 is; the scale alone is not.
    m.tensors["blk.0.ffn_up.weight"].data[0] = std::byte{254};
    EXPECT_EQ(load_error(m), "tensor blk.0.ffn_up.weight: MXFP4, the scale of row 0, group 0 is not finite");
}

TEST(TypeErrors, RowsThatATypeCannotHave) {
    for (const auto& [type, size] : {std::pair{ggml_type::q4_k, "Q4_K's 256"},
                                     {ggml_type::q1_0, "Q1_0's 128"},
                                     {ggml_type::nvfp4, "NVFP4's 64"},
                                     {ggml_type::iq4_nl, "IQ4_NL's 32"}}) {
        bytes file = tiny_model({.width = 24, .heads = 4}).file();
        // Behind the name are the rank, two dimensions and the type.
        const std::string name = "blk.0.attn_q.weight";
        poke(file, find(file, name) + name.size() + 4 + 16, type);
        EXPECT_EQ(error_of(file),
                  "tensor '" + name + "' has rows of 24 elements, not a multiple of " + std::string(size));
    }
}

TEST(TypeErrors, FormatsThatAreNotMadeOfOthers) {
    const tiny_model m = model_of(ggml_type::q8_0);
    EXPECT_EQ(load_error(m, {weight_type::nvfp4, activation_type::int8}),
              "tensor blk.0.attn_q.weight: nvfp4 is not made of other weights");
    EXPECT_EQ(load_error(model_of(ggml_type::nvfp4), {weight_type::nvfp4, activation_type::int8}), "");
}

TEST(Bf16, KeepsInfinityOut) {
    tiny_model m = model_of(ggml_type::bf16);
    poke(m.tensors["output.weight"].data, 14, std::uint16_t{0xff80});
    EXPECT_EQ(load_error(m), "tensor output.weight: BF16, element 7 is not finite");
}

} // namespace
} // namespace test_types
