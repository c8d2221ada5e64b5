// MXFP4: 32 floats of 4 bits under a power of two; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/strided_bits.hpp>
#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = 2^(e - 127) * codebooks[code i] / 2: the codes are floats of the Microscaling specification's
/// E2M1 (sign, two bits of exponent, one of mantissa), the table has their values in halves. 17 bytes per 32
/// weights, 4.25 bits per weight. e = 255 is NaN, as the specification has it; ggml takes it for 2^128.
struct mxfp4 {
    struct block {
        std::uint8_t e;            ///< byte 0
        strided_bits<4, 16, 32> q; ///< bytes 1-16: codes i and 16 + i in byte i, the first in the low nibble
    };
    static_assert(sizeof(block) == 17);

    static constexpr const char* name = "mxfp4";
    using scales = group_scales<e8m0, 32>;
    static constexpr std::int8_t codebooks[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    static constexpr float table_unit = 0.5f;

    static constexpr e8m0 scale(const block& b, std::size_t = 0) noexcept { return {b.e}; }
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q.get(i); }
    static constexpr void set(block& b, e8m0 d, const int* code, std::size_t = 0) noexcept {
        b.e = d.bits;
        for (std::size_t i = 0; i < group_size; ++i)
            b.q.put(i, code[i]);
    }
};

} // namespace crumb::inline CRUMB_ABI
