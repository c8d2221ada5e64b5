// How far a long task is, and what it has taken.
#pragma once

#include "cli/report.hpp"
#include "train/work_meter.hpp"

#include <chrono>

namespace lm {

/// A line on stderr that says what is being done, how much of the time has passed and how much is left;
/// silent when stderr is not a terminal. `clear` ends it.
class work_line {
  public:
    work_line() : shown_(isatty(STDERR_FILENO) != 0) {}
    ~work_line() { clear(); }
    work_line(const work_line&) = delete;
    work_line& operator=(const work_line&) = delete;

    void operator()(const work_meter& meter);
    void clear();

  private:
    using clock = std::chrono::steady_clock;
    bool shown_, dirty_ = false;
    clock::time_point last_ = {};
};

/// Seconds and shares of the kinds of work that have taken time, a line each, and of `other`, which the meter
/// has not seen.
void print_work(const work_meter& meter, double other);
/// The seconds of the same as an object, by `work_names` and `other`.
json_object work_object(const work_meter& meter, double other);

} // namespace lm
