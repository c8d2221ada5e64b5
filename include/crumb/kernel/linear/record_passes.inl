// GEMV over packed tiles of formats with records. Loops:
//     gemv    passes > blocks of inputs > tiles (1 or 2, far apart) > groups
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
struct record_passes<isa::CRUMB_THIS_ISA, Format> : record_tile<isa::CRUMB_THIS_ISA, Format> {
    using tile = record_tile<isa::CRUMB_THIS_ISA, Format>;
    using I = typename tile::I;
    using shape = typename tile::shape;
    using reader = record_reader<I, Format>;
    using codes = typename Format::codes;
    using P = typename tile::P;
    using bits = typename tile::bits;
    using f32 = typename I::f32;
    using i32 = typename I::i32;
    using tile::block_bytes, tile::block_groups, tile::minima, tile::vectors;
    using tile::blocks_of, tile::groups_left;
    using block = record_block<I, shape::bits, shape::sub_groups, shape::integers>;

    static void gemv(const linear_args& args) noexcept {
        const std::size_t end = (args.channels.end + tile_channels - 1) / tile_channels;
        std::size_t t = args.channels.begin / tile_channels;
        while (max_tiles > 1 && args.two_streams && t + 2 <= end) {
            pass_tiles pass = pass_at<2>(t, end, blocks_of(args) * block_bytes);
            for (; pass.first < pass.end; ++pass.first)
                run(args, pass, 2);
            t = pass.end + pass.apart;
        }
        for (; t < end; ++t)
            run(args, t, 1);
    }

  private:
    static constexpr std::size_t records_ahead = 256; ///< bytes
    /// Tiles of a pass: two only where memory answers two streams faster (`cpu_features::two_streams`).
    static constexpr int max_tiles = I::prefetch_bytes != 0 ? 2 : 1;

    static CRUMB_NOINLINE void run(const linear_args& args, const pass_tiles& pass, int tiles) noexcept {
        alignas(64) float out[unsigned(max_tiles)][tile_channels] = {};
        tiles = max_tiles == 1 ? 1 : tiles; // known to be one, sums stay in registers
        using own = record_single<I, Format>;
        if constexpr (!requires { sizeof(own); })
            run_from(args, pass, tiles, 0, out);
        else if (const std::size_t next = own::run(args, pass.first, out[0]); !own::takes_all)
            run_from(args, pass, tiles, next, out);
        for (int i = 0; i < tiles; ++i)
            blocks<I>::store(args, out[i], pass.first + static_cast<std::size_t>(i) * pass.apart, 1, 0, 1,
                             tile::factor(args));
    }
    /// Adds the products of blocks from `b` on.
    static CRUMB_INLINE void run_from(const linear_args& args, const pass_tiles& pass, int tiles,
                                      std::size_t b, float (*out)[tile_channels]) noexcept {
        const std::size_t count = blocks_of(args), first = pass.first * count + b;
        const std::size_t apart = tiles > 1 ? pass.apart * count : 0; // blocks
        const std::uint8_t* codes_at = args.codes + first * block_bytes;
        const std::uint8_t* records_at = args.records + first * Format::records::bytes;
        const std::size_t distance = distance_ahead<I>(static_cast<std::size_t>(tiles));
        lines_ahead ahead(codes_at + distance, apart * block_bytes);
        // Where a stream ends, what follows in memory has been read as the other one.
        const std::size_t end = distance / block_bytes < count ? count - distance / block_bytes : 0;
        const std::size_t jump = pass.first + 1 == pass.end ? end : count;
        f32 total[unsigned(max_tiles * vectors)];
        CRUMB_UNROLL
        for (int v = 0; v < max_tiles * vectors; ++v)
            total[v] = I::load(out[0] + v * I::lanes);
        for (; b < count && b * block_groups < args.x_groups; ++b) {
            if (b == jump)
                ahead.skip(apart * block_bytes);
            for (int i = 0; i < tiles; ++i) {
                const std::size_t at = static_cast<std::size_t>(i) * apart;
                run_block(args, b, records_at + at * Format::records::bytes, codes_at + at * block_bytes,
                          ahead, total + i * vectors);
            }
            codes_at += block_bytes;
            records_at += Format::records::bytes;
        }
        CRUMB_UNROLL
        for (int v = 0; v < max_tiles * vectors; ++v)
            I::store(out[0] + v * I::lanes, total[v]);
    }
    static CRUMB_INLINE void run_block(const linear_args& args, std::size_t b, const std::uint8_t* record,
                                       const std::uint8_t* at, lines_ahead& ahead, f32* total) noexcept {
        if constexpr (I::prefetch_bytes != 0)
            for (std::size_t line = 0; line < Format::records::bytes; line += lines_ahead::line)
                __builtin_prefetch(record + records_ahead + line);
        if constexpr (tile::trits)
            add_trits(args, b, record, at, ahead, total);
        else if constexpr (shape::integers)
            add_integers(args, b, record, at, ahead, total);
        else
            add_floats(args, b, record, at, ahead, total);
    }

    static CRUMB_INLINE void add_integers(const linear_args& args, std::size_t b, const std::uint8_t* record,
                                          const std::uint8_t* at, lines_ahead& ahead, f32* total) noexcept {
        const std::int8_t* x = args.x_codes + b * record_inputs;
        const auto* sums = static_cast<const std::int16_t*>(args.x_sums) + b * (record_inputs / 16);
        single_codes<I, Format> w(at, tile::table(), ahead);
        i32 sum[unsigned(vectors)], terms[unsigned(vectors)];
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            sum[v] = terms[v] = I::set1_i32(0);
        if constexpr (in_place) {
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v)
                sum[v] = two_bit_sums<I>::template of<P>(at + v * I::width, x, ahead);
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
    static constexpr bool in_place = shape::sub_groups == 0 && shape::bits == 2 && !tile::trits &&
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
                                           single_codes<I, Format>& w, const std::int8_t*& x,
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

    static CRUMB_INLINE void add_floats(const linear_args& args, std::size_t b, const std::uint8_t* record,
                                        const std::uint8_t* at, lines_ahead& ahead, f32* total) noexcept {
        constexpr int subs = shape::sub_groups;
        const int groups = groups_left(args, b * block_groups, block_groups);
        single_codes<I, Format> w(at, tile::table(), ahead);
        for (int g = 0; g < groups; ++g) {
            const std::size_t group = b * block_groups + static_cast<std::size_t>(g);
            const auto row = P::load_row(args.x_codes + group * group_size, 8);

            const std::int32_t* begin = block::template origins<1>.at;
            if constexpr (reader::use == record_sums::starts)
                begin = static_cast<const std::int32_t*>(args.x_sums) + group * subs;
            i32 sum[unsigned(subs * vectors)];
            w.begin_group();
            if constexpr (codes::field_bits == 1 && shape::up == 1 &&
                          requires { P::sum_of_bits(w.raw(0, 0), row, 0); }) {
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

    static CRUMB_INLINE void add_trits(const linear_args& args, std::size_t b, const std::uint8_t* record,
                                       const std::uint8_t* at, lines_ahead& ahead, f32* total) noexcept {
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
                    sum[v] = trit_sums<I>::template of<P>(rows, x, ahead);
                else
                    sum[v] = trit_sums<I>::template taken_out<P>(rows, x);
                sum[v] = block::without_sums(sum[v], sums);
            }
        }
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            total[v] = block::scaled(sum[v], scale, reader::unit(record, v), total[v]);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
