// Q3_K: 256 codes of 3 bits, scales of 6 bits; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/scale_search.hpp>
#include <crumb/format/strided_bits.hpp>
#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * s * code i, codes -4..3; s, -32..31, is that of the group of 16. 110 bytes per 256 weights,
/// 3.4375 bits per weight.
struct q3_k {
    /// The block as it is stored.
    struct block {
        strided_bits<1, 32, 256> high; ///< bytes 0-31: third bits of code + 4, of code i in byte i % 32
        strided_bits<2, 32, 256> low;  ///< bytes 32-95: the lower two, 128 codes in 32 bytes
        strided_bits<4, 8, 16> s_low;  ///< bytes 96-103: lower four bits of s + 32, groups g and 8 + g
        strided_bits<2, 4, 16> s_high; ///< bytes 104-107: the upper two, of group g in byte g % 4
        half d;                        ///< bytes 108-109, little-endian
    };
    static_assert(sizeof(block) == 110);

    static constexpr const char* name = "q3_k";
    using scales = group_scales<half_multiple, 16, 16>;
    using codes = field_codes<3>;
    using records = six_bit_scale_records<16>;
    static constexpr int code_offset = 4;

    /// Scale of group g.
    static constexpr half_multiple scale(const block& b, std::size_t g) noexcept {
        return {b.d, static_cast<std::int8_t>((b.s_high.get(g) << 4 | b.s_low.get(g)) - 32)};
    }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept {
        return (b.high.get(i) << 2 | b.low.get(i)) - 4;
    }
    /// The unit is that of the whole block.
    static constexpr void set(block& b, half_multiple d, const int* code, std::size_t g) noexcept {
        b.d = d.unit;
        b.s_low.put(g, d.multiplier + 32);
        b.s_high.put(g, (d.multiplier + 32) >> 4);
        for (std::size_t i = 0; i < scales::group; ++i) {
            b.low.put(scales::group * g + i, code[i] + 4);
            b.high.put(scales::group * g + i, (code[i] + 4) >> 2);
        }
    }
    /// Least squares for each group of the 256 floats, see `search_scale`; then scales are rounded to
    /// multiples, and codes to nearest under these.
    static void encode(const float* x, block& b) noexcept {
        constexpr integer_levels levels{-4, 3};
        encode_multiples<q3_k>(x, b, -32, levels, [&](const float* group) {
            return search_scale(group, scales::group, levels, 19,
                                [](int i) { return -(4.0f + float(i - 9) / 10.0f); });
        });
    }
};

} // namespace crumb::inline CRUMB_ABI
