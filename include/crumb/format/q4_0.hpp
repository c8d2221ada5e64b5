// Q4_0: 32 codes of 4 bits and one half-precision scale; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/core/rounded.hpp>
#include <crumb/format/traits.hpp>

#include <cmath>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * (nibble i - 8), code i = nibble i - 8. 18 bytes per 32 weights, 4.5 bits per weight.
struct q4_0 {
    /// The block as it is stored.
    struct block {
        half d; ///< bytes 0-1, little-endian
        std::uint8_t
            q[16]; ///< bytes 2-17: weight i in the low nibble of byte i, weight 16 + i in the high one
    };
    static_assert(sizeof(block) == 18);

    static constexpr const char* name = "q4_0";
    using scales = half_scales;
    using codes = nibble_codes;

    /// Scale of the block.
    static constexpr half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept {
        return ((b.q[i % 16] >> (i < 16 ? 0 : 4)) & 15) - 8;
    }
    /// Writes the scale and codes of a block.
    static constexpr void set(block& b, half d, const int* code, std::size_t = 0) noexcept {
        b.d = d;
        for (std::size_t i = 0; i < 16; ++i)
            b.q[i] = static_cast<std::uint8_t>((code[i] + 8) | ((code[16 + i] + 8) << 4));
    }
    /// d = (the x of largest magnitude) / -8, q = x / d rounded to nearest within -8..7, as GGUF's quantizer.
    static void encode(const float* x, block& b) noexcept {
        float amax = 0;
        float extreme = 0;
        for (std::size_t i = 0; i < group_size; ++i) {
            if (std::fabs(x[i]) > amax) {
                amax = std::fabs(x[i]);
                extreme = x[i];
            }
        }
        const float d = extreme / -8.0f;
        const float inverse = d != 0 ? 1.0f / d : 0.0f;
        int code[group_size];
        for (std::size_t i = 0; i < group_size; ++i) {
            const float q = std::floor(std::fmin(std::fmax(rounded(x[i] * inverse) + 8.5f, 0.0f), 15.0f));
            code[i] = static_cast<int>(q) - 8;
        }
        set(b, to_half(d), code);
    }
};

} // namespace crumb::inline CRUMB_ABI
