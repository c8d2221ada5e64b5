// Every entry of the table of architectures: logits beside those of llama.cpp, and that each trait of an
// entry changes them.
#include "fed.hpp"
#include "model/session.hpp"
#include "tiny_model.hpp"
#include "train/synth.hpp"

#include <crumb/offline/cache/trained_codebooks.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <variant>

namespace test_architectures {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::architecture;
using lm::architecture_traits;
using lm::ggml_type;
using lm::kv_type;

constexpr std::size_t tokens = 700, batch = 64, rows = 4;
/// What `crumb-compare --golden` writes: llama.cpp's logits behind these tokens, model by model.
constexpr std::size_t golden_positions[rows] = {0, 40, 90, tokens - 1};

/// A small model and its file.
struct small_model {
    lm::synth_shape shape;
    lm::buffer file;

    explicit small_model(std::string_view name, ggml_type weights = ggml_type::f32,
                         const std::function<void(lm::gguf_writer&)>& change = {}) {
        const auto found = lm::find_small_shape(name);
        EXPECT_TRUE(found.ok()) << found.message();
        shape = *found;
        auto made = lm::synthesize(shape, name, weights, 1);
        EXPECT_TRUE(made.ok()) << made.message();
        if (change)
            change(*made);
        const auto bytes = made->bytes();
        EXPECT_TRUE(bytes.ok()) << bytes.message();
        file = lm::buffer(bytes->size());
        std::memcpy(file.bytes().data(), bytes->data(), bytes->size());
    }
    crumb::result<lm::model> load(const lm::model_options& options) const {
        lm::buffer copy(file.bytes().size());
        std::memcpy(copy.bytes().data(), file.bytes().data(), file.bytes().size());
        return lm::model::load(std::move(copy), "small.gguf", options);
    }
    /// Tokens over which llama.cpp sees what crumb sees: it leaves the windows of `llama` out.
    std::size_t tokens_to_compare() const {
        return shape.window != 0 && shape.arch == architecture::llama ? shape.window : tokens;
    }
};

std::vector<float> logits_of(const lm::model& m, const kv_type& kv, std::span<const std::int32_t> text,
                             std::size_t wanted, std::size_t in_batches_of = batch, std::size_t threads = 1) {
    auto s = lm::session::make(m, lm::team(threads), kv, m.shape().context, in_batches_of);
    EXPECT_TRUE(s.ok()) << s.message();
    const auto logits = fed(*s, text, wanted);
    return {logits.begin(), logits.end()};
}

/// Mean KL divergence in nats from rows p to rows q.
double divergence(std::span<const float> p, std::span<const float> q, std::size_t vocabulary) {
    EXPECT_EQ(p.size(), q.size());
    const auto log_sum = [&](std::span<const float> x) {
        const double most = double{*std::max_element(x.begin(), x.end())};
        return most + std::log(std::accumulate(x.begin(), x.end(), 0.0, [&](double sum, float each) {
                   return sum + std::exp(double{each} - most);
               }));
    };
    double sum = 0;
    const std::size_t n = p.size() / vocabulary;
    for (std::size_t r = 0; r < n; ++r) {
        const auto a = p.subspan(r * vocabulary, vocabulary), b = q.subspan(r * vocabulary, vocabulary);
        const double of_a = log_sum(a), of_b = log_sum(b);
        for (std::size_t i = 0; i < vocabulary; ++i)
            sum += std::exp(double{a[i]} - of_a) * ((double{a[i]} - of_a) - (double{b[i]} - of_b));
    }
    return sum / static_cast<double>(n);
}

/// What agreement with llama.cpp is, in nats, and what a wrong trait is at least.
constexpr double agreement = 1e-5, disagreement = 100 * agreement;

class Architectures : public testing::TestWithParam<std::string_view> {};

TEST_P(Architectures, HaveTheLogitsOfLlamaCpp) {
    const small_model small(GetParam());
    const std::size_t vocabulary = small.shape.vocabulary, count = small.tokens_to_compare();
    const auto m = small.load({.activations = activation_type::f32});
    ASSERT_TRUE(m.ok()) << m.message();
    const auto text = lm::arbitrary_tokens(count, vocabulary);
    const auto all = logits_of(*m, kv_type::f32, text, count);

    std::ifstream golden(CRUMB_DATA_DIR "/architectures.bin", std::ios::binary);
    const auto names = lm::small_shape_names();
    std::size_t before = 0;
    for (std::size_t i = 0; names[i] != GetParam(); ++i)
        before += rows * lm::find_small_shape(names[i])->vocabulary * sizeof(float);
    golden.seekg(static_cast<std::streamoff>(before));
    double worst = 0;
    for (const std::size_t at : golden_positions) {
        std::vector<float> theirs(vocabulary);
        golden.read(reinterpret_cast<char*>(theirs.data()),
                    static_cast<std::streamsize>(vocabulary * sizeof(float)));
        ASSERT_TRUE(golden.good());
        const auto ours = std::span(all).subspan(std::min(at, count - 1) * vocabulary, vocabulary);
        worst = std::max(worst, divergence(theirs, ours, vocabulary));
    }
    EXPECT_LE(worst, agreement);
}

/// What else an entry could say.
struct other_trait {
    const char* name;
    std::function<void(architecture_traits&)> change;
    std::vector<std::string_view> without = {}; ///< models that the trait says nothing about
};

const other_trait other_traits[] = {
    {"name", [](auto& t) { t.name = t.name == "llama" ? "qwen2" : "llama"; }},
    {"norms",
     [](auto& t) { t.norms = t.norms == lm::norm_type::rms ? lm::norm_type::layer : lm::norm_type::rms; }},
    {"query_key_norms", [](auto& t) { t.query_key_norms = !t.query_key_norms; }},
    {"post_norms", [](auto& t) { t.post_norms = !t.post_norms; }},
    {"learned_positions", [](auto& t) { t.learned_positions = !t.learned_positions; }},
    {"pairing",
     [](auto& t) {
         t.pairing = t.pairing == crumb::rope_pairing::interleaved ? crumb::rope_pairing::half_split
                                                                   : crumb::rope_pairing::interleaved;
     },
     {"gpt2"}},
    {"unturned_layer_step",
     [](auto& t) { t.unturned_layer_step = t.unturned_layer_step == 0 ? 2 : 0; },
     {"gpt2"}},
    {"unturned_layer_step, one more", [](auto& t) { t.unturned_layer_step += 1; }, {"gpt2"}},
    {"frequency_factors",
     [](auto& t) { t.frequency_factors = !t.frequency_factors; },
     {"llama", "llama-linear", "llama-yarn", "mistral", "smollm3", "qwen2", "qwen3", "gemma3", "gpt2"}},
    {"local_rope_base",
     [](auto& t) { t.local_rope_base = t.local_rope_base == 0 ? 300 : 0; },
     {"llama", "llama-linear", "llama-yarn", "llama3", "smollm3", "qwen2", "qwen3", "phi3", "gpt2"}},
    {"global_layer_step",
     [](auto& t) { t.global_layer_step = t.global_layer_step == 0 ? 2 : t.global_layer_step - 1; },
     {"llama", "llama-linear", "llama-yarn", "llama3", "smollm3", "qwen2", "qwen3", "phi3", "gpt2"}},
    {"activation",
     [](auto& t) {
         t.activation = t.activation == lm::activation_function::silu ? lm::activation_function::gelu
                                                                      : lm::activation_function::silu;
     }},
    {"gate",
     [](auto& t) {
         t.gate = t.gate == lm::gate_type::separate ? lm::gate_type::none : lm::gate_type::separate;
     }},
    {"gate, fused",
     [](auto& t) { t.gate = t.gate == lm::gate_type::fused ? lm::gate_type::none : lm::gate_type::fused; }},
    {"qkv_biases",
     [](auto& t) { t.qkv_biases = lm::presence::absent; },
     {"llama", "llama-linear", "llama-yarn", "llama3", "mistral", "smollm3", "qwen3", "gemma3", "phi3"}},
    {"output_biases",
     [](auto& t) { t.output_biases = lm::presence::absent; },
     {"llama", "llama-linear", "llama-yarn", "llama3", "mistral", "smollm3", "qwen2", "qwen3", "gemma3",
      "phi3"}},
    {"ffn_biases",
     [](auto& t) { t.ffn_biases = lm::presence::absent; },
     {"llama", "llama-linear", "llama-yarn", "llama3", "mistral", "smollm3", "qwen2", "qwen3", "gemma3",
      "phi3"}},
    {"vocabulary_bias",
     [](auto& t) { t.vocabulary_bias = lm::presence::absent; },
     {"llama", "llama-linear", "llama-yarn", "llama3", "mistral", "smollm3", "qwen3", "gemma3", "phi3",
      "gpt2"}},
    {"scaled_embedding", [](auto& t) { t.scaled_embedding = !t.scaled_embedding; }},
    {"width_scale_layers",
     [](auto& t) { t.width_scale_layers = 7; },
     {"llama", "llama-linear", "llama-yarn", "llama3", "mistral", "smollm3", "qwen2", "qwen3", "phi3",
      "gpt2"}},
    {"capped_logits",
     [](auto& t) { t.capped_logits = false; },
     {"llama", "llama-linear", "llama-yarn", "llama3", "mistral", "smollm3", "qwen2", "qwen3", "phi3",
      "gpt2"}},
};

// A model under another entry is refused, by tensors or keys that it lacks or has too many of, or has other
// logits.
TEST_P(Architectures, TellEveryTrait) {
    const small_model small(GetParam());
    const auto m = small.load({.activations = activation_type::f32});
    ASSERT_TRUE(m.ok()) << m.message();
    const auto text = lm::arbitrary_tokens(200, small.shape.vocabulary);
    const auto expected = logits_of(*m, kv_type::f32, text, text.size());
    for (const other_trait& other : other_traits) {
        SCOPED_TRACE(other.name);
        if (std::find(other.without.begin(), other.without.end(), GetParam()) != other.without.end())
            continue;
        architecture_traits traits = m->shape().traits;
        other.change(traits);
        const auto changed = small.load({.activations = activation_type::f32, .traits = traits});
        if (!changed)
            continue;
        EXPECT_GE(divergence(expected, logits_of(*changed, kv_type::f32, text, text.size()),
                             small.shape.vocabulary),
                  disagreement);
    }
}

/// What else a file could say.
struct other_key {
    const char* name; ///< behind the architecture's
    std::variant<std::uint32_t, float, std::string> value;
};

TEST_P(Architectures, TellEveryKey) {
    const small_model small(GetParam());
    const auto m = small.load({.activations = activation_type::f32});
    ASSERT_TRUE(m.ok()) << m.message();
    const auto text = lm::arbitrary_tokens(400, small.shape.vocabulary);
    const auto expected = logits_of(*m, kv_type::f32, text, text.size());
    const lm::gguf& file = m->file();
    std::size_t tried = 0;
    for (const other_key& other : {other_key{"attention.layer_norm_rms_epsilon", 1e-5f},
                                   {"attention.layer_norm_epsilon", 1e-5f},
                                   {"rope.freq_base", 1000.0f},
                                   {"rope.dimension_count", small.shape.head() - 2},
                                   {"rope.scaling.type", "none"},
                                   {"rope.scaling.factor", 2.0f},
                                   {"rope.scaling.attn_factor", 1.0f},
                                   {"rope.scaling.original_context_length", 2048u},
                                   {"attention.sliding_window", small.shape.window - 1},
                                   {"final_logit_softcapping", 10.0f}}) {
        const std::string key = std::string(m->shape().traits.name) + "." + other.name;
        // A type of scaling that goes by the tensors beside it.
        const bool says_nothing = GetParam() == "phi3" && other.name == std::string("rope.scaling.type");
        if (file.find(key) == nullptr || says_nothing)
            continue;
        SCOPED_TRACE(key);
        ++tried;
        lm::gguf_writer to;
        to.copy(file, "nothing.");
        std::visit([&](const auto& value) { to.set(key, value); }, other.value);
        const auto bytes = to.bytes();
        ASSERT_TRUE(bytes.ok()) << bytes.message();
        lm::buffer memory(bytes->size());
        std::memcpy(memory.bytes().data(), bytes->data(), bytes->size());
        const auto changed =
            lm::model::load(std::move(memory), "small.gguf", {.activations = activation_type::f32});
        // Factors of fewer pairs than the tensor has are an error.
        if (!changed)
            continue;
        EXPECT_GE(divergence(expected, logits_of(*changed, kv_type::f32, text, text.size()),
                             small.shape.vocabulary),
                  disagreement);
    }
    EXPECT_GT(tried, 0u);
}

// Windows slide within batches and between them, through several rounds of their pages, in caches of every
// kind.
TEST_P(Architectures, DoNotDependOnBatchesOrThreads) {
    const small_model small(GetParam());
    const auto m = small.load({});
    ASSERT_TRUE(m.ok()) << m.message();
    const auto text = lm::arbitrary_tokens(640, small.shape.vocabulary);
    for (const char* codec : {"f32", "f16", "q8_0", "kivi4:sinks=2:window=8:exact"}) {
        SCOPED_TRACE(codec);
        const auto kv = kv_type::parse(codec);
        ASSERT_TRUE(kv.ok()) << kv.message();
        // Tokens are encoded between batches: with codes, these count.
        const std::size_t other = kv->codec.is_uncoded() ? 37 : batch;
        const auto expected = logits_of(*m, *kv, text, 8);
        EXPECT_EQ(logits_of(*m, *kv, text, 8, other, 3), expected);
        if (kv->codec.is_uncoded()) {
            EXPECT_EQ(logits_of(*m, *kv, text, 8, 1), expected);
        }
    }
}

/// Codebooks of their own for every layer and head.
crumb::kv_codebooks random_codebooks(const crumb::kv_codec& codec, const lm::model_shape& d) {
    crumb::kv_codebooks books;
    if (!codec.has_codebooks())
        return books;
    books.codec = codec;
    books.head_size = d.head_size;
    books.layer_step = d.kv_heads;
    books.head_step = 1;
    books.sets = d.layers * d.kv_heads;
    std::mt19937 random(1);
    books.entries.resize(2 * books.sets * books.head_size * codec.entries());
    for (std::int8_t& e : books.entries)
        e = static_cast<std::int8_t>(random() % 127) - 63;
    books.scales.resize(2 * books.sets * books.head_size);
    for (float& s : books.scales)
        s = 0.01f + 0.0001f * static_cast<float>(random() % 100);
    return books;
}

// A context that no window is shorter than has one cache for all layers, a longer one has two. As long as the
// windows hold all tokens, results are the same, bit for bit, with every codec.
TEST(Windows, ChangeNothingBeforeTheyAreFull) {
    constexpr std::uint32_t window = 200;
    const small_model small("gemma3", ggml_type::f32, [](lm::gguf_writer& file) {
        file.set("gemma3.attention.sliding_window", window);
    });
    const auto m = small.load({});
    ASSERT_TRUE(m.ok()) << m.message();
    const auto text = lm::arbitrary_tokens(window, small.shape.vocabulary);
    for (const char* codec :
         {"f32", "f16", "q8_0", "kivi4", "kivi2", "pq4", "pq3", "pq2", "pq:2x8", "pq:1x4+4", "pq4:exact"}) {
        SCOPED_TRACE(codec);
        auto kv = kv_type::parse(codec);
        ASSERT_TRUE(kv.ok()) << kv.message();
        kv->window = 8;
        const auto books = random_codebooks(kv->codec, m->shape());
        std::vector<float> results[2];
        for (const std::size_t context : {window, 1024u}) {
            const auto view = books.view();
            ASSERT_TRUE(view.ok()) << view.message();
            auto s = lm::session::make(*m, lm::team(1), *kv, context, batch, *view);
            ASSERT_TRUE(s.ok()) << s.message();
            EXPECT_EQ(s->cached(0).cache.options().span, context == window ? 0u : window);
            const auto logits = fed(*s, text, 8);
            results[context == window ? 0 : 1].assign(logits.begin(), logits.end());
        }
        EXPECT_EQ(results[0], results[1]);
    }
}

TEST(Windows, KeepNoMoreThanTheySee) {
    const small_model small("gemma3");
    const auto m = small.load({});
    ASSERT_TRUE(m.ok()) << m.message();
    const auto text = lm::arbitrary_tokens(1000, small.shape.vocabulary);
    for (const char* codec : {"f32", "q8_0", "kivi4"}) {
        SCOPED_TRACE(codec);
        auto s = lm::session::make(*m, lm::team(1), *kv_type::parse(codec), 1024, batch);
        ASSERT_TRUE(s.ok()) << s.message();
        fed(*s, text, 0);
        const crumb::kv_cache &sliding = s->cached(0).cache, &whole = s->cached(5).cache;
        EXPECT_EQ(sliding.options().layers, 6u);
        EXPECT_EQ(whole.options().layers, 1u);
        // Tokens that a batch sees lie in two parts of 256, wherever they begin.
        EXPECT_EQ(sliding.page_count() * sliding.options().page_tokens, 512u);
        EXPECT_EQ(whole.page_count() * whole.options().page_tokens, 1024u);
    }
}

// What has left a window does not come back: the sequence begins again, or goes on as it was.
TEST(Windows, RewindAsFarAsTheyReach) {
    const small_model small("gemma3");
    const auto m = small.load({});
    ASSERT_TRUE(m.ok()) << m.message();
    const auto text = lm::arbitrary_tokens(900, small.shape.vocabulary);
    auto s = lm::session::make(*m, lm::team(1), kv_type::f16, 1024, batch);
    ASSERT_TRUE(s.ok()) << s.message();
    const auto first = fed(*s, text, 8);
    const std::vector<float> expected(first.begin(), first.end());
    s->rewind(890);
    EXPECT_EQ(s->length(), 890u);
    const auto again = fed(*s, std::span(text).subspan(890), 8);
    EXPECT_TRUE(std::equal(again.begin(), again.end(), expected.begin(), expected.end()));
    s->rewind(300);
    EXPECT_EQ(s->length(), 0u);
    const auto anew = fed(*s, text, 8);
    EXPECT_TRUE(std::equal(anew.begin(), anew.end(), expected.begin(), expected.end()));
}

// As conversions of Phi-4 have it.
TEST(Windows, OfNoTokenAreNoneInPhi3Only) {
    for (const char* name : {"phi3", "gemma3"}) {
        const small_model zero(name, ggml_type::f32, [&](lm::gguf_writer& file) {
            file.set(std::string(name) + ".attention.sliding_window", std::uint32_t{0});
        });
        EXPECT_EQ(zero.load({}).ok(), name == std::string("phi3"));
    }
}

INSTANTIATE_TEST_SUITE_P(Small, Architectures, testing::ValuesIn(lm::small_shape_names()),
                         [](const auto& test) {
                             std::string name(test.param);
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

} // namespace
} // namespace test_architectures
