// Products of bytes with integers of 16 bits by vpmaddwd. No loops but over registers.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx2
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct byte_products_avx2 {
    static constexpr std::size_t from = 1;
    static constexpr std::size_t width = 32, sets = 1, tokens = 2;
    using reg = __m256i;
    using acc = __m256i;
    using f32 = __m256;

    static CRUMB_INLINE acc zero() noexcept { return _mm256_setzero_si256(); }
    static CRUMB_INLINE reg load(const void* p) noexcept {
        return _mm256_loadu_si256(static_cast<const __m256i*>(p));
    }
    static CRUMB_INLINE void dot(acc& sum, reg a, reg b) noexcept {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
        // GCC would bring sums into another order, for which there are not enough registers.
        __asm__("" : "+x"(sum));
    }
    static CRUMB_INLINE f32 to_f32(acc sum) noexcept { return _mm256_cvtepi32_ps(sum); }

    // ---- scores ----
    static CRUMB_INLINE void by_quads(const reg* rows, reg* quads) noexcept {
        const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]),
                      b = _mm256_unpacklo_epi32(rows[2], rows[3]),
                      c = _mm256_unpackhi_epi32(rows[0], rows[1]),
                      d = _mm256_unpackhi_epi32(rows[2], rows[3]);
        quads[0] = _mm256_unpacklo_epi64(a, b);
        quads[1] = _mm256_unpackhi_epi64(a, b);
        quads[2] = _mm256_unpacklo_epi64(c, d);
        quads[3] = _mm256_unpackhi_epi64(c, d);
    }
    static CRUMB_INLINE reg even(reg x) noexcept { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
    static CRUMB_INLINE reg odd(reg x) noexcept { return _mm256_srai_epi16(x, 8); }
    static CRUMB_INLINE f32 scales(const float* groups) noexcept {
        return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(groups));
    }
    static CRUMB_INLINE void store(const f32* sums, float step, float* out) noexcept {
        const __m128 s = _mm_add_ps(_mm256_castps256_ps128(sums[0]), _mm256_extractf128_ps(sums[0], 1));
        _mm_storeu_ps(out, _mm_mul_ps(s, _mm_set1_ps(step)));
    }

    // ---- values ----
    static CRUMB_INLINE reg widen(const std::int8_t* p) noexcept {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static CRUMB_INLINE void interleave(reg a, reg b, reg& low, reg& high) noexcept {
        low = _mm256_unpacklo_epi16(a, b);
        high = _mm256_unpackhi_epi16(a, b);
    }
    static CRUMB_INLINE reg load_weights(const std::int16_t* two) noexcept {
        std::int32_t x;
        __builtin_memcpy(&x, two, sizeof x);
        return _mm256_set1_epi32(x);
    }
    static CRUMB_INLINE void in_order(f32& low, f32& high) noexcept {
        const __m256 a = low, b = high;
        low = _mm256_permute2f128_ps(a, b, 0x20);
        high = _mm256_permute2f128_ps(a, b, 0x31);
    }
    static CRUMB_INLINE void round(const float* p, const float* d, std::int16_t* out) noexcept {
        const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p), _mm256_loadu_ps(d)));
        const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p + 8), _mm256_loadu_ps(d + 8)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                            _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
