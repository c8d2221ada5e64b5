// Codes of four neurons at a time for AVX-512: a lane of 16 bytes each. Loops: rows of four.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vnni
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct four_rows_avx512 {
    using reg = __m512i;

    static CRUMB_INLINE reg load(const std::uint8_t* const* at) noexcept {
        return join(part(at[0]), part(at[1]), part(at[2]), part(at[3]));
    }
    static CRUMB_INLINE reg load_twice(const std::uint8_t* const* at) noexcept {
        return join(eight(at[0]), eight(at[1]), eight(at[2]), eight(at[3]));
    }
    template <int Half>
    static CRUMB_INLINE reg nibbles(reg x) noexcept {
        return _mm512_and_si512(Half == 0 ? x : _mm512_srli_epi16(x, 4), _mm512_set1_epi8(15));
    }
    template <int Half>
    static CRUMB_INLINE reg pairs(reg x) noexcept {
        const __m512i by = _mm512_broadcast_i32x4(_mm_set_epi64x(4 * Half + 2, 4 * Half));
        return _mm512_and_si512(_mm512_srlv_epi64(x, by), _mm512_set1_epi8(3));
    }
    static CRUMB_INLINE reg look_up(reg tables, reg indices) noexcept {
        return _mm512_shuffle_epi8(tables, indices);
    }
    static CRUMB_INLINE reg same(const std::int8_t* sixteen) noexcept {
        return _mm512_broadcast_i32x4(part(reinterpret_cast<const std::uint8_t*>(sixteen)));
    }
    static CRUMB_INLINE reg scaled(reg x, const std::int16_t* factors, std::size_t stride) noexcept {
        const auto of = [&](std::size_t r) {
            return std::uint64_t{static_cast<std::uint16_t>(factors[r * stride])} << 16 * r;
        };
        const auto four = static_cast<std::int64_t>(of(0) | of(1) | of(2) | of(3));
        const __m512i lanes =
            _mm512_setr_epi64(0, 0, 0x0001000100010001, 0x0001000100010001, 0x0002000200020002,
                              0x0002000200020002, 0x0003000300030003, 0x0003000300030003);
        const __m512i m = _mm512_permutexvar_epi16(lanes, _mm512_set1_epi64(four));
        const __m512i low = _mm512_srai_epi16(_mm512_unpacklo_epi8(x, x), 8);
        const __m512i high = _mm512_srai_epi16(_mm512_unpackhi_epi8(x, x), 8);
        return _mm512_packs_epi16(_mm512_mulhrs_epi16(low, m), _mm512_mulhrs_epi16(high, m));
    }
    static CRUMB_INLINE void store_columns(std::uint8_t* to, reg x) noexcept {
        _mm512_storeu_si512(to, columns_of(x));
    }
    static CRUMB_INLINE void store_tile(std::uint8_t* to, const reg* x) noexcept {
        const __m512i a = fours(x[0]), b = fours(x[1]), c = fours(x[2]), d = fours(x[3]);
        const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x44), cd = _mm512_shuffle_i32x4(c, d, 0x44);
        const __m512i ab_up = _mm512_shuffle_i32x4(a, b, 0xee), cd_up = _mm512_shuffle_i32x4(c, d, 0xee);
        _mm512_storeu_si512(to, _mm512_shuffle_i32x4(ab, cd, 0x88));
        _mm512_storeu_si512(to + tile_row_bytes, _mm512_shuffle_i32x4(ab, cd, 0xdd));
        _mm512_storeu_si512(to + 2 * tile_row_bytes, _mm512_shuffle_i32x4(ab_up, cd_up, 0x88));
        _mm512_storeu_si512(to + 3 * tile_row_bytes, _mm512_shuffle_i32x4(ab_up, cd_up, 0xdd));
    }

    static CRUMB_INLINE void combine(std::uint8_t* codes, const std::int8_t* others,
                                     const std::int16_t* factors,
                                     const std::int16_t* other_factors) noexcept {
        const __m512i high = _mm512_set1_epi16(static_cast<short>(0xff00)), half = _mm512_set1_epi16(64);
        const __m512i x = _mm512_loadu_si512(codes), y = _mm512_loadu_si512(others);
        const __m512i mx = twice(factors), my = twice(other_factors);
        const __m512i even = _mm512_add_epi16(_mm512_mulhrs_epi16(_mm512_slli_epi16(x, 8), mx),
                                              _mm512_mulhrs_epi16(_mm512_slli_epi16(y, 8), my));
        const __m512i odd = _mm512_add_epi16(_mm512_mulhrs_epi16(_mm512_and_si512(x, high), mx),
                                             _mm512_mulhrs_epi16(_mm512_and_si512(y, high), my));
        const __m512i low = _mm512_srai_epi16(_mm512_add_epi16(even, half), 7);
        const __m512i up = _mm512_slli_epi16(_mm512_srai_epi16(_mm512_add_epi16(odd, half), 7), 8);
        _mm512_storeu_si512(codes, _mm512_ternarylogic_epi32(high, up, low, 0xca));
    }

    /// Of low halves, and of whole bytes: the low half and 16 times the high one.
    struct sums {
        __m512i low, whole;
    };
    static CRUMB_INLINE sums start(std::int16_t x) noexcept {
        return {_mm512_set1_epi32(x), _mm512_set1_epi32(17 * x)};
    }
    static CRUMB_INLINE void add_products(sums& s, const std::uint8_t* const* at,
                                          const std::int8_t* factors) noexcept {
        std::int32_t four;
        __builtin_memcpy(&four, factors, sizeof four);
        const __m512i by = _mm512_set1_epi32(four), x = columns_of(load(at));
        s.low = _mm512_dpbusd_epi32(s.low, _mm512_and_si512(x, _mm512_set1_epi8(15)), by);
        s.whole = _mm512_dpbusd_epi32(s.whole, x, by);
    }
    template <int V>
    static CRUMB_INLINE __m512 columns(const sums& s) noexcept {
        return _mm512_cvtepi32_ps(V == 0 ? s.low : _mm512_srai_epi32(_mm512_sub_epi32(s.whole, s.low), 4));
    }
    static CRUMB_INLINE void store_factors(std::int8_t* to, const __m512i* x) noexcept {
        const __m512i byte = _mm512_set1_epi32(255);
        __m512i all = x[3];
        CRUMB_UNROLL
        for (int r = 2; r >= 0; --r)
            all = _mm512_ternarylogic_epi32(byte, x[r], _mm512_slli_epi32(all, 8), 0xca);
        _mm512_storeu_si512(to, all);
    }

  private:
    static CRUMB_INLINE __m128i part(const std::uint8_t* p) noexcept {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }
    static CRUMB_INLINE __m128i eight(const std::uint8_t* p) noexcept {
        std::int64_t x;
        __builtin_memcpy(&x, p, sizeof x);
        return _mm_set1_epi64x(x);
    }
    static CRUMB_INLINE reg join(__m128i a, __m128i b, __m128i c, __m128i d) noexcept {
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set_m128i(b, a)), _mm256_set_m128i(d, c), 1);
    }
    /// Lane j: the j-th four bytes of each row.
    static CRUMB_INLINE reg fours(reg x) noexcept {
        const __m512i at = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        return _mm512_permutexvar_epi32(at, x);
    }
    /// Bytes of four rows: byte 4 i + r is byte i of row r.
    static CRUMB_INLINE reg columns_of(reg x) noexcept {
        const __m512i bytes =
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        return _mm512_shuffle_epi8(fours(x), bytes);
    }
    static CRUMB_INLINE __m512i twice(const std::int16_t* sixteen) noexcept {
        const __m512i x =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sixteen)));
        return _mm512_or_si512(x, _mm512_slli_epi32(x, 16));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
