// Training that alternates: samples choose among levels, levels follow their samples.
#pragma once

#include <crumb/config.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Starts from `levels`. update(levels) computes new levels from the samples' choices; assign(levels) lets
/// the samples choose and returns the error. Levels and choices that are no better are undone. Ends when the
/// error falls by less than the share `tolerance`, or after `max_rounds`. `errors` gets the error of the
/// first levels, then that of every better set; `progress` is called after every round.
template <class Levels, class Samples, class Assign, class Update, class Options>
void alternate(Levels& levels, std::vector<double>& errors, Samples& samples, const Options& options,
               Assign&& assign, Update&& update) {
    double error = assign(levels);
    errors.push_back(error);
    for (std::size_t round = 1; round <= options.max_rounds; ++round) {
        const Samples before = samples;
        const Levels next = update(levels);
        const double now = assign(next);
        if (now < error) {
            levels = next;
            errors.push_back(now);
        } else {
            samples = before;
        }
        const bool done = !(now < error * (1 - options.tolerance));
        error = std::min(error, now);
        if (options.progress)
            options.progress(done ? options.max_rounds : round, options.max_rounds);
        if (done)
            break;
    }
}

} // namespace crumb::inline CRUMB_ABI
