// The residual streams of a model in full precision and as it is quantized so far, layer by layer.
#pragma once

#include "model/session.hpp"
#include "train/work_meter.hpp"

#include <Eigen/Core>

#include <functional>
#include <vector>

namespace lm {

/// Sums over calibration inputs z of the quantized model and z' of the full one, where matrices of a layer
/// read the same numbers.
struct stream_inputs {
    using sums = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    sums h;      ///< z z^T: its lower triangle, above which anything may stand
    sums cross;  ///< (z' - z) z^T
    sums behind; ///< d z^T, d what the residual stream lacks before their product is added; or empty
};

/// Both streams over all windows of a text. Walks through a model whose matrices become quantized ones: those
/// that read `inputs(layer, reads)` are replaced before the next call. Memory for all tokens: two streams,
/// and what the widest matrix reads.
class stream_pair {
  public:
    /// `text` has whole windows of `window` tokens, which are a batch of the session at most. `embedding` is
    /// that of the quantized model.
    static crumb::result<stream_pair> make(model& m, session& s, std::span<const std::int32_t> text,
                                           std::size_t window, const tensor_rows& embedding);

    std::size_t windows() const noexcept { return tokens_ / window_; }
    /// Called with what has been done, streams or sums, and with its share of all that a call does of them.
    using listener = std::function<void(work_kind kind, double share)>;
    /// The inputs of a layer by `matrix_role::reads`. Layers and their inputs come in order; between two
    /// calls the matrices of the first one are quantized.
    crumb::result<stream_inputs> inputs(std::size_t layer, std::size_t reads, const listener& done);
    /// The same, where the sums are not wanted.
    crumb::status pass(std::size_t layer, std::size_t reads, const listener& done);

  private:
    using view = crumb::matrix_view<float>;
    stream_pair(model& m, session& s, std::size_t tokens, std::size_t window);
    view rows(buffer& of, std::size_t window, std::size_t width) const {
        return crumb::matrix(of.as<float>() + window * window_ * width, window_, width);
    }
    /// In rows that are as far apart for every width, as widths meet there.
    view inner(std::size_t window, std::size_t width) const {
        return crumb::matrix(inner_.as<float>() + window * window_ * widest_, window_, width);
    }
    /// `sums`: null if they are not wanted.
    crumb::status walk(std::size_t layer, std::size_t reads, stream_inputs* sums, const listener& done);
    crumb::status add(stream_inputs& to, std::size_t window, const view& full, const view& quantized);

    model& m_;
    session& s_;
    std::size_t tokens_, window_;
    buffer full_, quantized_; ///< streams
    /// What the matrices that write to the streams read: in the full model up to the call for these matrices,
    /// which uses it up, in the quantized one from then on.
    buffer inner_;
    std::size_t widest_ = 0; ///< numbers of a row of it
    std::vector<float> padded_, difference_;
};

} // namespace lm
