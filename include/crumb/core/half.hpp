// IEEE 754 binary16 and bfloat16 as storage types, converted in portable integer arithmetic.
#pragma once

#include <crumb/config.hpp>

#include <bit>
#include <cstdint>

namespace crumb::inline CRUMB_ABI {

/// The 16 bits of an IEEE 754 half-precision number (fp16).
struct half {
    std::uint16_t bits = 0;
    friend constexpr bool operator==(half, half) = default;
};

/// The value of an fp16 number; exact, also of subnormals, infinities and NaN.
constexpr float to_float(half h) noexcept {
    const std::uint32_t sign = std::uint32_t(h.bits & 0x8000u) << 16;
    const std::uint32_t magnitude = h.bits & 0x7fffu;
    if (magnitude >= 0x7c00u)
        return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    if (magnitude >= 0x0400u)
        return std::bit_cast<float>(sign | ((magnitude + 0x1c000u) << 13));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

/// The fp16 number nearest to `x`, ties to even; infinity from 65520 on. NaN stays NaN.
constexpr half to_half(float x) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    std::uint32_t out = 0;
    if (magnitude > 0x7f800000u) {
        out = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {
        out = 0x7c00u;
    } else if (magnitude < 0x38800000u) {
        // Adding 0.5 makes the float unit round to a multiple of 2^-24, the unit of subnormal fp16.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        out = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u;
    } else {
        out = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    }
    return {static_cast<std::uint16_t>(sign | out)};
}

/// Whether an fp16 number is neither infinite nor NaN.
constexpr bool is_finite(half h) noexcept { return (h.bits & 0x7c00u) != 0x7c00u; }

/// The upper 16 bits of a float (bfloat16).
struct bf16 {
    std::uint16_t bits = 0;
    friend constexpr bool operator==(bf16, bf16) = default;
};
constexpr float to_float(bf16 x) noexcept { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
constexpr bool is_finite(bf16 x) noexcept { return (x.bits & 0x7f80u) != 0x7f80u; }

} // namespace crumb::inline CRUMB_ABI
