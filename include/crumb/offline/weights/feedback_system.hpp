// The linear algebra of error feedback: a matrix of second moments, factored for quantizers.
#pragma once

#include <crumb/offline/weights/cholesky.hpp>
#include <crumb/offline/weights/column_order.hpp>

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
    using block_f = Eigen::Ref<matrix_f, 0, Eigen::OuterStride<>>;
    using const_block_f = Eigen::Ref<const matrix_f, 0, Eigen::OuterStride<>>;
    using index = Eigen::Index;
    /// Weights beyond fp16 cannot be an fp16 scale times a level of magnitude 1.
    static constexpr float max_weight = 65504.0f;

    /// From H, k x k; its lower triangle is read. `damping` is added to the diagonal, as a share of its mean;
    /// `reorder` puts blocks, groups and columns of largest energy first.
    CRUMB_WHEN_CALLED static result<feedback_system> make(const matrix_view<const double>& h,
                                                          double damping = 0.01, bool reorder = true,
                                                          const context& on = {}) {
        if (h.rows != h.cols || h.rows == 0)
            return status::error(errc::bad_shape, "error feedback: H is %zu x %zu", h.rows, h.cols);
        if (!(damping >= 0))
            return status::error(errc::invalid_argument, "error feedback: damping %g", damping);
        const auto functions = choose_weight_functions(on);
        if (!functions)
            return functions.error();
        std::vector<double> energy(h.rows);
        for (std::size_t i = 0; i < h.rows; ++i)
            energy[i] = h.row(i)[i];
        const double mean = std::accumulate(energy.begin(), energy.end(), 0.0) / static_cast<double>(h.rows);
        if (!std::isfinite(mean) || mean < 0)
            return status::error(errc::not_finite,
                                 "error feedback: the diagonal of H is not finite and positive");
        feedback_system f(reorder ? column_order::by_energy(energy) : column_order::ascending(h.rows),
                          **functions);
        const std::size_t size = f.size();
        const double scale = mean > 0 ? 1 / mean : 1;
        // Reversed in both directions, the lower factor becomes the upper one.
        std::vector<double> reversed(size * size);
        f.h_.resize(static_cast<index>(size), static_cast<index>(size));
        for (std::size_t i = 0; i < size; ++i) {
            const std::size_t a = f.column(i);
            float* to = f.h_.data() + i * size;
            for (std::size_t j = 0; j < size; ++j) {
                const std::size_t b = f.column(j);
                double x = i == j ? 1.0 : 0.0;
                if (a < f.k() && b < f.k())
                    x = rounded((a >= b ? h.row(a)[b] : h.row(b)[a]) * scale) + (a == b ? damping : 0.0);
                if (!std::isfinite(x))
                    return status::error(errc::not_finite, "error feedback: H is not finite");
                to[j] = static_cast<float>(x);
                reversed[(size - 1 - i) * size + size - 1 - j] = x;
            }
        }
        if (!factor_cholesky(**functions, reversed.data(), size))
            return status::error(errc::invalid_argument,
                                 "error feedback: H is not positive definite, more damping is needed");
        f.factor(reversed);
        return f;
    }

    /// From a diagonal H: importance weights without feedback. Empty: all 1.
    CRUMB_WHEN_CALLED static result<feedback_system> independent(std::size_t k,
                                                                 std::span<const float> importance,
                                                                 double damping = 0.01,
                                                                 const context& on = {}) {
        if (k == 0 || (!importance.empty() && importance.size() != k))
            return status::error(errc::bad_shape, "%zu importances for %zu inputs", importance.size(), k);
        const auto functions = choose_weight_functions(on);
        if (!functions)
            return functions.error();
        feedback_system f(column_order::ascending(k), **functions);
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

    /// Columns.
    std::size_t k() const noexcept { return order_.k; }
    /// Positions: k, rounded up to groups.
    std::size_t size() const noexcept { return order_.at.size(); }
    /// Groups of 32 positions.
    std::size_t groups() const noexcept { return order_.group_at.size(); }
    /// Which column stands at which position.
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
    /// H_gg^-1 of a group (32 x 32), and the weights (32) and mix (32 x 32) of H_gg: for sweeps, where all
    /// other groups are fixed.
    const float* solve(std::size_t group) const noexcept {
        return solve_.data() + group * group_size * group_size;
    }
    /// The weights of H_gg, 32.
    const float* own_weight(std::size_t group) const noexcept {
        return own_weight_.data() + group * group_size;
    }
    /// The mix of H_gg, 32 x 32.
    const float* own_mix(std::size_t group) const noexcept {
        return own_mix_.data() + group * group_size * group_size;
    }
    /// Kernels of the chosen ISA.
    const dispatch::weight_functions& functions() const noexcept { return *functions_; }

    /// Rows in order times H.
    matrix_f times_h(const matrix_f& rows) const {
        matrix_f out = matrix_f::Zero(rows.rows(), rows.cols());
        if (has_feedback()) {
            add_product(rows, h_, out);
            return out;
        }
        for (index r = 0; r < rows.rows(); ++r)
            for (index i = 0; i < rows.cols(); ++i)
                out(r, i) = rows(r, i) * weight_[static_cast<std::size_t>(i)];
        return out;
    }

    /// c += a b by the kernels, for blocks of matrices; c has a multiple of 16 columns.
    void add_product(const const_block_f& a, const const_block_f& b, block_f c) const {
        const auto size = [](index i) { return static_cast<std::size_t>(i); };
        functions_->add_product({a.data(), size(a.outerStride()), 1, b.data(), size(b.outerStride()),
                                 c.data(), size(c.outerStride()), size(a.rows()), size(c.cols()),
                                 size(a.cols())});
    }

    /// c += a[:, a_first ...] H_gg^-1 of a group; c has 32 columns.
    void add_solved(const matrix_f& a, index a_first, std::size_t group, matrix_f& c) const {
        const auto size = [](index i) { return static_cast<std::size_t>(i); };
        functions_->add_product({a.data() + a_first, size(a.cols()), 1, solve(group), group_size, c.data(),
                                 group_size, size(a.rows()), group_size, group_size});
    }

    /// Sum of a_i b_i.
    static double dot(const float* a, const float* b, std::size_t n) noexcept {
        double s = 0;
        for (std::size_t i = 0; i < n; ++i)
            s += double{a[i]} * double{b[i]}; // exact products: fused or not makes no difference
        return s;
    }

    /// a H a^T of a vector in order.
    double loss(const Eigen::RowVectorXf& a) const {
        const matrix_f ah = times_h(a);
        return dot(a.data(), ah.data(), size());
    }

    /// The factor for weights w so that a row quantized to q keeps its length in the direction of w: (<w, Hw>
    /// / <w, Hq>)^power, from w, w H and q in order.
    float gain(const float* w, const float* wh, const float* q, double power) const {
        const double ww = dot(w, wh, size()), wq = dot(q, wh, size());
        if (!(wq > 0) || !(ww > 0))
            return 1.0f;
        const double ratio = std::clamp(ww / wq, 0.5, 2.0);
        return static_cast<float>(power == 1.0 ? ratio : std::pow(ratio, power));
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
    feedback_system(column_order order, const dispatch::weight_functions& functions)
        : order_(std::move(order)), functions_(&functions) {}

    /// Takes the upper factor R apart: weights R_jj^2 and mix R_ij / R_jj. `u`: R reversed in both
    /// directions, transposed.
    void factor(const std::vector<double>& u) {
        const std::size_t size = order_.at.size(), last = size - 1;
        const auto r = [&](std::size_t i, std::size_t j) { return u[(last - j) * size + last - i]; };
        weight_.assign(size, 0);
        mix_ = matrix_f::Zero(static_cast<index>(size), static_cast<index>(size));
        for (std::size_t j = 0; j < size; ++j) {
            if (order_.at[j] >= order_.k)
                continue;
            const double d = r(j, j);
            weight_[j] = static_cast<float>(d * d);
            for (std::size_t i = 0; i < j; ++i)
                mix_(static_cast<index>(i), static_cast<index>(j)) = static_cast<float>(r(i, j) / d);
        }
        // The same for single groups, for sweeps.
        const std::size_t groups = order_.group_at.size();
        own_weight_.resize(size);
        own_mix_.assign(size * group_size, 0);
        solve_.resize(size * group_size);
        constexpr std::size_t n = group_size;
        for (std::size_t g = 0; g < groups; ++g) {
            std::vector<double> tile(n * n);
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t j = 0; j < n; ++j)
                    tile[(n - 1 - i) * n + n - 1 - j] =
                        double{h_(static_cast<index>(g * n + i), static_cast<index>(g * n + j))};
            // Principal parts of a positive definite matrix are such, but for the rounding to floats.
            if (!factor_cholesky(*functions_, tile.data(), n))
                tile = identity(n);
            const auto own = [&](std::size_t i, std::size_t j) { return tile[(n - 1 - j) * n + n - 1 - i]; };
            for (std::size_t j = 0; j < n; ++j) {
                const double d = own(j, j);
                own_weight_[g * n + j] = order_.at[g * n + j] < order_.k ? static_cast<float>(d * d) : 0.0f;
                for (std::size_t i = 0; i < j; ++i)
                    own_mix_[(g * n + i) * n + j] = static_cast<float>(own(i, j) / d);
            }
            const std::vector<double> inverse = inverse_of_cholesky(tile, n);
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t j = 0; j < n; ++j)
                    solve_[(g * n + i) * n + j] = static_cast<float>(inverse[(n - 1 - i) * n + n - 1 - j]);
        }
    }
    static std::vector<double> identity(std::size_t n) {
        std::vector<double> out(n * n, 0.0);
        for (std::size_t i = 0; i < n; ++i)
            out[i * n + i] = 1;
        return out;
    }

    column_order order_;
    const dispatch::weight_functions* functions_ = nullptr;
    std::vector<float> weight_, own_weight_, own_mix_, solve_;
    matrix_f mix_, h_;
};

} // namespace crumb::inline CRUMB_ABI
