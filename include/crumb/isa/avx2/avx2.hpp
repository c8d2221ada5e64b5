// The primitives of AVX2 with FMA and F16C: 32-byte registers, vpmaddubsw (unsigned times signed, 16-bit
// sums).
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/isa/list.hpp>

#if CRUMB_BUILDS_X86

#include <immintrin.h>

// What it has of its own, by system; defined in this folder.
namespace crumb::inline CRUMB_ABI::kernel {
struct byte_products_avx2;
struct field_products_avx2;
struct pq_avx2;
struct four_rows_avx2;
} // namespace crumb::inline CRUMB_ABI::kernel

CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX2)

namespace crumb::inline CRUMB_ABI::isa {

struct avx2 {
    static constexpr const char* name = isa_traits<avx2>::name;
    static constexpr int width = 32;
    static constexpr int lanes = 8;
    static constexpr int registers = 16;
    static constexpr int query_tile = 2;                ///< queries that share a register of keys or values
    static constexpr bool fuses = true;                 ///< `fma` rounds once
    static constexpr std::size_t prefetch_bytes = 3072; ///< distance ahead; 0: none
    static constexpr std::size_t row_block = 2;
    static constexpr std::size_t single_tiles = 2;         ///< of a pass for one row
    static constexpr bool single_tiles_by_streams = false; ///< or 1, unless memory answers two streams faster
    static constexpr std::size_t block_tiles = 1;          ///< of a pass for a block of rows
    static constexpr std::size_t record_row_block = 2;     ///< of formats with records
    static constexpr std::size_t record_tiles = 1;         ///< of a panel of such
    static constexpr std::size_t panel_rows = 8; ///< from which on weights are expanded into panels; 0: never
    static constexpr std::size_t panel_row_block = 0; ///< of activations for int8 panels; 0: no such product

    using f32 = __m256;
    using f64 = __m256d;
    using i32 = __m256i;
    using bytes = __m256i;
    using quad = __m256i; ///< four activation codes, repeated

    // ---- floats ----
    static CRUMB_INLINE f32 zero() noexcept { return _mm256_setzero_ps(); }
    static CRUMB_INLINE f32 set1(float x) noexcept { return _mm256_set1_ps(x); }
    static CRUMB_INLINE f32 set1(half x) noexcept {
        return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(x.bits)));
    }
    static CRUMB_INLINE f32 load(const float* p) noexcept { return _mm256_loadu_ps(p); }
    static CRUMB_INLINE void store(float* p, f32 x) noexcept { _mm256_storeu_ps(p, x); }
    static CRUMB_INLINE f32 load_partial(const float* p, std::size_t n) noexcept {
        return _mm256_maskload_ps(p, mask(n));
    }
    static CRUMB_INLINE void store_partial(float* p, f32 x, std::size_t n) noexcept {
        _mm256_maskstore_ps(p, mask(n), x);
    }
    static CRUMB_INLINE f32 load(const half* p) noexcept {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static CRUMB_INLINE f32 load(const bf16* p) noexcept {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return as_f32(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
    }
    static CRUMB_INLINE void store(half* p, f32 x) noexcept {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    static CRUMB_INLINE f32 add(f32 a, f32 b) noexcept { return _mm256_add_ps(a, b); }
    static CRUMB_INLINE f32 sub(f32 a, f32 b) noexcept { return _mm256_sub_ps(a, b); }
    static CRUMB_INLINE f32 mul(f32 a, f32 b) noexcept { return _mm256_mul_ps(a, b); }
    static CRUMB_INLINE f32 mul_rounded(f32 a, f32 b) noexcept {
        f32 x = mul(a, b);
        CRUMB_ROUND_PRODUCT(x);
        return x;
    }
    static CRUMB_INLINE f32 div(f32 a, f32 b) noexcept { return _mm256_div_ps(a, b); }
    static CRUMB_INLINE f32 fma(f32 a, f32 b, f32 c) noexcept { return _mm256_fmadd_ps(a, b, c); }
    static CRUMB_INLINE f32 min(f32 a, f32 b) noexcept { return _mm256_min_ps(a, b); }
    static CRUMB_INLINE f32 max(f32 a, f32 b) noexcept { return _mm256_max_ps(a, b); }
    static CRUMB_INLINE f32 sqrt(f32 a) noexcept { return _mm256_sqrt_ps(a); }
    static CRUMB_INLINE f32 abs(f32 a) noexcept { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
    static CRUMB_INLINE f32 copy_sign(f32 magnitude, f32 sign) noexcept {
        const __m256 top = _mm256_set1_ps(-0.0f);
        return _mm256_or_ps(_mm256_andnot_ps(top, magnitude), _mm256_and_ps(top, sign));
    }
    static CRUMB_INLINE f32 select_less(f32 a, f32 b, f32 yes, f32 no) noexcept {
        return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
    }
    static CRUMB_INLINE float sum(f32 a) noexcept {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
    static CRUMB_INLINE float maximum(f32 a) noexcept {
        __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        s = _mm_max_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
    }

    static CRUMB_INLINE void sum4(f32 a, f32 b, f32 c, f32 d, float* out) noexcept {
        const __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
    }
    static CRUMB_INLINE void load_pairs(const float* p, f32& even, f32& odd) noexcept {
        const __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
        const __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
        even = _mm256_shuffle_ps(low, high, 0x88);
        odd = _mm256_shuffle_ps(low, high, 0xdd);
    }
    static CRUMB_INLINE void store_pairs(float* p, f32 even, f32 odd) noexcept {
        const __m256 low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
        _mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
        _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
    }

    // ---- doubles ----
    static CRUMB_INLINE f64 set1_f64(double x) noexcept { return _mm256_set1_pd(x); }
    static CRUMB_INLINE f64 load(const double* p) noexcept { return _mm256_loadu_pd(p); }
    static CRUMB_INLINE void store(double* p, f64 x) noexcept { _mm256_storeu_pd(p, x); }
    static CRUMB_INLINE f64 sub(f64 a, f64 b) noexcept { return _mm256_sub_pd(a, b); }
    static CRUMB_INLINE f64 mul_rounded(f64 a, f64 b) noexcept {
        f64 x = _mm256_mul_pd(a, b);
        CRUMB_ROUND_PRODUCT(x);
        return x;
    }

    // ---- integers ----
    static CRUMB_INLINE i32 set1_i32(std::int32_t x) noexcept { return _mm256_set1_epi32(x); }
    static CRUMB_INLINE i32 add_i32(i32 a, i32 b) noexcept { return _mm256_add_epi32(a, b); }
    /// 16-bit numbers of a lane whose products `add_products` adds; 1: the lane is one number.
    static constexpr int products = 2;
    static CRUMB_INLINE i32 add_products(i32 sum, i32 a, i32 b) noexcept {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    }
    static CRUMB_INLINE i32 min_i32(i32 a, i32 b) noexcept { return _mm256_min_epi32(a, b); }
    static CRUMB_INLINE i32 max_i32(i32 a, i32 b) noexcept { return _mm256_max_epi32(a, b); }
    static CRUMB_INLINE std::int32_t maximum_i32(i32 a) noexcept {
        __m128i s = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
    }
    static CRUMB_INLINE i32 magnitude_bits(f32 a) noexcept { return as_i32(abs(a)); }
    static CRUMB_INLINE i32 round_to_i32(f32 a) noexcept { return _mm256_cvtps_epi32(a); }
    static CRUMB_INLINE f32 to_f32(i32 a) noexcept { return _mm256_cvtepi32_ps(a); }
    static CRUMB_INLINE f32 power_of_two(i32 n) noexcept {
        return as_f32(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
    }
    static CRUMB_INLINE f32 as_f32(i32 a) noexcept { return _mm256_castsi256_ps(a); }
    static CRUMB_INLINE i32 as_i32(f32 a) noexcept { return _mm256_castps_si256(a); }

    // ---- codes ----
    static CRUMB_INLINE bytes load_bytes(const std::uint8_t* p) noexcept {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static CRUMB_INLINE quad load_quad(const std::int8_t* p) noexcept {
        std::int32_t four;
        __builtin_memcpy(&four, p, sizeof four);
        return _mm256_set1_epi32(four);
    }

    // ---- scales and selectors ----
    static CRUMB_INLINE f32 load_integers(const std::int8_t* p) noexcept {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    /// Codes First .. First + lanes - 1 of a group of `Group`, 0 .. 2^Bits - 1: a group of 32 has the order
    /// of `stored_indices<Bits>`, one of 64 that of blocks in a cache.
    template <int Bits, int First, int Group = 32>
    static CRUMB_INLINE f32 load_field(const std::uint8_t* p) noexcept {
        constexpr int stored = Group * Bits / 8; // bytes, each with codes so far apart
        const __m256i wide =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + First % stored)));
        const __m256i low = First < stored ? wide : _mm256_srli_epi32(wide, First / stored * Bits);
        // Nothing is above the last code of a byte.
        constexpr bool last = (First / stored + 1) * Bits == 8;
        return _mm256_cvtepi32_ps(last ? low : _mm256_and_si256(low, _mm256_set1_epi32((1 << Bits) - 1)));
    }
    static CRUMB_INLINE f32 load_powers(const std::uint8_t* p) noexcept {
        const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        return as_f32(_mm256_slli_epi32(e, 23));
    }
    /// The low nibble of each channel's scale in both nibbles of the channel's four bytes.
    static CRUMB_INLINE bytes spread_low_nibbles(const half* p) noexcept {
        return spread(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    static CRUMB_INLINE bytes spread_low_nibbles(const std::int8_t* p) noexcept {
        return spread(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    /// The bits of `Mask` of each byte from a, the others from b.
    template <int Mask>
    static CRUMB_INLINE bytes select_bits(bytes a, bytes b) noexcept {
        const __m256i mask = _mm256_set1_epi8(static_cast<char>(Mask));
        return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
    }
    // Bits may cross bytes: callers select what stays.
    template <int N>
    static CRUMB_INLINE bytes shift_left(bytes a) noexcept {
        return _mm256_slli_epi16(a, N);
    }
    template <int N>
    static CRUMB_INLINE bytes shift_right(bytes a) noexcept {
        return _mm256_srli_epi16(a, N);
    }

    static CRUMB_INLINE void round_group(const float* x, float inverse, std::int8_t* out) noexcept {
        const __m256 scale = _mm256_set1_ps(inverse);
        const __m256i q0 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), scale));
        const __m256i q1 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), scale));
        const __m256i q2 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), scale));
        const __m256i q3 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), scale));
        const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q0, q1), _mm256_packs_epi32(q2, q3));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(packed, order));
    }
    static CRUMB_INLINE std::int32_t sum_group(const std::int8_t* codes) noexcept {
        const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
        const __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
        return _mm_cvtsi128_si32(s);
    }

    struct product {
        static constexpr float factor = 1;
        using operand = __m256i;
        using acc = __m256i;
        static CRUMB_INLINE acc start(const std::int32_t*) noexcept { return _mm256_setzero_si256(); }
        /// Makes the compiler finish `x` here.
        static CRUMB_INLINE void pin(acc& x) noexcept { __asm__ volatile("" : "+x"(x)); }
        static CRUMB_INLINE operand load_operand(const std::uint8_t* p) noexcept {
            return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
        }
        static CRUMB_INLINE void store_operand(std::uint8_t* p, operand x) noexcept {
            _mm256_store_si256(reinterpret_cast<__m256i*>(p), x);
        }
    };

    // Operand = code + 8, at most 15: eight products of a lane pair stay below 8 * 2 * 15 * 127 = 30480, so a
    // whole group is summed in 16 bits and widened once.
    struct nibbles : product {
        static constexpr int offset = 8;
        template <int X>
        static CRUMB_INLINE operand expand(bytes raw) noexcept {
            const __m256i nibble = X == 0 ? raw : _mm256_srli_epi16(raw, 4);
            return _mm256_xor_si256(_mm256_and_si256(nibble, _mm256_set1_epi8(15)), _mm256_set1_epi8(8));
        }
        template <int>
        static CRUMB_INLINE void step(acc& s, operand w, quad x) noexcept {
            s = _mm256_add_epi16(s, _mm256_maddubs_epi16(w, x));
        }
        static CRUMB_INLINE i32 finish(const acc& s, const std::int32_t* start) noexcept {
            return _mm256_add_epi32(_mm256_madd_epi16(s, _mm256_set1_epi16(1)), _mm256_set1_epi32(*start));
        }
    };

    // |code| times the activation with the code's sign: at most 2 * 128 * 127 = 32512 per 16-bit lane.
    struct int8s : product {
        static constexpr int offset = 0;
        template <int X>
        static CRUMB_INLINE operand expand(bytes raw) noexcept {
            return raw;
        }
        template <int>
        static CRUMB_INLINE void step(acc& s, operand w, quad x) noexcept {
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
            s = _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
        static CRUMB_INLINE i32 finish(const acc& s, const std::int32_t*) noexcept { return s; }
    };

    // Operand = entry of the table.
    struct lookups : int8s {
        using table = __m256i;
        static CRUMB_INLINE table load_table(const std::int8_t* entries) noexcept {
            return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
        }
        /// Selectors of two bits in the bytes of their channels, for `look_up_pair`.
        static CRUMB_INLINE bytes selectors(const half* p) noexcept {
            return _mm256_and_si256(
                spread_bytes(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))),
                _mm256_set1_epi8(3));
        }
        static CRUMB_INLINE bytes selectors(const std::int8_t* p) noexcept {
            return _mm256_and_si256(
                spread_bytes(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
                _mm256_set1_epi8(3));
        }
        /// Of the bits of `Mask` in the low nibble, beside selectors in the other two. No other bit is set,
        /// so the index needs no mask.
        template <int Mask>
        static CRUMB_INLINE operand look_up_pair(table t, bytes pairs, bytes selectors) noexcept {
            return _mm256_shuffle_epi8(
                t, _mm256_or_si256(_mm256_and_si256(pairs, _mm256_set1_epi8(Mask)), selectors));
        }
        template <int X>
        static CRUMB_INLINE operand look_up(table t, bytes cells) noexcept {
            const __m256i nibbles = X == 0 ? cells : _mm256_srli_epi16(cells, 4);
            return _mm256_shuffle_epi8(t, _mm256_and_si256(nibbles, _mm256_set1_epi8(15)));
        }
    };

    // Operand = entry + 32, below 64: four products of a lane pair, of at most 63 * 127, fit into 16 bits
    // together and are widened once.
    struct narrow_lookups : lookups {
        static constexpr int offset = 32;
        struct acc {
            __m256i pairs, sum;
        };
        static CRUMB_INLINE acc start(const std::int32_t*) noexcept {
            return {_mm256_setzero_si256(), _mm256_setzero_si256()};
        }
        static CRUMB_INLINE void pin(acc& x) noexcept { __asm__ volatile("" : "+x"(x.sum)); }
        static CRUMB_INLINE table load_table(const std::int8_t* entries) noexcept {
            return _mm256_add_epi8(lookups::load_table(entries), _mm256_set1_epi8(offset));
        }
        template <int X>
        static CRUMB_INLINE void step(acc& s, operand w, quad x) noexcept {
            const __m256i pairs = _mm256_maddubs_epi16(w, x);
            if constexpr (X == 0)
                s.pairs = pairs;
            else
                s.sum = widened(s.sum, _mm256_add_epi16(s.pairs, pairs));
        }
        static CRUMB_INLINE i32 finish(const acc& s, const std::int32_t* start) noexcept {
            return _mm256_add_epi32(s.sum, _mm256_set1_epi32(*start));
        }
    };

    using pq = kernel::pq_avx2;                         ///< primitives of scans of product-quantized codes
    using byte_products = kernel::byte_products_avx2;   ///< of bytes with integers of 16 bits
    using field_products = kernel::field_products_avx2; ///< of codes of 2 and 4 bits with bytes
    using four_rows = kernel::four_rows_avx2;

  private:
    /// Adds pairs of 16-bit numbers to sums.
    static CRUMB_INLINE __m256i widened(__m256i sum, __m256i pairs) noexcept {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static CRUMB_INLINE __m256i spread_bytes(__m256i low) noexcept {
        const __m128i order = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
        return _mm256_shuffle_epi8(low, _mm256_broadcastsi128_si256(order));
    }
    static CRUMB_INLINE __m256i spread(__m256i low) noexcept {
        const __m256i four = spread_bytes(low);
        return select_bits<0xf0>(_mm256_slli_epi16(four, 4), four);
    }
    static CRUMB_INLINE __m256i mask(std::size_t n) noexcept {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
    }
};

} // namespace crumb::inline CRUMB_ABI::isa

CRUMB_TARGET_END

#endif
