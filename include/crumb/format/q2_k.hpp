// Q2_K: 256 codes of 2 bits, scales and minima of 4 bits; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/scale_search.hpp>
#include <crumb/format/strided_bits.hpp>
#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * s * code i - dmin * m, codes 0..3; s and m, 0..15, are those of the group of 16. 84 bytes
/// per 256 weights, 2.625 bits per weight.
struct q2_k {
    /// The block as it is stored.
    struct block {
        std::uint8_t s[16];         ///< bytes 0-15: s of group g in the low nibble of byte g, m in the other
        strided_bits<2, 32, 256> q; ///< bytes 16-79: 128 codes in 32 bytes, then the others
        half d;                     ///< bytes 80-81, little-endian
        half dmin;                  ///< bytes 82-83
    };
    static_assert(sizeof(block) == 84);

    static constexpr const char* name = "q2_k";
    using scales = group_scales<half_multiple, 16, 16>;
    using minima = scales;
    using codes = field_codes<2>;
    using records = nibble_records;

    /// Scale of group g.
    static constexpr half_multiple scale(const block& b, std::size_t g) noexcept {
        return {b.d, static_cast<std::int8_t>(b.s[g] & 15)};
    }
    /// Minimum of group g.
    static constexpr half_multiple minimum(const block& b, std::size_t g) noexcept {
        return {b.dmin, static_cast<std::int8_t>(-(b.s[g] >> 4))};
    }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q.get(i); }
    /// The unit is that of the whole block. Leaves the minimum as it is.
    static constexpr void set(block& b, half_multiple d, const int* code, std::size_t g) noexcept {
        b.d = d.unit;
        b.s[g] = static_cast<std::uint8_t>((b.s[g] & 0xf0) | (d.multiplier & 15));
        for (std::size_t i = 0; i < scales::group; ++i)
            b.q.put(scales::group * g + i, code[i]);
    }
    /// Writes scale, minimum and codes of group g; d.unit and m.unit are the block's.
    static constexpr void set(block& b, half_multiple d, half_multiple m, const int* code,
                              std::size_t g) noexcept {
        b.dmin = m.unit;
        b.s[g] = static_cast<std::uint8_t>(-m.multiplier << 4);
        set(b, d, code, g);
    }
    /// Least squares for each group of the 256 floats, see `search_affine`; then scales and minima are
    /// rounded to multiples, and codes to nearest under these.
    static void encode(const float* x, block& b) noexcept { encode_affine<q2_k>(x, b, 15, 3); }
};

} // namespace crumb::inline CRUMB_ABI
