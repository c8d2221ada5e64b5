#include "model/architecture.hpp"

#include "gguf/shown_text.hpp"

#include <string>

namespace lm {

namespace {

constexpr auto half_split = crumb::rope_pairing::half_split;

constexpr architecture_traits table[] = {
    {.name = "llama",
     .frequency_factors = true,
     .qkv_biases = presence::optional,
     .output_biases = presence::optional,
     .ffn_biases = presence::optional},
    {.name = "gpt2",
     .norms = norm_type::layer,
     .learned_positions = true,
     .activation = activation_function::gelu,
     .gate = gate_type::none,
     .qkv_biases = presence::required,
     .output_biases = presence::required,
     .ffn_biases = presence::required},
    {.name = "smollm3", .unturned_layer_step = 4, .qkv_biases = presence::optional},
    {.name = "qwen2",
     .pairing = half_split,
     .qkv_biases = presence::optional,
     .vocabulary_bias = presence::optional},
    {.name = "qwen3", .query_key_norms = true, .pairing = half_split, .qkv_biases = presence::optional},
    {.name = "gemma3",
     .query_key_norms = true,
     .post_norms = true,
     .pairing = half_split,
     .local_rope_base = 10000,
     .global_layer_step = 6,
     .activation = activation_function::gelu,
     .qkv_biases = presence::optional,
     .scaled_embedding = true,
     .width_scale_layers = 62,
     .capped_logits = true},
    {.name = "phi3",
     .pairing = half_split,
     .frequency_factors = true,
     .zero_window_is_none = true,
     .gate = gate_type::fused,
     .qkv_biases = presence::optional},
};

} // namespace

const architecture_traits& traits_of(architecture a) noexcept { return table[static_cast<std::size_t>(a)]; }

std::span<const architecture_traits> architectures() noexcept { return table; }

crumb::result<architecture> find_architecture(std::string_view name) {
    std::string known;
    for (std::size_t i = 0; i < std::size(table); ++i) {
        if (table[i].name == name)
            return static_cast<architecture>(i);
        known += (i == 0 ? "" : ", ") + std::string(table[i].name);
    }
    return crumb::status::error(crumb::errc::unsupported, "architecture '%s' is not supported (%s are)",
                                shown_text(name).c_str(), known.c_str());
}

} // namespace lm
