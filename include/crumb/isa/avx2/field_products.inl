// Products of codes of 2 and 4 bits with bytes by vpmaddubsw. No loops but over registers.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx2
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct field_products_avx2 {
    static constexpr std::size_t width = 32;
    static constexpr std::size_t tile = 2, channels = 1;
    /// Two products of codes with bytes of up to 127 per quad, in 16 bits: 8 quads, or 40.
    static constexpr std::size_t at_once(int bits) noexcept {
        return (32767u / 254) / ((1u << bits) - 1) / 4 * 4;
    }
    using reg = __m256i;
    using acc = __m256i;
    using f32 = __m256;

    // ---- codes ----
    static CRUMB_INLINE reg load(const void* p) noexcept {
        return _mm256_loadu_si256(static_cast<const __m256i*>(p));
    }
    static CRUMB_INLINE void store(void* p, reg x) noexcept {
        _mm256_storeu_si256(static_cast<__m256i*>(p), x);
    }
    template <int Bits, int Half, int>
    static CRUMB_INLINE reg codes(const std::uint8_t* unit) noexcept {
        if constexpr (Bits == 4) {
            const __m256i raw = load(unit);
            return _mm256_and_si256(Half == 0 ? raw : _mm256_srli_epi16(raw, 4), _mm256_set1_epi8(15));
        } else {
            // Tokens 0 .. 15 of the half in the low lane, the others, two bits above them, in the high one.
            const __m256i raw =
                _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(unit)));
            constexpr int a = 4 * Half, b = a + 2;
            return _mm256_and_si256(_mm256_srlv_epi32(raw, _mm256_setr_epi32(a, a, a, a, b, b, b, b)),
                                    _mm256_set1_epi8(3));
        }
    }
    static CRUMB_INLINE void by_quads(const reg* c, reg* out) noexcept {
        const __m256i a = _mm256_unpacklo_epi8(c[0], c[1]), b = _mm256_unpackhi_epi8(c[0], c[1]);
        const __m256i x = _mm256_unpacklo_epi8(c[2], c[3]), y = _mm256_unpackhi_epi8(c[2], c[3]);
        out[0] = _mm256_unpacklo_epi16(a, x);
        out[1] = _mm256_unpackhi_epi16(a, x);
        out[2] = _mm256_unpacklo_epi16(b, y);
        out[3] = _mm256_unpackhi_epi16(b, y);
    }
    static CRUMB_INLINE reg factors(const std::int8_t* first, std::size_t) noexcept {
        std::int32_t x;
        __builtin_memcpy(&x, first, sizeof x);
        return _mm256_set1_epi32(x);
    }

    // ---- products ----
    static CRUMB_INLINE acc zero() noexcept { return _mm256_setzero_si256(); }
    static CRUMB_INLINE void dot(acc& sum, reg codes, reg by) noexcept {
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, by));
        __asm__("" : "+x"(sum)); // see `byte_products_avx2::dot`
    }
    static CRUMB_INLINE acc widen(acc sum) noexcept { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
    static CRUMB_INLINE acc plus(acc a, acc b) noexcept { return _mm256_add_epi32(a, b); }
    static CRUMB_INLINE acc times_128(acc a) noexcept { return _mm256_slli_epi32(a, 7); }
    static CRUMB_INLINE void put(const acc* s, const float* steps, const float* bases, float* out) noexcept {
        const __m256 step = _mm256_set1_ps(*steps), base = _mm256_set1_ps(*bases);
        put(out, step, base, _mm256_permute2x128_si256(s[0], s[1], 0x20));
        put(out + 8, step, base, _mm256_permute2x128_si256(s[2], s[3], 0x20));
        put(out + 16, step, base, _mm256_permute2x128_si256(s[0], s[1], 0x31));
        put(out + 24, step, base, _mm256_permute2x128_si256(s[2], s[3], 0x31));
    }

    static CRUMB_INLINE void add_to(float* sums, float factor, const acc* s) noexcept {
        _mm256_storeu_ps(sums, _mm256_fmadd_ps(_mm256_set1_ps(factor), _mm256_cvtepi32_ps(widen(*s)),
                                               _mm256_loadu_ps(sums)));
    }

    // ---- factors ----
    static constexpr std::size_t place(std::size_t quad) noexcept {
        return quad / 8 * 32 + quad % 2 * 16 + quad % 8 / 2 * 4;
    }
    static constexpr std::size_t token(std::size_t i) noexcept { return 8 * i; }
    static CRUMB_INLINE void maxima(const f32* x, float* out) noexcept {
        const __m256 a = larger(x[0], x[2]), b = larger(x[1], x[3]);
        __m256 c = _mm256_max_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
        c = _mm256_max_ps(c, _mm256_permute_ps(c, 0xb1));
        _mm_storeu_ps(out, _mm_shuffle_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1), 0x88));
    }
    template <bool Two, bool InOrder>
    static CRUMB_INLINE void round(const f32* x, std::int8_t* high, std::int8_t* low, acc& sum) noexcept {
        const __m256i a = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
        const __m256i b = _mm256_packs_epi32(_mm256_cvtps_epi32(x[2]), _mm256_cvtps_epi32(x[3]));
        const __m256i one = _mm256_set1_epi16(1);
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(a, one), _mm256_madd_epi16(b, one)));
        if constexpr (Two) {
            const __m256i c = upper(a), d = upper(b);
            store<InOrder>(high, c, d);
            store<InOrder>(low, _mm256_sub_epi16(a, _mm256_slli_epi16(c, 7)),
                           _mm256_sub_epi16(b, _mm256_slli_epi16(d, 7)));
        } else {
            store<InOrder>(high, a, b);
        }
    }

  private:
    template <bool InOrder>
    static CRUMB_INLINE void store(std::int8_t* p, __m256i a, __m256i b) noexcept {
        const __m256i packed = _mm256_packs_epi16(a, b), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        store(p, InOrder ? _mm256_permutevar8x32_epi32(packed, order) : packed);
    }
    static CRUMB_INLINE __m256 larger(__m256 x, __m256 y) noexcept {
        return _mm256_max_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
    }
    static CRUMB_INLINE __m256i upper(__m256i x) noexcept {
        return _mm256_srai_epi16(_mm256_add_epi16(x, _mm256_set1_epi16(64)), 7);
    }
    static CRUMB_INLINE void put(float* out, __m256 step, __m256 base, __m256i s) noexcept {
        _mm256_storeu_ps(out, _mm256_fmadd_ps(step, _mm256_cvtepi32_ps(s), base));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
