// A model with nested weights and the prompts that its schedules are measured on.
#pragma once

#include "eval/study.hpp"
#include "train/loading.hpp"
#include "train/schedule_training.hpp"

#include <optional>
#include <string>

namespace lm {

/// A model with nested weights, the one that it is compared with (none: itself), and prompts.
struct study_subject {
    loaded_model nested, full;
    std::optional<study> prompts;
    crumb::precision_range stored;

    /// What `events` refer to must outlive it.
    static crumb::result<study_subject> load(const load_options& options, const std::string& text,
                                             const schedule_options& how, const load_events& events = {});
    /// What a learned schedule is made of.
    crumb::schedule_levels learned_levels(const schedule_options& how) const;
};

} // namespace lm
