// Primitives of scans of product-quantized codes for AVX2: lookups in tables of bytes by vpshufb, and their
// sums. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx2
#include <crumb/isa/editor.hpp>

#include <crumb/isa/avx2/pq_quads.inl>
#include <crumb/isa/avx2/pq_words.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct pq_avx2 {
    using f32 = isa::avx2::f32;
    using quads = pq_quads_avx2;
    using words = pq_words_avx2;
    static constexpr int width = 32;
    static constexpr int most = 4;              ///< queries or planes that share a pass
    static constexpr bool holds_tables = false; ///< in registers; else they are operands in memory
    static constexpr bool pins_all = true;      ///< whether a pass of scores pins what each table gives
    static constexpr int table_registers_64 = 4, table_registers_256 = 16;
    using reg = __m256i;
    using table_16 = const __m128i*;
    using index_16 = __m256i;
    using table_64 = const __m128i*;
    using table_256 = const __m128i*;
    struct index_64 {
        __m256i low, bit4, bit5; ///< the bits at the top of bytes
    };
    struct index_256 {
        index_64 low;
        __m256i bit6, bit7;
    };

    static CRUMB_INLINE reg load(const std::uint8_t* p) noexcept {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static CRUMB_INLINE reg add(reg a, reg b) noexcept { return _mm256_add_epi8(a, b); }

    static CRUMB_INLINE table_16 load_table_16(const void* p) noexcept {
        return static_cast<const __m128i*>(p);
    }
    static CRUMB_INLINE index_16 low_nibbles(reg raw) noexcept {
        return _mm256_and_si256(raw, _mm256_set1_epi8(15));
    }
    static CRUMB_INLINE index_16 high_nibbles(reg raw) noexcept {
        return low_nibbles(_mm256_srli_epi16(raw, 4));
    }
    static CRUMB_INLINE reg look_up_16(table_16 t, index_16 i) noexcept {
        return _mm256_shuffle_epi8(twice(t), i);
    }

    static CRUMB_INLINE table_64 load_table_64(const void* p) noexcept { return load_table_16(p); }
    /// The codes of a block.
    struct six_codes {
        __m256i nibbles, twos; ///< `twos`: the high 2 bits, twice
    };
    static constexpr int sets_64 = 2;
    static CRUMB_INLINE six_codes load_six(const std::uint8_t* nibbles, const std::uint8_t* twos,
                                           std::size_t u) noexcept {
        return {load(nibbles + 32 * u), twice(load_table_16(twos + 16 * u))};
    }
    static CRUMB_INLINE index_64 six_bits(const six_codes& x, int set) noexcept {
        const int a = set == 0 ? 7 : 3;
        const __m256i up = _mm256_setr_epi32(a, a, a, a, a - 2, a - 2, a - 2, a - 2);
        const __m256i one = _mm256_set1_epi32(1);
        return {set == 0 ? low_nibbles(x.nibbles) : high_nibbles(x.nibbles), _mm256_sllv_epi32(x.twos, up),
                _mm256_sllv_epi32(x.twos, _mm256_sub_epi32(up, one))};
    }
    static CRUMB_INLINE reg look_up_64(table_64 t, const index_64& i) noexcept {
        const __m256i a = blend(look_up_16(t, i.low), look_up_16(t + 1, i.low), i.bit4);
        const __m256i b = blend(look_up_16(t + 2, i.low), look_up_16(t + 3, i.low), i.bit4);
        return blend(a, b, i.bit5);
    }

    static CRUMB_INLINE table_256 load_table_256(const void* p) noexcept { return load_table_16(p); }
    static CRUMB_INLINE index_256 eight_bits(reg raw) noexcept {
        return {{low_nibbles(raw), _mm256_slli_epi16(raw, 3), _mm256_slli_epi16(raw, 2)},
                _mm256_slli_epi16(raw, 1),
                raw};
    }
    static CRUMB_INLINE reg look_up_256(table_256 t, const index_256& i) noexcept {
        const __m256i a = blend(look_up_64(t, i.low), look_up_64(t + 4, i.low), i.bit6);
        const __m256i b = blend(look_up_64(t + 8, i.low), look_up_64(t + 12, i.low), i.bit6);
        return blend(a, b, i.bit7);
    }

    /// Sums of bytes: `all` of 16-bit lanes as they are, modulo 2^16, `odd` of their upper bytes.
    struct sums {
        __m256i all, odd;
    };
    /// Makes the compiler finish x here and load tables where they are used: it would rather have all tables
    /// and all that is looked up at once, for which there are not enough registers.
    static CRUMB_INLINE void pin(__m256i& x) noexcept { __asm__ volatile("" : "+x"(x) : : "memory"); }

    static CRUMB_INLINE sums start() noexcept { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static CRUMB_INLINE void widen(sums& s, reg x) noexcept {
        s.all = _mm256_add_epi16(s.all, x);
        s.odd = _mm256_add_epi16(s.odd, _mm256_srli_epi16(x, 8));
        // GCC would keep a copy of every sum for what follows the loop.
        __asm__("" : "+x"(s.all), "+x"(s.odd));
    }
    /// The first half of the lanes goes to `low`, the other to `high`.
    static CRUMB_INLINE void store(const sums& s, std::uint16_t* low, std::uint16_t* high) noexcept {
        const __m256i even = _mm256_sub_epi16(s.all, _mm256_slli_epi16(s.odd, 8));
        const __m256i a = _mm256_unpacklo_epi16(even, s.odd), b = _mm256_unpackhi_epi16(even, s.odd);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(low), _mm256_permute2x128_si256(a, b, 0x20));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(high), _mm256_permute2x128_si256(a, b, 0x31));
    }
    static CRUMB_INLINE f32 load_sums(const std::uint16_t* p) noexcept {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(x));
    }

    using dots = __m256i;
    static CRUMB_INLINE dots start_dots() noexcept { return _mm256_setzero_si256(); }
    /// Two products are at most 2 * 127 * 128 = 32512.
    static CRUMB_INLINE void dot(dots& s, reg weights, reg values) noexcept {
        const __m256i pairs = _mm256_maddubs_epi16(weights, values);
        s = _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        __asm__("" : "+x"(s)); // see `byte_products_avx2::dot`
    }
    /// sums[c][i] += factor * (lane i of s[c]), of 1, 2 or 4 channels.
    template <int Channels>
    static CRUMB_INLINE void add_to(float* sums, float factor, const dots* s) noexcept {
        CRUMB_UNROLL
        for (int i = 0; i < Channels; ++i)
            _mm256_storeu_ps(sums + 8 * i, _mm256_fmadd_ps(_mm256_set1_ps(factor), _mm256_cvtepi32_ps(s[i]),
                                                           _mm256_loadu_ps(sums + 8 * i)));
    }

  private:
    static CRUMB_INLINE __m256i twice(const __m128i* p) noexcept {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(p));
    }
    /// `_mm256_blendv_epi8`, which GCC takes for a comparison with 0 and a blend.
    static CRUMB_INLINE reg blend(reg a, reg b, reg top) noexcept {
        __asm__("vpblendvb %3, %2, %1, %0" : "=x"(a) : "x"(a), "x"(b), "x"(top));
        return a;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
