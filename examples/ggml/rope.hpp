// Rotary embedding.
#pragma once

#include "ggml/graph_plan.hpp"

namespace crumb_ggml {

/// Whether a ROPE over floats is computed: both pairings of one position per token, YaRN included.
bool supports_rope(const ggml_tensor* op) noexcept;

/// Adds its steps; the angles of a batch are computed once per graph.
void add_rope(graph_plan& plan, const ggml_tensor* node);

} // namespace crumb_ggml
