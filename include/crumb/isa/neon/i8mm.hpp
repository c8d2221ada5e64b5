// The primitives of Armv8.6 with i8mm: SDOT by lane for single rows, SMMLA for pairs of rows.
#pragma once

#include <crumb/isa/neon/dotprod.hpp>

#if CRUMB_BUILDS_NEON_I8MM

// What it has of its own, by system; defined in this folder.
namespace crumb::inline CRUMB_ABI::kernel {
template <class Isa, class Format>
struct i8mm_tile;
template <class Isa, class Format, class Tile>
struct i8mm_asm;
template <class Isa, class Format>
struct panel_fill;
} // namespace crumb::inline CRUMB_ABI::kernel

CRUMB_TARGET_BEGIN(CRUMB_TARGET_NEON_I8MM)

namespace crumb::inline CRUMB_ABI::isa {

struct neon_i8mm : neon_dotprod {
    static constexpr const char* name = isa_traits<neon_i8mm>::name;
    static constexpr bool has_matrix_product = true;
    static constexpr std::size_t row_block = 16;
    static constexpr std::size_t panel_row_block = 8;  ///< of activations for int8 panels
    static constexpr std::size_t record_row_block = 8; ///< of formats with records
    static constexpr activation_order order = activation_order::twin_pairs;
    template <class Format>
    using intrinsics_tile = kernel::i8mm_tile<neon_i8mm, Format>;
#if CRUMB_ASM
    template <class Format>
    using looking_tile = kernel::lookup_asm<neon_i8mm, Format, intrinsics_tile<Format>>;
    template <class Format>
    using tile =
        kernel::i8mm_asm<neon_i8mm, Format, kernel::single_asm<neon_i8mm, Format, looking_tile<Format>>>;
    template <class Format>
    using absorbed_tile = kernel::absorbed_asm<neon_i8mm, Format, kernel::absorbed_tile<neon_i8mm, Format>>;
#else
    template <class Format>
    using absorbed_tile = kernel::absorbed_tile<neon_i8mm, Format>;
    template <class Format>
    using tile = intrinsics_tile<Format>;
#endif

    /// Unsigned bytes serve the low codes + 8 times 16, so that both sums are one.
    struct absorbed {
        using acc = int32x4_t;
        static CRUMB_INLINE acc start(i32 sum) noexcept { return sum; }
        template <int Lane>
        static CRUMB_INLINE void step(acc& s, bytes raw, act low, act high) noexcept {
            s = vusdotq_laneq_s32(s, vshlq_n_u8(raw, 4), low, Lane);
            s = vdotq_laneq_s32(s, vreinterpretq_s8_u8(raw), high, Lane);
        }
        static CRUMB_INLINE i32 finish(const acc& s) noexcept { return s; }
    };
    /// The same of four pairs of bits: each shift brings another to the top.
    struct absorbed_pairs : absorbed {
        template <int Row>
        static CRUMB_INLINE void step(acc& s, bytes raw, act low, act high) noexcept {
            s = vusdotq_laneq_s32(s, raw, high, 2 * Row);
            s = vusdotq_laneq_s32(s, vshlq_n_u8(raw, 2), high, 2 * Row + 1);
            s = vusdotq_laneq_s32(s, vshlq_n_u8(raw, 4), low, 2 * Row);
            s = vusdotq_laneq_s32(s, vshlq_n_u8(raw, 6), low, 2 * Row + 1);
        }
    };
};

} // namespace crumb::inline CRUMB_ABI::isa

CRUMB_TARGET_END

#endif
