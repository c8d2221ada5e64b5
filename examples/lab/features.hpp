// What else than a cache a learned scheduler could read (PMPD, figure 7).
#pragma once

#include "train/schedule_training.hpp"

namespace lm::lab {

/// The normed input of a layer when the prompts have been read in the highest precision.
crumb::result<std::vector<prompt_features>> activation_features(study& prompts, std::size_t layer);

} // namespace lm::lab
