// Elementwise functions over rows, gated or not, and copies. Loops: rows > registers of columns.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class Function>
struct elementwise_run<isa::CRUMB_THIS_ISA, Function> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;

    static void ungated(const elementwise_args& args) noexcept {
        for (std::size_t r = args.rows.begin; r < args.rows.end; ++r) {
            const float* x = args.x.row(r);
            float* y = args.y.row(r);
            for (std::size_t i = 0; i < args.x.cols; i += M::lanes) {
                const std::size_t n = args.x.cols - i;
                M::store(y + i, of(Function{}, M::load(x + i, n)), n);
            }
        }
    }

    static void gated(const elementwise_args& args) noexcept {
        for (std::size_t r = args.rows.begin; r < args.rows.end; ++r) {
            const float* x = args.x.row(r);
            const float* up = args.up.row(r);
            float* y = args.y.row(r);
            for (std::size_t i = 0; i < args.x.cols; i += M::lanes) {
                const std::size_t n = args.x.cols - i;
                M::store(y + i, I::mul(of(Function{}, M::load(x + i, n)), M::load(up + i, n)), n);
            }
        }
    }

  private:
    static CRUMB_INLINE f32 of(function::exp, f32 x) noexcept { return M::exp(x); }
    static CRUMB_INLINE f32 of(function::tanh, f32 x) noexcept { return M::tanh(x); }
    static CRUMB_INLINE f32 of(function::erf, f32 x) noexcept { return M::erf(x); }
    static CRUMB_INLINE f32 of(function::logistic, f32 x) noexcept { return M::logistic(x); }
    /// Error below 4 ulp + 2^-142; 0 where `logistic` is.
    static CRUMB_INLINE f32 of(function::silu, f32 x) noexcept { return I::mul(bounded(x), M::logistic(x)); }
    /// Error below (12 + 6 |u|) ulp + 2^-142, u = sqrt(2 / pi) (x + 0.044715 x^3); (1 + tanh u) / 2 =
    /// logistic(2u), and 0 where that is.
    static CRUMB_INLINE f32 of(function::gelu_tanh, f32 x) noexcept {
        const f32 b = bounded(x);
        const f32 cubic = I::fma(I::mul(b, b), I::set1(0.0713548162726f), I::set1(1.59576912161f));
        return I::mul(b, M::logistic(I::mul(cubic, b)));
    }
    /// Error below 2^-23 |x|; relative to the result below 7e-6 for x > -5.6.
    static CRUMB_INLINE f32 of(function::gelu_erf, f32 x) noexcept {
        const f32 b = bounded(x);
        const f32 tail = I::mul(I::set1(0.5f), M::erf_complement(I::mul(I::abs(b), I::set1(0.707106781f))));
        return I::mul(b, I::select_less(x, I::zero(), tail, I::sub(I::set1(1.0f), tail)));
    }
    /// Below -200 the results are 0, and -infinity * 0 would not be.
    static CRUMB_INLINE f32 bounded(f32 x) noexcept {
        return I::select_less(x, I::set1(-200.0f), I::set1(-200.0f), x);
    }
};

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct copy_run<I> {
    using M = math<I>;

    static void add(const elementwise_args& args) noexcept {
        for (std::size_t r = args.rows.begin; r < args.rows.end; ++r) {
            const float* x = args.x.row(r);
            const float* up = args.up.row(r);
            float* y = args.y.row(r);
            for (std::size_t i = 0; i < args.x.cols; i += M::lanes) {
                const std::size_t n = args.x.cols - i;
                M::store(y + i, I::add(M::load(x + i, n), M::load(up + i, n)), n);
            }
        }
    }

    static void to_halves(const float* x, half* y, std::size_t n) noexcept {
        std::size_t i = 0;
        for (; i + M::lanes <= n; i += M::lanes)
            I::store(y + i, I::load(x + i));
        if (i < n) {
            half rest[M::lanes];
            I::store(rest, I::load_partial(x + i, n - i));
            for (std::size_t j = 0; i + j < n; ++j)
                y[i + j] = rest[j];
        }
    }

    static void to_floats(const half* x, float* y, std::size_t n) noexcept {
        for (std::size_t i = 0; i < n; i += M::lanes)
            M::store(y + i, M::load(x + i, n - i), n - i);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
