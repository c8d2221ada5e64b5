// Statistics of the inputs and outputs of a layer's activation function, per neuron.
#pragma once

#include <crumb/offline/common/finite.hpp>
#include <crumb/offline/common/streaming_histogram.hpp>

namespace crumb::inline CRUMB_ABI {

/// Sums over the rows of a bin, u the input of the activation function, s = sigma(u).
struct activation_moments {
    double count = 0, u = 0, uu = 0, s = 0, us = 0, ss = 0;

    /// Adds the sums of other rows.
    void add(const activation_moments& m) noexcept {
        count += m.count;
        u += m.u;
        uu += m.uu;
        s += m.s;
        us += m.us;
        ss += m.ss;
    }
};

/// Histograms of the tested values v of a layer's neurons, with the moments of (u, sigma(u)) per bin, so that
/// the least-squares line of any run of bins is exact (TARDIS, 4.1 and 5.1). v is u itself or a
/// predictor's estimate of it. Streams: memory is 48 bytes per neuron and bin, and parts of the data may come
/// in any order, or be merged; results differ by rounding only.
class activation_statistics {
  public:
    /// For one layer; bins as in `streaming_histogram::make`.
    static result<activation_statistics> make(std::size_t neurons, std::size_t bins = 256) {
        auto histogram = streaming_histogram<activation_moments>::make(neurons, bins);
        if (!histogram)
            return histogram.error();
        return activation_statistics(std::move(*histogram));
    }

    /// Neurons.
    std::size_t neurons() const noexcept { return histogram_.variables(); }
    /// Max bins of a neuron.
    std::size_t bins() const noexcept { return histogram_.bins(); }
    /// Rows that have been added.
    std::size_t rows() const noexcept { return rows_; }

    /// Adds v, u and sigma(u), each rows x neurons. Refuses other shapes, NaN and infinity, and adds nothing
    /// then.
    status add(const matrix_view<const float>& tested, const matrix_view<const float>& inputs,
               const matrix_view<const float>& outputs) {
        for (const auto& m : {inputs, outputs, tested})
            if (m.cols != neurons() || m.rows != tested.rows)
                return status::error(errc::bad_shape,
                                     "activations of %zu neurons: tested values are %zu x %zu, inputs %zu x "
                                     "%zu, outputs %zu x %zu",
                                     neurons(), tested.rows, tested.cols, inputs.rows, inputs.cols,
                                     outputs.rows, outputs.cols);
        if (const status s = check_finite(tested, "tested values"); !s)
            return s;
        if (const status s = check_finite(inputs, "inputs"); !s)
            return s;
        if (const status s = check_finite(outputs, "outputs"); !s)
            return s;
        // The bins of a few neurons stay in the cache while a cache line of each row is read.
        constexpr std::size_t step = 16;
        for (std::size_t first = 0; first < neurons(); first += step) {
            const std::size_t last = std::min(first + step, neurons());
            for (std::size_t r = 0; r < tested.rows; ++r)
                for (std::size_t n = first; n < last; ++n) {
                    const double u = double{inputs.row(r)[n]}, s = double{outputs.row(r)[n]};
                    histogram_.at(n, double{tested.row(r)[n]}).add({1, u, u * u, s, u * s, s * s});
                }
        }
        rows_ += tested.rows;
        return {};
    }

    /// Adds the data of `other`. Refuses other numbers of neurons or bins.
    status merge(const activation_statistics& other) {
        if (other.neurons() != neurons() || other.bins() != bins())
            return status::error(errc::bad_shape,
                                 "activations of %zu neurons in %zu bins, to be merged: %zu in %zu",
                                 neurons(), bins(), other.neurons(), other.bins());
        histogram_.merge(other.histogram_);
        rows_ += other.rows_;
        return {};
    }

    /// Bins, edges, extremes, and quantiles of v.
    const streaming_histogram<activation_moments>& histogram() const noexcept { return histogram_; }
    /// The quantile of v at share `p` of a neuron's rows, rows spread evenly within a bin; NaN without rows.
    double quantile(std::size_t neuron, double p) const noexcept { return histogram_.quantile(neuron, p); }

    /// Silverman's bandwidth 0.9 min(deviation, interquartile range / 1.34) rows^(-1/5) of the binned v, at
    /// least one bin.
    double bandwidth(std::size_t neuron) const {
        double mean = 0, square = 0;
        for (std::size_t i = 0; i < histogram_.used(neuron); ++i)
            mean += weight(neuron, i) * histogram_.center(neuron, i);
        for (std::size_t i = 0; i < histogram_.used(neuron); ++i) {
            const double d = histogram_.center(neuron, i) - mean;
            square += weight(neuron, i) * d * d;
        }
        double spread = std::sqrt(square);
        if (const double middle = (quantile(neuron, 0.75) - quantile(neuron, 0.25)) / 1.34; middle > 0)
            spread = std::min(spread, middle);
        return std::max(0.9 * spread * std::pow(static_cast<double>(rows_), -0.2), histogram_.width(neuron));
    }

    /// The density of v at `points`, estimated with Gaussian kernels at the bins' centers.
    std::vector<double> density(std::size_t neuron, std::span<const double> points) const {
        std::vector<double> out(points.size(), 0.0);
        if (rows_ == 0)
            return out;
        constexpr double root = 2.5066282746310002; // of 2 pi
        const double h = bandwidth(neuron);
        for (std::size_t p = 0; p < points.size(); ++p)
            for (std::size_t i = 0; i < histogram_.used(neuron); ++i) {
                const double z = (points[p] - histogram_.center(neuron, i)) / h;
                out[p] += weight(neuron, i) * std::exp(-z * z / 2) / (h * root);
            }
        return out;
    }

    /// The bin center of largest density of v, from which a range grows (TARDIS, 5.1.1). NaN without rows.
    double centroid(std::size_t neuron) const {
        const std::size_t used = histogram_.used(neuron);
        if (used == 0)
            return std::nan("");
        const double h = bandwidth(neuron) / histogram_.width(neuron);
        std::vector<double> kernel(used);
        for (std::size_t d = 0; d < used; ++d)
            kernel[d] = std::exp(-static_cast<double>(d * d) / (2 * h * h));
        // Beyond six bandwidths a kernel is below 2e-8.
        const auto reach = std::min(used - 1, static_cast<std::size_t>(6 * h) + 1);
        std::size_t best = 0;
        double max = -1;
        for (std::size_t i = 0; i < used; ++i) {
            double sum = 0;
            for (std::size_t j = i - std::min(i, reach); j <= std::min(i + reach, used - 1); ++j)
                sum += histogram_.bin(neuron, j).count * kernel[i < j ? j - i : i - j];
            if (sum > max) {
                max = sum;
                best = i;
            }
        }
        return histogram_.center(neuron, best);
    }

    /// The length of the shortest interval with `share` of a neuron's rows, over the length of the interval
    /// with all (TARDIS, table 1); rows are spread evenly within a bin. 0 if v does not vary.
    double shortest_share(std::size_t neuron, double share) const {
        const double span = histogram_.max(neuron) - histogram_.min(neuron);
        if (!(span > 0))
            return 0;
        // The distribution function is linear between edges, so a shortest interval has an end at an edge.
        double min = span, below = 0;
        for (std::size_t i = 0; i <= histogram_.used(neuron); ++i) {
            const double edge = i == 0 ? histogram_.min(neuron) : histogram_.end(neuron, i - 1);
            if (below + share <= 1)
                min = std::min(min, quantile(neuron, below + share) - edge);
            if (below - share >= 0)
                min = std::min(min, edge - quantile(neuron, below - share));
            if (i < histogram_.used(neuron))
                below += weight(neuron, i);
        }
        return std::max(min, 0.0) / span;
    }

  private:
    explicit activation_statistics(streaming_histogram<activation_moments> h) : histogram_(std::move(h)) {}

    /// The share of the rows in a bin.
    double weight(std::size_t neuron, std::size_t i) const noexcept {
        return histogram_.bin(neuron, i).count / static_cast<double>(rows_);
    }

    streaming_histogram<activation_moments> histogram_;
    std::size_t rows_ = 0;
};

} // namespace crumb::inline CRUMB_ABI
