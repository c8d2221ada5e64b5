// Q2_0: 64 codes of 2 bits and one half-precision scale; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/scale_search.hpp>
#include <crumb/format/strided_bits.hpp>
#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * code i, codes -1..2, stored one up. 18 bytes per 64 weights, 2.25 bits per weight.
struct q2_0 {
    /// The block as it is stored.
    struct block {
        half d;                   ///< bytes 0-1, little-endian
        strided_bits<2, 1, 64> q; ///< bytes 2-17: code i at bit 2 (i % 4) of byte i / 4
    };
    static_assert(sizeof(block) == 18);

    static constexpr const char* name = "q2_0";
    using scales = group_scales<half, 64>;
    using codes = field_codes<2>;
    using records = half_records;
    static constexpr int code_offset = 1;

    /// Scale of the block.
    static constexpr half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q.get(i) - 1; }
    /// Writes the scale and codes of a block.
    static constexpr void set(block& b, half d, const int* code, std::size_t = 0) noexcept {
        b.d = d;
        for (std::size_t i = 0; i < scales::group; ++i)
            b.q.put(i, code[i] + 1);
    }
    /// d = max |x|, codes x / d rounded to -1, 0 or 1, as GGUF's reference quantizer: no code is 2.
    static void encode(const float* x, block& b) noexcept { encode_ternary<q2_0>(x, b); }
};

} // namespace crumb::inline CRUMB_ABI
