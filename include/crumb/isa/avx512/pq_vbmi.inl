// Primitives of scans of product-quantized codes for AVX-512 VBMI: lookups by vpermb; `pq_avx512` has the
// rest. No loops but over registers.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vbmi
#include <crumb/isa/editor.hpp>

#include <crumb/isa/avx2/pq_quads.inl>

#include <crumb/isa/avx512/pq_quads.inl>
#include <crumb/isa/avx512/pq_tables.inl>

#include <crumb/isa/avx512/pq.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

// vpermb ignores the bits above those that a table needs, if it is repeated over the register.
struct pq_vbmi : pq_avx512 {
    static constexpr int table_registers_64 = 1, table_registers_256 = 4;
    using quads = pq_quads_512<false>;
    using nibble_scans = isa::avx512_vnni;
    using table_64 = __m512i;
    using index_64 = __m512i;
    struct table_256 {
        __m512i part[4];
    };
    struct index_256 {
        __m512i seven;
        __mmask64 bit7;
    };

    static CRUMB_INLINE index_16 low_nibbles(reg raw) noexcept { return raw; }
    static CRUMB_INLINE index_16 high_nibbles(reg raw) noexcept { return _mm512_srli_epi16(raw, 4); }
    static CRUMB_INLINE reg look_up_16(table_16 t, index_16 i) noexcept {
        return _mm512_permutexvar_epi8(i, t);
    }

    static CRUMB_INLINE table_64 load_table_64(const void* p) noexcept { return _mm512_loadu_si512(p); }
    static CRUMB_INLINE index_64 six_bits(const six_codes& x, int set) noexcept {
        const __m512i nibbles = x.nibbles[set / 2], twos = x.twos[set / 2];
        constexpr long long ones = 0x0001000100010001;
        const __m512i up =
            _mm512_setr_epi64(4 * ones, 4 * ones, 2 * ones, 2 * ones, 4 * ones, 4 * ones, 2 * ones, 2 * ones);
        const __m512i down = _mm512_setr_epi64(0, 0, 2 * ones, 2 * ones, 0, 0, 2 * ones, 2 * ones);
        return isa::avx512_vnni::select_bits<15>(set % 2 == 0 ? nibbles : _mm512_srli_epi16(nibbles, 4),
                                                 set % 2 == 0 ? _mm512_sllv_epi16(twos, up)
                                                              : _mm512_srlv_epi16(twos, down));
    }
    static CRUMB_INLINE reg look_up_64(table_64 t, index_64 i) noexcept {
        return _mm512_permutexvar_epi8(i, t);
    }

    static CRUMB_INLINE table_256 load_table_256(const void* p) noexcept {
        const auto* t = static_cast<const std::uint8_t*>(p);
        return {{_mm512_loadu_si512(t), _mm512_loadu_si512(t + 64), _mm512_loadu_si512(t + 128),
                 _mm512_loadu_si512(t + 192)}};
    }
    static CRUMB_INLINE index_256 eight_bits(reg raw) noexcept { return {raw, _mm512_movepi8_mask(raw)}; }
    /// One uop each on Zen 5; where vpermi2b takes two of the port that shuffles, as four vpermb merged by
    /// masks would.
    static CRUMB_INLINE reg look_up_256(const table_256& t, const index_256& i) noexcept {
        return _mm512_mask_blend_epi8(i.bit7, _mm512_permutex2var_epi8(t.part[0], i.seven, t.part[1]),
                                      _mm512_permutex2var_epi8(t.part[2], i.seven, t.part[3]));
    }

    /// Scores of additive codes, two rows at a time. With the four nibbles of a token beside each other a dot
    /// instruction adds what is looked up in 32 bits: fewer instructions than adding and widening bytes.
    struct row_pairs {
        /// 64 tokens, 2 n and 2 n + 1 of each eight in `part[n]`.
        struct index {
            __m512i part[4];
        };
        struct sums {
            __m512i part[4]; ///< negative: 128 has to be -128 as an operand
        };
        static CRUMB_INLINE index index_of(reg first, reg second) noexcept {
            const __m512i even = _mm512_mask_blend_epi32(0xaaaa, first, _mm512_slli_epi64(second, 32));
            const __m512i odd = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(first, 32), second);
            return {{nibbles<0>(even), nibbles<16>(even), nibbles<0>(odd), nibbles<16>(odd)}};
        }
        static CRUMB_INLINE sums start() noexcept {
            const __m512i zero = _mm512_setzero_si512();
            return {{zero, zero, zero, zero}};
        }
        /// Four rows: two bytes that were looked up make one, of at most 254.
        static CRUMB_INLINE void add(sums& s, const index& first, const index& second,
                                     const std::uint8_t* low, const std::uint8_t* high) noexcept {
            add_plane(s, first, second, _mm512_loadu_si512(low), _mm512_loadu_si512(low + 64), 1);
            add_plane(s, first, second, _mm512_loadu_si512(high), _mm512_loadu_si512(high + 64), pq_max + 1);
        }
        /// Two rows.
        static CRUMB_INLINE void add(sums& s, const index& at, const std::uint8_t* low,
                                     const std::uint8_t* high) noexcept {
            const __m512i lows = _mm512_loadu_si512(low), highs = _mm512_loadu_si512(high);
            CRUMB_UNROLL
            for (int i = 0; i < 4; ++i) {
                subtract(s.part[i], _mm512_permutexvar_epi8(at.part[i], lows), 1);
                subtract(s.part[i], _mm512_permutexvar_epi8(at.part[i], highs), pq_max + 1);
            }
        }
        /// out[t] = base + step * sum.
        static CRUMB_INLINE void store(const sums& s, f32 step, f32 base, float* out) noexcept {
            const __m512i a = _mm512_unpacklo_epi64(s.part[0], s.part[1]),
                          b = _mm512_unpacklo_epi64(s.part[2], s.part[3]),
                          c = _mm512_unpackhi_epi64(s.part[0], s.part[1]),
                          d = _mm512_unpackhi_epi64(s.part[2], s.part[3]);
            const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x44), cd = _mm512_shuffle_i32x4(c, d, 0x44),
                          ab_end = _mm512_shuffle_i32x4(a, b, 0xee),
                          cd_end = _mm512_shuffle_i32x4(c, d, 0xee);
            const __m512i tokens[] = {_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd),
                                      _mm512_shuffle_i32x4(ab_end, cd_end, 0x88),
                                      _mm512_shuffle_i32x4(ab_end, cd_end, 0xdd)};
            CRUMB_UNROLL
            for (int i = 0; i < 4; ++i)
                _mm512_storeu_ps(out + 16 * i, _mm512_fnmadd_ps(_mm512_cvtepi32_ps(tokens[i]), step, base));
        }

      private:
        /// Of the tokens whose bytes are `Bit` bits up in both halves of 64: low and high nibbles of the
        /// first row and of the second, each with the place of its table.
        template <int Bit>
        static CRUMB_INLINE __m512i nibbles(__m512i rows) noexcept {
            const __m512i from = _mm512_set1_epi64(0x2c280c0824200400 + Bit * 0x0101010101010101);
            return _mm512_ternarylogic_epi32(_mm512_multishift_epi64_epi8(from, rows), _mm512_set1_epi8(15),
                                             _mm512_set1_epi32(0x30201000), 0xea);
        }
        static CRUMB_INLINE void add_plane(sums& s, const index& first, const index& second, __m512i a,
                                           __m512i b, int factor) noexcept {
            CRUMB_UNROLL
            for (int i = 0; i < 4; ++i)
                subtract(s.part[i],
                         _mm512_add_epi8(_mm512_permutexvar_epi8(first.part[i], a),
                                         _mm512_permutexvar_epi8(second.part[i], b)),
                         factor);
        }
        static CRUMB_INLINE void subtract(__m512i& sum, __m512i bytes, int factor) noexcept {
            sum = _mm512_dpbusd_epi32(sum, bytes, _mm512_set1_epi8(static_cast<char>(-factor)));
            // GCC would keep copies of the sums that the instruction overwrites.
            __asm__("" : "+v"(sum));
        }
    };
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
