// The key-value caches of a model's layers: layers with the same window share one.
#pragma once

#include "model/kv.hpp"
#include "model/model_shape.hpp"

#include <crumb/core/buffer.hpp>
#include <crumb/op/cache/kv_attention.hpp>

#include <vector>

namespace lm {

using crumb::buffer;

/// Layers that see equally many tokens: their cache with its memory, and attention over it. Of a window no
/// more is kept than the window and a batch, in whole parts of 256 tokens.
struct layer_group {
    std::vector<std::size_t> layers;  ///< of the model, in the order of the cache's
    std::vector<std::int8_t> entries; ///< their codebooks, where the cache has not all layers
    std::vector<float> scales, metric;
    buffer state;
    std::vector<buffer> pages;
    std::optional<crumb::kv_cache> cache;
    std::optional<crumb::kv_attention> attend;

    /// Whether the cache keeps all tokens.
    bool is_whole() const noexcept { return cache->options().span == 0; }
};

/// All groups of a model, for one sequence.
class layer_caches {
  public:
    /// For `context` tokens in batches of up to `batch`, without pages. `codebooks`: of kv's codec, if that
    /// needs some; the caller keeps them.
    static crumb::result<layer_caches> make(const model_shape& model, const kv_type& kv, std::size_t context,
                                            std::size_t batch, const crumb::pq_codebooks& codebooks);

    std::vector<layer_group>& groups() noexcept { return groups_; }
    const std::vector<layer_group>& groups() const noexcept { return groups_; }
    /// The group of a layer of the model, and which of the group's layers it is.
    layer_group& group_of(std::size_t layer) noexcept { return groups_[places_[layer].group]; }
    const layer_group& group_of(std::size_t layer) const noexcept { return groups_[places_[layer].group]; }
    std::size_t index_of(std::size_t layer) const noexcept { return places_[layer].index; }

    /// Bytes of the pages that `tokens` tokens need and that have not been added.
    double missing_bytes(std::size_t tokens) const noexcept;
    /// Adds them; an error if this machine lacks the memory.
    crumb::status grow(std::size_t tokens);
    /// Bytes of all pages and states that there are.
    double bytes() const noexcept;

    /// Makes `rows` written tokens part of the sequence.
    crumb::status advance(std::size_t rows);
    /// Forgets all but the first `tokens` tokens, or all if a window no longer has what the next token sees.
    /// Returns how many are left.
    std::size_t truncate(std::size_t tokens) noexcept;

  private:
    struct place {
        std::size_t group, index;
    };
    std::vector<layer_group> groups_;
    std::vector<place> places_;
};

} // namespace lm
