// MXFP4: 32 floats of 4 bits under a power of two; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/strided_bits.hpp>
#include <crumb/format/traits.hpp>

#include <algorithm>
#include <cmath>

namespace crumb::inline CRUMB_ABI {

/// weight i = 2^(e - 127) * codebooks[code i] / 2: the codes are floats of the Microscaling specification's
/// E2M1 (sign, two bits of exponent, one of mantissa), the table has their values in halves. 17 bytes per 32
/// weights, 4.25 bits per weight. e = 255 is NaN, as the specification has it; ggml takes it for 2^128.
struct mxfp4 {
    /// The block as it is stored.
    struct block {
        std::uint8_t e;            ///< byte 0
        strided_bits<4, 16, 32> q; ///< bytes 1-16: codes i and 16 + i in byte i, the first in the low nibble
    };
    static_assert(sizeof(block) == 17);

    static constexpr const char* name = "mxfp4";
    using scales = group_scales<e8m0, 32>;
    static constexpr std::int8_t codebooks[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    static constexpr float table_unit = 0.5f;
    using codes = field_codes<4>;
    using records = small_float_records<e8m0, 1>;

    /// Scale of the block.
    static constexpr e8m0 scale(const block& b, std::size_t = 0) noexcept { return {b.e}; }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q.get(i); }
    /// Writes the scale and codes of a block.
    static constexpr void set(block& b, e8m0 d, const int* code, std::size_t = 0) noexcept {
        b.e = d.bits;
        for (std::size_t i = 0; i < group_size; ++i)
            b.q.put(i, code[i]);
    }
    /// The code nearest to x / 2^(e - 127); ties go to the smaller magnitude.
    static int nearest(float x, int e) noexcept {
        constexpr double between[7] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5}; // neighbours of the table
        const double magnitude = std::ldexp(std::fabs(double(x)), 127 - e);
        int code = 0;
        while (code < 7 && magnitude > between[code])
            ++code;
        return x < 0 && code != 0 ? code | 8 : code;
    }
    /// The exponent of the specification, which takes max |x| to 4..8, then codes rounded to nearest: what is
    /// above 6 becomes 6.
    static void encode(const float* x, block& b) noexcept {
        float largest = 0;
        for (std::size_t i = 0; i < group_size; ++i)
            largest = std::fmax(largest, std::fabs(x[i]));
        const int e = std::max(static_cast<int>(std::bit_cast<std::uint32_t>(largest) >> 23) - 2, 0);
        int code[group_size];
        for (std::size_t i = 0; i < group_size; ++i)
            code[i] = nearest(x[i], e);
        b = {};
        set(b, {static_cast<std::uint8_t>(e)}, code);
    }
};

} // namespace crumb::inline CRUMB_ABI
