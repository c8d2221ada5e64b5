// How a format stores the scales of its groups.
#pragma once

#include <crumb/core/half.hpp>

#include <cstddef>

namespace crumb::inline CRUMB_ABI {

/// multiplier * 2^(exponent - 127), exact as a float. Exponent 0 means the scale 0; beyond `largest_exponent`
/// a weight might be no finite float.
struct block_scale {
    std::uint8_t exponent = 0;
    std::int8_t multiplier = 0;
    friend constexpr bool operator==(block_scale, block_scale) = default;
};

/// 128 * 128 * 2^(largest_exponent - 127), what no multiplier times a code exceeds, is a finite float.
inline constexpr std::uint8_t largest_exponent = 240;

/// 2^(exponent - 127), or 0.
constexpr float power_of(std::uint8_t exponent) noexcept {
    return std::bit_cast<float>(std::uint32_t{exponent} << 23);
}
constexpr float to_float(block_scale s) noexcept { return float(s.multiplier) * power_of(s.exponent); }
constexpr bool is_finite(block_scale s) noexcept { return s.exponent <= largest_exponent; }

/// What int8 panels take scales below this for.
inline constexpr float smallest_scale = 0x1p-100f;

/// A half per group.
struct half_scales {
    using value = half; ///< of a group, as stored
    using unit = half;  ///< of the stream of packed scales
    static constexpr std::size_t block_groups = 1;
    static constexpr unit packed(value s) noexcept { return s; }
};

/// A signed byte per group, and a power of two per block of 8 groups (256 inputs) of a row.
struct block_scales {
    using value = block_scale;
    using unit = std::int8_t;
    static constexpr std::size_t block_groups = 8;
    static constexpr unit packed(value s) noexcept { return s.multiplier; }
};

} // namespace crumb::inline CRUMB_ABI
