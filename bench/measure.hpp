// Timing by medians, and the rates of this run that later rows are compared with.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <time.h>

namespace crumb::bench {

inline double median(std::vector<double>& samples) {
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    return *middle;
}

/// CPU time of this thread. On an idle machine that is the time on the clock; on a shared one it leaves out
/// the time in which the system runs somebody else instead.
inline double thread_seconds() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Seconds of one call.
template <class F>
double seconds_of(F&& f) {
    const double start = thread_seconds();
    f();
    return thread_seconds() - start;
}

/// Seconds of one call on the clock, for work of several threads.
template <class F>
double elapsed_seconds_of(F&& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Runs `f` as often as the framework wants, `batch` calls per sample, and makes the median what the row
/// reports: on a shared machine the mean says more about the neighbours. `window(seconds per call)` is called
/// with the median of every few milliseconds of samples, to measure beside them what they are compared with.
/// Returns the median in seconds per call.
template <class F, class W>
double sample(benchmark::State& state, benchmark::IterationCount batch, F&& f, W&& window) {
    std::vector<double> samples, recent;
    double since = 0;
    f();
    while (state.KeepRunningBatch(batch)) {
        const double seconds = seconds_of([&] {
            for (benchmark::IterationCount i = 0; i < batch; ++i)
                f();
        });
        samples.push_back(seconds);
        recent.push_back(seconds);
        since += seconds;
        if (since > 5e-3) {
            window(median(recent) / static_cast<double>(batch));
            recent.clear();
            since = 0;
        }
    }
    if (samples.empty())
        return 0;
    if (!recent.empty())
        window(median(recent) / static_cast<double>(batch));
    const auto calls = static_cast<double>(batch) * static_cast<double>(samples.size());
    const double seconds = median(samples) / static_cast<double>(batch);
    state.SetIterationTime(seconds * calls);
    return seconds;
}
template <class F>
double sample(benchmark::State& state, benchmark::IterationCount batch, F&& f) {
    return sample(state, batch, f, [](double) {});
}

/// Median seconds of `f` outside of a row, over at least `least` seconds and three calls after the first.
template <class F>
double quick_sample(double least, F&& f) {
    std::vector<double> samples;
    f();
    for (double total = 0; total < least || samples.size() < 3; total += samples.back())
        samples.push_back(seconds_of(f));
    return median(samples);
}

/// Rates by row name. What has not been recorded, because the filter left its row out, is measured when it is
/// first asked for.
class ledger {
  public:
    void record(const std::string& row, double rate) { rates_[row] = rate; }
    double rate(const std::string& row, const std::function<double()>& measure) {
        const auto found = rates_.find(row);
        return found != rates_.end() ? found->second : rates_.emplace(row, measure()).first->second;
    }

  private:
    std::map<std::string, double> rates_;
};

inline ledger& this_run() {
    static ledger rates;
    return rates;
}

/// Whether a row has failed; a skipped one has not.
inline bool& any_failure() {
    static bool failed = false;
    return failed;
}

inline void fail(benchmark::State& state, const std::string& message) {
    any_failure() = true;
    state.SkipWithError(message.c_str());
}

inline void skip(benchmark::State& state, const std::string& message) {
    state.SkipWithError(("skipped: " + message).c_str());
}

} // namespace crumb::bench
