// Precision schedules: the bits of nested weights for every step of a generation.
#pragma once

#include <crumb/core/view.hpp>
#include <crumb/format/nested_levels.hpp>

#include <array>
#include <span>

namespace crumb::inline CRUMB_ABI {

/// Precisions of nested weights: seed .. parent bits.
struct precision_range {
    int seed = min_nested_bits;
    int parent = max_nested_bits;

    /// Whether there are weights of so many bits.
    constexpr bool has(int bits) const noexcept { return bits >= seed && bits <= parent; }
    friend constexpr bool operator==(const precision_range&, const precision_range&) = default;
};

/// `bits` from step `first` on.
struct precision_phase {
    std::size_t first = 0;
    int bits = 0;
    friend constexpr bool operator==(const precision_phase&, const precision_phase&) = default;
};

/// The common part of schedules of two precisions.
struct schedule_levels {
    precision_range stored = {};   ///< of the weights
    int prefill = max_nested_bits; ///< bits of the prompt's pass
    int high = max_nested_bits;    ///< bits of the first decode steps
    int low = min_nested_bits;     ///< at most `high`
    std::size_t length = 0;        ///< max decode steps, the paper's OL
};

/// Refuses a grid of fewer than two points, or of two that would be the same step.
inline status check_grid(std::size_t points, std::size_t length) noexcept {
    if (points < 2 || points - 1 > length)
        return status::error(errc::invalid_argument,
                             "schedule: a grid of %zu points over %zu steps; 2 to steps + 1 are possible",
                             points, length);
    return {};
}

/// Point i of the paper's grid {0, OL / (N - 1), 2 OL / (N - 1), ..., OL} (4.3), rounded down to a step.
constexpr std::size_t grid_step(std::size_t i, std::size_t points, std::size_t length) noexcept {
    const std::size_t gaps = points > 2 ? points - 1 : 1;
    return length / gaps * i + length % gaps * i / gaps;
}

/// A precision for the prompt and one for every decode step (PMPD, 4.1 and 4.2). Step i is the i-th pass of
/// the model after the prompt's, counted from 0. A value without references: copy it freely, read it from any
/// thread. Schedules that give every step the same precision compare equal, however they were made.
class precision_schedule {
  public:
    /// Max bits everywhere.
    precision_schedule() = default;

    /// Progressive: phase i serves the steps from phases[i].first to phases[i + 1].first - 1, the last one
    /// all that follow. The first begins with step 0; a phase may be empty, and one that begins at `length`
    /// is never reached. Refuses precisions that are not stored, no phases, steps that decrease or exceed
    /// `length`, bits that increase. The prompt may have any stored precision.
    static result<precision_schedule> make(const precision_range& stored, int prefill,
                                           std::span<const precision_phase> phases,
                                           std::size_t length) noexcept {
        auto s = begin(stored, prefill, length);
        if (!s)
            return s;
        if (phases.empty() || phases[0].first != 0)
            return status::error(errc::invalid_argument, "schedule: %s",
                                 phases.empty() ? "there are no phases"
                                                : "the first phase has to begin with step 0");
        for (std::size_t i = 0; i < phases.size(); ++i) {
            const precision_phase& p = phases[i];
            if (const status e = check_bits(stored, p.bits); !e)
                return e;
            if (p.first > length)
                return status::error(errc::invalid_argument,
                                     "schedule: %d bits begin with step %zu, past the %zu steps", p.bits,
                                     p.first, length);
            if (i != 0 && p.first < phases[i - 1].first)
                return status::error(errc::invalid_argument,
                                     "schedule: switch points are out of order: %zu after %zu", p.first,
                                     phases[i - 1].first);
            if (i != 0 && p.bits > phases[i - 1].bits)
                return status::error(errc::invalid_argument,
                                     "schedule: precision rises from %d to %d bits at step %zu",
                                     phases[i - 1].bits, p.bits, p.first);
            s->append(p);
        }
        return s;
    }

    /// `bits` for every step.
    static result<precision_schedule> constant(const precision_range& stored, int prefill, int bits,
                                               std::size_t length) noexcept {
        return make(stored, prefill, std::array{precision_phase{0, bits}}, length);
    }
    /// High precision before `step`, low from there on.
    static result<precision_schedule> high_then_low(const schedule_levels& l, std::size_t step) noexcept {
        return make(l.stored, l.prefill, std::array{precision_phase{0, l.high}, precision_phase{step, l.low}},
                    l.length);
    }

    /// Bits of the prompt's pass.
    int prefill() const noexcept { return prefill_; }
    /// Bits of decode step `step`; beyond `length`, those of the last phase.
    int next(std::size_t step) const noexcept {
        std::size_t i = count_ - 1;
        while (phases_[i].first > step)
            --i;
        return phases_[i].bits;
    }
    /// Max decode steps of the schedule.
    std::size_t length() const noexcept { return length_; }
    /// The phases that have steps, neighbours of different precision.
    std::span<const precision_phase> phases() const noexcept { return {phases_.data(), count_}; }

    /// Sum of the bits of the first `steps` decode steps.
    std::size_t total_bits(std::size_t steps) const noexcept {
        std::size_t sum = 0, end = steps;
        for (std::size_t i = count_; i-- != 0;)
            if (phases_[i].first < end) {
                sum += (end - phases_[i].first) * unsigned(phases_[i].bits);
                end = phases_[i].first;
            }
        return sum;
    }
    /// Mean bits of the first `steps` decode steps; 0 of none.
    double average_bits(std::size_t steps) const noexcept {
        return steps == 0 ? 0.0 : double(total_bits(steps)) / double(steps);
    }

    friend constexpr bool operator==(const precision_schedule&, const precision_schedule&) = default;

  private:
    /// One phase per precision: bits fall.
    static constexpr std::size_t max_phases = max_nested_bits - min_nested_bits + 1;

    static status check_bits(const precision_range& stored, int bits) noexcept {
        if (!stored.has(bits))
            return status::error(errc::invalid_argument,
                                 "schedule: %d bits are requested, the weights have %d to %d", bits,
                                 stored.seed, stored.parent);
        return {};
    }
    static result<precision_schedule> begin(const precision_range& stored, int prefill,
                                            std::size_t length) noexcept {
        if (stored.seed < min_nested_bits || stored.parent > max_nested_bits || stored.seed > stored.parent)
            return status::error(errc::invalid_argument,
                                 "schedule: stored precisions are %d to %d bits; %d to %d are possible",
                                 stored.seed, stored.parent, min_nested_bits, max_nested_bits);
        if (const status e = check_bits(stored, prefill); !e)
            return e;
        if (length == 0)
            return status::error(errc::invalid_argument, "schedule: there are no steps");
        precision_schedule s;
        s.prefill_ = prefill;
        s.length_ = length;
        s.count_ = 0;
        s.phases_ = {};
        return s;
    }
    /// Skips empty and equal phases, so that equal schedules have equal members.
    void append(const precision_phase& p) noexcept {
        if (p.first == length_)
            return;
        if (count_ != 0 && phases_[count_ - 1].first == p.first)
            phases_[--count_] = {};
        if (count_ == 0 || phases_[count_ - 1].bits != p.bits)
            phases_[count_++] = p;
    }

    int prefill_ = max_nested_bits;
    std::size_t length_ = 1;
    std::size_t count_ = 1;
    std::array<precision_phase, max_phases> phases_ = {precision_phase{0, max_nested_bits}};
};

} // namespace crumb::inline CRUMB_ABI
