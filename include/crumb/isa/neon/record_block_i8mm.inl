// Panels of formats with records by SMMLA: 2 rows x 8 inputs by 2 channels x 8 inputs. Sums stay in the order
// {row 0, row 0, row 1, row 1} until a panel ends. Loops:
//     4 channels > groups > chunks of 8 inputs > pairs of rows
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON_I8MM
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_i8mm
#include <crumb/isa/editor.hpp>

#include <crumb/isa/neon/fields.inl>
#include <crumb/kernel/linear/blocks.inl>
#include <crumb/kernel/linear/record_drivers.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <int Bits, int Subs, bool Integers>
struct record_panel<isa::CRUMB_THIS_ISA, Bits, Subs, Integers> {
    using I = isa::CRUMB_THIS_ISA;
    static constexpr int subs = Subs == 0 ? 1 : Subs;

    template <int Rows, int Tiles>
    static CRUMB_NOINLINE void run(const std::uint8_t* operands, const record_terms* terms, bool minima,
                                   const record_rows& x, int groups, float* totals) noexcept {
        constexpr int width = Tiles * static_cast<int>(tile_channels);
        for (int v = 0; v < 4 * Tiles; ++v) {
            const record_terms& t = terms[v / 4];
            const int lane = v % 4 * 4;
            const std::uint8_t* w = operands + v * 16;
            if constexpr (Integers)
                integers<Rows, Tiles>(w, t, lane, minima, x, totals + v * 4, width);
            else
                floats<Rows, Tiles>(w, t, lane, x, groups, totals + v * 4, width);
        }
    }

  private:
    template <int Rows>
    static constexpr int pairs = (Rows + 1) / 2;

    /// A register of pairs of channels, twice: {a0, a1, a0, a1} and {a2, a3, a2, a3}.
    template <class T>
    static CRUMB_INLINE void twice(T a, T* to) noexcept {
        to[0] = __builtin_bit_cast(
            T, vzip1q_u64(__builtin_bit_cast(uint64x2_t, a), __builtin_bit_cast(uint64x2_t, a)));
        to[1] = __builtin_bit_cast(
            T, vzip2q_u64(__builtin_bit_cast(uint64x2_t, a), __builtin_bit_cast(uint64x2_t, a)));
    }
    /// {x[0], x[0], x[1], x[1]}; of a row that stands alone x[0] only. Floats, or other 32 bits.
    template <bool Alone>
    static CRUMB_INLINE float32x4_t pair_of(const void* x) noexcept {
        if constexpr (Alone) {
            float one;
            __builtin_memcpy(&one, x, sizeof one);
            return vdupq_n_f32(one);
        }
        float32x2_t two;
        __builtin_memcpy(&two, x, sizeof two);
        const float32x4_t both = vcombine_f32(two, two);
        return vzip1q_f32(both, both);
    }

    /// s[2 i + c] += rows 2 i and 2 i + 1 times channels 2 c and 2 c + 1, over chunks `First` to `Last` - 1.
    template <int Rows, int Tiles, int First, int Last>
    static CRUMB_INLINE void multiply(const std::uint8_t* w, const std::int8_t* x, int32x4_t* s) noexcept {
        constexpr int four = Tiles * static_cast<int>(tile_row_bytes); // bytes from one to the next
        CRUMB_UNROLL
        for (int chunk = First; chunk < Last; ++chunk) {
            const uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(w + 2 * chunk * four));
            const uint32x4_t b = vreinterpretq_u32_u8(vld1q_u8(w + (2 * chunk + 1) * four));
            const int8x16_t low = vreinterpretq_s8_u32(vzip1q_u32(a, b));
            const int8x16_t high = vreinterpretq_s8_u32(vzip2q_u32(a, b));
            CRUMB_UNROLL
            for (int i = 0; i < pairs<Rows>; ++i) {
                const std::int8_t* at = x + chunk * 8 * Rows + 16 * i;
                const int8x16_t rows =
                    2 * i + 1 < Rows ? vld1q_s8(at) : vcombine_s8(vld1_s8(at), vdup_n_s8(0));
                s[2 * i] = vmmlaq_s32(s[2 * i], rows, low);
                s[2 * i + 1] = vmmlaq_s32(s[2 * i + 1], rows, high);
            }
        }
    }

    template <int Rows, int Tiles>
    static CRUMB_INLINE void integers(const std::uint8_t* w, const record_terms& t, int lane, bool minima,
                                      const record_rows& x, float* totals, int width) noexcept {
        int32x4_t sum[unsigned(2 * pairs<Rows>)];
        CRUMB_UNROLL
        for (int i = 0; i < 2 * pairs<Rows>; ++i)
            sum[i] = vdupq_n_s32(0);
        const std::int8_t* codes = x.codes;
        for (int g = 0; g < 8; ++g) {
            if constexpr (Subs == 2) {
                half<Rows, Tiles, 0, 2>(w, codes, t, 2 * g, lane, sum);
                half<Rows, Tiles, 2, 4>(w, codes, t, 2 * g + 1, lane, sum);
            } else {
                half<Rows, Tiles, 0, 4>(w, codes, t, g, lane, sum);
            }
            w += 8 * Tiles * static_cast<int>(tile_row_bytes);
            codes += Rows * static_cast<int>(group_size);
        }
        const auto* sums = static_cast<const std::int16_t*>(x.sums);
        const float32x4_t unit = vld1q_f32(t.unit + lane), low = vld1q_f32(t.minimum_unit + lane);
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r) {
            const int32x4_t both = r % 2 == 0 ? low_rows(sum[r / 2 * 2], sum[r / 2 * 2 + 1])
                                              : high_rows(sum[r / 2 * 2], sum[r / 2 * 2 + 1]);
            int32x4_t i = both;
            float32x4_t total = vld1q_f32(totals + r * width);
            const float32x4_t scale = vdupq_n_f32(x.scales[r]);
            if constexpr (Subs == 0) {
                i = vsubq_s32(i, vdupq_n_s32(vaddlvq_s16(vld1q_s16(sums + 16 * r)) +
                                             vaddlvq_s16(vld1q_s16(sums + 16 * r + 8))));
            } else if constexpr (Bits != 8) {
                const int32x4_t of = add_terms(t, lane, sums + 16 * r, minima ? vdupq_n_s32(0) : i);
                if (minima) {
                    total = vfmaq_f32(total, vmulq_f32(vcvtq_f32_s32(i), scale), unit);
                    vst1q_f32(totals + r * width, vfmaq_f32(total, vmulq_f32(vcvtq_f32_s32(of), scale), low));
                    continue;
                }
                i = of;
            }
            vst1q_f32(totals + r * width, vfmaq_f32(total, vmulq_f32(vcvtq_f32_s32(i), scale), unit));
        }
    }
    template <int Rows, int Tiles, int First, int Last>
    static CRUMB_INLINE void half(const std::uint8_t* w, const std::int8_t* codes, const record_terms& t,
                                  int i, int lane, int32x4_t* sum) noexcept {
        int32x4_t s[unsigned(2 * pairs<Rows>)];
        CRUMB_UNROLL
        for (int j = 0; j < 2 * pairs<Rows>; ++j)
            s[j] = vdupq_n_s32(0);
        multiply<Rows, Tiles, First, Last>(w, codes, s);
        int32x4_t f[2];
        if constexpr (Subs != 0)
            twice(vreinterpretq_s32_f32(vld1q_f32(t.factors[i] + lane)), f);
        CRUMB_UNROLL
        for (int j = 0; j < 2 * pairs<Rows>; ++j)
            sum[j] = Subs != 0 ? vmlaq_s32(sum[j], s[j], f[j % 2]) : vaddq_s32(sum[j], s[j]);
    }
    /// sum + terms of 4 channels times the sums of activations of a row.
    static CRUMB_INLINE int32x4_t add_terms(const record_terms& t, int lane, const std::int16_t* x,
                                            int32x4_t sum) noexcept {
        const int16x8_t a = vld1q_s16(x), b = vld1q_s16(x + 8);
        if constexpr (Subs == 2) {
            add_four<0>(t, lane, vmovl_s16(vget_low_s16(a)), sum);
            add_four<4>(t, lane, vmovl_high_s16(a), sum);
            add_four<8>(t, lane, vmovl_s16(vget_low_s16(b)), sum);
            add_four<12>(t, lane, vmovl_high_s16(b), sum);
        } else {
            add_four<0>(t, lane, vpaddlq_s16(a), sum);
            add_four<4>(t, lane, vpaddlq_s16(b), sum);
        }
        return sum;
    }
    template <int First>
    static CRUMB_INLINE void add_four(const record_terms& t, int lane, int32x4_t x, int32x4_t& sum) noexcept {
        const auto term = [&](int i) { return vreinterpretq_s32_f32(vld1q_f32(t.terms[First + i] + lane)); };
        sum = vmlaq_laneq_s32(sum, term(0), x, 0);
        sum = vmlaq_laneq_s32(sum, term(1), x, 1);
        sum = vmlaq_laneq_s32(sum, term(2), x, 2);
        sum = vmlaq_laneq_s32(sum, term(3), x, 3);
    }
    static CRUMB_INLINE int32x4_t low_rows(int32x4_t a, int32x4_t b) noexcept {
        return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
    }
    static CRUMB_INLINE int32x4_t high_rows(int32x4_t a, int32x4_t b) noexcept {
        return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
    }

    template <int Rows, int Tiles>
    static CRUMB_INLINE void floats(const std::uint8_t* w, const record_terms& t, int lane,
                                    const record_rows& x, int groups, float* totals, int width) noexcept {
        using block = record_block<I, Bits, Subs, Integers>;
        const std::int8_t* codes = x.codes;
        const float* scales = x.scales;
        float32x4_t total[unsigned(2 * pairs<Rows>)];
        CRUMB_UNROLL
        for (int i = 0; i < pairs<Rows>; ++i) {
            const float32x4_t a = vld1q_f32(totals + 2 * i * width);
            const float32x4_t b = 2 * i + 1 < Rows ? vld1q_f32(totals + (2 * i + 1) * width) : a;
            total[2 * i] = joined<false>(a, b);
            total[2 * i + 1] = joined<true>(a, b);
        }
        for (int g = 0; g < groups; ++g) {
            const int of_group = g * Rows * subs;
            const std::int32_t* begin = x.use == record_sums::starts
                                            ? static_cast<const std::int32_t*>(x.sums) + of_group
                                            : block::template origins<Rows>.at;
            if constexpr (Subs == 2) {
                float_half<Rows, Tiles, 0, 2, 0>(w, codes, t, g, lane, scales, begin, total);
                float_half<Rows, Tiles, 2, 4, 1>(w, codes, t, g, lane, scales, begin, total);
            } else {
                float_half<Rows, Tiles, 0, 4, 0>(w, codes, t, g, lane, scales, begin, total);
            }
            if (x.use == record_sums::terms)
                float_terms<Rows>(t, g, lane, static_cast<const float*>(x.sums) + of_group, total);
            w += 8 * Tiles * static_cast<int>(tile_row_bytes);
            codes += Rows * static_cast<int>(group_size);
            scales += Rows;
        }
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r)
            vst1q_f32(totals + r * width, r % 2 == 0 ? joined<false>(total[r / 2 * 2], total[r / 2 * 2 + 1])
                                                     : joined<true>(total[r / 2 * 2], total[r / 2 * 2 + 1]));
    }
    template <bool High>
    static CRUMB_INLINE float32x4_t joined(float32x4_t a, float32x4_t b) noexcept {
        const float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
        return vreinterpretq_f32_f64(High ? vzip2q_f64(x, y) : vzip1q_f64(x, y));
    }
    template <int Rows, int Tiles, int First, int Last, int Sub>
    static CRUMB_INLINE void float_half(const std::uint8_t* w, const std::int8_t* codes,
                                        const record_terms& t, int g, int lane, const float* scales,
                                        const std::int32_t* begin, float32x4_t* total) noexcept {
        int32x4_t s[unsigned(2 * pairs<Rows>)];
        CRUMB_UNROLL
        for (int i = 0; i < pairs<Rows>; ++i)
            s[2 * i] = s[2 * i + 1] = vreinterpretq_s32_f32(sums_of<Rows, Sub>(i, begin));
        multiply<Rows, Tiles, First, Last>(w, codes, s);
        float32x4_t d[2];
        twice(vld1q_f32(t.factors[g * subs + Sub] + lane), d);
        CRUMB_UNROLL
        for (int i = 0; i < pairs<Rows>; ++i) {
            const bool alone = 2 * i + 1 == Rows;
            const float32x4_t scale = alone ? pair_of<true>(scales + 2 * i) : pair_of<false>(scales + 2 * i);
            CRUMB_UNROLL
            for (int c = 0; c < 2; ++c) {
                float32x4_t& to = total[2 * i + c];
                to = vfmaq_f32(to, vmulq_f32(vcvtq_f32_s32(s[2 * i + c]), scale), d[c]);
            }
        }
    }
    /// total += terms of a group times the sums of activations.
    template <int Rows>
    static CRUMB_INLINE void float_terms(const record_terms& t, int g, int lane, const float* sums,
                                         float32x4_t* total) noexcept {
        add_float_terms<Rows, 0>(t, g, lane, sums, total);
        if constexpr (subs == 2)
            add_float_terms<Rows, 1>(t, g, lane, sums, total);
    }
    template <int Rows, int Sub>
    static CRUMB_INLINE void add_float_terms(const record_terms& t, int g, int lane, const float* sums,
                                             float32x4_t* total) noexcept {
        float32x4_t m[2];
        twice(vld1q_f32(t.terms[g * subs + Sub] + lane), m);
        CRUMB_UNROLL
        for (int i = 0; i < 2 * pairs<Rows>; ++i)
            total[i] = vfmaq_f32(total[i], sums_of<Rows, Sub>(i / 2, sums), m[i % 2]);
    }
    /// Sum `Sub` of rows 2 i and 2 i + 1, as `pair_of`.
    template <int Rows, int Sub>
    static CRUMB_INLINE float32x4_t sums_of(int i, const void* sums) noexcept {
        constexpr int bytes = subs * static_cast<int>(sizeof(float));
        const auto* at = static_cast<const std::uint8_t*>(sums) + 2 * i * bytes + Sub * 4;
        const bool alone = 2 * i + 1 == Rows;
        if (subs == 1 || alone)
            return alone ? pair_of<true>(at) : pair_of<false>(at);
        float two[2];
        __builtin_memcpy(two, at, sizeof(float));
        __builtin_memcpy(two + 1, at + bytes, sizeof(float));
        return pair_of<false>(two);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
