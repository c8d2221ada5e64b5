// Products of codes of 2 and 4 bits with bytes by SDOT. No loops but over registers.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_dotprod
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct field_products_dotprod {
    static constexpr std::size_t width = 16;
    static constexpr std::size_t tile = 4, channels = 4;
    static constexpr std::size_t at_once(int) noexcept { return 128; }
    using reg = int8x16_t;
    using acc = int32x4_t;
    using f32 = float32x4_t;

    // ---- codes ----
    static CRUMB_INLINE reg load(const void* p) noexcept {
        return vld1q_s8(static_cast<const std::int8_t*>(p));
    }
    static CRUMB_INLINE void store(void* p, reg x) noexcept { vst1q_s8(static_cast<std::int8_t*>(p), x); }
    template <int Bits, int Half, int R>
    static CRUMB_INLINE reg codes(const std::uint8_t* unit) noexcept {
        constexpr int shift = Bits == 4 ? 4 * Half : 4 * Half + 2 * R;
        const uint8x16_t raw = vld1q_u8(unit + (Bits == 4 ? 16 * R : 0));
        uint8x16_t x = raw;
        if constexpr (shift != 0)
            x = vshrq_n_u8(x, shift);
        if constexpr (shift + Bits != 8)
            x = vandq_u8(x, vdupq_n_u8((1u << Bits) - 1u));
        return vreinterpretq_s8_u8(x);
    }
    static CRUMB_INLINE void by_quads(const reg* c, reg* out) noexcept {
        const int16x8_t a = vreinterpretq_s16_s8(vzip1q_s8(c[0], c[1])),
                        b = vreinterpretq_s16_s8(vzip2q_s8(c[0], c[1])),
                        x = vreinterpretq_s16_s8(vzip1q_s8(c[2], c[3])),
                        y = vreinterpretq_s16_s8(vzip2q_s8(c[2], c[3]));
        out[0] = vreinterpretq_s8_s16(vzip1q_s16(a, x));
        out[1] = vreinterpretq_s8_s16(vzip2q_s16(a, x));
        out[2] = vreinterpretq_s8_s16(vzip1q_s16(b, y));
        out[3] = vreinterpretq_s8_s16(vzip2q_s16(b, y));
    }
    static CRUMB_INLINE reg factors(const std::int8_t* first, std::size_t) noexcept {
        std::int32_t x;
        __builtin_memcpy(&x, first, sizeof x);
        return vreinterpretq_s8_s32(vdupq_n_s32(x));
    }

    // ---- products ----
    static CRUMB_INLINE acc zero() noexcept { return vdupq_n_s32(0); }
    static CRUMB_INLINE void dot(acc& sum, reg codes, reg by) noexcept { sum = vdotq_s32(sum, codes, by); }
    static CRUMB_INLINE acc widen(acc sum) noexcept { return sum; }
    static CRUMB_INLINE acc plus(acc a, acc b) noexcept { return vaddq_s32(a, b); }
    static CRUMB_INLINE acc times_128(acc a) noexcept { return vshlq_n_s32(a, 7); }
    static CRUMB_INLINE void put(const acc* s, const float* steps, const float* bases, float* out) noexcept {
        const f32 step = vdupq_n_f32(*steps), base = vdupq_n_f32(*bases);
        CRUMB_UNROLL
        for (int k = 0; k < 4; ++k)
            vst1q_f32(out + 4 * k, vfmaq_f32(base, step, vcvtq_f32_s32(s[k])));
    }
    static CRUMB_INLINE void add_to(float* sums, float factor, const acc* s) noexcept {
        CRUMB_UNROLL
        for (std::size_t k = 0; k < channels; ++k, sums += pq_sums)
            vst1q_f32(sums, vfmaq_n_f32(vld1q_f32(sums), vcvtq_f32_s32(s[k]), factor));
    }

    // ---- factors ----
    static constexpr std::size_t place(std::size_t quad) noexcept { return 4 * quad; }
    static constexpr std::size_t token(std::size_t i) noexcept { return 4 * i; }
    static CRUMB_INLINE void maxima(const f32* x, float* out) noexcept {
        vst1q_f32(out, vpmaxq_f32(vpmaxq_f32(x[0], x[1]), vpmaxq_f32(x[2], x[3])));
    }
    template <bool Two, bool>
    static CRUMB_INLINE void round(const f32* x, std::int8_t* high, std::int8_t* low, acc& sum) noexcept {
        const int16x8_t a = vuzp1q_s16(bits(x[0]), bits(x[1])), b = vuzp1q_s16(bits(x[2]), bits(x[3]));
        sum = vpadalq_s16(vpadalq_s16(sum, a), b);
        if constexpr (Two) {
            const int16x8_t c = vrshrq_n_s16(a, 7), d = vrshrq_n_s16(b, 7);
            store(high, narrow(c, d));
            store(low, narrow(vsubq_s16(a, vshlq_n_s16(c, 7)), vsubq_s16(b, vshlq_n_s16(d, 7))));
        } else {
            store(high, narrow(a, b));
        }
    }

  private:
    /// Rounded, the lower halves of lanes first.
    static CRUMB_INLINE int16x8_t bits(f32 x) noexcept { return vreinterpretq_s16_s32(vcvtnq_s32_f32(x)); }
    static CRUMB_INLINE reg narrow(int16x8_t a, int16x8_t b) noexcept {
        return vuzp1q_s8(vreinterpretq_s8_s16(a), vreinterpretq_s8_s16(b));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
