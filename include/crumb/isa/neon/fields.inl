// Codes without a sign and ternary digits on the ISAs with 16-byte registers: as bytes with a sign they are
// what SDOT and SMULL take. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_dotprod
#include <crumb/isa/editor.hpp>
#endif

#include <crumb/kernel/linear/byte_shifts.inl>

namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct field_bits<isa::CRUMB_THIS_ISA> : byte_shifts<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using bytes = typename I::bytes;
    /// The bits whose product serves codes of `bits` bits in panels as well.
    static constexpr int product_bits(int bits, int) noexcept { return bits == 8 ? 8 : bits <= 5 ? 5 : bits; }
    /// Whether shifts move no bit into another byte.
    static constexpr bool shifts_bytes = true;
    /// Whether rows that all fours of a group read are loaded once.
    static constexpr bool holds_rows = false;
    static CRUMB_INLINE void hold(bytes&) noexcept {}
    template <int Mask>
    static CRUMB_INLINE bytes keep(bytes x) noexcept {
        return vandq_u8(x, vdupq_n_u8(Mask));
    }
    /// Puts `Width` bits of x, from bit At on, at bit Shift of codes whose bits above are in place.
    template <int At, int Width, int Shift>
    static CRUMB_INLINE bytes put_below(bytes code, bytes x) noexcept {
        // What is inserted from the top replaces all that is below.
        return vsriq_n_u8(code, field_bits::template shifted<At + Width - 8>(x), 8 - Shift - Width);
    }
    static CRUMB_INLINE bytes triple(bytes x) noexcept { return vaddq_u8(x, vaddq_u8(x, x)); }
    static CRUMB_INLINE bytes digit(bytes x) noexcept {
        return vshrq_n_u8(vhaddq_u8(x, vshrq_n_u8(x, 1)), 6);
    }
    static CRUMB_INLINE int8x16_t load_table(const std::int8_t* entries) noexcept {
        return vld1q_s8(entries);
    }
    static CRUMB_INLINE bytes look_up(int8x16_t table, bytes nibbles) noexcept {
        return vreinterpretq_u8_s8(vqtbl1q_s8(table, nibbles));
    }
    using sixteen = uint8x16_t;
    static CRUMB_INLINE sixteen load_sixteen(const std::uint8_t* p) noexcept { return vld1q_u8(p); }
    /// (x >> Right << Left) & Mask of each byte.
    template <int Right, int Left, int Mask>
    static CRUMB_INLINE sixteen part(sixteen x) noexcept {
        constexpr int by = Left - Right;
        const uint8x16_t moved = vshlq_u8(x, vdupq_n_s8(by));
        constexpr int all = 0xff;
        constexpr bool whole = Mask == (by < 0 ? all >> (by < 0 ? -by : 0) : all << (by > 0 ? by : 0) & all);
        return whole ? moved : vandq_u8(by == 0 ? x : moved, vdupq_n_u8(Mask));
    }
    static CRUMB_INLINE sixteen join(sixteen a, sixteen b) noexcept { return vorrq_u8(a, b); }
    static CRUMB_INLINE sixteen minus(sixteen x, int y) noexcept {
        return vsubq_u8(x, vdupq_n_u8(static_cast<std::uint8_t>(y)));
    }
    /// Register v of 16 E4M3 without sign as the bits of halves, which have one more bit of exponent and
    /// seven more of mantissa: 1/256 of the numbers.
    static CRUMB_INLINE typename I::f32 load_e4m3_halves(const std::uint8_t* p, int v) noexcept {
        const uint16x8_t half = shifted_half(vandq_u8(vld1q_u8(p), vdupq_n_u8(0x7f)), v / 2);
        return vcvt_f32_f16(vreinterpret_f16_u16(v % 2 == 0 ? vget_low_u16(half) : vget_high_u16(half)));
    }
    /// Register v of 16 powers of two; the exponent 0 is the power below that of 1.
    static CRUMB_INLINE typename I::f32 load_e8m0(const std::uint8_t* p, int v) noexcept {
        // In 16 bits, where a register has twice as many.
        const uint16x8_t half = vmaxq_u16(shifted_half(vld1q_u8(p), v / 2), vdupq_n_u16(1 << 6));
        return vreinterpretq_f32_u32(v % 2 == 0 ? vshll_n_u16(vget_low_u16(half), 16)
                                                : vshll_high_n_u16(half, 16));
    }
    /// Of 16 signed bytes, those of register v.
    static CRUMB_INLINE typename I::i32 widen(sixteen x, int v) noexcept {
        const int16x8_t half = half_of(x, v / 2);
        return v % 2 == 0 ? vmovl_s16(vget_low_s16(half)) : vmovl_high_s16(half);
    }
    /// sum[v] += a x[0] + b x[1]: numbers of 16 channels times sums of activations. `Same`: a is b.
    template <int Vectors, bool Same>
    static CRUMB_INLINE void add_terms(typename I::i32* sum, sixteen a, sixteen b,
                                       const std::int16_t* x) noexcept {
        if constexpr (Same) {
            add_term(sum, a, static_cast<std::int16_t>(x[0] + x[1]));
        } else {
            add_term(sum, a, x[0]);
            add_term(sum, b, x[1]);
        }
    }
    static CRUMB_INLINE typename I::i32 mul_i32(typename I::i32 a, typename I::i32 b) noexcept {
        return vmulq_s32(a, b);
    }
    static CRUMB_INLINE typename I::i32 pair(typename I::i32 a, typename I::i32 b) noexcept {
        return vsliq_n_s32(a, b, 16);
    }

  private:
    /// 8 of 16 bytes, shifted left by 7.
    static CRUMB_INLINE uint16x8_t shifted_half(sixteen x, int half) noexcept {
        return half == 0 ? vshll_n_u8(vget_low_u8(x), 7) : vshll_high_n_u8(x, 7);
    }
    static CRUMB_INLINE int16x8_t half_of(sixteen x, int half) noexcept {
        const int8x16_t s = vreinterpretq_s8_u8(x);
        return half == 0 ? vmovl_s8(vget_low_s8(s)) : vmovl_high_s8(s);
    }
    static CRUMB_INLINE void add_term(typename I::i32* sum, sixteen a, std::int16_t x) noexcept {
        CRUMB_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int16x8_t wide = half_of(a, half);
            sum[2 * half] = vmlal_n_s16(sum[2 * half], vget_low_s16(wide), x);
            sum[2 * half + 1] = vmlal_high_n_s16(sum[2 * half + 1], wide, x);
        }
    }
};

template <int Bits>
struct field_product<isa::CRUMB_THIS_ISA, Bits> {
    using I = isa::CRUMB_THIS_ISA;
    /// The activation codes of a group.
    struct row {
        int8x16_t low, high;
    };
    /// Whether one instruction sums four products.
    static constexpr bool dots = std::is_same_v<typename I::int8s::acc, int32x4_t>;
    using split16 = typename I::template split_sums<int16x8_t>;
    using split32 = typename I::template split_sums<int32x4_t>;
    static constexpr int offset = 0;
    static constexpr bool takes_signs = true; ///< codes may have one
    static constexpr int steps = dots || Bits <= 5 || Bits == 8 ? 8 : 4;
    static_assert(dots || Bits == 8 || steps * ((1 << Bits) - 1) * 127 < 32768);
    using operand = int8x16_t;
    using acc = std::conditional_t<dots, int32x4_t, std::conditional_t<Bits == 8, split32, split16>>;

    static CRUMB_INLINE row load_row(const std::int8_t* codes, std::size_t stride) noexcept {
        if (stride == 8) // a row that stands alone
            return {vld1q_s8(codes), vld1q_s8(codes + 16)};
        return {vcombine_s8(vld1_s8(codes), vld1_s8(codes + stride)),
                vcombine_s8(vld1_s8(codes + 2 * stride), vld1_s8(codes + 3 * stride))};
    }
    /// Those of an even number of rows: 8 codes of one and of the next are a register, and fours are its
    /// lanes.
    template <int Rows>
    requires(dots && Rows % 2 == 0)
    struct row_pairs {
        int8x16_t at[2 * std::size_t{Rows}];
        static CRUMB_INLINE row_pairs load(const std::int8_t* codes) noexcept {
            row_pairs x;
            CRUMB_UNROLL
            for (int i = 0; i < 2 * Rows; ++i)
                x.at[i] = vld1q_s8(codes + 16 * i);
            return x;
        }
        template <int Four, int R>
        CRUMB_INLINE void step(int32x4_t& s, int8x16_t w) const noexcept {
            s = vdotq_laneq_s32(s, w, at[Four / 2 * (Rows / 2) + R / 2], R % 2 * 2 + Four % 2);
        }
    };
    /// Four codes, for `step<0>`.
    static CRUMB_INLINE row load_four(const std::int8_t* codes) noexcept {
        std::int32_t four;
        __builtin_memcpy(&four, codes, sizeof four);
        const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(four));
        return {x, x};
    }
    static CRUMB_INLINE operand operand_of(typename I::bytes x) noexcept { return vreinterpretq_s8_u8(x); }
    static CRUMB_INLINE void store_operand(std::uint8_t* p, operand x) noexcept {
        __builtin_memcpy(p, &x, sizeof x);
    }
    static CRUMB_INLINE operand load_operand(const std::uint8_t* p) noexcept {
        return vreinterpretq_s8_u8(vld1q_u8(p));
    }
    static CRUMB_INLINE acc start() noexcept {
        if constexpr (dots)
            return vdupq_n_s32(0);
        else if constexpr (Bits == 8)
            return {vdupq_n_s32(0), vdupq_n_s32(0)};
        else
            return {vdupq_n_s16(0), vdupq_n_s16(0)};
    }
    /// What four sums of codes begin at, so that they end without what an offset of the codes adds: the sums
    /// of activations times -by.
    static CRUMB_INLINE int32x4_t group_starts(const std::int16_t* sums, int by) noexcept
    requires dots
    {
        return vmull_s16(vld1_s16(sums), vdup_n_s16(static_cast<std::int16_t>(-by)));
    }
    static CRUMB_INLINE acc start_at(std::int32_t x) noexcept
    requires dots
    {
        return vdupq_n_s32(x);
    }
    template <int Lane>
    static CRUMB_INLINE acc start_at(int32x4_t starts) noexcept {
        return vdupq_laneq_s32(starts, Lane);
    }
    template <int Four>
    static CRUMB_INLINE void step(acc& s, operand w, const row& x) noexcept {
        const int8x16_t a = Four < 4 ? x.low : x.high;
        if constexpr (dots) {
            s = vdotq_laneq_s32(s, w, a, Four % 4);
        } else {
            const int8x16_t four = I::lane_of(a, Four % 4);
            if constexpr (Bits == 8) {
                s.low = vpadalq_s16(s.low, vmull_s8(vget_low_s8(w), vget_low_s8(four)));
                s.high = vpadalq_s16(s.high, vmull_high_s8(w, four));
            } else {
                s.low = vmlal_s8(s.low, vget_low_s8(w), vget_low_s8(four));
                s.high = vmlal_high_s8(s.high, w, four);
            }
        }
    }
    static CRUMB_INLINE typename I::i32 sum(const acc& s) noexcept {
        if constexpr (dots)
            return s;
        else if constexpr (Bits == 8)
            return vpaddq_s32(s.low, s.high);
        else
            return vpaddq_s32(vpaddlq_s16(s.low), vpaddlq_s16(s.high));
    }
    static CRUMB_INLINE typename I::i32 factor(typename I::i32 x) noexcept { return x; }
    static CRUMB_INLINE typename I::i32 add(typename I::i32 total, const acc& s,
                                            typename I::i32 factor) noexcept {
        return vmlaq_s32(total, sum(s), factor);
    }
    static CRUMB_INLINE void pin(acc&) noexcept {}

    /// sum[v] = that of ternary digits, -1 to 1, of register v of channels times the activations of a block,
    /// without taking digits out: digit d of byte b, less one, is (3 t[d] - t[d + 1]) / 256, where t[d] is
    /// 3^d (b - 128) modulo 256 as a number with a sign.
    static CRUMB_INLINE void sums_of_trits(const std::uint8_t* rows, const std::int8_t* x,
                                           int32x4_t* sum) noexcept
    requires dots
    {
        trit_sums s;
        for (int half = 0; half < 2; ++half)
            add_trit_rows(rows + 4 * half * static_cast<int>(tile_row_bytes), x + 16 * half, 32, s);
        add_trit_rows(rows + 8 * static_cast<int>(tile_row_bytes), x + 160, 16, s);
        const int8x16_t last = vld1q_s8(x + 240);
        CRUMB_UNROLL
        for (int v = 0; v < 4; ++v) {
            const std::uint8_t* at = rows + 12 * static_cast<int>(tile_row_bytes) + 16 * v;
            last_trits<0>(centered(vld1q_u8(at)), last, s, v);
            const int32x4_t own = vaddq_s32(s.own[v], vshlq_n_s32(s.own[v], 1));
            sum[v] = vshrq_n_s32(vsubq_s32(own, s.before[v]), 8);
        }
    }

  private:
    /// Sums of t[d] times the activations of digit d, and of digit d - 1.
    struct trit_sums {
        int32x4_t own[4] = {}, before[4] = {};
    };
    static CRUMB_INLINE uint8x16_t centered(uint8x16_t x) noexcept { return veorq_u8(x, vdupq_n_u8(0x80)); }
    // Two additions, as `triple`, suit CPUs without SDOT, whose multipliers are busy.
    static CRUMB_INLINE uint8x16_t tripled(uint8x16_t x) noexcept { return vmulq_u8(x, vdupq_n_u8(3)); }
    /// Four rows of bytes; the activations of digit d of row r are four r from x + d * step on.
    static CRUMB_INLINE void add_trit_rows(const std::uint8_t* rows, const std::int8_t* x, int step,
                                           trit_sums& s) noexcept {
        int8x16_t of[5];
        CRUMB_UNROLL
        for (int d = 0; d < 5; ++d)
            of[d] = vld1q_s8(x + d * step);
        add_trit_row<0>(rows, of, s);
        add_trit_row<1>(rows, of, s);
        add_trit_row<2>(rows, of, s);
        add_trit_row<3>(rows, of, s);
    }
    template <int Row>
    static CRUMB_INLINE void add_trit_row(const std::uint8_t* rows, const int8x16_t* x,
                                          trit_sums& s) noexcept {
        CRUMB_UNROLL
        for (int v = 0; v < 4; ++v) {
            uint8x16_t t = centered(vld1q_u8(rows + Row * static_cast<int>(tile_row_bytes) + 16 * v));
            CRUMB_UNROLL
            for (int d = 0; d < 5; ++d) {
                s.own[v] = vdotq_laneq_s32(s.own[v], vreinterpretq_s8_u8(t), x[d], Row);
                t = tripled(t);
                s.before[v] = vdotq_laneq_s32(s.before[v], vreinterpretq_s8_u8(t), x[d], Row);
            }
        }
    }
    /// Digits D .. 3 of the last row, whose activations are neighbours.
    template <int D>
    static CRUMB_INLINE void last_trits(uint8x16_t t, int8x16_t x, trit_sums& s, int v) noexcept {
        s.own[v] = vdotq_laneq_s32(s.own[v], vreinterpretq_s8_u8(t), x, D);
        t = tripled(t);
        s.before[v] = vdotq_laneq_s32(s.before[v], vreinterpretq_s8_u8(t), x, D);
        if constexpr (D < 3)
            last_trits<D + 1>(t, x, s, v);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
