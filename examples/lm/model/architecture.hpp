// What differs between the architectures that files name in `general.architecture`: a table.
#pragma once

#include <crumb/op/float_ops.hpp>

#include <cstdint>
#include <span>
#include <string_view>

namespace lm {

enum class architecture : std::uint8_t { llama, gpt2, smollm3, qwen2, qwen3, gemma3, phi3 };

/// Whether files have a tensor.
enum class presence : std::uint8_t { absent, optional, required };

enum class norm_type : std::uint8_t { rms, layer }; ///< `layer`: LayerNorm with biases

enum class activation_function : std::uint8_t { silu, gelu }; ///< `gelu`: the one with tanh

/// What a feed-forward network multiplies with its activated channels.
enum class gate_type : std::uint8_t {
    none,     ///< nothing: activation(ffn_up)
    separate, ///< activation(ffn_gate) * ffn_up
    fused     ///< the same of one matrix: ffn_up has the gate's rows before its own
};

/// An entry of the table. A model is what its file says under this entry; sizes and numbers that a file has
/// in keys are in `model_shape`.
struct architecture_traits {
    std::string_view name; ///< in `general.architecture`, and before the file's other keys

    norm_type norms = norm_type::rms;
    bool query_key_norms = false; ///< RMSNorm of each head's queries and keys, before they are turned
    bool post_norms = false;      ///< RMSNorm of what attention and network add to the residual stream

    bool learned_positions = false; ///< added to the embedding; else queries and keys are turned
    crumb::rope_pairing pairing = crumb::rope_pairing::interleaved;
    std::size_t unturned_layer_step = 0; ///< every layer of this step keeps its queries and keys; 0: none
    bool frequency_factors = false;      ///< of tensors `rope_freqs` or `rope_factors_long` and `_short`
    double local_rope_base = 0;          ///< where a window slides, unless the file says it; 0: as elsewhere

    std::size_t global_layer_step = 0; ///< with a window, every layer of this step sees all tokens; 0: none
    bool zero_window_is_none = false;  ///< a window of 0 tokens means that none slides

    activation_function activation = activation_function::silu;
    gate_type gate = gate_type::separate;

    presence qkv_biases = presence::absent, output_biases = presence::absent, ffn_biases = presence::absent,
             vocabulary_bias = presence::absent;

    bool scaled_embedding = false;      ///< times sqrt(width)
    std::size_t width_scale_layers = 0; ///< with so many layers scores have 1 / sqrt(width / heads)
    bool capped_logits = false;         ///< by the key `final_logit_softcapping`, if the file has it
};

/// The entry of an architecture.
const architecture_traits& traits_of(architecture a) noexcept;
/// All entries, in the order of `architecture`.
std::span<const architecture_traits> architectures() noexcept;
/// By name; an error lists the known ones.
crumb::result<architecture> find_architecture(std::string_view name);

} // namespace lm
