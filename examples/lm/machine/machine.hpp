// What this machine can do at best: reading memory, and multiply-accumulates of int8 codes.
#pragma once

#include "machine/team.hpp"

#include <crumb/core/buffer.hpp>

namespace lm {

using crumb::buffer;

/// Rates of all threads of a team together. Every call of `measure` keeps the best of what it saw, so that
/// one before and one after a benchmark are less at the mercy of other programs.
class machine {
  public:
    /// Reads `bytes` bytes (at least 256 MiB, at most 2 GiB, so that no cache holds them). `isa`: an index of
    /// `crumb::isa_names`. `nibbles`: the peak is that of 4-bit codes, where it differs.
    machine(team threads, std::size_t bytes, std::size_t isa, bool nibbles);
    void measure();

    double bytes_per_second() const noexcept { return bytes_per_second_; }
    double macs_per_second() const noexcept { return macs_per_second_; }

  private:
    team threads_;
    buffer memory_;
    std::size_t isa_;
    bool nibbles_;
    std::size_t reader_ = 0; ///< number of the fastest loop
    double bytes_per_second_ = 0, macs_per_second_ = 0;
};

} // namespace lm
