// Training of nested codebooks: a table of int8 levels per precision, for a whole model.
#pragma once

#include <crumb/core/rounded.hpp>
#include <crumb/offline/common/alternation.hpp>
#include <crumb/offline/nested/search.hpp>
#include <crumb/offline/weights/codebook.hpp>

#include <algorithm>

namespace crumb::inline CRUMB_ABI {

/// Parameters of `train_nested`.
struct nested_training_options {
    int seed = min_nested_bits;                 ///< the lowest precision
    int parent = max_nested_bits;               ///< the highest
    precision_weights lambda = even_precisions; ///< weight of each precision's error
    std::size_t max_groups = 1u << 15;          ///< max groups; of more, a sample is drawn
    std::size_t max_rounds = 60;
    double tolerance = 2e-4; ///< training ends when the error falls by less than this share in a round
    std::uint64_t random_seed = 1;
    std::function<void(std::size_t done, std::size_t all)> progress = {}; ///< after every round
};

/// Trained tables, and their errors during training.
struct trained_nested {
    nested_levels levels;
    /// After each round: sum_p lambda_p sum a (w - q_p)^2 / sum_p lambda_p sum a w^2 over the sampled groups,
    /// scales taken as continuous; falls monotonically.
    std::vector<double> errors;
};

/// Trains nested codebooks. (1) The table of the lowest precision is trained first
/// (`train_codebooks`, one table). (2) Each precision above it splits every cell in two, by weighted 2-means
/// of the weights over their groups' scales: incremental upscaling as in Any-Precision LLM. (3) Alternating,
/// every group chooses scale, sign and codes for all precisions together, to lower sum_p lambda_p sum a (w -
/// d T_p[code >> (parent - p)])^2, and every level becomes sum a w d / sum a d^2 over its cell, until the
/// error stops falling. Tables are int8 in every round: distinct, ascending, with a largest magnitude of 127
/// over all precisions. a is the importance as for `train_codebooks`. Refuses precisions outside 2 to 4 bits,
/// lambda that is not finite and positive, NaN and infinity. Matrices of zeros only give evenly spaced
/// levels.
class nested_trainer {
  public:
    /// See `train_nested`.
    CRUMB_WHEN_CALLED static result<trained_nested>
    train(const group_samples& samples, const nested_training_options& o, const context& on = {}) {
        trained_nested out;
        out.levels = nested_levels::uniform(o.seed, o.parent);
        if (const status s = check_levels(out.levels); !s)
            return s;
        if (const status s = check_precision_weights(o.lambda, o.seed, o.parent); !s)
            return s;
        const auto functions = choose_weight_functions(on);
        if (!functions)
            return functions.error();
        nested_trainer t(o, **functions, samples.energy);
        for (const group_sample& g : samples.groups)
            t.samples_.push_back({g});
        t.put(out.levels, t.uniform());
        if (t.samples_.empty())
            return out;
        const auto seed = train_codebooks(samples,
                                          {.entries = std::size_t{1} << o.seed,
                                           .selector_bits = 0,
                                           .max_rounds = o.max_rounds,
                                           .tolerance = o.tolerance},
                                          on);
        if (!seed)
            return seed.error();
        t.put(out.levels, t.upscale(seed->levels));
        alternate(
            out.levels, out.errors, t.samples_, o, [&](const nested_levels& l) { return t.assign(l); },
            [&](const nested_levels& l) { return t.update(l); });
        return out;
    }

  private:
    static constexpr std::size_t codes = std::size_t{1} << max_nested_bits;
    static constexpr std::size_t all_levels = std::tuple_size_v<decltype(nested_levels::levels)>;
    using real_levels = std::array<double, all_levels>;

    struct group : group_sample {
        float d = 0;
    };
    /// Sums of a code: S = sum_p lambda_p T_p and Q = sum_p lambda_p T_p^2. With the same target w for all
    /// precisions, the error is sum a (L w^2 - 2 d w S + d^2 Q), L = sum lambda_p.
    struct code_sums {
        std::array<float, codes> s = {}, q = {};
        std::size_t count = 0;
        float widest = 0;
    };

    nested_trainer(const nested_training_options& o, const dispatch::weight_functions& functions,
                   double energy)
        : o_(o), functions_(functions), energy_(energy) {
        for (int p = o.seed; p <= o.parent; ++p)
            lambdas_ += double{lambda(p)};
    }

    float lambda(int bits) const noexcept { return o_.lambda[nested_search::slot(bits)]; }

    static real_levels uniform() {
        real_levels t = {};
        const auto even = nested_levels::uniform(min_nested_bits, max_nested_bits);
        for (std::size_t i = 0; i < all_levels; ++i)
            t[i] = even.levels[i];
        return t;
    }

    /// Writes the tables on the int8 grid, and 0 for precisions that do not exist. Returns the factor.
    double put(nested_levels& l, const real_levels& t) const {
        const double scale = 127 / widest(t);
        l.levels = {};
        for (int p = o_.seed; p <= o_.parent; ++p)
            put_on_int8_grid({t.data() + first(p), l.table(p).size()}, scale, l.table(p));
        return scale;
    }
    static constexpr std::size_t first(int bits) noexcept { return nested_levels::first_of(bits); }

    // ---- the first tables ----
    real_levels upscale(const level_set& seed) {
        struct point {
            double x, weight;
        };
        real_levels t = {};
        std::vector<std::vector<point>> cells(seed.entries);
        const group_search search(seed, functions_);
        for (group& g : samples_) {
            group_search::candidates c;
            if (search.propose(g.w.data(), g.a.data(), c) == 0)
                continue;
            g.d = c[0].d;
            for (std::size_t i = 0; i < g.size; ++i)
                cells[search.nearest(g.w[i], g.d, 0)].push_back(
                    {double{g.w[i]} / double{g.d}, double{g.a[i]} * double{g.d} * double{g.d}});
        }
        for (std::size_t q = 0; q < seed.entries; ++q)
            t[first(o_.seed) + q] = seed.levels[q];
        for (int p = o_.seed; p < o_.parent; ++p) {
            std::vector<std::vector<point>> next(2 * cells.size());
            for (std::size_t q = 0; q < cells.size(); ++q) {
                // A cell that has no two distinct weights keeps levels a little apart.
                const double middle = t[first(p) + q];
                std::array<double, 2> level = {middle - 1, middle + 1};
                double sum = 0, mean = 0, spread = 0;
                for (const point& a : cells[q]) {
                    sum += a.weight;
                    mean += rounded(a.weight * a.x);
                }
                mean = sum > 0 ? mean / sum : middle;
                for (const point& a : cells[q])
                    spread += rounded(a.weight * (a.x - mean) * (a.x - mean));
                spread = sum > 0 ? std::sqrt(spread / sum) : 0;
                if (spread > 0)
                    level = {mean - spread, mean + spread};
                for (int round = 0; round < 12 && spread > 0; ++round) {
                    std::array<double, 2> x = {}, weight = {};
                    for (const point& a : cells[q]) {
                        const std::size_t upper = 2 * a.x > level[0] + level[1];
                        x[upper] += rounded(a.weight * a.x);
                        weight[upper] += a.weight;
                    }
                    for (std::size_t i = 0; i < 2; ++i)
                        level[i] = weight[i] > 0 ? x[i] / weight[i] : level[i];
                }
                for (const point& a : cells[q])
                    next[2 * q + (2 * a.x > level[0] + level[1])].push_back(a);
                for (std::size_t i = 0; i < 2; ++i)
                    t[first(p + 1) + 2 * q + i] = level[i];
            }
            cells = std::move(next);
        }
        const double scale = 127 / widest(t);
        for (group& g : samples_)
            g.d = static_cast<float>(double{g.d} / scale);
        return t;
    }
    double widest(const real_levels& t) const {
        double max = 1e-30;
        for (std::size_t i = first(o_.seed); i < first(o_.parent + 1); ++i)
            max = std::max(max, std::fabs(t[i]));
        return max;
    }

    // ---- alternation ----
    code_sums sums_of(const nested_levels& l) const {
        code_sums c;
        c.count = std::size_t{1} << o_.parent;
        for (std::size_t q = 0; q < c.count; ++q) {
            for (int p = o_.seed; p <= o_.parent; ++p) {
                const float t = l.table(p)[q >> (o_.parent - p)];
                c.s[q] += rounded(lambda(p) * t);
                c.q[q] += rounded(lambda(p) * t * t);
                c.widest = std::max(c.widest, std::fabs(t));
            }
        }
        return c;
    }

    /// Every group chooses its scale, with its previous choice among the candidates; the others start from
    /// the largest weight at a part of the largest level. Returns the relative error.
    double assign(const nested_levels& l) {
        const code_sums c = sums_of(l);
        constexpr std::array<float, 7> parts = {1.0f, -1.0f, 0.85f, -0.85f, 0.7f, -0.7f, 0.55f};
        constexpr std::size_t steps = 4;
        alignas(64) std::array<float, kernel::search_lanes> d, loss;
        double all = 0;
        for (group& g : samples_) {
            float max = 0;
            for (std::size_t i = 0; i < g.size; ++i)
                max = std::max(max, g.a[i] > 0 ? std::fabs(g.w[i]) : 0.0f);
            // Lanes that are not in use are computed as well.
            d.fill(g.d != 0 ? g.d : max / c.widest);
            for (std::size_t i = 0; i < parts.size(); ++i)
                d[1 + i] = parts[i] * max / c.widest;
            functions_.fit_nested({c.s.data(), c.q.data(), c.count, g.w.data(), g.a.data(), 1 + parts.size(),
                                   d.data(), loss.data(), steps});
            const auto best = std::min_element(loss.begin(), loss.begin() + 1 + parts.size()) - loss.begin();
            g.d = d[static_cast<std::size_t>(best)];
            all += double{loss[static_cast<std::size_t>(best)]};
        }
        return 1 + all / (lambdas_ * energy_);
    }

    nested_levels update(const nested_levels& l) {
        const code_sums c = sums_of(l);
        std::array<double, codes> wd = {}, dd = {};
        for (const group& g : samples_) {
            for (std::size_t i = 0; i < g.size; ++i) {
                const double x = 2 * double{g.w[i]} / double{g.d};
                std::size_t best = 0;
                double min = std::numeric_limits<double>::infinity();
                for (std::size_t code = 0; code < c.count; ++code) {
                    if (const double cost = double{c.q[code]} - rounded(x * double{c.s[code]}); cost < min) {
                        min = cost;
                        best = code;
                    }
                }
                wd[best] += rounded(double{g.a[i]} * double{g.w[i]} * double{g.d});
                dd[best] += rounded(double{g.a[i]} * double{g.d} * double{g.d});
            }
        }
        real_levels t = {};
        for (int p = o_.seed; p <= o_.parent; ++p) {
            const std::size_t each = std::size_t{1} << (o_.parent - p);
            for (std::size_t q = 0; q < l.table(p).size(); ++q) {
                double sum = 0, weight = 0;
                for (std::size_t code = q * each; code < (q + 1) * each; ++code) {
                    sum += wd[code];
                    weight += dd[code];
                }
                t[first(p) + q] = weight > 0 ? sum / weight : static_cast<double>(l.table(p)[q]);
            }
            std::sort(t.begin() + static_cast<std::ptrdiff_t>(first(p)),
                      t.begin() + static_cast<std::ptrdiff_t>(first(p + 1)));
        }
        nested_levels next = l;
        const double scale = put(next, t);
        for (group& g : samples_)
            g.d = static_cast<float>(double{g.d} / scale);
        return next;
    }

    const nested_training_options& o_;
    const dispatch::weight_functions& functions_;
    double energy_ = 0, lambdas_ = 0;
    std::vector<group> samples_;
};

/// From samples that are drawn already, which `max_groups` and `random_seed` have no part in.
CRUMB_WHEN_CALLED result<trained_nested> train_nested(const group_samples& samples,
                                                      const nested_training_options& options = {},
                                                      const context& on = {}) {
    return nested_trainer::train(samples, options, on);
}
CRUMB_WHEN_CALLED result<trained_nested> train_nested(std::span<const training_matrix> matrices,
                                                      const nested_training_options& options = {},
                                                      const context& on = {}) {
    const auto samples = sample_groups(matrices, options.max_groups, options.random_seed);
    if (!samples)
        return samples.error();
    return nested_trainer::train(*samples, options, on);
}

} // namespace crumb::inline CRUMB_ABI
