// Products with float or half-precision weights. Loops:
//     channels (2 at a time) > rows (4 at a time) > inputs (a register at a time)
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

    static void run(const dense_args<T>& args) noexcept {
        std::size_t c = args.channels.begin;
        for (; c + 2 <= args.channels.end; c += 2)
            all_rows<2>(args, c);
        if (c < args.channels.end)
            all_rows<1>(args, c);
    }

  private:
    template <int Channels>
    static CRUMB_INLINE void all_rows(const dense_args<T>& args, std::size_t c) noexcept {
        std::size_t r = args.rows.begin;
        for (; r + 4 <= args.rows.end; r += 4)
            block<4, Channels>(args, r, c);
        for (; r < args.rows.end; ++r)
            block<1, Channels>(args, r, c);
    }

    template <int Rows, int Channels>
    static CRUMB_INLINE void block(const dense_args<T>& args, std::size_t r, std::size_t c) noexcept {
        const T* w = args.w.row(c);
        const float* x = args.x.row(r);
        f32 total[unsigned(Rows * Channels)];
        CRUMB_UNROLL
        for (int i = 0; i < Rows * Channels; ++i)
            total[i] = I::zero();
        const std::size_t k = args.w.cols;
        std::size_t i = 0;
        for (; i + lanes <= k; i += lanes) {
            f32 weights[unsigned(Channels)];
            CRUMB_UNROLL
            for (int j = 0; j < Channels; ++j)
                weights[j] = I::load(w + static_cast<std::size_t>(j) * args.w.stride + i);
            multiply<Rows, Channels>(weights, x + i, args.x.stride, lanes, total);
        }
        if (i < k) {
            f32 weights[unsigned(Channels)];
            CRUMB_UNROLL
            for (int j = 0; j < Channels; ++j) {
                T rest[lanes] = {};
                __builtin_memcpy(rest, w + static_cast<std::size_t>(j) * args.w.stride + i,
                                 (k - i) * sizeof(T));
                weights[j] = I::load(rest);
            }
            multiply<Rows, Channels>(weights, x + i, args.x.stride, k - i, total);
        }
        CRUMB_UNROLL
        for (int a = 0; a < Rows; ++a) {
            float* y = args.y.row(r + static_cast<std::size_t>(a)) + c;
            CRUMB_UNROLL
            for (int j = 0; j < Channels; ++j)
                y[j] = I::sum(total[a * Channels + j]) +
                       (args.bias != nullptr ? args.bias[c + static_cast<std::size_t>(j)] : 0.0f);
        }
    }

    template <int Rows, int Channels>
    static CRUMB_INLINE void multiply(const f32* weights, const float* x, std::size_t stride, std::size_t n,
                                      f32* total) noexcept {
        CRUMB_UNROLL
        for (int a = 0; a < Rows; ++a) {
            const float* row = x + static_cast<std::size_t>(a) * stride;
            const f32 values = n == lanes ? I::load(row) : I::load_partial(row, n);
            CRUMB_UNROLL
            for (int j = 0; j < Channels; ++j)
                total[a * Channels + j] = I::fma(weights[j], values, total[a * Channels + j]);
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
