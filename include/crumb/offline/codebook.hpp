// Training of codebooks: tables of int8 levels that serve a whole model.
#pragma once

#include <crumb/offline/group_search.hpp>
#include <crumb/offline/random.hpp>

#include <functional>
#include <optional>

namespace crumb::inline CRUMB_ABI {

/// A matrix to train on, n x k, and the mean squared input of each of its k columns (empty: all equal).
struct training_matrix {
    matrix_view<const float> w;
    std::span<const float> importance;
};

/// Parameters of `train_codebooks`.
struct training_options {
    std::size_t entries = 4;              ///< levels per table: 2 to 16
    unsigned selector_bits = 2;           ///< 2^selector_bits tables
    scale_kind scales = scale_kind::half; ///< copied to the result; training takes scales as continuous
    std::size_t most_groups = 1u << 15;   ///< more are sampled down to this number
    std::size_t most_rounds = 60;
    double tolerance = 2e-4; ///< training ends when the error falls by less than this share in a round
    std::uint64_t seed = 1;
    std::function<void(std::size_t done, std::size_t all)> progress = {}; ///< after every round
};

/// Trained tables and how they came about.
struct trained_codebooks {
    level_set levels;
    /// After each round: sum a (w - q)^2 / sum a w^2 over the sampled groups; falls monotonically.
    std::vector<double> errors;
};

/// Trains codebooks in two phases. (1) Groups are scaled to a largest magnitude of 1, turned so that their
/// third moment is positive, sorted, and clustered (k-means on sorted values: their shapes), one cluster per
/// table. (2) Each cluster gets a table by weighted k-means on its values; then all groups choose table, sign
/// and scale d anew (d = sum a w t / sum a t^2) and levels become t = sum a w d / sum a d^2, in turns, until
/// the weighted error sum a (w - d t)^2 stops falling. Tables are int8 all the time: distinct, ascending,
/// with a largest magnitude of 127. a is the importance, divided by the matrix's mean a w^2, so that matrices
/// count by their size. Refuses NaN and infinity. Matrices of zeros only give evenly spaced levels.
class codebook_trainer {
  public:
    static result<trained_codebooks> train(std::span<const training_matrix> matrices,
                                           const training_options& o) {
        if (o.entries < 2 || o.entries > 16 || o.selector_bits > 2)
            return status::error(errc::invalid_argument, "codebooks: %zu levels, %u selector bits", o.entries,
                                 o.selector_bits);
        codebook_trainer t(o);
        if (const status s = t.sample(matrices); !s)
            return s;
        trained_codebooks out;
        out.levels = t.initial();
        if (t.samples_.empty())
            return out;
        double error = t.assign(out.levels);
        out.errors.push_back(error);
        for (std::size_t round = 1; round <= o.most_rounds; ++round) {
            const auto before = t.samples_;
            const level_set next = t.update(out.levels);
            const double now = t.assign(next);
            if (now < error) {
                out.levels = next;
                out.errors.push_back(now);
            } else {
                t.samples_ = before;
            }
            const bool done = !(now < error * (1 - o.tolerance));
            error = std::min(error, now);
            if (o.progress)
                o.progress(done ? o.most_rounds : round, o.most_rounds);
            if (done)
                break;
        }
        return out;
    }

  private:
    struct group {
        std::array<float, group_size> w = {}, a = {};
        std::size_t size = 0;
        group_search::candidate now;
    };
    using shape = std::array<float, group_size>;

    explicit codebook_trainer(const training_options& o) : o_(o), random_(o.seed) {}

    status sample(std::span<const training_matrix> matrices) {
        std::size_t all = 0;
        for (const training_matrix& m : matrices)
            all += m.w.rows * ((m.w.cols + group_size - 1) / group_size);
        const std::size_t wanted = std::min(all, o_.most_groups);
        std::size_t first = 0, taken = 0; // of the matrix; samples so far
        for (std::size_t n = 0; n < matrices.size(); ++n) {
            const auto& w = matrices[n].w;
            const auto& importance = matrices[n].importance;
            if (!importance.empty() && importance.size() != w.cols)
                return status::error(errc::bad_shape,
                                     "codebooks: matrix %zu has %zu columns and %zu importances", n, w.cols,
                                     importance.size());
            double energy = 0;
            for (std::size_t r = 0; r < w.rows; ++r)
                for (std::size_t i = 0; i < w.cols; ++i)
                    energy += (importance.empty() ? 1.0 : double{importance[i]}) * double{w.row(r)[i]} *
                              double{w.row(r)[i]};
            bool valid = std::isfinite(energy);
            for (const float a : importance)
                valid = valid && a >= 0;
            if (!valid)
                return status::error(errc::not_finite,
                                     "codebooks: matrix %zu or its importance is not finite", n);
            const std::size_t groups = (w.cols + group_size - 1) / group_size;
            const double scale = energy > 0 ? static_cast<double>(w.rows * w.cols) / energy : 0.0;
            // One sample from each of `wanted` equal stretches of all groups.
            for (; taken < wanted; ++taken) {
                if (!next_)
                    next_ = wanted == all ? taken
                                          : static_cast<std::size_t>(
                                                (static_cast<double>(taken) + random_.uniform()) *
                                                static_cast<double>(all) / static_cast<double>(wanted));
                const std::size_t at = std::min(*next_, all - 1) - first;
                if (at >= w.rows * groups)
                    break;
                next_.reset();
                group g;
                const std::size_t i0 = at % groups * group_size;
                g.size = std::min(group_size, w.cols - i0);
                float most = 0;
                for (std::size_t i = 0; i < g.size; ++i) {
                    g.w[i] = w.row(at / groups)[i0 + i];
                    g.a[i] =
                        static_cast<float>((importance.empty() ? 1.0 : double{importance[i0 + i]}) * scale);
                    most = std::max(most, g.a[i] > 0 ? std::fabs(g.w[i]) : 0.0f);
                }
                if (most > 1e-30f)
                    samples_.push_back(g);
            }
            first += w.rows * groups;
        }
        for (const group& g : samples_)
            for (std::size_t i = 0; i < g.size; ++i)
                energy_ += double{g.a[i]} * double{g.w[i]} * double{g.w[i]};
        return {};
    }

    level_set empty_set() const {
        level_set s;
        s.entries = o_.entries;
        s.selector_bits = o_.selector_bits;
        s.scales = o_.scales;
        return s;
    }

    /// Writes a table on the int8 grid: largest magnitude 127, ascending, distinct. Returns what the numbers
    /// were multiplied with.
    static double put(level_set& s, std::size_t table, std::array<double, 16> t) {
        double most = 1e-30;
        std::sort(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(s.entries));
        for (std::size_t i = 0; i < s.entries; ++i)
            most = std::max(most, std::fabs(t[i]));
        const double scale = 127 / most;
        int last = -128;
        std::array<int, 16> q = {};
        for (std::size_t i = 0; i < s.entries; ++i)
            last = q[i] = std::max(last + 1, static_cast<int>(std::lrint(t[i] * scale)));
        for (std::size_t i = s.entries, limit = 127; i-- > 0;) {
            q[i] = std::min(q[i], static_cast<int>(limit) - static_cast<int>(s.entries - 1 - i));
            s.levels[table * s.entries + i] = static_cast<std::int8_t>(q[i]);
        }
        return scale;
    }

    // ---- phase 1: shapes ----
    static shape shape_of(const group& g) {
        float most = 0, cubes = 0;
        for (std::size_t i = 0; i < g.size; ++i)
            most = std::max(most, std::fabs(g.w[i]));
        shape sorted = {};
        for (std::size_t i = 0; i < g.size; ++i) {
            sorted[i] = g.w[i] / most;
            cubes += sorted[i] * sorted[i] * sorted[i];
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
            sum += (a[i] - b[i]) * (a[i] - b[i]);
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
        // The first center is drawn, the others as well, far from those before them.
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
    /// Every group chooses; its former choice is among the candidates. Returns the relative error.
    double assign(const level_set& s) {
        const group_search search(s, {.starts = s.entries > 4 ? std::size_t{5} : std::size_t{3}});
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
        const group_search search(s);
        std::array<double, 64> wd = {}, dd = {};
        for (const group& g : samples_) {
            std::array<float, group_size> v;
            if (g.now.d == 0)
                continue;
            (void)search.fit(g.w.data(), g.a.data(), g.now.d, g.now.selector, v.data());
            for (std::size_t i = 0; i < g.size; ++i) {
                const std::size_t e = g.now.selector * s.entries + search.index(g.now.selector, v[i]);
                wd[e] += double{g.a[i]} * double{g.w[i]} * double{g.now.d};
                dd[e] += double{g.a[i]} * double{g.now.d} * double{g.now.d};
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
    splitmix64 random_;
    std::optional<std::size_t> next_;
    std::vector<group> samples_;
    double energy_ = 0;
};

inline result<trained_codebooks> train_codebooks(std::span<const training_matrix> matrices,
                                                 const training_options& options = {}) {
    return codebook_trainer::train(matrices, options);
}

} // namespace crumb::inline CRUMB_ABI
