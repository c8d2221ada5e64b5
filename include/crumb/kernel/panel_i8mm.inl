// GEMM over int8 panels with SMMLA: as kernel/panel.inl, in the order that the matrix instruction wants.
namespace crumb::inline CRUMB_ABI::kernel {

template <class Format>
struct panel_run<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename product_of<I, typename Format::codes>::type;
    static constexpr std::size_t panel_groups = panel_inputs / group_size;
    static constexpr std::size_t chunk_rows = 256; ///< whose totals wait beside a panel
    static constexpr std::size_t halves = 2;       ///< of a tile: the micro-kernel takes 8 channels

    static void gemm(const linear_args& args) noexcept {
        panel p;
        alignas(64) float totals[chunk_rows * tile_channels];
        for (std::size_t first = block_of(args.rows.begin, args.x_rows, I::panel_row_block).first;
             first < args.rows.end; first += chunk_rows) {
            const std::size_t last = args.rows.end - first < chunk_rows ? args.rows.end : first + chunk_rows;
            for (std::size_t t = args.channels.begin / tile_channels; t * tile_channels < args.channels.end;
                 ++t) {
                __builtin_memset(totals, 0, sizeof totals);
                for (std::size_t g = 0; g < args.groups; g += panel_groups) {
                    const std::size_t groups =
                        args.groups - g < panel_groups ? args.groups - g : panel_groups;
                    fill(args, t, g, groups, p);
                    blocks<I>::template for_each<I::panel_row_block>(
                        args.x_rows, first, last, [&]<int Rows>(std::size_t r) {
                            multiply<Rows>(args, p, r, g, groups, totals + (r - first) * tile_channels);
                        });
                }
                for (std::size_t r = first; r < last; ++r)
                    for (std::size_t c = 0; c < tile_channels; c += I::lanes)
                        blocks<I>::emit(args, I::load(totals + (r - first) * tile_channels + c),
                                        t * tile_channels + c, r);
            }
        }
    }

  private:
    static constexpr std::size_t group_bytes = 8 * group_size; ///< of 8 channels
    struct panel {
        alignas(64) std::int8_t codes[halves][panel_groups * group_bytes];
        alignas(64) float scales[tile_channels];
    };

    /// code' = round(code * m / 2^panel_shift), m = round(127 d / (largest |d| of the channel's groups)).
    static CRUMB_NOINLINE void fill(const linear_args& args, std::size_t t, std::size_t g, std::size_t groups,
                                    panel& to) noexcept {
        const half* scales = args.scales + (t * args.groups + g) * tile_channels;
        const std::uint8_t* codes = args.codes + (t * args.groups + g) * packed_layout<Format>::code_bytes;
        for (std::size_t v = 0; v < 4; ++v) {
            float32x4_t most = I::set1(smallest_half);
            for (std::size_t i = 0; i < groups; ++i)
                most = I::max(most, I::abs(I::load(scales + i * tile_channels + 4 * v)));
            constexpr float unit = static_cast<float>(1 << Format::codes::panel_shift) / 127.0f;
            I::store(to.scales + 4 * v, I::mul(most, I::set1(unit)));
            const float32x4_t inverse = I::div(I::set1(127.0f), most);
            std::int8_t* out = to.codes[v / 2] + v % 2 * 32;
            for (std::size_t i = 0; i < groups; ++i)
                fill_group(codes + i * packed_layout<Format>::code_bytes + 16 * v,
                           I::round_to_i32(I::mul(I::load(scales + i * tile_channels + 4 * v), inverse)),
                           out + i * group_bytes);
        }
    }

    /// 4 channels of a group.
    static CRUMB_INLINE void fill_group(const std::uint8_t* codes, int32x4_t m, std::int8_t* to) noexcept {
        constexpr int pairs = static_cast<int>(Format::codes::rows) / 2;
        const int8x16_t bytes = vreinterpretq_s8_s32(m);
        const uint8x16_t first = vcombine_u8(vdup_n_u8(0), vdup_n_u8(4));
        const int8x16_t m0 = vqtbl1q_s8(bytes, first);
        const int8x16_t m1 = vqtbl1q_s8(bytes, vaddq_u8(first, vdupq_n_u8(8)));
        CRUMB_UNROLL
        for (int p = 0; p < pairs; ++p) {
            const uint32x4_t a = vreinterpretq_u32_u8(I::load_bytes(codes + 128 * p));
            const uint32x4_t b = vreinterpretq_u32_u8(I::load_bytes(codes + 128 * p + 64));
            const uint8x16_t w0 = vreinterpretq_u8_u32(vzip1q_u32(a, b));
            const uint8x16_t w1 = vreinterpretq_u8_u32(vzip2q_u32(a, b));
            vst1q_s8(to + 64 * p, requantize(P::template expand<0>(w0), m0));
            vst1q_s8(to + 64 * p + 16, requantize(P::template expand<0>(w1), m1));
            if constexpr (pairs == 2) {
                vst1q_s8(to + 64 * (p + 2), requantize(P::template expand<1>(w0), m0));
                vst1q_s8(to + 64 * (p + 2) + 16, requantize(P::template expand<1>(w1), m1));
            }
        }
    }
    static CRUMB_INLINE int8x16_t requantize(int8x16_t w, int8x16_t m) noexcept {
        // The operands of nibbles are 16 times their codes.
        constexpr int shift = Format::codes::panel_shift + (P::factor == 1 ? 0 : 4);
        const int8x8_t low = vrshrn_n_s16(vmull_s8(vget_low_s8(w), vget_low_s8(m)), shift);
        return vrshrn_high_n_s16(low, vmull_high_s8(w, m), shift);
    }

    template <int Rows>
    static CRUMB_INLINE void multiply(const linear_args& args, const panel& p, std::size_t r, std::size_t g,
                                      std::size_t groups, float* totals) noexcept {
        const std::size_t spans = (args.groups + panel_groups - 1) / panel_groups;
        panel_args a;
        a.x = args.x_codes + (r * args.groups + g * Rows) * group_size;
        a.x_scales = args.x_scales + r * spans + g / panel_groups * Rows;
        a.x_stride = Rows * group_size;
        a.inputs = groups * group_size;
        for (std::size_t h = 0; h < halves; ++h) {
            a.panel = p.codes[h];
            a.w_scales = p.scales + 8 * h;
            if constexpr (Rows == 8)
                panel_product<I>::add(a, totals + 8 * h, tile_channels);
            else
                add_few<Rows>(a, totals + 8 * h);
        }
    }

    /// The last rows, fewer than 8.
    template <int Rows>
    static CRUMB_NOINLINE void add_few(const panel_args& args, float* out) noexcept {
        for (int q = 0; q < 4; ++q) {
            int32x4_t s[(Rows + 1) / 2];
            CRUMB_UNROLL
            for (int i = 0; i < (Rows + 1) / 2; ++i)
                s[i] = vdupq_n_s32(0);
            const std::int8_t *x = args.x, *w = args.panel + 16 * q;
            for (std::size_t left = args.inputs / group_size; left != 0; --left) {
                for (int chunk = 0; chunk < 4; ++chunk) {
                    const int8x16_t channels = vld1q_s8(w + 64 * chunk);
                    CRUMB_UNROLL
                    for (int i = 0; i < (Rows + 1) / 2; ++i) {
                        const int8x16_t rows =
                            2 * i + 1 < Rows ? vld1q_s8(x + 64 * i + 16 * chunk)
                                             : vcombine_s8(vld1_s8(x + 64 * i + 8 * chunk), vdup_n_s8(0));
                        s[i] = vmmlaq_s32(s[i], rows, channels);
                    }
                }
                x += args.x_stride;
                w += group_bytes;
            }
            const float32x2_t scale = vld1_f32(args.w_scales + 2 * q);
            for (int i = 0; i < Rows; ++i) {
                const float32x4_t both = vcvtq_f32_s32(s[i / 2]);
                const float32x2_t sums = i % 2 == 0 ? vget_low_f32(both) : vget_high_f32(both);
                float* to = out + static_cast<std::size_t>(i) * tile_channels + 2 * q;
                vst1_f32(to, vfma_f32(vld1_f32(to), vmul_n_f32(sums, args.x_scales[i]), scale));
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
