// Micro-kernels of the ISAs with 16-byte registers: a row, or a block of rows, times a tile. Loops:
//     one row   4 groups > register rows of codes
//     a block   groups > pairs of rows > chunks of 4 inputs
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_dotprod
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// Written with intrinsics; what `linear_tile` of these ISAs overrides is compared with it by the tests.
template <class Format>
struct neon_tile<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename product_of<I, typename Format::codes>::type;
    using f32 = typename I::f32;
    static constexpr bool nibbles = Format::codes::rows == 4;
    /// Whether assembly that knows nibbles and bytes can read the weights.
    static constexpr bool plain_codes =
        !indexed_codes<typename Format::codes> && !requires { Format::codes::low_offset; };
    static constexpr int vectors = 4; ///< registers per tile
    static constexpr std::size_t code_bytes = Format::codes::bytes;

    /// One row of activations times a tile of 16 channels.
    static CRUMB_INLINE void single(const linear_args& args, std::size_t tile, std::size_t row,
                                    float* out) noexcept {
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            I::store(out + 4 * v, I::zero());
        single_from(args, tile, row, 0, out);
    }

    /// Continues the totals in `out` from group `first` on.
    static CRUMB_INLINE void single_from(const linear_args& args, std::size_t tile, std::size_t row,
                                         std::size_t first, float* out) noexcept {
        packed_operands<I, Format, P, vectors> w(args, tile);
        w.skip(first);
        const std::int8_t* x = args.x_codes + (row * args.groups + first) * group_size;
        const float* x_scales = row_scales(args, row) + first;
        std::size_t left = args.groups - first;
        f32 total[vectors];
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            total[v] = I::load(out + 4 * v);
        if constexpr (unrolls) {
            for (; left >= 4; left -= 4) {
                const f32 four = I::load(x_scales);
                group<0>(w, x, four, total);
                group<1>(w, x + group_size, four, total);
                group<2>(w, x + 2 * group_size, four, total);
                group<3>(w, x + 3 * group_size, four, total);
                x += 4 * group_size;
                x_scales += 4;
            }
        }
        for (; left != 0; --left) {
            group<0>(w, x, I::set1(*x_scales), total);
            x += group_size;
            ++x_scales;
        }
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            I::store(out + 4 * v, total[v]);
    }

    /// `Rows` rows of activations that form a block times a tile.
    template <int Rows>
    static CRUMB_INLINE void block(const linear_args& args, std::size_t tile, std::size_t row,
                                   float* out) noexcept {
        for (std::size_t v = 0; v < vectors; ++v)
            block_register<Rows>(args, tile, v, row, out + 4 * v);
    }

    static CRUMB_INLINE const float* row_scales(const linear_args& args, std::size_t row) noexcept {
        return args.x_scales + row * args.groups * (I::order == activation_order::twin_pairs ? 2 : 1);
    }

  private:
    // Four groups at a time save GCC what the loop costs, and make clang spill.
    static constexpr bool unrolls = CRUMB_CLANG == 0;

    /// Lane `Lane` of `four` is the scale of the activations.
    template <int Lane>
    static CRUMB_INLINE void group(packed_operands<I, Format, P, vectors>& w, const std::int8_t* x, f32 four,
                                   f32* total) noexcept {
        typename P::acc s[vectors];
        const typename I::act low = I::load_act(x), high = I::load_act(x + 16);
        w.begin_group();
        two_rows<0, true>(w, 0, low, nibbles ? high : low, s);
        two_rows<1>(w, 2, low, nibbles ? high : low, s);
        if constexpr (!nibbles) {
            two_rows<0>(w, 4, high, high, s);
            two_rows<1>(w, 6, high, high, s);
        }
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            total[v] = I::fma(vmulq_laneq_f32(I::to_f32(P::finish(s[v])), four, Lane), w.scale(v), total[v]);
        w.next_group();
    }
    /// Two register rows: 8 inputs of all channels, nibbles 8 + 8.
    template <int Half, bool First = false>
    static CRUMB_INLINE void two_rows(const packed_operands<I, Format, P, vectors>& w, int row,
                                      typename I::act low, typename I::act high,
                                      typename P::acc* s) noexcept {
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v) {
            const auto r0 = w.cells(row, v), r1 = w.cells(row + 1, v);
            const auto w0 = w.template expand<0>(r0, row), w1 = w.template expand<0>(r1, row + 1);
            if constexpr (First)
                s[v] = first<Half>(w0, w1, low);
            else
                P::template step<Half>(s[v], w0, w1, low);
            if constexpr (nibbles)
                P::template step<Half>(s[v], w.template expand<1>(r0, row), w.template expand<1>(r1, row + 1),
                                       high);
        }
    }
    template <int Half>
    static CRUMB_INLINE typename P::acc started(typename P::operand w0, typename P::operand w1,
                                                typename I::act a) noexcept {
        typename P::acc s = P::start();
        P::template step<Half>(s, w0, w1, a);
        return s;
    }
    template <int Half>
    static CRUMB_INLINE typename P::acc first(typename P::operand w0, typename P::operand w1,
                                              typename I::act a) noexcept {
        if constexpr (requires { P::template first<Half>(w0, w1, a); })
            return P::template first<Half>(w0, w1, a);
        else
            return started<Half>(w0, w1, a);
    }

    template <int Rows>
    static CRUMB_INLINE void block_register(const linear_args& args, std::size_t tile, std::size_t v,
                                            std::size_t row, float* out) noexcept {
        packed_operands<I, Format, P, 1> weights(args, tile, static_cast<int>(v));
        const std::int8_t* x = args.x_codes + row * args.groups * group_size;
        const float* x_scales = row_scales(args, row);
        f32 total[unsigned(Rows)];
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r)
            total[r] = I::zero();
        for (std::size_t g = 0; g < args.groups; ++g) {
            typename P::operand w[8];
            weights.begin_group();
            operands(weights, w);
            const f32 d = weights.scale(0);
            CRUMB_UNROLL
            for (int r = 0; r < Rows; r += 2) {
                typename P::acc s0, s1;
                // A row that stands alone lies in plain order: two chunks in 16 bytes, not one of each row.
                if (r + 1 == Rows) {
                    const typename I::act low = I::load_act(x), high = I::load_act(x + 16);
                    s0 = first<0>(w[0], w[1], low);
                    P::template step<1>(s0, w[2], w[3], low);
                    P::template step<0>(s0, w[4], w[5], high);
                    P::template step<1>(s0, w[6], w[7], high);
                } else {
                    const typename I::act both = I::load_act(x);
                    s0 = first<0>(w[0], w[1], both);
                    s1 = first<1>(w[0], w[1], both);
                    CRUMB_UNROLL
                    for (int chunk = 1; chunk < 4; ++chunk) {
                        const typename I::act a = I::load_act(x + 16 * chunk);
                        P::template step<0>(s0, w[2 * chunk], w[2 * chunk + 1], a);
                        P::template step<1>(s1, w[2 * chunk], w[2 * chunk + 1], a);
                    }
                    total[r + 1] =
                        I::fma(I::mul(I::to_f32(P::finish(s1)), I::set1(x_scales[r + 1])), d, total[r + 1]);
                }
                total[r] = I::fma(I::mul(I::to_f32(P::finish(s0)), I::set1(x_scales[r])), d, total[r]);
                x += r + 1 == Rows ? 32 : 64;
            }
            weights.next_group();
            x_scales += Rows;
        }
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r)
            I::store(out + r * static_cast<int>(tile_channels), total[r]);
    }
    /// w[2 c] and w[2 c + 1]: inputs 8 c .. 8 c + 7 of the group.
    static CRUMB_INLINE void operands(const packed_operands<I, Format, P, 1>& from,
                                      typename P::operand* w) noexcept {
        CRUMB_UNROLL
        for (int j = 0; j < static_cast<int>(Format::codes::rows); ++j) {
            const auto cells = from.cells(j, 0);
            w[j] = from.template expand<0>(cells, j);
            if constexpr (nibbles)
                w[4 + j] = from.template expand<1>(cells, j);
        }
    }
};

template <class Format>
struct linear_tile<isa::CRUMB_THIS_ISA, Format> : isa::CRUMB_THIS_ISA::template tile<Format> {};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
