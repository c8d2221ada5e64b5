// SMMLA: 2 rows x 8 inputs by 2 channels x 8 inputs. ZIP of two register rows of a tile (4 channels x 4
// inputs each) gives exactly that operand, so the layout that SDOT wants serves as it lies. Sums, scales and
// totals stay in the 2 x 2 order {row 0, row 0, row 1, row 1} until the block is stored.
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

  private:
    template <int Rows>
    static CRUMB_INLINE void block_register(const linear_args& args, std::size_t tile, std::size_t v,
                                            std::size_t row, float* out) noexcept {
        const std::uint8_t* codes = args.codes + tile * args.groups * base::code_bytes + 16 * v;
        const half* scales = args.scales + tile * args.groups * tile_channels + 4 * v;
        const std::int8_t* x = args.x_codes + row * args.groups * group_size;
        const float* x_scales = base::row_scales(args, row);
        float32x4_t total[Rows + Rows % 2];
        CRUMB_UNROLL
        for (int i = 0; i < Rows + Rows % 2; ++i)
            total[i] = vdupq_n_f32(0);
        for (std::size_t g = 0; g < args.groups; ++g) {
            int8x16_t w[8];
            operands(codes, w);
            const float64x2_t d = vreinterpretq_f64_f32(I::load(scales));
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
            codes += base::code_bytes;
            scales += tile_channels;
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
    /// w[2 c] and w[2 c + 1]: chunk c of channels 0 and 1, and of channels 2 and 3.
    static CRUMB_INLINE void operands(const std::uint8_t* codes, int8x16_t* w) noexcept {
        CRUMB_UNROLL
        for (int p = 0; p < pairs; ++p) {
            const uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(codes + 128 * p));
            const uint32x4_t b = vreinterpretq_u32_u8(vld1q_u8(codes + 128 * p + 64));
            const uint8x16_t z0 = vreinterpretq_u8_u32(vzip1q_u32(a, b));
            const uint8x16_t z1 = vreinterpretq_u8_u32(vzip2q_u32(a, b));
            w[2 * p] = P::template expand<0>(z0);
            w[2 * p + 1] = P::template expand<0>(z1);
            if constexpr (base::nibbles) {
                w[4 + 2 * p] = P::template expand<1>(z0);
                w[4 + 2 * p + 1] = P::template expand<1>(z1);
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
