// The learned scheduler as training makes it and files keep it.
#pragma once

#include <crumb/op/schedule/learned_schedule.hpp>

#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Progress of training after an epoch.
struct schedule_epoch {
    double loss = 0;          ///< mean weighted cross entropy of the samples trained on, during the epoch
    double held_out_loss = 0; ///< of those held out; 0 if there are none
};

/// A trained scheduler.
struct trained_schedule {
    learned_shape shape;
    std::vector<float> query, w1, b1, w2, b2;
    std::vector<schedule_epoch> epochs; ///< those that were run
    std::size_t best_epoch = 0;         ///< the epoch of these parameters: of min held-out loss, or the last
    double accuracy = 0;                ///< share of the samples trained on whose label is most probable
    double held_out_accuracy = 0;       ///< likewise of those held out; 0 if there are none
    double held_out_majority =
        0; ///< of those held out, the share whose label is the most frequent of the others

    /// The parameters for `learned_schedule`; valid while this lives.
    learned_weights weights() const noexcept { return {query, w1, b1, w2, b2}; }
};

} // namespace crumb::inline CRUMB_ABI
