// GEMM over packed tiles of formats with records. Loops:
//     gemm    128 rows > tiles (`record_tiles` at a time) > panels of up to 8 groups > blocks of rows >
//     groups
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/fields.inl>
#include <crumb/kernel/linear/blocks.inl>
#include <crumb/kernel/linear/fields.inl>
#include <crumb/kernel/linear/records.inl>

#include <crumb/kernel/linear/record_block.inl>
#include <crumb/kernel/linear/record_codes.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class Format>
struct record_run<isa::CRUMB_THIS_ISA, Format> : record_tile<isa::CRUMB_THIS_ISA, Format> {
    using tile = record_tile<isa::CRUMB_THIS_ISA, Format>;
    using I = typename tile::I;
    using shape = typename tile::shape;
    using reader = record_reader<I, Format>;
    using codes = typename Format::codes;
    using P = typename tile::P;
    using bits = typename tile::bits;
    using tile::block_bytes, tile::block_groups, tile::minima, tile::vectors;
    using tile::blocks_of, tile::groups_left;
    static constexpr std::size_t panel_groups = 8;
    static constexpr std::size_t max_rows = 128; ///< whose totals wait beside a panel
    /// What multiplies panels, which formats share.
    static constexpr int shared_bits =
        bits::product_bits(shape::sum_bits, shape::integers ? shape::centered_bits : 0);
    using shared = record_block<I, shared_bits, shape::sub_groups, shape::integers>;

    static void gemm(const linear_args& args) noexcept {
        const std::size_t begin = args.channels.begin / tile_channels;
        const std::size_t end = (args.channels.end + tile_channels - 1) / tile_channels;
        for (std::size_t r = block_of(args.rows.begin, args.x_rows, I::record_row_block).first;
             r < args.rows.end; r += max_rows) {
            const std::size_t last = args.rows.end - r < max_rows ? args.rows.end : r + max_rows;
            const std::size_t t = panels<I::record_tiles>(args, begin, end, r, last);
            if constexpr (I::record_tiles > 1)
                panels<1>(args, t, end, r, last);
        }
    }

  private:
    template <std::size_t Tiles>
    struct panel {
        alignas(64) std::uint8_t operands[panel_groups][8][Tiles][tile_row_bytes];
        record_terms terms[Tiles];
    };

    template <std::size_t Tiles>
    static CRUMB_NOINLINE std::size_t panels(const linear_args& args, std::size_t t, std::size_t end,
                                             std::size_t first, std::size_t last) noexcept {
        constexpr std::size_t width = Tiles * tile_channels;
        panel<Tiles> p;
        alignas(64) float totals[max_rows * width];
        for (; t + Tiles <= end; t += Tiles) {
            // The last block may have rows that nobody asked for.
            __builtin_memset(totals, 0, round_up(last - first, I::record_row_block) * width * sizeof(float));
            for (std::size_t g = 0; g < args.x_groups; g += panel_groups) {
                const int groups = groups_left(args, g, panel_groups);
                panel_ahead<Tiles> next(args,
                                        g + panel_groups < args.x_groups ? source(args, t, g + panel_groups)
                                                                         : source(args, t + Tiles, 0),
                                        last - first);
                CRUMB_UNROLL
                for (std::size_t i = 0; i < Tiles; ++i)
                    fill<Tiles>(args, t + i, i, g, groups, p, next);
                blocks<I>::template for_each<I::record_row_block>(
                    args.x_rows, first, last, [&]<int Rows>(std::size_t r) {
                        next.step(panel_ahead<Tiles>::steps_of_fill);
                        multiply<Rows, Tiles>(args, p, r, g, groups, totals + (r - first) * width);
                    });
            }
            blocks<I>::store(args, totals, t, Tiles, first, last - first, tile::factor(args));
        }
        return t;
    }

    /// What a panel is filled with.
    struct panel_source {
        const std::uint8_t *codes, *record;
    };
    /// Asks for what the next panel is filled with at an even pace, while this one is filled and multiplied
    /// with `rows` rows: filling takes about as long as a block of rows.
    template <std::size_t Tiles>
    class panel_ahead {
      public:
        static constexpr std::size_t steps_of_fill = Tiles * panel_groups;

        CRUMB_INLINE panel_ahead(const linear_args& args, const panel_source& from, std::size_t rows) noexcept
            : codes_(from.codes), record_(from.record), tile_blocks_(blocks_of(args)),
              steps_(((rows + I::record_row_block - 1) / I::record_row_block + 1) * steps_of_fill) {}

        CRUMB_INLINE void step(std::size_t n) noexcept {
            if constexpr (I::prefetch_bytes != 0)
                for (due_ += n * lines; due_ >= steps_; due_ -= steps_)
                    next();
        }

      private:
        static constexpr std::size_t panel_blocks = panel_groups / block_groups;
        static constexpr std::size_t code_lines = panel_blocks * block_bytes / 64;
        static constexpr std::size_t lines = code_lines + panel_blocks * Format::records::bytes / 64 + 1;
        CRUMB_INLINE void next() noexcept {
            const bool record = line_ >= code_lines;
            const std::uint8_t* at = record ? record_ + (line_ - code_lines) * 64 : codes_ + line_ * 64;
            const std::size_t apart = tile_blocks_ * (record ? Format::records::bytes : block_bytes);
            CRUMB_UNROLL
            for (std::size_t tile = 0; tile < Tiles; ++tile)
                __builtin_prefetch(at + tile * apart);
            ++line_;
        }

        const std::uint8_t *codes_, *record_;
        std::size_t tile_blocks_, steps_, due_ = 0, line_ = 0;
    };
    static CRUMB_INLINE panel_source source(const linear_args& args, std::size_t tile,
                                            std::size_t g) noexcept {
        const std::size_t b = tile * blocks_of(args) + g / block_groups;
        return {args.codes + b * block_bytes, args.records + b * Format::records::bytes};
    }

    template <std::size_t Tiles>
    static CRUMB_NOINLINE void fill(const linear_args& args, std::size_t tile, std::size_t i, std::size_t g,
                                    int groups, panel<Tiles>& p, panel_ahead<Tiles>& next) noexcept {
        const auto [at, first_record] = source(args, tile, g);
        const std::uint8_t* record = first_record;
        if constexpr (shape::integers) {
            reader::template integers<shared>(record, p.terms[i]);
        } else {
            for (int first = 0; first < groups; first += static_cast<int>(block_groups)) {
                const int left = groups - first, all = static_cast<int>(block_groups);
                reader::floats(record, left < all ? left : all, first, p.terms[i]);
                record += Format::records::bytes;
            }
        }
        if constexpr (tile::trits) {
            next.step(panel_groups);
            for (int row = 0; row < 13; ++row) {
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v) {
                    auto raw = I::load_bytes(at + row * static_cast<int>(tile_row_bytes) + v * I::width);
                    for (int d = 0; d < (row == 12 ? 4 : 5); ++d) {
                        const int four = trit_codes::four_of(row, d);
                        P::store_operand(p.operands[four / 8][four % 8][i] + v * I::width,
                                         P::operand_of(bits::digit(raw)));
                        raw = bits::triple(raw);
                    }
                }
            }
        } else {
            record_codes<I, Format> w(at, tile::table());
            panel_ahead<Tiles> ahead = next; // a copy, whose members stay in registers
            for (int group = 0; group < groups; ++group) {
                ahead.step(1);
                w.begin_group();
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v)
                    keep<0>(w, v, p.operands[group][0][i] + v * I::width, Tiles * tile_row_bytes);
                w.at += codes::bytes;
            }
            next = ahead;
        }
    }
    template <int Four>
    static CRUMB_INLINE void keep(const record_codes<I, Format>& from, int v, std::uint8_t* to,
                                  std::size_t stride) noexcept {
        P::store_operand(to, from.template operand<Four>(0, v));
        if constexpr (Four < 7)
            keep<Four + 1>(from, v, to + stride, stride);
    }

    template <int Rows, std::size_t Tiles>
    static CRUMB_INLINE void multiply(const linear_args& args, const panel<Tiles>& p, std::size_t r,
                                      std::size_t g, int groups, float* totals) noexcept {
        constexpr std::size_t height = Rows;
        record_rows x;
        x.codes = args.x_codes + (r * args.x_groups + g * height) * group_size;
        x.offset = minima ? shared::middle : reader::offset;
        if constexpr (shape::integers) {
            const std::size_t at = r * (args.x_groups / panel_groups) + g / panel_groups * height;
            x.scales = args.x_scales + at;
            x.sums = static_cast<const std::int16_t*>(args.x_sums) + at * (record_inputs / 16);
        } else {
            const std::size_t at = r * args.x_groups + g * height;
            x.scales = args.x_scales + at;
            x.shifts = from_origin<I> ? args.x_shifts + at : nullptr;
            x.sums =
                static_cast<const float*>(args.x_sums) + at * static_cast<std::size_t>(shape::sub_groups);
            x.use = reader::use;
        }
        using own = record_panel<I, shared_bits, shape::sub_groups, shape::integers>;
        constexpr int tiles = static_cast<int>(Tiles);
        const std::uint8_t* operands = &p.operands[0][0][0][0];
        if constexpr (Rows > 1 && requires { sizeof(own); })
            own::template run<Rows, tiles>(operands, p.terms, minima, x, groups, totals);
        else
            shared::template panel<Rows, tiles>(operands, p.terms, minima, x, groups, totals);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
