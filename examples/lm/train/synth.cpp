#include "train/synth.hpp"

#include "text/unicode.hpp"

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

// ---- vocabularies ----------------------------------------------------------------------------------------
/// Words by length: a to z and, in front only, a mark for a space; each is a shorter word and a letter.
struct word {
    std::string text, merge;
};
std::vector<word> words(std::string_view space, std::size_t count) {
    std::vector<word> out;
    std::vector<std::string> shorter = {std::string(space)};
    for (char c = 'a'; c <= 'z'; ++c)
        shorter.emplace_back(1, c);
    while (out.size() < count) {
        std::vector<std::string> longer;
        for (const std::string& w : shorter) {
            for (char c = 'a'; c <= 'z' && out.size() < count; ++c) {
                longer.push_back(w + c);
                out.push_back({w + c, w + ' ' + c});
            }
        }
        shorter = std::move(longer);
    }
    return out;
}

void put_spm(gguf_writer& file, std::size_t size) {
    constexpr std::string_view space = "\xE2\x96\x81";
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types = {2, 3, 3};
    for (unsigned b = 0; b < 256; ++b) {
        char name[8];
        std::snprintf(name, sizeof name, "<0x%02X>", b);
        tokens.emplace_back(name);
        types.push_back(6);
    }
    tokens.emplace_back(space);
    for (char c = '!'; c <= '~'; ++c)
        tokens.emplace_back(1, c);
    for (word& w : words(space, size - tokens.size()))
        tokens.push_back(std::move(w.text));
    types.resize(tokens.size(), 1);
    std::vector<float> scores(tokens.size());
    for (std::size_t i = 259; i < scores.size(); ++i)
        scores[i] = -static_cast<float>(i - 259);
    file.set("tokenizer.ggml.model", "llama");
    file.set_strings("tokenizer.ggml.tokens", tokens);
    file.set_array("tokenizer.ggml.scores", std::span<const float>(scores));
    file.set_array("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
    file.set("tokenizer.ggml.bos_token_id", std::uint32_t{1});
    file.set("tokenizer.ggml.eos_token_id", std::uint32_t{2});
    file.set("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
}

void put_bpe(gguf_writer& file, std::size_t size) {
    std::string space;
    append_utf8(space, gpt2_characters[' ']);
    std::vector<std::string> tokens(256), merges;
    for (std::size_t b = 0; b < 256; ++b)
        append_utf8(tokens[b], gpt2_characters[b]);
    for (word& w : words(space, size - 257)) {
        tokens.push_back(std::move(w.text));
        merges.push_back(std::move(w.merge));
    }
    tokens.emplace_back("<|endoftext|>");
    std::vector<std::int32_t> types(tokens.size(), 1);
    types.back() = 3;
    file.set("tokenizer.ggml.model", "gpt2");
    file.set("tokenizer.ggml.pre", "gpt-2");
    file.set_strings("tokenizer.ggml.tokens", tokens);
    file.set_array("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
    file.set_strings("tokenizer.ggml.merges", merges);
    file.set("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(size - 1));
    file.set("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(size - 1));
}

// ---- tensors ---------------------------------------------------------------------------------------------
class builder {
  public:
    builder(gguf_writer& file, const synth_shape& shape, ggml_type weights, std::uint64_t seed)
        : file_(file), s_(shape), weights_(weights), seed_(seed) {}

    // The branches' last matrices are smaller, so that the sum over all layers keeps its magnitude.
    void run() {
        const bool is_llama = s_.arch == architecture::llama;
        const float last = 1 / std::sqrt(2.0f * static_cast<float>(s_.layers));
        matrix("token_embd", s_.vocabulary, s_.width, std::sqrt(static_cast<float>(s_.width)));
        if (!is_llama)
            floats("position_embd.weight", s_.width, s_.context, 0, 0.1f);
        for (std::uint32_t i = 0; i < s_.layers; ++i) {
            const std::string blk = "blk." + std::to_string(i) + ".";
            norm(blk + "attn_norm");
            if (is_llama) {
                matrix(blk + "attn_q", s_.width, s_.width, 1);
                matrix(blk + "attn_k", s_.width / s_.heads * s_.kv_heads, s_.width, 1);
                matrix(blk + "attn_v", s_.width / s_.heads * s_.kv_heads, s_.width, 1);
            } else {
                matrix(blk + "attn_qkv", 3 * s_.width, s_.width, 1);
            }
            matrix(blk + "attn_output", s_.width, s_.width, last);
            norm(blk + "ffn_norm");
            if (is_llama)
                matrix(blk + "ffn_gate", s_.hidden, s_.width, 1);
            matrix(blk + "ffn_up", s_.hidden, s_.width, 1);
            matrix(blk + "ffn_down", s_.width, s_.hidden, last);
        }
        norm("output_norm");
        if (is_llama)
            matrix("output", s_.vocabulary, s_.width, 1);
    }

  private:
    std::uint64_t next_key() { return random_bits(seed_, tensors_++); }

    void floats(const std::string& name, std::uint64_t row, std::uint64_t rows, float center,
                float deviation) {
        const std::uint64_t dims[] = {row, rows};
        file_.add_generated(
            name, ggml_type::f32, std::span(dims).first(rows > 1 ? 2 : 1),
            [key = next_key(), center, deviation](std::uint64_t at, std::span<std::byte> out) {
                fill_floats<float>(key, center, deviation, at, out);
            });
    }

    void norm(const std::string& name) {
        floats(name + ".weight", s_.width, 1, 1, 0.05f);
        if (s_.arch == architecture::gpt2)
            floats(name + ".bias", s_.width, 1, 0, 0.02f);
    }

    /// n x k weights that give `gain` times the magnitude of their inputs.
    void matrix(const std::string& name, std::uint32_t n, std::uint32_t k, float gain) {
        const std::uint64_t dims[] = {k, n};
        file_.add_generated(name + ".weight", weights_, dims,
                            [key = next_key(), type = weights_,
                             deviation = gain / std::sqrt(static_cast<float>(k))](std::uint64_t at,
                                                                                  std::span<std::byte> out) {
                                if (type == ggml_type::q4_0)
                                    fill_blocks<crumb::q4_0>(key, deviation, at, out);
                                else if (type == ggml_type::q8_0)
                                    fill_blocks<crumb::q8_0>(key, deviation, at, out);
                                else
                                    fill_floats<crumb::half>(key, 0, deviation, at, out);
                            });
        if (s_.arch == architecture::gpt2 && name.starts_with("blk."))
            floats(name + ".bias", n, 1, 0, 0.02f);
    }

    gguf_writer& file_;
    const synth_shape& s_;
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

result<gguf_writer> synthesize(const synth_shape& s, std::string_view name, ggml_type weights,
                               std::uint64_t seed) {
    const bool is_llama = s.arch == architecture::llama;
    if (weights != ggml_type::f16 && weights != ggml_type::q8_0 && weights != ggml_type::q4_0)
        return status::error(errc::unsupported, "%s weights cannot be made (F16, Q8_0 and Q4_0 can)",
                             ggml_type_name(weights).c_str());
    if (s.vocabulary < (is_llama ? 354u : 257u))
        return status::error(errc::bad_shape, "a vocabulary of %u tokens is too small", s.vocabulary);
    if (s.layers == 0 || s.heads == 0 || s.kv_heads == 0 || s.width % s.heads != 0 ||
        s.heads % s.kv_heads != 0)
        return status::error(errc::bad_shape, "%u layers of %u heads (%u for keys and values) and width %u",
                             s.layers, s.heads, s.kv_heads, s.width);
    gguf_writer file;
    const std::string arch = is_llama ? "llama" : "gpt2";
    file.set("general.architecture", arch);
    file.set("general.name", std::string(name) + " (random weights)");
    file.set("general.file_type", std::uint32_t{weights == ggml_type::f16    ? 1u
                                                : weights == ggml_type::q8_0 ? 7u
                                                                             : 2u});
    file.set("general.quantization_version", std::uint32_t{2});
    file.set(arch + ".context_length", s.context);
    file.set(arch + ".embedding_length", s.width);
    file.set(arch + ".block_count", s.layers);
    file.set(arch + ".feed_forward_length", s.hidden);
    file.set(arch + ".attention.head_count", s.heads);
    if (is_llama) {
        file.set("llama.attention.head_count_kv", s.kv_heads);
        file.set("llama.attention.layer_norm_rms_epsilon", 1e-5f);
        file.set("llama.rope.dimension_count", s.width / s.heads);
        file.set("llama.rope.freq_base", 10000.0f);
        file.set("llama.vocab_size", s.vocabulary);
        put_spm(file, s.vocabulary);
    } else {
        file.set("gpt2.attention.layer_norm_epsilon", 1e-5f);
        put_bpe(file, s.vocabulary);
    }
    builder(file, s, weights, seed).run();
    return file;
}

} // namespace lm
