// Random numbers that are the same with every standard library.
#pragma once

#include <crumb/config.hpp>

#include <cstddef>
#include <cstdint>

namespace crumb::inline CRUMB_ABI {

/// splitmix64: 64 random bits per step from a counter.
class splitmix64 {
  public:
    /// The sequence of a seed.
    explicit constexpr splitmix64(std::uint64_t seed) noexcept : state_(seed) {}

    /// The next 64 bits.
    constexpr std::uint64_t next() noexcept {
        state_ += 0x9e3779b97f4a7c15u;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    /// Evenly within [0, 1).
    constexpr double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }
    /// Evenly within 0 .. size - 1.
    constexpr std::size_t below(std::size_t size) noexcept {
        const auto i = static_cast<std::size_t>(uniform() * static_cast<double>(size));
        return i < size ? i : size - 1;
    }

  private:
    std::uint64_t state_;
};

} // namespace crumb::inline CRUMB_ABI
