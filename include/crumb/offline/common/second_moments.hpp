// Second moments of a layer's inputs, from batches of calibration activations.
#pragma once

#include <crumb/core/status.hpp>
#include <crumb/core/view.hpp>

#include <Eigen/Core>

#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Accumulates X^T X over batches of rows X with k inputs each. `T` is the type of the sums.
template <class T = double>
class second_moments {
  public:
    using matrix_type = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

    explicit second_moments(std::size_t k)
        : sum_(matrix_type::Zero(index(k), index(k))), inputs_(row_type::Zero(index(k))) {}

    std::size_t k() const noexcept { return static_cast<std::size_t>(sum_.rows()); }
    std::size_t rows() const noexcept { return rows_; }

    /// Adds rows of k inputs. Refuses other widths, NaN and infinity; nothing is added then.
    status add(const matrix_view<const float>& x) {
        if (x.cols != k())
            return status::error(errc::bad_shape, "second moments of %zu inputs: the batch is %zu x %zu", k(),
                                 x.rows, x.cols);
        using rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
        const Eigen::Map<const rows, 0, Eigen::OuterStride<>> all(x.data, index(x.rows), index(x.cols),
                                                                  Eigen::OuterStride<>(index(x.stride)));
        if (!all.allFinite())
            return status::error(errc::not_finite, "second moments: an input is not finite");
        constexpr Eigen::Index step = 512;
        for (Eigen::Index r = 0; r < all.rows(); r += step) {
            const matrix_type part = all.middleRows(r, std::min(step, all.rows() - r)).template cast<T>();
            sum_.template selfadjointView<Eigen::Lower>().rankUpdate(part.transpose());
            inputs_ += part.colwise().sum();
        }
        rows_ += x.rows;
        return {};
    }

    /// The sums, k x k.
    matrix_type matrix() const { return sum_.template selfadjointView<Eigen::Lower>(); }
    /// Mean input per column; 0 without rows.
    std::vector<float> mean() const {
        std::vector<float> out(k(), 0.0f);
        for (std::size_t i = 0; i < k() && rows_ != 0; ++i)
            out[i] = static_cast<float>(inputs_[index(i)] / static_cast<T>(rows_));
        return out;
    }
    /// The sums of (x - mean) (x - mean)^T, k x k: for quantizers whose outputs are corrected for the mean
    /// input.
    matrix_type centered() const {
        matrix_type h = matrix();
        if (rows_ != 0)
            h.noalias() -= inputs_.transpose() * inputs_ / static_cast<T>(rows_);
        return h;
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
    using row_type = Eigen::Matrix<T, 1, Eigen::Dynamic>;
    matrix_type sum_;
    row_type inputs_; ///< sum
    std::size_t rows_ = 0;
};

} // namespace crumb::inline CRUMB_ABI
