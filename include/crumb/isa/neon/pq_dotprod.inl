// Primitives of scans of product-quantized codes for NEON with SDOT; `pq_neon` has the rest. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_dotprod
#include <crumb/isa/editor.hpp>

#include <crumb/isa/neon/pq.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct pq_dotprod : pq_neon {
    static CRUMB_INLINE void dot(dots& s, reg weights, reg values) noexcept {
        s = vdotq_s32(s, vreinterpretq_s8_u8(weights), vreinterpretq_s8_u8(values));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
