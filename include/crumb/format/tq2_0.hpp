// TQ2_0: 256 codes of 2 bits and one half-precision scale; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/scale_search.hpp>
#include <crumb/format/strided_bits.hpp>
#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * code i, stored one up: ternary, though two bits can say -1..2. 66 bytes per 256 weights,
/// 2.0625 bits per weight.
struct tq2_0 {
    /// The block as it is stored.
    struct block {
        strided_bits<2, 32, 256> q; ///< bytes 0-63: 128 codes in 32 bytes, then the others
        half d;                     ///< bytes 64-65, little-endian
    };
    static_assert(sizeof(block) == 66);

    static constexpr const char* name = "tq2_0";
    using scales = group_scales<half, 256>;
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
    /// d = max |x|, codes x / d rounded to -1, 0 or 1, as GGUF's reference quantizer.
    static void encode(const float* x, block& b) noexcept { encode_ternary<tq2_0>(x, b); }
};

} // namespace crumb::inline CRUMB_ABI
