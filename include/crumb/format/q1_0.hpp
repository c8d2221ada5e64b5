// Q1_0: 128 signs and one half-precision scale; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/strided_bits.hpp>
#include <crumb/format/traits.hpp>

#include <cmath>

namespace crumb::inline CRUMB_ABI {

/// weight i = d if bit i is set, -d otherwise: codes -1 and 1. 18 bytes per 128 weights, 1.125 bits per
/// weight.
struct q1_0 {
    /// The block as it is stored.
    struct block {
        half d;                    ///< bytes 0-1, little-endian
        strided_bits<1, 1, 128> q; ///< bytes 2-17: bit i % 8 of byte i / 8
    };
    static_assert(sizeof(block) == 18);

    static constexpr const char* name = "q1_0";
    using scales = group_scales<half, 128>;
    using codes = field_codes<1>;
    using records = half_records;
    static constexpr int code_offset = 1;
    static constexpr int code_step = 2;

    /// Scale of the block.
    static constexpr half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept { return 2 * b.q.get(i) - 1; }
    /// Writes the scale and codes of a block.
    static constexpr void set(block& b, half d, const int* code, std::size_t = 0) noexcept {
        b.d = d;
        for (std::size_t i = 0; i < scales::group; ++i)
            b.q.put(i, code[i] > 0 ? 1 : 0);
    }
    /// d = mean |x|, codes the signs, that of zeros 1, as GGUF's reference quantizer.
    static void encode(const float* x, block& b) noexcept {
        float sum = 0;
        int code[scales::group];
        for (std::size_t i = 0; i < scales::group; ++i) {
            sum += std::fabs(x[i]);
            code[i] = x[i] >= 0 ? 1 : -1;
        }
        b = {};
        set(b, to_half(sum / float(scales::group)), code);
    }
};

} // namespace crumb::inline CRUMB_ABI
