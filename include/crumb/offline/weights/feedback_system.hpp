// The linear algebra of error feedback: a matrix of second moments, factored for quantizers.
#pragma once

#include <crumb/offline/weights/column_order.hpp>

#include <Eigen/Cholesky>
#include <Eigen/Core>

#include <numeric>

namespace crumb::inline CRUMB_ABI {

/// H = sum x x^T over calibration inputs as quantizers with error feedback need it, damped and scaled to a
/// mean diagonal of 1, its columns in the order in which they are quantized (`order`). With H = R R^T, R
/// upper triangular,
///     (w - q) H (w - q)^T = sum_j R_jj^2 (w_j + sum_{i<j} R_ij / R_jj (w_i - q_i) - q_j)^2,
/// so that a column is corrected by the errors of those before it. Positions without a column (padding of a
/// ragged group) have weight and mix 0. Immutable after `make`: threads may share it.
class feedback_system {
  public:
    using matrix_f = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using index = Eigen::Index;
    /// Weights beyond fp16 cannot be an fp16 scale times a level of magnitude 1.
    static constexpr float max_weight = 65504.0f;

    /// From H, k x k; its lower triangle is read. `damping` is added to the diagonal, as a share of its mean;
    /// `reorder` puts blocks, groups and columns of largest energy first.
    static result<feedback_system> make(const matrix_view<const double>& h, double damping = 0.01,
                                        bool reorder = true) {
        if (h.rows != h.cols || h.rows == 0)
            return status::error(errc::bad_shape, "error feedback: H is %zu x %zu", h.rows, h.cols);
        if (!(damping >= 0))
            return status::error(errc::invalid_argument, "error feedback: damping %g", damping);
        std::vector<double> energy(h.rows);
        for (std::size_t i = 0; i < h.rows; ++i)
            energy[i] = h.row(i)[i];
        const double mean = std::accumulate(energy.begin(), energy.end(), 0.0) / static_cast<double>(h.rows);
        if (!std::isfinite(mean) || mean < 0)
            return status::error(errc::not_finite,
                                 "error feedback: the diagonal of H is not finite and positive");
        feedback_system f(reorder ? column_order::by_energy(energy) : column_order::ascending(h.rows));
        const index size = static_cast<index>(f.size());
        const double scale = mean > 0 ? 1 / mean : 1;
        // Reversed in both directions, the lower factor becomes the upper one.
        Eigen::MatrixXd reversed = Eigen::MatrixXd::Identity(size, size);
        for (index i = 0; i < size; ++i) {
            for (index j = 0; j < size; ++j) {
                const std::size_t a = f.column(static_cast<std::size_t>(i)),
                                  b = f.column(static_cast<std::size_t>(j));
                if (a < f.k() && b < f.k())
                    reversed(size - 1 - i, size - 1 - j) =
                        (a >= b ? h.row(a)[b] : h.row(b)[a]) * scale + (a == b ? damping : 0.0);
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
    static result<feedback_system> independent(std::size_t k, std::span<const float> importance,
                                               double damping = 0.01) {
        if (k == 0 || (!importance.empty() && importance.size() != k))
            return status::error(errc::bad_shape, "%zu importances for %zu inputs", importance.size(), k);
        feedback_system f(column_order::ascending(k));
        f.weight_.assign(f.size(), 0);
        double mean = 0;
        for (std::size_t i = 0; i < k; ++i) {
            const float a = importance.empty() ? 1.0f : importance[i];
            if (!std::isfinite(a) || a < 0)
                return status::error(errc::not_finite, "importance %zu is not finite and positive", i);
            f.weight_[i] = a;
            mean += double{a} / static_cast<double>(k);
        }
        for (std::size_t i = 0; i < k; ++i)
            f.weight_[i] = mean > 0 ? static_cast<float>(f.weight_[i] / mean + damping) : 1.0f;
        return f;
    }

    std::size_t k() const noexcept { return order_.k; }
    /// Positions: k, rounded up to groups.
    std::size_t size() const noexcept { return order_.at.size(); }
    std::size_t groups() const noexcept { return order_.group_at.size(); }
    const column_order& order() const noexcept { return order_; }
    /// The column at a position, k for none.
    std::size_t column(std::size_t position) const noexcept { return order_.at[position]; }

    /// Whether H is not diagonal. Otherwise there is no `mix`, `h`, `solve`, and nothing of single groups.
    bool has_feedback() const noexcept { return mix_.size() != 0; }
    /// R_jj^2 per position; the importance without feedback.
    const float* weight() const noexcept { return weight_.data(); }
    /// R_ij / R_jj for i < j, else 0.
    const matrix_f& mix() const noexcept { return mix_; }
    /// H, its rows and columns in order.
    const matrix_f& h() const noexcept { return h_; }
    /// H_gg^-1 of a group, and the weights (32) and mix (32 x 32) of H_gg: for sweeps, where all other groups
    /// are fixed.
    const matrix_f& solve(std::size_t group) const noexcept { return solve_[group]; }
    const float* own_weight(std::size_t group) const noexcept {
        return own_weight_.data() + group * group_size;
    }
    const float* own_mix(std::size_t group) const noexcept {
        return own_mix_.data() + group * group_size * group_size;
    }

    /// a H b^T of vectors in order.
    float product(const Eigen::RowVectorXf& a, const Eigen::RowVectorXf& b) const {
        if (has_feedback())
            return (a * h_).dot(b);
        float s = 0;
        for (std::size_t i = 0; i < size(); ++i)
            s += weight_[i] * a[static_cast<index>(i)] * b[static_cast<index>(i)];
        return s;
    }

    /// The factor for weights w so that a row quantized to q keeps its length in the direction of w: (<w, Hw>
    /// / <w, Hq>)^power, from vectors in order.
    float gain(const Eigen::RowVectorXf& w, const Eigen::RowVectorXf& q, double power) const {
        const double ww = static_cast<double>(product(w, w)), wq = static_cast<double>(product(w, q));
        if (!(wq > 0) || !(ww > 0))
            return 1.0f;
        return static_cast<float>(std::pow(std::clamp(ww / wq, 0.5, 2.0), power));
    }

    /// The number value(column) of every column, in order; positions without one have 0.
    template <class F>
    Eigen::RowVectorXf in_order(const F& value) const {
        Eigen::RowVectorXf v = Eigen::RowVectorXf::Zero(static_cast<index>(size()));
        for (std::size_t i = 0; i < size(); ++i)
            if (order_.at[i] < order_.k)
                v[static_cast<index>(i)] = value(order_.at[i]);
        return v;
    }

    /// Refuses rows of weights that are not finite or beyond fp16.
    status check_weights(const matrix_view<const float>& w, range rows) const {
        for (std::size_t r = rows.begin; r < rows.end; ++r)
            for (std::size_t i = 0; i < order_.k; ++i)
                if (!(std::fabs(w.row(r)[i]) <= max_weight))
                    return status::error(errc::not_finite, "weight (%zu, %zu) is not finite or beyond 65504",
                                         r, i);
        return {};
    }

  private:
    explicit feedback_system(column_order order) : order_(std::move(order)) {}

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
        // The same for single groups, for sweeps.
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

    column_order order_;
    std::vector<float> weight_, own_weight_, own_mix_;
    matrix_f mix_, h_;
    std::vector<matrix_f> solve_;
};

} // namespace crumb::inline CRUMB_ABI
