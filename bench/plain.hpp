// The plain baseline: what an engine does that keeps weights in GGUF's blocks. One output channel at a time,
// block by block: unpack (and, shift, subtract 8), dot product, and one reduction across the register at the
// end of the row. It uses the ISA's dot instruction, the hardware's half conversion, two accumulators and
// activations that are already quantized, so that its distance to the packed kernels is what the layout
// makes.
#pragma once

#include <crumb/format/list.hpp>
#include <crumb/isa/primitives.hpp>

#include <cstring>

namespace crumb::bench {

/// A row of quantized activations in plain order.
struct plain_row {
    const std::int8_t* codes = nullptr;
    const float* scales = nullptr; ///< one per group of 32
};

/// Dot products of one block, for an ISA.
template <class Isa>
struct plain_primitives;

/// `product` for an ISA; the body is in plain.inl.
template <class Isa>
struct plain;

/// Whether there is a plain baseline for a format.
template <class F, class Isa>
concept has_plain =
    requires(const typename F::block& w, const std::int8_t* x) { plain_primitives<Isa>::dot(w, x); };

template <>
struct plain_primitives<isa::portable> {
    using f32 = float;
    static CRUMB_INLINE f32 zero() noexcept { return 0; }
    static CRUMB_INLINE f32 accumulate(f32 total, std::int32_t dot, float scale) noexcept {
        return total + static_cast<float>(dot) * scale;
    }
    static CRUMB_INLINE float sum(f32 a, f32 b) noexcept { return a + b; }
    static CRUMB_INLINE float scale(half h) noexcept { return to_float(h); }
    static CRUMB_INLINE std::int32_t dot(const q4_0::block& w, const std::int8_t* x) noexcept {
        std::int32_t s = 0;
        for (int i = 0; i < 16; ++i)
            s += ((w.q[i] & 15) - 8) * x[i] + ((w.q[i] >> 4) - 8) * x[16 + i];
        return s;
    }
    static CRUMB_INLINE std::int32_t dot(const q8_0::block& w, const std::int8_t* x) noexcept {
        std::int32_t s = 0;
        for (int i = 0; i < 32; ++i)
            s += w.q[i] * x[i];
        return s;
    }
};

} // namespace crumb::bench

#define CRUMB_THIS_ISA portable
#include "plain.inl"
#undef CRUMB_THIS_ISA

#if CRUMB_BUILDS_X86

CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX2)
namespace crumb::bench {

template <>
struct plain_primitives<isa::avx2> {
    using f32 = __m256;
    static CRUMB_INLINE f32 zero() noexcept { return _mm256_setzero_ps(); }
    static CRUMB_INLINE f32 accumulate(f32 total, __m256i dot, float scale) noexcept {
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(scale), total);
    }
    static CRUMB_INLINE float sum(f32 a, f32 b) noexcept { return isa::avx2::sum(_mm256_add_ps(a, b)); }
    static CRUMB_INLINE float scale(half h) noexcept { return _cvtsh_ss(h.bits); }
    static CRUMB_INLINE __m256i codes(const q4_0::block& w) noexcept {
        const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.q));
        const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(raw), _mm_srli_epi16(raw, 4), 1);
        return _mm256_sub_epi8(_mm256_and_si256(both, _mm256_set1_epi8(15)), _mm256_set1_epi8(8));
    }
    static CRUMB_INLINE __m256i codes(const q8_0::block& w) noexcept {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w.q));
    }
    template <class Block>
    requires requires(const Block& block) { codes(block); }
    static CRUMB_INLINE __m256i dot(const Block& block, const std::int8_t* x) noexcept {
        const __m256i w = codes(block);
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
        return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    }
};

} // namespace crumb::bench
#define CRUMB_THIS_ISA avx2
#include "plain.inl"
#undef CRUMB_THIS_ISA
CRUMB_TARGET_END

CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX_VNNI)
namespace crumb::bench {

template <>
struct plain_primitives<isa::avx_vnni> : plain_primitives<isa::avx2> {
    template <class Block>
    requires requires(const Block& block) { codes(block); }
    static CRUMB_INLINE __m256i dot(const Block& block, const std::int8_t* x) noexcept {
        const __m256i w = codes(block);
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
        return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), _mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
    }
};

} // namespace crumb::bench
#define CRUMB_THIS_ISA avx_vnni
#include "plain.inl"
#undef CRUMB_THIS_ISA
CRUMB_TARGET_END

CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX512_VNNI)
namespace crumb::bench {

// A block is 32 codes, so half a register is all that a dot product of one channel can fill.
template <>
struct plain_primitives<isa::avx512_vnni> : plain_primitives<isa::avx2> {
    template <class Block>
    requires requires(const Block& block) { codes(block); }
    static CRUMB_INLINE __m256i dot(const Block& block, const std::int8_t* x) noexcept {
        const __m256i w = codes(block);
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
        return _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
    }
};

} // namespace crumb::bench
#define CRUMB_THIS_ISA avx512_vnni
#include "plain.inl"
#undef CRUMB_THIS_ISA
CRUMB_TARGET_END

#endif

#if CRUMB_BUILDS_NEON

namespace crumb::bench {

template <>
struct plain_primitives<isa::neon> {
    using f32 = float32x4_t;
    static CRUMB_INLINE f32 zero() noexcept { return vdupq_n_f32(0); }
    static CRUMB_INLINE f32 accumulate(f32 total, int32x4_t dot, float scale) noexcept {
        return vfmaq_n_f32(total, vcvtq_f32_s32(dot), scale);
    }
    static CRUMB_INLINE float sum(f32 a, f32 b) noexcept { return vaddvq_f32(vaddq_f32(a, b)); }
    static CRUMB_INLINE float scale(half h) noexcept {
        __fp16 value;
        __builtin_memcpy(&value, &h, sizeof value);
        return static_cast<float>(value);
    }
    static CRUMB_INLINE int8x16_t low(const q4_0::block& w) noexcept {
        return vsubq_s8(vreinterpretq_s8_u8(vandq_u8(vld1q_u8(w.q), vdupq_n_u8(15))), vdupq_n_s8(8));
    }
    static CRUMB_INLINE int8x16_t high(const q4_0::block& w) noexcept {
        return vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(vld1q_u8(w.q), 4)), vdupq_n_s8(8));
    }
    // Four products of at most 8 * 127 fit a 16-bit lane, two of 128 * 127 do.
    static CRUMB_INLINE int32x4_t dot(const q4_0::block& w, const std::int8_t* x) noexcept {
        const int8x16_t w0 = low(w), w1 = high(w), x0 = vld1q_s8(x), x1 = vld1q_s8(x + 16);
        int16x8_t s = vmull_s8(vget_low_s8(w0), vget_low_s8(x0));
        s = vmlal_high_s8(s, w0, x0);
        s = vmlal_s8(s, vget_low_s8(w1), vget_low_s8(x1));
        return vpaddlq_s16(vmlal_high_s8(s, w1, x1));
    }
    static CRUMB_INLINE int32x4_t dot(const q8_0::block& w, const std::int8_t* x) noexcept {
        const int8x16_t w0 = vld1q_s8(w.q), w1 = vld1q_s8(w.q + 16), x0 = vld1q_s8(x), x1 = vld1q_s8(x + 16);
        int16x8_t s0 = vmull_s8(vget_low_s8(w0), vget_low_s8(x0));
        int16x8_t s1 = vmull_s8(vget_low_s8(w1), vget_low_s8(x1));
        s0 = vmlal_high_s8(s0, w0, x0);
        s1 = vmlal_high_s8(s1, w1, x1);
        return vpadalq_s16(vpaddlq_s16(s0), s1);
    }
};

} // namespace crumb::bench
#define CRUMB_THIS_ISA neon
#include "plain.inl"
#undef CRUMB_THIS_ISA

#endif

#if CRUMB_BUILDS_NEON_DOTPROD

CRUMB_TARGET_BEGIN(CRUMB_TARGET_NEON_DOTPROD)
namespace crumb::bench {

template <>
struct plain_primitives<isa::neon_dotprod> : plain_primitives<isa::neon> {
    static CRUMB_INLINE int32x4_t dot(const q4_0::block& w, const std::int8_t* x) noexcept {
        return vdotq_s32(vdotq_s32(vdupq_n_s32(0), low(w), vld1q_s8(x)), high(w), vld1q_s8(x + 16));
    }
    static CRUMB_INLINE int32x4_t dot(const q8_0::block& w, const std::int8_t* x) noexcept {
        return vdotq_s32(vdotq_s32(vdupq_n_s32(0), vld1q_s8(w.q), vld1q_s8(x)), vld1q_s8(w.q + 16),
                         vld1q_s8(x + 16));
    }
};

} // namespace crumb::bench
#define CRUMB_THIS_ISA neon_dotprod
#include "plain.inl"
#undef CRUMB_THIS_ISA
CRUMB_TARGET_END

#endif

#if CRUMB_BUILDS_NEON_I8MM

// SMMLA has nothing to offer to one channel and one row.
CRUMB_TARGET_BEGIN(CRUMB_TARGET_NEON_I8MM)
namespace crumb::bench {

template <>
struct plain_primitives<isa::neon_i8mm> : plain_primitives<isa::neon_dotprod> {};

} // namespace crumb::bench
#define CRUMB_THIS_ISA neon_i8mm
#include "plain.inl"
#undef CRUMB_THIS_ISA
CRUMB_TARGET_END

#endif
