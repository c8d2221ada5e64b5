// Weights that make up for errors in their inputs, as targets for quantizers.
#pragma once

#include <crumb/core/status.hpp>
#include <crumb/offline/weights/cholesky.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Weights that bring a matrix on the inputs z of a quantized model closer to what it gives on the inputs z'
/// of the full one. The least squares of || W z' + d - V z || are V = W + (W C + D) H^-1, with sums over
/// calibration inputs H = sum z z^T, C = sum (z' - z) z^T, D = sum d z^T; d is what else the outputs should
/// make up for, such as the error of the residual stream that they are added to. As they fit the calibration
/// text closer than others, a share of the way is best. The bits depend on no ISA, compiler flag or number of
/// threads. Immutable after `make`: threads may share it.
class shifted_weights {
  public:
    /// From H, k x k, of which the lower triangle is read. `damping` is added to its diagonal, as a share of
    /// the mean: inputs that hardly vary leave the weights as they are.
    CRUMB_WHEN_CALLED static result<shifted_weights> make(const matrix_view<const double>& h,
                                                          double damping = 0.01, const context& on = {}) {
        if (h.rows != h.cols || h.rows == 0)
            return status::error(errc::bad_shape, "shifted weights: H is %zu x %zu", h.rows, h.cols);
        if (!(damping >= 0))
            return status::error(errc::invalid_argument, "shifted weights: damping %g", damping);
        const auto functions = choose_weight_functions(on);
        if (!functions)
            return functions.error();
        shifted_weights out(**functions, h.rows);
        const std::size_t n = out.n_;
        double mean = 0;
        for (std::size_t i = 0; i < h.rows; ++i)
            mean += h.row(i)[i] / static_cast<double>(h.rows);
        if (!std::isfinite(mean) || mean < 0)
            return status::error(errc::not_finite,
                                 "shifted weights: the diagonal of H is not finite and positive");
        // Without any input nothing is to be made up for.
        const double added = mean > 0 ? rounded(damping * mean) : 1.0;
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = i; j < n; ++j)
                out.factor_[i * n + j] = j < h.rows ? h.row(j)[i] + (i == j ? added : 0.0)
                                         : i == j   ? 1.0
                                                    : 0.0;
        if (!factor_cholesky(**functions, out.factor_.data(), n))
            return status::error(errc::invalid_argument,
                                 "shifted weights: H is not positive definite, more damping is needed");
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = i; j < n; ++j)
                out.factor_[j * n + i] = out.factor_[i * n + j];
        return out;
    }

    /// Inputs.
    std::size_t k() const noexcept { return k_; }

    /// Adds `share` of (W C + D) H^-1 to `rows` of `w`. C is k x k; D has a row for every row of `w`, or no
    /// rows at all.
    status shift(const matrix_view<float>& w, const matrix_view<const double>& c,
                 const matrix_view<const double>& d, double share, range rows = {}) const {
        if (w.cols != k_ || c.rows != k_ || c.cols != k_ ||
            (d.rows != 0 && (d.rows != w.rows || d.cols != k_)))
            return status::error(errc::bad_shape,
                                 "shifted weights of %zu inputs: W is %zu x %zu, C %zu x %zu, D %zu x %zu",
                                 k_, w.rows, w.cols, c.rows, c.cols, d.rows, d.cols);
        rows = rows.within(w.rows);
        // Columns of products come in sixteens.
        std::vector<double> padded;
        if (n_ != k_) {
            padded.assign(k_ * n_, 0.0);
            for (std::size_t r = 0; r < k_; ++r)
                std::copy_n(c.row(r), k_, padded.data() + r * n_);
        }
        const auto all = n_ == k_ ? c : matrix<const double>(padded.data(), k_, n_);
        std::vector<double> minus(product_rows * k_), off(product_rows * n_);
        for (std::size_t first = rows.begin; first < rows.end; first += product_rows) {
            const std::size_t m = std::min(product_rows, rows.end - first);
            std::fill(off.begin(), off.end(), 0.0);
            for (std::size_t r = 0; r < m; ++r) {
                for (std::size_t i = 0; i < k_; ++i)
                    minus[r * k_ + i] = -double{w.row(first + r)[i]};
                if (d.rows != 0)
                    std::copy_n(d.row(first + r), k_, off.data() + r * n_);
            }
            functions_->subtract_product(
                {minus.data(), k_, 1, all.data, all.stride, off.data(), n_, m, n_, k_});
            solve(off.data(), m);
            for (std::size_t r = 0; r < m; ++r)
                for (std::size_t i = 0; i < k_; ++i) {
                    const double moved = rounded(share * off[r * n_ + i]) - minus[r * k_ + i];
                    if (!std::isfinite(moved))
                        return status::error(errc::not_finite,
                                             "shifted weights: weight (%zu, %zu) is not finite", first + r,
                                             i);
                    w.row(first + r)[i] = static_cast<float>(moved);
                }
        }
        return {};
    }

  private:
    shifted_weights(const dispatch::weight_functions& functions, std::size_t k)
        : functions_(&functions), k_(k), n_((k + 15) / 16 * 16), factor_(n_ * n_, 0.0) {}

    /// m rows x of n numbers become those with x U^T U as they were: block by block, first x U, then x U^T.
    void solve(double* x, std::size_t m) const {
        constexpr std::size_t block = 16;
        for (std::size_t first = 0; first < n_; first += block) {
            functions_->subtract_product(
                {x, n_, 1, factor_.data() + first, n_, x + first, n_, m, block, first});
            for (std::size_t r = 0; r < m; ++r)
                for (std::size_t j = first; j < first + block; ++j) {
                    double sum = x[r * n_ + j];
                    for (std::size_t i = first; i < j; ++i)
                        sum -= rounded(x[r * n_ + i] * factor_[i * n_ + j]);
                    x[r * n_ + j] = sum / factor_[j * n_ + j];
                }
        }
        for (std::size_t end = n_; end > 0; end -= block) {
            const std::size_t first = end - block;
            functions_->subtract_product(
                {x + end, n_, 1, factor_.data() + end * n_ + first, n_, x + first, n_, m, block, n_ - end});
            for (std::size_t r = 0; r < m; ++r)
                for (std::size_t j = end; j-- > first;) {
                    double sum = x[r * n_ + j];
                    for (std::size_t i = j + 1; i < end; ++i)
                        sum -= rounded(x[r * n_ + i] * factor_[i * n_ + j]);
                    x[r * n_ + j] = sum / factor_[j * n_ + j];
                }
        }
    }

    const dispatch::weight_functions* functions_;
    std::size_t k_, n_;          ///< n: k, rounded up to a multiple of 16
    std::vector<double> factor_; ///< U and, below its diagonal, U^T: rows of both are read as they lie
};

} // namespace crumb::inline CRUMB_ABI
