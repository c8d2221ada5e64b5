// Eight scales and eight minima of 6 bits in 12 bytes, as Q4_K and Q5_K store them.
#pragma once

#include <crumb/config.hpp>

#include <cstddef>
#include <cstdint>

namespace crumb::inline CRUMB_ABI {

/// Scales and minima of 8 groups, 0..63. Those of groups 0-3 are the low six bits of bytes g and 4 + g.
/// Byte 4 + g, g = 4..7, has the lower four bits of both, the scale's in the low nibble; the upper two are
/// the top bits of byte g - 4 (scale) and of byte g (minimum).
struct six_bit_scales {
    std::uint8_t s[12];

    /// Scale of group g.
    constexpr int scale(std::size_t g) const noexcept {
        return g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
    }
    /// Minimum of group g.
    constexpr int minimum(std::size_t g) const noexcept {
        return g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
    }
    /// Writes the scale of group g into bytes that were zero.
    constexpr void set_scale(std::size_t g, int scale) noexcept {
        if (g < 4) {
            put(g, 63, scale);
        } else {
            put(g + 4, 0x0f, scale);
            put(g - 4, 0xc0, scale >> 4 << 6);
        }
    }
    /// Writes the minimum of group g, likewise.
    constexpr void set_minimum(std::size_t g, int minimum) noexcept {
        if (g < 4) {
            put(g + 4, 63, minimum);
        } else {
            put(g + 4, 0xf0, minimum << 4);
            put(g, 0xc0, minimum >> 4 << 6);
        }
    }

  private:
    constexpr void put(std::size_t byte, int mask, int bits) noexcept {
        s[byte] = static_cast<std::uint8_t>((s[byte] & ~mask) | (bits & mask));
    }
};

} // namespace crumb::inline CRUMB_ABI
