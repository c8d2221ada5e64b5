// How long the kinds of work of a long task take, and how long what is left of them will.
#pragma once

#include "model/progress.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string_view>

namespace lm {

/// The kinds of work of quantizing a model.
enum class work_kind { text, importance, codebooks, formats, vocabulary, streams, sums, factors, weights };
inline constexpr std::string_view work_names[] = {
    "calibration text",      "mean squares of inputs", "codebooks",       "choice of formats", "vocabulary",
    "passes over the model", "sums over inputs",       "factors of sums", "scales and codes"};
inline constexpr std::size_t works = std::size(work_names);

/// What there is to do of each kind, in seconds of some machine: only ratios count.
using work_costs = std::array<double, works>;

/// Measures a task against its plan, in one thread: the time between two laps belongs to the kind of work of
/// the second one. What is left of a kind takes as long as what was done of it; of kinds that have not begun,
/// as all others suggest.
class work_meter {
  public:
    /// `show` is called behind every lap.
    explicit work_meter(std::function<void(const work_meter&)> show = {}) : show_(std::move(show)) {}

    /// What there is to do altogether, at least what has been done. Time that has passed since the meter was
    /// made, or since the last lap, belongs to what comes next.
    void plan(const work_costs& costs) noexcept;
    /// So much of the plan has been done.
    void lap(work_kind kind, double cost);
    /// The same for a kind of work as a whole, of which there are `all` parts.
    progress_function parts_of(work_kind kind);
    /// Of a kind of work nothing is left, whatever was planned.
    void finish(work_kind kind);

    work_kind now() const noexcept { return now_; }
    /// Seconds that a kind of work has taken, and all.
    double seconds(work_kind kind) const noexcept { return seconds_[static_cast<std::size_t>(kind)]; }
    double seconds() const noexcept;
    /// Seconds that the rest of the plan will take; infinite before anything is done.
    double seconds_left() const noexcept;
    /// The share of the whole time that has passed, 0 to 1.
    double share_done() const noexcept;

  private:
    using clock = std::chrono::steady_clock;
    std::function<void(const work_meter&)> show_;
    clock::time_point last_ = clock::now();
    work_kind now_ = work_kind::text;
    work_costs planned_ = {}, done_ = {}, seconds_ = {};
};

} // namespace lm
