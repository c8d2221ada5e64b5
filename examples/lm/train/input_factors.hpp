// What matrices that read the same numbers are quantized with.
#pragma once

#include "machine/team.hpp"

#include <crumb/offline/weights/error_feedback.hpp>
#include <crumb/offline/weights/target.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace lm {

/// Error feedback, and shifts towards the full model, of the same sums.
struct input_factors {
    crumb::error_feedback feedback;
    crumb::shifted_weights shifted;

    /// Both are made at a time, if there are two threads: neither can be split.
    static crumb::result<input_factors> make(const team& threads, const crumb::matrix_view<const double>& h,
                                             const crumb::feedback_options& options) {
        std::optional<crumb::result<crumb::error_feedback>> feedback;
        std::optional<crumb::result<crumb::shifted_weights>> shifted;
        threads.run([&](std::size_t part, std::size_t parts) {
            if (part == 0)
                feedback.emplace(crumb::error_feedback::make(h, options));
            if (part == std::min<std::size_t>(1, parts - 1))
                shifted.emplace(crumb::shifted_weights::make(h));
        });
        if (!*feedback)
            return feedback->error();
        if (!*shifted)
            return shifted->error();
        return input_factors{std::move(**feedback), std::move(**shifted)};
    }
};

} // namespace lm
