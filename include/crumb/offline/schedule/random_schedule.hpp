// A baseline of schedulers: a random switch point for every prompt.
#pragma once

#include <crumb/offline/common/random.hpp>
#include <crumb/op/schedule/precision_schedule.hpp>

namespace crumb::inline CRUMB_ABI {

/// Draws evenly from the grid of switch points; the same sequence of schedules for the same seed.
class random_schedules {
  public:
    static result<random_schedules> make(const schedule_levels& levels, std::size_t points,
                                         std::uint64_t seed) noexcept {
        if (const status s = check_grid(points, levels.length); !s)
            return s;
        if (const auto s = precision_schedule::high_then_low(levels, 0); !s)
            return s.error();
        return random_schedules(levels, points, seed);
    }

    /// The schedule of the next prompt.
    precision_schedule next() noexcept {
        const std::size_t step = grid_step(random_.below(points_), points_, levels_.length);
        return precision_schedule::high_then_low(levels_, step).value();
    }

  private:
    random_schedules(const schedule_levels& levels, std::size_t points, std::uint64_t seed) noexcept
        : levels_(levels), points_(points), random_(seed) {}

    schedule_levels levels_;
    std::size_t points_;
    splitmix64 random_;
};

} // namespace crumb::inline CRUMB_ABI
