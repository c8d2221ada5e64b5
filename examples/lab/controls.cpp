#include "lab/controls.hpp"

#include <cmath>

namespace lm::lab {

using crumb::errc;
using crumb::precision_schedule;
using crumb::result;
using crumb::status;

namespace {

/// 1 - the top probability.
double uncertainty(std::span<const float> logits) {
    const float most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits)
        sum += std::exp(double{x} - double{most});
    return 1 - 1 / sum;
}

} // namespace

result<step_precision> alternating(const crumb::schedule_levels& l) {
    if (const auto s = precision_schedule::high_then_low(l, l.length); !s)
        return s.error();
    return step_precision(
        [l](std::size_t step, std::span<const float>) { return step % 2 == 0 ? l.high : l.low; });
}

result<step_precision> low_within(const crumb::schedule_levels& l, const crumb::range& steps) {
    if (const auto s = precision_schedule::high_then_low(l, steps.begin); !s)
        return s.error();
    const std::size_t first = steps.begin, end = steps.within(l.length).end;
    if (end < first)
        return status::error(errc::invalid_argument, "schedule: steps %zu to %zu are out of order", first,
                             end);
    return step_precision([l, first, end](std::size_t step, std::span<const float>) {
        return step >= first && step < end ? l.low : l.high;
    });
}

result<certainty_scheduler> certainty_scheduler::make(const precision_schedule& schedule,
                                                      const certainty_switch& sure,
                                                      const crumb::precision_range& stored) {
    if (!stored.has(sure.bits))
        return status::error(errc::invalid_argument,
                             "scheduler: %d bits are requested, the weights have %d to %d", sure.bits,
                             stored.seed, stored.parent);
    if (!std::isfinite(sure.raise_at) || !(sure.lower_at >= 0) || !(sure.lower_at <= sure.raise_at))
        return status::error(errc::invalid_argument, "scheduler: thresholds are %g and %g", sure.lower_at,
                             sure.raise_at);
    return certainty_scheduler(schedule, sure);
}

step_precision certainty_scheduler::steps() const {
    return [s = *this](std::size_t step, std::span<const float> logits) mutable {
        return s.next(step, uncertainty(logits));
    };
}

} // namespace lm::lab
