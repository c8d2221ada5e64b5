// Matrix products with weights in buffers of this plug-in.
#pragma once

#include "ggml/graph_plan.hpp"

namespace crumb_ggml {

/// Whether MUL_MAT or MUL_MAT_ID is computed: weights of a type that crumb multiplies, in a buffer of weights
/// and no view of others; single-precision inputs whose rows are contiguous.
bool supports_product(const ggml_tensor* op) noexcept;

/// Adds the steps of a MUL_MAT.
crumb::status add_product(graph_plan& plan, const ggml_tensor* node);
/// Adds the steps of a MUL_MAT_ID.
crumb::status add_expert_product(graph_plan& plan, const ggml_tensor* node);
/// Cuts the memory of a workspace for products with experts; without memory only counts. Returns the bytes.
std::size_t place_rows(expert_rows& rows, std::byte* memory) noexcept;

} // namespace crumb_ggml
