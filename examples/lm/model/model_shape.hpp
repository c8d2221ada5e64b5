// The sizes and constants of a model, as its file says them under its architecture's entry.
#pragma once

#include "model/architecture.hpp"
#include "model/rope.hpp"

#include <algorithm>
#include <optional>
#include <vector>

namespace lm {

class gguf;

/// What is a layer's own.
struct layer_shape {
    std::size_t window = 0;          ///< tokens that a token sees, itself included; 0: all before it
    std::optional<std::size_t> rope; ///< index in `model_shape::ropes`, or queries and keys are not turned
};

/// The sizes and constants of a model.
struct model_shape {
    architecture arch = architecture::llama;
    architecture_traits traits;
    std::size_t context = 0; ///< most tokens of a sequence
    std::size_t width = 0;   ///< embedding length
    std::size_t layers = 0;
    std::size_t hidden = 0; ///< feed-forward length
    std::size_t heads = 0;
    std::size_t kv_heads = 0;
    std::size_t head_size = 0; ///< of queries, keys and values
    float norm_epsilon = 1e-5f;
    float attention_scale = 0; ///< of scores; 0: 1 / sqrt(head_size)
    float embedding_scale = 1;
    float logit_cap = 0;           ///< c: logits x are c tanh(x / c); 0: not capped
    std::vector<rope_shape> ropes; ///< of all layers, then of those with a window where theirs differs
    std::vector<layer_shape> each_layer;
    std::size_t vocabulary = 0;

    std::size_t attention_width() const noexcept { return heads * head_size; } ///< of the queries
    std::size_t kv_width() const noexcept { return kv_heads * head_size; }     ///< of keys, of values
    /// How many numbers the matrices of a layer read, by `matrix_role::reads`.
    std::size_t input_width(std::size_t reads) const noexcept {
        return reads == 1 ? attention_width() : reads == 3 ? hidden : width;
    }
    /// The most that one reads: of those that write to the residual stream, of all.
    std::size_t widest_inner() const noexcept { return std::max(attention_width(), hidden); }
    std::size_t widest_input() const noexcept { return std::max(width, widest_inner()); }
};

/// What the keys of a file say, under `traits` or, if there are none, its architecture's entry; without the
/// vocabulary and without factors of rotary embeddings. Errors name the key.
crumb::result<model_shape> read_shape(const gguf& file, const std::optional<architecture_traits>& traits);

} // namespace lm
