// Bytes of pairs of channels, and their products with integers of 16 bits by vpmaddwd. No loops but over
// registers.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx2
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct pq_words_avx2 {
    using acc = __m256i;
    using f32 = __m256;

    /// Two channels of 32 tokens beside each other.
    static CRUMB_INLINE void keep(std::uint8_t* to, __m256i a, __m256i b) noexcept {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_unpacklo_epi8(a, b));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), _mm256_unpackhi_epi8(a, b));
    }
    /// Where `keep` puts tokens 8 i .. 8 i + 7 of the 32.
    static constexpr std::size_t place(std::size_t i) noexcept { return i / 2 * 16 + i % 2 * 32; }
    static CRUMB_INLINE __m256i load(const std::uint8_t* p) noexcept {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static CRUMB_INLINE __m256i load_query(const std::int16_t* two) noexcept {
        std::int32_t x;
        __builtin_memcpy(&x, two, sizeof x);
        return _mm256_set1_epi32(x);
    }
    static CRUMB_INLINE acc zero() noexcept { return _mm256_setzero_si256(); }
    static CRUMB_INLINE void dot(acc& sum, __m256i a, __m256i b) noexcept {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
        __asm__("" : "+x"(sum)); // see `byte_products_avx2::dot`
    }
    static CRUMB_INLINE void store(acc sum, f32 step, float* out) noexcept {
        _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), step));
    }
    /// 128 high + low of 32 channels.
    static CRUMB_INLINE void widen(const std::uint8_t* high, const std::uint8_t* low,
                                   std::int16_t* out) noexcept {
        CRUMB_UNROLL
        for (std::size_t i = 0; i < 32; i += 16)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                                _mm256_add_epi16(_mm256_slli_epi16(load(high + i), 7), load(low + i)));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
