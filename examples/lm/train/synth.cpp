#include "train/synth.hpp"

#include "train/synth_vocabulary.hpp"

#include <crumb/core/half.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

struct named_shape {
    std::string_view name;
    synth_shape shape;
};

// Rotary models have no tensor that depends on the context, so theirs leaves room for long sequences.
constexpr named_shape shapes[] = {
    {"tinyllama-1.1b", {architecture::llama, 22, 2048, 5632, 32, 4, 32000, 8192}},
    {"llama-2-7b", {architecture::llama, 32, 4096, 11008, 32, 32, 32000, 8192}},
    {"gpt2-xl", {architecture::gpt2, 48, 1600, 6400, 25, 25, 50257, 1024}},
};

/// A shape of few weights, with more layers than the steps that the entry has.
constexpr synth_shape small(architecture arch, std::uint32_t layers) {
    return {.arch = arch,
            .layers = layers,
            .width = 64,
            .hidden = 96,
            .heads = 4,
            .kv_heads = 2,
            .vocabulary = 360,
            .context = 1024,
            .telling = true};
}
constexpr synth_shape with(synth_shape shape, auto change) {
    change(shape);
    return shape;
}

constexpr named_shape small_shapes[] = {
    {"llama", small(architecture::llama, 2)},
    {"llama-linear", with(small(architecture::llama, 2), [](auto& s) { s.scaling = rope_scaling::linear; })},
    {"llama-yarn", with(small(architecture::llama, 2), [](auto& s) { s.scaling = rope_scaling::yarn; })},
    {"llama3", with(small(architecture::llama, 2),
                    [](auto& s) {
                        s.factors = true;
                        s.bpe = s.tied = true;
                    })},
    {"mistral", with(small(architecture::llama, 2), [](auto& s) { s.window = 48; })},
    {"smollm3", with(small(architecture::smollm3, 5), [](auto& s) { s.bpe = s.tied = true; })},
    {"qwen2", with(small(architecture::qwen2, 2), [](auto& s) { s.bpe = s.biases = true; })},
    {"qwen3", with(small(architecture::qwen3, 2),
                   [](auto& s) {
                       s.bpe = s.tied = true;
                       s.head_size = 24;
                   })},
    {"gemma3", with(small(architecture::gemma3, 7),
                    [](auto& s) {
                        s.tied = true;
                        s.heads = 2;
                        s.kv_heads = 1;
                        s.head_size = 256;
                        s.window = 48;
                        s.scaling = rope_scaling::linear;
                        s.logit_cap = 5;
                    })},
    {"phi3", with(small(architecture::phi3, 2),
                  [](auto& s) {
                      s.factors = true;
                      s.scaling = rope_scaling::longrope;
                  })},
    {"gpt2", with(small(architecture::gpt2, 2),
                  [](auto& s) {
                      s.kv_heads = s.heads;
                      s.bpe = s.biases = s.tied = true;
                  })},
};

/// The i-th number of the sequence `key`: any piece of a tensor can be made without the ones before it.
constexpr std::uint64_t random_bits(std::uint64_t key, std::uint64_t i) noexcept {
    std::uint64_t x = key + (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

template <class T>
void put_bytes(std::byte*& to, const T& value) {
    std::memcpy(to, &value, sizeof value);
    to += sizeof value;
}

// ---- weights ---------------------------------------------------------------------------------------------
// Uniformly distributed with mean 0 and the given standard deviation: random codes under a scale of random
// sign, because the codes of Q4_0 alone have a mean that is not 0.
template <class F>
void fill_blocks(std::uint64_t key, float deviation, std::uint64_t at, std::span<std::byte> out) {
    constexpr std::size_t words = (sizeof(typename F::block) - sizeof(crumb::half)) / 8;
    constexpr double levels = std::is_same_v<F, crumb::q4_0> ? 16 : 256;
    const double step = double{deviation} / std::sqrt((levels * levels - 1) / 12);
    std::array<crumb::half, 16> scales;
    for (std::size_t i = 0; i < 16; ++i)
        scales[i] = crumb::to_half(
            static_cast<float>((i < 8 ? 1 : -1) * step * (0.8 + 0.4 * (static_cast<double>(i % 8) / 7))));
    std::byte* to = out.data();
    std::uint64_t number = at / sizeof(typename F::block) * (words + 1);
    while (to != out.data() + out.size()) {
        put_bytes(to, scales[random_bits(key, number++) >> 60]);
        for (std::size_t i = 0; i < words; ++i)
            put_bytes(to, random_bits(key, number++));
    }
}

/// f16 or f32 around `center`; four values of 12 random bits from each number.
template <class T>
void fill_floats(std::uint64_t key, float center, float deviation, std::uint64_t at,
                 std::span<std::byte> out) {
    std::vector<T> values(4096);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const float x =
            center + deviation * std::sqrt(3.0f) * ((static_cast<float>(i) + 0.5f) / 2048.0f - 1.0f);
        if constexpr (std::is_same_v<T, float>)
            values[i] = x;
        else
            values[i] = crumb::to_half(x);
    }
    std::byte* to = out.data();
    for (std::uint64_t i = at / sizeof(T); to != out.data() + out.size(); ++i)
        put_bytes(to, values[random_bits(key, i / 4) >> (16 * (i % 4)) & 4095]);
}

// ---- tensors ---------------------------------------------------------------------------------------------
class builder {
  public:
    builder(gguf_writer& file, const synth_shape& shape, ggml_type weights, std::uint64_t seed)
        : file_(file), s_(shape), t_(traits_of(shape.arch)), weights_(weights), seed_(seed) {}

    // The branches' last matrices are smaller, so that the sum over all layers keeps its magnitude. Where all
    // weights have to tell, attention has sharp scores, and branches are as large as what they add to.
    void run() {
        const float last = s_.telling ? 1 : 1 / std::sqrt(2.0f * static_cast<float>(s_.layers));
        const float sharp = !s_.telling ? 1.0f : t_.query_key_norms ? 0.05f : 1.5f;
        const std::uint32_t head = s_.head(), queries = head * s_.heads, keys = head * s_.kv_heads;
        const bool is_gpt2 = s_.arch == architecture::gpt2;
        matrix("token_embd", s_.vocabulary, s_.width, std::sqrt(static_cast<float>(s_.width)) * embedding());
        if (t_.learned_positions)
            floats("position_embd.weight", s_.width, s_.context, 0, s_.telling ? 0.05f : 0.1f);
        if (s_.factors)
            factors(head);
        for (std::uint32_t i = 0; i < s_.layers; ++i) {
            const std::string blk = "blk." + std::to_string(i) + ".";
            norm(blk + "attn_norm");
            if (is_gpt2 || t_.gate == gate_type::fused) {
                matrix(blk + "attn_qkv", queries + 2 * keys, s_.width, sharp, t_.qkv_biases);
            } else {
                matrix(blk + "attn_q", queries, s_.width, sharp, t_.qkv_biases);
                matrix(blk + "attn_k", keys, s_.width, sharp, t_.qkv_biases);
                matrix(blk + "attn_v", keys, s_.width, 1, t_.qkv_biases);
            }
            if (t_.query_key_norms)
                for (const char* name : {"attn_q_norm.weight", "attn_k_norm.weight"})
                    floats(blk + name, head, 1, 2, 0.4f);
            matrix(blk + "attn_output", s_.width, queries, last, t_.output_biases);
            if (t_.post_norms)
                norm(blk + "post_attention_norm");
            norm(blk + "ffn_norm");
            if (t_.gate == gate_type::separate)
                matrix(blk + "ffn_gate", s_.hidden, s_.width, 1, t_.ffn_biases);
            matrix(blk + "ffn_up", t_.gate == gate_type::fused ? 2 * s_.hidden : s_.hidden, s_.width, 1,
                   t_.ffn_biases);
            matrix(blk + "ffn_down", s_.width, s_.hidden, last, t_.ffn_biases);
            if (t_.post_norms)
                norm(blk + "post_ffw_norm");
        }
        // A tied output matrix is as small as the embedding.
        norm("output_norm", s_.telling && s_.tied ? 3.0f : 1.0f);
        if (!s_.tied)
            matrix("output", s_.vocabulary, s_.width, s_.telling ? 2 : 1, t_.vocabulary_bias);
    }

  private:
    std::uint64_t next_key() { return random_bits(seed_, tensors_++); }

    /// Standard deviation of the embedding: small where the norms' epsilon has to tell.
    float embedding() const { return s_.telling ? 0.1f : 1.0f; }

    void floats(const std::string& name, std::uint64_t row, std::uint64_t rows, float center,
                float deviation) {
        const std::uint64_t dims[] = {row, rows};
        file_.add_generated(
            name, ggml_type::f32, std::span(dims).first(rows > 1 ? 2 : 1),
            [key = next_key(), center, deviation](std::uint64_t at, std::span<std::byte> out) {
                fill_floats<float>(key, center, deviation, at, out);
                return std::string();
            });
    }

    /// Divisors of the frequencies, those of long contexts larger.
    void factors(std::uint32_t head) {
        if (s_.scaling != rope_scaling::longrope)
            return floats("rope_freqs.weight", head / 2, 1, 3, 1);
        floats("rope_factors_short.weight", head / 2, 1, 1.2f, 0.1f);
        floats("rope_factors_long.weight", head / 2, 1, 3, 1);
    }

    void norm(const std::string& name, float size = 1) {
        floats(name + ".weight", s_.width, 1, size, s_.telling ? 0.3f : 0.05f);
        if (t_.norms == norm_type::layer)
            floats(name + ".bias", s_.width, 1, 0, s_.telling ? 0.3f : 0.02f);
    }

    /// n x k weights that give `gain` times the magnitude of their inputs.
    void matrix(const std::string& name, std::uint32_t n, std::uint32_t k, float gain,
                presence bias = presence::absent) {
        const std::uint64_t dims[] = {k, n};
        file_.add_generated(name + ".weight", weights_, dims,
                            [key = next_key(), type = weights_,
                             deviation = gain / std::sqrt(static_cast<float>(k))](std::uint64_t at,
                                                                                  std::span<std::byte> out) {
                                if (type == ggml_type::q4_0)
                                    fill_blocks<crumb::q4_0>(key, deviation, at, out);
                                else if (type == ggml_type::q8_0)
                                    fill_blocks<crumb::q8_0>(key, deviation, at, out);
                                else if (type == ggml_type::f32)
                                    fill_floats<float>(key, 0, deviation, at, out);
                                else
                                    fill_floats<crumb::half>(key, 0, deviation, at, out);
                                return std::string();
                            });
        if (bias == presence::required || (bias == presence::optional && s_.biases))
            floats(name + ".bias", n, 1, 0, s_.telling ? 0.5f : 0.02f);
    }

    gguf_writer& file_;
    const synth_shape& s_;
    const architecture_traits& t_;
    ggml_type weights_;
    std::uint64_t seed_, tensors_ = 0;
};

} // namespace

result<synth_shape> find_shape(std::string_view like) {
    const std::size_t colon = like.find(':');
    const std::string_view name = like.substr(0, colon);
    std::string names;
    const named_shape* found = nullptr;
    for (const named_shape& s : shapes) {
        names += (names.empty() ? "" : ", ") + std::string(s.name);
        found = s.name == name ? &s : found;
    }
    if (found == nullptr)
        return status::error(errc::invalid_argument, "--like: %s is no shape (%s are)", quoted(name).c_str(),
                             names.c_str());
    synth_shape shape = found->shape;
    if (colon == like.npos)
        return shape;
    const std::string_view option = like.substr(colon + 1);
    constexpr std::string_view layers = "layers=";
    const char* end = option.data() + option.size();
    std::uint32_t count = 0;
    if (option.starts_with(layers)) {
        const auto [stop, error] = std::from_chars(option.data() + layers.size(), end, count);
        if (error != std::errc() || stop != end)
            count = 0;
    }
    if (count == 0 || count > shape.layers)
        return status::error(errc::invalid_argument, "--like: %s: layers=1 to layers=%u can follow %s",
                             quoted(option).c_str(), shape.layers, std::string(name).c_str());
    shape.layers = count;
    return shape;
}

result<synth_shape> find_small_shape(std::string_view name) {
    std::string names;
    for (const named_shape& s : small_shapes) {
        if (s.name == name)
            return s.shape;
        names += (names.empty() ? "" : ", ") + std::string(s.name);
    }
    return status::error(errc::invalid_argument, "--arch: %s is no architecture that can be made (%s are)",
                         quoted(name).c_str(), names.c_str());
}

std::vector<std::string_view> small_shape_names() {
    std::vector<std::string_view> out;
    for (const named_shape& s : small_shapes)
        out.push_back(s.name);
    return out;
}

namespace {

/// The keys of a shape, without its vocabulary.
void put_keys(gguf_writer& file, const synth_shape& s) {
    const architecture_traits& t = traits_of(s.arch);
    const auto key = [&](const char* name) { return std::string(t.name) + "." + name; };
    file.set(key("context_length"), s.context);
    file.set(key("embedding_length"), s.width);
    file.set(key("block_count"), s.layers);
    file.set(key("feed_forward_length"), s.hidden);
    file.set(key("attention.head_count"), s.heads);
    const float epsilon = s.telling ? 1e-3f : 1e-5f;
    if (t.norms == norm_type::layer)
        return file.set(key("attention.layer_norm_epsilon"), epsilon);
    file.set(key("attention.head_count_kv"), s.kv_heads);
    file.set(key("attention.layer_norm_rms_epsilon"), epsilon);
    file.set(key("rope.dimension_count"), s.head());
    file.set(key("rope.freq_base"), s.telling && s.arch != architecture::llama ? 50000.0f : 10000.0f);
    file.set(key("vocab_size"), s.vocabulary);
    if (s.head_size != 0) {
        file.set(key("attention.key_length"), s.head_size);
        file.set(key("attention.value_length"), s.head_size);
    }
    if (s.window != 0)
        file.set(key("attention.sliding_window"), s.window);
    if (s.logit_cap != 0)
        file.set(key("final_logit_softcapping"), s.logit_cap);
    if (s.scaling == rope_scaling::none)
        return;
    const bool is_linear = s.scaling == rope_scaling::linear, is_yarn = s.scaling == rope_scaling::yarn;
    file.set(key("rope.scaling.type"), is_linear ? "linear" : is_yarn ? "yarn" : "longrope");
    if (is_linear || is_yarn)
        file.set(key("rope.scaling.factor"), 4.0f);
    if (!is_linear)
        file.set(key("rope.scaling.original_context_length"), s.context / 4);
    if (!is_linear && !is_yarn)
        file.set(key("rope.scaling.attn_factor"), 1.2f);
}

} // namespace

std::vector<std::int32_t> arbitrary_tokens(std::size_t count, std::size_t vocabulary) {
    std::vector<std::int32_t> out;
    std::uint32_t x = 1;
    for (std::size_t i = 0; i < count; ++i) {
        x = x * 1664525u + 1013904223u;
        out.push_back(static_cast<std::int32_t>(5 + (x >> 8) % (vocabulary - 10)));
    }
    return out;
}

result<gguf_writer> synthesize(const synth_shape& s, std::string_view name, ggml_type weights,
                               std::uint64_t seed) {
    const architecture_traits& t = traits_of(s.arch);
    const bool bpe = s.bpe || t.learned_positions;
    if (weights != ggml_type::f32 && weights != ggml_type::f16 && weights != ggml_type::q8_0 &&
        weights != ggml_type::q4_0)
        return status::error(errc::unsupported, "%s weights cannot be made (F32, F16, Q8_0 and Q4_0 can)",
                             ggml_type_name(weights).c_str());
    if (s.vocabulary < (bpe ? min_bpe_vocabulary : min_spm_vocabulary))
        return status::error(errc::bad_shape, "a vocabulary of %u tokens is too small", s.vocabulary);
    if (s.layers == 0 || s.heads == 0 || s.kv_heads == 0 || (s.head_size == 0 && s.width % s.heads != 0) ||
        s.heads % s.kv_heads != 0)
        return status::error(errc::bad_shape, "%u layers of %u heads (%u for keys and values) and width %u",
                             s.layers, s.heads, s.kv_heads, s.width);
    gguf_writer file;
    file.set("general.architecture", t.name);
    // Names of known models make some programs expect the vocabulary of these.
    file.set("general.name", s.telling ? "random weights" : std::string(name) + " (random weights)");
    file.set("general.file_type", std::uint32_t{weights == ggml_type::f32    ? 0u
                                                : weights == ggml_type::f16  ? 1u
                                                : weights == ggml_type::q8_0 ? 7u
                                                                             : 2u});
    file.set("general.quantization_version", std::uint32_t{2});
    put_keys(file, s);
    if (bpe)
        put_bpe_words(file, s.vocabulary);
    else
        put_spm_words(file, s.vocabulary);
    builder(file, s, weights, seed).run();
    return file;
}

} // namespace lm
