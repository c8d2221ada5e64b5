// Operations that compute every row of their result by itself: norms, sums, activations, rotary embedding,
// copies of rows.
#pragma once

#include "ggml/graph_plan.hpp"

namespace crumb_ggml {

/// Whether an operation is one of these, on operands that its function reads.
bool supports_rows(const ggml_tensor* op) noexcept;

/// Adds the steps of one of them.
crumb::status add_rows(graph_plan& plan, const ggml_tensor* node);

} // namespace crumb_ggml
