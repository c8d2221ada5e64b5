// Elementary functions of a register of floats. No loops.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct math<I> {
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = static_cast<std::size_t>(I::lanes);

    // ---- ends of rows ----
    /// The first min(n, lanes) floats at p, the other lanes 0.
    static CRUMB_INLINE f32 load(const float* p, std::size_t n) noexcept {
        return n >= lanes ? I::load(p) : I::load_partial(p, n);
    }
    static CRUMB_INLINE f32 load(const half* p, std::size_t n) noexcept {
        if (n >= lanes)
            return I::load(p);
        half rest[lanes];
        copy_some(p, n, rest);
        return I::load(rest);
    }
    /// Stores the first min(n, lanes) lanes.
    static CRUMB_INLINE void store(float* p, f32 x, std::size_t n) noexcept {
        if (n >= lanes)
            I::store(p, x);
        else
            I::store_partial(p, x, n);
    }
    /// Stores all lanes of integers.
    static CRUMB_INLINE void store(std::int32_t* p, typename I::i32 x) noexcept {
        float bits[lanes];
        I::store(bits, I::as_f32(x));
        __builtin_memcpy(p, bits, sizeof bits);
    }
    /// One half as a float.
    static CRUMB_INLINE float number(half h) noexcept {
        half all[lanes] = {h};
        float out[lanes];
        I::store(out, I::load(all));
        return out[0];
    }
    /// x in the first n lanes, 0 in the others.
    static CRUMB_INLINE f32 first(f32 x, std::size_t n) noexcept {
        float all[lanes];
        I::store(all, x);
        return I::load_partial(all, n);
    }
    /// The sum of four registers' lanes.
    static CRUMB_INLINE float sum(const f32* x) noexcept {
        return I::sum(I::add(I::add(x[0], x[1]), I::add(x[2], x[3])));
    }

    // ---- functions ----
    /// e^x: error below 1.1 ulp; subnormal results are rounded, x > 88.72284 gives infinity.
    // x = n ln 2 + r; 2^n in two factors, because neither 2^128 nor 2^-127 is a normal float.
    static CRUMB_INLINE f32 exp(f32 x) noexcept {
        const f32 low = I::set1(-104.0f), high = I::set1(88.8f);
        const f32 within = I::select_less(x, low, low, I::select_less(high, x, high, x));
        const typename I::i32 n = I::round_to_i32(I::mul(within, I::set1(1.44269504f)));
        const f32 whole = I::to_f32(n);
        const typename I::i32 n1 = I::round_to_i32(I::mul(whole, I::set1(0.5f)));
        const typename I::i32 n2 = I::round_to_i32(I::sub(whole, I::to_f32(n1)));
        const f32 p = exp_near_zero(within, whole);
        return I::mul(I::mul(p, I::power_of_two(n1)), I::power_of_two(n2));
    }

    /// e^x for x <= 0: error below 1.1 ulp; 0 where that is below 2^-125.
    static CRUMB_INLINE f32 exp_of_negative(f32 x) noexcept {
        const f32 low = I::set1(-86.6433976f);
        const f32 within = I::select_less(x, low, low, x);
        const typename I::i32 n = I::round_to_i32(I::mul(within, I::set1(1.44269504f)));
        const f32 e = I::mul(exp_near_zero(within, I::to_f32(n)), I::power_of_two(n));
        return I::select_less(x, low, I::zero(), e);
    }

    /// 1 / (1 + e^-x): error below 3 ulp; 0 where that is below 2^-125, as subnormal results take ten times
    /// as long on x86.
    static CRUMB_INLINE f32 logistic(f32 x) noexcept {
        const f32 one = I::set1(1.0f);
        const f32 e = exp_of_negative(I::sub(I::zero(), I::abs(x)));
        return I::div(I::select_less(x, I::zero(), e, one), I::add(one, e));
    }

    /// tanh x: error below 2 ulp. An odd polynomial near 0, 1 - 2 / (e^2|x| + 1) beyond.
    static CRUMB_INLINE f32 tanh(f32 x) noexcept {
        const f32 t = I::abs(x);
        const f32 one = I::set1(1.0f);
        const f32 s = I::mul(x, x);
        f32 p = I::set1(-5.71703119e-3f);
        p = I::fma(p, s, I::set1(2.06505749e-2f));
        p = I::fma(p, s, I::set1(-5.37434928e-2f));
        p = I::fma(p, s, I::set1(1.33314908e-1f));
        p = I::fma(p, s, I::set1(-3.33332837e-1f));
        const f32 near = I::fma(I::mul(p, s), t, t);
        const f32 far = I::sub(one, I::div(I::set1(2.0f), I::add(exp(I::add(t, t)), one)));
        return I::copy_sign(I::select_less(t, I::set1(0.625f), near, far), x);
    }

    /// erf x: error below 2 ulp.
    static CRUMB_INLINE f32 erf(f32 x) noexcept {
        const f32 t = I::abs(x);
        const f32 far = I::copy_sign(I::sub(I::set1(1.0f), erf_tail(t)), x);
        return I::select_less(t, I::set1(erf_split), I::fma(erf_factor(x), x, x), far);
    }

    /// 1 - erf t for t >= 0: relative error below 7e-6 up to t = 4, absolute error below 1e-7 everywhere.
    static CRUMB_INLINE f32 erf_complement(f32 t) noexcept {
        const f32 near = I::sub(I::set1(1.0f), I::fma(erf_factor(t), t, t));
        return I::select_less(t, I::set1(erf_split), near, erf_tail(t));
    }

    /// e^x of one number.
    static CRUMB_INLINE float exp_of(float x) noexcept {
        float all[lanes];
        I::store(all, exp(I::set1(x)));
        return all[0];
    }

  private:
    /// n < lanes halves, then zeros. Out of line: few rows have such an end, and many places read rows.
    static CRUMB_NOINLINE void copy_some(const half* p, std::size_t n, half* to) noexcept {
        for (std::size_t i = 0; i < lanes; ++i)
            to[i] = i < n ? p[i] : half{};
    }
    /// e^(x - n ln 2).
    static CRUMB_INLINE f32 exp_near_zero(f32 x, f32 n) noexcept {
        f32 r = I::fma(n, I::set1(-0.693359375f), x);
        r = I::fma(n, I::set1(2.12194440e-4f), r);
        f32 p = I::set1(1.97902453e-4f);
        p = I::fma(p, r, I::set1(1.39447593e-3f));
        p = I::fma(p, r, I::set1(8.33349768e-3f));
        p = I::fma(p, r, I::set1(4.16662954e-2f));
        p = I::fma(p, r, I::set1(1.66666657e-1f));
        p = I::fma(p, r, I::set1(0.5f));
        return I::add(I::fma(p, I::mul(r, r), r), I::set1(1.0f));
    }

    static constexpr float erf_split = 0.8f;

    /// erf(x) / x - 1 for |x| < erf_split.
    static CRUMB_INLINE f32 erf_factor(f32 x) noexcept {
        const f32 s = I::mul(x, x);
        f32 p = I::set1(-6.53523661e-4f);
        p = I::fma(p, s, I::set1(5.08513069e-3f));
        p = I::fma(p, s, I::set1(-2.68208068e-2f));
        p = I::fma(p, s, I::set1(1.12831131e-1f));
        p = I::fma(p, s, I::set1(-3.76126021e-1f));
        return I::fma(p, s, I::set1(1.28379166e-1f));
    }

    /// 1 - erf t for t >= erf_split as exp(q(t) - t^2); q is fitted up to 4 and constant beyond, where
    /// everything is below 2e-8.
    static CRUMB_INLINE f32 erf_tail(f32 t) noexcept {
        const f32 u = I::select_less(I::set1(4.0f), t, I::set1(4.0f), t);
        f32 q = I::set1(1.55712314e-6f);
        q = I::fma(q, u, I::set1(-4.44785219e-5f));
        q = I::fma(q, u, I::set1(5.8352109e-4f));
        q = I::fma(q, u, I::set1(-4.69754636e-3f));
        q = I::fma(q, u, I::set1(2.6245486e-2f));
        q = I::fma(q, u, I::set1(-1.0977219e-1f));
        q = I::fma(q, u, I::set1(3.67848277e-1f));
        q = I::fma(q, u, I::set1(-1.13004375f));
        q = I::fma(q, u, I::set1(2.73590122e-4f));
        return exp_of_negative(I::fma(I::sub(I::zero(), t), t, q));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
