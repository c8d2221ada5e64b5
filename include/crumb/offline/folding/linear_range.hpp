// Ranges in which a neuron's activation function is replaced by a line, and their errors.
#pragma once

#include <crumb/offline/folding/activation_statistics.hpp>

#include <tuple>

namespace crumb::inline CRUMB_ABI {

/// sigma(u) is replaced by slope u + intercept while the tested value v lies in [low, high) (TARDIS, 5.1.1).
struct linear_range {
    double low = 0;  ///< a float; -infinity if the range begins at the smallest v observed
    double high = 0; ///< a float; +infinity if it ends at the largest. low = high: never linear
    double slope = 0;
    double intercept = 0;
    double error = 0;   ///< mean over all rows of (sigma(u) - slope u - intercept)^2, rows outside count 0
    double covered = 0; ///< share of the rows inside
};

/// A share of linear rows and its error.
struct curve_point {
    static constexpr std::size_t nothing = static_cast<std::size_t>(-1);

    double covered = 0;
    double error = 0;
    std::size_t range = nothing; ///< of the list the curve was made from; `nothing`: no row is linear
};

/// Min rows to make ranges from.
inline constexpr std::size_t min_range_rows = 32;

/// Least-squares lines of all runs of bins of one neuron, by prefix sums. With cov and var over the run's
/// rows, slope = cov(u, sigma) / var(u), intercept = mean(sigma) - slope mean(u), and the squared errors are
/// rows (var(sigma) - slope cov(u, sigma)). Where u does not vary, slope = 0.
class range_lines {
  public:
    /// Of one neuron; `s` outlives it.
    range_lines(const activation_statistics& s, std::size_t neuron)
        : histogram_(s.histogram()), neuron_(neuron), sums_(histogram_.used(neuron) + 1) {
        for (std::size_t i = 0; i < bins(); ++i) {
            sums_[i + 1] = sums_[i];
            sums_[i + 1].add(histogram_.bin(neuron, i));
        }
    }

    /// Bins in use.
    std::size_t bins() const noexcept { return sums_.size() - 1; }
    /// Rows in all bins.
    double rows() const noexcept { return sums_.back().count; }
    /// Rows in the bins begin .. end - 1.
    double rows(std::size_t begin, std::size_t end) const noexcept {
        return sums_[end].count - sums_[begin].count;
    }
    /// The sum of squared errors there.
    double error(std::size_t begin, std::size_t end) const noexcept { return fit(begin, end).error; }
    /// The line and its error there.
    linear_range range(std::size_t begin, std::size_t end) const noexcept {
        linear_range r;
        if (!(rows(begin, end) > 0))
            return r;
        r.low = begin == 0 ? -HUGE_VAL : histogram_.edge(neuron_, begin);
        r.high = end == bins() ? HUGE_VAL : histogram_.edge(neuron_, end);
        const line l = fit(begin, end);
        r.slope = l.slope;
        r.intercept = l.intercept;
        r.error = l.error / rows();
        r.covered = rows(begin, end) / rows();
        return r;
    }

  private:
    struct line {
        double slope = 0, intercept = 0, error = 0;
    };

    line fit(std::size_t begin, std::size_t end) const noexcept {
        const activation_moments &a = sums_[begin], &b = sums_[end];
        const double n = b.count - a.count;
        if (!(n > 0))
            return {};
        const double u = (b.u - a.u) / n, s = (b.s - a.s) / n;
        const double uu = b.uu - a.uu - n * u * u, us = b.us - a.us - n * u * s, ss = b.ss - a.ss - n * s * s;
        // Smaller variances are rounding errors: about 1e-16 of the sum of squares.
        if (uu <= 1e-13 * sums_.back().uu)
            return {0, s, std::max(ss, 0.0)};
        const double slope = us / uu;
        return {slope, s - slope * u, std::max(ss - slope * us, 0.0)};
    }

    const streaming_histogram<activation_moments>& histogram_;
    std::size_t neuron_;
    std::vector<activation_moments> sums_;
};

/// Refuses neurons that do not exist, and fewer rows than `min_range_rows`.
inline status check_range_search(const activation_statistics& s, std::size_t neuron) noexcept {
    if (neuron >= s.neurons())
        return status::error(errc::invalid_argument, "linear range of neuron %zu of %zu", neuron,
                             s.neurons());
    if (s.rows() < min_range_rows)
        return status::error(errc::invalid_argument, "linear range of neuron %zu: %zu rows, %zu are needed",
                             neuron, s.rows(), min_range_rows);
    return {};
}

/// Nested ranges, each with its least-squares line, from the bin of the centroid to all of the data:
/// every step takes in the bin to the left or to the right (up to the next one with rows), whichever adds
/// less squared error per row (TARDIS, algorithm 1). A neuron that does not vary has one range: slope 0,
/// intercept sigma(u), no error, everything covered. Errors as in `check_range_search`.
inline result<std::vector<linear_range>> search_ranges(const activation_statistics& s, std::size_t neuron) {
    if (const status bad = check_range_search(s, neuron); !bad)
        return bad;
    const range_lines lines(s, neuron);
    const std::size_t bins = lines.bins();
    std::size_t begin = s.histogram().find(neuron, s.centroid(neuron)), end = begin + 1;
    std::vector<linear_range> out;
    if (lines.rows(begin, end) > 0)
        out.push_back(lines.range(begin, end));
    while (begin != 0 || end != bins) {
        // The outermost bins have rows.
        std::size_t left = begin, right = end;
        while (left != 0 && lines.rows(left, begin) == 0)
            --left;
        while (right != bins && lines.rows(end, right) == 0)
            ++right;
        const double now = lines.error(begin, end);
        const double to_left = (lines.error(left, end) - now) * lines.rows(end, right);
        const double to_right = (lines.error(begin, right) - now) * lines.rows(left, begin);
        if (right == end || (left != begin && to_left < to_right))
            begin = left;
        else
            end = right;
        out.push_back(lines.range(begin, end));
    }
    return out;
}

/// The lower convex hull of the points (covered, weight error) of `ranges` and (0, 0), by increasing
/// coverage: the points among which `share_coverage` chooses. The first point is (0, 0). `weight` is the
/// neuron's
/// ||W2 row||^2, the weight of its error in the outputs.
inline std::vector<curve_point> error_curve(std::span<const linear_range> ranges, double weight) {
    std::vector<curve_point> points, hull(1);
    for (std::size_t i = 0; i < ranges.size(); ++i)
        if (ranges[i].covered > 0)
            points.push_back({ranges[i].covered, weight * ranges[i].error, i});
    std::sort(points.begin(), points.end(), [](const curve_point& a, const curve_point& b) {
        return std::tie(a.covered, a.error, a.range) < std::tie(b.covered, b.error, b.range);
    });
    for (const curve_point& p : points) {
        if (p.covered == hull.back().covered)
            continue;
        while (hull.size() > 1) {
            const curve_point &a = hull[hull.size() - 2], &b = hull.back();
            if ((b.error - a.error) * (p.covered - b.covered) < (p.error - b.error) * (b.covered - a.covered))
                break;
            hull.pop_back();
        }
        hull.push_back(p);
    }
    return hull;
}

/// The range that minimizes weight error + multiplier (1 - covered) over all runs of bins and the empty
/// one, of equal ones the one that covers most: exact, unlike the greedy search. O(bins^2). Errors as in
/// `check_range_search`; weight and multiplier must be finite and not negative.
inline result<linear_range> best_range(const activation_statistics& s, std::size_t neuron, double weight,
                                       double multiplier) {
    if (const status bad = check_range_search(s, neuron); !bad)
        return bad;
    if (!std::isfinite(weight) || weight < 0 || !std::isfinite(multiplier) || multiplier < 0)
        return status::error(errc::invalid_argument, "linear range: weight %g, multiplier %g", weight,
                             multiplier);
    const range_lines lines(s, neuron);
    std::size_t begin = 0, end = 0;
    double min_cost = multiplier * lines.rows(), max_rows = 0;
    for (std::size_t i = 0; i < lines.bins(); ++i)
        for (std::size_t j = i + 1; j <= lines.bins(); ++j) {
            const double rows = lines.rows(i, j);
            const double cost = weight * lines.error(i, j) + multiplier * (lines.rows() - rows);
            if (cost < min_cost || (cost == min_cost && rows > max_rows)) {
                min_cost = cost;
                max_rows = rows;
                begin = i;
                end = j;
            }
        }
    return lines.range(begin, end);
}

/// The best ranges of every multiplier, by increasing coverage: those on the lower convex hull of (covered,
/// error) of all runs of bins. Replaces `search_ranges` if milliseconds per neuron do not matter.
inline result<std::vector<linear_range>> best_ranges(const activation_statistics& s, std::size_t neuron) {
    if (const status bad = check_range_search(s, neuron); !bad)
        return bad;
    const range_lines lines(s, neuron);
    // The hull lies below the line from coverage 0 to coverage 1.
    const double steepest = lines.error(0, lines.bins()) / lines.rows();
    std::vector<linear_range> runs;
    for (std::size_t i = 0; i < lines.bins(); ++i)
        for (std::size_t j = i + 1; j <= lines.bins(); ++j)
            if (j - i == lines.bins() || lines.error(i, j) <= steepest * lines.rows(i, j))
                runs.push_back(lines.range(i, j));
    std::vector<linear_range> out;
    for (const curve_point& p : error_curve(runs, 1))
        if (p.range != curve_point::nothing)
            out.push_back(runs[p.range]);
    return out;
}

} // namespace crumb::inline CRUMB_ABI
