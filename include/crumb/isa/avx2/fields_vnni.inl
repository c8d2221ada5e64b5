// Products of codes without a sign by AVX-VNNI: vpdpbusd takes them whatever their bits. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx_vnni
#include <crumb/isa/editor.hpp>

#include <crumb/isa/avx2/field_bits.inl>
#endif

#include <crumb/kernel/linear/quad_rows.inl>

namespace crumb::inline CRUMB_ABI::kernel {

/// Sums of 16 products of codes of up to 4 bits stay below 16 * 15 * 127 = 30480: vpdpwssd multiplies them
/// with an integer scale and adds them. Bytes with a sign are looked up with an offset of 128.
template <int Bits>
struct field_product<isa::CRUMB_THIS_ISA, Bits> : quad_rows<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    static constexpr int offset = Bits == 8 ? 128 : 0;
    static constexpr int steps = Bits <= 4 ? 4 : 8;
    static constexpr int unscaled_steps = 8; ///< of sums that meet no integer
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
    static CRUMB_INLINE acc start_at(std::int32_t x) noexcept { return _mm256_set1_epi32(x); }
    template <int Four>
    static CRUMB_INLINE void step(acc& s, operand w, const row& x) noexcept {
        dot(s, w, quad_rows<I>::template quad<Four>(x));
    }
    static CRUMB_INLINE typename I::i32 sum(const acc& s) noexcept { return s; }
    static CRUMB_INLINE typename I::i32 factor(typename I::i32 x) noexcept {
        // The upper half of a negative sum is multiplied as well.
        return Bits <= 4 ? _mm256_blend_epi16(x, _mm256_setzero_si256(), 0xaa) : x;
    }
    static CRUMB_INLINE typename I::i32 add(typename I::i32 total, const acc& s,
                                            typename I::i32 factor) noexcept {
        if constexpr (Bits <= 4)
            return _mm256_dpwssd_avx_epi32(total, s, factor);
        else
            return _mm256_add_epi32(total, _mm256_mullo_epi32(s, factor));
    }
    static CRUMB_INLINE void pin(acc& s) noexcept { __asm__ volatile("" : "+x"(s)); }

    static CRUMB_INLINE void dot(acc& s, operand w, typename I::quad four) noexcept {
        s = _mm256_dpbusd_avx_epi32(s, w, four);
    }
    /// (3 own - before) / 256, which is whole.
    static CRUMB_INLINE typename I::i32 whole_trits(typename I::i32 own, typename I::i32 before) noexcept {
        const __m256i three = _mm256_add_epi32(own, _mm256_slli_epi32(own, 1));
        return _mm256_srai_epi32(_mm256_sub_epi32(three, before), 8);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
