// Q5_0: 32 codes of 5 bits and one half-precision scale; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/scale_search.hpp>
#include <crumb/format/strided_bits.hpp>
#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * code i, codes -16..15. 22 bytes per 32 weights, 5.5 bits per weight.
struct q5_0 {
    /// The block as it is stored.
    struct block {
        half d;                      ///< bytes 0-1, little-endian
        strided_bits<1, 1, 32> high; ///< bytes 2-5: bit i is the fifth of code i + 16
        strided_bits<4, 16, 32> low; ///< bytes 6-21: the lower four, of codes i and 16 + i in byte i
    };
    static_assert(sizeof(block) == 22);

    static constexpr const char* name = "q5_0";
    using scales = half_scales;
    using codes = field_codes<5>;
    using records = half_records;
    static constexpr int code_offset = 16;

    /// Scale of the block.
    static constexpr half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept {
        return (b.high.get(i) << 4 | b.low.get(i)) - 16;
    }
    /// Writes the scale and codes of a block.
    static constexpr void set(block& b, half d, const int* code, std::size_t = 0) noexcept {
        b.d = d;
        for (std::size_t i = 0; i < group_size; ++i) {
            b.low.put(i, code[i] + 16);
            b.high.put(i, (code[i] + 16) >> 4);
        }
    }
    /// d = (the x of largest magnitude) / -16, codes rounded to nearest within -16..15, as GGUF's quantizer.
    static void encode(const float* x, block& b) noexcept {
        const float d = extreme_of(x, group_size) / -16.0f;
        const float inverse = d != 0 ? 1.0f / d : 0.0f;
        int code[group_size];
        for (std::size_t i = 0; i < group_size; ++i) {
            const float q = std::floor(std::fmin(std::fmax(rounded(x[i] * inverse) + 16.5f, 0.0f), 31.0f));
            code[i] = static_cast<int>(q) - 16;
        }
        b = {};
        set(b, to_half(d), code);
    }
};

} // namespace crumb::inline CRUMB_ABI
