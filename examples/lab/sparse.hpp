// Dense-and-sparse decomposition: a few weights in full precision, all others quantized around them.
#pragma once

#include "model/session.hpp"
#include "train/calibration.hpp"

#include <crumb/offline/nested/feedback.hpp>

namespace lm::lab {

/// The parts of a matrix.
struct decomposed_matrix {
    crumb::nested_quantized dense;  ///< what the sparse part has is near 0 here, and not looked at
    std::vector<std::uint8_t> kept; ///< n x k: 1 where the sparse part has the weight
};

/// 1 for the `share` of the weights with the largest importance[j] w^2, j the column; 0 for all others.
std::vector<std::uint8_t> find_outliers(const crumb::matrix_view<const float>& w,
                                        std::span<const float> importance, double share);

/// Quantizes what is not `kept` with error feedback. Every row has a system of its own: H without the columns
/// that it keeps, which have no error to be fed to others and take none. `mean`: of the inputs, for
/// corrections; H is centered, its diagonal damped.
class sparse_feedback {
  public:
    static crumb::result<sparse_feedback> make(crumb::second_moments<double>::matrix_type h,
                                               std::vector<float> mean,
                                               const crumb::nested_feedback_options& options = {});

    /// Quantizes by all threads. `kept`: see `decomposed_matrix`.
    crumb::result<decomposed_matrix> decompose(const crumb::matrix_view<const float>& w,
                                               std::vector<std::uint8_t> kept,
                                               const crumb::nested_levels& levels, const team& threads) const;

  private:
    sparse_feedback() = default;
    crumb::status quantize(const crumb::matrix_view<const float>& rest, decomposed_matrix& out,
                           std::size_t row) const;

    crumb::second_moments<double>::matrix_type h_; ///< damped
    double min_ = 0;                               ///< what a column that is left out has in the diagonal
    std::vector<float> mean_;
    std::optional<crumb::feedback_system> whole_; ///< of rows that keep nothing
    crumb::nested_feedback_options options_;
};

/// Row after row, what both parts add up to at `bits` bits.
std::vector<float> expand(const decomposed_matrix& m, const crumb::matrix_view<const float>& w, int bits);

/// Takes all attention and feed-forward matrices of a model in full precision apart.
class decomposer {
  public:
    /// Measures inputs on `text` (see `calibration_text`), at most `chunks` windows of it. Keeps the second
    /// moments of all matrices. `full` must outlive it.
    static crumb::result<decomposer> make(const model& full, const std::string& text, std::size_t chunks,
                                          std::size_t threads);

    /// All matrices with the `share` of each kept, in the order of `model::matrices`. Levels are trained on
    /// what is not kept.
    crumb::result<std::vector<decomposed_matrix>> run(crumb::precision_range stored, double share) const;
    /// Gives `to`, nested weights of the same model as floats, those of the parts at `bits` bits.
    crumb::status put(const std::vector<decomposed_matrix>& parts, int bits, model& to) const;

  private:
    explicit decomposer(const model& full, std::size_t threads) : full_(full), threads_(threads) {}

    const model& full_;
    team threads_;
    std::vector<crumb::second_moments<double>> moments_;
    importances importance_;
};

} // namespace lm::lab
