// IQ4_NL: 32 indices of 4 bits into a fixed table and one half-precision scale; byte for byte GGUF's block of
// that name.
#pragma once

#include <crumb/format/codebook.hpp>
#include <crumb/format/scale_search.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * codebooks[code i]. 18 bytes per 32 weights, 4.5 bits per weight. Bytes 0-1: d,
/// little-endian; bytes 2-17: index i in the low nibble of byte i, 16 + i in the high one.
struct iq4_nl : codebook_group<4, 0> {
    static constexpr const char* name = "iq4_nl";
    static constexpr std::int8_t codebooks[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                  1,    13,   25,  38,  53,  69,  89,  113};

    /// The scale of a group of 32 by least squares, see `search_scale`: the x of largest magnitude is put to
    /// 127 and to -134..-120, which are around the table's ends.
    static float search(const float* x) noexcept {
        return search_scale(x, group_size, table_levels{codebooks}, 16,
                            [](int i) { return i == 0 ? 127.0f : float(i - 8) - 127.0f; });
    }
    /// Least squares, then codes rounded to nearest under the rounded scale.
    static void encode(const float* x, block& b) noexcept {
        const half d = to_half(search(x));
        int code[group_size];
        for (std::size_t i = 0; i < group_size; ++i)
            code[i] = table_levels{codebooks}.nearest(to_float(d) != 0 ? x[i] / to_float(d) : 0.0f);
        set(b, d, code);
    }
};

} // namespace crumb::inline CRUMB_ABI
