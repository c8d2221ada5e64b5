// What the matrices of a model read while it is fed a text.
#pragma once

#include "model/progress.hpp"
#include "model/session.hpp"

#include <crumb/offline/common/second_moments.hpp>

#include <functional>
#include <vector>

namespace lm {

/// Mean squared inputs of matrices by `matrix_role::input`.
using importances = std::vector<std::vector<float>>;

/// What a model's matrices read while it is fed a text, window by window of `window` tokens.
class calibration {
  public:
    calibration(const model& m, session& s, std::span<const std::int32_t> text, std::size_t window)
        : m_(m), s_(s), text_(text), window_(window) {}

    std::size_t windows() const noexcept { return text_.size() / window_; }
    /// Mean squares of all inputs.
    crumb::result<importances> mean_squares(const progress_function& progress = {});
    /// Sums of x x^T of the inputs of some layers; the rest is left out.
    crumb::result<std::vector<crumb::second_moments<double>>> moments(crumb::range layers,
                                                                      const progress_function& progress = {});

    /// Called in each of `parts` threads, which may share the work.
    using function = std::function<crumb::status(std::size_t input, const crumb::matrix_view<const float>& x,
                                                 std::size_t part, std::size_t parts)>;
    /// Feeds the text and hands over the inputs of all matrices by number.
    crumb::status watch(const function& f, const progress_function& progress);
    /// Sums of x x^T of the output matrix's inputs, on `most` windows at most.
    crumb::result<crumb::second_moments<double>> output_moments(std::size_t most,
                                                                const progress_function& progress = {});

  private:
    using observer = std::function<crumb::status(
        const matrix& reader, const crumb::matrix_view<const float>& x, std::size_t part, std::size_t parts)>;
    /// Feeds the first `count` windows, of which the last `wanted` rows go on to the output matrix, until f
    /// fails.
    crumb::status feed(std::size_t count, std::size_t wanted, const observer& f,
                       const progress_function& progress);

    const model& m_;
    session& s_;
    std::span<const std::int32_t> text_;
    std::size_t window_;
};

} // namespace lm
