// The best scale and codes for one group of nested weights, for all precisions together.
#pragma once

#include <crumb/format/nested_levels.hpp>
#include <crumb/offline/weights/group_search.hpp>

namespace crumb::inline CRUMB_ABI {

/// Number of precisions of nested weights.
inline constexpr std::size_t nested_precisions = max_nested_bits - min_nested_bits + 1;

/// Weights of the squared errors of 2, 3 and 4 bits; only ratios matter, and precisions that are not stored
/// are ignored. A bit more divides the error by about 4.
using precision_weights = std::array<float, nested_precisions>;
inline constexpr precision_weights even_precisions = {1, 4, 16};

/// Refuses weights of stored precisions that are not finite and positive.
inline status check_precision_weights(const precision_weights& lambda, int seed, int parent) noexcept {
    for (int p = seed; p <= parent; ++p)
        if (const float l = lambda[static_cast<std::size_t>(p - min_nested_bits)]; !(l > 0 && l < 1e12f))
            return status::error(errc::invalid_argument, "nested weights: %d bits count %g", p, double{l});
    return {};
}

/// The table of one precision as a set of levels, with half scales of either sign.
inline level_set levels_at(const nested_levels& l, int bits) noexcept {
    level_set s;
    s.entries = l.table(bits).size();
    std::copy(l.table(bits).begin(), l.table(bits).end(), s.levels.begin());
    return s;
}

/// One group as a least-squares problem: a `group_problem` per precision p, with common weight and mix, and
/// one scale and one set of codes for all. The loss is
///     sum_p lambda_p sum_i weight[i] (c_pi - d T_p[code_i >> (parent - p)])^2.
/// Element 0 belongs to 2 bits; elements not stored may be null.
struct nested_problem {
    std::array<const float*, nested_precisions> target = {}, own = {};
    const float* weight = nullptr;
    const float* mix = nullptr;
};

/// The choice for a group.
struct nested_choice {
    stored_scale scale;
    float error = std::numeric_limits<float>::infinity();
    std::array<std::uint8_t, group_size> code = {};
};

/// Searches groups for one set of nested levels, which are valid.
class nested_search {
  public:
    static constexpr std::size_t lanes = group_search::lanes;

    nested_search(const nested_levels& l, const precision_weights& lambda,
                  const dispatch::weight_functions& functions, const search_options& options = {})
        : levels_(l), lambda_(lambda), options_(options), low_(levels_at(l, l.seed), functions, options),
          high_(levels_at(l, l.parent), functions, options), evaluate_(evaluator(l)) {
        for (std::size_t i = 0; i < l.levels.size(); ++i)
            level_[i] = l.levels[i];
    }

    const nested_levels& levels() const noexcept { return levels_; }
    float lambda(int bits) const noexcept { return lambda_[slot(bits)]; }
    static constexpr std::size_t slot(int bits) noexcept {
        return static_cast<std::size_t>(bits - min_nested_bits);
    }

    /// Evaluates the best scales of the highest and of the lowest precision alone, then, round by
    /// round, scales near the best.
    nested_choice solve(const nested_problem& p) const {
        nested_choice best;
        lane_set l;
        group_search::candidates high, low;
        const std::size_t highs = high_.propose(p.target[slot(levels_.parent)], p.weight, high);
        const std::size_t lows =
            levels_.seed == levels_.parent ? 0 : low_.propose(p.target[slot(levels_.seed)], p.weight, low);
        for (std::size_t i = 0; i < lanes; ++i) {
            if (i < highs)
                l.add(high[i].d);
            if (i < lows)
                l.add(low[i].d);
        }
        if (l.count == 0)
            l.add(0);
        evaluate(p, l, best);
        static constexpr std::array<float, lanes / 2> near = {0.88f, 0.93f, 0.96f, 0.98f,
                                                              1.02f, 1.04f, 1.07f, 1.12f};
        for (std::size_t round = 1; round < options_.rounds && best.scale.d != 0; ++round) {
            const float width = round == 1 ? 1.0f : 0.4f;
            const std::array<float, 2> around = {best.scale.d, l.second};
            l.count = 0;
            for (const float d : around)
                for (const float f : near)
                    if (d != 0)
                        l.add(d * (1.0f + (f - 1.0f) * width));
            evaluate(p, l, best);
        }
        return best;
    }

    /// Evaluates one scale.
    nested_choice evaluate(const nested_problem& p, half scale) const {
        nested_choice best;
        lane_set l;
        l.scale[l.count++] = {to_float(scale), scale.bits};
        evaluate(p, l, best);
        return best;
    }

  private:
    /// Candidates on the grid, side by side.
    struct lane_set {
        std::size_t count = 0;
        std::array<stored_scale, lanes> scale;
        float second = 0; ///< the best of the other sign than the overall best

        void add(float d) {
            if (count == lanes)
                return;
            const stored_scale s = nearest_half_scale(d, 0, 0);
            for (std::size_t i = 0; i < count; ++i)
                if (scale[i].bits == s.bits)
                    return;
            scale[count++] = s;
        }
    };
    using row = float[lanes];
    using evaluator_type = void (nested_search::*)(const nested_problem&, const lane_set&, float*,
                                                   std::uint8_t*) const;

    static evaluator_type evaluator(const nested_levels& l) noexcept {
        switch (10 * l.seed + l.parent) {
        case 22:
            return &nested_search::run<2, 2>;
        case 23:
            return &nested_search::run<2, 3>;
        case 33:
            return &nested_search::run<3, 3>;
        case 34:
            return &nested_search::run<3, 4>;
        case 44:
            return &nested_search::run<4, 4>;
        default:
            return &nested_search::run<2, 4>;
        }
    }

    /// Replaces `best` by better candidates.
    void evaluate(const nested_problem& p, lane_set& l, nested_choice& best) const {
        alignas(64) row loss = {};
        alignas(64) std::uint8_t code[group_size][lanes];
        (this->*evaluate_)(p, l, loss, &code[0][0]);
        std::size_t chosen = lanes;
        for (std::size_t n = 0; n < l.count; ++n) {
            if (loss[n] < best.error) {
                best.error = loss[n];
                chosen = n;
            }
        }
        if (chosen < lanes) {
            best.scale = l.scale[chosen];
            for (std::size_t i = 0; i < group_size; ++i)
                best.code[i] = code[i][chosen];
        }
        l.second = 0;
        float second = std::numeric_limits<float>::infinity();
        for (std::size_t n = 0; n < l.count; ++n) {
            if (n != chosen && loss[n] < second && l.scale[n].d * best.scale.d < 0) {
                second = loss[n];
                l.second = l.scale[n].d;
            }
        }
    }

    /// Codes of one input at all scales. A code's loss is that of its level at the highest precision plus
    /// those of its prefixes, so that of two codes with a common prefix one is dropped before the prefix's
    /// own loss is added.
    template <int Seed, int Parent, std::size_t Precisions = Parent - Seed + 1>
    void best_codes(const row (&x)[Precisions], row& code, row (&y)[Precisions]) const {
        constexpr std::size_t leaves = std::size_t{1} << Parent;
        alignas(64) row cost[leaves], at[leaves];
        for (std::size_t q = 0; q < leaves; ++q) {
            const float level = level_[nested_levels::first_of(Parent) + q], lambda = lambda_[slot(Parent)];
            for (std::size_t n = 0; n < lanes; ++n) {
                const float r = x[Precisions - 1][n] - level;
                cost[q][n] = lambda * (r * r);
                at[q][n] = static_cast<float>(q);
            }
        }
        for (int bits = Parent - 1; bits >= Seed; --bits) {
            const float lambda = lambda_[slot(bits)];
            const auto& own = x[static_cast<std::size_t>(bits - Seed)];
            for (std::size_t q = 0; q < std::size_t{1} << bits; ++q) {
                const float level = level_[nested_levels::first_of(bits) + q];
                alignas(64) row c, a;
                for (std::size_t n = 0; n < lanes; ++n) {
                    const float r = own[n] - level;
                    const bool upper = cost[2 * q + 1][n] < cost[2 * q][n];
                    c[n] = (upper ? cost[2 * q + 1][n] : cost[2 * q][n]) + lambda * (r * r);
                    a[n] = upper ? at[2 * q + 1][n] : at[2 * q][n];
                }
                std::copy_n(c, lanes, cost[q]);
                std::copy_n(a, lanes, at[q]);
            }
        }
        alignas(64) row min, found;
        std::copy_n(cost[0], lanes, min);
        std::copy_n(at[0], lanes, found);
        for (std::size_t q = 1; q < std::size_t{1} << Seed; ++q) {
            for (std::size_t n = 0; n < lanes; ++n) {
                const bool better = cost[q][n] < min[n];
                found[n] = better ? at[q][n] : found[n];
                min[n] = better ? cost[q][n] : min[n];
            }
        }
        std::copy_n(found, lanes, code);
        for (int bits = Seed; bits <= Parent; ++bits)
            for (std::size_t n = 0; n < lanes; ++n)
                y[bits - Seed][n] = level_[nested_levels::first_of(bits) +
                                           (static_cast<std::size_t>(found[n]) >> (Parent - bits))];
    }

    /// Runs through the inputs once for all lanes.
    template <int Seed, int Parent>
    void run(const nested_problem& p, const lane_set& l, float* losses, std::uint8_t* codes) const {
        constexpr std::size_t precisions = Parent - Seed + 1;
        alignas(64) row c[precisions][group_size];
        alignas(64) row inverse = {}, d = {}, loss = {};
        for (std::size_t n = 0; n < l.count; ++n) {
            d[n] = l.scale[n].d;
            inverse[n] = d[n] != 0 && std::isfinite(1.0f / d[n]) ? 1.0f / d[n] : 0.0f;
        }
        for (std::size_t s = 0; s < precisions; ++s)
            for (std::size_t i = 0; i < group_size; ++i)
                for (std::size_t n = 0; n < lanes; ++n)
                    c[s][i][n] = p.target[slot(Seed) + s][i];
        for (std::size_t i = 0; i < group_size; ++i) {
            alignas(64) row x[precisions], y[precisions], code, e;
            for (std::size_t s = 0; s < precisions; ++s)
                for (std::size_t n = 0; n < lanes; ++n)
                    x[s][n] = c[s][i][n] * inverse[n];
            best_codes<Seed, Parent>(x, code, y);
            for (std::size_t n = 0; n < lanes; ++n)
                codes[i * lanes + n] = static_cast<std::uint8_t>(code[n]);
            for (std::size_t s = 0; s < precisions; ++s) {
                const float weight = lambda_[slot(Seed) + s] * p.weight[i];
                const float own = p.own[slot(Seed) + s][i];
                for (std::size_t n = 0; n < lanes; ++n) {
                    const float q = d[n] * y[s][n];
                    const float r = c[s][i][n] - q;
                    loss[n] += weight * (r * r);
                    e[n] = own - q;
                }
                if (p.mix == nullptr)
                    continue;
                for (std::size_t j = i + 1; j < group_size; ++j) {
                    const float m = p.mix[i * group_size + j];
                    for (std::size_t n = 0; n < lanes; ++n)
                        c[s][j][n] += m * e[n];
                }
            }
        }
        std::copy_n(loss, lanes, losses);
    }

    nested_levels levels_;
    precision_weights lambda_;
    search_options options_;
    group_search low_, high_;
    evaluator_type evaluate_;
    std::array<float, std::tuple_size_v<decltype(nested_levels::levels)>> level_ = {};
};

} // namespace crumb::inline CRUMB_ABI
