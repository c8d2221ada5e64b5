// Primitives of scans of product-quantized codes for NEON with SDOT; `pq_neon` has the rest. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_dotprod
#include <crumb/isa/editor.hpp>

#include <crumb/isa/neon/pq.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// Bytes of four channels of a token beside each other, and their products.
struct pq_quads_dotprod {
    static constexpr bool joins = false;
    static constexpr std::size_t registers = 4; ///< of values in a tile: 16 tokens
    using acc = int32x4_t;
    using operand = int8x16_t;
    using f32 = isa::neon::f32;

    /// Instructions per part, docs/kv-cache.md: expanding pays from four queries on.
    static constexpr pq_expansion expansion_of(pq_kind kind, std::size_t dims) noexcept {
        const bool known = kind == pq_kind::byte ? dims != 1 : dims == (kind == pq_kind::nibble ? 1u : 2u);
        return {known ? 4u : 0u, false};
    }

    static CRUMB_INLINE void interleave(const uint8x16_t* c, uint8x16_t* out) noexcept {
        const uint16x8_t a = vreinterpretq_u16_u8(vzip1q_u8(c[0], c[1])),
                         b = vreinterpretq_u16_u8(vzip2q_u8(c[0], c[1])),
                         x = vreinterpretq_u16_u8(vzip1q_u8(c[2], c[3])),
                         y = vreinterpretq_u16_u8(vzip2q_u8(c[2], c[3]));
        out[0] = vreinterpretq_u8_u16(vzip1q_u16(a, x));
        out[1] = vreinterpretq_u8_u16(vzip2q_u16(a, x));
        out[2] = vreinterpretq_u8_u16(vzip1q_u16(b, y));
        out[3] = vreinterpretq_u8_u16(vzip2q_u16(b, y));
    }
    static CRUMB_INLINE void keep(std::uint8_t* to, const uint8x16_t* values) noexcept {
        CRUMB_UNROLL
        for (int k = 0; k < 4; ++k)
            vst1q_u8(to + 16 * k, values[k]);
    }
    static CRUMB_INLINE operand operand_of(uint8x16_t values) noexcept { return vreinterpretq_s8_u8(values); }
    static CRUMB_INLINE int8x16_t load_query(const std::int8_t* four) noexcept {
        std::int32_t x;
        __builtin_memcpy(&x, four, sizeof x);
        return vreinterpretq_s8_s32(vdupq_n_s32(x));
    }
    static CRUMB_INLINE acc start(std::int32_t) noexcept { return vdupq_n_s32(0); }
    static CRUMB_INLINE void dot(acc& s, operand x, int8x16_t q) noexcept { s = vdotq_s32(s, x, q); }
    static CRUMB_INLINE acc times_128(acc s) noexcept { return vshlq_n_s32(s, 7); }
    static CRUMB_INLINE acc plus(acc a, acc b) noexcept { return vaddq_s32(a, b); }
    /// step * sums of 16 tokens.
    static CRUMB_INLINE void store(const acc* s, f32 step, float* out, float*) noexcept {
        CRUMB_UNROLL
        for (int k = 0; k < 4; ++k)
            vst1q_f32(out + 4 * k, vmulq_f32(vcvtq_f32_s32(s[k]), step));
    }
};

struct pq_dotprod : pq_neon {
    using quads = pq_quads_dotprod;
    static CRUMB_INLINE void dot(dots& s, reg weights, reg values) noexcept {
        s = vdotq_s32(s, vreinterpretq_s8_u8(weights), vreinterpretq_s8_u8(values));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
