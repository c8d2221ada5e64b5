// Constant folding of a feed-forward network with a linearized activation function.
#pragma once

#include <crumb/offline/common/finite.hpp>

#include <Eigen/Cholesky>
#include <Eigen/Core>

#include <algorithm>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// y = C x + B, in crumb's layout: row-major by output channel.
template <class T>
struct folded_layer {
    std::size_t inputs = 0;
    std::size_t outputs = 0;
    std::vector<T> weights; ///< C, outputs x inputs
    std::vector<T> bias;    ///< B, outputs

    /// C, a row per output.
    matrix_view<const T> view() const noexcept { return matrix(weights.data(), outputs, inputs); }
    /// Adds a correction of the same shape.
    template <class U>
    void add(const folded_layer<U>& change) noexcept {
        CRUMB_CHECK(change.inputs == inputs && change.outputs == outputs,
                    "folded_layer::add: shapes disagree");
        for (std::size_t i = 0; i < weights.size(); ++i)
            weights[i] = static_cast<T>(double{weights[i]} + double{change.weights[i]});
        for (std::size_t i = 0; i < bias.size(); ++i)
            bias[i] = static_cast<T>(double{bias[i]} + double{change.bias[i]});
    }
};

namespace folding {

using matrix_d = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using vector_d = Eigen::VectorXd;

inline Eigen::Index index(std::size_t i) noexcept { return static_cast<Eigen::Index>(i); }

inline matrix_d in_double(const matrix_view<const float>& m) {
    using rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    return Eigen::Map<const rows, 0, Eigen::OuterStride<>>(m.data, index(m.rows), index(m.cols),
                                                           Eigen::OuterStride<>(index(m.stride)))
        .cast<double>();
}

/// Rounds to `T`; refuses infinite results.
template <class T>
result<folded_layer<T>> rounded(const matrix_d& c, const vector_d& b) {
    folded_layer<T> out;
    out.inputs = static_cast<std::size_t>(c.cols());
    out.outputs = static_cast<std::size_t>(c.rows());
    out.weights.resize(out.inputs * out.outputs);
    out.bias.resize(out.outputs);
    std::transform(c.data(), c.data() + c.size(), out.weights.begin(),
                   [](double x) { return static_cast<T>(x); });
    std::transform(b.data(), b.data() + b.size(), out.bias.begin(),
                   [](double x) { return static_cast<T>(x); });
    if (const status s = check_finite<T>(out.weights, "folded weights"); !s)
        return s;
    if (const status s = check_finite<T>(out.bias, "folded bias"); !s)
        return s;
    return out;
}

} // namespace folding

/// Folds y = W2^T sigma(W1 x + b1) + b2 with sigma(u) = a u + b, neuron by neuron (TARDIS, 5.2):
///
///     C = W2^T diag(a) W1,   B = W2^T (a b1 + b) + b2
///
/// `up` is W1, h x d, `down` is W2^T, d_out x h; a bias may be empty, which is 0. Neurons of slope and
/// intercept 0 add nothing. Computes in double and rounds to `T` in the end. Refuses shapes that disagree,
/// NaN and infinity, and sums beyond `T`.
template <class T = float>
result<folded_layer<T>> fold(const matrix_view<const float>& up, std::span<const float> up_bias,
                             const matrix_view<const float>& down, std::span<const float> down_bias,
                             std::span<const double> slopes, std::span<const double> intercepts) {
    const std::size_t h = up.rows;
    if (down.cols != h)
        return status::error(errc::bad_shape, "fold: up is %zu x %zu, down %zu x %zu", up.rows, up.cols,
                             down.rows, down.cols);
    if (!up_bias.empty() && up_bias.size() != h)
        return status::error(errc::bad_shape, "fold: %zu biases of up, %zu neurons", up_bias.size(), h);
    if (!down_bias.empty() && down_bias.size() != down.rows)
        return status::error(errc::bad_shape, "fold: %zu biases of down, %zu outputs", down_bias.size(),
                             down.rows);
    if (slopes.size() != h || intercepts.size() != h)
        return status::error(errc::bad_shape, "fold: %zu slopes, %zu intercepts, %zu neurons", slopes.size(),
                             intercepts.size(), h);
    if (const status s = check_finite(up, "up"); !s)
        return s;
    if (const status s = check_finite(down, "down"); !s)
        return s;
    if (const status s = check_finite(up_bias, "bias of up"); !s)
        return s;
    if (const status s = check_finite(down_bias, "bias of down"); !s)
        return s;
    if (const status s = check_finite(slopes, "slopes"); !s)
        return s;
    if (const status s = check_finite(intercepts, "intercepts"); !s)
        return s;

    using folding::index;
    folding::matrix_d c = folding::matrix_d::Zero(index(down.rows), index(up.cols));
    folding::vector_d b = folding::vector_d::Zero(index(down.rows));
    for (std::size_t i = 0; i < down_bias.size(); ++i)
        b[index(i)] = double{down_bias[i]};
    constexpr std::size_t step = 256; // neurons that are double at a time
    for (std::size_t n = 0; n < h; n += step) {
        const std::size_t size = std::min(step, h - n);
        const folding::matrix_d w2 = folding::in_double(matrix(down.data + n, down.rows, size, down.stride));
        folding::matrix_d w1 = folding::in_double(matrix(up.row(n), size, up.cols, up.stride));
        folding::vector_d constant(index(size));
        for (std::size_t i = 0; i < size; ++i) {
            w1.row(index(i)) *= slopes[n + i];
            constant[index(i)] =
                slopes[n + i] * (up_bias.empty() ? 0.0 : double{up_bias[n + i]}) + intercepts[n + i];
        }
        c.noalias() += w2 * w1;
        b.noalias() += w2 * constant;
    }
    return folding::rounded<T>(c, b);
}

/// ||W2 row n||^2 = sum over outputs of down[o][n]^2: the weight of a squared error of neuron n's activation.
inline std::vector<double> output_weights(const matrix_view<const float>& down) {
    std::vector<double> out(down.cols, 0.0);
    for (std::size_t r = 0; r < down.rows; ++r)
        for (std::size_t n = 0; n < down.cols; ++n)
            out[n] += double{down.row(r)[n]} * double{down.row(r)[n]};
    return out;
}

/// Least-squares correction of C and B for the residuals r of the folded network with its fixes:
///
///     minimize sum over rows ||r - dC x - dB||^2 + ridge trace(Sxx) / d ||dC||^2
///
/// by normal equations on centered x, dC = Sxr^T (Sxx + ridge mean(diag Sxx) I)^-1 with Sxx = sum (x - mean
/// x) (x - mean x)^T and Sxr alike, dB = mean r - dC mean x. Streams in double: memory is d (d + d_out).
class fold_refit {
  public:
    /// No rows of `inputs` inputs and `outputs` residuals.
    fold_refit(std::size_t inputs, std::size_t outputs)
        : xx_(folding::matrix_d::Zero(folding::index(inputs), folding::index(inputs))),
          xr_(folding::matrix_d::Zero(folding::index(inputs), folding::index(outputs))),
          x_(folding::vector_d::Zero(folding::index(inputs))),
          r_(folding::vector_d::Zero(folding::index(outputs))) {}

    /// Inputs d.
    std::size_t inputs() const noexcept { return static_cast<std::size_t>(x_.size()); }
    /// Residuals d_out.
    std::size_t outputs() const noexcept { return static_cast<std::size_t>(r_.size()); }
    /// Rows that have been added.
    std::size_t rows() const noexcept { return rows_; }

    /// Adds rows x, m x d, with their residuals, m x d_out. Refuses other shapes, NaN and infinity; nothing
    /// is added then.
    status add(const matrix_view<const float>& x, const matrix_view<const float>& residuals) {
        if (x.cols != inputs() || residuals.cols != outputs() || x.rows != residuals.rows)
            return status::error(errc::bad_shape,
                                 "refit of %zu inputs and %zu outputs: x is %zu x %zu, residuals %zu x %zu",
                                 inputs(), outputs(), x.rows, x.cols, residuals.rows, residuals.cols);
        if (const status s = check_finite(x, "x"); !s)
            return s;
        if (const status s = check_finite(residuals, "residuals"); !s)
            return s;
        constexpr std::size_t step = 256;
        for (std::size_t i = 0; i < x.rows; i += step) {
            const std::size_t size = std::min(step, x.rows - i);
            const folding::matrix_d px = folding::in_double(matrix(x.row(i), size, x.cols, x.stride));
            const folding::matrix_d pr =
                folding::in_double(matrix(residuals.row(i), size, residuals.cols, residuals.stride));
            xx_.selfadjointView<Eigen::Lower>().rankUpdate(px.transpose());
            xr_.noalias() += px.transpose() * pr;
            x_ += px.colwise().sum().transpose();
            r_ += pr.colwise().sum().transpose();
        }
        rows_ += x.rows;
        return {};
    }

    /// The correction to be added to the folded layer. `ridge` is a share of x's mean variance; 0 needs more
    /// rows than inputs, and linearly independent inputs. Constant inputs leave dC = 0.
    result<folded_layer<double>> solve(double ridge = 1e-3) const {
        if (!std::isfinite(ridge) || ridge < 0)
            return status::error(errc::invalid_argument, "refit: ridge %g", ridge);
        if (rows_ == 0)
            return status::error(errc::invalid_argument, "refit: there are no rows");
        const auto n = static_cast<double>(rows_);
        folding::matrix_d h = xx_.selfadjointView<Eigen::Lower>();
        const double energy = h.trace();
        h.noalias() -= x_ * x_.transpose() / n;
        folding::matrix_d change = xr_ - x_ * r_.transpose() / n; // dC^T
        // Smaller variances are rounding errors of constants.
        if (h.trace() <= 1e-13 * energy) {
            change.setZero();
        } else {
            h.diagonal().array() += ridge * h.trace() / static_cast<double>(inputs());
            const Eigen::LLT<folding::matrix_d> factor(h);
            if (factor.info() != Eigen::Success || !(factor.rcond() > 1e-13))
                return status::error(errc::invalid_argument,
                                     "refit: %zu rows do not determine %zu inputs with ridge %g", rows_,
                                     inputs(), ridge);
            change = factor.solve(change).eval();
        }
        return folding::rounded<double>(change.transpose(), (r_ - change.transpose() * x_) / n);
    }

  private:
    folding::matrix_d xx_; ///< lower triangle
    folding::matrix_d xr_;
    folding::vector_d x_, r_;
    std::size_t rows_ = 0;
};

} // namespace crumb::inline CRUMB_ABI
