// Rows of neurons turned into packed tiles on the way, for products with many rows of activations. Loops:
//     inputs    tiles of 16 neurons > groups of 32 inputs > 4 neurons
//     outputs   groups of 32 neurons > blocks of 32 outputs > 4 neurons
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/isa/portable/four_rows.inl>

#include <crumb/kernel/ffn/row_reader.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <row_codec Codec>
struct neuron_tiles_run<isa::CRUMB_THIS_ISA, Codec> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename I::four_rows;
    using reg = typename P::reg;
    using f32 = typename I::f32;
    static constexpr std::size_t block_bytes = row_block<Codec>::bytes;
    static constexpr std::size_t tile_bytes = byte_codes::bytes;
    static constexpr std::size_t half_bytes = tile_bytes / 2; ///< of a tile: 16 inputs
    /// Codes times this use the range of a byte.
    static constexpr int unit = Codec == row_codec::q8_0 ? 1 : Codec == row_codec::q4_0 ? 16 : 42;
    static constexpr float max_code = 128; ///< in that unit, at most

    static void inputs(const neuron_tile_args& args) noexcept {
        const std::size_t first = args.columns.begin / group_size;
        const std::size_t groups = (args.columns.end + group_size - 1) / group_size - first;
        const std::size_t count = args.neurons.end - args.neurons.begin;
        const std::size_t tiles = (count + tile_channels - 1) / tile_channels;
        const std::byte* records =
            args.records + args.neurons.begin * args.record_bytes + args.row_offset + first * block_bytes;
        for (std::size_t t = 0; t < tiles; ++t) {
            const auto* at =
                reinterpret_cast<const std::uint8_t*>(records + t * tile_channels * args.record_bytes);
            tile_of_inputs(args, t, groups, at, count - t * tile_channels);
        }
    }

    static void outputs(const neuron_tile_args& args) noexcept {
        const std::size_t count = args.neurons.end - args.neurons.begin;
        const std::size_t groups = (count + group_size - 1) / group_size;
        const std::size_t blocks = (args.columns.end - args.columns.begin + group_size - 1) / group_size;
        // Neurons outside: their lines serve for all columns.
        for (std::size_t g = 0; g < groups; ++g) {
            const std::size_t first = g * group_size;
            const std::size_t here = smaller(count - first, group_size);
            const std::size_t next = first + 2 * group_size <= count ? group_size : 0; // neurons
            const std::byte* at = args.records + (args.neurons.begin + first) * args.record_bytes +
                                  args.row_offset + args.columns.begin / group_size * block_bytes;
            for (std::size_t b = 0; b < blocks; b += max_blocks) {
                const auto* from = reinterpret_cast<const std::uint8_t*>(at + b * block_bytes);
                const std::size_t some = smaller(blocks - b, max_blocks);
                // Records are further apart than any prefetcher of the hardware looks.
                const record_prefetch prefetches(from + next * args.record_bytes, args.record_bytes, next,
                                                 some * block_bytes, some);
                blocks_of_outputs(args, g, groups, {from, args.record_bytes, here}, b, some, prefetches);
            }
        }
    }

  private:
    /// Not the standard library's: the linker may keep a copy of that for another CPU.
    static constexpr std::size_t smaller(std::size_t a, std::size_t b) noexcept { return a < b ? a : b; }

    struct sixteen {
        alignas(16) std::int8_t at[16];
    };
    /// What codes stand for, times `Unit`.
    template <int Unit>
    static constexpr sixteen values = [] {
        sixteen v{};
        for (int i = 0; i < 16; ++i)
            v.at[i] = static_cast<std::int8_t>(Unit * (Codec == row_codec::u2 ? 2 * (i % 4) - 3 : i - 8));
        return v;
    }();

    /// `Rows` rows, of which `count` exist: what lies behind the last is the last once more, with scales of
    /// 0.
    template <std::size_t Rows>
    struct row_pointers {
        const std::uint8_t* at[Rows];
        std::size_t count;

        CRUMB_INLINE row_pointers(const std::uint8_t* first, std::size_t stride, std::size_t n) noexcept
            : at(), count(n) {
            for (std::size_t r = 0; r < Rows; ++r)
                at[r] = first + smaller(r, n - 1) * stride;
        }
        /// The scales of a row's blocks, to[b * step].
        CRUMB_INLINE void read_scales(std::size_t r, std::size_t blocks, half* to,
                                      std::size_t step) const noexcept {
            const std::uint8_t* from = at[r];
            const std::size_t there = r < count ? blocks : 0;
            for (std::size_t b = 0; b < there; ++b, from += block_bytes)
                to[b * step] = *reinterpret_cast<const half*>(from);
            for (std::size_t b = there; b < blocks; ++b)
                to[b * step] = half{};
        }
    };

    /// Asks for lines of rows, the first line of every row first, in equal parts: as many as there are steps.
    struct record_prefetch {
        const std::uint8_t* first;
        std::size_t stride, rows;
        std::size_t per_step, left; ///< per step: in 1 / 256 of a line
        std::size_t row = 0, due = 0;
        CRUMB_INLINE record_prefetch(const std::uint8_t* from, std::size_t row_stride, std::size_t row_count,
                                     std::size_t bytes, std::size_t steps) noexcept
            : first(from), stride(row_stride), rows(row_count), per_step(0),
              left(row_count * ((bytes + alignment - 1) / alignment + 1)) {
            per_step = left * 256 / steps + 1;
        }
        CRUMB_INLINE void step() noexcept {
            for (due += per_step; due >= 256 && left != 0; due -= 256, --left) {
                __builtin_prefetch(first + row * stride, 0, 3);
                if (++row == rows) {
                    row = 0;
                    first += alignment;
                }
            }
        }
    };

    /// A group of each of four rows, its inputs in two halves: codes, or what they are looked up with.
    template <class Rows>
    static CRUMB_INLINE void read(const Rows& rows, std::size_t first, std::size_t block,
                                  reg* halves) noexcept {
        const std::uint8_t* codes[4];
        CRUMB_UNROLL
        for (std::size_t r = 0; r < 4; ++r)
            codes[r] = rows.at[first + r] + block * block_bytes + sizeof(half);
        if constexpr (Codec == row_codec::u2) {
            const reg x = P::load_twice(codes);
            halves[0] = P::template pairs<0>(x);
            halves[1] = P::template pairs<1>(x);
        } else {
            const reg x = P::load(codes);
            if constexpr (Codec == row_codec::q4_0) {
                halves[0] = P::template nibbles<0>(x);
                halves[1] = P::template nibbles<1>(x);
            } else {
                CRUMB_UNROLL
                for (int r = 0; r < 4; ++r)
                    codes[r] += 16;
                halves[0] = x;
                halves[1] = P::load(codes);
            }
        }
    }
    static CRUMB_INLINE reg in_units(const reg& table, const reg& codes) noexcept {
        if constexpr (Codec == row_codec::q8_0)
            return codes;
        else
            return P::look_up(table, codes);
    }

    /// numerator / scale, or 0 for scales smaller than any half.
    static CRUMB_INLINE f32 over(float numerator, f32 scale) noexcept {
        const f32 least = I::set1(0x1p-24f);
        return I::select_less(scale, least, I::zero(), I::div(I::set1(numerator), I::max(scale, least)));
    }
    /// factors[i] = round(scales[i] * by(i)).
    template <std::size_t Count, class T, class F>
    static CRUMB_INLINE void store_factors(const T* scales, F by, std::int16_t* factors) noexcept {
        float whole[Count];
        CRUMB_UNROLL
        for (std::size_t i = 0; i < Count; i += I::lanes) {
            const auto x = I::round_to_i32(I::mul(I::load(scales + i), by(i)));
            I::store(whole + i,
                     I::as_f32(I::min_i32(I::max_i32(x, I::set1_i32(-32767)), I::set1_i32(32767))));
        }
        std::int32_t integers[Count];
        __builtin_memcpy(integers, whole, sizeof whole);
        for (std::size_t i = 0; i < Count; ++i)
            factors[i] = static_cast<std::int16_t>(integers[i]);
    }

    /// Adds a tile of other weights to one of codes in their unit.
    static CRUMB_INLINE void add(const std::int8_t* others, const float* other_scales, float max_other,
                                 std::uint8_t* codes, half* scales) noexcept {
        float own[tile_channels], inverse[tile_channels];
        // A bound on the sum's magnitude, and room for rounding.
        const f32 mine = I::set1(max_code / 126), theirs = I::set1(max_other / 126);
        CRUMB_UNROLL
        for (std::size_t c = 0; c < tile_channels; c += I::lanes) {
            const f32 s = I::mul(I::load(scales + c), I::set1(1.0f / unit));
            I::store(own + c, s);
            I::store(scales + c, I::fma(I::abs(I::load(other_scales + c)), theirs, I::mul(I::abs(s), mine)));
            I::store(inverse + c, over(0x1p14f, I::load(scales + c)));
        }
        std::int16_t factors[tile_channels], other_factors[tile_channels];
        const auto by = [&](std::size_t c) { return I::load(inverse + c); };
        store_factors<tile_channels>(own, by, factors);
        store_factors<tile_channels>(other_scales, by, other_factors);
        for (std::size_t j = 0; j < byte_codes::rows; ++j)
            P::combine(codes + j * tile_row_bytes, others + j * tile_row_bytes, factors, other_factors);
    }

    /// A tile of 16 neurons; `left`: neurons from its first on.
    static CRUMB_NOINLINE void tile_of_inputs(const neuron_tile_args& args, std::size_t t, std::size_t groups,
                                              const std::uint8_t* at, std::size_t left) noexcept {
        const row_pointers<tile_channels> rows{at, args.record_bytes, smaller(left, tile_channels)};
        half* scales = args.scales + t * groups * tile_channels;
        for (std::size_t n = 0; n < tile_channels; ++n)
            rows.read_scales(n, groups, scales + n, tile_channels);
        const reg table = P::same(args.others == nullptr ? values<1>.at : values<unit>.at);
        // The next tile comes meanwhile, if there is one.
        const std::size_t behind = left >= 2 * tile_channels ? tile_channels : 0;
        record_prefetch next(at + behind * args.record_bytes, args.record_bytes, behind, groups * block_bytes,
                             groups);
        for (std::size_t g = 0; g < groups; ++g) {
            next.step();
            const std::size_t i = t * groups + g;
            std::uint8_t* codes = args.codes + i * tile_bytes;
            reg low[4], high[4];
            CRUMB_UNROLL
            for (std::size_t q = 0; q < 4; ++q) {
                reg x[2];
                read(rows, 4 * q, g, x);
                low[q] = in_units(table, x[0]);
                high[q] = in_units(table, x[1]);
            }
            P::store_tile(codes, low);
            P::store_tile(codes + half_bytes, high);
            if (args.others != nullptr)
                add(args.others + i * tile_bytes, args.other_scales + i * tile_channels, args.max_other,
                    codes, scales + g * tile_channels);
        }
    }

    static constexpr std::size_t max_blocks = 32;

    /// A group of neurons times some blocks of 32 columns, from block `first` on.
    static CRUMB_NOINLINE void blocks_of_outputs(const neuron_tile_args& args, std::size_t g,
                                                 std::size_t groups, const row_pointers<group_size>& rows,
                                                 std::size_t first, std::size_t blocks,
                                                 record_prefetch next) noexcept {
        constexpr std::size_t lanes = I::lanes;
        half scales[group_size][max_blocks];
        for (std::size_t n = 0; n < group_size; ++n)
            rows.read_scales(n, blocks, scales[n], 1);
        half all[max_blocks]; // the scales of tiles
        std::int16_t factors[group_size][max_blocks];
        for (std::size_t b = 0; b < blocks; b += lanes) {
            f32 most = I::zero();
            for (std::size_t n = 0; n < group_size; ++n)
                most = I::max(most, I::abs(I::load(scales[n] + b)));
            I::store(all + b, I::mul(most, I::set1(128.0f / 127 / unit)));
            const f32 inverse = over(32768.0f / unit, I::load(all + b));
            for (std::size_t n = 0; n < group_size; ++n)
                store_factors<lanes>(scales[n] + b, [&](std::size_t) { return inverse; }, factors[n] + b);
        }
        const std::size_t tiles = (args.columns.end - args.columns.begin + tile_channels - 1) / tile_channels;
        const reg table = P::same(values<unit>.at);
        for (std::size_t b = 0; b < blocks; ++b) {
            next.step();
            const std::size_t tile = 2 * (first + b);
            std::uint8_t spare[tile_bytes];
            std::uint8_t* low = args.codes + (tile * groups + g) * tile_bytes;
            std::uint8_t* high = tile + 1 < tiles ? low + groups * tile_bytes : spare;
            for (std::size_t t = tile; t < smaller(tile + 2, tiles); ++t) {
                CRUMB_UNROLL
                for (std::size_t c = 0; c < tile_channels; c += lanes)
                    I::store(args.scales + (t * groups + g) * tile_channels + c, I::set1(all[b]));
            }
            for (std::size_t n = 0; n < group_size; n += 4) {
                reg x[2];
                read(rows, n, b, x);
                if constexpr (Codec == row_codec::q8_0) {
                    x[0] = P::scaled(x[0], factors[n] + b, max_blocks);
                    x[1] = P::scaled(x[1], factors[n] + b, max_blocks);
                } else {
                    const reg scaled = P::scaled(table, factors[n] + b, max_blocks);
                    x[0] = P::look_up(scaled, x[0]);
                    x[1] = P::look_up(scaled, x[1]);
                }
                P::store_columns(low + n / 4 * tile_row_bytes, x[0]);
                P::store_columns(high + n / 4 * tile_row_bytes, x[1]);
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
