// Weights of another file in the place of those that llama.cpp loads: `CRUMB_GGML=weights=FILE`.
#pragma once

#include "ggml/ggml_api.hpp"

#include "gguf/packed_weights.hpp"

#include <crumb/op/linear/any_linear.hpp>

#include <cstddef>
#include <string>

namespace crumb_ggml {

/// A matrix of packed weights, mapped as long as the process lives.
struct replacement {
    crumb::any_linear plan;
    lm::row_reader rows;
    std::size_t bytes = 0;
};

/// Maps the file, whose tensors are found from now on. Once, before there are threads. Errors: it cannot be
/// read, it has no packed weights, or some that are damaged.
crumb::status open_replacements(const std::string& path);
/// Whether there is such a file.
bool has_replacements() noexcept;

/// The packed weights for a tensor whose own are `blocks`; null if the file has none of this name. Those of
/// another shape are not taken, nor those that are no nearer to `blocks` than zeros are, which belong to
/// another model: the log says so.
const replacement* find_replacement(const ggml_tensor* t, const void* blocks);

/// Writes `rows` of the weights as a tensor of a type stores them.
void write_rows(const replacement& w, ggml_type type, std::size_t k, crumb::range rows, std::byte* to);

/// An error if the file has other floats under the name of a tensor, as files of other models have.
crumb::status check_floats(const ggml_tensor* t);

} // namespace crumb_ggml
