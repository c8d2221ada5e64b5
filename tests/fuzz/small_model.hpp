// Models from any bytes, if they are small.
#pragma once

#include "fuzz.hpp"
#include "model.hpp"

namespace lm::fuzz {

/// Whether a file's numbers make a model that is quick to run; others are not loaded. What they say is not
/// trusted: this only keeps executions short.
inline bool is_small(const gguf& file) {
    const auto arch = file.get_string("general.architecture");
    if (!arch)
        return true;
    const std::string prefix(arch->substr(0, 64));
    const auto at_most = [&](const char* name, std::uint32_t most) {
        const auto value = file.get_u32(prefix + name);
        return !value || *value <= most;
    };
    const gguf_value* tokens = file.find("tokenizer.ggml.tokens");
    return at_most(".embedding_length", 128) && at_most(".feed_forward_length", 256) &&
           at_most(".block_count", 3) && (tokens == nullptr || tokens->count <= 512);
}

/// The model of an input; nothing if it is refused, or large.
inline std::optional<model> small_model(std::span<const std::byte> input, const model_options& options) {
    {
        const exact_copy copy(input);
        const auto file = gguf::parse(copy.bytes());
        if (!file) {
            check_refusal(file.error());
            return {};
        }
        if (!is_small(*file))
            return {};
    }
    buffer memory(input.size());
    std::copy(input.begin(), input.end(), memory.bytes().begin());
    auto m = model::load(std::move(memory), "input", options);
    if (!m) {
        check_refusal(m.error());
        return {};
    }
    const model_shape& d = m->shape();
    check(d.width > 0 && d.layers > 0 && d.heads > 0 && d.kv_heads > 0 && d.vocabulary > 0 &&
              d.head_size * d.heads == d.width && d.heads % d.kv_heads == 0 &&
              d.vocabulary == m->vocabulary().vocab_size(),
          "a model whose sizes do not fit each other");
    return std::move(*m);
}

/// Numbers of tokens that a model has.
inline std::vector<std::int32_t> tokens_of(const model& m, std::size_t count) {
    std::vector<std::int32_t> out(count);
    for (std::size_t i = 0; i < count; ++i)
        out[i] = static_cast<std::int32_t>((i * 5 + 1) % m.shape().vocabulary);
    return out;
}

} // namespace lm::fuzz
