// Second moments of a layer's inputs, from batches of calibration activations.
#pragma once

#include <crumb/offline/common/finite.hpp>
#include <crumb/offline/common/weight_functions.hpp>

#include <Eigen/Core>

#include <concepts>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Accumulates X^T X over batches of rows X with k inputs each. `T` is the type of the sums: 512 rows are
/// summed in floats, and these sums in doubles. They depend on the batches, but on no ISA, compiler flag or
/// number of threads.
template <std::same_as<double> T = double>
class second_moments {
  public:
    using matrix_type = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

    /// No rows of k inputs.
    explicit second_moments(std::size_t k) : sum_(matrix_type::Zero(index(k), index(k))), inputs_(k, T{0}) {}

    /// Inputs.
    std::size_t k() const noexcept { return static_cast<std::size_t>(sum_.rows()); }
    /// Rows that have been added.
    std::size_t rows() const noexcept { return rows_; }

    /// Adds rows of k inputs. Refuses other widths, NaN and infinity; nothing is added then.
    status add(const matrix_view<const float>& x, const context& on = {}) { return add(x, 0, 1, on); }

    /// One of `parts` shares of the same, which threads may compute at a time; all parts return the same.
    status add(const matrix_view<const float>& x, std::size_t part, std::size_t parts,
               const context& on = {}) {
        if (x.cols != k())
            return status::error(errc::bad_shape, "second moments of %zu inputs: the batch is %zu x %zu", k(),
                                 x.rows, x.cols);
        if (const status s = check_finite(x, "second moments: inputs"); !s)
            return s;
        const auto functions = choose_weight_functions(on);
        if (!functions)
            return functions.error();
        (*functions)->add_moments({x, sum_.data(), part, parts});
        const range own = split(x.cols, parts, part);
        for (std::size_t r = 0; r < x.rows; ++r)
            for (std::size_t i = own.begin; i < own.end; ++i)
                inputs_[i] += T{x.row(r)[i]};
        if (part == 0)
            rows_ += x.rows;
        return {};
    }

    /// The sums, k x k.
    matrix_type matrix() const { return sum_.template selfadjointView<Eigen::Lower>(); }
    /// Mean input per column; 0 without rows.
    std::vector<float> mean() const {
        std::vector<float> out(k(), 0.0f);
        for (std::size_t i = 0; i < k() && rows_ != 0; ++i)
            out[i] = static_cast<float>(inputs_[i] / static_cast<T>(rows_));
        return out;
    }
    /// The sums of (x - mean) (x - mean)^T, k x k: for quantizers whose outputs are corrected for the mean
    /// input.
    matrix_type centered() const {
        matrix_type h = matrix();
        for (std::size_t i = 0; i < k() && rows_ != 0; ++i)
            for (std::size_t j = 0; j < k(); ++j)
                h(index(i), index(j)) -= inputs_[i] * inputs_[j] / static_cast<T>(rows_);
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
    matrix_type sum_;       ///< its lower triangle
    std::vector<T> inputs_; ///< sum
    std::size_t rows_ = 0;
};

} // namespace crumb::inline CRUMB_ABI
