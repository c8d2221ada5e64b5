// Weights that make up for errors in their inputs, as targets for quantizers.
#pragma once

#include <crumb/core/status.hpp>
#include <crumb/core/view.hpp>

#include <Eigen/Cholesky>
#include <Eigen/Core>

#include <cmath>

namespace crumb::inline CRUMB_ABI {

/// Weights that bring a matrix on the inputs z of a quantized model closer to what it gives on the inputs z'
/// of the full one. The least squares of || W z' + d - V z || are V = W + (W C + D) H^-1, with sums over
/// calibration inputs H = sum z z^T, C = sum (z' - z) z^T, D = sum d z^T; d is what else the outputs should
/// make up for, such as the error of the residual stream that they are added to. As they fit the calibration
/// text closer than others, a share of the way is best. Immutable after `make`: threads may share it.
class shifted_weights {
  public:
    /// From H, k x k, of which the lower triangle is read. `damping` is added to its diagonal, as a share of
    /// the mean: inputs that hardly vary leave the weights as they are.
    static result<shifted_weights> make(const matrix_view<const double>& h, double damping = 0.01) {
        if (h.rows != h.cols || h.rows == 0)
            return status::error(errc::bad_shape, "shifted weights: H is %zu x %zu", h.rows, h.cols);
        if (!(damping >= 0))
            return status::error(errc::invalid_argument, "shifted weights: damping %g", damping);
        shifted_weights out;
        out.k_ = h.rows;
        Eigen::MatrixXd a = map(h);
        const double mean = a.diagonal().mean();
        if (!std::isfinite(mean) || mean < 0)
            return status::error(errc::not_finite,
                                 "shifted weights: the diagonal of H is not finite and positive");
        // Without any input nothing is to be made up for.
        a.diagonal().array() += mean > 0 ? damping * mean : 1.0;
        out.factor_.compute(a);
        if (out.factor_.info() != Eigen::Success)
            return status::error(errc::invalid_argument,
                                 "shifted weights: H is not positive definite, more damping is needed");
        return out;
    }

    std::size_t k() const noexcept { return k_; }

    /// Adds `share` of (W C + D) H^-1 to the rows of `w`. C is k x k; D has a row for every row of `w`, or no
    /// rows at all.
    status shift(const matrix_view<float>& w, const matrix_view<const double>& c,
                 const matrix_view<const double>& d, double share) const {
        if (w.cols != k_ || c.rows != k_ || c.cols != k_ ||
            (d.rows != 0 && (d.rows != w.rows || d.cols != k_)))
            return status::error(errc::bad_shape,
                                 "shifted weights of %zu inputs: W is %zu x %zu, C %zu x %zu, D %zu x %zu",
                                 k_, w.rows, w.cols, c.rows, c.cols, d.rows, d.cols);
        constexpr std::size_t batch = 256;
        const row_major c_all = map(c);
        for (std::size_t first = 0; first < w.rows; first += batch) {
            const std::size_t rows = std::min(batch, w.rows - first);
            row_major part(index(rows), index(k_));
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t i = 0; i < k_; ++i)
                    part(index(r), index(i)) = w.row(first + r)[i];
            row_major off = part * c_all;
            if (d.rows != 0)
                off += map(d).middleRows(index(first), index(rows));
            const Eigen::MatrixXd moved = factor_.solve(off.transpose());
            if (!moved.allFinite())
                return status::error(errc::not_finite, "shifted weights: rows from %zu on are not finite",
                                     first);
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t i = 0; i < k_; ++i)
                    w.row(first + r)[i] =
                        static_cast<float>(part(index(r), index(i)) + share * moved(index(i), index(r)));
        }
        return {};
    }

  private:
    using row_major = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    static Eigen::Index index(std::size_t i) noexcept { return static_cast<Eigen::Index>(i); }
    static Eigen::Map<const row_major, 0, Eigen::OuterStride<>> map(const matrix_view<const double>& m) {
        return {m.data, index(m.rows), index(m.cols), Eigen::OuterStride<>(index(m.stride))};
    }

    std::size_t k_ = 0;
    Eigen::LLT<Eigen::MatrixXd> factor_;
};

} // namespace crumb::inline CRUMB_ABI
