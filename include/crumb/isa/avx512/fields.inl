// Codes without a sign and ternary digits on AVX-512. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vnni
#include <crumb/isa/editor.hpp>
#endif

#include <crumb/isa/avx2/sixteen.inl>
#include <crumb/kernel/linear/byte_shifts.inl>
#include <crumb/kernel/linear/quad_rows.inl>

namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct field_bits<isa::CRUMB_THIS_ISA> : sixteen_bytes<isa::CRUMB_THIS_ISA>,
                                         byte_shifts<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using bytes = typename I::bytes;
    /// The bits whose product serves codes of `bits` bits in panels as well; with integer scales `centered`
    /// are those of what is summed, with a sign.
    static constexpr int product_bits(int bits, int centered) noexcept {
        return bits == 8 ? 8 : centered <= 4 ? 4 : centered;
    }
    /// Whether shifts move no bit into another byte.
    static constexpr bool shifts_bytes = false;
    /// Whether rows that all fours of a group read are loaded once. Compilers would make shifts that load,
    /// and a line that is asked for again and again while it is on its way holds up those behind it.
    static constexpr bool holds_rows = true;
    static CRUMB_INLINE void hold(bytes& x) noexcept { __asm__ volatile("" : "+v"(x)); }
    template <int Mask>
    static CRUMB_INLINE bytes keep(bytes x) noexcept {
        return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(Mask)));
    }
    /// Puts `Width` bits of x, from bit At on, at bit Shift of codes whose bits above are in place.
    template <int At, int Width, int Shift>
    static CRUMB_INLINE bytes put_below(bytes code, bytes x) noexcept {
        return I::template select_bits<((1 << Width) - 1) << Shift>(
            field_bits::template shifted<At - Shift>(x), code);
    }
    static CRUMB_INLINE bytes triple(bytes x) noexcept { return _mm512_add_epi8(x, _mm512_add_epi8(x, x)); }
    static CRUMB_INLINE bytes digit(bytes x) noexcept {
        // Averages round up.
        const __m512i y = _mm512_subs_epu8(x, _mm512_set1_epi8(1));
        const __m512i x3 = _mm512_avg_epu8(y, _mm512_avg_epu8(y, _mm512_setzero_si512()));
        return keep<3>(_mm512_srli_epi16(x3, 6));
    }
    static CRUMB_INLINE bytes load_table(const std::int8_t* entries) noexcept {
        return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
    }
    static CRUMB_INLINE bytes look_up(bytes table, bytes nibbles) noexcept {
        return _mm512_shuffle_epi8(table, nibbles);
    }
    /// Register v of 16 E4M3 without sign as the bits of halves, which have one more bit of exponent and
    /// seven more of mantissa: 1/256 of the numbers.
    static CRUMB_INLINE typename I::f32 load_e4m3_halves(const std::uint8_t* p, int) noexcept {
        const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        const __m256i number = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
        return _mm512_cvtph_ps(_mm256_slli_epi16(number, 7));
    }
    /// Register v of 16 powers of two; the exponent 0 is the power below that of 1.
    static CRUMB_INLINE typename I::f32 load_e8m0(const std::uint8_t* p, int v) noexcept {
        const typename I::i32 power = I::as_i32(I::load_powers(p + v * I::lanes));
        return I::as_f32(I::max_i32(power, I::set1_i32(1 << 22)));
    }
    /// Of 16 signed bytes, those of register v.
    static CRUMB_INLINE typename I::i32 widen(sixteen x, int) noexcept { return _mm512_cvtepi8_epi32(x); }
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
        return _mm512_mullo_epi32(a, b);
    }
    static CRUMB_INLINE typename I::i32 pair(typename I::i32 a, typename I::i32 b) noexcept {
        return _mm512_mask_blend_epi16(0xaaaaaaaau, a, _mm512_slli_epi32(b, 16));
    }
};

/// Whatever the bits, vpdpbusd takes them; bytes with a sign are looked up with an offset of 128. A sum that
/// fits 16 bits meets its integer scale in one instruction, vpdpwssd; a product of 32 bits takes three.
template <int Bits>
struct field_product<isa::CRUMB_THIS_ISA, Bits> : quad_rows<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    static constexpr int offset = Bits == 8 ? 128 : 0;
    static constexpr int steps = 8;
    /// Inputs of a panel whose sum fits 16 bits if no code is further than 2^(Bits - 1) from where codes are
    /// counted from; 0: none.
    static constexpr int run_inputs = Bits <= 4 ? 32 : Bits == 5 ? 16 : Bits == 6 ? 8 : 0;
    static_assert(run_inputs * (1 << (Bits - 1)) * 127 < 1 << 15);
    /// Whether a sum of 16 inputs of one row fits.
    static constexpr bool narrow = Bits <= 3;
    static_assert(!narrow || 16 * ((1 << Bits) - 1) * 127 < 1 << 15);
    using operand = __m512i;
    using acc = __m512i;
    using row = typename quad_rows<I>::row;
    static CRUMB_INLINE operand operand_of(typename I::bytes x) noexcept { return x; }
    static CRUMB_INLINE void store_operand(std::uint8_t* p, operand x) noexcept {
        __builtin_memcpy(p, &x, sizeof x);
    }
    static CRUMB_INLINE operand load_operand(const std::uint8_t* p) noexcept { return _mm512_load_si512(p); }
    static CRUMB_INLINE acc start() noexcept { return _mm512_setzero_si512(); }
    template <int Four>
    static CRUMB_INLINE void step(acc& s, operand w, const row& x) noexcept {
        dot(s, w, quad_rows<I>::template quad<Four>(x));
    }
    static CRUMB_INLINE typename I::i32 sum(const acc& s) noexcept { return s; }
    static CRUMB_INLINE typename I::i32 factor(typename I::i32 x) noexcept {
        return narrow ? run_factor(x) : x;
    }
    static CRUMB_INLINE typename I::i32 add(typename I::i32 total, const acc& s,
                                            typename I::i32 factor) noexcept {
        return narrow ? add_run(total, s, factor) : _mm512_add_epi32(total, _mm512_mullo_epi32(s, factor));
    }
    /// Of a sum of a run: the upper half of a negative one is multiplied as well.
    static CRUMB_INLINE typename I::i32 run_factor(typename I::i32 x) noexcept {
        return _mm512_and_si512(x, _mm512_set1_epi32(0xffff));
    }
    static CRUMB_INLINE typename I::i32 add_run(typename I::i32 total, const acc& s,
                                                typename I::i32 factor) noexcept {
        return I::add_products(total, s, factor);
    }
    /// Where the sums of a block's runs begin whose codes are counted from `from`: at -from times the sum of
    /// the run's activations. Of row r, run k at start_of<Run, Rows>(r, k); `sums` are those of 16.
    template <int Run, int Rows>
    static CRUMB_INLINE void store_starts(const std::int8_t* codes, const std::int16_t* sums, int from,
                                          std::int32_t* to) noexcept {
        if constexpr (Run == 8) {
            const __m512i all = _mm512_set1_epi64(8 * 128), by = _mm512_set1_epi64(from);
            for (int i = 0; i < 4 * Rows; ++i) {
                const __m512i x =
                    _mm512_xor_si512(_mm512_loadu_si512(codes + 64 * i), _mm512_set1_epi8(-128));
                const __m512i less = _mm512_sub_epi64(all, _mm512_sad_epu8(x, _mm512_setzero_si512()));
                _mm512_store_si512(to + 16 * i, _mm512_mul_epi32(less, by));
            }
        } else {
            for (int r = 0; r < Rows; ++r) {
                const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + 16 * r));
                if constexpr (Run == 16)
                    _mm512_store_si512(
                        to + 16 * r, _mm512_mullo_epi32(_mm512_cvtepi16_epi32(x), _mm512_set1_epi32(-from)));
                else
                    _mm256_store_si256(reinterpret_cast<__m256i*>(to + 8 * r),
                                       _mm256_madd_epi16(x, _mm256_set1_epi16(static_cast<short>(-from))));
            }
        }
    }
    template <int Run, int Rows>
    static constexpr int start_of(int r, int k) noexcept {
        return Run == 8 ? 2 * (Rows * k + r) : static_cast<int>(record_inputs) / Run * r + k;
    }
    static CRUMB_INLINE acc start_at(std::int32_t x) noexcept { return _mm512_set1_epi32(x); }
    static CRUMB_INLINE void pin(acc& s) noexcept { __asm__ volatile("" : "+v"(s)); }

    /// `begin` + twice the sum of the bits of a group's row times the activations. Bits 1, 3, 5 and 7 are
    /// multiplied as twos, the others as ones: three shifts instead of seven.
    static CRUMB_INLINE typename I::i32 sum_of_bits(__m512i bits, const row& x, std::int32_t begin) noexcept {
        acc ones = start(), twos = start_at(begin);
        add_bits<0>(ones, twos, bits, x);
        add_bits<2>(ones, twos, _mm512_srli_epi16(bits, 2), x);
        add_bits<4>(ones, twos, _mm512_srli_epi16(bits, 4), x);
        add_bits<6>(ones, twos, _mm512_srli_epi16(bits, 6), x);
        return _mm512_add_epi32(_mm512_add_epi32(ones, ones), twos);
    }

    static CRUMB_INLINE void dot(acc& s, operand w, typename I::quad four) noexcept {
        // GCC would keep copies of the sums that the intrinsic overwrites.
        __asm__("vpdpbusd {%2, %1, %0|%0, %1, %2}" : "+v"(s) : "v"(w), "v"(four));
    }
    /// s[0] + s[1] / 4 + s[2] / 16 + s[3] / 64, all whole.
    static CRUMB_INLINE typename I::i32 whole_pairs(const typename I::i32* s) noexcept {
        const __m512i low = _mm512_add_epi32(s[0], _mm512_srai_epi32(s[1], 2));
        return _mm512_add_epi32(low,
                                _mm512_add_epi32(_mm512_srai_epi32(s[2], 4), _mm512_srai_epi32(s[3], 6)));
    }
    /// (3 own - before) / 256, which is whole.
    static CRUMB_INLINE typename I::i32 whole_trits(typename I::i32 own, typename I::i32 before) noexcept {
        const __m512i three = _mm512_add_epi32(own, _mm512_slli_epi32(own, 1));
        return _mm512_srai_epi32(_mm512_sub_epi32(three, before), 8);
    }

  private:
    /// Fours `At` and `At` + 1, whose bits are the lowest two.
    template <int At>
    static CRUMB_INLINE void add_bits(acc& ones, acc& twos, __m512i bits, const row& x) noexcept {
        step<At>(ones, _mm512_and_si512(bits, _mm512_set1_epi8(1)), x);
        step<At + 1>(twos, _mm512_and_si512(bits, _mm512_set1_epi8(2)), x);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
