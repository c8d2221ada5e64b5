// Rotary embedding in place. Loops: rows > heads > registers of pairs.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct rope_run<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;

    static void run(const rope_args& args) noexcept {
        const std::size_t pairs = args.dims / 2;
        for (std::size_t r = args.rows.begin; r < args.rows.end; ++r) {
            const float* cosines = args.table + (args.position + r) * args.dims;
            float* x = args.x.row(r);
            for (std::size_t head = 0; head < args.x.cols; head += args.head_size) {
                if (args.interleaved)
                    interleaved(x + head, cosines, cosines + pairs, pairs);
                else
                    half_split(x + head, cosines, cosines + pairs, pairs);
            }
        }
    }

  private:
    static CRUMB_INLINE void turn(f32& a, f32& b, f32 c, f32 s) noexcept {
        const f32 old = a;
        a = I::sub(I::mul(a, c), I::mul(b, s));
        b = I::fma(old, s, I::mul(b, c));
    }

    static CRUMB_INLINE void half_split(float* x, const float* c, const float* s,
                                        std::size_t pairs) noexcept {
        for (std::size_t i = 0; i < pairs; i += lanes) {
            const std::size_t n = pairs - i;
            f32 a = M::load(x + i, n), b = M::load(x + pairs + i, n);
            turn(a, b, M::load(c + i, n), M::load(s + i, n));
            M::store(x + i, a, n);
            M::store(x + pairs + i, b, n);
        }
    }

    static CRUMB_INLINE void interleaved(float* x, const float* c, const float* s,
                                         std::size_t pairs) noexcept {
        for (std::size_t i = 0; i < pairs; i += lanes) {
            const std::size_t n = pairs - i;
            float rest[2 * lanes] = {};
            float* at = x + 2 * i;
            if (n < lanes) {
                for (std::size_t j = 0; j < 2 * n; ++j)
                    rest[j] = at[j];
                at = rest;
            }
            f32 a, b;
            I::load_pairs(at, a, b);
            turn(a, b, M::load(c + i, n), M::load(s + i, n));
            I::store_pairs(at, a, b);
            if (n < lanes) {
                for (std::size_t j = 0; j < 2 * n; ++j)
                    x[2 * i + j] = rest[j];
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
