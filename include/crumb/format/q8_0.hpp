// Q8_0: 32 codes of 8 bits and one half-precision scale; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/traits.hpp>

#include <cmath>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * q[i]. 34 bytes per 32 weights, 8.5 bits per weight.
struct q8_0 {
    /// The block as it is stored.
    struct block {
        half d;            ///< bytes 0-1, little-endian
        std::int8_t q[32]; ///< bytes 2-33
    };
    static_assert(sizeof(block) == 34);

    static constexpr const char* name = "q8_0";
    using scales = half_scales;
    using codes = byte_codes;

    /// Scale of the block.
    static constexpr half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q[i]; }
    /// Writes the scale and codes of a block.
    static constexpr void set(block& b, half d, const int* code, std::size_t = 0) noexcept {
        b.d = d;
        for (std::size_t i = 0; i < group_size; ++i)
            b.q[i] = static_cast<std::int8_t>(code[i]);
    }
    /// d = max |x| / 127, q = round(x / d), ties away from zero, as GGUF's reference quantizer.
    static void encode(const float* x, block& b) noexcept {
        float amax = 0;
        for (std::size_t i = 0; i < group_size; ++i)
            amax = std::fmax(amax, std::fabs(x[i]));
        const float d = amax / 127.0f;
        const float inverse = d > 0 ? 1.0f / d : 0.0f;
        b.d = to_half(d);
        for (std::size_t i = 0; i < group_size; ++i) {
            const float q = std::round(x[i] * inverse);
            b.q[i] = static_cast<std::int8_t>(std::fmin(std::fmax(q, -127.0f), 127.0f));
        }
    }
};

} // namespace crumb::inline CRUMB_ABI
