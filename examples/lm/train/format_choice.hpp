// Which format each matrix of a model takes, so that a file has a given size.
#pragma once

#include <crumb/core/status.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace lm {

/// One of the formats that a matrix may take.
struct format_option {
    std::uint64_t bytes = 0;
    double loss = 0; ///< what it adds to the model's error
};

/// An option of every matrix: those of the least sum of losses, as far as one multiplier of bytes for all of
/// them finds it, whose bytes are `budget` at most. An error says the least possible sum; matrices without
/// options and losses that are not finite are errors too.
crumb::result<std::vector<std::size_t>> choose_formats(std::span<const std::vector<format_option>> matrices,
                                                       std::uint64_t budget);

} // namespace lm
