// What goes wrong first in a forward pass that several threads share.
#pragma once

#include <crumb/core/status.hpp>

#include <compare>
#include <cstddef>
#include <mutex>

namespace lm {

/// A place in a forward pass, in the order of the pass.
struct pass_place {
    enum class stage { embedding, queries, keys, attention, output, up, down, vocabulary };
    std::size_t layer = 0; ///< of the embedding 0, of the vocabulary the number of layers
    stage at = stage::embedding;
    std::size_t row = 0, column = 0;
    friend auto operator<=>(const pass_place&, const pass_place&) = default;
};

/// Keeps the error that comes first in the order of the pass, whichever thread finds which one first: what
/// comes later may be its consequence, and which thread sees that depends on how the work is split.
class first_failure {
  public:
    void report(const pass_place& place, const crumb::status& error) {
        const std::lock_guard lock(guard_);
        if (error_.ok() || place < place_) {
            place_ = place;
            error_ = error;
        }
    }
    void clear() noexcept { error_ = {}; }
    /// Success if nothing was reported. Between passes only.
    const crumb::status& error() const noexcept { return error_; }

  private:
    std::mutex guard_;
    pass_place place_;
    crumb::status error_;
};

} // namespace lm
