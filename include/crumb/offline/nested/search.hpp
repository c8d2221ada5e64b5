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

    /// Over these levels; `lambda` weighs the precisions' errors.
    nested_search(const nested_levels& l, const precision_weights& lambda,
                  const dispatch::weight_functions& functions, const search_options& options = {})
        : levels_(l), lambda_(lambda), functions_(functions), options_(options),
          low_(levels_at(l, l.seed), functions, options), high_(levels_at(l, l.parent), functions, options) {
        for (std::size_t i = 0; i < l.levels.size(); ++i)
            level_[i] = l.levels[i];
    }

    /// The levels.
    const nested_levels& levels() const noexcept { return levels_; }
    /// Weight of a precision's error.
    float lambda(int bits) const noexcept { return lambda_[slot(bits)]; }
    /// The index of a precision in arrays of all.
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
        for (std::size_t round = 1; round < options_.rounds && best.scale.d != 0; ++round) {
            const auto& factors = round == 1 ? group_search::wide_factors : group_search::narrow_factors;
            const std::array<float, 2> around = {best.scale.d, l.second};
            l.count = 0;
            for (const float d : around)
                for (const float f : factors)
                    if (d != 0)
                        l.add(d * f);
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
    /// Replaces `best` by better candidates.
    void evaluate(const nested_problem& p, lane_set& l, nested_choice& best) const {
        alignas(64) float value[group_size][lanes], loss[lanes], d[lanes];
        std::fill_n(d, lanes, 1.0f);
        for (std::size_t n = 0; n < l.count; ++n)
            d[n] = l.scale[n].d;
        kernel::nested_args args;
        args.seed = levels_.seed;
        args.parent = levels_.parent;
        for (int bits = levels_.seed; bits <= levels_.parent; ++bits) {
            const auto at = static_cast<std::size_t>(bits - levels_.seed);
            args.level[at] = level_.data() + nested_levels::first_of(bits);
            args.lambda[at] = lambda_[slot(bits)];
            args.target[at] = p.target[slot(bits)];
            args.own[at] = p.own[slot(bits)];
        }
        args.weight = p.weight;
        args.mix = p.mix;
        args.count = l.count;
        args.d = d;
        args.loss = loss;
        args.value = &value[0][0];
        functions_.evaluate_nested(args);
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
                best.code[i] = high_.index(0, value[i][chosen]);
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

    nested_levels levels_;
    precision_weights lambda_;
    const dispatch::weight_functions& functions_;
    search_options options_;
    group_search low_, high_;
    std::array<float, std::tuple_size_v<decltype(nested_levels::levels)>> level_ = {};
};

} // namespace crumb::inline CRUMB_ABI
