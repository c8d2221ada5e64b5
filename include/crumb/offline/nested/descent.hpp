// Nested weights code by code: annealing of codes and scales in the joint quadratic form of all precisions.
#pragma once

#include <crumb/offline/common/random.hpp>
#include <crumb/offline/nested/quantized.hpp>
#include <crumb/offline/nested/search.hpp>
#include <crumb/offline/weights/feedback_system.hpp>

namespace crumb::inline CRUMB_ABI {

/// Parameters of `nested_descent`.
struct nested_descent_options {
    std::size_t hot = 40;  ///< passes with noise
    std::size_t cold = 32; ///< max passes without noise; those of a row end when one gains too little
    double from = 1.0; ///< temperature of the first pass with noise, as a share of the mean loss per weight
    double to = 0.3;   ///< that of the last one
    std::size_t rescale = 4; ///< scales are fitted again every so many passes; 0: never
    /// What gains too little, as a share of a row's loss: a pass without noise; a scale gains its group's
    /// part of that at least, or stays.
    double least_gain = 1e-3;
    std::uint64_t seed = 1; ///< of the noise, which differs from row to row
};

/// Refuses temperatures that are not finite and positive, and gains that are negative or NaN.
inline status check_descent(const nested_descent_options& o) noexcept {
    if (!(o.least_gain >= 0))
        return status::error(errc::invalid_argument, "descent of nested weights: a gain of %g", o.least_gain);
    for (const double t : {o.from, o.to})
        if (!(t > 0 && t < 1e12))
            return status::error(errc::invalid_argument, "descent of nested weights: temperature %g", t);
    return {};
}

/// Lowers sum_p lambda_p e_p H e_p^T, e_p = w_p - q_p, of rows that are quantized already, with codes and
/// scales chosen one after another, given all others. With s_p = e_p H, another code q of column j makes it
///     sum_p lambda_p H_jj (q_pj + s_pj / H_jj - d T_p[q >> (parent - p)])^2
/// and what does not depend on q. A pass with noise draws a code with odds exp(-loss / temperature), to
/// leave local minima: where precisions disagree, changing one code at a time does not. Temperatures
/// fall geometrically; passes without noise take the best code, until they gain little. A scale d becomes
/// d + sum_p lambda_p u_p s_p / sum_p lambda_p u_p H u_p^T, u_p the group's levels, rounded to a half. A row
/// that became worse is left unchanged.
///
/// Keeps a reference to the system, which has feedback. Immutable: threads may treat disjoint rows at a time.
class nested_descent {
    using matrix_f = feedback_system::matrix_f;
    using index = Eigen::Index;

  public:
    /// Targets of every precision, rows in order (`feedback_system::in_order`); empty if not stored.
    using chains = std::array<matrix_f, nested_precisions>;

    /// For one matrix; system and levels outlive it.
    nested_descent(const feedback_system& system, const nested_levels& levels,
                   const precision_weights& lambda, const nested_descent_options& options = {})
        : system_(system), levels_(levels), options_(options) {
        for (int p = levels.seed; p <= levels.parent; ++p) {
            const std::size_t at = nested_search::slot(p);
            lambda_[at] = lambda[at];
            for (std::size_t q = 0; q < std::size_t{1} << levels.parent; ++q)
                level_[at][q] = levels.table(p)[q >> (levels.parent - p)];
        }
        for (std::size_t q = std::size_t{1} << levels.parent; q < codes; ++q)
            barred_[q] = 1e30f;
        splitmix64 random(options.seed);
        for (float& g : noise_)
            g = static_cast<float>(natural_log(-natural_log(std::max(random.uniform(), 1e-9))));
        // Losses stay positive with noise.
        const float min = *std::min_element(noise_.begin(), noise_.end());
        for (float& g : noise_)
            g -= min;
    }

    /// Improves `rows` of `out`; row 0 of the targets belongs to the first of them.
    void run(const chains& w, nested_quantized& out, range rows) const {
        // Rows that read the same columns of H one after another.
        constexpr std::size_t batch = 16;
        std::vector<float> memory(batch * nested_precisions * system_.size());
        for (std::size_t first = 0; first < rows.size(); first += batch) {
            std::vector<state> states;
            for (std::size_t r = first; r < std::min(first + batch, rows.size()); ++r) {
                state s(system_.size(), memory.data() + states.size() * nested_precisions * system_.size());
                s.row = r;
                read(out, rows.begin + r, s);
                s.before = slopes(w, static_cast<index>(r), s);
                s.random = options_.seed ^ (rows.begin + r + 1) * 0x9e3779b97f4a7c15u;
                if (s.before > 0)
                    states.push_back(std::move(s));
            }
            anneal(states);
            for (state& s : states)
                if (slopes(w, static_cast<index>(s.row), s) < s.before)
                    write(s, out, rows.begin + s.row);
        }
    }

    /// sum_p lambda_p e_p H e_p^T of a row; row `at` of the targets belongs to it.
    double loss(const chains& w, std::size_t at, const nested_quantized& q, std::size_t row) const {
        std::vector<float> memory(nested_precisions * system_.size());
        state s(system_.size(), memory.data());
        read(q, row, s);
        return slopes(w, static_cast<index>(at), s);
    }

  private:
    static constexpr std::size_t codes = std::size_t{1} << max_nested_bits;
    static constexpr std::size_t noises = 8192; ///< a power of two
    static constexpr index g_size = static_cast<index>(group_size);
    using lanes = std::array<float, codes>;

    /// A row in order.
    struct state {
        state(std::size_t size, float* slopes) : code(size), scale(size / group_size), slope(slopes) {}
        std::vector<std::uint8_t> code;
        std::vector<float> scale;
        std::size_t row = 0;      ///< of the targets
        double before = 0;        ///< loss
        std::uint64_t random = 0; ///< of noise
        float* slope;             ///< a row per precision: e_p H; of the next state behind it
    };

    void read(const nested_quantized& q, std::size_t row, state& s) const {
        for (std::size_t g = 0; g < system_.groups(); ++g)
            s.scale[g] = to_float(q.scales[row * q.groups() + system_.order().group_at[g]]);
        for (std::size_t i = 0; i < system_.size(); ++i)
            if (const std::size_t c = system_.column(i); c < system_.k())
                s.code[i] = q.codes[row * q.k + c];
    }
    void write(const state& s, nested_quantized& q, std::size_t row) const {
        for (std::size_t g = 0; g < system_.groups(); ++g)
            q.scales[row * q.groups() + system_.order().group_at[g]] = to_half(s.scale[g]);
        for (std::size_t i = 0; i < system_.size(); ++i)
            if (const std::size_t c = system_.column(i); c < system_.k())
                q.codes[row * q.k + c] = s.code[i];
    }

    /// Computes slopes from codes and scales; returns the loss.
    double slopes(const chains& w, index row, state& s) const {
        double loss = 0;
        const std::size_t size = system_.size();
        matrix_f e = matrix_f::Zero(static_cast<index>(nested_precisions), static_cast<index>(size));
        for (int p = levels_.seed; p <= levels_.parent; ++p) {
            const std::size_t slot = nested_search::slot(p);
            auto own = e.row(static_cast<index>(slot));
            own = w[slot].row(row);
            for (std::size_t i = 0; i < size; ++i)
                if (system_.column(i) < system_.k())
                    own[static_cast<index>(i)] -= s.scale[i / group_size] * level_[slot][s.code[i]];
        }
        const matrix_f eh = system_.times_h(e);
        std::copy_n(eh.data(), nested_precisions * size, s.slope);
        for (std::size_t p = 0; p < nested_precisions; ++p)
            loss +=
                rounded(double{lambda_[p]} *
                        feedback_system::dot(s.slope + p * size, e.row(static_cast<index>(p)).data(), size));
        return loss;
    }

    void anneal(std::vector<state>& states) const {
        const double ratio = options_.hot > 1 ? exponential(natural_log(options_.to / options_.from) /
                                                            static_cast<double>(options_.hot - 1))
                                              : 1.0;
        std::vector<state*> active;
        for (state& s : states)
            active.push_back(&s);
        double share = options_.from;
        for (std::size_t pass = 0; pass < options_.hot; ++pass, share *= ratio) {
            (void)visit(active, share);
            if (options_.rescale != 0 && pass % options_.rescale == options_.rescale - 1)
                (void)rescale(active);
        }
        for (std::size_t pass = 0; pass < options_.cold && !active.empty(); ++pass) {
            std::vector<double> gains = visit(active, 0);
            std::vector<state*> fitted, next;
            if (options_.rescale != 0)
                for (std::size_t r = 0; r < active.size(); ++r)
                    if (!(gains[r] > options_.least_gain * active[r]->before) || pass % options_.rescale == 0)
                        fitted.push_back(active[r]);
            const std::vector<double> more = rescale(fitted);
            for (std::size_t r = 0, f = 0; r < active.size(); ++r) {
                if (f < fitted.size() && fitted[f] == active[r])
                    gains[r] += more[f++];
                if (gains[r] > options_.least_gain * active[r]->before)
                    next.push_back(active[r]);
            }
            active = std::move(next);
        }
    }

    /// Chooses every code once; returns by how much that lowers the losses, if it is done without noise.
    /// `share`: the temperature as a share of the mean loss; 0: without noise.
    std::vector<double> visit(const std::vector<state*>& active, double share) const {
        std::vector<kernel::descent_row> rows;
        for (state* s : active) {
            kernel::descent_row row;
            row.code = s->code.data();
            row.scale = s->scale.data();
            for (std::size_t p = 0; p < nested_precisions; ++p)
                row.slope[p] = s->slope + p * system_.size();
            row.random = s->random;
            row.temperature = static_cast<float>(s->before / static_cast<double>(system_.k()) * share);
            rows.push_back(row);
        }
        kernel::descent_args args;
        args.rows = rows.data();
        args.row_count = rows.size();
        args.size = system_.size();
        args.h = system_.h().data();
        args.used = system_.weight();
        args.level = level_[0].data();
        std::copy(lambda_.begin(), lambda_.end(), args.lambda);
        args.barred = barred_.data();
        args.noise = noise_.data();
        args.noise_mask = noises - 1;
        system_.functions().descend_nested(args);
        std::vector<double> gains;
        for (std::size_t r = 0; r < rows.size(); ++r) {
            active[r]->random = rows[r].random;
            gains.push_back(double{rows[r].gain});
        }
        return gains;
    }

    /// Fits every scale once; returns by how much that lowers the losses.
    std::vector<double> rescale(const std::vector<state*>& active) const {
        constexpr std::size_t tables = nested_precisions;
        const std::size_t size = system_.size(), count = active.size() * tables;
        std::vector<double> gains(active.size());
        std::vector<float> levels(count * group_size), products(count * group_size);
        for (std::size_t g = 0; g < system_.groups(); ++g) {
            const std::size_t first = g * group_size;
            const float* h = system_.h().data() + first * size;
            std::fill(levels.begin(), levels.end(), 0.0f);
            std::fill(products.begin(), products.end(), 0.0f);
            for (std::size_t r = 0; r < active.size(); ++r)
                for (std::size_t p = 0; p < tables; ++p)
                    for (std::size_t i = 0; i < group_size; ++i)
                        if (system_.column(first + i) < system_.k())
                            levels[(r * tables + p) * group_size + i] = level_[p][active[r]->code[first + i]];
            system_.functions().add_product({levels.data(), group_size, 1, h + first, size, products.data(),
                                             group_size, count, group_size, group_size});
            std::size_t begin = active.size(), end = 0; // of those that change
            for (std::size_t r = 0; r < active.size(); ++r) {
                float* const u = levels.data() + r * tables * group_size;
                const float x = fit(*active[r], g, u, products.data() + r * tables * group_size, gains[r]);
                active[r]->scale[g] += x;
                for (std::size_t i = 0; i < tables * group_size; ++i)
                    u[i] *= -x;
                if (x != 0) {
                    begin = std::min(begin, r);
                    end = r + 1;
                }
            }
            // The slopes of neighbours in memory follow together.
            for (std::size_t r = begin, next = r; r < end; r = next) {
                for (++next; next < end && active[next]->slope == active[next - 1]->slope + tables * size;)
                    ++next;
                system_.functions().add_product({levels.data() + r * tables * group_size, group_size, 1, h,
                                                 size, active[r]->slope, size, (next - r) * tables, size,
                                                 group_size});
            }
        }
        return gains;
    }
    /// By how much a scale is to change, from the group's levels u at all precisions and from u H: not at all
    /// where that is worth too little. Adds what it is worth.
    float fit(const state& s, std::size_t g, const float* u, const float* uh, double& gains) const {
        double fall = 0, rise = 0; // of the loss by x: -2 x fall + x^2 rise
        for (std::size_t p = 0; p < nested_precisions; ++p) {
            const float* slope = s.slope + p * system_.size() + g * group_size;
            fall += rounded(double{lambda_[p]} * feedback_system::dot(u + p * group_size, slope, group_size));
            rise += rounded(double{lambda_[p]} *
                            feedback_system::dot(u + p * group_size, uh + p * group_size, group_size));
        }
        const half next = to_half(s.scale[g] + (rise > 0 ? static_cast<float>(fall / rise) : 0.0f));
        const float x = to_float(next) - s.scale[g];
        const double gain = rounded(2.0 * double{x} * fall) - rounded(double{x} * double{x} * rise);
        // Also refuses NaN, and scales that became 0, which have no codes.
        if (!is_finite(next) || to_float(next) == 0 ||
            !(gain > rounded(options_.least_gain * s.before) / static_cast<double>(system_.groups())))
            return 0;
        gains += gain;
        return x;
    }

    const feedback_system& system_;
    nested_levels levels_;
    nested_descent_options options_;
    precision_weights lambda_ = {}; ///< 0 for precisions not stored
    std::array<lanes, nested_precisions> level_ = {};
    lanes barred_ = {};
    std::array<float, noises + codes> noise_ = {}; ///< -ln of exponential numbers, with the sign turned
};

} // namespace crumb::inline CRUMB_ABI
