// Training of codebooks: tables of int8 levels that serve a whole model.
#pragma once

#include <crumb/core/rounded.hpp>
#include <crumb/offline/common/alternation.hpp>
#include <crumb/offline/common/int8_grid.hpp>
#include <crumb/offline/weights/group_samples.hpp>
#include <crumb/offline/weights/group_search.hpp>

#include <functional>

namespace crumb::inline CRUMB_ABI {

/// Parameters of `train_codebooks`.
struct training_options {
    std::size_t entries = 4;              ///< levels per table: 2 to 16
    unsigned selector_bits = 2;           ///< 2^selector_bits tables
    scale_kind scales = scale_kind::half; ///< copied to the result; training takes scales as continuous
    /// Magnitude of each table's largest entry, at most 127; 0: 31 for up to 4 entries, which AVX2 multiplies
    /// faster, 127 for more.
    int largest = 0;
    std::size_t max_groups = 1u << 15; ///< max groups; of more, a sample is drawn
    std::size_t max_rounds = 60;
    double tolerance = 2e-4; ///< training ends when the error falls by less than this share in a round
    std::uint64_t seed = 1;
    std::function<void(std::size_t done, std::size_t all)> progress = {}; ///< after every round
};

/// Trained tables, and their errors during training.
struct trained_codebooks {
    level_set levels;
    /// After each round: sum a (w - q)^2 / sum a w^2 over the sampled groups; falls monotonically.
    std::vector<double> errors;
};

/// Trains codebooks in two phases. (1) Groups are scaled to a largest magnitude of 1, with the sign that
/// makes their third moment positive, sorted, and clustered (k-means on sorted values: their shapes), one
/// cluster per table. (2) Each cluster gets a table by weighted k-means on its values; then all groups choose
/// table, sign and scale d anew (d = sum a w t / sum a t^2) and levels become t = sum a w d / sum a d^2,
/// alternating until the weighted error sum a (w - d t)^2 stops falling. Tables are int8 in every round:
/// distinct, ascending, with a largest magnitude of `training_options::largest`. a is the importance, divided
/// by the matrix's mean a w^2, so that matrices count by their size. Refuses NaN and infinity. Matrices of
/// zeros only give evenly spaced levels.
class codebook_trainer {
  public:
    /// Trains a level set; `train_codebooks` checks the arguments.
    CRUMB_WHEN_CALLED static result<trained_codebooks>
    train(const group_samples& samples, const training_options& o, const context& on = {}) {
        if (o.entries < 2 || o.entries > 16 || o.selector_bits > 2)
            return status::error(errc::invalid_argument, "codebooks: %zu levels, %u selector bits", o.entries,
                                 o.selector_bits);
        if (o.largest != 0 && (o.largest > 127 || 2 * o.largest + 1 < static_cast<int>(o.entries)))
            return status::error(errc::invalid_argument, "codebooks: %zu levels of at most %d", o.entries,
                                 o.largest);
        const auto functions = choose_weight_functions(on);
        if (!functions)
            return functions.error();
        codebook_trainer t(o, **functions, samples);
        for (const group_sample& g : samples.groups)
            t.samples_.push_back({g, {}});
        trained_codebooks out;
        out.levels = t.initial();
        if (t.samples_.empty())
            return out;
        alternate(
            out.levels, out.errors, t.samples_, o, [&](const level_set& l) { return t.assign(l); },
            [&](const level_set& l) { return t.update(l); });
        return out;
    }

  private:
    struct group : group_sample {
        group_search::candidate now;
    };
    using shape = std::array<float, group_size>;

    codebook_trainer(const training_options& o, const dispatch::weight_functions& functions,
                     const group_samples& samples)
        : o_(o), functions_(functions), random_(samples.random), energy_(samples.energy),
          largest_(o.largest != 0   ? o.largest
                   : o.entries <= 4 ? 31
                                    : 127) {}

    level_set empty_set() const {
        level_set s;
        s.entries = o_.entries;
        s.selector_bits = o_.selector_bits;
        s.scales = o_.scales;
        return s;
    }

    /// Writes a table on the grid of integers: ascending, distinct. Returns the factor.
    double put(level_set& s, std::size_t table, std::array<double, 16> t) const {
        const std::span<double> level(t.data(), s.entries);
        double max = 1e-30;
        std::sort(level.begin(), level.end());
        for (const double x : level)
            max = std::max(max, std::fabs(x));
        const double scale = largest_ / max;
        put_on_int8_grid(level, scale, {s.levels.data() + table * s.entries, s.entries}, largest_);
        return scale;
    }

    // ---- phase 1: shapes ----
    static shape shape_of(const group& g) {
        float max = 0, cubes = 0;
        for (std::size_t i = 0; i < g.size; ++i)
            max = std::max(max, std::fabs(g.w[i]));
        shape sorted = {};
        for (std::size_t i = 0; i < g.size; ++i) {
            sorted[i] = g.w[i] / max;
            cubes += rounded(sorted[i] * sorted[i] * sorted[i]);
        }
        if (cubes < 0)
            for (std::size_t i = 0; i < g.size; ++i)
                sorted[i] = -sorted[i];
        std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(g.size));
        shape out;
        for (std::size_t i = 0; i < group_size; ++i)
            out[i] = sorted[i * g.size / group_size];
        return out;
    }
    static float distance(const shape& a, const shape& b) noexcept {
        float sum = 0;
        for (std::size_t i = 0; i < group_size; ++i)
            sum += rounded((a[i] - b[i]) * (a[i] - b[i]));
        return sum;
    }

    level_set initial() {
        level_set s = empty_set();
        const std::size_t tables = s.tables();
        std::array<double, 16> even = {};
        for (std::size_t i = 0; i < s.entries; ++i)
            even[i] = 2.0 * static_cast<double>(i) / static_cast<double>(s.entries - 1) - 1.0;
        for (std::size_t t = 0; t < tables; ++t)
            put(s, t, even);
        if (samples_.empty())
            return s;
        std::vector<shape> shapes(samples_.size());
        for (std::size_t i = 0; i < shapes.size(); ++i)
            shapes[i] = shape_of(samples_[i]);
        // The centers are drawn, each far from those before it.
        std::vector<shape> centers = {shapes[random_.below(shapes.size())]};
        std::vector<float> nearest(shapes.size(), std::numeric_limits<float>::infinity());
        while (centers.size() < tables) {
            double sum = 0;
            for (std::size_t i = 0; i < shapes.size(); ++i)
                sum += nearest[i] = std::min(nearest[i], distance(shapes[i], centers.back()));
            double left = random_.uniform() * sum;
            std::size_t i = 0;
            while (i + 1 < shapes.size() && (left -= nearest[i]) > 0)
                ++i;
            centers.push_back(shapes[i]);
        }
        std::vector<std::size_t> cluster(shapes.size());
        for (int round = 0; round < 12; ++round) {
            std::vector<std::array<double, group_size + 1>> sums(tables);
            for (std::size_t i = 0; i < shapes.size(); ++i) {
                std::size_t best = 0;
                for (std::size_t t = 1; t < tables; ++t)
                    if (distance(shapes[i], centers[t]) < distance(shapes[i], centers[best]))
                        best = t;
                cluster[i] = best;
                for (std::size_t j = 0; j < group_size; ++j)
                    sums[best][j] += double{shapes[i][j]};
                sums[best][group_size] += 1;
            }
            for (std::size_t t = 0; t < tables; ++t)
                for (std::size_t j = 0; j < group_size && sums[t][group_size] > 0; ++j)
                    centers[t][j] = static_cast<float>(sums[t][j] / sums[t][group_size]);
        }
        // ---- phase 2 begins: levels of each shape by k-means on its sorted values ----
        for (std::size_t t = 0; t < tables; ++t) {
            std::array<double, 16> level = {};
            for (std::size_t i = 0; i < s.entries; ++i)
                level[i] = double{centers[t][(2 * i + 1) * group_size / (2 * s.entries)]};
            for (int round = 0; round < 15; ++round) {
                std::array<double, 16> sum = {}, count = {};
                for (std::size_t i = 0; i < shapes.size(); ++i) {
                    if (cluster[i] != t)
                        continue;
                    for (const float x : shapes[i]) {
                        std::size_t best = 0;
                        for (std::size_t e = 1; e < s.entries; ++e)
                            if (std::fabs(double{x} - level[e]) < std::fabs(double{x} - level[best]))
                                best = e;
                        sum[best] += double{x};
                        count[best] += 1;
                    }
                }
                for (std::size_t e = 0; e < s.entries; ++e)
                    if (count[e] > 0)
                        level[e] = sum[e] / count[e];
            }
            put(s, t, level);
        }
        return s;
    }

    // ---- phase 2: all together ----
    /// Every group chooses, with its previous choice among the candidates. Returns the relative error.
    double assign(const level_set& s) {
        const group_search search(s, functions_, {.starts = s.entries > 4 ? std::size_t{5} : std::size_t{3}});
        double error = 0;
        for (group& g : samples_) {
            group_search::candidates c;
            const std::size_t found = search.propose(g.w.data(), g.a.data(), c);
            group_search::candidate best = g.now;
            if (best.d != 0)
                search.converge(g.w.data(), g.a.data(), best, 3);
            for (std::size_t i = 0; i < found; ++i) {
                if (best.d == 0 || c[i].error < best.error)
                    best = c[i];
            }
            g.now = best;
            error += double{best.error};
        }
        return error / energy_;
    }

    level_set update(const level_set& s) {
        const group_search search(s, functions_);
        std::array<double, 64> wd = {}, dd = {};
        for (const group& g : samples_) {
            if (g.now.d == 0)
                continue;
            for (std::size_t i = 0; i < g.size; ++i) {
                const std::size_t e =
                    g.now.selector * s.entries + search.nearest(g.w[i], g.now.d, g.now.selector);
                wd[e] += rounded(double{g.a[i]} * double{g.w[i]} * double{g.now.d});
                dd[e] += rounded(double{g.a[i]} * double{g.now.d} * double{g.now.d});
            }
        }
        level_set next = s;
        std::array<double, 4> scale = {};
        for (std::size_t t = 0; t < s.tables(); ++t) {
            std::array<double, 16> level = {};
            for (std::size_t i = 0; i < s.entries; ++i) {
                const std::size_t e = t * s.entries + i;
                level[i] = dd[e] > 0 ? wd[e] / dd[e] : static_cast<double>(s.levels[e]);
            }
            scale[t] = put(next, t, level);
        }
        for (group& g : samples_)
            g.now.d = static_cast<float>(g.now.d / scale[g.now.selector]);
        return next;
    }

    const training_options& o_;
    const dispatch::weight_functions& functions_;
    splitmix64 random_;
    double energy_ = 0;
    int largest_;
    std::vector<group> samples_;
};

/// From samples that are drawn already, which `max_groups` and `seed` have no part in.
CRUMB_WHEN_CALLED result<trained_codebooks>
train_codebooks(const group_samples& samples, const training_options& options = {}, const context& on = {}) {
    return codebook_trainer::train(samples, options, on);
}

CRUMB_WHEN_CALLED result<trained_codebooks> train_codebooks(std::span<const training_matrix> matrices,
                                                            const training_options& options = {},
                                                            const context& on = {}) {
    const auto samples = sample_groups(matrices, options.max_groups, options.seed);
    if (!samples)
        return samples.error();
    return codebook_trainer::train(*samples, options, on);
}

} // namespace crumb::inline CRUMB_ABI
