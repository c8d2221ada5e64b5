// Models from any bytes, if they are small.
#pragma once

#include "fuzz.hpp"
#include "model/model.hpp"

namespace lm::fuzz {

/// Inputs of more bytes are not loaded: what a file has decides how long its model runs, and not what it
/// says.
inline constexpr std::size_t max_bytes_of_model = std::size_t{1} << 16;

/// The model of an input; nothing if it is refused, or large.
inline std::optional<model> small_model(std::span<const std::byte> input, const model_options& options) {
    if (input.size() > max_bytes_of_model)
        return {};
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
