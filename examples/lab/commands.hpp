// The commands of crumb-lab and their options.
#pragma once

#include "cli/commands.hpp"
#include "lab/pruning.hpp"

#include <cstdint>
#include <string>

namespace lm::lab {

struct schedules_options : common_options {
    std::string text;
    std::string calibrate; ///< text for dense-and-sparse decompositions; empty: there are none
    schedule_options study;
    std::uint64_t seed = 1;
    std::string only;      ///< parts of names, | between them; schedules but these and the first are left out
    std::string csv;       ///< divergence by position, or empty
    bool features = false; ///< compare what a learned scheduler can read instead
};

struct prune_options {
    std::string model;
    pruning how;
    std::string calibrate; ///< text to measure inputs on: a file, or `self`
    std::string text;
    std::string against; ///< empty: no reference
    std::size_t ctx = 512;
    std::size_t chunks = 0; ///< 0: all
    std::size_t threads = 0;
    bool json = false;
};

struct outliers_options {
    std::uint64_t seed = 1;
    bool json = false;
};

/// Each prints its results to stdout and returns an error or nothing.
crumb::status schedules(const schedules_options& options);
crumb::status prune(const prune_options& options);
crumb::status compare_outliers(const outliers_options& options);

} // namespace lm::lab
