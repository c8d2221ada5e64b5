// Q6_K: 256 codes of 6 bits, signed bytes as scales; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/scale_search.hpp>
#include <crumb/format/strided_bits.hpp>
#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * s * code i, codes -32..31; s is that of the group of 16. 210 bytes per 256 weights, 6.5625
/// bits per weight.
struct q6_k {
    /// The block as it is stored.
    struct block {
        strided_bits<4, 64, 256> low;  ///< bytes 0-127: lower four bits of code + 32, 128 codes in 64 bytes
        strided_bits<2, 32, 256> high; ///< bytes 128-191: the upper two, 128 codes in 32 bytes
        std::int8_t s[16];             ///< bytes 192-207
        half d;                        ///< bytes 208-209, little-endian
    };
    static_assert(sizeof(block) == 210);

    static constexpr const char* name = "q6_k";
    using scales = group_scales<half_multiple, 16, 16>;
    using codes = field_codes<6>;
    using records = byte_records;
    static constexpr int code_offset = 32;

    /// Scale of group g.
    static constexpr half_multiple scale(const block& b, std::size_t g) noexcept { return {b.d, b.s[g]}; }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept {
        return (b.high.get(i) << 4 | b.low.get(i)) - 32;
    }
    /// The unit is that of the whole block.
    static constexpr void set(block& b, half_multiple d, const int* code, std::size_t g) noexcept {
        b.d = d.unit;
        b.s[g] = d.multiplier;
        for (std::size_t i = 0; i < scales::group; ++i) {
            b.low.put(scales::group * g + i, code[i] + 32);
            b.high.put(scales::group * g + i, (code[i] + 32) >> 4);
        }
    }
    /// Least squares for each group of the 256 floats, see `search_scale`; then scales are rounded to
    /// multiples, and codes to nearest under these.
    static void encode(const float* x, block& b) noexcept {
        constexpr integer_levels levels{-32, 31};
        encode_multiples<q6_k>(x, b, -128, levels, [&](const float* group) {
            return search_scale(group, scales::group, levels, 19,
                                [](int i) { return -(32.0f + float(i - 9) / 10.0f); });
        });
    }
};

} // namespace crumb::inline CRUMB_ABI
