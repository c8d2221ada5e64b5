// Formats for the matrices of a model by what their errors cost.
#pragma once

#include "train/format_curves.hpp"

#include <map>

namespace lm {

/// The format of every matrix that is not `stored`, by the name of its tensor.
using format_plan = std::map<std::string, weight_type, std::less<>>;

/// Whether a choice keeps `how.bits` or `how.size`. An error says the least that can be reached.
crumb::status check_budget(const quantization& how, const model& m, std::span<const format_curve> curves);

/// Chooses the format of every matrix so that they are kept: those of the least sum of losses.
crumb::result<format_plan> plan_formats(const quantization& how, const model& m,
                                        std::span<const format_curve> curves);

} // namespace lm
