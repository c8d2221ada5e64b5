// Coverage per neuron: the share of its inputs where it counts as linear, for a given mean.
#pragma once

#include <crumb/offline/folding/linear_range.hpp>

#include <tuple>

namespace crumb::inline CRUMB_ABI {

/// The error curves of a layer's neurons, as `error_curve` makes them.
struct layer_curves {
    std::span<const std::vector<curve_point>> neurons;
    double weight = 1; ///< the model's loss per squared error of the layer's outputs
};

/// Parameters of `share_coverage`.
struct coverage_options {
    double target = 0.85; ///< mean coverage over all neurons
    double min = 0;       ///< of every neuron
    double max = 1;       ///< of every neuron with a point between `min` and `max`
};

/// The point of its curve that every neuron takes.
struct coverage {
    double multiplier = 0;                        ///< weighted error per unit of coverage, at the margin
    double mean = 0;                              ///< over all neurons
    double error = 0;                             ///< weighted, summed over all neurons
    std::vector<std::vector<std::size_t>> points; ///< [layer][neuron]: point of its curve
    std::vector<double> layers;                   ///< mean over a layer's neurons: the paper's t_i
};

/// Refuses models without neurons, weights that are not positive, and curves that do not rise convexly from
/// (0, 0) to coverage 1.
inline status check_curves(std::span<const layer_curves> layers) {
    std::size_t neurons = 0;
    for (std::size_t l = 0; l < layers.size(); ++l) {
        if (!std::isfinite(layers[l].weight) || !(layers[l].weight > 0))
            return status::error(errc::invalid_argument, "coverage: layer %zu has weight %g", l,
                                 layers[l].weight);
        neurons += layers[l].neurons.size();
        for (std::size_t n = 0; n < layers[l].neurons.size(); ++n) {
            const auto& c = layers[l].neurons[n];
            bool good = c.size() > 1 && c[0].covered == 0 && c[0].error == 0 &&
                        std::fabs(c.back().covered - 1) < 1e-9 && std::isfinite(c.back().error);
            double slope = 0;
            for (std::size_t i = 1; good && i < c.size(); ++i) {
                const double next = (c[i].error - c[i - 1].error) / (c[i].covered - c[i - 1].covered);
                good = c[i].covered > c[i - 1].covered && next >= slope * (1 - 1e-9);
                slope = next;
            }
            if (!good)
                return status::error(errc::invalid_argument,
                                     "coverage: the curve of layer %zu, neuron %zu does not rise convexly "
                                     "from (0, 0) to coverage 1",
                                     l, n);
        }
    }
    if (neurons == 0)
        return status::error(errc::invalid_argument, "coverage: there are no neurons");
    return {};
}

/// The first point of a curve that covers at least `share`, the last one if rounding leaves none.
inline std::size_t first_covering(const std::vector<curve_point>& curve, double share) noexcept {
    std::size_t i = 0;
    while (i + 1 < curve.size() && curve[i].covered < share)
        ++i;
    return i;
}

/// Fills in the means and the error of the points chosen.
inline void sum_up(std::span<const layer_curves> layers, coverage& c) {
    double covered = 0;
    std::size_t neurons = 0;
    c.error = 0;
    c.layers.assign(layers.size(), 0.0);
    for (std::size_t l = 0; l < layers.size(); ++l) {
        for (std::size_t n = 0; n < c.points[l].size(); ++n) {
            const curve_point& p = layers[l].neurons[n][c.points[l][n]];
            c.layers[l] += p.covered;
            c.error += layers[l].weight * p.error;
        }
        covered += c.layers[l];
        neurons += c.points[l].size();
        c.layers[l] /= static_cast<double>(std::max<std::size_t>(c.points[l].size(), 1));
    }
    c.mean = covered / static_cast<double>(neurons);
}

/// Every neuron covers the same share: the first point of its curve that reaches `target`. The baseline of
/// `share_coverage`. Errors as in `check_curves`, and targets outside 0 .. 1.
inline result<coverage> uniform_coverage(std::span<const layer_curves> layers, double target) {
    if (const status s = check_curves(layers); !s)
        return s;
    if (!(target >= 0 && target <= 1))
        return status::error(errc::invalid_argument, "coverage: target %g", target);
    coverage out;
    for (const layer_curves& l : layers) {
        out.points.emplace_back();
        for (const auto& curve : l.neurons)
            out.points.back().push_back(first_covering(curve, target));
    }
    sum_up(layers, out);
    return out;
}

/// Shares out coverage over the layers and neurons of a model (TARDIS, 5.1.1, adaptive thresholding):
///
///     minimize sum over layers l and neurons n of w_l E_ln(t_ln),  mean t_ln = target,  min <= t_ln <=
///     max
///
/// The paper minimizes sum E_i t_i with mean t_i = t, over layers, then over a layer's neurons. Its E_i are
/// constants, and a linear objective has its minimum at a corner: those of small E_i would be covered fully,
/// the others not at all, unless bounds prevent it. Here E are the measured curves.
/// They are convex, so one multiplier serves both levels: w_l E'_ln(t_ln) = multiplier wherever no bound
/// is active, and the layers' t_i follow.
///
/// Segments of the curves are taken by increasing slope until the target is reached. That is the smallest
/// error of all choices with a mean of at least `mean`, which exceeds the target by less than one segment of
/// one neuron. Coarse curves may keep the mean further away when a bound is active. Errors as in
/// `check_curves`, and unless 0 <= min <= target <= max <= 1.
inline result<coverage> share_coverage(std::span<const layer_curves> layers,
                                       const coverage_options& options = {}) {
    if (const status s = check_curves(layers); !s)
        return s;
    const coverage_options& o = options;
    if (!(o.min >= 0 && o.min <= o.target && o.target <= o.max && o.max <= 1))
        return status::error(errc::invalid_argument, "coverage: target %g, at least %g, at most %g", o.target,
                             o.min, o.max);
    struct segment {
        double slope;
        std::size_t layer, neuron, end; ///< `end`: its later point
    };
    coverage out;
    std::vector<segment> segments;
    double missing = 0; // coverage, summed over neurons
    for (std::size_t l = 0; l < layers.size(); ++l) {
        out.points.emplace_back();
        for (std::size_t n = 0; n < layers[l].neurons.size(); ++n) {
            const auto& curve = layers[l].neurons[n];
            const std::size_t first = first_covering(curve, o.min);
            out.points[l].push_back(first);
            missing += o.target - curve[first].covered;
            double slope = 0;
            for (std::size_t i = first + 1; i < curve.size() && curve[i].covered <= o.max; ++i) {
                // Rounding must not make a later segment cheaper than the one it follows.
                slope = std::max(slope, layers[l].weight * (curve[i].error - curve[i - 1].error) /
                                            (curve[i].covered - curve[i - 1].covered));
                segments.push_back({slope, l, n, i});
            }
        }
    }
    // Segments of a neuron stay in order where their slopes are equal.
    std::sort(segments.begin(), segments.end(), [](const segment& a, const segment& b) {
        return std::tie(a.slope, a.layer, a.neuron, a.end) < std::tie(b.slope, b.layer, b.neuron, b.end);
    });
    for (const segment& s : segments) {
        if (!(missing > 0))
            break;
        const auto& curve = layers[s.layer].neurons[s.neuron];
        missing -= curve[s.end].covered - curve[s.end - 1].covered;
        out.points[s.layer][s.neuron] = s.end;
        out.multiplier = s.slope;
    }
    sum_up(layers, out);
    return out;
}

} // namespace crumb::inline CRUMB_ABI
