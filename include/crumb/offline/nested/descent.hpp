// Nested weights code by code: annealing of codes and scales in the joint quadratic form of all precisions.
#pragma once

#include <crumb/offline/common/random.hpp>
#include <crumb/offline/nested/quantized.hpp>
#include <crumb/offline/nested/search.hpp>
#include <crumb/offline/weights/feedback_system.hpp>

#include <bit>

namespace crumb::inline CRUMB_ABI {

/// Parameters of `nested_descent`.
struct nested_descent_options {
    std::size_t hot = 150; ///< passes with noise
    std::size_t cold = 32; ///< max passes without noise; they end when nothing changes
    double from = 1.0; ///< temperature of the first pass with noise, as a share of the mean loss per weight
    double to = 0.3;   ///< that of the last one
    std::size_t rescale = 4; ///< scales are fitted again every so many passes; 0: never
    std::uint64_t seed = 1;  ///< of the noise, which differs from row to row
};

/// Refuses temperatures that are not finite and positive.
inline status check_descent(const nested_descent_options& o) noexcept {
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
/// fall geometrically; passes without noise take the best code, until none changes. A scale d becomes
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
            g = static_cast<float>(std::log(-std::log(std::max(random.uniform(), 1e-9))));
        // Losses stay positive with noise.
        const float min = *std::min_element(noise_.begin(), noise_.end());
        for (float& g : noise_)
            g -= min;
    }

    /// Improves `rows` of `out`; row 0 of the targets belongs to the first of them.
    void run(const chains& w, nested_quantized& out, range rows) const {
        state s(system_.size());
        for (std::size_t r = 0; r < rows.size(); ++r) {
            read(out, rows.begin + r, s);
            const double before = slopes(w, static_cast<index>(r), s);
            if (!(before > 0))
                continue;
            const float unit = static_cast<float>(before / static_cast<double>(system_.k()));
            anneal(s, unit, rows.begin + r);
            if (slopes(w, static_cast<index>(r), s) < before)
                write(s, out, rows.begin + r);
        }
    }

    /// sum_p lambda_p e_p H e_p^T of a row; row `at` of the targets belongs to it.
    double loss(const chains& w, std::size_t at, const nested_quantized& q, std::size_t row) const {
        state s(system_.size());
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
        explicit state(std::size_t size) : code(size), scale(size / group_size) {
            slope.fill(Eigen::RowVectorXf::Zero(static_cast<index>(size)));
        }
        std::vector<std::uint8_t> code;
        std::vector<float> scale;
        std::array<Eigen::RowVectorXf, nested_precisions> slope; ///< e_p H
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
        for (int p = levels_.seed; p <= levels_.parent; ++p) {
            const std::size_t slot = nested_search::slot(p);
            Eigen::RowVectorXf e = w[slot].row(row);
            for (std::size_t i = 0; i < system_.size(); ++i)
                if (system_.column(i) < system_.k())
                    e[static_cast<index>(i)] -= s.scale[i / group_size] * level_[slot][s.code[i]];
            s.slope[slot].noalias() = e * system_.h();
            loss += double{lambda_[slot]} * static_cast<double>(s.slope[slot].dot(e));
        }
        return loss;
    }

    void anneal(state& s, float unit, std::size_t row) const {
        splitmix64 random(options_.seed ^ (row + 1) * 0x9e3779b97f4a7c15u);
        const double ratio = options_.hot > 1 ? std::pow(options_.to / options_.from,
                                                         1 / static_cast<double>(options_.hot - 1))
                                              : 1.0;
        double share = options_.from;
        for (std::size_t pass = 0; pass < options_.hot; ++pass, share *= ratio) {
            visit<true>(s, unit * static_cast<float>(share), random);
            if (options_.rescale != 0 && pass % options_.rescale == options_.rescale - 1)
                (void)rescale(s);
        }
        for (std::size_t pass = 0; pass < options_.cold; ++pass) {
            bool changed = visit<false>(s, 0, random);
            if (options_.rescale != 0 && (!changed || pass % options_.rescale == 0))
                changed |= rescale(s);
            if (!changed)
                break;
        }
    }

    /// Chooses every code once; returns whether one changed.
    template <bool IsHot>
    bool visit(state& s, float temperature, splitmix64& random) const {
        bool changed = false;
        for (std::size_t i = 0; i < system_.size(); ++i) {
            const float d = s.scale[i / group_size];
            if (d == 0 || system_.column(i) >= system_.k())
                continue;
            const index j = static_cast<index>(i);
            const float h = system_.h()(j, j), pull = 1 / (h * d);
            const std::size_t now = s.code[i];
            lanes cost = barred_;
            for (std::size_t p = 0; p < nested_precisions; ++p) {
                const float y = level_[p][now] + s.slope[p][j] * pull, weight = lambda_[p] * h * d * d;
                for (std::size_t q = 0; q < codes; ++q) {
                    const float r = y - level_[p][q];
                    cost[q] += weight * (r * r);
                }
            }
            if constexpr (IsHot) {
                const float* noise = noise_.data() + (random.next() & (noises - 1));
                for (std::size_t q = 0; q < codes; ++q)
                    cost[q] += temperature * noise[q];
            }
            const std::size_t next = min(cost);
            if (next == now || (!IsHot && !(cost[next] < cost[now] * (1 - 1e-6f))))
                continue;
            s.code[i] = static_cast<std::uint8_t>(next);
            changed = true;
            for (std::size_t p = 0; p < nested_precisions; ++p)
                if (const float x = d * (level_[p][now] - level_[p][next]); x != 0)
                    s.slope[p] += x * system_.h().row(j);
        }
        return changed;
    }

    /// The index of the smallest of positive numbers, compared to 19 bits: the index replaces the lowest
    /// bits.
    static std::size_t min(const lanes& cost) noexcept {
        std::array<std::int32_t, codes> key = std::bit_cast<std::array<std::int32_t, codes>>(cost);
        constexpr std::int32_t mask = codes - 1;
        for (std::size_t q = 0; q < codes; ++q)
            key[q] = (key[q] & ~mask) | static_cast<std::int32_t>(q);
        for (std::size_t half = codes / 2; half != 0; half /= 2)
            for (std::size_t q = 0; q < half; ++q)
                key[q] = key[q + half] < key[q] ? key[q + half] : key[q];
        return static_cast<std::size_t>(key[0] & mask);
    }

    /// Fits every scale once; returns whether one changed.
    bool rescale(state& s) const {
        bool changed = false;
        for (std::size_t g = 0; g < system_.groups(); ++g) {
            const index first = static_cast<index>(g) * g_size;
            const auto h = system_.h().middleRows(first, g_size);
            std::array<Eigen::RowVectorXf, nested_precisions> u;
            float fall = 0, rise = 0; // of the loss by x: -2 x fall + x^2 rise
            for (std::size_t p = 0; p < nested_precisions; ++p) {
                u[p] = Eigen::RowVectorXf::Zero(g_size);
                for (std::size_t i = 0; i < group_size; ++i)
                    if (system_.column(g * group_size + i) < system_.k())
                        u[p][static_cast<index>(i)] = level_[p][s.code[g * group_size + i]];
                fall += lambda_[p] * u[p].dot(s.slope[p].segment(first, g_size));
                rise += lambda_[p] * (u[p] * h.middleCols(first, g_size)).dot(u[p]);
            }
            const half next = to_half(s.scale[g] + (rise > 0 ? fall / rise : 0.0f));
            const float x = to_float(next) - s.scale[g];
            // Also refuses NaN, and scales that became 0, which have no codes.
            if (!is_finite(next) || to_float(next) == 0 ||
                !(x * x * rise - 2 * x * fall < -1e-6f * rise * x * x))
                continue;
            s.scale[g] += x;
            changed = true;
            for (std::size_t p = 0; p < nested_precisions; ++p)
                s.slope[p].noalias() -= (x * u[p]) * h;
        }
        return changed;
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
