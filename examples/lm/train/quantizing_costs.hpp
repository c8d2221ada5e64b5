// What quantizing a model costs, from the shapes of its matrices: for the time that is left.
#pragma once

#include "train/quantizer.hpp"
#include "train/work_meter.hpp"

namespace lm {

/// Costs of kinds of work, in billions of multiplications of floats that are fused with sums. What others
/// cost in these terms has been measured on one machine; `work_meter` measures again.
class quantizing_costs {
  public:
    /// `tokens`: of the calibration text.
    quantizing_costs(const model& m, const quantization& how, std::size_t tokens);

    /// A pass of the text through the full model and the quantized ones, from one input to the next one
    /// (`matrix_role::input`).
    double streams(matrix_role role) const noexcept;
    /// The sums over an input's numbers in all quantized models.
    double sums(matrix_role role) const noexcept;
    /// The factors of these.
    double factors(matrix_role role) const noexcept;
    /// The scales and codes of a matrix of n x k weights. `moves`: it is brought towards the full model.
    double weights(std::size_t n, std::size_t k, bool moves) const noexcept;
    /// A pass of `tokens` through one model, without the output matrix.
    double pass(double tokens) const noexcept;
    /// What stands before the matrices, besides the vocabulary: `types` codebooks are trained.
    work_costs preparation(std::size_t types) const noexcept;
    /// Embedding and output matrix, in formats of few bits.
    double vocabulary() const noexcept;

  private:
    /// Of nested weights, else 1.
    double precisions() const noexcept;
    double quantized_streams() const noexcept;
    bool is_behind(matrix_role role) const noexcept;

    model_shape shape_;
    const quantization& how_;
    double tokens_, layer_weights_ = 0;
    std::array<double, matrix_role::inputs> reads_ = {}; ///< weights of a layer by input
};

} // namespace lm
