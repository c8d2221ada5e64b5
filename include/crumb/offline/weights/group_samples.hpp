// Groups of weights drawn from the matrices of a model, for training.
#pragma once

#include <crumb/core/rounded.hpp>
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

/// Groups drawn from all matrices.
struct group_samples {
    /// None yet.
    explicit group_samples(std::uint64_t seed) : random(seed) {}
    std::vector<group_sample> groups;
    double energy = 0; ///< sum a w^2 of all
    splitmix64 random; ///< as drawing has left it
};

/// Draws one group from each of `max` equal stretches of all groups of some matrices, or takes all if there
/// are no more. Matrices come one after another, so that one at a time has to be in memory. Groups of zeros
/// are left out.
class group_sampler {
  public:
    /// Groups of n x k weights.
    static constexpr std::size_t groups_of(std::size_t n, std::size_t k) noexcept {
        return n * ((k + group_size - 1) / group_size);
    }
    /// `all`: groups of all matrices together.
    group_sampler(std::size_t all, std::size_t max, std::uint64_t seed)
        : all_(all), wanted_(std::min(all, max)), out_(seed) {}

    /// The next matrix, which may go afterwards. Refuses NaN and infinity, negative importances and those of
    /// another width, and more groups than were announced.
    status add(const training_matrix& m) {
        const auto& w = m.w;
        const auto& importance = m.importance;
        if (!importance.empty() && importance.size() != w.cols)
            return status::error(errc::bad_shape, "codebooks: matrix %zu has %zu columns and %zu importances",
                                 count_, w.cols, importance.size());
        const std::size_t groups = groups_of(1, w.cols), own = groups_of(w.rows, w.cols);
        if (own > all_ - first_)
            return status::error(errc::invalid_argument, "codebooks: matrix %zu has %zu groups, %zu are left",
                                 count_, own, all_ - first_);
        double energy = 0;
        for (std::size_t r = 0; r < w.rows; ++r)
            for (std::size_t i = 0; i < w.cols; ++i)
                energy += rounded((importance.empty() ? 1.0 : double{importance[i]}) * double{w.row(r)[i]} *
                                  double{w.row(r)[i]});
        bool valid = std::isfinite(energy);
        for (const float a : importance)
            valid = valid && a >= 0;
        if (!valid)
            return status::error(errc::not_finite, "codebooks: matrix %zu or its importance is not finite",
                                 count_);
        const double scale = energy > 0 ? static_cast<double>(w.rows * w.cols) / energy : 0.0;
        for (; taken_ < wanted_; ++taken_) {
            if (!drawn_)
                next_ =
                    wanted_ == all_
                        ? taken_
                        : static_cast<std::size_t>((static_cast<double>(taken_) + out_.random.uniform()) *
                                                   static_cast<double>(all_) / static_cast<double>(wanted_));
            drawn_ = true;
            const std::size_t at = std::min(next_, all_ - 1) - first_;
            if (at >= own)
                break;
            drawn_ = false;
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
                out_.groups.push_back(g);
        }
        first_ += own;
        ++count_;
        return {};
    }

    /// The samples, when all matrices have come.
    group_samples finish() && {
        for (const group_sample& g : out_.groups)
            for (std::size_t i = 0; i < g.size; ++i)
                out_.energy += rounded(double{g.a[i]} * double{g.w[i]} * double{g.w[i]});
        return std::move(out_);
    }

  private:
    std::size_t all_, wanted_;
    std::size_t first_ = 0, count_ = 0; ///< the next matrix and its first group
    std::size_t next_ = 0, taken_ = 0;  ///< the next group, samples so far
    bool drawn_ = false;                ///< whether `next_` is drawn but not reached
    group_samples out_;
};

/// The same of matrices that are all there.
inline result<group_samples> sample_groups(std::span<const training_matrix> matrices, std::size_t max,
                                           std::uint64_t seed) {
    std::size_t all = 0;
    for (const training_matrix& m : matrices)
        all += group_sampler::groups_of(m.w.rows, m.w.cols);
    group_sampler sampler(all, max, seed);
    for (const training_matrix& m : matrices)
        if (const status s = sampler.add(m); !s)
            return s;
    return std::move(sampler).finish();
}

} // namespace crumb::inline CRUMB_ABI
