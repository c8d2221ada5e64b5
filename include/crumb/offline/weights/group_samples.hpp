// Groups of weights drawn from the matrices of a model, for training.
#pragma once

#include <crumb/core/status.hpp>
#include <crumb/core/view.hpp>
#include <crumb/format/traits.hpp>
#include <crumb/offline/common/random.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// A matrix to train on, n x k, and the mean squared input of each of its k columns (empty: all equal).
struct training_matrix {
    matrix_view<const float> w;
    std::span<const float> importance;
};

/// A group of weights w and the weights a of their squared errors: importance divided by the matrix's mean
/// importance w^2, so that matrices count by their size. Surplus elements of ragged groups are 0.
struct group_sample {
    std::array<float, group_size> w = {}, a = {};
    std::size_t size = 0; ///< weights, at most 32
};

/// The result of `sample_groups`.
struct group_samples {
    std::vector<group_sample> groups;
    double energy = 0; ///< sum a w^2 of all
};

/// Draws one group from each of `max` equal stretches of all groups, or takes all if there are no more.
/// Groups of zeros are left out. Refuses NaN and infinity, negative importances and those of another width.
inline result<group_samples> sample_groups(std::span<const training_matrix> matrices, std::size_t max,
                                           splitmix64& random) {
    group_samples out;
    std::size_t next = 0;
    bool drawn = false; // whether `next` is drawn but not reached
    std::size_t all = 0;
    for (const training_matrix& m : matrices)
        all += m.w.rows * ((m.w.cols + group_size - 1) / group_size);
    const std::size_t wanted = std::min(all, max);
    std::size_t first = 0, taken = 0; // group of the matrix; samples so far
    for (std::size_t n = 0; n < matrices.size(); ++n) {
        const auto& w = matrices[n].w;
        const auto& importance = matrices[n].importance;
        if (!importance.empty() && importance.size() != w.cols)
            return status::error(errc::bad_shape, "codebooks: matrix %zu has %zu columns and %zu importances",
                                 n, w.cols, importance.size());
        double energy = 0;
        for (std::size_t r = 0; r < w.rows; ++r)
            for (std::size_t i = 0; i < w.cols; ++i)
                energy += (importance.empty() ? 1.0 : double{importance[i]}) * double{w.row(r)[i]} *
                          double{w.row(r)[i]};
        bool valid = std::isfinite(energy);
        for (const float a : importance)
            valid = valid && a >= 0;
        if (!valid)
            return status::error(errc::not_finite, "codebooks: matrix %zu or its importance is not finite",
                                 n);
        const std::size_t groups = (w.cols + group_size - 1) / group_size;
        const double scale = energy > 0 ? static_cast<double>(w.rows * w.cols) / energy : 0.0;
        for (; taken < wanted; ++taken) {
            if (!drawn)
                next = wanted == all
                           ? taken
                           : static_cast<std::size_t>((static_cast<double>(taken) + random.uniform()) *
                                                      static_cast<double>(all) / static_cast<double>(wanted));
            drawn = true;
            const std::size_t at = std::min(next, all - 1) - first;
            if (at >= w.rows * groups)
                break;
            drawn = false;
            group_sample g;
            const std::size_t i0 = at % groups * group_size;
            g.size = std::min(group_size, w.cols - i0);
            float largest = 0;
            for (std::size_t i = 0; i < g.size; ++i) {
                g.w[i] = w.row(at / groups)[i0 + i];
                g.a[i] = static_cast<float>((importance.empty() ? 1.0 : double{importance[i0 + i]}) * scale);
                largest = std::max(largest, g.a[i] > 0 ? std::fabs(g.w[i]) : 0.0f);
            }
            if (largest > 1e-30f)
                out.groups.push_back(g);
        }
        first += w.rows * groups;
    }
    for (const group_sample& g : out.groups)
        for (std::size_t i = 0; i < g.size; ++i)
            out.energy += double{g.a[i]} * double{g.w[i]} * double{g.w[i]};
    return out;
}

} // namespace crumb::inline CRUMB_ABI
