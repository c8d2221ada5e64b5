// Precision at run time: a schedule, step by step.
#pragma once

#include <crumb/op/schedule/precision_schedule.hpp>

namespace crumb::inline CRUMB_ABI {

/// The bits of every decode step. A plain value: each sequence has its own, copies are independent.
class precision_scheduler {
  public:
    /// Follows a schedule.
    explicit precision_scheduler(const precision_schedule& schedule = {}) noexcept : schedule_(schedule) {}

    /// What it follows.
    const precision_schedule& schedule() const noexcept { return schedule_; }

    /// A new prompt under the same schedule.
    void begin() noexcept {
        ended_ = false;
        steps_ = bits_ = 0;
    }
    /// A new prompt under a schedule of its own.
    void begin(const precision_schedule& schedule) noexcept {
        schedule_ = schedule;
        begin();
    }

    /// Bits of the prompt's pass.
    int prefill() const noexcept { return schedule_.prefill(); }
    /// Bits of decode step `step`, to be asked once per step.
    int next(std::size_t step) noexcept {
        CRUMB_CHECK(!ended_, "precision_scheduler::next: the sequence has ended");
        const int bits = schedule_.next(step);
        ++steps_;
        bits_ += unsigned(bits);
        return bits;
    }
    /// The sequence is over: its token was EOS, or there is no more room.
    void end() noexcept { ended_ = true; }
    /// Whether `end` was called since `begin`.
    bool ended() const noexcept { return ended_; }

    /// Decode steps since `begin`, and their mean bits; 0 of none.
    std::size_t steps() const noexcept { return steps_; }
    /// Mean precision of the steps so far.
    double average_bits() const noexcept { return steps_ == 0 ? 0.0 : double(bits_) / double(steps_); }

  private:
    precision_schedule schedule_;
    std::size_t steps_ = 0, bits_ = 0;
    bool ended_ = false;
};

} // namespace crumb::inline CRUMB_ABI
