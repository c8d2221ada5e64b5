// Blocks of rows, and results stored within the ranges of a call. Loops: blocks of rows.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct blocks<I> {

    /// Calls f.template operator()<Rows>(r) for the blocks of rows from r, where one begins, to `end`.
    template <std::size_t RowBlock, class F>
    static CRUMB_INLINE void for_each(std::size_t x_rows, std::size_t r, std::size_t end, F&& f) noexcept {
        while (r < end) {
            const std::size_t height = block_of(r, x_rows, RowBlock).height;
            of_height<1, RowBlock>(height, r, f);
            r += height;
        }
    }

    /// Stores a register of channels of one row, as far as it lies in the ranges of `args`.
    static CRUMB_INLINE void emit(const linear_args& args, typename I::f32 y, std::size_t channel,
                                  std::size_t r) noexcept {
        if (r < args.rows.begin || r >= args.rows.end)
            return;
        float* to = args.y + r * args.y_stride;
        const float* terms = args.adds ? to : args.bias;
        constexpr std::size_t lanes = static_cast<std::size_t>(I::lanes);
        if (args.corrections != nullptr)
            y = I::add(y, I::load(args.corrections + channel));
        if (channel >= args.channels.begin && channel + lanes <= args.channels.end) {
            if (terms != nullptr)
                y = I::add(y, I::load(terms + channel));
            I::store(to + channel, y);
            return;
        }
        float part[lanes];
        I::store(part, y);
        for (std::size_t i = 0; i < lanes; ++i) {
            const std::size_t c = channel + i;
            if (c >= args.channels.begin && c < args.channels.end)
                to[c] = part[i] + (terms != nullptr ? terms[c] : 0.0f);
        }
    }

    /// Stores totals times `factor`, of `rows` rows from r on and `tiles` tiles from t on beside each other,
    /// as far as they lie in the ranges of `args`. Out of line, one for all shapes of blocks.
    static CRUMB_NOINLINE void store(const linear_args& args, const float* totals, std::size_t t,
                                     std::size_t tiles, std::size_t r, std::size_t rows,
                                     float factor) noexcept {
        constexpr std::size_t lanes = static_cast<std::size_t>(I::lanes);
        const typename I::f32 times = I::set1(factor);
        const std::size_t begin = t * tile_channels, last = begin + tiles * tile_channels;
        if (args.corrections == nullptr && r >= args.rows.begin && r + rows <= args.rows.end &&
            begin >= args.channels.begin && last <= args.channels.end) {
            for (const std::size_t end = r + rows; r < end; ++r) {
                float* to = args.y + r * args.y_stride;
                const float* terms = args.adds ? to : args.bias;
                for (std::size_t c = begin; c < last; c += lanes, totals += lanes) {
                    typename I::f32 y = I::mul(I::load(totals), times);
                    if (terms != nullptr)
                        y = I::add(y, I::load(terms + c));
                    I::store(to + c, y);
                }
            }
            return;
        }
        for (const std::size_t end = r + rows; r < end; ++r)
            for (std::size_t c = begin; c < last; c += lanes) {
                emit(args, I::mul(I::load(totals), times), c, r);
                totals += lanes;
            }
    }

  private:
    template <int Rows, std::size_t RowBlock, class F>
    static CRUMB_INLINE void of_height(std::size_t height, std::size_t r, F& f) noexcept {
        if (height == Rows)
            f.template operator()<Rows>(r);
        else if constexpr (Rows < static_cast<int>(RowBlock))
            of_height<Rows + 1, RowBlock>(height, r, f);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
