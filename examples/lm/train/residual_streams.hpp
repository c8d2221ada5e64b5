// The residual streams of a model in full precision and as it is quantized so far, at one precision or
// several, layer by layer.
#pragma once

#include "model/session.hpp"
#include "train/work_meter.hpp"

#include <Eigen/Core>

#include <functional>
#include <vector>

namespace lm {

/// Sums over calibration inputs z of a quantized model and z' of the full one, where matrices of a layer read
/// the same numbers.
struct stream_inputs {
    using sums = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    sums h;      ///< z z^T: its lower triangle, above which anything may stand
    sums cross;  ///< (z' - z) z^T
    sums behind; ///< d z^T, d what the residual stream lacks before their product is added; or empty
    std::vector<double> input, gap, lack; ///< means of z, z' - z and d
    std::size_t tokens = 0;

    /// Makes the sums those of what differs from the means.
    void center();
};

/// Sums as the library takes them.
inline crumb::matrix_view<const double> view(const stream_inputs::sums& of) {
    return crumb::matrix<const double>(of.data(), static_cast<std::size_t>(of.rows()),
                                       static_cast<std::size_t>(of.cols()));
}

/// The stream of the full model and those of quantized ones over all windows of a text. Walks through a model
/// whose matrices become quantized ones. Memory for all tokens: the streams, and what the widest matrix reads
/// in each of the quantized models.
class residual_streams {
  public:
    /// `text` has whole windows of `window` tokens, which are a batch of the session at most. `embedding` is
    /// that of the `count` quantized models.
    static crumb::result<residual_streams> make(model& m, session& s, std::span<const std::int32_t> text,
                                                std::size_t window, const tensor_rows& embedding,
                                                std::size_t count = 1);

    std::size_t windows() const noexcept { return tokens_ / window_; }
    /// The quantized models.
    std::size_t count() const noexcept { return quantized_.size(); }
    /// Called with what has been done, streams or sums, and with its share of all that a call does of them.
    using listener = std::function<void(work_kind kind, double share)>;
    /// The inputs of a layer by `matrix_role::reads` in one of the quantized models. Layers, their inputs and
    /// for each of them the models come in order. Before every call the matrices that read the inputs before
    /// become those of that model; the ones that read these are the full model's until the last model's call.
    crumb::result<stream_inputs> inputs(std::size_t layer, std::size_t reads, std::size_t of,
                                        const listener& done);
    /// The same, where the sums are not wanted.
    crumb::status pass(std::size_t layer, std::size_t reads, std::size_t of, const listener& done);

  private:
    using view = crumb::matrix_view<float>;
    residual_streams(model& m, session& s, std::size_t tokens, std::size_t window, std::size_t count);
    view rows(buffer& of, std::size_t window, std::size_t width) const {
        return crumb::matrix(of.as<float>() + window * window_ * width, window_, width);
    }
    /// In rows that are as far apart for every width, as widths meet there.
    view inner(std::size_t of, std::size_t window, std::size_t width) {
        return crumb::matrix(inner_[of].as<float>() + window * window_ * widest_, window_, width);
    }
    /// `sums`: null if they are not wanted.
    crumb::status walk(std::size_t layer, std::size_t reads, std::size_t of, stream_inputs* sums,
                       const listener& done);
    crumb::status add(stream_inputs& to, std::size_t of, std::size_t window, const view& full,
                      const view& quantized);

    model& m_;
    session& s_;
    std::size_t tokens_, window_;
    buffer full_;                   ///< stream
    std::vector<buffer> quantized_; ///< streams
    /// What the matrices that write to the streams read, by quantized model. That of the last one is the full
    /// model's up to its call for these matrices, which uses it up.
    std::vector<buffer> inner_;
    std::size_t widest_ = 0; ///< numbers of a row of it
    std::vector<float> padded_, difference_;
};

} // namespace lm
