// SMMLA: 2 rows x 8 inputs by 2 channels x 8 inputs. ZIP of two register rows of a tile (4 channels x 4
// inputs each) gives exactly that operand, so the layout that SDOT wants serves as it lies. Sums, scales and
// totals stay in the 2 x 2 order {row 0, row 0, row 1, row 1} until the block is stored. Loops:
//     4 channels > groups > pairs of rows > chunks of 8 inputs
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON_I8MM
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_i8mm
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>

#include <crumb/isa/neon/tile.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class Format>
struct i8mm_tile<isa::CRUMB_THIS_ISA, Format> : neon_tile<isa::CRUMB_THIS_ISA, Format> {
    using base = neon_tile<isa::CRUMB_THIS_ISA, Format>;
    using I = isa::CRUMB_THIS_ISA;
    using P = typename base::P;
    static constexpr int pairs = base::nibbles ? 2 : 4; ///< of register rows

    template <int Rows>
    static CRUMB_INLINE void block(const linear_args& args, std::size_t tile, std::size_t row,
                                   float* out) noexcept {
        for (std::size_t v = 0; v < 4; ++v)
            block_register<Rows>(args, tile, v, row, out + 4 * v);
    }

    /// w[2 c] and w[2 c + 1]: chunk c of channels 0 and 1, and of channels 2 and 3.
    static CRUMB_INLINE void operands(const packed_operands<I, Format, P, 1>& from, int8x16_t* w) noexcept {
        CRUMB_UNROLL
        for (int p = 0; p < pairs; ++p) {
            const uint8x16_t a = from.cells(2 * p, 0), b = from.cells(2 * p + 1, 0);
            expand<0>(from, a, b, p, w + 2 * p);
            if constexpr (base::nibbles)
                expand<1>(from, a, b, p, w + 4 + 2 * p);
        }
    }

  private:
    template <int Rows>
    static CRUMB_INLINE void block_register(const linear_args& args, std::size_t tile, std::size_t v,
                                            std::size_t row, float* out) noexcept {
        packed_operands<I, Format, P, 1> weights(args, tile, static_cast<int>(v));
        const std::int8_t* x = args.x_codes + row * args.groups * group_size;
        const float* x_scales = base::row_scales(args, row);
        float32x4_t total[unsigned(Rows + Rows % 2)];
        CRUMB_UNROLL
        for (int i = 0; i < Rows + Rows % 2; ++i)
            total[i] = vdupq_n_f32(0);
        for (std::size_t g = 0; g < args.groups; ++g) {
            int8x16_t w[8];
            weights.begin_group();
            operands(weights, w);
            const float64x2_t d = vreinterpretq_f64_f32(weights.scale(0));
            const float32x4_t d0 = vreinterpretq_f32_f64(vzip1q_f64(d, d));
            const float32x4_t d1 = vreinterpretq_f32_f64(vzip2q_f64(d, d));
            CRUMB_UNROLL
            for (int r = 0; r < Rows; r += 2) {
                int32x4_t s0 = vdupq_n_s32(0), s1 = vdupq_n_s32(0);
                CRUMB_UNROLL
                for (int chunk = 0; chunk < 4; ++chunk) {
                    const int8x16_t a = r + 1 < Rows
                                            ? vld1q_s8(x + 32 * r + 16 * chunk)
                                            : vcombine_s8(vld1_s8(x + 32 * r + 8 * chunk), vdup_n_s8(0));
                    s0 = vmmlaq_s32(s0, a, w[2 * chunk]);
                    s1 = vmmlaq_s32(s1, a, w[2 * chunk + 1]);
                }
                // The scale of a row that stands alone is followed by its copy only.
                const float32x4_t scale =
                    r + 1 < Rows ? vld1q_f32(x_scales + 2 * r) : vdupq_n_f32(x_scales[2 * r]);
                total[r] = vfmaq_f32(total[r], vmulq_f32(vcvtq_f32_s32(s0), scale), d0);
                total[r + 1] = vfmaq_f32(total[r + 1], vmulq_f32(vcvtq_f32_s32(s1), scale), d1);
            }
            weights.next_group();
            x += Rows * static_cast<int>(group_size);
            x_scales += 2 * Rows;
        }
        CRUMB_UNROLL
        for (int r = 0; r < Rows; r += 2) {
            const float64x2_t t0 = vreinterpretq_f64_f32(total[r]), t1 = vreinterpretq_f64_f32(total[r + 1]);
            vst1q_f32(out + 16 * r, vreinterpretq_f32_f64(vzip1q_f64(t0, t1)));
            if (r + 1 < Rows)
                vst1q_f32(out + 16 * r + 16, vreinterpretq_f32_f64(vzip2q_f64(t0, t1)));
        }
    }
    template <int X>
    static CRUMB_INLINE void expand(const packed_operands<I, Format, P, 1>& from, uint8x16_t a, uint8x16_t b,
                                    int p, int8x16_t* w) noexcept {
        if constexpr (packed_operands<I, Format, P, 1>::row_free) {
            w[0] = from.template expand<X>(zip<false>(a, b), 2 * p);
            w[1] = from.template expand<X>(zip<true>(a, b), 2 * p);
        } else {
            const int8x16_t x = from.template expand<X>(a, 2 * p), y = from.template expand<X>(b, 2 * p + 1);
            w[0] = zip<false>(x, y);
            w[1] = zip<true>(x, y);
        }
    }
    template <bool High, class T>
    static CRUMB_INLINE T zip(T a, T b) noexcept {
        const uint32x4_t x = __builtin_bit_cast(uint32x4_t, a), y = __builtin_bit_cast(uint32x4_t, b);
        return __builtin_bit_cast(T, High ? vzip2q_u32(x, y) : vzip1q_u32(x, y));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
