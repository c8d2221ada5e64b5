// Weights of a part's tokens, rounded to planes of 7 bits. Loops: registers of tokens.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct pq_rounding<I> {
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = static_cast<std::size_t>(I::lanes);
    static constexpr float levels = static_cast<float>(pq_max);

    /// out = round(w / step); the sum of |w - step * out|, if it is to be counted.
    static CRUMB_INLINE float round(const float* w, std::size_t end, float step, std::int8_t* out,
                                    bool count) noexcept {
        const f32 by = I::set1(1 / step), unit = I::set1(step);
        f32 lost = I::zero();
        for (std::size_t t = 0; t < end; t += 32) {
            I::round_group(w + t, 1 / step, out + t);
            if (!count)
                continue;
            CRUMB_UNROLL
            for (std::size_t j = t; j < t + 32; j += lanes) {
                const f32 x = I::load(w + j);
                lost = I::add(lost, I::abs(I::sub(x, I::mul(nearest(I::mul(x, by)), unit))));
            }
        }
        return I::sum(lost);
    }
    /// high + low / 128 = w / step, as near as bytes of 7 bits come. The sum of what is left.
    static CRUMB_INLINE float round_down(const float* w, std::size_t end, float step, std::int8_t* high,
                                         std::int8_t* low) noexcept {
        const f32 half_step = I::set1(step / 2), by = I::set1(1 / step), unit = I::set1(step);
        const f32 fine_by = I::set1(128 / step), fine_unit = I::set1(step / 128);
        const f32 most = I::set1(step * (levels / 128));
        float down[32], fine[32];
        f32 lost = I::zero();
        for (std::size_t t = 0; t < end; t += 32) {
            CRUMB_UNROLL
            for (std::size_t j = 0; j < 32; j += lanes) {
                const f32 x = I::load(w + t + j), d = I::max(I::sub(x, half_step), I::zero());
                const f32 rest = I::sub(x, I::mul(nearest(I::mul(d, by)), unit));
                const f32 r = I::min(I::max(rest, I::zero()), most);
                I::store(down + j, d);
                I::store(fine + j, r);
                lost = I::add(lost, I::abs(I::sub(rest, I::mul(nearest(I::mul(r, fine_by)), fine_unit))));
            }
            I::round_group(down, 1 / step, high + t);
            I::round_group(fine, 128 / step, low + t);
        }
        return I::sum(lost);
    }
    /// As `round_group` rounds.
    static CRUMB_INLINE f32 nearest(f32 x) noexcept { return I::to_f32(I::round_to_i32(x)); }
};

} // namespace crumb::inline CRUMB_ABI::kernel
