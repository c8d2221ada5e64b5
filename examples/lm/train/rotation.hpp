// Rotating the residual stream of a model, so that no channel of it stands out.
#pragma once

#include "model/model.hpp"
#include "model/progress.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lm {

/// An orthogonal matrix R whose every entry is of the size of the others: random signs, a Hadamard matrix of
/// 2^i channels and cosines over m of those blocks, for a width of m 2^i with an odd m.
class rotation {
  public:
    rotation(std::size_t width, std::uint64_t seed);
    std::size_t width() const noexcept { return signs_.size(); }
    /// x R, in place. `x` has `width` numbers.
    void apply(std::span<double> x) const;

  private:
    std::size_t block_ = 1; ///< 2^i
    std::vector<double> signs_;
    std::vector<double> cosines_; ///< m x m, orthogonal
};

/// Writes the same model, in F16, with another residual stream x R: matrices that read it are multiplied by
/// the norm before them and by R, those that write to it by R^T, and norms become 1. Its outputs are those of
/// the model. An output matrix that is the embedding E stays that: E R, and R^T diag(norm) R before it.
/// Refuses models that this would change (norms that subtract means, norms of what is added, learned
/// positions), nested weights, which have corrections, and models that are rotated.
crumb::status write_rotated(const model& m, std::uint64_t seed, const std::string& path,
                            const progress_function& progress = {});

} // namespace lm
