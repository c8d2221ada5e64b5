// What nested weights are to be at every precision, where each has inputs of its own.
#pragma once

#include "machine/team.hpp"
#include "train/residual_streams.hpp"

#include <crumb/offline/nested/feedback.hpp>
#include <crumb/offline/weights/target.hpp>

#include <array>
#include <optional>
#include <vector>

namespace lm {

/// Matrices that read the same numbers, precision by precision: what brings each of them closer to the full
/// model on the inputs that the model has at that precision, and what its outputs are to be on average.
class group_targets {
  public:
    using sums = stream_inputs::sums;

    explicit group_targets(std::size_t matrices) : each_(matrices) {}

    /// Adds a precision with its inputs, which become centered; then it gets the matrices.
    crumb::status begin(int bits, stream_inputs& inputs);
    /// Matrix `which` at that precision: its weights go `share` of the way. `w` is as in the full model.
    crumb::status add(const team& threads, std::size_t which, std::vector<float> w, double share);

    /// Sum of the inputs' second moments over all precisions.
    const sums& h() const noexcept { return h_; }
    /// The targets of a matrix with k inputs.
    crumb::nested_targets weights(std::size_t which, std::size_t k) const;
    std::array<crumb::nested_means, crumb::nested_precisions> means(std::size_t which) const;

  private:
    template <class T>
    using per_precision = std::array<std::vector<T>, crumb::nested_precisions>;
    struct matrix {
        per_precision<float> w;       ///< n x k
        per_precision<double> output; ///< n: means
    };
    sums h_;
    per_precision<float> input_; ///< k: means
    std::vector<matrix> each_;
    std::size_t slot_ = 0; ///< of the precision that is added
    const stream_inputs* inputs_ = nullptr;
    std::optional<crumb::shifted_weights> shifted_;
};

} // namespace lm
