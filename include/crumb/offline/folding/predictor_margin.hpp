// Errors of a predictor's estimates: measured quantiles, and upper bounds.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/offline/common/finite.hpp>
#include <crumb/offline/folding/linear_range.hpp>

namespace crumb::inline CRUMB_ABI {

/// A neuron is linear while low <= v < high; low >= high: never.
struct tested_range {
    float low = 0;
    float high = 0;

    /// Whether no v is inside.
    bool never() const noexcept { return !(low < high); }
};

/// Streaming histograms of a predictor's errors e = v - u, u the input of a neuron's activation function and
/// v the estimate of it that is tested (TARDIS, 5.3). 8 bytes per neuron and bin.
class predictor_errors {
  public:
    /// For one layer; bins as in `streaming_histogram::make`.
    static result<predictor_errors> make(std::size_t neurons, std::size_t bins = 1024) {
        auto histogram = streaming_histogram<>::make(neurons, bins);
        if (!histogram)
            return histogram.error();
        return predictor_errors(std::move(*histogram));
    }

    /// Neurons.
    std::size_t neurons() const noexcept { return histogram_.variables(); }
    /// Rows that have been added.
    std::size_t rows() const noexcept { return rows_; }

    /// Adds v and u, each rows x neurons. Refuses other shapes, NaN and infinity, and adds nothing then.
    status add(const matrix_view<const float>& tested, const matrix_view<const float>& inputs) {
        if (tested.cols != neurons() || inputs.cols != neurons() || tested.rows != inputs.rows)
            return status::error(errc::bad_shape,
                                 "predictor of %zu neurons: tested values are %zu x %zu, inputs %zu x %zu",
                                 neurons(), tested.rows, tested.cols, inputs.rows, inputs.cols);
        if (const status s = check_finite(tested, "tested values"); !s)
            return s;
        if (const status s = check_finite(inputs, "inputs"); !s)
            return s;
        constexpr std::size_t step = 16; // neurons whose bins stay in the cache
        for (std::size_t first = 0; first < neurons(); first += step)
            for (std::size_t r = 0; r < tested.rows; ++r)
                for (std::size_t n = first; n < std::min(first + step, neurons()); ++n)
                    histogram_.at(n, double{tested.row(r)[n]} - double{inputs.row(r)[n]}).add({1});
        rows_ += tested.rows;
        return {};
    }

    /// Adds the data of `other`. Refuses other numbers of neurons or bins.
    status merge(const predictor_errors& other) {
        if (other.neurons() != neurons() || other.histogram_.bins() != histogram_.bins())
            return status::error(errc::bad_shape,
                                 "predictor of %zu neurons in %zu bins, to be merged: %zu in %zu", neurons(),
                                 histogram_.bins(), other.neurons(), other.histogram_.bins());
        histogram_.merge(other.histogram_);
        rows_ += other.rows_;
        return {};
    }

    /// Q_p(e), an edge of a bin or an extreme: at most a share `p` of the errors is less than `lower`, at
    /// most 1 - p is greater than `upper`. 0 without rows.
    double lower(std::size_t neuron, double p) const noexcept {
        const std::size_t used = histogram_.used(neuron);
        double below = 0;
        for (std::size_t i = 0; i < used; ++i) {
            below += histogram_.bin(neuron, i).count;
            if (below > p * static_cast<double>(rows_))
                return histogram_.begin(neuron, i);
        }
        return used == 0 ? 0.0 : histogram_.max(neuron);
    }
    /// The same from above.
    double upper(std::size_t neuron, double p) const noexcept {
        const std::size_t used = histogram_.used(neuron);
        double above = 0;
        for (std::size_t i = used; i-- != 0;) {
            above += histogram_.bin(neuron, i).count;
            if (above > (1 - p) * static_cast<double>(rows_))
                return histogram_.end(neuron, i);
        }
        return used == 0 ? 0.0 : histogram_.min(neuron);
    }

    /// Thresholds of v such that at most a share `miss` of the inputs outside `r` counts as linear:
    ///
    ///     [low + Q_{1 - miss}(e), high + Q_miss(e))
    ///
    /// An input u < low passes only if v = u + e is not below the first threshold, so e > Q_{1 - miss}(e);
    /// one of u >= high only if v is below the second one, so e < Q_miss(e). That bounds the share where e
    /// does not depend on u. Infinite ends stay infinite; thresholds are rounded inwards. If they meet, the
    /// neuron is never linear.
    tested_range thresholds(std::size_t neuron, const linear_range& r, double miss) const noexcept {
        const double low = r.low + upper(neuron, 1 - miss), high = r.high + lower(neuron, miss);
        tested_range out = {static_cast<float>(low), static_cast<float>(high)};
        if (double{out.low} < low)
            out.low = std::nextafter(out.low, HUGE_VALF);
        if (double{out.high} > high)
            out.high = std::nextafter(out.high, -HUGE_VALF);
        return r.low < r.high ? out : tested_range{};
    }

  private:
    explicit predictor_errors(streaming_histogram<> h) : histogram_(std::move(h)) {}

    streaming_histogram<> histogram_;
    std::size_t rows_ = 0;
};

/// Inputs that share a norm in `sound_bounds`.
inline constexpr std::size_t bound_group = 32;

/// x >= 0 rounded up to fp16; infinity beyond the largest number.
inline half half_above(double x) noexcept {
    float f = static_cast<float>(x);
    if (double{f} < x)
        f = std::nextafter(f, HUGE_VALF);
    half h = to_half(f);
    if (to_float(h) < f)
        ++h.bits;
    return h;
}

/// Norms of `sound_bounds`, row by row; for a matrix product with rows (X, D).
struct bound_matrix {
    std::size_t neurons = 0;
    std::size_t groups = 0;
    std::vector<half> values; ///< neurons x (2 groups): E of all groups, then N

    /// The matrix, a row per neuron.
    matrix_view<const half> view() const noexcept { return matrix(values.data(), neurons, 2 * groups); }
};

/// A bound on the estimate's error for every input. For weights w and their stored approximation w^, inputs x
/// and x^ as the predictor rounds them, and groups g of 32 inputs, the last one possibly shorter,
///
///     |w.x - w^.x^| = |(w - w^).x + w^.(x - x^)| <= sum over g of E[n, g] X[g] + N[n, g] D[g]
///     E[n, g] = ||w_g - w^_g||,  N[n, g] = ||w^_g||,  X[g] = ||x_g||,  D[g] = ||x_g - x^_g||
///
/// by the triangle inequality and Cauchy-Schwarz. E and N are rounded up to fp16; the product is for
/// `dense_linear<half>`. The bound holds in real numbers. In float, with eps = 2^-24 and gamma(n) = n eps /
/// (1 - n eps), the caller adds
///
///     gamma(2 groups + 36) of the margin   for X and D (32 squares, a root) and the product, none of whose
///                                          terms is negative
///     gamma(d + 1) sum (E + N) X           if w.x is summed in float, in any order
///     gamma(d + 1) sum N (X + D)           if w^.x^ is; integer sums leave the few roundings of their scales
///
/// and one eps of the magnitude for every bias that is added on the way; squares of inputs below 2^-63 would
/// underflow. Refuses matrices of other shapes, NaN, infinity, and norms beyond fp16.
inline result<bound_matrix> sound_bounds(const matrix_view<const float>& up,
                                         const matrix_view<const float>& approximation) {
    if (approximation.rows != up.rows || approximation.cols != up.cols)
        return status::error(errc::bad_shape, "bounds: up is %zu x %zu, its approximation %zu x %zu", up.rows,
                             up.cols, approximation.rows, approximation.cols);
    if (const status s = check_finite(up, "up"); !s)
        return s;
    if (const status s = check_finite(approximation, "approximation of up"); !s)
        return s;
    bound_matrix out;
    out.neurons = up.rows;
    out.groups = (up.cols + bound_group - 1) / bound_group;
    out.values.resize(out.neurons * 2 * out.groups);
    // Above the rounding of 32 differences, squares and sums, and of the root.
    constexpr double slack = 1 + 0x1p-46;
    for (std::size_t n = 0; n < out.neurons; ++n)
        for (std::size_t g = 0; g < out.groups; ++g) {
            double e = 0, w = 0;
            for (std::size_t c = g * bound_group; c < std::min((g + 1) * bound_group, up.cols); ++c) {
                const double stored = double{approximation.row(n)[c]}, d = double{up.row(n)[c]} - stored;
                e += d * d;
                w += stored * stored;
            }
            half* row = out.values.data() + n * 2 * out.groups;
            row[g] = half_above(std::sqrt(e) * slack);
            row[out.groups + g] = half_above(std::sqrt(w) * slack);
            if (!is_finite(row[g]) || !is_finite(row[out.groups + g]))
                return status::error(
                    errc::not_finite,
                    "bounds: neuron %zu, group %zu has norms %g and %g, too large for a half", n, g,
                    std::sqrt(e), std::sqrt(w));
        }
    return out;
}

} // namespace crumb::inline CRUMB_ABI
