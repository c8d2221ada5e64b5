// RMSNorm and LayerNorm. Loops: rows > registers of columns, once for the sums and once for the result.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct norm_run<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;

    static void rms_norm(const norm_args& args) noexcept {
        for (std::size_t r = args.rows.begin; r < args.rows.end; ++r) {
            const float mean = squares(args.x.row(r), args.x.cols) / static_cast<float>(args.x.cols);
            scale(args, r, 0, 1.0f / __builtin_sqrtf(mean + args.epsilon));
        }
    }

    // The mean's rounding error shows up as a mean of the differences, and is taken out of both results.
    static void layer_norm(const norm_args& args) noexcept {
        const std::size_t n = args.x.cols;
        const float inverse_n = 1.0f / static_cast<float>(n);
        for (std::size_t r = args.rows.begin; r < args.rows.end; ++r) {
            const float* x = args.x.row(r);
            const float rough = sum(x, n) * inverse_n;
            float rest = 0, spread = 0;
            differences(x, n, rough, rest, spread);
            rest *= inverse_n;
            const float variance = spread * inverse_n - rest * rest;
            scale(args, r, rough + rest, 1.0f / __builtin_sqrtf(variance + args.epsilon));
        }
    }

  private:
    static CRUMB_INLINE float squares(const float* x, std::size_t n) noexcept {
        f32 total[4] = {I::zero(), I::zero(), I::zero(), I::zero()};
        std::size_t i = 0;
        for (; i + 4 * lanes <= n; i += 4 * lanes) {
            CRUMB_UNROLL
            for (std::size_t j = 0; j < 4; ++j) {
                const f32 v = I::load(x + i + j * lanes);
                total[j] = I::fma(v, v, total[j]);
            }
        }
        for (; i < n; i += lanes) {
            const f32 v = M::load(x + i, n - i);
            total[0] = I::fma(v, v, total[0]);
        }
        return M::sum(total);
    }

    static CRUMB_INLINE float sum(const float* x, std::size_t n) noexcept {
        f32 total[4] = {I::zero(), I::zero(), I::zero(), I::zero()};
        std::size_t i = 0;
        for (; i + 4 * lanes <= n; i += 4 * lanes) {
            CRUMB_UNROLL
            for (std::size_t j = 0; j < 4; ++j)
                total[j] = I::add(I::load(x + i + j * lanes), total[j]);
        }
        for (; i < n; i += lanes)
            total[0] = I::add(M::load(x + i, n - i), total[0]);
        return M::sum(total);
    }

    /// Sums of x - mean and of its squares.
    static CRUMB_INLINE void differences(const float* x, std::size_t n, float mean, float& rest,
                                         float& spread) noexcept {
        const f32 center = I::set1(mean);
        f32 first[4] = {I::zero(), I::zero(), I::zero(), I::zero()};
        f32 second[4] = {I::zero(), I::zero(), I::zero(), I::zero()};
        std::size_t i = 0;
        for (; i + 4 * lanes <= n; i += 4 * lanes) {
            CRUMB_UNROLL
            for (std::size_t j = 0; j < 4; ++j) {
                const f32 d = I::sub(I::load(x + i + j * lanes), center);
                first[j] = I::add(first[j], d);
                second[j] = I::fma(d, d, second[j]);
            }
        }
        for (; i < n; i += lanes) {
            f32 d = I::sub(M::load(x + i, n - i), center);
            if (n - i < lanes)
                d = M::first(d, n - i);
            first[0] = I::add(first[0], d);
            second[0] = I::fma(d, d, second[0]);
        }
        rest = M::sum(first);
        spread = M::sum(second);
    }

    /// y = (x - mean) factor w + bias.
    static CRUMB_INLINE void scale(const norm_args& args, std::size_t r, float mean, float factor) noexcept {
        const float* x = args.x.row(r);
        float* y = args.y.row(r);
        const f32 center = I::set1(mean);
        const f32 f = I::set1(factor);
        for (std::size_t i = 0; i < args.x.cols; i += lanes) {
            const std::size_t n = args.x.cols - i;
            const f32 v = I::mul(I::sub(M::load(x + i, n), center), f);
            const f32 w = M::load(args.w + i, n);
            const f32 b = args.bias != nullptr ? M::load(args.bias + i, n) : I::zero();
            M::store(y + i, I::fma(v, w, b), n);
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
