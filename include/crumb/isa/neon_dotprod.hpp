// The primitives of Armv8.2 with dotprod: SDOT by lane.
#pragma once

#include <crumb/isa/neon.hpp>

#if CRUMB_BUILDS_NEON_DOTPROD

CRUMB_TARGET_BEGIN(CRUMB_TARGET_NEON_DOTPROD)

namespace crumb::inline CRUMB_ABI::isa {

struct neon_dotprod : neon {
    static constexpr const char* name = "neon_dotprod";
    static constexpr bool supported(const cpu_features& cpu) noexcept { return cpu.dotprod; }

    template <class Operands>
    struct product : Operands {
        using operand = int8x16_t;
        using acc = int32x4_t;
        static CRUMB_INLINE acc start(const std::int32_t*) noexcept { return vdupq_n_s32(0); }
        template <int, int Half>
        static CRUMB_INLINE void step(acc& s, operand w0, operand w1, act a) noexcept {
            s = vdotq_laneq_s32(s, w0, a, 2 * Half);
            s = vdotq_laneq_s32(s, w1, a, 2 * Half + 1);
        }
        static CRUMB_INLINE i32 finish(const acc& s) noexcept { return s; }
    };
    using nibbles = product<nibble_operands>;
    using int8s = product<byte_operands>;
};

} // namespace crumb::inline CRUMB_ABI::isa

#define CRUMB_THIS_ISA neon_dotprod
#include <crumb/kernel/all.inl>
#undef CRUMB_THIS_ISA

CRUMB_TARGET_END

#endif
