// GEMV and GEMM over packed tiles of formats with records. Loops:
//     gemv    tiles > blocks of inputs > groups                                                one row
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
#include <crumb/kernel/linear/trit_sums.inl>
#include <crumb/kernel/linear/two_bit_sums.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class Format>
struct record_run<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using shape = record_shape<Format>;
    using reader = record_reader<I, Format>;
    using codes = typename Format::codes;
    using P = field_product<I, shape::bits>;
    using bits = field_bits<I>;
    using f32 = typename I::f32;
    using i32 = typename I::i32;
    static constexpr int vectors = static_cast<int>(tile_channels) / I::lanes; ///< registers of a tile
    static constexpr bool trits = codes_of_blocks<codes>;
    static constexpr bool minima = has_minima<Format>;
    static constexpr std::size_t block_groups = block_inputs<Format> / group_size;
    static constexpr std::size_t block_bytes = trits ? codes::bytes : block_groups * codes::bytes;
    static constexpr std::size_t panel_groups = 8;
    static constexpr std::size_t max_rows = 128; ///< whose totals wait beside a panel
    using block = record_block<I, shape::bits, shape::sub_groups, shape::integers>;
    /// The same of panels, which formats share.
    static constexpr int shared_bits =
        bits::product_bits(shape::sum_bits, shape::integers ? shape::centered_bits : 0);
    using shared = record_block<I, shared_bits, shape::sub_groups, shape::integers>;

    static void gemv(const linear_args& args) noexcept {
        const std::size_t end = (args.channels.end + tile_channels - 1) / tile_channels;
        for (std::size_t t = args.channels.begin / tile_channels; t < end; ++t)
            single(args, t);
    }

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
    static CRUMB_INLINE std::size_t blocks_of(const linear_args& args) noexcept {
        return args.groups / block_groups;
    }
    /// Of the groups of a block from `g` on that have activations.
    static CRUMB_INLINE int groups_left(const linear_args& args, std::size_t g, std::size_t most) noexcept {
        const std::size_t left = args.x_groups - g;
        return static_cast<int>(left < most ? left : most);
    }
    static CRUMB_INLINE float factor(const linear_args& args) noexcept {
        return has_tensor_scale<Format> ? args.tensor_scale : 1.0f;
    }
    static CRUMB_NOINLINE void single(const linear_args& args, std::size_t tile) noexcept {
        alignas(64) float out[tile_channels] = {};
        using own = record_single<I, Format>;
        if constexpr (!requires { sizeof(own); })
            single_from(args, tile, 0, out);
        else if (const std::size_t next = own::run(args, tile, out); !own::takes_all)
            single_from(args, tile, next, out);
        blocks<I>::store(args, out, tile, 1, 0, 1, factor(args));
    }
    /// Adds the products of blocks from `b` on.
    static CRUMB_INLINE void single_from(const linear_args& args, std::size_t tile, std::size_t b,
                                         float* out) noexcept {
        const std::size_t count = blocks_of(args), first = tile * count + b;
        const std::uint8_t* at = args.codes + first * block_bytes;
        const std::uint8_t* record = args.records + first * Format::records::bytes;
        f32 total[unsigned(vectors)];
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            total[v] = I::load(out + v * I::lanes);
        for (; b < count && b * block_groups < args.x_groups; ++b) {
            if constexpr (trits)
                single_trits(args, b, record, at, total);
            else if constexpr (shape::integers)
                single_integers(args, b, record, at, total);
            else
                single_floats(args, b, record, at, total);
            at += block_bytes;
            record += Format::records::bytes;
        }
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            I::store(out + v * I::lanes, total[v]);
    }

    static CRUMB_INLINE void single_integers(const linear_args& args, std::size_t b,
                                             const std::uint8_t* record, const std::uint8_t* at,
                                             f32* total) noexcept {
        const std::int8_t* x = args.x_codes + b * record_inputs;
        const auto* sums = static_cast<const std::int16_t*>(args.x_sums) + b * (record_inputs / 16);
        record_codes<I, Format> w(at, table());
        i32 sum[unsigned(vectors)], terms[unsigned(vectors)];
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            sum[v] = terms[v] = I::set1_i32(0);
        if constexpr (in_place) {
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v)
                sum[v] = two_bit_sums<I>::template of<P>(at + v * I::width, x);
        } else {
            // Neighbours share bytes of their scales.
            for (int g = 0; g < 8; g += 2) {
                const auto begin = starts_of(sums + 2 * g);
                integer_group<0>(record, g, begin, w, x, sums, sum, terms);
                integer_group<1>(record, g, begin, w, x, sums, sum, terms);
            }
        }
        const f32 scale = I::set1(args.x_scales[b]);
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v) {
            if constexpr (!minima && shape::sub_groups == 0)
                sum[v] = block::without_sums(sum[v], sums);
            else if constexpr (!minima && reader::offset != 0 && !starts)
                sum[v] = I::add_i32(sum[v], bits::mul_i32(terms[v], I::set1_i32(-reader::offset)));
            total[v] = block::scaled(sum[v], scale, reader::unit(record, v), total[v]);
            if constexpr (minima)
                total[v] = block::scaled(terms[v], scale, reader::minimum_unit(record, v), total[v]);
        }
    }
    /// Whether the codes of a block, which is one sum, are multiplied where they are in their bytes.
    static constexpr bool in_place = shape::sub_groups == 0 && shape::bits == 2 && !trits &&
                                     requires(const i32* sums) { P::whole_pairs(sums); };
    /// Whether sums of codes of a row begin at what the offset of codes takes from them.
    static constexpr bool starts = !minima && shape::sub_groups == 2 && reader::offset != 0 &&
                                   requires(const std::int16_t* sums) { P::group_starts(sums, 0); };
    struct no_starts {};
    /// Of two groups with these sums of 16 activations.
    static CRUMB_INLINE auto starts_of(const std::int16_t* sums) noexcept {
        if constexpr (starts)
            return P::group_starts(sums, reader::offset);
        else
            return no_starts{};
    }
    /// Of group `Group` of the two.
    template <int Group, class Starts>
    struct group_begin {
        const Starts& of;
        template <int Sub>
        CRUMB_INLINE typename P::acc at() const noexcept {
            if constexpr (starts)
                return P::template start_at<2 * Group + Sub>(of);
            else
                return P::start();
        }
    };
    /// Group g + i of a block.
    template <int i, class Starts>
    static CRUMB_INLINE void integer_group(const std::uint8_t* record, int g, const Starts& begin,
                                           record_codes<I, Format>& w, const std::int8_t*& x,
                                           const std::int16_t* sums, i32* sum, i32* terms) noexcept {
        constexpr int subs = shape::sub_groups;
        const auto row = P::load_row(x, 8);
        record_integers<I> numbers;
        if constexpr (subs != 0) {
            // `g` is even: of g + i, i is known.
            numbers = reader::group(record, g, i);
            if constexpr (minima || (reader::offset != 0 && !starts))
                reader::add_terms(numbers, sums + 2 * (g + i), terms);
        }
        w.begin_group();
        block::template integer_group<vectors>(w, row, numbers, group_begin<i, Starts>{begin}, sum);
        w.at += codes::bytes;
        x += group_size;
    }

    static CRUMB_INLINE void single_floats(const linear_args& args, std::size_t b, const std::uint8_t* record,
                                           const std::uint8_t* at, f32* total) noexcept {
        constexpr int subs = shape::sub_groups;
        const int groups = groups_left(args, b * block_groups, block_groups);
        record_codes<I, Format> w(at, table());
        for (int g = 0; g < groups; ++g) {
            const std::size_t group = b * block_groups + static_cast<std::size_t>(g);
            const auto row = P::load_row(args.x_codes + group * group_size, 8);

            const std::int32_t* begin = block::template origins<1>.at;
            if constexpr (reader::use == record_sums::starts)
                begin = static_cast<const std::int32_t*>(args.x_sums) + group * subs;
            i32 sum[unsigned(subs * vectors)];
            w.begin_group();
            if constexpr (codes::field_bits == 1 && requires { P::sum_of_bits(w.raw(0, 0), row, 0); }) {
                sum[0] = P::sum_of_bits(w.raw(0, 0), row, *begin);
                w.template prefetch<0>();
            } else {
                block::template float_group<vectors>(w, row, begin, sum);
            }
            CRUMB_UNROLL
            for (int i = 0; i < subs * vectors; ++i) {
                const int v = i % vectors;
                const f32 d = reader::scale(record, g * subs + i / vectors, v);
                total[v] = block::scaled_by(sum[i], args.x_scales, args.x_shifts, group, reader::factor(d),
                                            total[v]);
            }
            if constexpr (reader::use == record_sums::terms) {
                const float* sums = static_cast<const float*>(args.x_sums) + group * subs;
                CRUMB_UNROLL
                for (int i = 0; i < subs * vectors; ++i) {
                    const int sub = i / vectors, v = i % vectors;
                    const f32 d = reader::scale(record, g * subs + sub, v);
                    total[v] = I::fma(I::set1(sums[sub]), reader::term(record, d, v), total[v]);
                }
            }
            w.at += codes::bytes;
        }
    }

    static CRUMB_INLINE void single_trits(const linear_args& args, std::size_t b, const std::uint8_t* record,
                                          const std::uint8_t* at, f32* total) noexcept {
        const std::int8_t* x = args.x_codes + b * record_inputs;
        const f32 scale = I::set1(args.x_scales[b]);
        const auto* sums = static_cast<const std::int16_t*>(args.x_sums) + b * (record_inputs / 16);
        i32 sum[unsigned(vectors)];
        if constexpr (requires { P::sums_of_trits(at, x, sum); }) {
            P::sums_of_trits(at, x, sum);
        } else {
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v) {
                const std::uint8_t* rows = at + v * I::width;
                if constexpr (requires { P::whole_trits(sum[v], sum[v]); })
                    sum[v] = trit_sums<I>::template of<P>(rows, x);
                else
                    sum[v] = trit_sums<I>::template taken_out<P>(rows, x);
                sum[v] = block::without_sums(sum[v], sums);
            }
        }
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            total[v] = block::scaled(sum[v], scale, reader::unit(record, v), total[v]);
    }

    static CRUMB_INLINE auto table() noexcept {
        return bits::load_table(record_codes<I, Format>::table_entries.at);
    }

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
                CRUMB_UNROLL
                for (std::size_t i = 0; i < Tiles; ++i)
                    fill<Tiles>(args, t + i, i, g, groups, p);
                const panel_source next = g + panel_groups < args.x_groups ? source(args, t, g + panel_groups)
                                                                           : source(args, t + Tiles, 0);
                blocks<I>::template for_each<I::record_row_block>(
                    args.x_rows, first, last, [&]<int Rows>(std::size_t r) {
                        next.template prefetch<Tiles>(r - first, last - first, blocks_of(args));
                        multiply<Rows, Tiles>(args, p, r, g, groups, totals + (r - first) * width);
                    });
            }
            blocks<I>::store(args, totals, t, Tiles, first, last - first, factor(args));
        }
        return t;
    }

    /// What a panel is filled with.
    struct panel_source {
        const std::uint8_t* codes;
        const std::uint8_t* record;

        /// Asks for a share of the bytes of `Tiles` tiles while rows `row` and on of `rows` are multiplied.
        template <std::size_t Tiles>
        CRUMB_INLINE void prefetch(std::size_t row, std::size_t rows,
                                   std::size_t tile_blocks) const noexcept {
            if constexpr (I::prefetch_bytes != 0) {
                constexpr std::size_t panel_blocks = panel_groups / block_groups;
                constexpr std::size_t code_lines = panel_blocks * block_bytes / 64;
                constexpr std::size_t lines = code_lines + panel_blocks * Format::records::bytes / 64 + 1;
                const std::size_t height = I::record_row_block;
                const std::size_t share = (lines * height + rows - 1) / rows, from = row / height * share;
                for (std::size_t line = from; line < from + share && line < lines; ++line)
                    for (std::size_t tile = 0; tile < Tiles; ++tile)
                        __builtin_prefetch(line < code_lines
                                               ? codes + tile * tile_blocks * block_bytes + line * 64
                                               : record + tile * tile_blocks * Format::records::bytes +
                                                     (line - code_lines) * 64,
                                           0, 2);
            }
        }
    };
    static CRUMB_INLINE panel_source source(const linear_args& args, std::size_t tile,
                                            std::size_t g) noexcept {
        const std::size_t b = tile * blocks_of(args) + g / block_groups;
        return {args.codes + b * block_bytes, args.records + b * Format::records::bytes};
    }

    template <std::size_t Tiles>
    static CRUMB_NOINLINE void fill(const linear_args& args, std::size_t tile, std::size_t i, std::size_t g,
                                    int groups, panel<Tiles>& p) noexcept {
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
        if constexpr (trits) {
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
            record_codes<I, Format> w(at, table());
            for (int group = 0; group < groups; ++group) {
                w.begin_group();
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v)
                    keep<0>(w, v, p.operands[group][0][i] + v * I::width, Tiles * tile_row_bytes);
                w.at += codes::bytes;
            }
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
