// Second moments of a layer's inputs, from batches of calibration activations.
#pragma once

#include <crumb/core/status.hpp>
#include <crumb/core/view.hpp>

#include <Eigen/Core>

#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Accumulates sum x y^T over rows x, y of equally many batches: X^T X if y is left out. `T` is the type of
/// the sums; inputs are float.
template <class T = double>
class second_moments {
  public:
    using matrix_type = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

    explicit second_moments(std::size_t k) : sum_(matrix_type::Zero(index(k), index(k))) {}

    std::size_t k() const noexcept { return static_cast<std::size_t>(sum_.rows()); }
    std::size_t rows() const noexcept { return rows_; }

    /// Adds rows of k inputs. Refuses other widths, NaN and infinity; nothing is added then.
    status add(const matrix_view<const float>& x) { return add(x, x); }
    /// Adds x^T y: y are the same rows as another model has them.
    status add(const matrix_view<const float>& x, const matrix_view<const float>& y) {
        if (x.cols != k() || y.cols != k() || x.rows != y.rows)
            return status::error(errc::bad_shape,
                                 "second moments of %zu inputs: batches are %zu x %zu and %zu x %zu", k(),
                                 x.rows, x.cols, y.rows, y.cols);
        const auto a = view(x), b = view(y);
        if (!a.allFinite() || !b.allFinite())
            return status::error(errc::not_finite, "second moments: an input is not finite");
        constexpr Eigen::Index step = 512;
        for (Eigen::Index r = 0; r < a.rows(); r += step) {
            const Eigen::Index n = std::min(step, a.rows() - r);
            const matrix_type p = a.middleRows(r, n).template cast<T>();
            if (x.data == y.data && x.stride == y.stride) {
                sum_.template selfadjointView<Eigen::Lower>().rankUpdate(p.transpose());
            } else {
                both_ = true;
                const matrix_type q = b.middleRows(r, n).template cast<T>();
                sum_.noalias() += p.transpose() * q;
            }
        }
        rows_ += x.rows;
        return {};
    }

    /// The sums, k x k.
    matrix_type matrix() const {
        if (both_)
            return sum_;
        return sum_.template selfadjointView<Eigen::Lower>();
    }
    /// Mean squared input per column: the importance of its weights.
    std::vector<float> importance() const {
        std::vector<float> out(k());
        for (std::size_t i = 0; i < k(); ++i)
            out[i] = rows_ == 0 ? 1.0f : static_cast<float>(sum_(index(i), index(i)) / static_cast<T>(rows_));
        return out;
    }

  private:
    static Eigen::Index index(std::size_t i) noexcept { return static_cast<Eigen::Index>(i); }
    static auto view(const matrix_view<const float>& m) {
        using rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
        return Eigen::Map<const rows, 0, Eigen::OuterStride<>>(m.data, index(m.rows), index(m.cols),
                                                               Eigen::OuterStride<>(index(m.stride)));
    }
    matrix_type sum_;
    std::size_t rows_ = 0;
    bool both_ = false;
};

} // namespace crumb::inline CRUMB_ABI
