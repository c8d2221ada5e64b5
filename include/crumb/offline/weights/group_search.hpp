// The best scale, table and indices for one group of weights.
#pragma once

#include <crumb/offline/weights/level_set.hpp>

namespace crumb::inline CRUMB_ABI {

/// Effort of the search for scales.
struct search_options {
    std::size_t starts = 3; ///< scales that least squares begins from, per table and sign
    std::size_t steps = 2;  ///< of least squares from each start
    std::size_t rounds = 2; ///< rounds of `group_search::lanes` candidates that are evaluated exactly
};

/// One group as a least-squares problem: index after index, the error of input i is
///     weight[i] (c_i - d level)^2,   c_i = target[i] + sum over j < i of mix[32 j + i] (own[j] - d level_j),
/// which with weight = diag(R)^2 and mix = R / diag(R) is e^T H e, H = R R^T, R upper triangular. Without
/// `mix` inputs are independent. All arrays have 32 elements; surplus ones have weight, target, own and mix
/// 0.
struct group_problem {
    const float* target = nullptr;
    const float* own = nullptr;
    const float* weight = nullptr;
    const float* mix = nullptr;
};

/// The choice for a group.
struct group_choice {
    stored_scale scale;
    unsigned selector = 0;
    float error = std::numeric_limits<float>::infinity();
    std::array<float, group_size> value = {}; ///< levels, as numbers
};

/// Searches groups for one level set.
class group_search {
  public:
    static constexpr std::size_t lanes = 16;
    /// A scale not yet on the format's grid, with its error as if inputs were independent.
    struct candidate {
        float d = 0;
        unsigned selector = 0;
        float error = 0;
    };
    using candidates = std::array<candidate, lanes>;

    explicit group_search(const level_set& s, const search_options& options = {})
        : set_(s), options_(options), even_(s.entries > 16) {
        for (std::size_t t = 0; t < s.tables(); ++t) {
            for (std::size_t i = 0; i < s.entries; ++i) {
                level_[t * s.entries + i] = s.table(t)[i];
                if (i > 0)
                    middle_[t * s.entries + i] =
                        0.5f * (static_cast<float>(s.table(t)[i]) + static_cast<float>(s.table(t)[i - 1]));
                widest_[t] = std::max(widest_[t], std::fabs(static_cast<float>(s.table(t)[i])));
            }
        }
    }

    const level_set& set() const noexcept { return set_; }
    const search_options& options() const noexcept { return options_; }

    /// The candidates of smallest error, best first, from alternating nearest level and least-squares scale.
    /// Returns their number, 0 for a group of zeros.
    std::size_t propose(const float* w, const float* weight, candidates& out) const {
        float max = 0;
        for (std::size_t i = 0; i < group_size; ++i)
            max = std::max(max, weight[i] > 0 ? std::fabs(w[i]) : 0.0f);
        if (max < std::numeric_limits<float>::min())
            return 0;
        // Coarse levels clip the largest weight, finer ones less.
        const float min = set_.entries <= 4    ? 0.4f
                          : set_.entries <= 8  ? 0.6f
                          : set_.entries <= 16 ? 0.75f
                                               : 0.95f;
        std::size_t found = 0;
        for (unsigned t = 0; t < set_.tables(); ++t) {
            for (std::size_t s = 0; s < 2 * options_.starts; ++s) {
                const std::size_t step = s / 2;
                const float part = options_.starts < 2 ? 1.0f
                                                       : 1.0f - (1.0f - min) * static_cast<float>(step) /
                                                                    static_cast<float>(options_.starts - 1);
                candidate c{(s % 2 == 0 ? part : -part) * max / widest_[t], t, 0};
                converge(w, weight, c, options_.steps);
                found = insert(out, found, c);
            }
        }
        return found;
    }

    /// The nearest scale that the format can store. `exponent` is used by `scale_kind::byte` only.
    stored_scale snap(float d, unsigned selector, int exponent) const noexcept {
        return set_.scales == scale_kind::half
                   ? nearest_half_scale(d, selector, set_.selector_bits)
                   : nearest_byte_scale(d, selector, set_.selector_bits, exponent);
    }

    /// Solves a group: evaluates `found` candidates and then, round by round, scales near the best.
    group_choice solve(const group_problem& p, const candidates& proposed, std::size_t found,
                       int exponent) const {
        group_choice best;
        lane_set l;
        l.count = 0;
        if (found == 0)
            l.add(snap(0, 0, exponent), 0);
        for (std::size_t i = 0; i < found; ++i)
            l.add(snap(proposed[i].d, proposed[i].selector, exponent), proposed[i].selector);
        evaluate(p, l, best);
        static constexpr std::array<float, lanes / 2> near = {0.88f, 0.93f, 0.96f, 0.98f,
                                                              1.02f, 1.04f, 1.07f, 1.12f};
        for (std::size_t round = 1; round < options_.rounds && found != 0; ++round) {
            const float width = round == 1 ? 1.0f : 0.4f;
            const float d = best.scale.d;
            const unsigned selector = best.selector;
            l.count = 0;
            for (const float f : near)
                l.add(snap(d * (1.0f + (f - 1.0f) * width), selector, exponent), selector);
            if (l.second != 0)
                for (const float f : near)
                    l.add(snap(l.second * (1.0f + (f - 1.0f) * width), l.second_selector, exponent),
                          l.second_selector);
            evaluate(p, l, best);
        }
        return best;
    }

    /// Evaluates one scale.
    group_choice evaluate(const group_problem& p, stored_scale scale, unsigned selector) const {
        group_choice best;
        lane_set l;
        l.count = 0;
        l.add(scale, selector);
        evaluate(p, l, best);
        return best;
    }

    /// The index of a level that `solve` returned.
    std::uint8_t index(unsigned selector, float value) const noexcept {
        const auto t = set_.table(selector);
        return static_cast<std::uint8_t>(
            std::lower_bound(t.begin(), t.end(), static_cast<std::int8_t>(value)) - t.begin());
    }

    /// Sums over a group at scale d with nearest levels v: error = sum a (w - d v)^2, wv = sum a w v,
    /// vv = sum a v^2.
    struct sums {
        float error = 0, wv = 0, vv = 0;
    };
    sums fit(const float* w, const float* a, float d, unsigned table, float* v) const noexcept {
        const float inverse = 1.0f / d;
        float x[group_size];
        for (std::size_t i = 0; i < group_size; ++i)
            x[i] = w[i] * inverse;
        nearest_in(x, table, v);
        float error[8] = {}, wv[8] = {}, vv[8] = {};
        for (std::size_t i = 0; i < group_size; i += 8) {
            for (std::size_t l = 0; l < 8; ++l) {
                const float e = w[i + l] - d * v[i + l];
                error[l] += a[i + l] * e * e;
                wv[l] += a[i + l] * w[i + l] * v[i + l];
                vv[l] += a[i + l] * v[i + l] * v[i + l];
            }
        }
        sums s;
        for (std::size_t l = 0; l < 8; ++l) {
            s.error += error[l];
            s.wv += wv[l];
            s.vv += vv[l];
        }
        return s;
    }

    /// Alternates nearest levels and d = wv / vv, at most `steps` times. The error is that of the last scale
    /// with the levels before it, which nearest ones can only lower.
    void converge(const float* w, const float* a, candidate& c, std::size_t steps) const noexcept {
        std::array<float, group_size> v;
        for (std::size_t i = 0; i < steps; ++i) {
            const sums s = fit(w, a, c.d, c.selector, v.data());
            c.error = s.error;
            const float next = s.vv > 0 ? s.wv / s.vv : 0.0f;
            if (!(std::fabs(next) > std::numeric_limits<float>::min()))
                return;
            c.error = std::max(0.0f, s.error - (s.wv - c.d * s.vv) * (next - c.d));
            const bool still = std::fabs(next - c.d) < 1e-4f * std::fabs(next);
            c.d = next;
            if (still)
                return;
        }
    }

  private:
    /// Candidates on the grid, side by side.
    struct lane_set {
        std::size_t count = 0;
        std::array<stored_scale, lanes> scale;
        std::array<unsigned, lanes> selector = {};
        float second = 0; ///< scale of the best with another table than the overall best
        unsigned second_selector = 0;

        void add(stored_scale s, unsigned table) {
            if (count == lanes)
                return;
            for (std::size_t i = 0; i < count; ++i)
                if (scale[i].bits == s.bits && selector[i] == table)
                    return;
            scale[count] = s;
            selector[count++] = table;
        }
    };

    static std::size_t insert(candidates& out, std::size_t found, const candidate& c) {
        for (std::size_t i = 0; i < found; ++i) {
            if (out[i].selector == c.selector && std::fabs(out[i].d - c.d) < 4e-3f * std::fabs(c.d)) {
                out[i].error = std::min(out[i].error, c.error);
                return found;
            }
        }
        if (found == lanes && out[lanes - 1].error <= c.error)
            return found;
        std::size_t at = found < lanes ? found++ : lanes - 1;
        for (; at > 0 && out[at - 1].error > c.error; --at)
            out[at] = out[at - 1];
        out[at] = c;
        return found;
    }

    void nearest_in(const float* x, unsigned table, float* v) const noexcept {
        const float* level = level_.data() + table * set_.entries;
        const float* middle = middle_.data() + table * set_.entries;
        if (even_) {
            const float first = level[0], last = level[set_.entries - 1], step = level[1] - level[0];
            for (std::size_t i = 0; i < group_size; ++i)
                v[i] = round_even(x[i], first, last, step);
            return;
        }
        std::array<float, group_size> y; // local, so that nothing aliases it
        y.fill(level[0]);
        for (std::size_t m = 1; m < set_.entries; ++m) {
            const float border = middle[m], value = level[m];
            for (std::size_t i = 0; i < group_size; ++i)
                y[i] = x[i] > border ? value : y[i];
        }
        std::copy(y.begin(), y.end(), v);
    }

    static float round_even(float x, float first, float last, float step) noexcept {
        constexpr float magic = 0x1.8p23f; // leaves no bits for fractions
        const float clamped = std::max(first, std::min(last, x));
        return first + step * (((clamped - first) / step + magic) - magic);
    }

    /// Runs through the inputs once for all lanes and keeps what is better than `best`.
    void evaluate(const group_problem& p, lane_set& l, group_choice& best) const {
        alignas(64) float c[group_size][lanes], v[group_size][lanes];
        alignas(64) float inverse[lanes] = {}, d[lanes] = {}, loss[lanes] = {};
        alignas(64) float level[16][lanes], middle[16][lanes];
        for (std::size_t n = 0; n < l.count; ++n) {
            d[n] = l.scale[n].d;
            inverse[n] = d[n] != 0 && std::isfinite(1.0f / d[n]) ? 1.0f / d[n] : 0.0f;
        }
        const std::size_t entries = set_.entries;
        if (!even_)
            for (std::size_t m = 0; m < entries; ++m)
                for (std::size_t n = 0; n < lanes; ++n) {
                    level[m][n] = level_[l.selector[n] * entries + m];
                    middle[m][n] = middle_[l.selector[n] * entries + m];
                }
        for (std::size_t i = 0; i < group_size; ++i)
            for (std::size_t n = 0; n < lanes; ++n)
                c[i][n] = p.target[i];
        const float first = level_[0], last = level_[entries - 1], step = level_[1] - level_[0];
        for (std::size_t i = 0; i < group_size; ++i) {
            alignas(64) float x[lanes], y[lanes];
            for (std::size_t n = 0; n < lanes; ++n)
                x[n] = c[i][n] * inverse[n];
            if (even_) {
                for (std::size_t n = 0; n < lanes; ++n)
                    y[n] = round_even(x[n], first, last, step);
            } else {
                for (std::size_t n = 0; n < lanes; ++n)
                    y[n] = level[0][n];
                for (std::size_t m = 1; m < entries; ++m)
                    for (std::size_t n = 0; n < lanes; ++n)
                        y[n] = x[n] > middle[m][n] ? level[m][n] : y[n];
            }
            alignas(64) float e[lanes];
            for (std::size_t n = 0; n < lanes; ++n) {
                const float q = d[n] * y[n];
                const float r = c[i][n] - q;
                v[i][n] = y[n];
                loss[n] += p.weight[i] * r * r;
                e[n] = p.own[i] - q;
            }
            if (p.mix == nullptr)
                continue;
            for (std::size_t j = i + 1; j < group_size; ++j) {
                const float m = p.mix[i * group_size + j];
                for (std::size_t n = 0; n < lanes; ++n)
                    c[j][n] += m * e[n];
            }
        }
        std::size_t chosen = lanes;
        for (std::size_t n = 0; n < l.count; ++n) {
            if (loss[n] < best.error) {
                best.error = loss[n];
                chosen = n;
            }
        }
        if (chosen < lanes) {
            best.scale = l.scale[chosen];
            best.selector = l.selector[chosen];
            for (std::size_t i = 0; i < group_size; ++i)
                best.value[i] = v[i][chosen];
        }
        l.second = 0;
        float second = std::numeric_limits<float>::infinity();
        for (std::size_t n = 0; n < l.count; ++n) {
            if (n != chosen && loss[n] < second &&
                (l.selector[n] != best.selector || l.scale[n].d * best.scale.d < 0)) {
                second = loss[n];
                l.second = l.scale[n].d;
                l.second_selector = l.selector[n];
            }
        }
    }

    level_set set_;
    search_options options_;
    bool even_;
    std::array<float, level_set::max_levels> level_ = {}, middle_ = {};
    std::array<float, 16> widest_ = {};
};

} // namespace crumb::inline CRUMB_ABI
