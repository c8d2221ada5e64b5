// Softmax over rows. Loops: rows > registers of columns: maximum, exponentials and sum, division.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct softmax_run<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;

    static void run(const softmax_args& args) noexcept {
        for (std::size_t r = args.rows.begin; r < args.rows.end; ++r) {
            const std::size_t cols = args.x.cols;
            const std::size_t most = args.valid < cols ? args.valid : cols;
            const std::size_t more = args.valid_step * r;
            const std::size_t n = more < cols - most ? most + more : cols;
            float* y = args.y.row(r);
            if (n != 0)
                row(args.x.row(r), y, n, args.scale);
            for (std::size_t i = n; i < cols; ++i)
                y[i] = 0;
        }
    }

  private:
    static CRUMB_INLINE void row(const float* x, float* y, std::size_t n, float factor) noexcept {
        const f32 scale = I::set1(factor);
        const f32 most = I::set1(maximum(x, n, factor));
        f32 total = I::zero();
        for (std::size_t i = 0; i < n; i += lanes) {
            f32 e = M::exp(I::sub(I::mul(M::load(x + i, n - i), scale), most));
            if (n - i < lanes)
                e = M::first(e, n - i);
            M::store(y + i, e, n - i);
            total = I::add(total, e);
        }
        const f32 inverse = I::set1(1.0f / I::sum(total));
        for (std::size_t i = 0; i < n; i += lanes)
            M::store(y + i, I::mul(M::load(y + i, n - i), inverse), n - i);
    }

    /// The largest factor * x[i]. Where NaN is among them anything will do: the sum is NaN as well.
    static CRUMB_INLINE float maximum(const float* x, std::size_t n, float factor) noexcept {
        if (n < lanes) {
            float most = x[0] * factor;
            for (std::size_t i = 1; i < n; ++i)
                most = x[i] * factor > most ? x[i] * factor : most;
            return most;
        }
        const f32 scale = I::set1(factor);
        f32 most = I::mul(I::load(x + n - lanes), scale);
        for (std::size_t i = 0; i + lanes <= n; i += lanes)
            most = I::max(most, I::mul(I::load(x + i), scale));
        return I::maximum(most);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
