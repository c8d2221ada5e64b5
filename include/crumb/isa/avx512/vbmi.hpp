// AVX-512 VNNI with VBMI: vpermb looks indices up in tables of 64 bytes. All else is avx512_vnni's.
#pragma once

#include <crumb/isa/avx512/vnni.hpp>

#include <utility>

#if CRUMB_BUILDS_X86

// What it has of its own, by system; defined in this folder.
namespace crumb::inline CRUMB_ABI::kernel {
struct pq_vbmi;
} // namespace crumb::inline CRUMB_ABI::kernel

CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX512_VBMI)
CRUMB_IGNORE_UNDEFINED_BEGIN

namespace crumb::inline CRUMB_ABI::isa {

struct avx512_vbmi : avx512_vnni {
    static constexpr const char* name = isa_traits<avx512_vbmi>::name;
    using base_isa = avx512_vnni; ///< whose functions serve for all but products of codebook formats and
                                  ///< attention over codes

    /// The low byte of each channel's scale in the channel's four bytes.
    static CRUMB_INLINE bytes spread(const half* p) noexcept {
        const __m256i scales = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return _mm512_permutexvar_epi8(channels<2>(), _mm512_castsi256_si512(scales));
    }
    static CRUMB_INLINE bytes spread(const std::int8_t* p) noexcept {
        const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm512_permutexvar_epi8(channels<1>(), _mm512_castsi128_si512(scales));
    }

    // Operand = entry + 128.
    struct lookups : avx512_vnni::lookups {
        using avx512_vnni::lookups::load_table;
        /// Byte i: entry order[i] of 16.
        static CRUMB_INLINE table load_table(const std::int8_t* entries, const std::uint8_t* order) noexcept {
            return _mm512_permutexvar_epi8(load_bytes(order), avx512_vnni::lookups::load_table(entries));
        }
        static CRUMB_INLINE operand look_up(table t, bytes six) noexcept {
            return _mm512_permutexvar_epi8(six, t);
        }
    };

    using pq = kernel::pq_vbmi; ///< primitives of scans of product-quantized codes

  private:
    /// Byte i: Stride * (i / 4).
    template <int Stride>
    static CRUMB_INLINE __m512i channels() noexcept {
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        return _mm512_mullo_epi32(lane, _mm512_set1_epi32(Stride * 0x01010101));
    }
};

} // namespace crumb::inline CRUMB_ABI::isa

CRUMB_IGNORE_UNDEFINED_END
CRUMB_TARGET_END

#endif
