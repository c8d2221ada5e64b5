// GEMM over int8 panels: weights requantized on the way to one scale per channel and `panel_inputs` inputs,
// so that only dot products are left in the inner loop. Approximate. Loops:
//     256 rows > 3 tiles > panels of `panel_inputs` inputs > blocks of 8 rows
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vnni
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>

#include <crumb/isa/avx512/panel_product.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class Format>
struct panel_run<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using shape = tile_shape<I, Format>;
    using f32 = typename I::f32;
    using P = typename shape::P;
    using product = panel_product<I>;
    template <std::size_t Tiles>
    using panel = product::panel<Tiles>;
    static constexpr std::size_t max_rows = product::max_rows, panel_groups = product::panel_groups;
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
                        product::whole_block(args, p, r, g, groups, to);
                    else
                        product::last_block(args, p, r, height, g, groups, to);
                    if (complete)
                        blocks<I>::store(args, to, t, Tiles, r, height, 1);
                }
            }
            if (args.groups == 0)
                blocks<I>::store(args, totals, t, Tiles, first, last - first, 1);
        }
        return t;
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
                        return codes + ((row + x * shape::rows) * vectors + v) * I::width;
                    };
                    product::dot::store_operand(at(0), from.template requantized<0>(row, v, m));
                    if constexpr (shape::per_row == 2)
                        product::dot::store_operand(at(1), from.template requantized<1>(row, v, m));
                }
            }
            from.next_group();
            codes += panel<Tiles>::group_bytes;
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
