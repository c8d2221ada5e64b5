// IQ4_XS: 256 indices of 4 bits into the table of IQ4_NL, scales of 6 bits; byte for byte GGUF's block of
// that name.
#pragma once

#include <crumb/format/records.hpp>

#include <crumb/format/field_codes.hpp>

#include <crumb/format/iq4_nl.hpp>
#include <crumb/format/strided_bits.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * s * codebooks[code i]; s, -32..31, is that of the group of 32. 136 bytes per 256 weights,
/// 4.25 bits per weight.
struct iq4_xs {
    /// The block as it is stored.
    struct block {
        half d;                       ///< bytes 0-1, little-endian
        strided_bits<2, 1, 8> s_high; ///< bytes 2-3: upper two bits of s + 32, of group g at bit 2 g
        strided_bits<4, 1, 8> s_low;  ///< bytes 4-7: the lower four, groups 2 i and 2 i + 1 in byte i
        strided_bits<4, 16, 256> q;   ///< bytes 8-135: 16 per group, its indices i and 16 + i in byte i
    };
    static_assert(sizeof(block) == 136);

    static constexpr const char* name = "iq4_xs";
    using scales = group_scales<half_multiple, 32, 8>;
    static constexpr auto& codebooks = iq4_nl::codebooks;
    using codes = field_codes<4>;
    using records = six_bit_scale_records<8>;

    /// Scale of group g.
    static constexpr half_multiple scale(const block& b, std::size_t g) noexcept {
        return {b.d, static_cast<std::int8_t>((b.s_high.get(g) << 4 | b.s_low.get(g)) - 32)};
    }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q.get(i); }
    /// The unit is that of the whole block.
    static constexpr void set(block& b, half_multiple d, const int* code, std::size_t g) noexcept {
        b.d = d.unit;
        b.s_low.put(g, d.multiplier + 32);
        b.s_high.put(g, (d.multiplier + 32) >> 4);
        for (std::size_t i = 0; i < scales::group; ++i)
            b.q.put(scales::group * g + i, code[i]);
    }
    /// As `iq4_nl` for each group of the 256 floats; then scales are rounded to multiples, and codes to
    /// nearest under these.
    static void encode(const float* x, block& b) noexcept {
        encode_multiples<iq4_xs>(x, b, -32, table_levels{codebooks}, iq4_nl::search);
    }
};

} // namespace crumb::inline CRUMB_ABI
