// Numbers that scales are stored as, and how a format spreads them over its groups.
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

/// unit * multiplier, exact as a float: an integer of a group under the half of its block.
struct half_multiple {
    half unit;
    std::int8_t multiplier = 0;
    friend constexpr bool operator==(half_multiple, half_multiple) = default;
};
constexpr float to_float(half_multiple s) noexcept { return to_float(s.unit) * float(s.multiplier); }
constexpr bool is_finite(half_multiple s) noexcept { return is_finite(s.unit); }

/// An exponent and nothing else: 2^(bits - 127). 255 is NaN.
struct e8m0 {
    std::uint8_t bits = 0;
    friend constexpr bool operator==(e8m0, e8m0) = default;
};
constexpr bool is_finite(e8m0 s) noexcept { return s.bits != 255; }
constexpr float to_float(e8m0 s) noexcept {
    return std::bit_cast<float>(s.bits == 0     ? std::uint32_t{1} << 22
                                : s.bits == 255 ? std::uint32_t{0x7fc00000}
                                                : std::uint32_t{s.bits} << 23);
}

/// A float without a sign: 4 bits of exponent, 3 of mantissa, 2^-9 to 448. 0x7f is NaN; the top bit is not
/// read.
struct ue4m3 {
    std::uint8_t bits = 0;
    friend constexpr bool operator==(ue4m3, ue4m3) = default;
};
constexpr bool is_finite(ue4m3 s) noexcept { return (s.bits & 0x7f) != 0x7f; }
constexpr float to_float(ue4m3 s) noexcept {
    const int exponent = s.bits >> 3 & 15, mantissa = s.bits & 7;
    if (!is_finite(s))
        return std::bit_cast<float>(std::uint32_t{0x7fc00000});
    if (exponent == 0)
        return float(mantissa) * 0x1p-9f;
    return float(8 + mantissa) * power_of(static_cast<std::uint8_t>(exponent + 117));
}

/// The scales of a format, or its minima: a `Value` per group of `Group` inputs, stored in blocks of `Groups`
/// groups. What the groups of a block share is a part of their values, as the exponent of `block_scale` or
/// the unit of `half_multiple`. With `PerTensor` all of them are under one float, which is stored apart.
template <class Value, std::size_t Group, std::size_t Groups = 1, bool PerTensor = false>
struct group_scales {
    using value = Value;
    static constexpr std::size_t group = Group;
    static constexpr std::size_t block_groups = Groups;
    static constexpr bool per_tensor = PerTensor;
};

/// A half per group of 32.
using half_scales = group_scales<half, 32>;
/// A signed byte per group of 32, and a power of two per block of 8 groups (256 inputs) of a row.
using block_scales = group_scales<block_scale, 32, 8>;

/// What the stream of packed scales holds of a group's.
constexpr half packed_scale(half s) noexcept { return s; }
constexpr std::int8_t packed_scale(block_scale s) noexcept { return s.multiplier; }

} // namespace crumb::inline CRUMB_ABI
