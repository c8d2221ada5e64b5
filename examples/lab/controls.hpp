// Controls for schedules of precision: what a falling precision has to be better than.
#pragma once

#include "model/precision.hpp"

#include <crumb/offline/common/random.hpp>

#include <algorithm>

namespace lm::lab {

/// High precision at even steps, low at odd ones. Refuses levels that are not stored or out of order.
crumb::result<step_precision> alternating(const crumb::schedule_levels& l);

/// PMPD, figure 3: low precision within `steps`, high before and after. Refuses the same, and steps past the
/// length or out of order.
crumb::result<step_precision> low_within(const crumb::schedule_levels& l, const crumb::range& steps);

/// Draws evenly from the grid of switch points; the same sequence of schedules for the same seed.
class random_schedules {
  public:
    static crumb::result<random_schedules> make(const crumb::schedule_levels& levels, std::size_t points,
                                                std::uint64_t seed) noexcept {
        if (const crumb::status s = crumb::check_grid(points, levels.length); !s)
            return s;
        if (const auto s = crumb::precision_schedule::high_then_low(levels, 0); !s)
            return s.error();
        return random_schedules(levels, points, seed);
    }

    /// The schedule of the next prompt.
    crumb::precision_schedule next() noexcept {
        const std::size_t step = crumb::grid_step(random_.below(points_), points_, levels_.length);
        return crumb::precision_schedule::high_then_low(levels_, step).value();
    }

  private:
    random_schedules(const crumb::schedule_levels& levels, std::size_t points, std::uint64_t seed) noexcept
        : levels_(levels), points_(points), random_(seed) {}

    crumb::schedule_levels levels_;
    std::size_t points_;
    crumb::splitmix64 random_;
};

/// Fewer bits while the model is sure of its tokens, with hysteresis.
struct certainty_switch {
    int bits = 0;        ///< while the model is sure
    double lower_at = 0; ///< an unsure model becomes sure at this uncertainty or less
    double raise_at = 0; ///< a sure one unsure above this; at least `lower_at`
};

/// Follows a schedule, and goes below it while the model is sure. Begins unsure.
class certainty_scheduler {
  public:
    /// Refuses bits that are not stored, and thresholds that are not finite, negative or out of order.
    static crumb::result<certainty_scheduler> make(const crumb::precision_schedule& schedule,
                                                   const certainty_switch& sure,
                                                   const crumb::precision_range& stored = {});

    /// Bits of decode step `step`, to be asked once per step. `uncertainty`: 0 for a certain token; a NaN is
    /// not sure.
    int next(std::size_t step, double uncertainty) noexcept {
        is_sure_ = uncertainty <= (is_sure_ ? sure_.raise_at : sure_.lower_at);
        const int bits = schedule_.next(step);
        return is_sure_ ? std::min(bits, sure_.bits) : bits;
    }
    /// The same by the uncertainty 1 - the top probability of logits.
    step_precision steps() const;

  private:
    certainty_scheduler(const crumb::precision_schedule& schedule, const certainty_switch& sure) noexcept
        : schedule_(schedule), sure_(sure) {}

    crumb::precision_schedule schedule_;
    certainty_switch sure_;
    bool is_sure_ = false;
};

} // namespace lm::lab
