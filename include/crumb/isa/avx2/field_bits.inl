// Packed bits of codes, and ternary digits, on AVX2. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx2
#include <crumb/isa/editor.hpp>
#endif

#include <crumb/isa/avx2/sixteen.inl>
#include <crumb/kernel/linear/byte_shifts.inl>

namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct field_bits<isa::CRUMB_THIS_ISA> : sixteen_bytes<isa::CRUMB_THIS_ISA>,
                                         byte_shifts<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using bytes = typename I::bytes;
    /// The bits whose product serves codes of `bits` bits in panels as well.
    static constexpr int product_bits(int bits, int) noexcept { return bits < 4 ? 4 : bits; }
    /// Whether shifts move no bit into another byte.
    static constexpr bool shifts_bytes = false;
    /// Whether rows that all fours of a group read are loaded once.
    static constexpr bool holds_rows = false;
    static CRUMB_INLINE void hold(bytes&) noexcept {}
    template <int Mask>
    static CRUMB_INLINE bytes keep(bytes x) noexcept {
        return _mm256_and_si256(x, _mm256_set1_epi8(static_cast<char>(Mask)));
    }
    /// Puts `Width` bits of x, from bit At on, at bit Shift of codes whose bits above are in place.
    template <int At, int Width, int Shift>
    static CRUMB_INLINE bytes put_below(bytes code, bytes x) noexcept {
        return _mm256_or_si256(
            code, keep<((1 << Width) - 1) << Shift>(field_bits::template shifted<At - Shift>(x)));
    }
    static CRUMB_INLINE bytes triple(bytes x) noexcept { return _mm256_add_epi8(x, _mm256_add_epi8(x, x)); }
    static CRUMB_INLINE bytes digit(bytes x) noexcept {
        // Averages round up.
        const __m256i y = _mm256_subs_epu8(x, _mm256_set1_epi8(1));
        const __m256i x3 = _mm256_avg_epu8(y, _mm256_avg_epu8(y, _mm256_setzero_si256()));
        return keep<3>(_mm256_srli_epi16(x3, 6));
    }
    static CRUMB_INLINE bytes load_table(const std::int8_t* entries) noexcept {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
    }
    static CRUMB_INLINE bytes look_up(bytes table, bytes nibbles) noexcept {
        return _mm256_shuffle_epi8(table, nibbles);
    }
    /// Register v of 16 E4M3 without sign as the bits of halves, which have one more bit of exponent and
    /// seven more of mantissa: 1/256 of the numbers.
    static CRUMB_INLINE typename I::f32 load_e4m3_halves(const std::uint8_t* p, int v) noexcept {
        const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * v)));
        return _mm256_cvtph_ps(_mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x7f)), 7));
    }
    /// Register v of 16 powers of two; the exponent 0 is the power below that of 1.
    static CRUMB_INLINE typename I::f32 load_e8m0(const std::uint8_t* p, int v) noexcept {
        const typename I::i32 power = I::as_i32(I::load_powers(p + v * I::lanes));
        return I::as_f32(I::max_i32(power, I::set1_i32(1 << 22)));
    }
    /// Of 16 signed bytes, those of register v.
    static CRUMB_INLINE typename I::i32 widen(sixteen x, int v) noexcept {
        return _mm256_cvtepi8_epi32(v == 0 ? x : _mm_srli_si128(x, 8));
    }
    /// sum[v] += a x[0] + b x[1]: numbers of 16 channels times sums of activations. `Same`: a is b.
    template <int Vectors, bool Same>
    static CRUMB_INLINE void add_terms(typename I::i32* sum, sixteen a, sixteen b,
                                       const std::int16_t* x) noexcept {
        std::int32_t both;
        __builtin_memcpy(&both, x, sizeof both);
        CRUMB_UNROLL
        for (int v = 0; v < Vectors; ++v)
            sum[v] = I::add_products(sum[v], pair(widen(a, v), widen(b, v)), I::set1_i32(both));
    }
    static CRUMB_INLINE typename I::i32 mul_i32(typename I::i32 a, typename I::i32 b) noexcept {
        return _mm256_mullo_epi32(a, b);
    }
    static CRUMB_INLINE typename I::i32 pair(typename I::i32 a, typename I::i32 b) noexcept {
        return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
