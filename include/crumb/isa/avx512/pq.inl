// Primitives of scans of product-quantized codes for AVX-512: lookups in tables of bytes by vpshufb, and
// their sums. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vnni
#include <crumb/isa/editor.hpp>

#include <crumb/isa/avx2/pq_quads.inl>

#include <crumb/isa/avx512/pq_quads.inl>
#include <crumb/isa/avx512/pq_tables.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct pq_avx512 {
    using f32 = isa::avx512_vnni::f32;
    static constexpr int width = 64;
    static constexpr int most = 4;              ///< queries or planes that share a pass
    static constexpr bool holds_tables = false; ///< in registers; else they are operands in memory
    static constexpr bool pins_all = false;     ///< whether a pass of scores pins what each table gives
    static constexpr int table_registers_64 = 4, table_registers_256 = 16;
    using reg = __m512i;
    using table_16 = __m512i;
    using index_16 = __m512i;
    struct table_64 {
        __m512i part[4];
    };
    struct index_64 {
        __m512i low;
        __mmask64 bit4, bit5;
    };
    struct table_256 {
        table_64 part[4];
    };
    struct index_256 {
        index_64 low;
        __mmask64 bit6, bit7;
    };

    /// GCC would load what it uses as lanes of two widths once for each of them.
    static CRUMB_INLINE reg load(const std::uint8_t* p) noexcept {
        __m512i x = _mm512_loadu_si512(p);
        __asm__("" : "+v"(x));
        return x;
    }
    static CRUMB_INLINE reg add(reg a, reg b) noexcept { return _mm512_add_epi8(a, b); }

    static CRUMB_INLINE table_16 load_table_16(const void* p) noexcept {
        return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    }
    static CRUMB_INLINE index_16 low_nibbles(reg raw) noexcept {
        return _mm512_and_si512(raw, _mm512_set1_epi8(15));
    }
    static CRUMB_INLINE index_16 high_nibbles(reg raw) noexcept {
        return low_nibbles(_mm512_srli_epi16(raw, 4));
    }
    static CRUMB_INLINE reg look_up_16(table_16 t, index_16 i) noexcept { return _mm512_shuffle_epi8(t, i); }

    static CRUMB_INLINE table_64 load_table_64(const void* p) noexcept {
        const auto* t = static_cast<const __m128i*>(p);
        return {{load_table_16(t), load_table_16(t + 1), load_table_16(t + 2), load_table_16(t + 3)}};
    }
    /// All codes of a row: a register has the low 4 bits of two blocks, 32 tokens of each in low nibbles.
    struct six_codes {
        __m512i nibbles[2], twos[2]; ///< `twos`: the high 2 bits, of each block twice
    };
    static constexpr int sets_64 = 4;
    static CRUMB_INLINE six_codes load_six(const std::uint8_t* nibbles, const std::uint8_t* twos,
                                           std::size_t) noexcept {
        const __m512i t = load(twos);
        return {{load(nibbles), load(nibbles + 64)},
                {_mm512_shuffle_i32x4(t, t, 0x50), _mm512_shuffle_i32x4(t, t, 0xfa)}};
    }
    static CRUMB_INLINE index_64 six_bits(const six_codes& x, int set) noexcept {
        const __m512i nibbles = x.nibbles[set / 2], twos = x.twos[set / 2];
        const long long bits = set % 2 == 0 ? 0x0101010101010101 : 0x1010101010101010;
        const __m512i bit = _mm512_setr_epi64(bits, bits, 4 * bits, 4 * bits, bits, bits, 4 * bits, 4 * bits);
        return {set % 2 == 0 ? low_nibbles(nibbles) : high_nibbles(nibbles), _mm512_test_epi8_mask(twos, bit),
                _mm512_test_epi8_mask(twos, _mm512_add_epi8(bit, bit))};
    }
    static CRUMB_INLINE reg look_up_64(const table_64& t, const index_64& i) noexcept {
        const __m512i a =
            _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(t.part[0], i.low), i.bit4, t.part[1], i.low);
        const __m512i b =
            _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(t.part[2], i.low), i.bit4, t.part[3], i.low);
        return _mm512_mask_blend_epi8(i.bit5, a, b);
    }

    static CRUMB_INLINE table_256 load_table_256(const void* p) noexcept {
        const auto* t = static_cast<const std::uint8_t*>(p);
        return {{load_table_64(t), load_table_64(t + 64), load_table_64(t + 128), load_table_64(t + 192)}};
    }
    static CRUMB_INLINE index_256 eight_bits(reg raw) noexcept {
        return {{low_nibbles(raw), bit<4>(raw), bit<5>(raw)}, bit<6>(raw), bit<7>(raw)};
    }
    static CRUMB_INLINE reg look_up_256(const table_256& t, const index_256& i) noexcept {
        const __m512i a =
            _mm512_mask_blend_epi8(i.bit6, look_up_64(t.part[0], i.low), look_up_64(t.part[1], i.low));
        const __m512i b =
            _mm512_mask_blend_epi8(i.bit6, look_up_64(t.part[2], i.low), look_up_64(t.part[3], i.low));
        return _mm512_mask_blend_epi8(i.bit7, a, b);
    }

    /// Sums of bytes: `all` of 16-bit lanes as they are, modulo 2^16, `odd` of their upper bytes.
    struct sums {
        __m512i all, odd;
    };
    /// Keeps the compiler from moving loads and prefetches across what x is made of: memory takes lines best
    /// one by one, with arithmetic in between; two prefetches beside each other cost a quarter of the
    /// bandwidth.
    static CRUMB_INLINE void pin(__m512i& x) noexcept { __asm__ volatile("" : "+v"(x) : : "memory"); }

    static CRUMB_INLINE sums start() noexcept { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }
    static CRUMB_INLINE void widen(sums& s, reg x) noexcept {
        s.all = _mm512_add_epi16(s.all, x);
        s.odd = _mm512_add_epi16(s.odd, _mm512_srli_epi16(x, 8));
    }
    /// The first half of the lanes goes to `low`, the other to `high`.
    static CRUMB_INLINE void store(const sums& s, std::uint16_t* low, std::uint16_t* high) noexcept {
        const __m512i even = _mm512_sub_epi16(s.all, _mm512_slli_epi16(s.odd, 8));
        const __m512i a = _mm512_unpacklo_epi16(even, s.odd), b = _mm512_unpackhi_epi16(even, s.odd);
        const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
        _mm512_storeu_si512(low, _mm512_permutex2var_epi64(a, first, b));
        _mm512_storeu_si512(high, _mm512_permutex2var_epi64(a, second, b));
    }
    static CRUMB_INLINE f32 load_sums(const std::uint16_t* p) noexcept {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(x));
    }

    template <int Dims>
    using wide_row = pq_wide_row<Dims>;
    using quads = pq_quads_512<true>;

    using dots = __m512i;
    static CRUMB_INLINE dots start_dots() noexcept { return _mm512_setzero_si512(); }
    static CRUMB_INLINE void dot(dots& s, reg weights, reg values) noexcept {
        s = _mm512_dpbusd_epi32(s, weights, values);
        // GCC would keep copies of the sums that the instruction overwrites.
        __asm__("" : "+v"(s));
    }
    /// sums[c][i] += factor * (lanes i and i + 8 of s[c]), of 1, 2 or 4 channels.
    template <int Channels>
    static CRUMB_INLINE void add_to(float* sums, float factor, const dots* s) noexcept {
        if constexpr (Channels == 1) {
            const __m256i eight =
                _mm256_add_epi32(_mm512_castsi512_si256(s[0]), _mm512_extracti64x4_epi64(s[0], 1));
            _mm256_storeu_ps(sums, _mm256_fmadd_ps(_mm256_set1_ps(factor), _mm256_cvtepi32_ps(eight),
                                                   _mm256_loadu_ps(sums)));
        } else {
            CRUMB_UNROLL
            for (int i = 0; i < Channels; i += 2)
                _mm512_storeu_ps(sums + 8 * i, _mm512_fmadd_ps(_mm512_set1_ps(factor),
                                                               _mm512_cvtepi32_ps(pair(s[i], s[i + 1])),
                                                               _mm512_loadu_ps(sums + 8 * i)));
        }
    }

  private:
    /// Sums of the halves of a, then those of b.
    static CRUMB_INLINE __m512i pair(__m512i a, __m512i b) noexcept {
        return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xee));
    }
    template <int Bit>
    static CRUMB_INLINE __mmask64 bit(reg raw) noexcept {
        return _mm512_test_epi8_mask(raw, _mm512_set1_epi8(static_cast<char>(1 << Bit)));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
