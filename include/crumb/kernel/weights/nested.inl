// Codes that several precisions share: one group at many scales, and code by code. Loops: registers > inputs,
// columns > rows.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct nested_run<I> {
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = I::lanes;
    static constexpr std::size_t inputs = 32; ///< of a group

    static void evaluate(const nested_args& p) noexcept {
        for (std::size_t at = 0; at < p.count; at += lanes) {
            switch (10 * p.seed + p.parent) {
            case 22:
                evaluate<2, 2>(p, at);
                break;
            case 23:
                evaluate<2, 3>(p, at);
                break;
            case 33:
                evaluate<3, 3>(p, at);
                break;
            case 34:
                evaluate<3, 4>(p, at);
                break;
            case 44:
                evaluate<4, 4>(p, at);
                break;
            default:
                evaluate<2, 4>(p, at);
            }
        }
    }

    static CRUMB_NOINLINE void fit(const nested_fit_args& p) noexcept {
        const f32 least = I::set1(0x1p-126f);
        for (std::size_t at = 0; at < p.count; at += lanes) {
            f32 d = I::load(p.d + at), loss = I::zero();
            for (std::size_t step = 0; step < p.steps; ++step) {
                const f32 inverse = I::div(I::set1(2.0f), d);
                f32 sum = I::zero(), square = I::zero();
                for (std::size_t i = 0; i < inputs; ++i) {
                    const f32 x = I::mul(I::set1(p.w[i]), inverse);
                    f32 s = I::set1(p.s[0]), q = I::set1(p.q[0]);
                    f32 cost = I::sub(q, I::mul_rounded(x, s));
                    for (std::size_t code = 1; code < p.codes; ++code) {
                        const f32 next_s = I::set1(p.s[code]), next_q = I::set1(p.q[code]);
                        const f32 now = I::sub(next_q, I::mul_rounded(x, next_s));
                        s = I::select_less(now, cost, next_s, s);
                        q = I::select_less(now, cost, next_q, q);
                        cost = I::min(now, cost);
                    }
                    sum = I::add(sum, I::mul_rounded(I::set1(p.a[i] * p.w[i]), s));
                    square = I::add(square, I::mul_rounded(I::set1(p.a[i]), q));
                }
                // A sum of zeros leaves the scale as it is.
                const f32 next =
                    I::select_less(I::zero(), square, I::div(sum, I::max(square, least)), I::zero());
                const f32 size = I::abs(next);
                loss = I::select_less(least, size, I::sub(I::zero(), I::mul_rounded(sum, next)), loss);
                d = I::select_less(least, size, next, d);
            }
            I::store(p.d + at, d);
            I::store(p.loss + at, loss);
        }
    }

    static void descend(const descent_args& p) noexcept {
        for (std::size_t r = 0; r < p.row_count; r += rows_at_once) {
            descent_row* const rows = p.rows + r;
            const std::size_t count = r + rows_at_once < p.row_count ? rows_at_once : p.row_count - r;
            for (std::size_t first = 0; first < p.size; first += inputs) {
                changes all[rows_at_once];
                for (std::size_t i = first; i < first + inputs; ++i) {
                    if (p.used[i] == 0)
                        continue;
                    for (std::size_t own = 0; own < count; ++own)
                        choose(p, rows[own], i, all[own]);
                }
                follow(p, rows, count, first, all);
            }
        }
    }

  private:
    static constexpr std::size_t rows_at_once = 4; ///< that read the same columns of H one after another
    /// What a row's levels at every precision have changed by in a group of columns.
    struct changes {
        std::size_t count[nested_tables] = {};
        std::size_t column[nested_tables][inputs];
        float by[nested_tables][inputs];
    };

    static CRUMB_INLINE float product(float a, float b) noexcept {
        float x = a * b;
        CRUMB_ROUND_PRODUCT(x);
        return x;
    }

    /// The code of least loss at every precision's x: y are its levels. A code's loss is that of its level at
    /// the highest precision plus those of its prefixes, so that of two codes with a common prefix one is
    /// dropped before the prefix's own loss is added.
    template <int Seed, int Parent>
    static CRUMB_INLINE void best(const nested_args& p, const f32* x, f32* y) noexcept {
        constexpr std::size_t precisions = Parent - Seed + 1, leaves = std::size_t{1} << Parent;
        f32 cost[leaves], level[precisions][leaves];
        CRUMB_UNROLL
        for (std::size_t q = 0; q < leaves; ++q) {
            level[precisions - 1][q] = I::set1(p.level[precisions - 1][q]);
            const f32 r = I::sub(x[precisions - 1], level[precisions - 1][q]);
            cost[q] = I::mul_rounded(I::set1(p.lambda[precisions - 1]), I::mul(r, r));
        }
        for (std::size_t s = precisions - 1; s-- > 0;) {
            CRUMB_UNROLL
            for (std::size_t q = 0; q < std::size_t{1} << (Seed + static_cast<int>(s)); ++q) {
                const f32 low = cost[2 * q], high = cost[2 * q + 1];
                CRUMB_UNROLL
                for (std::size_t t = s + 1; t < precisions; ++t)
                    level[t][q] = I::select_less(high, low, level[t][2 * q + 1], level[t][2 * q]);
                level[s][q] = I::set1(p.level[s][q]);
                const f32 r = I::sub(x[s], level[s][q]);
                cost[q] = I::add(I::select_less(high, low, high, low),
                                 I::mul_rounded(I::set1(p.lambda[s]), I::mul(r, r)));
            }
        }
        f32 min = cost[0];
        CRUMB_UNROLL
        for (std::size_t s = 0; s < precisions; ++s)
            y[s] = level[s][0];
        CRUMB_UNROLL
        for (std::size_t q = 1; q < std::size_t{1} << Seed; ++q) {
            CRUMB_UNROLL
            for (std::size_t s = 0; s < precisions; ++s)
                y[s] = I::select_less(cost[q], min, level[s][q], y[s]);
            min = I::select_less(cost[q], min, cost[q], min);
        }
    }

    template <int Seed, int Parent>
    static CRUMB_NOINLINE void evaluate(const nested_args& p, std::size_t at) noexcept {
        constexpr std::size_t precisions = Parent - Seed + 1;
        const f32 d = I::load(p.d + at);
        f32 inverse = I::div(I::set1(1.0f), d);
        inverse = I::select_less(I::abs(inverse), I::set1(0x1.fffffep127f), inverse, I::zero());
        f32 c[precisions][inputs], loss = I::zero();
        for (std::size_t s = 0; s < precisions; ++s)
            for (std::size_t i = 0; i < inputs; ++i)
                c[s][i] = I::set1(p.target[s][i]);
        for (std::size_t i = 0; i < inputs; ++i) {
            f32 x[precisions], y[precisions];
            CRUMB_UNROLL
            for (std::size_t s = 0; s < precisions; ++s)
                x[s] = I::mul(c[s][i], inverse);
            best<Seed, Parent>(p, x, y);
            I::store(p.value + i * search_lanes + at, y[precisions - 1]);
            CRUMB_UNROLL
            for (std::size_t s = 0; s < precisions; ++s) {
                const f32 q = I::mul_rounded(d, y[s]);
                const f32 r = I::sub(c[s][i], q);
                loss = I::add(loss, I::mul_rounded(I::set1(p.lambda[s] * p.weight[i]), I::mul(r, r)));
                const f32 e = I::sub(I::set1(p.own[s][i]), q);
                if (p.mix == nullptr)
                    continue;
                for (std::size_t j = i + 1; j < inputs; ++j)
                    c[s][j] = I::add(c[s][j], I::mul_rounded(I::set1(p.mix[i * inputs + j]), e));
            }
        }
        I::store(p.loss + at, loss);
    }

    /// Another code q of column i makes the loss sum_p lambda_p H_ii (q_pi + s_pi / H_ii - d T_p[q])^2 and
    /// what does not depend on q. Slopes follow inside the group only.
    static CRUMB_NOINLINE void choose(const descent_args& p, descent_row& row, std::size_t i,
                                      changes& all) noexcept {
        const float d = row.scale[i / inputs];
        if (d == 0)
            return;
        const float* h = p.h + i * p.size;
        const float pull = 1.0f / (h[i] * d);
        const std::size_t now = row.code[i];
        float y[nested_tables], weight[nested_tables];
        for (std::size_t t = 0; t < nested_tables; ++t) {
            y[t] = p.level[t * nested_codes + now] + product(row.slope[t][i], pull);
            weight[t] = p.lambda[t] * h[i] * d * d;
        }
        const float* noise = nullptr;
        if (row.temperature != 0) {
            std::uint64_t z = row.random += 0x9e3779b97f4a7c15u;
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
            z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
            noise = p.noise + ((z ^ (z >> 31)) & p.noise_mask);
        }
        alignas(64) float cost[nested_codes];
        f32 least = I::set1(0x1.fffffep127f), sums[nested_codes / lanes];
        CRUMB_UNROLL
        for (std::size_t q = 0; q < nested_codes; q += lanes) {
            f32 sum = I::load(p.barred + q);
            CRUMB_UNROLL
            for (std::size_t t = 0; t < nested_tables; ++t) {
                const f32 r = I::sub(I::set1(y[t]), I::load(p.level + t * nested_codes + q));
                sum = I::add(sum, I::mul_rounded(I::set1(weight[t]), I::mul(r, r)));
            }
            if (noise != nullptr)
                sum = I::add(sum, I::mul_rounded(I::set1(row.temperature), I::load(noise + q)));
            I::store(cost + q, sum);
            sums[q / lanes] = sum;
            least = I::min(least, sum);
        }
        // The first code of the least loss, without a branch that no CPU foresees.
        const f32 min = I::set1(-I::maximum(I::sub(I::zero(), least)));
        f32 found = I::set1(nested_codes - 1.0f);
        CRUMB_UNROLL
        for (std::size_t q = 0; q < nested_codes; q += lanes)
            found = I::min(found, I::select_less(min, sums[q / lanes], found, I::load(code_numbers + q)));
        const auto next = static_cast<std::size_t>(-I::maximum(I::sub(I::zero(), found)));
        if (next == now || (noise == nullptr && !(cost[next] < cost[now] * (1 - 1e-6f))))
            return;
        row.code[i] = static_cast<std::uint8_t>(next);
        row.gain += cost[now] - cost[next];
        const std::size_t first = i - i % inputs;
        for (std::size_t t = 0; t < nested_tables; ++t) {
            const float x = d * (p.level[t * nested_codes + now] - p.level[t * nested_codes + next]);
            if (x == 0)
                continue;
            const std::size_t at = all.count[t]++;
            all.column[t][at] = i;
            all.by[t][at] = x;
            float* const s = row.slope[t];
            const f32 by = I::set1(x);
            CRUMB_UNROLL
            for (std::size_t j = 0; j < inputs; j += lanes)
                I::store(s + first + j,
                         I::add(I::load(s + first + j), I::mul_rounded(by, I::load(h + first + j))));
        }
    }

    /// Lets slopes outside the group that begins at column `first` follow what has changed in it, change by
    /// change.
    static CRUMB_NOINLINE void follow(const descent_args& p, descent_row* rows, std::size_t count,
                                      std::size_t first, const changes* all) noexcept {
        constexpr std::size_t registers = inputs / lanes;
        for (std::size_t j = 0; j < p.size; j += inputs) {
            if (j == first)
                continue;
            for (std::size_t r = 0; r < count; ++r)
                for (std::size_t t = 0; t < nested_tables; ++t) {
                    const std::size_t changed = all[r].count[t];
                    if (changed == 0)
                        continue;
                    float* const s = rows[r].slope[t] + j;
                    f32 sum[registers];
                    CRUMB_UNROLL
                    for (std::size_t v = 0; v < registers; ++v)
                        sum[v] = I::load(s + v * lanes);
                    for (std::size_t c = 0; c < changed; ++c) {
                        const float* const h = p.h + all[r].column[t][c] * p.size + j;
                        const f32 by = I::set1(all[r].by[t][c]);
                        CRUMB_UNROLL
                        for (std::size_t v = 0; v < registers; ++v)
                            sum[v] = I::add(sum[v], I::mul_rounded(by, I::load(h + v * lanes)));
                    }
                    CRUMB_UNROLL
                    for (std::size_t v = 0; v < registers; ++v)
                        I::store(s + v * lanes, sum[v]);
                }
        }
    }

    alignas(64) static constexpr float code_numbers[nested_codes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                                     8, 9, 10, 11, 12, 13, 14, 15};
};

} // namespace crumb::inline CRUMB_ABI::kernel
