// Products of bytes with integers of 16 bits by vpdpwssd. No loops but over registers.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vnni
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct byte_products_512 {
    static constexpr std::size_t from = 2;
    static constexpr std::size_t width = 64, sets = 2, tokens = 2;
    using reg = __m512i;
    using acc = __m512i;
    using f32 = __m512;

    static CRUMB_INLINE acc zero() noexcept { return _mm512_setzero_si512(); }
    static CRUMB_INLINE reg load(const void* p) noexcept { return _mm512_loadu_si512(p); }
    static CRUMB_INLINE void dot(acc& sum, reg a, reg b) noexcept {
        sum = isa::avx512_vnni::add_products(sum, a, b);
    }
    static CRUMB_INLINE f32 to_f32(acc sum) noexcept { return _mm512_cvtepi32_ps(sum); }

    // ---- scores ----
    static CRUMB_INLINE void by_quads(const reg* rows, reg* quads) noexcept {
        const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]),
                      b = _mm512_unpacklo_epi32(rows[2], rows[3]),
                      c = _mm512_unpackhi_epi32(rows[0], rows[1]),
                      d = _mm512_unpackhi_epi32(rows[2], rows[3]);
        quads[0] = _mm512_unpacklo_epi64(a, b);
        quads[1] = _mm512_unpackhi_epi64(a, b);
        quads[2] = _mm512_unpacklo_epi64(c, d);
        quads[3] = _mm512_unpackhi_epi64(c, d);
    }
    static CRUMB_INLINE reg even(reg x) noexcept { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
    static CRUMB_INLINE reg odd(reg x) noexcept { return _mm512_srai_epi16(x, 8); }
    static CRUMB_INLINE f32 scales(const float* groups) noexcept {
        const __m512 first = _mm512_broadcast_f32x4(_mm_loadu_ps(groups));
        return _mm512_mask_broadcast_f32x4(first, 0xff00, _mm_loadu_ps(groups + kv_block_tokens));
    }
    static CRUMB_INLINE void store(const f32* sums, float step, float* out) noexcept {
        const __m512 s = _mm512_add_ps(_mm512_shuffle_f32x4(sums[0], sums[1], 0x44),
                                       _mm512_shuffle_f32x4(sums[0], sums[1], 0xee));
        const __m256 a = _mm512_castps512_ps256(s), b = _mm512_extractf32x8_ps(s, 1);
        const __m256 both =
            _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
        _mm256_storeu_ps(out, _mm256_mul_ps(both, _mm256_set1_ps(step)));
    }

    // ---- values ----
    static CRUMB_INLINE reg widen(const std::int8_t* p) noexcept {
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static CRUMB_INLINE void interleave(reg a, reg b, reg& low, reg& high) noexcept {
        low = _mm512_unpacklo_epi16(a, b);
        high = _mm512_unpackhi_epi16(a, b);
    }
    static CRUMB_INLINE reg load_weights(const std::int16_t* two) noexcept {
        std::int32_t x;
        __builtin_memcpy(&x, two, sizeof x);
        return _mm512_set1_epi32(x);
    }
    static CRUMB_INLINE void in_order(f32& low, f32& high) noexcept {
        const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512 a = low, b = high;
        low = _mm512_permutex2var_ps(a, i, b);
        high = _mm512_permutex2var_ps(a, _mm512_or_si512(i, _mm512_set1_epi32(8)), b);
    }
    static CRUMB_INLINE void round(const float* p, const float* d, std::int16_t* out) noexcept {
        const __m512 w = _mm512_mul_ps(_mm512_loadu_ps(p), _mm512_loadu_ps(d));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(w)));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
