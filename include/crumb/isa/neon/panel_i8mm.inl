// GEMM over int8 panels with SMMLA: as isa/avx512/panel.inl, in the order that the matrix instruction
// wants. Loops:
//     256 rows > tiles > panels of `panel_inputs` inputs > blocks of 8 rows > halves of the tile > groups
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON_I8MM
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_i8mm
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>

#include <crumb/isa/neon/panel_product_i8mm.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class Format>
struct panel_run<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename product_of<I, typename Format::codes>::type;
    static constexpr std::size_t panel_groups = panel_inputs / group_size;
    static constexpr std::size_t chunk_rows = 256; ///< whose totals wait beside a panel
    static constexpr std::size_t halves = 2;       ///< of a tile: the micro-kernel takes 8 channels
    static constexpr std::size_t square = 64;      ///< totals of 8 rows by 8 channels

    static void gemm(const linear_args& args) noexcept {
        panel p;
        // Per 8 rows: the squares of both halves, in the order of `panel_product`.
        alignas(64) float totals[chunk_rows * tile_channels];
        for (std::size_t first = block_of(args.rows.begin, args.x_rows, I::panel_row_block).first;
             first < args.rows.end; first += chunk_rows) {
            const std::size_t last = args.rows.end - first < chunk_rows ? args.rows.end : first + chunk_rows;
            const std::size_t blocks_of_8 = (last - first + 7) / 8;
            for (std::size_t t = args.channels.begin / tile_channels; t * tile_channels < args.channels.end;
                 ++t) {
                __builtin_memset(totals, 0, blocks_of_8 * halves * square * sizeof *totals);
                for (std::size_t g = 0; g < args.groups; g += panel_groups) {
                    const std::size_t groups =
                        args.groups - g < panel_groups ? args.groups - g : panel_groups;
                    fill(args, t, g, groups, p);
                    multiply(args, p, first, last, g, groups, totals);
                }
                emit(args, totals, t, first, last);
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
#if CRUMB_ASM
        if constexpr (std::is_same_v<typename Format::scales, half_scales> &&
                      !indexed_codes<typename Format::codes>)
            fill_in_assembly(args, t, g, groups, to);
        else
#endif
            fill_registers(args, t, g, groups, to);
    }
    static CRUMB_INLINE void fill_registers(const linear_args& args, std::size_t t, std::size_t g,
                                            std::size_t groups, panel& to) noexcept {
        for (int v = 0; v < 4; ++v) {
            packed_operands<I, Format, P, 1> from(args, t, v);
            from.skip(g);
            float32x4_t most = I::set1(smallest_scale);
            auto scan = from;
            for (std::size_t i = 0; i < groups; ++i) {
                scan.begin_group();
                most = I::max(most, I::abs(scan.scale(0)));
                scan.next_group();
            }
            constexpr float unit = static_cast<float>(1 << Format::codes::panel_shift) / 127.0f;
            I::store(to.scales + 4 * v, I::mul(most, I::set1(unit)));
            const float32x4_t inverse = I::div(I::set1(127.0f), most);
            std::int8_t* out = to.codes[v / 2] + v % 2 * 32;
            for (std::size_t i = 0; i < groups; ++i) {
                from.begin_group();
                fill_group(from, I::round_to_i32(I::mul(from.scale(0), inverse)), out + i * group_bytes);
                from.next_group();
            }
        }
    }
    /// 4 channels of a group.
    static CRUMB_INLINE void fill_group(const packed_operands<I, Format, P, 1>& from, int32x4_t m,
                                        std::int8_t* to) noexcept {
        const int8x16_t bytes = vreinterpretq_s8_s32(m);
        const uint8x16_t first = vcombine_u8(vdup_n_u8(0), vdup_n_u8(4));
        const int8x16_t m0 = vqtbl1q_s8(bytes, first);
        const int8x16_t m1 = vqtbl1q_s8(bytes, vaddq_u8(first, vdupq_n_u8(8)));
        int8x16_t w[8];
        i8mm_tile<I, Format>::operands(from, w);
        CRUMB_UNROLL
        for (int chunk = 0; chunk < 4; ++chunk) {
            vst1q_s8(to + 64 * chunk, requantize(w[2 * chunk], m0));
            vst1q_s8(to + 64 * chunk + 16, requantize(w[2 * chunk + 1], m1));
        }
    }
    static CRUMB_INLINE int8x16_t requantize(int8x16_t w, int8x16_t m) noexcept {
        // The operands of nibbles are 16 times their codes.
        constexpr int shift = Format::codes::panel_shift + (P::factor == 1 ? 0 : 4);
        const int8x8_t low = vrshrn_n_s16(vmull_s8(vget_low_s8(w), vget_low_s8(m)), shift);
        return vrshrn_high_n_s16(low, vmull_high_s8(w, m), shift);
    }

#if CRUMB_ASM
    static CRUMB_INLINE void fill_in_assembly(const linear_args& args, std::size_t t, std::size_t g,
                                              std::size_t groups, panel& to) noexcept {
        const half* scales = args.scales + (t * args.groups + g) * tile_channels;
        const std::uint8_t* codes = args.codes + (t * args.groups + g) * Format::codes::bytes;
        // The magnitudes of halves have the order of their bits.
        const auto magnitudes = [&](std::size_t i) {
            return vbicq_u16(vld1q_u16(reinterpret_cast<const std::uint16_t*>(scales) + i),
                             vdupq_n_u16(0x8000));
        };
        uint16x8_t most[halves] = {vdupq_n_u16(1), vdupq_n_u16(1)};
        const auto scan = [&](std::size_t i) {
            most[0] = vmaxq_u16(most[0], magnitudes(i * tile_channels));
            most[1] = vmaxq_u16(most[1], magnitudes(i * tile_channels + 8));
        };
        std::size_t i = 0;
        for (; i + 4 <= groups; i += 4) {
            scan(i);
            scan(i + 1);
            scan(i + 2);
            scan(i + 3);
        }
        for (; i < groups; ++i)
            scan(i);
        for (std::size_t h = 0; h < halves; ++h) {
            alignas(16) float inverse[8];
            const float16x8_t d = vreinterpretq_f16_u16(most[h]);
            const float32x4_t d0 = vcvt_f32_f16(vget_low_f16(d)), d1 = vcvt_high_f32_f16(d);
            constexpr float unit = static_cast<float>(1 << Format::codes::panel_shift) / 127.0f;
            I::store(to.scales + 8 * h, I::mul(d0, I::set1(unit)));
            I::store(to.scales + 8 * h + 4, I::mul(d1, I::set1(unit)));
            I::store(inverse, I::div(I::set1(127.0f), d0));
            I::store(inverse + 4, I::div(I::set1(127.0f), d1));
            panel_fill<I, Format>::eight_channels(codes + 32 * h, scales + 8 * h, inverse, groups,
                                                  to.codes[h]);
        }
    }
#endif

    static CRUMB_NOINLINE void multiply(const linear_args& args, const panel& p, std::size_t r,
                                        std::size_t last, std::size_t g, std::size_t groups,
                                        float* totals) noexcept {
        const std::size_t spans = (args.groups + panel_groups - 1) / panel_groups;
        panel_args a;
        a.inputs = groups * group_size;
        a.x = args.x_codes + (r * args.groups + g * 8) * group_size;
        a.x_scales = args.x_scales + r * spans + g / panel_groups * 8;
        for (; r < last && args.x_rows - r >= 8; r += 8) {
            CRUMB_UNROLL
            for (std::size_t h = 0; h < halves; ++h) {
                a.panel = p.codes[h];
                a.w_scales = p.scales + 8 * h;
                panel_product<I>::add_inline(a, totals);
                totals += square;
            }
            a.x += 8 * args.groups * group_size;
            a.x_scales += 8 * spans;
        }
        blocks<I>::template for_each<I::panel_row_block>(args.x_rows, r, last, [&]<int Rows>(std::size_t at) {
            a.x = args.x_codes + (at * args.groups + g * Rows) * group_size;
            a.x_scales = args.x_scales + at * spans + g / panel_groups * Rows;
            for (std::size_t h = 0; h < halves; ++h) {
                a.panel = p.codes[h];
                a.w_scales = p.scales + 8 * h;
                if constexpr (Rows < 8)
                    add_few<Rows>(a, totals + square * h);
            }
        });
    }

    /// The last rows, fewer than 8.
    template <int Rows>
    static CRUMB_NOINLINE void add_few(const panel_args& args, float* totals) noexcept {
        constexpr int pairs = (Rows + 1) / 2;
        for (int q = 0; q < 4; ++q) {
            int32x4_t s[unsigned(pairs)];
            CRUMB_UNROLL
            for (int i = 0; i < pairs; ++i)
                s[i] = vdupq_n_s32(0);
            const std::int8_t *x = args.x, *w = args.panel + 16 * q;
            for (std::size_t left = args.inputs / group_size; left != 0; --left) {
                for (int chunk = 0; chunk < 4; ++chunk) {
                    const int8x16_t channels = vld1q_s8(w + 64 * chunk);
                    CRUMB_UNROLL
                    for (int i = 0; i < pairs; ++i) {
                        const int8x16_t rows =
                            2 * i + 1 < Rows ? vld1q_s8(x + 64 * i + 16 * chunk)
                                             : vcombine_s8(vld1_s8(x + 64 * i + 8 * chunk), vdup_n_s8(0));
                        s[i] = vmmlaq_s32(s[i], rows, channels);
                    }
                }
                x += Rows * static_cast<int>(group_size);
                w += group_bytes;
            }
            CRUMB_UNROLL
            for (int i = 0; i < pairs; ++i)
                panel_product<I>::add_square(s[i], args.x_scales[2 * i],
                                             args.x_scales[2 * i + (2 * i + 1 < Rows ? 1 : 0)],
                                             args.w_scales + 2 * q, totals + 16 * i + 4 * q);
        }
    }

    /// Stores a tile's totals of rows r to `last` as far as `args` asks for them.
    static CRUMB_NOINLINE void emit(const linear_args& args, const float* totals, std::size_t t,
                                    std::size_t r, std::size_t last) noexcept {
        const std::size_t begin = t * tile_channels, end = begin + tile_channels;
        const bool whole = begin >= args.channels.begin && end <= args.channels.end;
        for (std::size_t i = 0; r < last; r += 2, i += 2) {
            const float* at = totals + i / 8 * halves * square + i % 8 * 8;
            if (whole && r >= args.rows.begin && r + 1 < args.rows.end) {
                float* y = args.y + r * args.y_stride + begin;
                const float* bias = args.bias != nullptr ? args.bias + begin : nullptr;
                pair(at, [&](std::size_t c, float32x4_t y0, float32x4_t y1) {
                    if (args.corrections != nullptr) {
                        y0 = I::add(y0, I::load(args.corrections + begin + c));
                        y1 = I::add(y1, I::load(args.corrections + begin + c));
                    }
                    if (bias != nullptr) {
                        y0 = I::add(y0, I::load(bias + c));
                        y1 = I::add(y1, I::load(bias + c));
                    }
                    I::store(y + c, y0);
                    I::store(y + args.y_stride + c, y1);
                });
            } else {
                pair(at, [&](std::size_t c, float32x4_t y0, float32x4_t y1) {
                    blocks<I>::emit(args, y0, begin + c, r);
                    blocks<I>::emit(args, y1, begin + c, r + 1);
                });
            }
        }
    }
    /// Calls f(c, y0, y1) for channels c .. c + 3 of two rows.
    template <class F>
    static CRUMB_INLINE void pair(const float* totals, F&& f) noexcept {
        CRUMB_UNROLL
        for (std::size_t c = 0; c < tile_channels; c += 4) {
            const float* at = totals + c / 8 * square + c % 8 * 2;
            const float64x2_t t0 = vreinterpretq_f64_f32(I::load(at));
            const float64x2_t t1 = vreinterpretq_f64_f32(I::load(at + 4));
            f(c, vreinterpretq_f32_f64(vzip1q_f64(t0, t1)), vreinterpretq_f32_f64(vzip2q_f64(t0, t1)));
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
