// The primitives of Armv8.2 with dotprod: SDOT by lane.
#pragma once

#include <crumb/isa/neon.hpp>

#if CRUMB_BUILDS_NEON_DOTPROD

CRUMB_TARGET_BEGIN(CRUMB_TARGET_NEON_DOTPROD)

namespace crumb::inline CRUMB_ABI::isa {

struct neon_dotprod : neon {
    static constexpr const char* name = "neon_dotprod";
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
    static constexpr bool supported(const cpu_features& cpu) noexcept { return cpu.dotprod; }

    using pq = kernel::pq_dotprod; ///< primitives of scans of product-quantized codes

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

CRUMB_KEEP_ORDER_BEGIN
#define CRUMB_THIS_ISA neon_dotprod
#include <crumb/kernel/pq_primitives_dotprod.inl>

#include <crumb/kernel/all.inl>

#include <crumb/kernel/absorbed.inl>
#include <crumb/kernel/linear_neon.inl>
#if CRUMB_ASM
#include <crumb/kernel/block_asm.inl>
#include <crumb/kernel/lookup_asm.inl>
#include <crumb/kernel/single_asm.inl>
#endif
#undef CRUMB_THIS_ISA
CRUMB_KEEP_ORDER_END

CRUMB_TARGET_END

#endif
