// Histograms of many variables on grids that grow with the data.
#pragma once

#include <crumb/core/memory.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// A bin that only counts.
struct count_bin {
    double count = 0;
    /// Counts as well what another bin has counted.
    void add(const count_bin& b) noexcept { count += b.count; }
};

/// One histogram per variable, each of at most `bins()` bins [k 2^e, (k + 1) 2^e) of its own e. A value that
/// does not fit merges adjacent bins, so e is the smallest integer with
///
///     floor(max / 2^e) - floor(min / 2^e) < bins,   e >= log2 of a float's last place at max |value|,
///
/// whatever the order of the values, the bins in use cover at least half of `bins()` unless the second
/// condition binds, and every edge is a float. `Bin` has a member `count` and adds up by `add`.
template <class Bin = count_bin>
class streaming_histogram {
  public:
    /// Refuses no variables, and bins that are not a power of two from 16 to 65536.
    static result<streaming_histogram> make(std::size_t variables, std::size_t bins) {
        if (bins < 16 || bins > 65536 || !std::has_single_bit(bins))
            return status::error(errc::invalid_argument,
                                 "histogram: %zu bins, a power of two from 16 to 65536 is needed", bins);
        std::size_t cells = 0;
        if (variables == 0 || !multiply(variables, bins * sizeof(Bin), cells))
            return status::error(errc::invalid_argument, "histogram: %zu variables of %zu bins", variables,
                                 bins);
        streaming_histogram h;
        h.bins_ = bins;
        h.grids_.resize(variables);
        h.cells_.resize(variables * bins);
        return h;
    }

    /// Variables.
    std::size_t variables() const noexcept { return grids_.size(); }
    /// Max bins of a variable.
    std::size_t bins() const noexcept { return bins_; }
    /// Bins of variable `n` from that of its min to that of its max; 0 without values.
    std::size_t used(std::size_t n) const noexcept {
        const grid& g = grids_[n];
        return g.empty() ? 0 : static_cast<std::size_t>(g.last - g.first + 1);
    }
    /// Bin `i` of `used(n)`.
    const Bin& bin(std::size_t n, std::size_t i) const noexcept {
        return cells_[slot(n, grids_[n].first + static_cast<std::int64_t>(i))];
    }
    /// Where bin `i` begins; i = used(n): where the last one ends.
    double edge(std::size_t n, std::size_t i) const noexcept {
        const grid& g = grids_[n];
        return std::ldexp(static_cast<double>(g.first + static_cast<std::int64_t>(i)), g.exponent);
    }
    /// Width of the bins of variable n, a power of two.
    double width(std::size_t n) const noexcept { return std::ldexp(1.0, grids_[n].exponent); }
    /// Min and max; +infinity and -infinity without values.
    double min(std::size_t n) const noexcept { return grids_[n].min; }
    /// Max; -infinity without values.
    double max(std::size_t n) const noexcept { return grids_[n].max; }
    /// The ends of a bin: its edges, or the min or max if that lies inside.
    double begin(std::size_t n, std::size_t i) const noexcept { return std::max(edge(n, i), min(n)); }
    /// The upper end of a bin.
    double end(std::size_t n, std::size_t i) const noexcept { return std::min(edge(n, i + 1), max(n)); }
    /// The middle of these ends.
    double center(std::size_t n, std::size_t i) const noexcept { return (begin(n, i) + end(n, i)) / 2; }
    /// The bin of a value from min(n) to max(n).
    std::size_t find(std::size_t n, double value) const noexcept {
        return static_cast<std::size_t>(grids_[n].key(value) - grids_[n].first);
    }

    /// The bin of `value`, which is finite and at most 2^130 in magnitude, for the caller to add it to.
    Bin& at(std::size_t n, double value) {
        if (!(value >= grids_[n].min && value <= grids_[n].max))
            extend(n, value, value);
        return cells_[slot(n, grids_[n].key(value))];
    }

    /// Adds the bins of `other`, which has as many variables and bins.
    void merge(const streaming_histogram& other) {
        CRUMB_CHECK(other.variables() == variables() && other.bins_ == bins_,
                    "streaming_histogram::merge: shapes disagree");
        for (std::size_t n = 0; n < variables(); ++n) {
            const grid& theirs = other.grids_[n];
            if (theirs.empty())
                continue;
            extend(n, theirs.min, theirs.max);
            const int up = grids_[n].exponent - theirs.exponent;
            for (std::int64_t k = theirs.first; k <= theirs.last; ++k)
                cells_[slot(n, shifted(k, up))].add(other.cells_[slot(n, k)]);
        }
    }

    /// The number of values.
    double count(std::size_t n) const noexcept {
        double sum = 0;
        for (std::size_t i = 0; i < used(n); ++i)
            sum += bin(n, i).count;
        return sum;
    }
    /// The value that a share `p` of all values lies below, values spread evenly within a bin; NaN without
    /// values.
    double quantile(std::size_t n, double p) const noexcept {
        const double target = std::clamp(p, 0.0, 1.0) * count(n);
        double below = 0;
        for (std::size_t i = 0; i < used(n); ++i) {
            const double here = bin(n, i).count;
            if (here > 0 && below + here >= target)
                return begin(n, i) + (end(n, i) - begin(n, i)) * std::max(target - below, 0.0) / here;
            below += here;
        }
        return used(n) == 0 ? std::nan("") : max(n);
    }

  private:
    struct grid {
        double min = HUGE_VAL;
        double max = -HUGE_VAL;
        double scale = 0; ///< 2^-exponent
        int exponent = 0;
        std::int64_t first = 0; ///< keys of the bins of min and max
        std::int64_t last = -1;

        bool empty() const noexcept { return first > last; }
        /// floor(value / 2^exponent).
        std::int64_t key(double value) const noexcept {
            const double x = value * scale;
            const auto k = static_cast<std::int64_t>(x);
            return k - (x < static_cast<double>(k));
        }
    };

    /// Bin k lies in cell k modulo `bins_`, so that moving the window moves no bins.
    std::size_t slot(std::size_t n, std::int64_t key) const noexcept {
        return n * bins_ + (static_cast<std::size_t>(key) & (bins_ - 1));
    }
    static std::int64_t shifted(std::int64_t key, int up) noexcept { return key >> std::min(up, 63); }

    /// Makes room for values from `low` to `high`.
    void extend(std::size_t n, double low, double high) {
        constexpr int last_place = 23, smallest = -149;
        const grid old = grids_[n];
        grid& g = grids_[n];
        g.min = std::min(g.min, low);
        g.max = std::max(g.max, high);
        const double magnitude = std::max(std::fabs(g.min), std::fabs(g.max));
        g.exponent = std::max(old.empty() ? smallest : old.exponent,
                              magnitude > 0 ? std::ilogb(magnitude) - last_place : smallest);
        for (;; ++g.exponent) {
            g.scale = std::ldexp(1.0, -g.exponent);
            g.first = g.key(g.min);
            g.last = g.key(g.max);
            if (g.last - g.first < static_cast<std::int64_t>(bins_))
                break;
        }
        if (old.empty() || g.exponent == old.exponent)
            return;
        std::vector<Bin> merged(bins_);
        for (std::int64_t k = old.first; k <= old.last; ++k)
            merged[slot(0, shifted(k, g.exponent - old.exponent))].add(cells_[slot(n, k)]);
        std::copy(merged.begin(), merged.end(), cells_.begin() + static_cast<std::ptrdiff_t>(n * bins_));
    }

    std::size_t bins_ = 0;
    std::vector<grid> grids_;
    std::vector<Bin> cells_;
};

} // namespace crumb::inline CRUMB_ABI
