// GEMV and GEMM over packed tiles.
namespace crumb::inline CRUMB_ABI::kernel {

template <class Format>
struct linear_tile<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename product_of<I, typename Format::codes>::type;
    using Q = typename product_for_rows<P>::type;
    using f32 = typename I::f32;
    static constexpr int pairs = static_cast<int>(Format::codes::rows / 2); ///< pairs of register rows
    static constexpr int chunks = 4;                                        ///< of 8 inputs per group
    static constexpr int per_pair = chunks / pairs;                         ///< chunks that a pair expands to
    static constexpr int vectors = static_cast<int>(tile_row_bytes) / I::width;
    static constexpr std::size_t code_bytes = packed_layout<Format>::code_bytes;

    /// One row of activations times a tile of 16 channels.
    static CRUMB_INLINE void single(const linear_args& args, std::size_t tile, std::size_t row,
                                    f32* out) noexcept {
        const std::uint8_t* codes = args.codes + tile * args.groups * code_bytes;
        const half* scales = args.scales + tile * args.groups * tile_channels;
        const std::int8_t* x = args.x_codes + row * args.groups * group_size;
        const float* x_scales = args.x_scales + row * args.groups;
        const std::int32_t* sums = P::offset != 0 ? args.x_sums + row * args.groups : nullptr;
        f32 total[vectors];
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            total[v] = I::zero();
        for (std::size_t g = 0; g < args.groups; ++g) {
            typename P::acc s[vectors];
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v)
                s[v] = P::start(sums);
            prefetch(codes);
            const typename I::act low = I::load_act(x);
            const typename I::act high = I::load_act(x + 16);
            single_pair<0>(codes, low, high, s);
            single_pair<1>(codes, low, high, s);
            if constexpr (pairs == 4) {
                single_pair<2>(codes, low, high, s);
                single_pair<3>(codes, low, high, s);
            }
            const f32 scale = I::set1(*x_scales);
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v)
                total[v] = I::fma(I::to_f32(P::finish(s[v])), I::mul(I::load(scales + v * I::lanes), scale),
                                  total[v]);
            codes += code_bytes;
            scales += tile_channels;
            x += group_size;
            ++x_scales;
            if constexpr (P::offset != 0)
                ++sums;
        }
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            out[v] = total[v];
    }

    /// `Rows` rows of activations that form a block times the channels of register `v` of a tile.
    template <int Rows>
    static CRUMB_INLINE void block(const linear_args& args, std::size_t tile, int v, std::size_t row,
                                   f32* out) noexcept {
        using R2 = row_pair<I, Q, 2>;
        using R1 = row_pair<I, Q, 1>;
        constexpr int whole = Rows / 2, half_pair = Rows % 2;
        const std::uint8_t* codes = args.codes + tile * args.groups * code_bytes + v * I::width;
        const half* scales = args.scales + tile * args.groups * tile_channels + v * I::lanes;
        const std::int8_t* x = args.x_codes + row * args.groups * group_size;
        const float* x_scales = args.x_scales + row * args.groups;
        const std::int32_t* sums = Q::offset != 0 ? args.x_sums + row * args.groups : nullptr;
        f32 total[2 * (whole + half_pair)];
        CRUMB_UNROLL
        for (int i = 0; i < 2 * (whole + half_pair); ++i)
            total[i] = I::zero();
        for (std::size_t g = 0; g < args.groups; ++g) {
            prefetch(codes);
            typename Q::operand w[2 * chunks];
            load_pair<0>(codes, w);
            load_pair<1>(codes, w);
            if constexpr (pairs == 4) {
                load_pair<2>(codes, w);
                load_pair<3>(codes, w);
            }
            f32 e0, e1;
            R2::weight_scales(I::load(scales), e0, e1);
            CRUMB_UNROLL
            for (int p = 0; p < whole; ++p)
                accumulate<R2, Rows>(w, x + 16 * p, x_scales + 2 * p, Q::offset != 0 ? sums + 2 * p : nullptr,
                                     e0, e1, total + 2 * p);
            if constexpr (half_pair)
                accumulate<R1, Rows>(w, x + 16 * whole, x_scales + 2 * whole,
                                     Q::offset != 0 ? sums + 2 * whole : nullptr, e0, e1, total + 2 * whole);
            codes += code_bytes;
            scales += tile_channels;
            x += Rows * static_cast<int>(group_size);
            x_scales += Rows;
            if constexpr (Q::offset != 0)
                sums += Rows;
        }
        CRUMB_UNROLL
        for (int p = 0; p < whole; ++p)
            R2::rows(total[2 * p], total[2 * p + 1], out[2 * p], out[2 * p + 1]);
        if constexpr (half_pair) {
            f32 beyond;
            R1::rows(total[2 * whole], total[2 * whole + 1], out[2 * whole], beyond);
        }
    }

  private:
    static CRUMB_INLINE void prefetch([[maybe_unused]] const std::uint8_t* codes) noexcept {
        if constexpr (I::prefetch_bytes != 0) {
            CRUMB_UNROLL
            for (std::size_t line = 0; line < code_bytes; line += 64)
                __builtin_prefetch(codes + I::prefetch_bytes + line);
        }
    }

    // Pair q of register rows holds chunk q in its first expansion, chunk q + pairs in its second.
    template <int Pair>
    static CRUMB_INLINE void single_pair(const std::uint8_t* codes, typename I::act low, typename I::act high,
                                         typename P::acc* s) noexcept {
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v) {
            const auto r0 =
                I::load_bytes(codes + 2 * Pair * tile_row_bytes + static_cast<std::size_t>(v * I::width));
            const auto r1 = I::load_bytes(codes + (2 * Pair + 1) * tile_row_bytes +
                                          static_cast<std::size_t>(v * I::width));
            P::template step<0, Pair % 2>(s[v], P::template expand<0>(r0), P::template expand<0>(r1),
                                          Pair < 2 ? low : high);
            if constexpr (per_pair == 2)
                P::template step<1, Pair % 2>(s[v], P::template expand<1>(r0), P::template expand<1>(r1),
                                              high);
        }
    }

    template <int Pair>
    static CRUMB_INLINE void load_pair(const std::uint8_t* codes, typename Q::operand* w) noexcept {
        auto r0 = I::load_bytes(codes + 2 * Pair * tile_row_bytes);
        auto r1 = I::load_bytes(codes + (2 * Pair + 1) * tile_row_bytes);
        row_pair<I, Q, 2>::arrange(r0, r1);
        w[2 * Pair] = Q::template expand<0>(r0);
        w[2 * Pair + 1] = Q::template expand<0>(r1);
        if constexpr (per_pair == 2) {
            w[2 * (Pair + pairs)] = Q::template expand<1>(r0);
            w[2 * (Pair + pairs) + 1] = Q::template expand<1>(r1);
        }
    }

    template <class R, int Rows>
    static CRUMB_INLINE void accumulate(const typename Q::operand* w, const std::int8_t* x,
                                        const float* x_scales, const std::int32_t* sums, f32 e0, f32 e1,
                                        f32* total) noexcept {
        constexpr int second = per_pair == 2 ? 1 : 0;
        R r;
        r.start(sums);
        r.template step<0>(w[0], w[1], x);
        r.template step<0>(w[2], w[3], x + 8 * Rows);
        r.template step<second>(w[4], w[5], x + 16 * Rows);
        r.template step<second>(w[6], w[7], x + 24 * Rows);
        typename I::i32 t0, t1;
        r.finish(t0, t1);
        f32 f0, f1;
        R::row_scales(x_scales, f0, f1);
        total[0] = I::fma(I::to_f32(t0), I::mul(e0, f0), total[0]);
        total[1] = I::fma(I::to_f32(t1), I::mul(e1, f1), total[1]);
    }
};

template <class Format>
struct linear_run<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using tiles = linear_tile<I, Format>;
    using f32 = typename I::f32;

    static void gemv(const linear_args& args) noexcept {
        for (std::size_t t = args.channels.begin / tile_channels; t * tile_channels < args.channels.end; ++t)
            row(args, t, 0);
    }

    // Tiles outside, row blocks inside: a tile's codes come from memory once and stay in cache for the rest.
    static void gemm(const linear_args& args) noexcept {
        if (args.rows.size() == 0)
            return;
        for (std::size_t t = args.channels.begin / tile_channels; t * tile_channels < args.channels.end;
             ++t) {
            std::size_t r = block_of(args.rows.begin, args.x_rows, I::row_block).first;
            while (r < args.rows.end) {
                const std::size_t height = block_of(r, args.x_rows, I::row_block).height;
                rows(args, t, r, height);
                r += height;
            }
        }
    }

  private:
    static void row(const linear_args& args, std::size_t tile, std::size_t r) noexcept {
        f32 out[tiles::vectors];
        tiles::single(args, tile, r, out);
        CRUMB_UNROLL
        for (int v = 0; v < tiles::vectors; ++v)
            emit(args, out[v], tile * tile_channels + static_cast<std::size_t>(v * I::lanes), r);
    }

    static CRUMB_INLINE void rows(const linear_args& args, std::size_t tile, std::size_t r,
                                  std::size_t height) noexcept {
        switch (height) {
        case 1:
            return row(args, tile, r);
        case 2:
            return block<2>(args, tile, r);
        case 3:
            return block<3>(args, tile, r);
        case 4:
            return block<4>(args, tile, r);
        case 5:
            return block<5>(args, tile, r);
        case 6:
            return block<6>(args, tile, r);
        case 7:
            return block<7>(args, tile, r);
        case 8:
            return block<8>(args, tile, r);
        default:
            if constexpr (I::row_block == 16)
                return block<16>(args, tile, r);
        }
    }

    template <int Rows>
    static CRUMB_NOINLINE void block(const linear_args& args, std::size_t tile, std::size_t r) noexcept {
        for (int v = 0; v < tiles::vectors; ++v) {
            const std::size_t channel = tile * tile_channels + static_cast<std::size_t>(v * I::lanes);
            f32 out[Rows];
            tiles::template block<Rows>(args, tile, v, r, out);
            CRUMB_UNROLL
            for (int i = 0; i < Rows; ++i)
                emit(args, out[i], channel, r + static_cast<std::size_t>(i));
        }
    }

    /// Stores a register of channels of one row, as far as it lies in the ranges of `args`.
    static CRUMB_INLINE void emit(const linear_args& args, f32 total, std::size_t channel,
                                  std::size_t r) noexcept {
        if (r < args.rows.begin || r >= args.rows.end)
            return;
        f32 y = I::mul(total, I::set1(tiles::P::factor));
        float* to = args.y + r * args.y_stride;
        constexpr std::size_t lanes = static_cast<std::size_t>(I::lanes);
        if (channel >= args.channels.begin && channel + lanes <= args.channels.end) {
            if (args.bias != nullptr)
                y = I::add(y, I::load(args.bias + channel));
            I::store(to + channel, y);
            return;
        }
        float part[lanes];
        I::store(part, y);
        for (std::size_t i = 0; i < lanes; ++i) {
            const std::size_t c = channel + i;
            if (c >= args.channels.begin && c < args.channels.end)
                to[c] = part[i] + (args.bias != nullptr ? args.bias[c] : 0.0f);
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
