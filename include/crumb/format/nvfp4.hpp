// NVFP4: 64 floats of 4 bits, a float of 8 bits as the scale of 16; byte for byte GGUF's block of that name.
#pragma once

#include <crumb/format/records.hpp>

#include <crumb/format/field_codes.hpp>

#include <crumb/format/mxfp4.hpp>

namespace crumb::inline CRUMB_ABI {

/// weight i = t * s * codebooks[code i] / 2: codes and table are those of MXFP4, s is the scale of the group
/// of 16, t the one of the tensor, which GGUF has in a tensor of its own. 36 bytes per 64 weights, 4.5 bits
/// per weight. s = 0x7f is NaN, as E4M3 has it; ggml takes it for 0.
struct nvfp4 {
    /// The block as it is stored.
    struct block {
        std::uint8_t s[4];        ///< bytes 0-3: E4M3 without a sign
        strided_bits<4, 8, 64> q; ///< bytes 4-35: 8 per group, its codes i and 8 + i in byte i
    };
    static_assert(sizeof(block) == 36);

    static constexpr const char* name = "nvfp4";
    using scales = group_scales<ue4m3, 16, 4, true>;
    static constexpr auto& codebooks = mxfp4::codebooks;
    static constexpr float table_unit = mxfp4::table_unit;
    using codes = field_codes<4>;
    using records = small_float_records<ue4m3, 4>;

    /// Scale of group g.
    static constexpr ue4m3 scale(const block& b, std::size_t g) noexcept { return {b.s[g]}; }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q.get(i); }
    /// Writes the scale and codes of group g.
    static constexpr void set(block& b, ue4m3 d, const int* code, std::size_t g) noexcept {
        b.s[g] = d.bits;
        for (std::size_t i = 0; i < scales::group; ++i)
            b.q.put(scales::group * g + i, code[i]);
    }
};

} // namespace crumb::inline CRUMB_ABI
