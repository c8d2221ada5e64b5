// Products with float, fp16 or bf16 weights. Loops:
//     few rows    channels (4 at a time) > rows > inputs (a register at a time)      weights as they lie
//     panels      rows (64 at a time) > channels (8) > inputs (512) > rows (`block_rows`) > channels (4) >
//                 registers of inputs                                                weights copied to floats
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class T>
struct dense_run<isa::CRUMB_THIS_ISA, T> {
    using I = isa::CRUMB_THIS_ISA;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = static_cast<std::size_t>(I::lanes);
    static constexpr int block_rows = I::registers >= 32 ? 4 : 3, block_channels = 4;
    static constexpr std::size_t few_rows = 3; ///< up to which weights are multiplied as they lie
    static constexpr std::size_t panel_rows = 64, panel_channels = 8, panel_inputs = 512;

    static void run(const dense_args<T>& args) noexcept {
        if (args.rows.size() <= few_rows) {
            few(args);
            return;
        }
        for (std::size_t r = args.rows.begin; r < args.rows.end; r += panel_rows)
            for (std::size_t c = args.channels.begin; c < args.channels.end; c += panel_channels)
                panels(args, {r, least(r + panel_rows, args.rows.end)},
                       {c, least(c + panel_channels, args.channels.end)});
    }

  private:
    static constexpr std::size_t least(std::size_t a, std::size_t b) noexcept { return a < b ? a : b; }

    // ---- few rows ----
    // Eight streams of weights: enough sums in flight, and memory is as fast as with one stream.
    static CRUMB_INLINE void few(const dense_args<T>& args) noexcept {
        std::size_t c = args.channels.begin;
        for (; c + panel_channels <= args.channels.end; c += panel_channels)
            for (std::size_t r = args.rows.begin; r < args.rows.end; ++r)
                row<static_cast<int>(panel_channels)>(args, r, c);
        for (; c < args.channels.end; ++c)
            for (std::size_t r = args.rows.begin; r < args.rows.end; ++r)
                row<1>(args, r, c);
    }

    /// y[r, c] to y[r, c + Channels - 1].
    template <int Channels>
    static CRUMB_NOINLINE void row(const dense_args<T>& args, std::size_t r, std::size_t c) noexcept {
        const std::size_t k = args.w.cols, stride = args.w.stride;
        const T* w = args.w.row(c);
        const float* x = args.x.row(r);
        f32 total[unsigned(Channels)];
        CRUMB_UNROLL
        for (int j = 0; j < Channels; ++j)
            total[j] = I::zero();
        std::size_t i = 0;
        for (; i + lanes <= k; i += lanes) {
            const f32 values = I::load(x + i);
            CRUMB_UNROLL
            for (int j = 0; j < Channels; ++j)
                total[j] = I::fma(I::load(w + static_cast<std::size_t>(j) * stride + i), values, total[j]);
        }
        if (i < k) {
            const f32 values = I::load_partial(x + i, k - i);
            CRUMB_UNROLL
            for (int j = 0; j < Channels; ++j)
                total[j] =
                    I::fma(load(w + static_cast<std::size_t>(j) * stride + i, k - i), values, total[j]);
        }
        CRUMB_UNROLL
        for (int j = 0; j < Channels; ++j)
            write(args, r, c + static_cast<std::size_t>(j), total[j]);
    }

    /// The first n < lanes weights at w, 0 in the other lanes.
    static CRUMB_INLINE f32 load(const T* w, std::size_t n) noexcept {
        T rest[lanes] = {};
        __builtin_memcpy(rest, w, n * sizeof(T));
        return I::load(rest);
    }

    // ---- panels ----
    /// At most 64 rows times 8 channels: lanes of totals stay apart over all inputs.
    static CRUMB_NOINLINE void panels(const dense_args<T>& args, range rows, range channels) noexcept {
        alignas(64) float panel[panel_channels * panel_inputs];
        alignas(64) float totals[panel_rows * panel_channels * lanes];
        const std::size_t k = args.w.cols;
        for (std::size_t i = 0; i < rows.size() * panel_channels; ++i)
            I::store(totals + i * lanes, I::zero());
        for (std::size_t first = 0; first < k; first += panel_inputs) {
            const std::size_t inputs = least(panel_inputs, k - first);
            fill(args, channels, first, inputs, panel);
            std::size_t r = rows.begin;
            for (; r + block_rows <= rows.end; r += block_rows)
                block<block_rows>(panel, args.x.row(r) + first, args.x.stride, inputs,
                                  totals_of(r - rows.begin, totals));
            for (; r < rows.end; ++r)
                block<1>(panel, args.x.row(r) + first, args.x.stride, inputs,
                         totals_of(r - rows.begin, totals));
        }
        for (std::size_t r = rows.begin; r < rows.end; ++r)
            for (std::size_t c = channels.begin; c < channels.end; ++c)
                write(args, r, c, I::load(totals_of(r - rows.begin, totals) + (c - channels.begin) * lanes));
    }

    static CRUMB_INLINE float* totals_of(std::size_t row, float* totals) noexcept {
        return totals + row * panel_channels * lanes;
    }

    /// panel[512 j + i] = w[channels.begin + j, first + i], 0 for the other channels and up to the end of a
    /// register.
    static CRUMB_INLINE void fill(const dense_args<T>& args, range channels, std::size_t first,
                                  std::size_t inputs, float* panel) noexcept {
        if (channels.size() < panel_channels)
            for (std::size_t i = 0; i < panel_channels * panel_inputs; i += lanes)
                I::store(panel + i, I::zero());
        const T* w = args.w.row(channels.begin) + first;
        std::size_t i = 0;
        for (; i + lanes <= inputs; i += lanes)
            for (std::size_t j = 0; j < channels.size(); ++j)
                I::store(panel + j * panel_inputs + i, I::load(w + j * args.w.stride + i));
        if (i < inputs)
            for (std::size_t j = 0; j < channels.size(); ++j)
                I::store(panel + j * panel_inputs + i, load(w + j * args.w.stride + i, inputs - i));
    }

    /// totals[r][c][lane] += x[r, i] panel[c, i] for the i of the lane, in order.
    template <int Rows>
    static CRUMB_NOINLINE void block(const float* panel, const float* x, std::size_t stride,
                                     std::size_t inputs, float* totals) noexcept {
        for (std::size_t c = 0; c < panel_channels; c += block_channels) {
            const float* w = panel + c * panel_inputs;
            float* to = totals + c * lanes;
            f32 total[unsigned(Rows * block_channels)];
            CRUMB_UNROLL
            for (int i = 0; i < Rows * block_channels; ++i)
                total[i] = I::load(to + at(i));
            std::size_t i = 0;
            for (; i + lanes <= inputs; i += lanes)
                multiply<Rows>(w + i, x + i, stride, lanes, total);
            if (i < inputs)
                multiply<Rows>(w + i, x + i, stride, inputs - i, total);
            CRUMB_UNROLL
            for (int n = 0; n < Rows * block_channels; ++n)
                I::store(to + at(n), total[n]);
        }
    }

    static constexpr std::size_t at(int i) noexcept {
        return (static_cast<std::size_t>(i / block_channels) * panel_channels +
                static_cast<std::size_t>(i % block_channels)) *
               lanes;
    }

    template <int Rows>
    static CRUMB_INLINE void multiply(const float* w, const float* x, std::size_t stride, std::size_t n,
                                      f32* total) noexcept {
        f32 weights[block_channels];
        CRUMB_UNROLL
        for (int j = 0; j < block_channels; ++j)
            weights[j] = I::load(w + static_cast<std::size_t>(j) * panel_inputs);
        CRUMB_UNROLL
        for (int a = 0; a < Rows; ++a) {
            const float* row = x + static_cast<std::size_t>(a) * stride;
            const f32 values = n == lanes ? I::load(row) : I::load_partial(row, n);
            CRUMB_UNROLL
            for (int j = 0; j < block_channels; ++j)
                total[a * block_channels + j] = I::fma(weights[j], values, total[a * block_channels + j]);
        }
    }

    static CRUMB_INLINE void write(const dense_args<T>& args, std::size_t r, std::size_t c,
                                   f32 total) noexcept {
        args.y.row(r)[c] = I::sum(total) + (args.bias != nullptr ? args.bias[c] : 0.0f);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
