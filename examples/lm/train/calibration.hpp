// What the matrices of a model read while it is fed a text.
#pragma once

#include "model/progress.hpp"
#include "model/session.hpp"

#include <crumb/offline/common/second_moments.hpp>

#include <functional>
#include <optional>
#include <vector>

namespace lm {

/// Mean squared inputs of matrices by `matrix_role::input`.
using importances = std::vector<std::vector<float>>;

/// What a model's matrices read while it is fed a text, in windows of `window` tokens, each a batch of the
/// session at most. Sums are made layer by layer over all windows, so that floats on demand are there for one
/// layer at a time, and take memory for the residual stream of all tokens.
class calibration {
  public:
    calibration(const model& m, session& s, std::span<const std::int32_t> text, std::size_t window)
        : m_(m), s_(s), text_(text), window_(window) {}

    std::size_t windows() const noexcept { return text_.size() / window_; }
    /// Mean squares of all inputs.
    crumb::result<importances> mean_squares(const progress_function& progress = {});
    /// Sums of x x^T of the inputs of some layers. Goes on behind the layers of the call before, if it can.
    crumb::result<std::vector<crumb::second_moments<double>>> moments(crumb::range layers,
                                                                      const progress_function& progress = {});

    /// Called in each of `parts` threads, which may share the work.
    using function = std::function<crumb::status(std::size_t input, const crumb::matrix_view<const float>& x,
                                                 std::size_t part, std::size_t parts)>;
    /// Feeds the text, window by window, and hands over the inputs of all matrices by number. Not with floats
    /// on demand.
    crumb::status watch(const function& f, const progress_function& progress);
    /// Sums of x x^T of the output matrix's inputs, on `most` windows at most.
    crumb::result<crumb::second_moments<double>> output_moments(std::size_t most,
                                                                const progress_function& progress = {});
    /// Frees the residual stream.
    void forget() noexcept {
        stream_ = {};
        passed_.reset();
    }

  private:
    /// Calls step(window) for `count` windows, until one or f fails: f with the inputs of what that runs, if
    /// it is not empty.
    template <class Step>
    crumb::status observe(std::size_t count, const function& f, Step&& step);
    /// Leads the residual stream of the first `count` windows through the layers before `layers`, then
    /// through these, whose inputs it hands over.
    crumb::status walk(std::size_t count, crumb::range layers, const function& f,
                       const progress_function& progress);
    crumb::matrix_view<float> stream(std::size_t window) const;
    crumb::status embed(std::size_t count);
    crumb::status run_layer(std::size_t layer, std::size_t window);

    const model& m_;
    session& s_;
    std::span<const std::int32_t> text_;
    std::size_t window_;
    buffer stream_; ///< residual stream of `count_` windows
    std::size_t count_ = 0;
    std::optional<std::size_t> passed_; ///< layers that it has gone through
    std::vector<float> inner_;          ///< what the second matrices of a block read
};

} // namespace lm
