// The min bits that hold a quality: by phase, and by decode step.
#pragma once

#include <crumb/op/schedule/precision_schedule.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// The quality to be held: q >= reference - epsilon.
struct quality_target {
    double reference = 0;
    double epsilon = 0;
    /// The lowest quality that is accepted.
    constexpr double min() const noexcept { return reference - epsilon; }
};

/// Refuses targets that are not finite, and a negative epsilon.
inline status check_target(const quality_target& t) noexcept {
    if (!std::isfinite(t.reference) || !std::isfinite(t.epsilon) || t.epsilon < 0)
        return status::error(errc::invalid_argument, "quality: reference %g, epsilon %g", t.reference,
                             t.epsilon);
    return {};
}

/// Precisions of the two phases, and the effort of finding them.
struct phase_allocation {
    bool held = false; ///< whether a pair holds the target; if none does, the pair of max bits
    int prefill = 0;
    int decode = 0;     ///< at most `prefill`
    double quality = 0; ///< of that pair
    std::size_t evaluations = 0;
    std::size_t space = 0; ///< pairs in all
};

/// Measures pairs of (prefill, decode) bits on a calibration set; may fail.
using phase_quality = std::function<result<double>(int prefill, int decode)>;

/// The smallest pair decode <= prefill that holds the target (PMPD, 4.1): min decode bits, which every token
/// reads, then min prefill bits. If `monotone`, more bits in either phase are
/// assumed to be no worse, and pairs below one that fails are not measured; else all are, in order, until one
/// holds. Refuses precisions that are not possible, bad targets, a quality that is NaN or null.
inline result<phase_allocation> allocate_phases(const precision_range& stored, const quality_target& target,
                                                const phase_quality& quality, bool monotone = true) {
    if (const auto s = precision_schedule::constant(stored, stored.parent, stored.parent, 1); !s)
        return s.error();
    if (const status s = check_target(target); !s)
        return s;
    if (!quality)
        return status::error(errc::invalid_argument, "phases: there is no quality to measure");
    const auto levels = static_cast<std::size_t>(stored.parent - stored.seed + 1);
    phase_allocation out;
    out.space = levels * (levels + 1) / 2;

    status state;
    std::array<double, max_nested_bits + 1> measured; // by bits of the prompt
    const auto holds = [&](int prefill, int decode) {
        double& known = measured[static_cast<std::size_t>(prefill)];
        if (std::isnan(known) && state) {
            const auto q = quality(prefill, decode);
            ++out.evaluations;
            if (!q)
                state = q.error();
            else if (std::isnan(*q))
                state = status::error(errc::not_finite, "quality of %d and %d bits is NaN", prefill, decode);
            else
                known = *q;
        }
        out.prefill = prefill;
        out.decode = decode;
        out.quality = known;
        return out.held = known >= target.min();
    };
    for (int decode = stored.seed; decode <= stored.parent && state && !out.held; ++decode) {
        measured.fill(std::numeric_limits<double>::quiet_NaN());
        // What fails with the best prefill fails with any.
        if (monotone && !holds(stored.parent, decode))
            continue;
        for (int prefill = decode; prefill <= stored.parent && state; ++prefill)
            if (holds(prefill, decode))
                break;
    }
    if (!state)
        return state;
    return out;
}

/// The schedules that a solver chooses from.
struct schedule_space {
    precision_range stored = {};
    /// Precisions to use, in decreasing order; empty: all that are stored.
    std::vector<int> precisions = {};
    int prefill = max_nested_bits;
    std::size_t length = 0; ///< max decode steps, the paper's OL
    std::size_t points = 0; ///< of the grid, the paper's N
};

/// The result of a solver.
struct solved_schedule {
    bool held = false; ///< whether a schedule holds the target; if none does, max bits everywhere
    precision_schedule schedule;
    double quality = 0;
    double average_bits = 0;     ///< over all steps
    std::size_t evaluations = 0; ///< of this search, of `space`
    std::size_t space = 0;       ///< schedules in all
};

/// Measures a schedule, as the mean over a validation set; may fail.
using schedule_quality = std::function<result<double>(const precision_schedule&)>;

/// The static scheduler's solver (PMPD, 4.2 and 4.3): the switch points st(p) of the grid {0, OL / (N - 1),
/// ..., OL}, p > q => st(p) <= st(q), of the min average bits whose quality holds the target. Remembers all
/// qualities: no schedule is measured twice, even for several targets.
///
/// If `monotone`, more bits at any step are assumed to be no worse. Then a schedule that fails rules out all
/// with at most its bits at every step, one that holds rules out all with as many bits or more, and the next
/// one measured rules out most in the worse case; for two precisions that is bisection. Otherwise schedules
/// are measured in the order of their bits until one holds.
class schedule_solver {
  public:
    /// Refuses precisions that are not stored or do not fall, grids that `check_grid` refuses, more
    /// than 2^19 points or, for three precisions, 2^10, and no quality.
    static result<schedule_solver> make(schedule_space space, schedule_quality quality) {
        if (!quality)
            return status::error(errc::invalid_argument, "solver: there is no quality to measure");
        if (const status s = check_grid(space.points, space.length); !s)
            return s;
        if (const auto s =
                precision_schedule::constant(space.stored, space.prefill, space.stored.parent, space.length);
            !s)
            return s.error();
        if (space.precisions.empty())
            for (int p = space.stored.parent; p >= space.stored.seed; --p)
                space.precisions.push_back(p);
        for (std::size_t i = 0; i < space.precisions.size(); ++i)
            if (!space.stored.has(space.precisions[i]) ||
                (i != 0 && space.precisions[i] >= space.precisions[i - 1]))
                return status::error(errc::invalid_argument,
                                     "solver: %d bits; precisions have to be stored, %d to %d, and to fall",
                                     space.precisions[i], space.stored.seed, space.stored.parent);
        const std::size_t max = space.precisions.size() > 2 ? 1 << 10 : 1 << 19;
        if (space.points > max)
            return status::error(errc::invalid_argument, "solver: %zu points, at most %zu are possible",
                                 space.points, max);
        return schedule_solver(std::move(space), std::move(quality));
    }

    /// Schedules in all.
    std::size_t space() const noexcept { return order_.size(); }
    /// Schedules measured, for all targets together.
    std::size_t evaluations() const noexcept { return evaluations_; }

    /// The schedule of min bits that holds the target. Refuses bad targets, a quality that is NaN, and
    /// returns the error of a quality that fails.
    result<solved_schedule> solve(const quality_target& target, bool monotone = true) {
        if (const status s = check_target(target); !s)
            return s;
        const std::size_t before = evaluations_;
        const auto best = monotone ? prune(target) : exhaust(target);
        if (!best)
            return best.error();
        solved_schedule out;
        out.held = *best != nowhere;
        const std::size_t cell = out.held ? *best : cell_of(order_.back());
        if (const auto q = measure(cell); !q)
            return q.error();
        out.schedule = schedule(cell);
        out.quality = quality_[cell];
        out.average_bits = out.schedule.average_bits(space_.length);
        out.evaluations = evaluations_ - before;
        out.space = space();
        return out;
    }

  private:
    static_assert(max_nested_bits - min_nested_bits <= 2, "a schedule has at most two switch points");
    static constexpr std::size_t nowhere = std::numeric_limits<std::size_t>::max();

    /// A schedule: grid points at which the second and the third precision begin. With two precisions there
    /// is only `last`, with one neither.
    struct candidate {
        std::size_t bits = 0; ///< of all steps
        std::size_t first = 0, last = 0;
    };

    schedule_solver(schedule_space space, schedule_quality measured)
        : space_(std::move(space)), measured_(std::move(measured)) {
        rows_ = space_.precisions.size() > 2 ? space_.points : 1;
        columns_ = space_.precisions.size() > 1 ? space_.points : 1;
        quality_.assign(rows_ * columns_, std::numeric_limits<double>::quiet_NaN());
        for (std::size_t a = 0; a < rows_; ++a)
            for (std::size_t b = a; b < columns_; ++b)
                order_.push_back({schedule(a * columns_ + b).total_bits(space_.length), a, b});
        std::sort(order_.begin(), order_.end(), [](const candidate& x, const candidate& y) {
            return x.bits != y.bits ? x.bits < y.bits : x.first < y.first;
        });
    }

    std::size_t cell_of(const candidate& c) const noexcept { return c.first * columns_ + c.last; }

    precision_schedule schedule(std::size_t cell) const {
        const std::size_t points[] = {cell / columns_, cell % columns_};
        const std::size_t count = space_.precisions.size();
        std::vector<precision_phase> phases = {{0, space_.precisions[0]}};
        for (std::size_t i = 1; i < count; ++i)
            phases.push_back(
                {grid_step(points[i + 2 - count], space_.points, space_.length), space_.precisions[i]});
        return precision_schedule::make(space_.stored, space_.prefill, phases, space_.length).value();
    }

    result<double> measure(std::size_t cell) {
        if (!std::isnan(quality_[cell]))
            return quality_[cell];
        ++evaluations_;
        const auto q = measured_(schedule(cell));
        if (q && std::isnan(*q))
            return status::error(errc::not_finite, "solver: the quality of a schedule of %g bits is NaN",
                                 schedule(cell).average_bits(space_.length));
        if (q)
            quality_[cell] = *q;
        return q;
    }

    result<std::size_t> exhaust(const quality_target& target) {
        for (const candidate& c : order_) {
            const auto q = measure(cell_of(c));
            if (!q)
                return q.error();
            if (*q >= target.min())
                return cell_of(c);
        }
        return nowhere;
    }

    result<std::size_t> prune(const quality_target& target) {
        // Candidates that are neither ruled out nor measured, by bits.
        std::vector<candidate> open = order_;
        std::size_t best = nowhere;
        const auto apply = [&](const candidate& c) {
            if (quality_[cell_of(c)] >= target.min()) {
                best = cell_of(c);
                open.erase(std::partition_point(open.begin(), open.end(),
                                                [&](const candidate& x) { return x.bits < c.bits; }),
                           open.end());
            } else {
                std::erase_if(open,
                              [&](const candidate& x) { return x.first <= c.first && x.last <= c.last; });
            }
        };
        // Earlier measurements first, by decreasing bits.
        for (std::size_t i = order_.size(); i-- != 0;)
            if (const candidate c = order_[i]; !std::isnan(quality_[cell_of(c)]))
                apply(c);
        while (!open.empty()) {
            const candidate c = most_telling(open);
            if (const auto q = measure(cell_of(c)); !q)
                return q.error();
            apply(c);
        }
        return best;
    }

    /// The candidate that rules out most whether it holds or fails.
    candidate most_telling(const std::vector<candidate>& open) const {
        // below[a][b]: open candidates of at most these points, by sums over rectangles.
        std::vector<std::size_t> below((rows_ + 1) * (columns_ + 1), 0);
        const auto at = [&](std::size_t a, std::size_t b) -> std::size_t& {
            return below[a * (columns_ + 1) + b];
        };
        for (const candidate& c : open)
            at(c.first + 1, c.last + 1) = 1;
        for (std::size_t a = 1; a <= rows_; ++a)
            for (std::size_t b = 1; b <= columns_; ++b)
                at(a, b) += at(a - 1, b) + at(a, b - 1) - at(a - 1, b - 1);
        std::size_t max_ruled_out = 0, chosen = 0, first = 0;
        for (std::size_t i = 0; i < open.size(); ++i) {
            if (open[i].bits != open[first].bits)
                first = i;
            const std::size_t ruled_out =
                std::min(open.size() - first, at(open[i].first + 1, open[i].last + 1));
            if (ruled_out > max_ruled_out) {
                max_ruled_out = ruled_out;
                chosen = i;
            }
        }
        return open[chosen];
    }

    schedule_space space_;
    schedule_quality measured_;
    std::size_t rows_ = 1, columns_ = 1;
    std::vector<double> quality_;  ///< by cell, first * columns + last; NaN: not measured
    std::vector<candidate> order_; ///< by bits
    std::size_t evaluations_ = 0;
};

} // namespace crumb::inline CRUMB_ABI
