// Primitives of scans of product-quantized codes for AVX2: lookups in tables of bytes by vpshufb, and their
// sums. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx2
#include <crumb/isa/editor.hpp>

#include <crumb/isa/avx2/pq_quads.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct pq_avx2 {
    using f32 = isa::avx2::f32;
    using quads = pq_quads_avx2;
    static constexpr int width = 32;
    static constexpr int most = 4;              ///< queries or planes that share a pass
    static constexpr bool holds_tables = false; ///< in registers; else they are operands in memory
    static constexpr int table_registers_64 = 4, table_registers_256 = 16;
    using reg = __m256i;
    using table_16 = __m256i;
    using index_16 = __m256i;
    struct table_64 {
        __m256i part[4];
    };
    struct index_64 {
        __m256i low, bit4, bit5; ///< the bits at the top of bytes
    };
    struct table_256 {
        table_64 part[4];
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
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    }
    static CRUMB_INLINE index_16 low_nibbles(reg raw) noexcept {
        return _mm256_and_si256(raw, _mm256_set1_epi8(15));
    }
    static CRUMB_INLINE index_16 high_nibbles(reg raw) noexcept {
        return low_nibbles(_mm256_srli_epi16(raw, 4));
    }
    static CRUMB_INLINE reg look_up_16(table_16 t, index_16 i) noexcept { return _mm256_shuffle_epi8(t, i); }

    static CRUMB_INLINE table_64 load_table_64(const void* p) noexcept {
        const auto* t = static_cast<const __m128i*>(p);
        return {{load_table_16(t), load_table_16(t + 1), load_table_16(t + 2), load_table_16(t + 3)}};
    }
    /// The codes of a block.
    struct six_codes {
        __m256i nibbles, twos; ///< `twos`: the high 2 bits, twice
    };
    static constexpr int sets_64 = 2;
    static CRUMB_INLINE six_codes load_six(const std::uint8_t* nibbles, const std::uint8_t* twos,
                                           std::size_t u) noexcept {
        return {load(nibbles + 32 * u), load_table_16(twos + 16 * u)};
    }
    static CRUMB_INLINE index_64 six_bits(const six_codes& x, int set) noexcept {
        const int a = set == 0 ? 7 : 3;
        const __m256i up = _mm256_setr_epi32(a, a, a, a, a - 2, a - 2, a - 2, a - 2);
        const __m256i one = _mm256_set1_epi32(1);
        return {set == 0 ? low_nibbles(x.nibbles) : high_nibbles(x.nibbles), _mm256_sllv_epi32(x.twos, up),
                _mm256_sllv_epi32(x.twos, _mm256_sub_epi32(up, one))};
    }
    static CRUMB_INLINE reg look_up_64(const table_64& t, const index_64& i) noexcept {
        const __m256i a =
            blend(_mm256_shuffle_epi8(t.part[0], i.low), _mm256_shuffle_epi8(t.part[1], i.low), i.bit4);
        const __m256i b =
            blend(_mm256_shuffle_epi8(t.part[2], i.low), _mm256_shuffle_epi8(t.part[3], i.low), i.bit4);
        return blend(a, b, i.bit5);
    }

    static CRUMB_INLINE table_256 load_table_256(const void* p) noexcept {
        const auto* t = static_cast<const std::uint8_t*>(p);
        return {{load_table_64(t), load_table_64(t + 64), load_table_64(t + 128), load_table_64(t + 192)}};
    }
    static CRUMB_INLINE index_256 eight_bits(reg raw) noexcept {
        return {{low_nibbles(raw), _mm256_slli_epi16(raw, 3), _mm256_slli_epi16(raw, 2)},
                _mm256_slli_epi16(raw, 1),
                raw};
    }
    static CRUMB_INLINE reg look_up_256(const table_256& t, const index_256& i) noexcept {
        const __m256i a = blend(look_up_64(t.part[0], i.low), look_up_64(t.part[1], i.low), i.bit6);
        const __m256i b = blend(look_up_64(t.part[2], i.low), look_up_64(t.part[3], i.low), i.bit6);
        return blend(a, b, i.bit7);
    }

    /// Sums of bytes: `all` of 16-bit lanes as they are, modulo 2^16, `odd` of their upper bytes.
    struct sums {
        __m256i all, odd;
    };
    /// See `pq_avx512::pin`; registers here are no lines.
    template <class T>
    static CRUMB_INLINE void pin(T&) noexcept {}

    static CRUMB_INLINE sums start() noexcept { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static CRUMB_INLINE void widen(sums& s, reg x) noexcept {
        s.all = _mm256_add_epi16(s.all, x);
        s.odd = _mm256_add_epi16(s.odd, _mm256_srli_epi16(x, 8));
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
    static CRUMB_INLINE reg blend(reg a, reg b, reg top) noexcept { return _mm256_blendv_epi8(a, b, top); }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
