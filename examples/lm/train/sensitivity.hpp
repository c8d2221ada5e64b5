// How much a model's output suffers from errors of single matrices.
#pragma once

#include "model/progress.hpp"
#include "model/session.hpp"

#include <vector>

namespace lm {

/// Mean KL divergences of a model's output, in nats, with random errors in one matrix each.
struct sensitivities {
    std::vector<double> matrices; ///< one for every one of `model::matrices`
    double embedding = 0, output = 0;
};

/// Disturbs one matrix after the other by independent errors whose mean square is `share` of that of each
/// group of 32 weights. Measured on the second half of one window, of at most a batch of the session; the
/// layers before the matrix are not computed again. Matrices of `m` have to be multiplied as floats; they are
/// as before in the end. Floats on demand are there for two layers at a time.
crumb::result<sensitivities> measure_sensitivities(model& m, session& s, std::span<const std::int32_t> window,
                                                   double share, const progress_function& progress = {});

} // namespace lm
