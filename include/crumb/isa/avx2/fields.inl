// Products of codes without a sign on AVX2: sums of 16 bits for as many codes as fit. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx2
#include <crumb/isa/editor.hpp>

#include <crumb/isa/avx2/field_bits.inl>
#endif

#include <crumb/kernel/linear/quad_rows.inl>

namespace crumb::inline CRUMB_ABI::kernel {

/// Pairs of products of codes up to 2^Bits - 1 stay below 2 (2^Bits - 1) 127: a lane of 16 bits holds
/// `steps` of them, and vpmaddwd multiplies it with the factor while it widens.
template <int Bits>
struct field_product<isa::CRUMB_THIS_ISA, Bits> : quad_rows<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    static constexpr int offset = 0;
    static constexpr int steps = Bits <= 4 ? 8 : Bits == 5 ? 4 : 2;
    static_assert(steps * 2 * ((1 << Bits) - 1) * 127 < 32768);
    using operand = __m256i;
    using acc = __m256i;
    using row = typename quad_rows<I>::row;
    static CRUMB_INLINE operand operand_of(typename I::bytes x) noexcept { return x; }
    static CRUMB_INLINE void store_operand(std::uint8_t* p, operand x) noexcept {
        __builtin_memcpy(p, &x, sizeof x);
    }
    static CRUMB_INLINE operand load_operand(const std::uint8_t* p) noexcept {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    }
    static CRUMB_INLINE acc start() noexcept { return _mm256_setzero_si256(); }
    template <int Four>
    static CRUMB_INLINE void step(acc& s, operand w, const row& x) noexcept {
        s = _mm256_add_epi16(s, _mm256_maddubs_epi16(w, quad_rows<I>::template quad<Four>(x)));
    }
    static CRUMB_INLINE typename I::i32 sum(const acc& s) noexcept {
        return _mm256_madd_epi16(s, _mm256_set1_epi16(1));
    }
    static CRUMB_INLINE typename I::i32 factor(typename I::i32 x) noexcept {
        return field_bits<I>::pair(x, x);
    }
    static CRUMB_INLINE typename I::i32 add(typename I::i32 total, const acc& s,
                                            typename I::i32 factor) noexcept {
        return _mm256_add_epi32(total, _mm256_madd_epi16(s, factor));
    }
    static CRUMB_INLINE void pin(acc& s) noexcept { __asm__ volatile("" : "+x"(s)); }
};

/// Bytes with a sign: |byte| times the activation with the byte's sign.
template <>
struct field_product<isa::CRUMB_THIS_ISA, 8> : field_product<isa::CRUMB_THIS_ISA, 4> {
    using I = isa::CRUMB_THIS_ISA;
    template <int Four>
    static CRUMB_INLINE void step(acc& s, operand w, const row& x) noexcept {
        const __m256i quad = quad_rows<I>::template quad<Four>(x);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(quad, w));
        s = _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    static CRUMB_INLINE typename I::i32 sum(const acc& s) noexcept { return s; }
    static CRUMB_INLINE typename I::i32 factor(typename I::i32 x) noexcept { return x; }
    static CRUMB_INLINE typename I::i32 add(typename I::i32 total, const acc& s,
                                            typename I::i32 factor) noexcept {
        return _mm256_add_epi32(total, _mm256_mullo_epi32(s, factor));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
