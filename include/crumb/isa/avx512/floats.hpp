// Registers of 16 floats and of 8 doubles, as all ISAs with 64-byte registers have them.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/isa/list.hpp>

#if CRUMB_BUILDS_X86

#include <immintrin.h>

CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX512_VNNI)
CRUMB_IGNORE_UNDEFINED_BEGIN

namespace crumb::inline CRUMB_ABI::isa {

struct avx512_floats {
    using f32 = __m512;
    using f64 = __m512d;
    using i32 = __m512i;

    static CRUMB_INLINE f32 as_f32(i32 a) noexcept { return _mm512_castsi512_ps(a); }
    static CRUMB_INLINE i32 as_i32(f32 a) noexcept { return _mm512_castps_si512(a); }

    // ---- floats ----
    static CRUMB_INLINE f32 zero() noexcept { return _mm512_setzero_ps(); }
    static CRUMB_INLINE f32 set1(float x) noexcept { return _mm512_set1_ps(x); }
    static CRUMB_INLINE f32 set1(half x) noexcept {
        return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(x.bits)));
    }
    static CRUMB_INLINE f32 load(const float* p) noexcept { return _mm512_loadu_ps(p); }
    static CRUMB_INLINE void store(float* p, f32 x) noexcept { _mm512_storeu_ps(p, x); }
    static CRUMB_INLINE f32 load_partial(const float* p, std::size_t n) noexcept {
        return _mm512_maskz_loadu_ps(mask(n), p);
    }
    static CRUMB_INLINE void store_partial(float* p, f32 x, std::size_t n) noexcept {
        _mm512_mask_storeu_ps(p, mask(n), x);
    }
    static CRUMB_INLINE f32 load(const half* p) noexcept {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static CRUMB_INLINE f32 load(const bf16* p) noexcept {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return as_f32(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    }
    static CRUMB_INLINE void store(half* p, f32 x) noexcept {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    static CRUMB_INLINE f32 add(f32 a, f32 b) noexcept { return _mm512_add_ps(a, b); }
    static CRUMB_INLINE f32 sub(f32 a, f32 b) noexcept { return _mm512_sub_ps(a, b); }
    static CRUMB_INLINE f32 mul(f32 a, f32 b) noexcept { return _mm512_mul_ps(a, b); }
    static CRUMB_INLINE f32 mul_rounded(f32 a, f32 b) noexcept {
        f32 x = mul(a, b);
        CRUMB_ROUND_PRODUCT(x);
        return x;
    }
    static CRUMB_INLINE f32 div(f32 a, f32 b) noexcept { return _mm512_div_ps(a, b); }
    static CRUMB_INLINE f32 fma(f32 a, f32 b, f32 c) noexcept { return _mm512_fmadd_ps(a, b, c); }
    static CRUMB_INLINE f32 min(f32 a, f32 b) noexcept { return _mm512_min_ps(a, b); }
    static CRUMB_INLINE f32 max(f32 a, f32 b) noexcept { return _mm512_max_ps(a, b); }
    static CRUMB_INLINE f32 sqrt(f32 a) noexcept { return _mm512_sqrt_ps(a); }
    static CRUMB_INLINE f32 abs(f32 a) noexcept { return _mm512_abs_ps(a); }
    static CRUMB_INLINE f32 copy_sign(f32 magnitude, f32 sign) noexcept {
        const __m512i top = _mm512_set1_epi32(INT32_MIN);
        return as_f32(_mm512_ternarylogic_epi32(top, as_i32(sign), as_i32(magnitude), 0xca));
    }
    static CRUMB_INLINE f32 select_less(f32 a, f32 b, f32 yes, f32 no) noexcept {
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
    }
    static CRUMB_INLINE float sum(f32 a) noexcept { return _mm512_reduce_add_ps(a); }
    static CRUMB_INLINE float maximum(f32 a) noexcept { return _mm512_reduce_max_ps(a); }

    static CRUMB_INLINE void sum4(f32 a, f32 b, f32 c, f32 d, float* out) noexcept {
        const __m512d ab =
            _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
        const __m512d cd =
            _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
        const __m512 s = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                                       _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
        const __m256 t = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
        _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1)));
    }
    static CRUMB_INLINE void load_pairs(const float* p, f32& even, f32& odd) noexcept {
        const __m512i i = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
        even = _mm512_permutex2var_ps(a, i, b);
        odd = _mm512_permutex2var_ps(a, _mm512_or_si512(i, _mm512_set1_epi32(1)), b);
    }
    static CRUMB_INLINE void store_pairs(float* p, f32 even, f32 odd) noexcept {
        const __m512i i = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        _mm512_storeu_ps(p, _mm512_permutex2var_ps(even, i, odd));
        _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(even, _mm512_or_si512(i, _mm512_set1_epi32(8)), odd));
    }

    // ---- doubles ----
    static CRUMB_INLINE f64 set1_f64(double x) noexcept { return _mm512_set1_pd(x); }
    static CRUMB_INLINE f64 load(const double* p) noexcept { return _mm512_loadu_pd(p); }
    static CRUMB_INLINE void store(double* p, f64 x) noexcept { _mm512_storeu_pd(p, x); }
    static CRUMB_INLINE f64 sub(f64 a, f64 b) noexcept { return _mm512_sub_pd(a, b); }
    static CRUMB_INLINE f64 mul_rounded(f64 a, f64 b) noexcept {
        f64 x = _mm512_mul_pd(a, b);
        CRUMB_ROUND_PRODUCT(x);
        return x;
    }

  protected:
    static CRUMB_INLINE __mmask16 mask(std::size_t n) noexcept {
        return static_cast<__mmask16>((1u << n) - 1u);
    }
};

} // namespace crumb::inline CRUMB_ABI::isa

CRUMB_IGNORE_UNDEFINED_END
CRUMB_TARGET_END

#endif
