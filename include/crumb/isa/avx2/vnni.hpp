// AVX2 with AVX-VNNI, for CPUs without AVX-512: 32-byte registers, vpdpbusd (unsigned weights, signed
// activations). All but products is avx2's.
#pragma once

#include <crumb/isa/avx2/avx2.hpp>

#if CRUMB_BUILDS_X86

CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX_VNNI)

namespace crumb::inline CRUMB_ABI::isa {

struct avx_vnni : avx2 {
    static constexpr const char* name = isa_traits<avx_vnni>::name;
    using base_isa = avx2;       ///< whose functions serve for all but products of codes
    using own_products = void;   ///< of every format
    using narrow_lookups = void; ///< those of avx2 are slower than `lookups`

    // A block's float totals do not fit beside its sums and lie in memory: loading weights once for four rows
    // is worth more.
    static constexpr std::size_t row_block = 4;
    static constexpr std::size_t record_row_block = 4;
    static constexpr bool from_origin = true; ///< see `kernel::from_origin`

    // Operands of `Base` in one running sum; they are codes made unsigned.
    template <class Base>
    struct single_sum : Base {
        static CRUMB_INLINE __m256i start(const std::int32_t* start) noexcept {
            return _mm256_set1_epi32(*start);
        }
        template <int>
        static CRUMB_INLINE void step(__m256i& s, __m256i w, quad x) noexcept {
            s = _mm256_dpbusd_avx_epi32(s, w, x);
        }
        static CRUMB_INLINE i32 finish(const __m256i& s, const std::int32_t*) noexcept { return s; }
    };

    // Operand = code + 128.
    struct int8s : single_sum<avx2::product> {
        static constexpr int offset = 128;
        template <int X>
        static CRUMB_INLINE operand expand(bytes raw) noexcept {
            return _mm256_xor_si256(raw, _mm256_set1_epi8(-128));
        }
    };

    // Operand = entry + 128.
    struct lookups : single_sum<avx2::lookups> {
        static constexpr int offset = 128;
        static CRUMB_INLINE table load_table(const std::int8_t* entries) noexcept {
            return _mm256_xor_si256(avx2::lookups::load_table(entries), _mm256_set1_epi8(-128));
        }
    };

    // Operand = code + 8 from the low nibble, 16 (code + 8) from the high one. The two sums meet at the end
    // of the group, which for a single row is cheaper than the shifts.
    struct nibbles : avx2::product {
        static constexpr int offset = 8;
        using rows = single_sum<avx2::nibbles>;
        struct acc {
            __m256i low, high;
        };
        static CRUMB_INLINE void pin(acc& s) noexcept {
            avx2::product::pin(s.low);
            avx2::product::pin(s.high);
        }
        template <int X>
        static CRUMB_INLINE operand expand(bytes raw) noexcept {
            const __m256i both = _mm256_xor_si256(raw, _mm256_set1_epi8(static_cast<char>(0x88)));
            return _mm256_and_si256(both, _mm256_set1_epi8(static_cast<char>(X == 0 ? 0x0f : 0xf0)));
        }
        static CRUMB_INLINE acc start(const std::int32_t* start) noexcept {
            return {_mm256_set1_epi32(*start), _mm256_setzero_si256()};
        }
        template <int X>
        static CRUMB_INLINE void step(acc& s, operand w, quad x) noexcept {
            __m256i& to = X == 0 ? s.low : s.high;
            to = _mm256_dpbusd_avx_epi32(to, w, x);
        }
        static CRUMB_INLINE i32 finish(const acc& s, const std::int32_t*) noexcept {
            return _mm256_add_epi32(s.low, _mm256_srai_epi32(s.high, 4));
        }
    };
};

} // namespace crumb::inline CRUMB_ABI::isa

CRUMB_TARGET_END

#endif
