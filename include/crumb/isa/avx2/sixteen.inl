// 16 bytes of a record on x86. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx2
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct sixteen_bytes<isa::CRUMB_THIS_ISA> {
    using sixteen = __m128i;
    static CRUMB_INLINE sixteen load_sixteen(const std::uint8_t* p) noexcept {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }
    /// (x >> Right << Left) & Mask of each byte, which no other byte's bits reach.
    template <int Right, int Left, int Mask>
    static CRUMB_INLINE sixteen part(sixteen x) noexcept {
        const __m128i moved = Right > Left   ? _mm_srli_epi16(x, Right - Left)
                              : Left > Right ? _mm_slli_epi16(x, Left - Right)
                                             : x;
        return _mm_and_si128(moved, _mm_set1_epi8(static_cast<char>(Mask)));
    }
    static CRUMB_INLINE sixteen join(sixteen a, sixteen b) noexcept { return _mm_or_si128(a, b); }
    static CRUMB_INLINE sixteen minus(sixteen x, int y) noexcept {
        return _mm_sub_epi8(x, _mm_set1_epi8(static_cast<char>(y)));
    }
    /// Sums of 32 from 16 sums of 16 activations, two to a number.
    static CRUMB_INLINE void pair_sums(const std::int16_t* sums, std::int32_t* to) noexcept {
        const __m256i all = _mm256_madd_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums)),
                                              _mm256_set1_epi16(1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                         _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
