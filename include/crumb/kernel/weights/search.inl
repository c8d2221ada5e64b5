// The search for scales: candidates side by side, a register of them at a time. Loops: registers > inputs.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct search_run<I> {
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = I::lanes;
    static constexpr std::size_t inputs = 32; ///< of a group

    static void fit(const fit_args& p) noexcept {
        float aw[inputs];
        float ww = 0;
        for (std::size_t i = 0; i < inputs; ++i) {
            aw[i] = p.a[i] * p.w[i];
            float square = aw[i] * p.w[i];
            CRUMB_ROUND_PRODUCT(square);
            ww += square;
        }
        for (std::size_t at = 0; at < p.count; at += lanes) {
            if (p.tables.entries == 4)
                fit<tables<4>>(p, aw, ww, at);
            else if (p.tables.entries == 8)
                fit<tables<8>>(p, aw, ww, at);
            else if (p.tables.entries == 16)
                fit<tables<16>>(p, aw, ww, at);
            else if (p.tables.entries < 16)
                fit<tables<0>>(p, aw, ww, at);
            else
                fit<even>(p, aw, ww, at);
        }
    }

    static void evaluate(const evaluate_args& p) noexcept {
        for (std::size_t at = 0; at < p.count; at += lanes) {
            if (p.tables.entries == 4)
                evaluate<tables<4>>(p, at);
            else if (p.tables.entries == 8)
                evaluate<tables<8>>(p, at);
            else if (p.tables.entries == 16)
                evaluate<tables<16>>(p, at);
            else if (p.tables.entries < 16)
                evaluate<tables<0>>(p, at);
            else
                evaluate<even>(p, at);
        }
    }

  private:
    static constexpr float smallest = 0x1p-126f;
    static constexpr float largest = 0x1.fffffep127f;

    /// The table of every lane. `Entries` 0: as many as `entries` says.
    template <std::size_t Entries>
    struct tables {
        static constexpr std::size_t most = Entries != 0 ? Entries : 16;
        f32 level[most], middle[most];
        std::size_t entries;

        CRUMB_INLINE tables(const search_tables& t, const float* table) noexcept
            : level{}, middle{}, entries(t.entries) {
            const f32 own = I::load(table);
            CRUMB_UNROLL
            for (std::size_t i = 0; i < most; ++i) {
                const std::size_t at = Entries != 0 || i < entries ? i : 0;
                level[i] = I::set1(t.level[at]);
                middle[i] = I::set1(t.middle[at]);
                for (std::size_t k = 1; k < t.tables; ++k) {
                    const f32 border = I::set1(static_cast<float>(k) - 0.5f);
                    level[i] = I::select_less(own, border, level[i], I::set1(t.level[k * entries + at]));
                    middle[i] = I::select_less(own, border, middle[i], I::set1(t.middle[k * entries + at]));
                }
                if (Entries == 0 && i >= entries) // nothing is nearest to it
                    middle[i] = I::set1(__builtin_inff());
            }
        }
        CRUMB_INLINE f32 nearest(f32 x) const noexcept {
            f32 y = level[0];
            CRUMB_UNROLL
            for (std::size_t i = 1; i < most; ++i)
                y = I::select_less(middle[i], x, level[i], y);
            return y;
        }
    };

    /// Evenly spaced levels.
    struct even {
        f32 first, last, step;

        CRUMB_INLINE even(const search_tables& t, const float*) noexcept
            : first(I::set1(t.level[0])), last(I::set1(t.level[t.entries - 1])),
              step(I::set1(t.level[1] - t.level[0])) {}
        CRUMB_INLINE f32 nearest(f32 x) const noexcept {
            const f32 magic = I::set1(0x1.8p23f); // leaves no bits for fractions
            const f32 clamped = I::select_less(x, last, I::select_less(first, x, x, first), last);
            const f32 at = I::div(I::sub(clamped, first), step);
            return I::add(first, I::mul_rounded(step, I::sub(I::add(at, magic), magic)));
        }
    };

    static CRUMB_INLINE f32 inverse_of(f32 d) noexcept {
        const f32 inverse = I::div(I::set1(1.0f), d);
        return I::select_less(I::abs(inverse), I::set1(largest), inverse, I::zero());
    }

    template <class Tables>
    static CRUMB_NOINLINE void fit(const fit_args& p, const float* aw, float ww, std::size_t at) noexcept {
        const Tables levels(p.tables, p.table + at);
        f32 d = I::load(p.d + at), error = I::set1(ww);
        f32 running = I::set1(1.0f); // 1 in lanes whose scale may still change
        const f32 half = I::set1(0.5f);
        for (std::size_t s = 0; s < p.steps; ++s) {
            const f32 inverse = I::div(I::set1(1.0f), d);
            f32 wv = I::zero(), vv = I::zero();
            for (std::size_t i = 0; i < inputs; ++i) {
                const f32 v = levels.nearest(I::mul(I::set1(p.w[i]), inverse));
                wv = I::add(wv, I::mul_rounded(I::set1(aw[i]), v));
                vv = I::add(vv, I::mul_rounded(I::mul(I::set1(p.a[i]), v), v));
            }
            const f32 next = I::select_less(I::zero(), vv, I::div(wv, vv), I::zero());
            const f32 is_scale = I::select_less(I::set1(smallest), I::abs(next), running, I::zero());
            const f32 least = I::max(I::zero(), I::sub(I::set1(ww), I::mul_rounded(next, wv)));
            error = I::select_less(half, is_scale, least, error);
            const f32 change = I::abs(I::sub(next, d)), still = I::mul(I::set1(1e-4f), I::abs(next));
            d = I::select_less(half, is_scale, next, d);
            running = I::select_less(change, still, I::zero(), is_scale);
        }
        I::store(p.d + at, d);
        I::store(p.error + at, error);
    }

    /// Inputs in blocks of eight: their targets stay in registers, and what they add to later ones is added
    /// at once.
    template <class Tables>
    static CRUMB_NOINLINE void evaluate(const evaluate_args& p, std::size_t at) noexcept {
        constexpr std::size_t block = 8;
        const Tables levels(p.tables, p.table + at);
        const f32 d = I::load(p.d + at), inverse = inverse_of(d);
        f32 c[inputs];
        f32 loss = I::zero();
        CRUMB_UNROLL
        for (std::size_t i = 0; i < inputs; ++i)
            c[i] = I::set1(p.target[i]);
        for (std::size_t first = 0; first < inputs; first += block) {
            f32 own[block], e[block];
            CRUMB_UNROLL
            for (std::size_t i = 0; i < block; ++i)
                own[i] = c[first + i];
            const float* mix = p.mix == nullptr ? nullptr : p.mix + first * inputs + first;
            CRUMB_UNROLL
            for (std::size_t i = 0; i < block; ++i) {
                const f32 v = levels.nearest(I::mul(own[i], inverse));
                const f32 q = I::mul_rounded(d, v);
                const f32 r = I::sub(own[i], q);
                loss = I::add(loss, I::mul_rounded(I::mul(I::set1(p.weight[first + i]), r), r));
                I::store(p.value + (first + i) * search_lanes + at, v);
                e[i] = I::sub(I::set1(p.own[first + i]), q);
                if (p.mix == nullptr)
                    continue;
                CRUMB_UNROLL
                for (std::size_t j = i + 1; j < block; ++j)
                    own[j] = I::add(own[j], I::mul_rounded(I::set1(mix[i * inputs + j]), e[i]));
            }
            if (p.mix == nullptr)
                continue;
            for (std::size_t j = block; first + j < inputs; ++j) {
                f32 sum = c[first + j];
                CRUMB_UNROLL
                for (std::size_t i = 0; i < block; ++i)
                    sum = I::add(sum, I::mul_rounded(I::set1(mix[i * inputs + j]), e[i]));
                c[first + j] = sum;
            }
        }
        I::store(p.loss + at, loss);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
