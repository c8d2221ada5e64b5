// Bytes of pairs and quads of channels, and their products with integers of 16 bits by vpmaddwd. No loops but
// over registers.
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
    /// Where the first or second half lies of 16 tokens from t on of pairs, as `keep` puts them, or of 8 of
    /// quads.
    template <std::size_t Beside>
    static constexpr std::size_t place(std::size_t t, std::size_t half) noexcept {
        return Beside == 4 ? 4 * t + 16 * half : 2 * (t - t % 32) + t % 32 + 32 * half;
    }
    static CRUMB_INLINE __m256i load(const std::uint8_t* p) noexcept {
        return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    template <std::size_t Beside>
    static CRUMB_INLINE __m256i load_query(const std::int16_t* some) noexcept {
        if constexpr (Beside == 4) {
            std::int64_t x;
            __builtin_memcpy(&x, some, sizeof x);
            return _mm256_set1_epi64x(x);
        } else {
            std::int32_t x;
            __builtin_memcpy(&x, some, sizeof x);
            return _mm256_set1_epi32(x);
        }
    }
    static CRUMB_INLINE acc zero() noexcept { return _mm256_setzero_si256(); }
    static CRUMB_INLINE void dot(acc& sum, __m256i a, __m256i b) noexcept {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
        __asm__("" : "+x"(sum)); // see `byte_products_avx2::dot`
    }
    /// step * the sums of 16 tokens, or of 8 whose quads were added in two lanes each.
    template <std::size_t Beside>
    static CRUMB_INLINE void store(acc first, acc second, f32 step, float* out) noexcept {
        if constexpr (Beside == 4) {
            store_eight(_mm256_permute4x64_epi64(_mm256_hadd_epi32(first, second), 0xd8), step, out);
        } else {
            store_eight(first, step, out);
            store_eight(second, step, out + 8);
        }
    }
    /// 128 high + low of 32 channels.
    static CRUMB_INLINE void widen(const std::uint8_t* high, const std::uint8_t* low,
                                   std::int16_t* out) noexcept {
        CRUMB_UNROLL
        for (std::size_t i = 0; i < 32; i += 16)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                                _mm256_add_epi16(_mm256_slli_epi16(load(high + i), 7), load(low + i)));
    }

  private:
    static CRUMB_INLINE void store_eight(acc sum, f32 step, float* out) noexcept {
        _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), step));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
