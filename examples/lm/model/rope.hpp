// Rotary embeddings as the keys `rope.*` and the tensors of factors describe them.
#pragma once

#include "model/architecture.hpp"

#include <string>
#include <vector>

namespace lm {

class gguf;

/// One rotary embedding of a model, with what scales it for long contexts.
struct rope_shape {
    std::size_t dims = 0; ///< of each head
    double base = 10000;
    double scale = 1;                ///< of all frequencies
    double magnitude = 1;            ///< of what is turned
    std::vector<float> factors;      ///< divisors of the frequencies; empty: none
    std::vector<float> long_factors; ///< instead, in contexts of more than `trained_context` tokens
    std::size_t trained_context = 0;
    crumb::rope_pairing pairing = crumb::rope_pairing::interleaved;

    /// For a session of `context` tokens. Refers to this object.
    crumb::rope_options options(std::size_t context) const noexcept {
        return {.dims = dims,
                .base = base,
                .scale = scale,
                .factors = context > trained_context ? long_factors : factors,
                .magnitude = magnitude,
                .pairing = pairing};
    }
};

/// Kinds of scaling that a file may name in `rope.scaling.type`.
enum class rope_scaling : std::uint8_t { none, linear, yarn, longrope };

/// What the keys of a file say, without factors that its tensors have: dims, base, scale, magnitude; with
/// YaRN the factors that it comes to. `dims`: those of a head, unless the file has others. Errors name the
/// key, and what is supported.
crumb::result<rope_shape> read_rope(const gguf& file, const architecture_traits& traits,
                                    std::size_t head_size, std::size_t context);

/// Takes divisors that a file has in tensors: `usual` from `rope_freqs`, or short and long ones. Errors for
/// those that are not positive.
crumb::status set_factors(rope_shape& rope, std::vector<float> usual, std::vector<float> in_long_contexts);

} // namespace lm
