// GEMV and GEMM over packed tiles. Loops, from the outermost:
//     gemv    tiles (1 or 2 at a time, far apart) > groups                              one row
//     gemm    tiles (`block_tiles` at a time) > blocks of `row_block` rows > groups     few rows
//             128 rows > tiles > panels of 8 groups > blocks of rows > groups           `panel_rows` or more
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class Format, class Tile>
struct linear_run<isa::CRUMB_THIS_ISA, Format, Tile> {
    using I = isa::CRUMB_THIS_ISA;
    using shape = tile_shape<I, Format>;
    using tiles = Tile;
    using P = typename shape::P;
    using Q = typename shape::Q;

    static void gemv(const linear_args& args) noexcept {
        const std::size_t end = tile_end(args);
        std::size_t t = args.channels.begin / tile_channels;
        if constexpr (single_tiles > 1)
            if (!I::single_tiles_by_streams || args.two_streams)
                t = singles<single_tiles>(args, t, end);
        singles<1>(args, t, end);
    }

    // Tiles outside, row blocks inside: a tile's codes come from memory once and stay in cache for the rest.
    static void gemm(const linear_args& args) noexcept {
        if (args.rows.size() == 0)
            return;
        const std::size_t begin = args.channels.begin / tile_channels, end = tile_end(args);
        std::size_t r = block_of(args.rows.begin, args.x_rows, I::row_block).first;
        if constexpr (I::panel_rows != 0) {
            // Panels take whole blocks; the rows behind these are multiplied as few rows are.
            const std::size_t whole = args.x_rows - args.x_rows % I::row_block;
            const std::size_t stop = args.rows.end < whole ? args.rows.end : whole;
            while (args.groups != 0 && stop >= r + I::panel_rows) {
                const std::size_t last = stop - r < max_panel_rows ? stop : r + max_panel_rows;
                std::size_t t = panels<block_tiles>(args, begin, end, r, last);
                if constexpr (block_tiles > 1)
                    panels<1>(args, t, end, r, last);
                r = last;
            }
            if (r >= args.rows.end)
                return;
        }
        std::size_t t = begin;
        for (; t + block_tiles <= end; t += block_tiles)
            for_each_block(args, r, args.rows.end,
                           [&]<int Rows>(std::size_t at) { block<Rows, block_tiles>(args, t, at); });
        for (; t < end; ++t)
            for_each_block(args, r, args.rows.end,
                           [&]<int Rows>(std::size_t at) { block<Rows, 1>(args, t, at); });
    }

  private:
    static constexpr bool has_selectors = [] {
        if constexpr (indexed_codes<typename Format::codes>)
            return Format::codes::selector_bits != 0;
        else
            return false;
    }();
    // With few registers, selectors leave none for a second tile.
    static constexpr std::size_t single_tiles = I::registers < 32 && has_selectors ? 1 : I::single_tiles;
    static constexpr std::size_t block_tiles = I::block_tiles;
    static constexpr std::size_t panel_groups = 8; ///< a panel of so many leaves room for rows in L1
    static_assert(I::panel_rows == 0 || I::panel_rows >= 2 * I::row_block);
    static constexpr std::size_t max_panel_rows =
        128; ///< whose totals are kept beside a panel; a multiple of every row_block

    static std::size_t tile_end(const linear_args& args) noexcept {
        return (args.channels.end + tile_channels - 1) / tile_channels;
    }

    /// All passes of `Tiles` tiles that fit between tiles t and end, for one row.
    template <std::size_t Tiles>
    static CRUMB_NOINLINE std::size_t singles(const linear_args& args, std::size_t t,
                                              std::size_t end) noexcept {
        if constexpr (Tiles == 1 || I::prefetch_bytes == 0) {
            for (; t + Tiles <= end; t += Tiles)
                block<1, Tiles>(args, t, 0);
        } else {
            while (t + Tiles <= end) {
                pass_tiles pass = pass_at<Tiles>(t, end, args.groups * shape::code_bytes);
                for (; pass.first < pass.end; ++pass.first)
                    single<Tiles>(args, pass);
                t = pass.end + (Tiles - 1) * pass.apart;
            }
        }
        return t;
    }

    template <std::size_t Tiles>
    static CRUMB_NOINLINE void single(const linear_args& args, pass_tiles pass) noexcept {
        alignas(64) float totals[Tiles * tile_channels];
        constexpr int vectors = static_cast<int>(Tiles) * shape::vectors;
        tiles::template run<P, 1, vectors>(packed_operands<I, Format, P, vectors>(args, pass),
                                           typename tiles::template row_terms<1>(args, 0, 0), args.groups,
                                           true, totals, Tiles * tile_channels);
        CRUMB_UNROLL
        for (std::size_t i = 0; i < Tiles; ++i)
            blocks<I>::store(args, totals + i * tile_channels, pass.first + i * pass.apart, 1, 0, 1,
                             P::factor);
    }

    template <class F>
    static CRUMB_INLINE void for_each_block(const linear_args& args, std::size_t r, std::size_t end,
                                            F&& f) noexcept {
        blocks<I>::template for_each<I::row_block>(args.x_rows, r, end, f);
    }

    template <int Rows, std::size_t Tiles>
    static CRUMB_NOINLINE void block(const linear_args& args, std::size_t t, std::size_t r) noexcept {
        constexpr std::size_t width = Tiles * tile_channels;
        alignas(64) float totals[Rows * width];
        if constexpr (has_own_tiles<I> && Rows == 1) {
            tiles::single(args, t, r, totals);
        } else if constexpr (has_own_tiles<I>) {
            tiles::template block<Rows>(args, t, r, totals);
        } else {
            using product = std::conditional_t<Rows == 1, P, Q>;
            constexpr int vectors = static_cast<int>(Tiles) * shape::vectors;
            tiles::template run<product, Rows, vectors>(packed_operands<I, Format, product, vectors>(args, t),
                                                        typename tiles::template row_terms<Rows>(args, r, 0),
                                                        args.groups, true, totals, width);
        }
        blocks<I>::store(args, totals, t, Tiles, r, Rows, P::factor);
    }

    // A few tiles times some groups are expanded once and multiplied with many rows, whose totals wait beside
    // the panel: in y their lines would fall into a few sets of the cache.
    template <std::size_t Tiles>
    static CRUMB_NOINLINE std::size_t panels(const linear_args& args, std::size_t t, std::size_t end,
                                             std::size_t first, std::size_t last) noexcept {
        constexpr int vectors = static_cast<int>(Tiles) * shape::vectors;
        constexpr std::size_t width = Tiles * tile_channels;
        using packed = packed_operands<I, Format, Q, vectors>;
        using kept = kept_operands<I, Format, Q, vectors>;
        using prefetching = prefetching_operands<I, Format, Q, vectors>;
        using panel = panel_operands<I, Format, Q, vectors>;
        alignas(64) std::uint8_t memory[panel_groups * panel::group_bytes];
        alignas(64) float totals[max_panel_rows * width];
        for (; t + Tiles <= end; t += Tiles) {
            packed from(args, t);
            for (std::size_t g = 0; g < args.groups; g += panel_groups) {
                const std::size_t groups = args.groups - g < panel_groups ? args.groups - g : panel_groups;
                // Results leave block by block: while they wait for their lines, the next block multiplies.
                const bool complete = g + groups == args.groups;
                packed next = complete ? packed(args, t + Tiles) : from;
                if (!complete)
                    next.skip(groups);
                for (std::size_t r = first; r < last; r += I::row_block) {
                    float* to = totals + (r - first) * width;
                    if (r == first)
                        panel_block<Tiles>(args, kept{from, next, memory}, r, g, groups, to);
                    else if (r == first + I::row_block)
                        panel_block<Tiles>(args, prefetching{{memory}, next}, r, g, groups, to);
                    else
                        panel_block<Tiles>(args, panel{memory}, r, g, groups, to);
                    if (complete)
                        blocks<I>::store(args, to, t, Tiles, r, I::row_block, P::factor);
                }
                from = next;
            }
        }
        return t;
    }

    template <std::size_t Tiles, class Operands>
    static CRUMB_NOINLINE void panel_block(const linear_args& args, Operands w, std::size_t r, std::size_t g,
                                           std::size_t groups, float* totals) noexcept {
        constexpr int vectors = static_cast<int>(Tiles) * shape::vectors;
        constexpr int rows = static_cast<int>(I::row_block);
        const typename tiles::template row_terms<rows> x(args, r, g);
        tiles::template run<Q, rows, vectors>(w, x, groups, g == 0, totals, Tiles * tile_channels);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
