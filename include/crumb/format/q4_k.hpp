// Q4_K: 256 codes of 4 bits, scales and minima of 6 bits; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/scale_search.hpp>
#include <crumb/format/six_bit_scales.hpp>
#include <crumb/format/strided_bits.hpp>
#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * s * code i - dmin * m, codes 0..15; s and m, 0..63, are those of the group of 32. 144 bytes
/// per 256 weights, 4.5 bits per weight.
struct q4_k {
    /// The block as it is stored.
    struct block {
        half d;                     ///< bytes 0-1, little-endian
        half dmin;                  ///< bytes 2-3
        six_bit_scales s;           ///< bytes 4-15
        strided_bits<4, 32, 256> q; ///< bytes 16-143: two groups in 32 bytes, the first one in low nibbles
    };
    static_assert(sizeof(block) == 144);

    static constexpr const char* name = "q4_k";
    using scales = group_scales<half_multiple, 32, 8>;
    using minima = scales;
    using codes = field_codes<4>;
    using records = six_bit_minima_records;

    /// Scale of group g.
    static constexpr half_multiple scale(const block& b, std::size_t g) noexcept {
        return {b.d, static_cast<std::int8_t>(b.s.scale(g))};
    }
    /// Minimum of group g.
    static constexpr half_multiple minimum(const block& b, std::size_t g) noexcept {
        return {b.dmin, static_cast<std::int8_t>(-b.s.minimum(g))};
    }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q.get(i); }
    /// The unit is that of the whole block. Leaves the minimum as it is.
    static constexpr void set(block& b, half_multiple d, const int* code, std::size_t g) noexcept {
        b.d = d.unit;
        b.s.set_scale(g, d.multiplier);
        for (std::size_t i = 0; i < scales::group; ++i)
            b.q.put(scales::group * g + i, code[i]);
    }
    /// Writes scale, minimum and codes of group g; d.unit and m.unit are the block's.
    static constexpr void set(block& b, half_multiple d, half_multiple m, const int* code,
                              std::size_t g) noexcept {
        b.dmin = m.unit;
        b.s.set_minimum(g, -m.multiplier);
        set(b, d, code, g);
    }
    /// Least squares for each group of the 256 floats, see `search_affine`; then scales and minima are
    /// rounded to multiples, and codes to nearest under these.
    static void encode(const float* x, block& b) noexcept { encode_affine<q4_k>(x, b, 63, 15); }
};

} // namespace crumb::inline CRUMB_ABI
