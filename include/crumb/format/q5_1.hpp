// Q5_1: 32 codes of 5 bits, a half-precision scale and minimum; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/scale_search.hpp>
#include <crumb/format/strided_bits.hpp>
#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * code i + m, codes 0..31. 24 bytes per 32 weights, 6 bits per weight.
struct q5_1 {
    /// The block as it is stored.
    struct block {
        half d;                      ///< bytes 0-1, little-endian
        half m;                      ///< bytes 2-3
        strided_bits<1, 1, 32> high; ///< bytes 4-7: bit i is the fifth of code i
        strided_bits<4, 16, 32> low; ///< bytes 8-23: the lower four, of codes i and 16 + i in byte i
    };
    static_assert(sizeof(block) == 24);

    static constexpr const char* name = "q5_1";
    using scales = half_scales;
    using minima = half_scales;
    using codes = field_codes<5>;
    using records = half_pair_records;

    /// Scale of the block.
    static constexpr half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    /// Minimum of the block.
    static constexpr half minimum(const block& b, std::size_t = 0) noexcept { return b.m; }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept {
        return b.high.get(i) << 4 | b.low.get(i);
    }
    /// Leaves the minimum as it is.
    static constexpr void set(block& b, half d, const int* code, std::size_t = 0) noexcept {
        b.d = d;
        for (std::size_t i = 0; i < group_size; ++i) {
            b.low.put(i, code[i]);
            b.high.put(i, code[i] >> 4);
        }
    }
    /// Writes scale, minimum and codes of a block.
    static constexpr void set(block& b, half d, half m, const int* code, std::size_t = 0) noexcept {
        b.m = m;
        set(b, d, code);
    }
    /// m = min x, d = (max x - m) / 31, codes rounded to nearest, as GGUF's reference quantizer.
    static void encode(const float* x, block& b) noexcept { encode_range<q5_1>(x, b, 31); }
};

} // namespace crumb::inline CRUMB_ABI
