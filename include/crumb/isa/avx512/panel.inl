// GEMM over int8 panels: weights requantized on the way to one scale per channel and `panel_inputs` inputs,
// so that only dot products are left in the inner loop. Approximate. Loops:
//     256 rows > 3 tiles > panels of `panel_inputs` inputs > blocks of 8 rows > groups > 4 inputs > rows
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vnni
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class Format>
struct panel_run<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using shape = tile_shape<I, Format>;
    using f32 = typename I::f32;
    using P = typename shape::P;
    using dot = typename I::int8s; ///< multiplies the requantized codes
    static constexpr std::size_t max_rows = I::panel_row_block;
    static constexpr std::size_t panel_groups = panel_inputs / group_size;
    static constexpr std::size_t chunk_rows = 256; ///< whose totals wait beside a panel

    static void gemm(const linear_args& args) noexcept {
        const std::size_t begin = args.channels.begin / tile_channels;
        const std::size_t end = (args.channels.end + tile_channels - 1) / tile_channels;
        for (std::size_t r = block_of(args.rows.begin, args.x_rows, max_rows).first; r < args.rows.end;
             r += chunk_rows) {
            const std::size_t last = args.rows.end - r < chunk_rows ? args.rows.end : r + chunk_rows;
            const std::size_t t = tiles<I::panel_tiles>(args, begin, end, r, last);
            if constexpr (I::panel_tiles > 1)
                tiles<1>(args, t, end, r, last);
        }
    }

  private:
    template <std::size_t Tiles>
    struct panel {
        static constexpr int vectors = static_cast<int>(Tiles) * shape::vectors;
        static constexpr std::size_t group_bytes = 8 * Tiles * tile_row_bytes;
        alignas(64) std::uint8_t codes[panel_groups * group_bytes];
        alignas(64) float scales[Tiles * tile_channels];
    };

    template <std::size_t Tiles>
    static CRUMB_NOINLINE std::size_t tiles(const linear_args& args, std::size_t t, std::size_t end,
                                            std::size_t first, std::size_t last) noexcept {
        constexpr std::size_t width = Tiles * tile_channels;
        panel<Tiles> p;
        alignas(64) float totals[chunk_rows * width];
        if (args.groups == 0)
            __builtin_memset(totals, 0, sizeof totals);
        const std::size_t row_blocks = (last - first + max_rows - 1) / max_rows;
        const std::size_t share = round_up(panel_groups * shape::code_bytes / row_blocks, 64);
        for (; t + Tiles <= end; t += Tiles) {
            for (std::size_t g = 0; g < args.groups; g += panel_groups) {
                const std::size_t groups = args.groups - g < panel_groups ? args.groups - g : panel_groups;
                fill(args, t, g, groups, p);
                // Results leave block by block: while they wait for their lines, the next block multiplies.
                const bool complete = g + groups == args.groups;
                packed_operands<I, Format, P, panel<Tiles>::vectors> next(args, complete ? t + Tiles : t);
                next.skip(complete ? 0 : g + groups);
                for (std::size_t r = first, height; r < last; r += height) {
                    height = block_of(r, args.x_rows, max_rows).height;
                    float* to = totals + (r - first) * width;
                    next.prefetch((r - first) / max_rows * share, share);
                    if (height == max_rows)
                        whole_block(args, p, r, g, groups, to);
                    else
                        last_block(args, p, r, height, g, groups, to);
                    if (complete)
                        emit_rows<Tiles>(args, to, t, r, height);
                }
            }
            if (args.groups == 0)
                emit_rows<Tiles>(args, totals, t, first, last - first);
        }
        return t;
    }

    template <std::size_t Tiles>
    static CRUMB_INLINE void emit_rows(const linear_args& args, const float* totals, std::size_t t,
                                       std::size_t r, std::size_t rows) noexcept {
        for (const std::size_t end = r + rows; r < end; ++r)
            for (std::size_t c = 0; c < Tiles * tile_channels; c += I::lanes, totals += I::lanes)
                blocks<I>::emit(args, I::load(totals), t * tile_channels + c, r);
    }

    /// code' = round(code * m / 2^panel_shift), m = round(127 d / (largest |d| of the channel's groups)).
    template <std::size_t Tiles>
    static CRUMB_INLINE void fill(const linear_args& args, std::size_t t, std::size_t g, std::size_t groups,
                                  panel<Tiles>& to) noexcept {
        constexpr int vectors = panel<Tiles>::vectors;
        packed_operands<I, Format, P, vectors> from(args, t);
        from.skip(g);
        f32 most[unsigned(vectors)], inverse[unsigned(vectors)];
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            most[v] = I::set1(smallest_scale);
        auto scan = from;
        for (std::size_t i = 0; i < groups; ++i) {
            scan.begin_group();
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v)
                most[v] = I::max(most[v], I::abs(scan.scale(v)));
            scan.next_group();
        }
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v) {
            inverse[v] = I::div(I::set1(127.0f), most[v]);
            I::store(to.scales + v * I::lanes,
                     I::mul(most[v], I::set1(static_cast<float>(1 << Format::codes::panel_shift) / 127.0f)));
        }
        std::uint8_t* codes = to.codes;
        for (std::size_t i = 0; i < groups; ++i) {
            from.begin_group();
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v) {
                const auto m = P::multiplier(I::round_to_i32(I::mul(from.scale(v), inverse[v])));
                CRUMB_UNROLL
                for (int row = 0; row < shape::rows; ++row) {
                    const auto at = [&](int x) {
                        return codes + ((row * shape::per_row + x) * vectors + v) * I::width;
                    };
                    dot::store_operand(at(0), from.template requantized<0>(row, v, m));
                    if constexpr (shape::per_row == 2)
                        dot::store_operand(at(1), from.template requantized<1>(row, v, m));
                }
            }
            from.next_group();
            codes += panel<Tiles>::group_bytes;
        }
    }

    template <std::size_t Tiles>
    static CRUMB_NOINLINE void whole_block(const linear_args& args, const panel<Tiles>& p, std::size_t r,
                                           std::size_t g, std::size_t groups, float* totals) noexcept {
        multiply<max_rows>(args, p, r, max_rows, 0, g, groups, totals);
    }
    /// Fewer rows than a block has: four at a time, then one. Filling the panel takes most of the time then.
    template <std::size_t Tiles>
    static CRUMB_NOINLINE void last_block(const linear_args& args, const panel<Tiles>& p, std::size_t r,
                                          std::size_t height, std::size_t g, std::size_t groups,
                                          float* totals) noexcept {
        constexpr std::size_t width = Tiles * tile_channels;
        std::size_t i = 0;
        for (; i + 4 <= height; i += 4)
            multiply<4>(args, p, r, height, i, g, groups, totals + i * width);
        for (; i < height; ++i)
            multiply<1>(args, p, r, height, i, g, groups, totals + i * width);
    }

    /// Rows i .. i + Rows - 1 of the block of `height` rows that begins at row r.
    template <int Rows, std::size_t Tiles>
    static CRUMB_INLINE void multiply(const linear_args& args, const panel<Tiles>& p, std::size_t r,
                                      std::size_t height, std::size_t i, std::size_t g, std::size_t groups,
                                      float* totals) noexcept {
        constexpr int vectors = panel<Tiles>::vectors;
        const std::size_t blocks = (args.groups + panel_groups - 1) / panel_groups;
        const std::size_t at = r * blocks + g / panel_groups * height + i;
        const std::int8_t* x = args.x_codes + (r * args.groups + g * height) * group_size + 8 * i;
        typename dot::acc s[unsigned(Rows * vectors)];
        CRUMB_UNROLL
        for (int j = 0; j < Rows * vectors; ++j)
            s[j] = dot::start(args.x_starts + at + j / vectors);
        const std::uint8_t* codes = p.codes;
        for (; groups != 0; --groups) {
            CRUMB_UNROLL
            for (int k = 0; k < 8; ++k) {
                const int four = k / shape::per_row + k % shape::per_row * shape::rows;
                typename dot::operand w[unsigned(vectors)];
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v)
                    w[v] = dot::load_operand(codes + (k * vectors + v) * I::width);
                CRUMB_UNROLL
                for (int row = 0; row < Rows; ++row) {
                    const auto quad = I::load_quad(x + static_cast<std::size_t>(four / 2 * 8) * height +
                                                   8 * row + four % 2 * 4);
                    CRUMB_UNROLL
                    for (int v = 0; v < vectors; ++v)
                        dot::template step<0>(s[row * vectors + v], w[v], quad);
                }
                CRUMB_HOLD_LOADS();
                // Products that are put off keep their operands alive until some are spilled.
                CRUMB_UNROLL
                for (int j = 0; j < Rows * vectors; ++j)
                    dot::pin(s[j]);
            }
            codes += panel<Tiles>::group_bytes;
            x += height * group_size;
        }
        CRUMB_UNROLL
        for (int row = 0; row < Rows; ++row) {
            const f32 scale = I::set1(args.x_scales[at + static_cast<std::size_t>(row)]);
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v) {
                float* total = totals + (row * vectors + v) * I::lanes;
                const f32 scaled = I::mul(I::to_f32(dot::finish(s[row * vectors + v], nullptr)), scale);
                I::store(total, I::fma(scaled, I::load(p.scales + v * I::lanes),
                                       g == 0 ? I::zero() : I::load(total)));
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
