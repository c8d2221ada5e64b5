#include "train/work_meter.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace lm {

void work_meter::plan(const work_costs& costs) noexcept {
    for (std::size_t i = 0; i < works; ++i)
        planned_[i] = std::max(costs[i], done_[i]);
}

void work_meter::lap(work_kind kind, double cost) {
    const auto i = static_cast<std::size_t>(kind);
    const auto to = clock::now();
    seconds_[i] += std::chrono::duration<double>(to - last_).count();
    last_ = to;
    now_ = kind;
    done_[i] += cost;
    planned_[i] = std::max(planned_[i], done_[i]);
    if (show_)
        show_(*this);
}

progress_function work_meter::parts_of(work_kind kind) {
    return [this, kind](std::size_t done, std::size_t all) {
        const auto i = static_cast<std::size_t>(kind);
        const double share = all == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(all);
        lap(kind, std::max(0.0, planned_[i] * share - done_[i]));
    };
}

void work_meter::finish(work_kind kind) {
    planned_[static_cast<std::size_t>(kind)] = done_[static_cast<std::size_t>(kind)];
    lap(kind, 0);
}

double work_meter::seconds() const noexcept { return std::accumulate(seconds_.begin(), seconds_.end(), 0.0); }

double work_meter::seconds_left() const noexcept {
    double took = 0, done = 0;
    for (std::size_t i = 0; i < works; ++i)
        if (done_[i] > 0) {
            took += seconds_[i];
            done += done_[i];
        }
    if (done == 0)
        return std::numeric_limits<double>::infinity();
    double left = 0;
    for (std::size_t i = 0; i < works; ++i) {
        // The first parts of a kind of work say little of the rest.
        const bool is_known = done_[i] >= 0.02 * planned_[i] && done_[i] > 0;
        left += (planned_[i] - done_[i]) * (is_known ? seconds_[i] / done_[i] : took / done);
    }
    return left;
}

double work_meter::share_done() const noexcept {
    const double passed = seconds();
    return passed > 0 ? passed / (passed + seconds_left()) : 0;
}

} // namespace lm
