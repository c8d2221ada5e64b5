// Weights as they are packed, read register by register and expanded on the way to what an ISA multiplies:
// for the loops over groups of others.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/expand.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// The scales of `Vectors` registers of channels from register `first` of a tile on, group by group.
template <int Vectors>
struct scale_reader<isa::CRUMB_THIS_ISA, half_scales, Vectors> {
    using I = isa::CRUMB_THIS_ISA;
    static constexpr int per_tile = static_cast<int>(tile_channels) / I::lanes;
    static constexpr int tiles = Vectors / per_tile;
    const half* at;
    std::size_t tile_stride;

    static constexpr int streams = 1;

    CRUMB_INLINE scale_reader(const linear_args& args, pass_tiles pass, int first) noexcept
        : at(args.scales + pass.first * args.groups * tile_channels + first * I::lanes),
          tile_stride(pass.apart * args.groups * tile_channels) {}
    CRUMB_INLINE void begin_group() const noexcept {}
    CRUMB_INLINE const half* of(int v) const noexcept {
        return at + static_cast<std::size_t>(v / per_tile) * tile_stride + v % per_tile * I::lanes;
    }
    /// What is read `groups` groups later in tile `tile` of the pass, or of a later pass.
    CRUMB_INLINE const void* later(int, int tile, bool jumps, std::size_t groups) const noexcept {
        return at + pass_offset<tiles>(tile, jumps, tile_stride) + groups * tile_channels;
    }
    CRUMB_INLINE typename I::f32 scale(int v) const noexcept { return I::load(of(v)); }
    CRUMB_INLINE void skip(std::size_t groups) noexcept { at += groups * tile_channels; }
};

template <int Vectors>
struct scale_reader<isa::CRUMB_THIS_ISA, block_scales, Vectors> {
    using I = isa::CRUMB_THIS_ISA;
    static constexpr int per_tile = static_cast<int>(tile_channels) / I::lanes;
    static constexpr int tiles = Vectors / per_tile;
    static constexpr std::size_t block_groups = block_scales::block_groups;
    const std::int8_t* at;
    const std::uint8_t* exponents;
    std::size_t tile_stride, exponents_stride;
    std::size_t group = 0;
    typename I::f32 power[unsigned(Vectors)]; ///< of the block
    static constexpr int streams = 2;

    CRUMB_INLINE scale_reader(const linear_args& args, pass_tiles pass, int first) noexcept {
        const std::size_t tile = args.groups * tile_channels;
        const std::size_t tile_exponents = (args.groups + block_groups - 1) / block_groups * tile_channels;
        at = args.multipliers + pass.first * tile + first * I::lanes;
        exponents = args.exponents + pass.first * tile_exponents + first * I::lanes;
        tile_stride = pass.apart * tile;
        exponents_stride = pass.apart * tile_exponents;
        CRUMB_UNROLL
        for (int v = 0; v < Vectors; ++v)
            power[v] = I::zero();
    }
    CRUMB_INLINE void begin_group() noexcept {
        if (group % block_groups == 0)
            load_powers();
    }
    CRUMB_INLINE const std::int8_t* of(int v) const noexcept {
        return at + static_cast<std::size_t>(v / per_tile) * tile_stride + v % per_tile * I::lanes;
    }
    CRUMB_INLINE const void* later(int stream, int tile, bool jumps, std::size_t groups) const noexcept {
        if (stream == 0)
            return at + pass_offset<tiles>(tile, jumps, tile_stride) + groups * tile_channels;
        return exponents + pass_offset<tiles>(tile, jumps, exponents_stride) +
               (group + groups) / block_groups * tile_channels;
    }
    CRUMB_INLINE typename I::f32 scale(int v) const noexcept {
        return I::mul(I::load_integers(of(v)), power[v]);
    }
    CRUMB_INLINE void skip(std::size_t groups) noexcept {
        at += groups * tile_channels;
        group += groups;
        if (groups != 1 && group % block_groups != 0)
            load_powers();
    }

  private:
    CRUMB_INLINE void load_powers() noexcept {
        CRUMB_UNROLL
        for (int v = 0; v < Vectors; ++v)
            power[v] = I::load_powers(exponents + static_cast<std::size_t>(v / per_tile) * exponents_stride +
                                      group / block_groups * tile_channels + v % per_tile * I::lanes);
    }
};

/// The planes beside the first, a register row per tile and group each.
template <std::size_t Planes, int Vectors>
struct plane_reader<isa::CRUMB_THIS_ISA, Planes, Vectors> {
    using I = isa::CRUMB_THIS_ISA;
    static constexpr int per_tile = static_cast<int>(tile_row_bytes) / I::width;
    static constexpr int tiles = Vectors / per_tile;
    const std::uint8_t* at[Planes];
    std::size_t tile_stride;

    CRUMB_INLINE plane_reader(const linear_args& args, pass_tiles pass, int first) noexcept
        : tile_stride(pass.apart * args.groups * tile_row_bytes) {
        CRUMB_UNROLL
        for (std::size_t p = 0; p < Planes; ++p)
            at[p] = args.planes[p] + pass.first * args.groups * tile_row_bytes + first * I::width;
    }
    CRUMB_INLINE typename I::bytes raw(std::size_t plane, int v) const noexcept {
        return I::load_bytes(at[plane] + static_cast<std::size_t>(v / per_tile) * tile_stride +
                             v % per_tile * I::width);
    }
    /// As of `scale_reader`.
    CRUMB_INLINE const void* later(int plane, int tile, bool jumps, std::size_t groups) const noexcept {
        return at[plane] + pass_offset<tiles>(tile, jumps, tile_stride) + groups * tile_row_bytes;
    }
    CRUMB_INLINE void skip(std::size_t groups) noexcept {
        CRUMB_UNROLL
        for (std::size_t p = 0; p < Planes; ++p)
            at[p] += groups * tile_row_bytes;
    }
};
template <int Vectors>
struct plane_reader<isa::CRUMB_THIS_ISA, 0, Vectors> {
    CRUMB_INLINE plane_reader(const linear_args&, pass_tiles, int) noexcept {}
    CRUMB_INLINE const void* later(int, int, bool, std::size_t) const noexcept { return nullptr; }
    CRUMB_INLINE void skip(std::size_t) const noexcept {}
};

/// The codes and scales of `Vectors` registers of channels, from register `first` of a tile on.
template <class Format, int Vectors>
struct packed_reader<isa::CRUMB_THIS_ISA, Format, Vectors> {
    using I = isa::CRUMB_THIS_ISA;
    using shape = tile_shape<I, Format>;
    static constexpr int tiles = Vectors / shape::vectors; ///< 0: some registers of one
    const std::uint8_t* codes;
    std::size_t tile_codes;         ///< stride
    const std::uint8_t* stream_end; ///< where the first tile's codes do not go on in the next pass
    using scale_stream = scale_reader<I, typename Format::scales, Vectors>;
    scale_stream scales;
    plane_reader<I, planes_of<typename Format::codes>, Vectors> planes;

    CRUMB_INLINE packed_reader(const linear_args& args, pass_tiles pass, int first) noexcept
        : codes(args.codes + pass.first * args.groups * shape::code_bytes + first * I::width),
          tile_codes(pass.apart * args.groups * shape::code_bytes),
          stream_end(args.codes + pass.end * args.groups * shape::code_bytes), scales(args, pass, first),
          planes(args, pass, first) {}

    /// Asks for an eighth of what is read some groups later: all at once would fill the line buffers, and
    /// loads wait behind that. Where the first tile's stream ends, what follows in memory has been read as
    /// the second tile's. Scales not into the first level, since their lines are prefetched several times.
    CRUMB_INLINE void prefetch(int eighth) const noexcept {
        if constexpr (I::prefetch_bytes != 0) {
            constexpr std::size_t bytes = distance_ahead<I>(std::size_t(tiles));
            constexpr std::size_t ahead = bytes / shape::code_bytes; // groups
            constexpr int lines = tiles * static_cast<int>(shape::code_bytes / 64);
            constexpr int plane_lines = tiles * static_cast<int>(planes_of<typename Format::codes>);
            constexpr int all = lines + plane_lines + tiles * scale_stream::streams;
            const std::uint8_t* at = codes + ahead * shape::code_bytes;
            const bool jumps = at >= stream_end;
            CRUMB_UNROLL
            for (int i = 0; i < all; ++i) {
                if (i * 8 / all != eighth)
                    continue;
                if (i < lines)
                    __builtin_prefetch(at + pass_offset<tiles>(i % tiles, jumps, tile_codes) +
                                       i / tiles * 64);
                else if (i < lines + plane_lines)
                    __builtin_prefetch(planes.later((i - lines) / tiles, i % tiles, jumps, ahead));
                else
                    __builtin_prefetch(
                        scales.later((i - lines - plane_lines) / tiles, i % tiles, jumps, ahead), 0, 2);
            }
        }
    }
    /// Asks for half (0 or 1) of this group, for later. Two blocks of rows share this: all at once would fill
    /// the line buffers, and loads wait behind that. Not into the first level, which the present panel fills.
    template <int Half>
    CRUMB_INLINE void ask_half() const noexcept {
        if constexpr (I::prefetch_bytes != 0) {
            CRUMB_UNROLL
            for (int t = 0; t < tiles; ++t) {
                CRUMB_UNROLL
                for (std::size_t line = 0; line < shape::code_bytes / 2; line += 64)
                    __builtin_prefetch(codes + static_cast<std::size_t>(t) * tile_codes +
                                           std::size_t{Half} * (shape::code_bytes / 2) + line,
                                       0, 2);
                if constexpr (Half == 1)
                    __builtin_prefetch(scales.of(t * shape::vectors), 0, 2);
            }
            if constexpr (Half == 1) {
                CRUMB_UNROLL
                for (int i = 0; i < tiles * static_cast<int>(planes_of<typename Format::codes>); ++i)
                    __builtin_prefetch(planes.later(i / tiles, i % tiles, false, 0), 0, 2);
            }
        }
    }
    /// Asks for `bytes` bytes of each tile's codes from byte `at` on, and for their scales.
    CRUMB_INLINE void prefetch(std::size_t at, std::size_t bytes) const noexcept {
        if constexpr (I::prefetch_bytes != 0) {
            for (const std::size_t end = at + bytes; at < end; at += 64) {
                CRUMB_UNROLL
                for (int t = 0; t < tiles; ++t) {
                    __builtin_prefetch(codes + static_cast<std::size_t>(t) * tile_codes + at, 0, 2);
                    if (at % (2 * shape::code_bytes) == 0)
                        __builtin_prefetch(
                            scales.of(t * shape::vectors) + at / shape::code_bytes * tile_channels, 0, 2);
                }
            }
        }
    }
    /// Register row `row` as it lies.
    CRUMB_INLINE typename I::bytes raw(int row, int v) const noexcept {
        return I::load_bytes(codes + static_cast<std::size_t>(v / shape::vectors) * tile_codes +
                             v % shape::vectors * I::width + row * static_cast<int>(tile_row_bytes));
    }
    CRUMB_INLINE typename I::f32 scale(int v) const noexcept { return scales.scale(v); }
    CRUMB_INLINE void skip(std::size_t groups) noexcept {
        codes += groups * shape::code_bytes;
        scales.skip(groups);
        planes.skip(groups);
    }
    CRUMB_INLINE void next_group() noexcept { skip(1); }
};

/// Codes that arithmetic expands.
template <class Format, class Product, int Vectors>
struct packed_operands<isa::CRUMB_THIS_ISA, Format, Product, Vectors>
    : packed_reader<isa::CRUMB_THIS_ISA, Format, Vectors> {
    using base = packed_reader<isa::CRUMB_THIS_ISA, Format, Vectors>;
    using I = isa::CRUMB_THIS_ISA;
    using operand_type = typename Product::operand;
    /// Whether `expand` does the same for all rows.
    static constexpr bool row_free = true;

    CRUMB_INLINE packed_operands(const linear_args& args, pass_tiles pass, int first = 0) noexcept
        : base(args, pass, first) {}

    /// What a group's operands and scales need.
    CRUMB_INLINE void begin_group() noexcept { base::scales.begin_group(); }
    /// What `expand` makes operands of.
    CRUMB_INLINE typename I::bytes cells(int row, int v) const noexcept { return base::raw(row, v); }
    template <int X>
    CRUMB_INLINE operand_type expand(typename I::bytes cells, int) const noexcept {
        return Product::template expand<X>(cells);
    }
    template <int X>
    CRUMB_INLINE operand_type operand(int row, int v) const noexcept {
        return expand<X>(cells(row, v), row);
    }
    /// An operand of int8 panels.
    template <int X, class Multiplier>
    CRUMB_INLINE auto requantized(int row, int v, Multiplier m) const noexcept {
        return Product::template requantize<X>(base::raw(row, v), m);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
