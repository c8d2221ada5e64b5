// Formats for the matrices of a model by what their errors cost.
#pragma once

#include "train/calibration.hpp"
#include "train/quantized_tensors.hpp"

#include <map>

namespace lm {

/// The format of every matrix that is not `stored`, by the name of its tensor.
using format_plan = std::map<std::string, weight_type, std::less<>>;

/// The formats to choose from, besides what a matrix is stored as.
inline constexpr weight_type planned_types[] = {weight_type::cb2s, weight_type::cb3, weight_type::cb4,
                                                weight_type::q5_0, weight_type::q8_0};

/// Chooses the format of every matrix, the vocabulary's included, so that `how.bits` or `how.size` is kept.
/// What an error costs is measured on windows of `text` (see `measure_sensitivities`), how large a
/// format's is after error feedback on some rows of the matrix and some windows. `tensors` has the table sets
/// of `planned_types`. An error says the least that can be reached.
crumb::result<format_plan> plan_formats(const quantization& how, model& m, session& s,
                                        const quantized_tensors& tensors, std::span<const std::int32_t> text,
                                        std::size_t window, const stage_function& progress = {});

} // namespace lm
