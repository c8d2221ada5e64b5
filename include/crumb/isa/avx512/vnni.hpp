// The primitives of AVX-512 with VNNI: 64-byte registers, vpdpbusd (unsigned weights, signed activations).
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/isa/avx512/floats.hpp>
#include <crumb/isa/list.hpp>

#if CRUMB_BUILDS_X86

// What it has of its own, by system; defined in this folder.
namespace crumb::inline CRUMB_ABI::kernel {
struct byte_products_512;
struct field_products_512;
struct pq_avx512;
struct four_rows_avx512;
} // namespace crumb::inline CRUMB_ABI::kernel

CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX512_VNNI)
CRUMB_IGNORE_UNDEFINED_BEGIN

namespace crumb::inline CRUMB_ABI::isa {

struct avx512_vnni : avx512_floats {
    static constexpr const char* name = isa_traits<avx512_vnni>::name;
    static constexpr int width = 64;
    static constexpr int lanes = 16;
    static constexpr int registers = 32;
    static constexpr int query_tile = 4;                ///< queries that share a register of keys or values
    static constexpr bool fuses = true;                 ///< `fma` rounds once
    static constexpr std::size_t prefetch_bytes = 6144; ///< distance ahead; 0: none
    static constexpr std::size_t row_block = 4;
    static constexpr std::size_t single_tiles = 2;        ///< of a pass for one row
    static constexpr bool single_tiles_by_streams = true; ///< or 1, unless memory answers two streams faster
    static constexpr std::size_t block_tiles = 3;         ///< of a pass for a block of rows
    static constexpr std::size_t record_row_block = 4;    ///< of formats with records
    static constexpr bool from_origin = true;             ///< see `kernel::from_origin`
    static constexpr std::size_t record_tiles = 3;        ///< of a panel of such
    static constexpr std::size_t panel_rows = 8; ///< from which on weights are expanded into panels; 0: never
    static constexpr std::size_t panel_tiles = 3;     ///< of a pass over int8 panels
    static constexpr std::size_t panel_row_block = 8; ///< of activations for int8 panels; 0: no such product
    static constexpr bool multiplies_codes = true;    ///< rows of neurons with quantized activations

    using bytes = __m512i;
    using quad = __m512i; ///< four activation codes, repeated

    // ---- integers ----
    static CRUMB_INLINE i32 set1_i32(std::int32_t x) noexcept { return _mm512_set1_epi32(x); }
    static CRUMB_INLINE i32 add_i32(i32 a, i32 b) noexcept { return _mm512_add_epi32(a, b); }
    /// 16-bit numbers of a lane whose products `add_products` adds; 1: the lane is one number.
    static constexpr int products = 2;
    static CRUMB_INLINE i32 add_products(i32 sum, i32 a, i32 b) noexcept {
        // Clang would take the intrinsic apart to shorten a chain, into twice the instructions.
        __asm__("vpdpwssd {%2, %1, %0|%0, %1, %2}" : "+v"(sum) : "v"(a), "v"(b));
        return sum;
    }
    static CRUMB_INLINE i32 min_i32(i32 a, i32 b) noexcept { return _mm512_min_epi32(a, b); }
    static CRUMB_INLINE i32 max_i32(i32 a, i32 b) noexcept { return _mm512_max_epi32(a, b); }
    static CRUMB_INLINE std::int32_t maximum_i32(i32 a) noexcept { return _mm512_reduce_max_epi32(a); }
    static CRUMB_INLINE i32 magnitude_bits(f32 a) noexcept {
        return _mm512_and_si512(as_i32(a), _mm512_set1_epi32(INT32_MAX));
    }
    static CRUMB_INLINE i32 round_to_i32(f32 a) noexcept { return _mm512_cvtps_epi32(a); }
    static CRUMB_INLINE f32 to_f32(i32 a) noexcept { return _mm512_cvtepi32_ps(a); }
    static CRUMB_INLINE f32 power_of_two(i32 n) noexcept {
        return as_f32(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
    }

    // ---- codes ----
    static CRUMB_INLINE bytes load_bytes(const std::uint8_t* p) noexcept { return _mm512_loadu_si512(p); }
    static CRUMB_INLINE quad load_quad(const std::int8_t* p) noexcept {
        std::int32_t four;
        __builtin_memcpy(&four, p, sizeof four);
        return _mm512_set1_epi32(four);
    }

    // ---- scales and selectors ----
    static CRUMB_INLINE f32 load_integers(const std::int8_t* p) noexcept {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    /// table[code] for codes First .. First + lanes - 1 of a group of `Group`: one of 32 has the order of
    /// `stored_indices<Bits>`, one of 64 that of blocks in a cache. The table repeats after 2^Bits entries.
    template <int Bits, int First, int Group = 32>
    static CRUMB_INLINE f32 look_up_field(const std::uint8_t* p, f32 table) noexcept {
        constexpr int stored = Group * Bits / 8; // bytes, each with codes so far apart
        // vpermps takes the low four bits of a lane: what is above a code needs no mask.
        if constexpr (stored >= lanes) {
            const __m512i wide =
                _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + First % stored)));
            return _mm512_permutexvar_ps(
                First < stored ? wide : _mm512_srli_epi32(wide, First / stored * Bits), table);
        } else {
            static_assert(Bits == 2 && Group == 32);
            std::int64_t eight;
            __builtin_memcpy(&eight, p, sizeof eight);
            const __m512i wide = _mm512_cvtepu8_epi32(_mm_set1_epi64x(eight));
            constexpr int right = First / 8 * 2;
            const __m512i by = _mm512_inserti64x4(_mm512_set1_epi32(right), _mm256_set1_epi32(right + 2), 1);
            return _mm512_permutexvar_ps(_mm512_srlv_epi32(wide, by), table);
        }
    }
    /// Lane i: the half at p + Stride i, i < n; the others 0. Reads 4 bytes each.
    template <int Stride>
    static CRUMB_INLINE f32 gather_halves(const std::byte* p, std::size_t n) noexcept {
        if constexpr (Stride == 10 || Stride == 18)
            if (n == 16)
                return _mm512_cvtph_ps(sixteen_halves<Stride>(p));
        if (n <= 8) {
            const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            const __m256i at = _mm256_mullo_epi32(lane, _mm256_set1_epi32(Stride));
            const __m256i all = _mm256_mmask_i32gather_epi32(_mm256_setzero_si256(),
                                                             static_cast<__mmask8>(mask(n)), at, p, 1);
            return _mm512_cvtph_ps(_mm256_zextsi128_si256(_mm256_cvtepi32_epi16(all)));
        }
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512i at = _mm512_mullo_epi32(lane, _mm512_set1_epi32(Stride));
        const __m512i all = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask(n), at, p, 1);
        return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(all));
    }
    /// Writes first + i for the lanes with !(low <= u < high) to `list`, and says how many.
    static CRUMB_INLINE std::size_t append_outside(f32 u, f32 low, f32 high, std::uint32_t first,
                                                   std::uint32_t* list) noexcept {
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __mmask16 outside = static_cast<__mmask16>(_mm512_cmp_ps_mask(u, low, _CMP_NGE_UQ) |
                                                         _mm512_cmp_ps_mask(u, high, _CMP_NLT_UQ));
        const __m512i neurons = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(first)));
        _mm512_mask_compressstoreu_epi32(list, outside, neurons);
        return static_cast<std::size_t>(__builtin_popcount(outside));
    }
    static CRUMB_INLINE f32 load_powers(const std::uint8_t* p) noexcept {
        const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        return as_f32(_mm512_slli_epi32(e, 23));
    }
    /// The low nibble of each channel's scale in both nibbles of the channel's four bytes.
    static CRUMB_INLINE bytes spread_low_nibbles(const half* p) noexcept {
        return spread(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
    }
    static CRUMB_INLINE bytes spread_low_nibbles(const std::int8_t* p) noexcept {
        return spread(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    /// The bits of `Mask` of each byte from a, the others from b.
    template <int Mask>
    static CRUMB_INLINE bytes select_bits(bytes a, bytes b) noexcept {
        return _mm512_ternarylogic_epi32(_mm512_set1_epi8(static_cast<char>(Mask)), a, b, 0xca);
    }
    // Bits may cross bytes: callers select what stays.
    template <int N>
    static CRUMB_INLINE bytes shift_left(bytes a) noexcept {
        return _mm512_slli_epi16(a, N);
    }
    template <int N>
    static CRUMB_INLINE bytes shift_right(bytes a) noexcept {
        return _mm512_srli_epi16(a, N);
    }

    static CRUMB_INLINE void round_group(const float* x, float inverse, std::int8_t* out) noexcept {
        const __m512 scale = _mm512_set1_ps(inverse);
        const __m128i low =
            _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), scale)));
        const __m128i high =
            _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), scale)));
        // One store: `sum_group` reads all of it before it has left the store buffer.
        _mm256_store_si256(reinterpret_cast<__m256i*>(out), _mm256_set_m128i(high, low));
    }
    static CRUMB_INLINE std::int32_t sum_group(const std::int8_t* codes) noexcept {
        const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
        const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
        s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
        return _mm_cvtsi128_si32(s);
    }

    struct product {
        static constexpr float factor = 1;
        using operand = __m512i;
        /// Makes the compiler finish `x` here.
        static CRUMB_INLINE void pin(__m512i& x) noexcept { __asm__ volatile("" : "+v"(x)); }
        /// The multipliers of channels for `requantize`: each in both halves of its lane.
        static CRUMB_INLINE __m512i multiplier(i32 m) noexcept {
            return _mm512_mask_blend_epi16(0xaaaaaaaau, m, _mm512_slli_epi32(m, 16));
        }
        static CRUMB_INLINE operand load_operand(const std::uint8_t* p) noexcept {
            return _mm512_load_si512(p);
        }
        static CRUMB_INLINE void store_operand(std::uint8_t* p, operand x) noexcept {
            _mm512_store_si512(p, x);
        }
    };

    // One running sum; the operands are codes made unsigned.
    struct single_sum : product {
        using acc = __m512i;
        static CRUMB_INLINE acc start(const std::int32_t* start) noexcept {
            return _mm512_set1_epi32(*start);
        }
        template <int>
        static CRUMB_INLINE void step(acc& s, operand w, quad x) noexcept {
            s = _mm512_dpbusd_epi32(s, w, x);
        }
        static CRUMB_INLINE i32 finish(const acc& s, const std::int32_t*) noexcept { return s; }
    };

    // Operand = code + 128.
    struct int8s : single_sum {
        static constexpr int offset = 128;
        template <int X>
        static CRUMB_INLINE operand expand(bytes raw) noexcept {
            return _mm512_xor_si512(raw, _mm512_set1_epi8(-128));
        }
        /// round(code * m / 128) + 128.
        template <int X>
        static CRUMB_INLINE operand requantize(bytes raw, __m512i m) noexcept {
            const __m512i high = _mm512_set1_epi16(static_cast<short>(0xff00));
            return offset_bytes(_mm512_mulhrs_epi16(_mm512_slli_epi16(raw, 8), m),
                                _mm512_mulhrs_epi16(_mm512_and_si512(raw, high), m));
        }
    };

    // Operand = entry + 128.
    struct lookups : single_sum {
        static constexpr int offset = 128;
        using table = __m512i;
        static CRUMB_INLINE table load_table(const std::int8_t* entries) noexcept {
            const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(entries));
            return _mm512_xor_si512(_mm512_broadcast_i32x4(t), _mm512_set1_epi8(-128));
        }
        /// Selectors of two bits in the bytes of their channels, for `look_up_pair`.
        static CRUMB_INLINE bytes selectors(const half* p) noexcept {
            return _mm512_and_si512(
                spread_bytes(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))),
                _mm512_set1_epi8(3));
        }
        static CRUMB_INLINE bytes selectors(const std::int8_t* p) noexcept {
            return _mm512_and_si512(
                spread_bytes(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))),
                _mm512_set1_epi8(3));
        }
        /// Of the bits of `Mask` in the low nibble, beside selectors in the other two. No other bit is set,
        /// so the index needs no mask.
        template <int Mask>
        static CRUMB_INLINE operand look_up_pair(table t, bytes pairs, bytes selectors) noexcept {
            return _mm512_shuffle_epi8(t, select_bits<Mask>(pairs, selectors));
        }
        template <int X>
        static CRUMB_INLINE operand look_up(table t, bytes cells) noexcept {
            const __m512i nibbles = X == 0 ? cells : _mm512_srli_epi16(cells, 4);
            return _mm512_shuffle_epi8(t, _mm512_and_si512(nibbles, _mm512_set1_epi8(15)));
        }
        static CRUMB_INLINE operand requantize_operand(operand w, __m512i m) noexcept {
            return int8s::requantize<0>(_mm512_xor_si512(w, _mm512_set1_epi8(-128)), m);
        }
    };

    // Operand = code + 8. Shifting the high nibbles down costs an instruction per register of weights, which
    // many rows share.
    struct nibble_rows : single_sum {
        static constexpr int offset = 8;
        template <int X>
        static CRUMB_INLINE operand expand(bytes raw) noexcept {
            const __m512i nibble = X == 0 ? raw : _mm512_srli_epi32(raw, 4);
            return _mm512_ternarylogic_epi32(nibble, _mm512_set1_epi8(15), _mm512_set1_epi8(8), 0x6a);
        }
    };

    // Operand = code + 8 from the low nibble, 16 (code + 8) from the high one: one vpternlog each. The two
    // sums meet at the end of the group, which for a single row is cheaper than the shifts.
    struct nibbles : product {
        static constexpr int offset = 8;
        using rows = nibble_rows;
        struct acc {
            __m512i low, high;
        };
        static CRUMB_INLINE void pin(acc& s) noexcept {
            product::pin(s.low);
            product::pin(s.high);
        }
        template <int X>
        static CRUMB_INLINE operand expand(bytes raw) noexcept {
            const __m512i mask = _mm512_set1_epi8(static_cast<char>(X == 0 ? 0x0f : 0xf0));
            const __m512i toggle = _mm512_set1_epi8(static_cast<char>(X == 0 ? 0x08 : 0x80));
            return _mm512_ternarylogic_epi32(raw, mask, toggle, 0x6a);
        }
        static CRUMB_INLINE acc start(const std::int32_t* start) noexcept {
            return {_mm512_set1_epi32(*start), _mm512_setzero_si512()};
        }
        template <int X>
        static CRUMB_INLINE void step(acc& s, operand w, quad x) noexcept {
            __m512i& to = X == 0 ? s.low : s.high;
            to = _mm512_dpbusd_epi32(to, w, x);
        }
        static CRUMB_INLINE i32 finish(const acc& s, const std::int32_t*) noexcept {
            return _mm512_add_epi32(s.low, _mm512_srai_epi32(s.high, 4));
        }
        /// round(code * m / 8) + 128. A nibble at the top of 16 bits is 4096 times its code.
        template <int X>
        static CRUMB_INLINE operand requantize(bytes raw, __m512i m) noexcept {
            const __m512i top = _mm512_set1_epi16(static_cast<short>(0xf000));
            const __m512i even =
                X == 0 ? _mm512_slli_epi16(raw, 12) : _mm512_and_si512(_mm512_slli_epi16(raw, 8), top);
            const __m512i odd = _mm512_and_si512(X == 0 ? _mm512_slli_epi16(raw, 4) : raw, top);
            return offset_bytes(_mm512_mulhrs_epi16(even, m), _mm512_mulhrs_epi16(odd, m));
        }
    };

    using pq = kernel::pq_avx512;                      ///< primitives of scans of product-quantized codes
    using byte_products = kernel::byte_products_512;   ///< of bytes with integers of 16 bits
    using field_products = kernel::field_products_512; ///< of codes of 2 and 4 bits with bytes
    using four_rows = kernel::four_rows_avx512;

  private:
    /// Gathers take a uop per lane and more, permutations of words four or five in all. Reads up to the last
    /// half's byte 14 at most.
    template <int Stride>
    static CRUMB_INLINE __m256i sixteen_halves(const std::byte* p) noexcept {
        if constexpr (Stride == 18) {
            return _mm256_set_m128i(eight_of_18(p + 144), eight_of_18(p));
        } else {
            const __m512i at = _mm512_castsi256_si512(
                _mm256_setr_epi16(0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 17, 22, 27));
            const __m512i most =
                _mm512_permutex2var_epi16(_mm512_loadu_si512(p), at, _mm512_loadu_si512(p + 64));
            return _mm512_castsi512_si256(
                _mm512_mask_permutexvar_epi16(most, 0xe000, at, _mm512_loadu_si512(p + 96)));
        }
    }
    /// Eight halves, 18 bytes apart.
    static CRUMB_INLINE __m128i eight_of_18(const std::byte* p) noexcept {
        const __m512i at = _mm512_castsi128_si512(_mm_setr_epi16(0, 9, 18, 27, 36, 45, 54, 63));
        return _mm512_castsi512_si128(
            _mm512_permutex2var_epi16(_mm512_loadu_si512(p), at, _mm512_loadu_si512(p + 64)));
    }
    static CRUMB_INLINE __m512i spread_bytes(__m512i low) noexcept {
        const __m128i order = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
        return _mm512_shuffle_epi8(low, _mm512_broadcast_i32x4(order));
    }
    static CRUMB_INLINE __m512i spread(__m512i low) noexcept {
        const __m512i four = spread_bytes(low);
        return select_bits<0xf0>(_mm512_slli_epi16(four, 4), four);
    }
    /// The low bytes of 16-bit lanes, interleaved, plus 128.
    static CRUMB_INLINE __m512i offset_bytes(__m512i even, __m512i odd) noexcept {
        const __m512i low = _mm512_set1_epi16(0x00ff);
        const __m512i both = _mm512_ternarylogic_epi32(low, even, _mm512_slli_epi16(odd, 8), 0xca);
        return _mm512_xor_si512(both, _mm512_set1_epi8(-128));
    }
};

} // namespace crumb::inline CRUMB_ABI::isa

CRUMB_IGNORE_UNDEFINED_END
CRUMB_TARGET_END

#endif
