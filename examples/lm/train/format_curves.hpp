// What every format adds to a model's error, matrix by matrix.
#pragma once

#include "train/calibration.hpp"
#include "train/format_choice.hpp"
#include "train/quantized_tensors.hpp"

#include <string>
#include <vector>

namespace lm {

/// The formats to choose from, besides what a matrix is stored as.
inline constexpr weight_type planned_types[] = {weight_type::cb2s, weight_type::cb3, weight_type::cb4,
                                                weight_type::q5_0, weight_type::q8_0};

/// The formats of one matrix, `options[i]` that of `types[i]`: as it is stored, without loss, and
/// `planned_types`.
struct format_curve {
    std::string tensor;
    std::vector<weight_type> types;
    std::vector<format_option> options;
};

/// Those of all matrices, the vocabulary's included, with their bytes and without losses.
std::vector<format_curve> unmeasured_formats(const model& m, const quantized_tensors& tensors);

/// Measures the losses: what errors of a matrix cost on windows of `text` (see `measure_sensitivities`),
/// times how large a format's are after error feedback, on some rows of the matrix and some windows.
/// `tensors` has the table sets of `planned_types`.
crumb::result<std::vector<format_curve>>
measure_formats(const quantization& how, model& m, session& s, const quantized_tensors& tensors,
                std::span<const std::int32_t> text, std::size_t window, const stage_function& progress = {});

} // namespace lm
