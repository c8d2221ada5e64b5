// The scheduler of a sequence: follows a schedule, with fewer bits while the model is certain.
#pragma once

#include <crumb/op/schedule/precision_schedule.hpp>

#include <cmath>
#include <limits>

namespace crumb::inline CRUMB_ABI {

/// A control: fewer bits while the model is sure of its tokens, with hysteresis. Uncertainty is what the
/// caller says, 0 for a certain token: the entropy of the token's distribution, or 1 - its top probability.
struct certainty_switch {
    int bits = 0;        ///< while the model is sure; 0: not used
    double lower_at = 0; ///< an unsure model becomes sure at this uncertainty or less
    double raise_at = 0; ///< a sure one unsure above this; at least `lower_at`
};

/// The bits of every decode step. A value without references: each sequence has its own, copies are
/// independent.
class precision_scheduler {
  public:
    /// Follows a schedule.
    explicit precision_scheduler(const precision_schedule& schedule = {}) noexcept : schedule_(schedule) {}

    /// Follows a schedule, and goes below it while the model is sure. Refuses bits that are not stored, and
    /// thresholds that are not finite, negative or out of order.
    static result<precision_scheduler> make(const precision_schedule& schedule, const certainty_switch& sure,
                                            const precision_range& stored = {}) noexcept {
        if (!stored.has(sure.bits))
            return status::error(errc::invalid_argument,
                                 "scheduler: %d bits are requested, the weights have %d to %d", sure.bits,
                                 stored.seed, stored.parent);
        if (!std::isfinite(sure.raise_at) || !(sure.lower_at >= 0) || !(sure.lower_at <= sure.raise_at))
            return status::error(errc::invalid_argument, "scheduler: thresholds are %g and %g", sure.lower_at,
                                 sure.raise_at);
        precision_scheduler s(schedule);
        s.sure_ = sure;
        return s;
    }

    const precision_schedule& schedule() const noexcept { return schedule_; }

    /// A new prompt under the same schedule.
    void begin() noexcept {
        is_sure_ = ended_ = false;
        steps_ = bits_ = 0;
    }
    /// A new prompt under a schedule of its own.
    void begin(const precision_schedule& schedule) noexcept {
        schedule_ = schedule;
        begin();
    }

    /// Bits of the prompt's pass.
    int prefill() const noexcept { return schedule_.prefill(); }
    /// Bits of decode step `step`, to be called once per step. `uncertainty`: of the distribution that the
    /// step's token was taken from; a NaN is not sure.
    int next(std::size_t step, double uncertainty = std::numeric_limits<double>::quiet_NaN()) noexcept {
        CRUMB_CHECK(!ended_, "precision_scheduler::next: the sequence has ended");
        is_sure_ = sure_.bits != 0 && uncertainty <= (is_sure_ ? sure_.raise_at : sure_.lower_at);
        int bits = schedule_.next(step);
        if (is_sure_ && sure_.bits < bits)
            bits = sure_.bits;
        ++steps_;
        bits_ += unsigned(bits);
        return bits;
    }
    /// The sequence is over: its token was EOS, or there is no more room.
    void end() noexcept { ended_ = true; }
    bool ended() const noexcept { return ended_; }

    /// Decode steps since `begin`, and their mean bits; 0 of none.
    std::size_t steps() const noexcept { return steps_; }
    double average_bits() const noexcept { return steps_ == 0 ? 0.0 : double(bits_) / double(steps_); }

  private:
    precision_schedule schedule_;
    certainty_switch sure_;
    std::size_t steps_ = 0, bits_ = 0;
    bool is_sure_ = false, ended_ = false;
};

} // namespace crumb::inline CRUMB_ABI
