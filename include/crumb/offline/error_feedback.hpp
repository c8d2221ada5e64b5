// Quantization with error feedback across columns, in the manner of GPTQ.
#pragma once

#include <crumb/offline/column_order.hpp>
#include <crumb/offline/group_search.hpp>

#include <Eigen/Cholesky>
#include <Eigen/Core>

#include <numeric>

namespace crumb::inline CRUMB_ABI {

/// Parameters of `error_feedback`.
struct feedback_options {
    double damping = 0.01;     ///< added to the diagonal of H, as a share of its mean
    bool reorder = true;       ///< blocks, groups and columns of most energy first
    std::size_t sweeps = 3;    ///< passes that choose every group again, given all others
    double length_power = 1.0; ///< how much of the row's lost length is given back; 0 for least squares
    search_options search = {};
};

/// Quantizes rows w so that (w - q) H (w - q)^T is small, H = sum x x^T over calibration inputs.
///
/// With H = R R^T, R upper triangular, that is sum_j R_jj^2 (w_j + sum_{i<j} R_ij / R_jj (w_i - q_i) -
/// q_j)^2: columns are quantized in order, each corrected by the errors of those before it, and a group's
/// scale and table are chosen when it begins. One object serves all matrices that read the same inputs.
/// Immutable after `make`: threads may quantize disjoint rows at a time.
class error_feedback {
    using matrix_f = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using index = Eigen::Index;
    static constexpr float most_weight = 65504.0f;

  public:
    /// From H, k x k; its lower triangle is read.
    static result<error_feedback> make(const matrix_view<const double>& h,
                                       const feedback_options& options = {}) {
        if (h.rows != h.cols || h.rows == 0)
            return status::error(errc::bad_shape, "error feedback: H is %zu x %zu", h.rows, h.cols);
        if (!(options.damping >= 0) || !std::isfinite(options.length_power))
            return status::error(errc::invalid_argument, "error feedback: damping %g, length power %g",
                                 options.damping, options.length_power);
        std::vector<double> energy(h.rows);
        for (std::size_t i = 0; i < h.rows; ++i)
            energy[i] = h.row(i)[i];
        const double mean = std::accumulate(energy.begin(), energy.end(), 0.0) / static_cast<double>(h.rows);
        if (!std::isfinite(mean) || mean < 0)
            return status::error(errc::not_finite,
                                 "error feedback: the diagonal of H is not finite and positive");
        error_feedback f(options.reorder ? column_order::by_energy(energy) : column_order::ascending(h.rows),
                         options);
        const index size = static_cast<index>(f.order_.at.size());
        const double scale = mean > 0 ? 1 / mean : 1;
        // Reversed in both directions, the lower factor becomes the upper one.
        Eigen::MatrixXd reversed = Eigen::MatrixXd::Identity(size, size);
        for (index i = 0; i < size; ++i) {
            for (index j = 0; j < size; ++j) {
                const std::size_t a = f.order_.at[static_cast<std::size_t>(i)],
                                  b = f.order_.at[static_cast<std::size_t>(j)];
                if (a < f.order_.k && b < f.order_.k)
                    reversed(size - 1 - i, size - 1 - j) =
                        (a >= b ? h.row(a)[b] : h.row(b)[a]) * scale + (a == b ? options.damping : 0.0);
            }
        }
        if (!reversed.allFinite())
            return status::error(errc::not_finite, "error feedback: H is not finite");
        f.h_ = reversed.reverse().cast<float>();
        const Eigen::LLT<Eigen::Ref<Eigen::MatrixXd>> factor(reversed);
        if (factor.info() != Eigen::Success)
            return status::error(errc::invalid_argument,
                                 "error feedback: H is not positive definite, more damping is needed");
        f.factor([&](index i, index j) { return reversed(size - 1 - i, size - 1 - j); });
        return f;
    }

    /// From a diagonal H: importance weights without feedback. Empty: all 1.
    static result<error_feedback> independent(std::size_t k, std::span<const float> importance,
                                              const feedback_options& options = {}) {
        if (k == 0 || (!importance.empty() && importance.size() != k))
            return status::error(errc::bad_shape, "%zu importances for %zu inputs", importance.size(), k);
        error_feedback f(column_order::ascending(k), options);
        f.weight_.assign(f.order_.at.size(), 0);
        double mean = 0;
        for (std::size_t i = 0; i < k; ++i) {
            const float a = importance.empty() ? 1.0f : importance[i];
            if (!std::isfinite(a) || a < 0)
                return status::error(errc::not_finite, "importance %zu is not finite and positive", i);
            f.weight_[i] = a;
            mean += double{a} / static_cast<double>(k);
        }
        for (std::size_t i = 0; i < k; ++i)
            f.weight_[i] = mean > 0 ? static_cast<float>(f.weight_[i] / mean + options.damping) : 1.0f;
        return f;
    }

    std::size_t k() const noexcept { return order_.k; }

    /// Quantizes `rows` of `w` into `out`, made by `leveled_matrix::zeros` with w's shape. Weights that are
    /// not finite or beyond a half's range are refused; `out` may then be partly written.
    status quantize(const matrix_view<const float>& w, leveled_matrix& out, range rows = {}) const {
        if (w.cols != order_.k || out.k != order_.k || out.n != w.rows)
            return status::error(errc::bad_shape,
                                 "error feedback for %zu inputs: weights are %zu x %zu, out is %zu x %zu",
                                 order_.k, w.rows, w.cols, out.n, out.k);
        if (const status s = check_levels(out.levels); !s)
            return s;
        rows = rows.within(w.rows);
        for (std::size_t r = rows.begin; r < rows.end; ++r)
            for (std::size_t i = 0; i < order_.k; ++i)
                if (!(std::fabs(w.row(r)[i]) <= most_weight))
                    return status::error(errc::not_finite, "weight (%zu, %zu) is not finite or beyond 65504",
                                         r, i);
        const group_search search(out.levels, options_.search);
        constexpr std::size_t batch = 64;
        for (std::size_t r = rows.begin; r < rows.end; r += batch)
            quantize_batch(search, w, out, {r, std::min(r + batch, rows.end)});
        return {};
    }

    /// (w - q) H (w - q)^T of a row, H as damped and scaled to a mean diagonal of 1.
    double error(const float* w, const leveled_matrix& q, std::size_t row) const {
        Eigen::RowVectorXf e = Eigen::RowVectorXf::Zero(static_cast<index>(order_.at.size()));
        for (std::size_t i = 0; i < order_.at.size(); ++i)
            if (order_.at[i] < order_.k)
                e[static_cast<index>(i)] = w[order_.at[i]] - q.weight(row, order_.at[i]);
        return static_cast<double>(product(e, e));
    }

  private:
    using part = column_order::part;
    struct block_result {
        int exponent = 0;
        std::array<group_choice, scale_block / group_size> group;
    };

    error_feedback(column_order order, const feedback_options& options)
        : options_(options), order_(std::move(order)) {}

    /// Takes the upper factor R apart: weights R_jj^2 and mix R_ij / R_jj.
    template <class F>
    void factor(const F& r) {
        const index size = static_cast<index>(order_.at.size());
        weight_.assign(order_.at.size(), 0);
        mix_ = matrix_f::Zero(size, size);
        for (index j = 0; j < size; ++j) {
            if (order_.at[static_cast<std::size_t>(j)] >= order_.k)
                continue;
            const double d = r(j, j);
            weight_[static_cast<std::size_t>(j)] = static_cast<float>(d * d);
            for (index i = 0; i < j; ++i)
                mix_(i, j) = static_cast<float>(r(i, j) / d);
        }
        // The same for each group by itself: what sweeps need.
        const std::size_t groups = order_.group_at.size();
        own_weight_.resize(order_.at.size());
        own_mix_.resize(order_.at.size() * group_size);
        solve_.resize(groups);
        constexpr index g_size = static_cast<index>(group_size);
        for (std::size_t g = 0; g < groups; ++g) {
            const Eigen::MatrixXd tile =
                h_.block(static_cast<index>(g) * g_size, static_cast<index>(g) * g_size, g_size, g_size)
                    .cast<double>();
            const Eigen::MatrixXd l = Eigen::LLT<Eigen::MatrixXd>(tile.reverse()).matrixL();
            solve_[g] = Eigen::LLT<Eigen::MatrixXd>(tile)
                            .solve(Eigen::MatrixXd::Identity(g_size, g_size))
                            .cast<float>();
            for (index j = 0; j < g_size; ++j) {
                const std::size_t at = g * group_size + static_cast<std::size_t>(j);
                const double d = l(g_size - 1 - j, g_size - 1 - j);
                own_weight_[at] = order_.at[at] < order_.k ? static_cast<float>(d * d) : 0.0f;
                for (index i = 0; i < g_size; ++i)
                    own_mix_[(g * group_size + static_cast<std::size_t>(i)) * group_size +
                             static_cast<std::size_t>(j)] =
                        i < j ? static_cast<float>(l(g_size - 1 - i, g_size - 1 - j) / d) : 0.0f;
            }
        }
    }

    bool has_feedback() const noexcept { return mix_.size() != 0; }

    float product(const Eigen::RowVectorXf& a, const Eigen::RowVectorXf& b) const {
        if (has_feedback())
            return (a * h_).dot(b);
        float s = 0;
        for (std::size_t i = 0; i < order_.at.size(); ++i)
            s += weight_[i] * a[static_cast<index>(i)] * b[static_cast<index>(i)];
        return s;
    }

    void quantize_batch(const group_search& search, const matrix_view<const float>& w, leveled_matrix& out,
                        range rows) const {
        const index n = static_cast<index>(rows.size()), size = static_cast<index>(order_.at.size());
        matrix_f own = matrix_f::Zero(n, size);
        for (index r = 0; r < n; ++r)
            for (index i = 0; i < size; ++i)
                if (order_.at[static_cast<std::size_t>(i)] < order_.k)
                    own(r, i) = w.row(rows.begin +
                                      static_cast<std::size_t>(r))[order_.at[static_cast<std::size_t>(i)]];
        pass(search, own, out, rows);
        const bool sweeps = has_feedback() && options_.sweeps != 0;
        if (options_.length_power != 0) {
            for (index r = 0; r < n; ++r)
                own.row(r) *= gain(own.row(r), decoded(out, rows.begin + static_cast<std::size_t>(r)));
            if (!sweeps)
                pass(search, own, out, rows);
        }
        if (sweeps)
            sweep(search, own, out, rows);
    }

    Eigen::RowVectorXf decoded(const leveled_matrix& q, std::size_t row) const {
        Eigen::RowVectorXf v = Eigen::RowVectorXf::Zero(static_cast<index>(order_.at.size()));
        for (std::size_t i = 0; i < order_.at.size(); ++i)
            if (order_.at[i] < order_.k)
                v[static_cast<index>(i)] = q.weight(row, order_.at[i]);
        return v;
    }

    /// What a quantized row lacks of its length in the direction of the row.
    float gain(const Eigen::RowVectorXf& w, const Eigen::RowVectorXf& q) const {
        const double ww = static_cast<double>(product(w, w)), wq = static_cast<double>(product(w, q));
        if (!(wq > 0) || !(ww > 0))
            return 1.0f;
        return static_cast<float>(std::pow(std::clamp(ww / wq, 0.5, 2.0), options_.length_power));
    }

    /// All columns in order.
    void pass(const group_search& search, const matrix_f& w, leveled_matrix& out, range rows) const {
        const index n = w.rows();
        matrix_f e = matrix_f::Zero(n, w.cols());
        for (std::size_t p = 0, g = 0; p < order_.parts.size(); g += order_.parts[p++].groups) {
            const index first = static_cast<index>(order_.parts[p].first);
            const index size = static_cast<index>(order_.parts[p].groups * group_size);
            matrix_f target = w.middleCols(first, size);
            if (has_feedback() && first != 0)
                target.noalias() += e.leftCols(first) * mix_.block(0, first, first, size);
            for (index r = 0; r < n; ++r) {
                const std::size_t row = rows.begin + static_cast<std::size_t>(r);
                const auto q = block(search, order_.parts[p], target.row(r).data(), w.row(r).data() + first,
                                     e.row(r).data() + first);
                if (!out.exponent.empty())
                    out.exponent[row * out.blocks() + order_.parts[p].block] =
                        static_cast<std::int8_t>(q.exponent);
                for (std::size_t i = 0; i < order_.parts[p].groups; ++i)
                    store(search, out, row, g + i, q.group[i]);
            }
        }
    }

    void store(const group_search& search, leveled_matrix& out, std::size_t row, std::size_t g,
               const group_choice& q) const {
        out.scale[row * out.groups() + order_.group_at[g]] = q.scale.bits;
        for (std::size_t i = 0; i < group_size; ++i)
            if (const std::size_t c = order_.at[g * group_size + i]; c < order_.k)
                out.index[row * order_.k + c] = search.index(q.selector, q.value[i]);
    }

    /// A block of a row; its errors go to `e`.
    block_result block(const group_search& search, const part& p, const float* target, const float* own,
                       float* e) const {
        group_search::candidates c;
        if (search.set().scales == scale_kind::half)
            return block(search, p, target, own, e, 0);
        float most = 0;
        for (std::size_t g = 0; g < p.groups; ++g)
            if (search.propose(target + g * group_size, weight_.data() + p.first + g * group_size, c) != 0)
                most = std::max(most, std::fabs(c[0].d));
        if (most == 0)
            return block(search, p, target, own, e, 0);
        // The exponent at which the largest scale just fits: a step lower was tried, and brings nothing.
        const int exponent = std::clamp(static_cast<int>(std::ceil(std::log2(most / 127.0f))), -120, 120);
        return block(search, p, target, own, e, exponent);
    }
    block_result block(const group_search& search, const part& p, const float* target, const float* own,
                       float* e, int exponent) const {
        block_result out;
        out.exponent = exponent;
        std::array<float, scale_block> t;
        const std::size_t size = p.groups * group_size;
        std::copy_n(target, size, t.data());
        for (std::size_t g = 0; g < p.groups; ++g) {
            const std::size_t at = g * group_size;
            std::array<float, group_size * group_size> mix;
            if (has_feedback())
                for (std::size_t i = 0; i < group_size; ++i)
                    std::copy_n(mix_.data() + (p.first + at + i) * order_.at.size() + p.first + at,
                                group_size, mix.data() + i * group_size);
            const group_problem problem{t.data() + at, own + at, weight_.data() + p.first + at,
                                        has_feedback() ? mix.data() : nullptr};
            group_search::candidates c;
            const std::size_t found = search.propose(problem.target, problem.weight, c);
            const auto q = search.solve(problem, c, found, exponent);
            out.group[g] = q;
            for (std::size_t i = 0; i < group_size; ++i) {
                e[at + i] = own[at + i] - q.scale.d * q.value[i];
                if (has_feedback()) {
                    const float* m = mix_.data() + (p.first + at + i) * order_.at.size() + p.first;
                    for (std::size_t j = at + group_size; j < size; ++j)
                        t[j] += e[at + i] * m[j];
                }
            }
        }
        return out;
    }

    /// Chooses every group again with all others fixed: e^T H e restricted to a group is
    /// (t - q)^T H_gg (t - q) with t = w_g + H_gg^-1 H_g,others e_others.
    void sweep(const group_search& search, const matrix_f& w, leveled_matrix& out, range rows) const {
        const index n = w.rows();
        constexpr index g_size = static_cast<index>(group_size);
        matrix_f e(n, w.cols());
        for (index r = 0; r < n; ++r)
            e.row(r) = w.row(r) - decoded(out, rows.begin + static_cast<std::size_t>(r));
        for (std::size_t s = 0; s < options_.sweeps; ++s) {
            for (std::size_t g = 0; g < order_.group_at.size(); ++g) {
                const index first = static_cast<index>(g) * g_size;
                const matrix_f pull = e * h_.middleCols(first, g_size);
                const matrix_f target =
                    w.middleCols(first, g_size) - e.middleCols(first, g_size) + pull * solve_[g];
                for (index r = 0; r < n; ++r) {
                    const std::size_t row = rows.begin + static_cast<std::size_t>(r);
                    const group_problem p{target.row(r).data(), target.row(r).data(),
                                          own_weight_.data() + first,
                                          own_mix_.data() + static_cast<std::size_t>(first) * group_size};
                    const std::size_t orig = order_.group_at[g];
                    const int exponent =
                        out.exponent.empty()
                            ? 0
                            : out.exponent[row * out.blocks() + orig * group_size / scale_block];
                    // What there is.
                    const Eigen::RowVectorXf now =
                        target.row(r) - (w.block(r, first, 1, g_size) - e.block(r, first, 1, g_size));
                    const float before = now * h_.block(first, first, g_size, g_size) * now.transpose();
                    group_search::candidates c;
                    const std::size_t found = search.propose(p.target, p.weight, c);
                    auto q = search.solve(p, c, found, exponent);
                    const auto same = search.evaluate(
                        p, {out.d(row, orig), out.scale[row * out.groups() + orig]}, out.selector(row, orig));
                    if (same.error < q.error)
                        q = same;
                    if (!(q.error < before * (1 - 1e-5f)))
                        continue;
                    store(search, out, row, g, q);
                    for (std::size_t i = 0; i < group_size; ++i)
                        if (order_.at[g * group_size + i] < order_.k)
                            e(r, first + static_cast<index>(i)) =
                                w(r, first + static_cast<index>(i)) - q.scale.d * q.value[i];
                }
            }
        }
    }

    feedback_options options_;
    column_order order_;
    std::vector<float> weight_, own_weight_, own_mix_;
    matrix_f mix_, h_;
    std::vector<matrix_f> solve_;
};

} // namespace crumb::inline CRUMB_ABI
