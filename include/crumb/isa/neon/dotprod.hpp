// The primitives of Armv8.2 with dotprod: SDOT by lane.
#pragma once

#include <crumb/isa/neon/neon.hpp>

#if CRUMB_BUILDS_NEON_DOTPROD

// What it has of its own, by system; defined in this folder.
namespace crumb::inline CRUMB_ABI::kernel {
struct pq_dotprod;
struct byte_products_dotprod;
struct field_products_dotprod;
/// Assembly in the place of a tile's `single`, or of some heights of its `block`.
template <class Isa, class Format, class Tile>
struct single_asm;
template <class Isa, class Format, class Tile>
struct lookup_asm;
template <class Isa>
struct single_passes;
template <class Isa, class Format>
struct record_pointers;
template <class Isa, class Format, class Tile>
struct block_asm;
template <class Isa, class Format>
struct absorbed_tile;
template <class Isa, class Format, class Tile>
struct absorbed_asm;
} // namespace crumb::inline CRUMB_ABI::kernel

CRUMB_TARGET_BEGIN(CRUMB_TARGET_NEON_DOTPROD)

namespace crumb::inline CRUMB_ABI::isa {

struct neon_dotprod : neon {
    static constexpr const char* name = isa_traits<neon_dotprod>::name;
    template <class Format>
    using intrinsics_tile = kernel::neon_tile<neon_dotprod, Format>;
#if CRUMB_ASM
    template <class Format>
    using looking_tile = kernel::lookup_asm<neon_dotprod, Format, intrinsics_tile<Format>>;
    template <class Format>
    using tile = kernel::block_asm<neon_dotprod, Format,
                                   kernel::single_asm<neon_dotprod, Format, looking_tile<Format>>>;
    template <class Format>
    using absorbed_tile =
        kernel::absorbed_asm<neon_dotprod, Format, kernel::absorbed_tile<neon_dotprod, Format>>;
#else
    template <class Format>
    using absorbed_tile = kernel::absorbed_tile<neon_dotprod, Format>;
    template <class Format>
    using tile = intrinsics_tile<Format>;
#endif

    using pq = kernel::pq_dotprod;                         ///< primitives of scans of product-quantized codes
    using byte_products = kernel::byte_products_dotprod;   ///< of bytes with integers of 15 bits
    using field_products = kernel::field_products_dotprod; ///< of codes of 2 and 4 bits with bytes

    template <class Operands>
    struct product : Operands {
        static constexpr int offset = 0;
        using operand = int8x16_t;
        using acc = int32x4_t;
        static CRUMB_INLINE acc start() noexcept { return vdupq_n_s32(0); }
        template <int Half>
        static CRUMB_INLINE void step(acc& s, operand w0, operand w1, act a) noexcept {
            s = vdotq_laneq_s32(s, w0, a, 2 * Half);
            s = vdotq_laneq_s32(s, w1, a, 2 * Half + 1);
        }
        static CRUMB_INLINE i32 finish(const acc& s) noexcept { return s; }
    };
    using nibbles = product<nibble_operands>;
    using int8s = product<byte_operands>;
    struct lookups : int8s, table_operands {};

    /// Sums of the low codes + 8, and of the bytes as they are, which are 16 times the high codes + that.
    struct absorbed {
        using acc = split_sums<int32x4_t>;
        static CRUMB_INLINE acc start(i32 sum) noexcept { return {vdupq_n_s32(0), sum}; }
        template <int Lane>
        static CRUMB_INLINE void step(acc& s, bytes raw, act low, act high) noexcept {
            s.low = vdotq_laneq_s32(s.low, vreinterpretq_s8_u8(vandq_u8(raw, vdupq_n_u8(15))), low, Lane);
            s.high = vdotq_laneq_s32(s.high, vreinterpretq_s8_u8(raw), high, Lane);
        }
        static CRUMB_INLINE i32 finish(const acc& s) noexcept { return vmlaq_n_s32(s.high, s.low, 16); }
    };
};

} // namespace crumb::inline CRUMB_ABI::isa

CRUMB_TARGET_END

#endif
