// Products with float, fp16 or bf16 weights. Loops:
//     1 to 3 rows     channels (8 at a time, or 4) > rows > inputs (1024) > a register of inputs
//     more rows       up to 128 rows > inputs (1024) > channels (4), copied to floats > rows (`block_rows`) >
//                     a register of inputs
//     to 32 rows      channels (4), as they lie > inputs (1024) > the same
//     where rows stay up to 128 rows > inputs (1024) > channels (`strip_bytes`), as they lie >
//                     rows (`block_rows`) > channels (4) > a register of inputs
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// `Rows` rows times four channels.
template <std::size_t Rows>
struct dense_block<isa::CRUMB_THIS_ISA, Rows> {
    using I = isa::CRUMB_THIS_ISA;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = static_cast<std::size_t>(I::lanes);
    static constexpr std::size_t inputs = 1024; ///< of a sum
    static constexpr std::size_t channels = 4;
    /// Whether a block of rows stays in the first level while weights pass it, as they lie. Products of 64
    /// bytes outrun the second level; it has fewer bytes of weights to bring for them than of rows.
    static constexpr bool rows_stay = sizeof(f32) == 64 && I::prefetch_bytes != 0;

    /// Weights that will be needed later.
    struct weights_ahead {
        const std::byte* data = nullptr;
        std::size_t rows = 0, stride = 0; ///< bytes from one row to the next
        std::size_t inputs = 0, size = 0; ///< of a row; bytes of an input
    };

    /// to[r, c] = start + sum over i of w[c, i] x[r, i] for 1024 inputs at most; start is bias[c], or 0
    /// without a bias, and to[r, c] where something was summed before (`first` is false). Asks for `next`
    /// meanwhile, line by line: all at once would fill the line buffers, and loads wait behind that.
    template <class T>
    static CRUMB_NOINLINE void run(const matrix_view<const T>& w, const weights_ahead& next,
                                   const matrix_view<const float>& x, bool first, const float* bias,
                                   const matrix_view<float>& to) noexcept {
        f32 total[Rows * channels];
        CRUMB_UNROLL
        for (std::size_t i = 0; i < Rows * channels; ++i)
            total[i] = I::zero();
        const rows_of<T> at(w, x);
        const std::size_t end = x.cols;
        std::size_t i = 0;
        if (I::prefetch_bytes != 0 && next.rows != 0) {
            const std::size_t steps = 64 / (lanes * next.size); // of a line; rows take them by turns
            for (std::size_t turn = 0; i + lanes <= next.inputs; i += lanes) {
                for (std::size_t c = turn; c < next.rows; c += steps)
                    __builtin_prefetch(next.data + c * next.stride + i * next.size);
                multiply<true>(at, i, end, total);
                turn = (turn == 0 ? steps : turn) - 1;
            }
        }
        for (; i + lanes <= end; i += lanes)
            multiply<true>(at, i, end, total);
        if (i < end)
            multiply<false>(at, i, end, total);
        CRUMB_UNROLL
        for (std::size_t r = 0; r < Rows; ++r)
            add(total + r * channels, first ? bias : to.row(r), to.cols, to.row(r));
    }

    /// to[c] = start[c] (0 without) + the sum of the lanes of total[c], for the first n of four registers.
    static CRUMB_INLINE void add(const f32* total, const float* start, std::size_t n, float* to) noexcept {
        float sums[channels];
        I::sum4(total[0], total[1], total[2], total[3], sums);
        if (n == channels)
            add(sums, start, to); // known to be four, compilers make one addition of it
        else
            for (std::size_t c = 0; c < n; ++c)
                to[c] = start != nullptr ? start[c] + sums[c] : sums[c];
    }

    /// The first n < lanes numbers at p, 0 in the other lanes.
    static CRUMB_INLINE f32 load(const float* p, std::size_t n) noexcept { return I::load_partial(p, n); }
    template <class T>
    static CRUMB_INLINE f32 load(const T* p, std::size_t n) noexcept {
        T rest[lanes] = {};
        __builtin_memcpy(rest, p, n * sizeof(T));
        return I::load(rest);
    }

  private:
    static CRUMB_INLINE void add(float (&sums)[channels], const float* start, float* to) noexcept {
        if (start != nullptr) {
            CRUMB_UNROLL
            for (std::size_t c = 0; c < channels; ++c)
                sums[c] = start[c] + sums[c];
        }
        __builtin_memcpy(to, sums, sizeof sums);
    }

    // Addresses in registers: compilers would add up strides in every step, on ports that FMAs need.
    template <class T>
    struct rows_of {
        const T* w[channels];
        const float* x[Rows];
        CRUMB_INLINE rows_of(const matrix_view<const T>& weights,
                             const matrix_view<const float>& values) noexcept {
            CRUMB_UNROLL
            for (std::size_t c = 0; c < channels; ++c) {
                w[c] = weights.row(c);
                __asm__("" : "+r"(w[c]));
            }
            CRUMB_UNROLL
            for (std::size_t r = 0; r < Rows; ++r) {
                x[r] = values.row(r);
                __asm__("" : "+r"(x[r]));
            }
        }
    };

    template <bool Whole, class T>
    static CRUMB_INLINE void multiply(const rows_of<T>& at, std::size_t i, std::size_t end,
                                      f32* total) noexcept {
        // More registers than there are would spill a sum, and wait for it at every step.
        constexpr bool keeps_weights = Rows * channels + channels + 1 <= std::size_t{I::registers};
        if constexpr (keeps_weights) {
            f32 weights[channels];
            CRUMB_UNROLL
            for (std::size_t c = 0; c < channels; ++c)
                weights[c] = load<Whole>(at.w[c], i, end);
            CRUMB_UNROLL
            for (std::size_t r = 0; r < Rows; ++r) {
                const f32 values = load<Whole>(at.x[r], i, end);
                CRUMB_UNROLL
                for (std::size_t c = 0; c < channels; ++c)
                    total[r * channels + c] = I::fma(weights[c], values, total[r * channels + c]);
            }
        } else {
            f32 values[Rows];
            CRUMB_UNROLL
            for (std::size_t r = 0; r < Rows; ++r)
                values[r] = load<Whole>(at.x[r], i, end);
            CRUMB_UNROLL
            for (std::size_t c = 0; c < channels; ++c) {
                const f32 weights = load<Whole>(at.w[c], i, end);
                CRUMB_UNROLL
                for (std::size_t r = 0; r < Rows; ++r)
                    total[r * channels + c] = I::fma(weights, values[r], total[r * channels + c]);
            }
        }
    }
    template <bool Whole, class N>
    static CRUMB_INLINE f32 load(const N* p, std::size_t i, std::size_t end) noexcept {
        if constexpr (Whole)
            return I::load(p + i);
        else
            return load(p + i, end - i);
    }
};

template <class T>
struct dense_run<isa::CRUMB_THIS_ISA, T> {
    using I = isa::CRUMB_THIS_ISA;
    using f32 = typename I::f32;
    template <std::size_t Rows>
    using block = dense_block<I, Rows>;
    using sums = block<1>;
    static constexpr std::size_t lanes = sums::lanes;
    static constexpr std::size_t block_rows = I::registers >= 32 ? 6 : 3;
    static constexpr std::size_t few_rows = 3; ///< up to which rows are multiplied one by one
    static constexpr bool is_float = sizeof(T) == sizeof(float);
    /// Channels for few rows: sums enough in flight. Four of floats are asked for less far ahead.
    static constexpr std::size_t streams = is_float && I::prefetch_bytes != 0 ? 4 : 8;
    static constexpr std::size_t most_ahead = 262144;  ///< bytes of weights that wait in the second level
    static constexpr std::size_t uncopied_rows = 32;   ///< up to which weights are multiplied as they lie
    static constexpr std::size_t most_rows = 128;      ///< that read a panel, and wait in the second level
    static constexpr std::size_t strip_bytes = 196608; ///< of weights that wait in the second level for rows

    static void run(const dense_args<T>& args) noexcept {
        if (args.rows.size() <= few_rows)
            return few(args);
        const bool stay = sums::rows_stay && (is_float || !args.converts_on_product_ports);
        const std::size_t rows = stay ? most_rows : rows_at_once(args.x.stride * sizeof(float));
        // Not by `rows`: others read the same weights.
        const bool copies = !stay && args.rows.size() > uncopied_rows;
        // Weights of a single block are not read again.
        const bool waits = stay && args.rows.size() > block_rows;
        const std::size_t strip = waits ? strip_bytes / (sums::inputs * sizeof(T)) : sums::channels;
        for (std::size_t r = args.rows.begin; r < args.rows.end; r += rows)
            many({args, {r, least(r + rows, args.rows.end)}, strip, stay || copies, copies});
    }

  private:
    static constexpr std::size_t least(std::size_t a, std::size_t b) noexcept { return a < b ? a : b; }

    // ---- few rows ----
    static CRUMB_INLINE void few(const dense_args<T>& args) noexcept {
        std::size_t c = args.channels.begin;
        for (; c + streams <= args.channels.end; c += streams)
            for (std::size_t r = args.rows.begin; r < args.rows.end; ++r)
                row<streams>(args, r, c, ahead(args, r, c + streams));
        for (; c < args.channels.end; ++c)
            for (std::size_t r = args.rows.begin; r < args.rows.end; ++r)
                row<1>(args, r, c, {});
    }

    /// What a row asks for of the next channels, in the order in which they lie: the hardware's prefetchers
    /// follow so many short streams worse than a long one.
    struct channels_ahead {
        const std::byte* at = nullptr;
        std::size_t left = 0;            ///< lines
        std::size_t every = 0, wait = 0; ///< calls of `next`; 0: never
        CRUMB_INLINE void next() noexcept {
            if (--wait != 0 || left == 0)
                return;
            wait = every;
            __builtin_prefetch(at, 0, 2);
            at += 64;
            --left;
        }
    };
    /// Of `streams` channels from c on the share of row r.
    static CRUMB_INLINE channels_ahead ahead(const dense_args<T>& args, std::size_t r,
                                             std::size_t c) noexcept {
        const std::size_t bytes = streams * args.w.stride * sizeof(T), rows = args.rows.size();
        if (I::prefetch_bytes == 0 || c + streams > args.channels.end || args.w.stride != args.w.cols ||
            bytes > most_ahead)
            return {};
        const std::size_t share = (bytes / 64 + rows - 1) / rows;
        return {reinterpret_cast<const std::byte*>(args.w.row(c)) + (r - args.rows.begin) * share * 64, share,
                rows, 1};
    }

    /// y[r, c] to y[r, c + Channels - 1].
    template <std::size_t Channels>
    static CRUMB_NOINLINE void row(const dense_args<T>& args, std::size_t r, std::size_t c,
                                   channels_ahead next) noexcept {
        constexpr std::size_t registers = Channels < sums::channels ? sums::channels : Channels;
        float* y = args.y.row(r) + c;
        const float* start = args.bias != nullptr ? args.bias + c : nullptr;
        std::size_t first = 0;
        do {
            const std::size_t n = least(sums::inputs, args.w.cols - first);
            const T* w = args.w.row(c) + first;
            const float* x = args.x.row(r) + first;
            f32 total[registers];
            CRUMB_UNROLL
            for (std::size_t j = 0; j < registers; ++j)
                total[j] = I::zero();
            std::size_t i = 0;
            for (; i + lanes <= n; i += lanes) {
                const f32 values = I::load(x + i);
                CRUMB_UNROLL
                for (std::size_t j = 0; j < Channels; ++j) {
                    total[j] = I::fma(I::load(w + j * args.w.stride + i), values, total[j]);
                    if constexpr (I::prefetch_bytes != 0 && Channels == streams) {
                        if ((j + 1) * lanes * sizeof(T) % 64 == 0)
                            next.next();
                    }
                }
            }
            if (i < n) {
                const f32 values = I::load_partial(x + i, n - i);
                CRUMB_UNROLL
                for (std::size_t j = 0; j < Channels; ++j)
                    total[j] = I::fma(sums::load(w + j * args.w.stride + i, n - i), values, total[j]);
            }
            CRUMB_UNROLL
            for (std::size_t j = 0; j < Channels; j += sums::channels)
                sums::add(total + j, start != nullptr ? start + j : nullptr, least(sums::channels, Channels),
                          y + j);
            start = y;
            first += sums::inputs;
        } while (first < args.w.cols);
    }

    // ---- many rows ----
    /// Rows that are a multiple of 16 KB apart share a quarter of a cache's sets, of 32 KB an eighth: fewer
    /// of them stay there.
    static constexpr std::size_t rows_at_once(std::size_t stride) noexcept {
        constexpr std::size_t apart = 8192;
        const std::size_t power = stride & (~stride + 1); // the largest that divides it
        return power <= apart ? most_rows : power >= 8 * apart ? most_rows / 8 : most_rows * apart / power;
    }

    /// How rows are multiplied that read the same weights.
    struct way {
        const dense_args<T>& args;
        range rows;
        std::size_t strip;   ///< channels between those that are multiplied and those that are prefetched
        bool inputs_outside; ///< 1024 inputs of all channels before the next 1024
        bool copies;         ///< weights become floats once for all rows
    };

    static CRUMB_NOINLINE void many(const way& by) noexcept {
        alignas(64) float panel[sums::channels * sums::inputs];
        const dense_args<T>& args = by.args;
        const std::size_t end = args.channels.end;
        const std::size_t outside = by.inputs_outside ? args.channels.size() : by.strip;
        for (std::size_t s = args.channels.begin; s < end; s += outside) {
            std::size_t first = 0;
            do {
                const range inputs{first, least(first + sums::inputs, args.w.cols)};
                for (std::size_t c = s; c < least(s + outside, end); c += by.strip) {
                    const range channels{c, least(c + by.strip, end)};
                    const std::size_t whole = channels.size() / sums::channels * sums::channels;
                    const range uncopied{c, by.copies ? c : c + whole}, copied{uncopied.end, channels.end};
                    multiply(by, uncopied, inputs, weights(args, uncopied, inputs));
                    if (copied.size() == 0)
                        continue;
                    const matrix_view<const T> w = weights(args, copied, inputs);
                    fill(w, panel);
                    multiply(by, copied, inputs,
                             matrix_view<const float>{panel, sums::channels, w.cols, sums::inputs});
                }
                first += sums::inputs;
            } while (first < args.w.cols);
        }
    }

    static CRUMB_INLINE matrix_view<const T> weights(const dense_args<T>& args, range channels,
                                                     range inputs) noexcept {
        return {args.w.row(channels.begin) + inputs.begin, channels.size(), inputs.size(), args.w.stride};
    }

    template <class W>
    static CRUMB_INLINE void multiply(const way& by, range channels, range inputs,
                                      const matrix_view<const W>& w) noexcept {
        // Two equal blocks rather than a large one and a small one.
        constexpr std::size_t equal = block_rows == 6 ? 4 : 2;
        std::size_t r = by.rows.begin;
        for (; r + block_rows <= by.rows.end && by.rows.end - r != 2 * equal; r += block_rows)
            multiply<block_rows>(by, r, channels, inputs, w);
        for (; r + equal <= by.rows.end; r += equal)
            multiply<equal>(by, r, channels, inputs, w);
        for (; r + 2 <= by.rows.end; r += 2)
            multiply<2>(by, r, channels, inputs, w);
        if (r < by.rows.end)
            multiply<1>(by, r, channels, inputs, w);
    }

    /// `Rows` of the rows, from r on.
    template <std::size_t Rows, class W>
    static CRUMB_INLINE void multiply(const way& by, std::size_t r, range channels, range inputs,
                                      const matrix_view<const W>& w) noexcept {
        const dense_args<T>& args = by.args;
        const share next = share_of(by, r, inputs);
        for (std::size_t c = channels.begin; c < channels.end; c += sums::channels) {
            const std::size_t n = least(sums::channels, channels.end - c);
            block<Rows>::run(
                matrix_view<const W>{w.row(c - channels.begin), sums::channels, w.cols, w.stride},
                ahead<Rows>(args, next, c + by.strip),
                {args.x.row(r) + inputs.begin, Rows, inputs.size(), args.x.stride}, inputs.begin == 0,
                args.bias != nullptr ? args.bias + c : nullptr, {args.y.row(r) + c, Rows, n, args.y.stride});
        }
    }

    /// What a block of rows prefetches of four channels, counted from the first of them.
    struct share {
        range channels, inputs;
    };
    /// The share of the block of rows from r on: a core waits for few lines at a time, so that one block
    /// cannot fetch what all of them have the time for. Each takes one channel, or a part of its inputs, or
    /// where there are fewer blocks more channels.
    static CRUMB_INLINE share share_of(const way& by, std::size_t r, range inputs) noexcept {
        constexpr std::size_t n = sums::channels;
        const bool waits = by.strip > n;
        const std::size_t blocks = (by.rows.size() + block_rows - 1) / block_rows;
        const std::size_t block = (r - by.rows.begin + block_rows - 1) / block_rows;
        const std::size_t parts = blocks >= n ? blocks / n : waits ? blocks : 1;
        const std::size_t turns = blocks >= n ? n : waits ? 1 : blocks, turn = block / parts;
        if (turn >= turns)
            return {{0, 0}, {0, 0}};
        const std::size_t size = round_up((inputs.size() + parts - 1) / parts, 64 / sizeof(T));
        const std::size_t begin = least(inputs.begin + block % parts * size, inputs.end);
        return {{n * turn / turns, n * (turn + 1) / turns}, {begin, least(begin + size, inputs.end)}};
    }
    /// A share of the channels from c on.
    template <std::size_t Rows>
    static CRUMB_INLINE typename block<Rows>::weights_ahead ahead(const dense_args<T>& args, const share& of,
                                                                  std::size_t c) noexcept {
        const std::size_t first = c + of.channels.begin, last = least(c + of.channels.end, args.channels.end);
        if (first >= last)
            return {};
        return {reinterpret_cast<const std::byte*>(args.w.row(first) + of.inputs.begin), last - first,
                args.w.stride * sizeof(T), of.inputs.size(), sizeof(T)};
    }

    /// Copies weights as floats: panel[1024 c + i], 0 for the other channels and up to the end of a register.
    static CRUMB_INLINE void fill(const matrix_view<const T>& w, float* panel) noexcept {
        for (std::size_t i = 0; w.rows < sums::channels && i < sums::channels * sums::inputs; i += lanes)
            I::store(panel + i, I::zero());
        std::size_t i = 0;
        for (; i + lanes <= w.cols; i += lanes)
            for (std::size_t c = 0; c < w.rows; ++c)
                I::store(panel + c * sums::inputs + i, I::load(w.row(c) + i));
        for (std::size_t c = 0; i < w.cols && c < w.rows; ++c)
            I::store(panel + c * sums::inputs + i, sums::load(w.row(c) + i, w.cols - i));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
