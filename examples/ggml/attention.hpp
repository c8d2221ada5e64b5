// FLASH_ATTN_EXT over caches in half precision.
#pragma once

#include "ggml/graph_plan.hpp"

namespace crumb_ggml {

/// Whether a FLASH_ATTN_EXT is computed: keys and values in half precision with heads of one size, a mask
/// that all heads share, no position bias, soft cap or sinks.
bool supports_attention(const ggml_tensor* op) noexcept;

/// Adds its steps.
crumb::status add_attention(graph_plan& plan, const ggml_tensor* node);

} // namespace crumb_ggml
