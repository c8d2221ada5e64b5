// Codes of four neurons at a time for AVX2: a register of 16 bytes each. Loops: registers of a tile.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx2
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct four_rows_avx2 {
    struct reg {
        __m128i row[4];
    };

    static CRUMB_INLINE reg load(const std::uint8_t* const* at) noexcept {
        return {{part(at[0]), part(at[1]), part(at[2]), part(at[3])}};
    }
    static CRUMB_INLINE reg load_twice(const std::uint8_t* const* at) noexcept {
        return each([&](int r) {
            std::int64_t x;
            __builtin_memcpy(&x, at[r], sizeof x);
            return _mm_set1_epi64x(x);
        });
    }
    template <int Half>
    static CRUMB_INLINE reg nibbles(const reg& x) noexcept {
        return each([&](int r) {
            return _mm_and_si128(Half == 0 ? x.row[r] : _mm_srli_epi16(x.row[r], 4), _mm_set1_epi8(15));
        });
    }
    template <int Half>
    static CRUMB_INLINE reg pairs(const reg& x) noexcept {
        const __m128i by = _mm_set_epi64x(4 * Half + 2, 4 * Half);
        return each([&](int r) { return _mm_and_si128(_mm_srlv_epi64(x.row[r], by), _mm_set1_epi8(3)); });
    }
    static CRUMB_INLINE reg look_up(const reg& tables, const reg& indices) noexcept {
        return each([&](int r) { return _mm_shuffle_epi8(tables.row[r], indices.row[r]); });
    }
    static CRUMB_INLINE reg same(const std::int8_t* sixteen) noexcept {
        const __m128i x = part(reinterpret_cast<const std::uint8_t*>(sixteen));
        return {{x, x, x, x}};
    }
    static CRUMB_INLINE reg scaled(const reg& x, const std::int16_t* factors, std::size_t stride) noexcept {
        return each([&](int r) {
            const __m256i product =
                _mm256_mulhrs_epi16(_mm256_cvtepi8_epi16(x.row[r]),
                                    _mm256_set1_epi16(factors[stride * static_cast<std::size_t>(r)]));
            return _mm_packs_epi16(_mm256_castsi256_si128(product), _mm256_extracti128_si256(product, 1));
        });
    }
    static CRUMB_INLINE void store_columns(std::uint8_t* to, const reg& x) noexcept {
        const __m128i a = _mm_unpacklo_epi8(x.row[0], x.row[1]), b = _mm_unpacklo_epi8(x.row[2], x.row[3]);
        const __m128i c = _mm_unpackhi_epi8(x.row[0], x.row[1]), d = _mm_unpackhi_epi8(x.row[2], x.row[3]);
        store(to, _mm_unpacklo_epi16(a, b));
        store(to + 16, _mm_unpackhi_epi16(a, b));
        store(to + 32, _mm_unpacklo_epi16(c, d));
        store(to + 48, _mm_unpackhi_epi16(c, d));
    }
    static CRUMB_INLINE void store_tile(std::uint8_t* to, const reg* x) noexcept {
        CRUMB_UNROLL
        for (int q = 0; q < 4; ++q)
            store_fours(to + 16 * q, x[q]);
    }

    static CRUMB_INLINE void combine(std::uint8_t* codes, const std::int8_t* others,
                                     const std::int16_t* factors,
                                     const std::int16_t* other_factors) noexcept {
        const __m256i high = _mm256_set1_epi16(static_cast<short>(0xff00)), half = _mm256_set1_epi16(64);
        for (std::size_t i = 0; i < tile_row_bytes; i += 32) {
            const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
            const __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(others + i));
            const __m256i mx = twice(factors + i / 4), my = twice(other_factors + i / 4);
            const __m256i even = _mm256_add_epi16(_mm256_mulhrs_epi16(_mm256_slli_epi16(x, 8), mx),
                                                  _mm256_mulhrs_epi16(_mm256_slli_epi16(y, 8), my));
            const __m256i odd = _mm256_add_epi16(_mm256_mulhrs_epi16(_mm256_and_si256(x, high), mx),
                                                 _mm256_mulhrs_epi16(_mm256_and_si256(y, high), my));
            const __m256i low = _mm256_srai_epi16(_mm256_add_epi16(even, half), 7);
            const __m256i up = _mm256_slli_epi16(_mm256_srai_epi16(_mm256_add_epi16(odd, half), 7), 8);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i),
                                _mm256_or_si256(_mm256_andnot_si256(high, low), up));
        }
    }

    struct sums {
        __m256i low, high; ///< of the halves of bytes, in 16 bits
    };
    static CRUMB_INLINE sums start(std::int16_t x) noexcept {
        const __m256i all = _mm256_set1_epi16(x);
        return {all, all};
    }
    static CRUMB_INLINE void add_products(sums& s, const std::uint8_t* const* at,
                                          const std::int8_t* factors) noexcept {
        const __m256i nibble = _mm256_set1_epi8(15);
        CRUMB_UNROLL
        for (int r = 0; r < 4; r += 2) {
            const __m128i a = part(at[r]), b = part(at[r + 1]);
            const __m256i x = _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
            std::int16_t two;
            __builtin_memcpy(&two, factors + r, sizeof two);
            const __m256i by = _mm256_set1_epi16(two);
            s.low = _mm256_add_epi16(s.low, _mm256_maddubs_epi16(_mm256_and_si256(x, nibble), by));
            const __m256i up = _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble);
            s.high = _mm256_add_epi16(s.high, _mm256_maddubs_epi16(up, by));
        }
    }
    template <int V>
    static CRUMB_INLINE __m256 columns(const sums& s) noexcept {
        const __m256i x = V < 2 ? s.low : s.high;
        return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(x, V % 2)));
    }
    static CRUMB_INLINE void store_factors(std::int8_t* to, const __m256i* x) noexcept {
        const __m256i byte = _mm256_set1_epi32(255);
        __m256i all = x[3];
        CRUMB_UNROLL
        for (int r = 2; r >= 0; --r)
            all = _mm256_or_si256(_mm256_slli_epi32(all, 8), _mm256_and_si256(x[r], byte));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), all);
    }

  private:
    /// to[64 j + 4 r + i] = byte 4 j + i of row r.
    static CRUMB_INLINE void store_fours(std::uint8_t* to, const reg& x) noexcept {
        const __m128i a = _mm_unpacklo_epi32(x.row[0], x.row[1]), b = _mm_unpacklo_epi32(x.row[2], x.row[3]);
        const __m128i c = _mm_unpackhi_epi32(x.row[0], x.row[1]), d = _mm_unpackhi_epi32(x.row[2], x.row[3]);
        store(to, _mm_unpacklo_epi64(a, b));
        store(to + tile_row_bytes, _mm_unpackhi_epi64(a, b));
        store(to + 2 * tile_row_bytes, _mm_unpacklo_epi64(c, d));
        store(to + 3 * tile_row_bytes, _mm_unpackhi_epi64(c, d));
    }
    template <class F>
    static CRUMB_INLINE reg each(F f) noexcept {
        return {{f(0), f(1), f(2), f(3)}};
    }
    static CRUMB_INLINE __m128i part(const std::uint8_t* p) noexcept {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }
    static CRUMB_INLINE void store(std::uint8_t* p, __m128i x) noexcept {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x);
    }
    static CRUMB_INLINE __m256i twice(const std::int16_t* eight) noexcept {
        const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(eight)));
        return _mm256_or_si256(x, _mm256_slli_epi32(x, 16));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
