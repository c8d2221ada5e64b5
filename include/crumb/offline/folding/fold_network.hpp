// From the weights of a feed-forward network to a folded one, in one call.
#pragma once

#include <crumb/core/buffer.hpp>
#include <crumb/format/q8_0.hpp>
#include <crumb/format/u2.hpp>
#include <crumb/offline/folding/activation_statistics.hpp>
#include <crumb/offline/folding/coverage.hpp>
#include <crumb/offline/folding/folding.hpp>
#include <crumb/offline/folding/linear_range.hpp>
#include <crumb/offline/weights/quantize.hpp>
#include <crumb/op/ffn/folded_ffn.hpp>

namespace crumb::inline CRUMB_ABI {

/// y = W2^T sigma(W1 x + b1) + b2 of h neurons, d inputs and e outputs; a bias may be empty, which is 0.
struct ffn_weights {
    matrix_view<const float> up; ///< W1, h x d
    std::span<const float> up_bias = {};
    matrix_view<const float> down; ///< W2^T, e x h
    std::span<const float> down_bias = {};
    activation_function activation = {};

    /// Inputs, neurons and outputs.
    ffn_shape shape() const noexcept { return {up.cols, up.rows, down.rows}; }
};

/// How a network is folded.
struct fold_options {
    double coverage = 0.9;  ///< share of inputs of neurons that lie in the range where a line replaces sigma
    std::size_t bins = 128; ///< of the statistics of a neuron
    row_codec in = row_codec::q8_0, out = row_codec::q8_0; ///< of the rows of W1 and W2 that fixes read
};

class folded_network;

/// Folds a network (TARDIS, section 5): a line for each neuron on the range of its estimates that `coverage`
/// of `inputs` (n x d, what the network reads in use, at least 4096 rows or so) lie in, C and B in the format
/// `Fold`, estimates by W1 in `Predictor`, and the rows of all neurons, to fix those outside. For chosen
/// formats of codebooks, corrected means, sound bounds or coverage shared among layers see docs/folding.md.
/// Refuses shapes that disagree, NaN and infinity.
template <rounding_format Fold = q8_0, rounding_format Predictor = u2>
result<folded_network> fold_network(const ffn_weights& w, const matrix_view<const float>& inputs,
                                    const fold_options& options = {}, const context& on = {});

/// A folded network with the memory that its parts refer to; movable.
class folded_network {
  public:
    /// Inputs, neurons and outputs.
    const ffn_shape& shape() const noexcept { return shape_; }
    /// What a plan is made of; refers to this object.
    const folded_ffn_parts& parts() const noexcept { return parts_; }
    /// Share of the neurons outside their ranges on the inputs that it was folded on.
    double expected_share() const noexcept { return expected_; }
    /// Bytes of weights.
    std::size_t bytes() const noexcept { return fold_.size() + predictor_.size() + neurons_.size(); }
    /// A plan with `expected_share`; refers to this network, which stays where it is or is moved, and
    /// outlives it.
    CRUMB_WHEN_CALLED
    result<folded_ffn> plan(folded_ffn_options options = {}, const context& on = {}) const noexcept {
        options.expected_share = expected_;
        return folded_ffn::plan(shape_, parts_, options, on);
    }

  private:
    template <rounding_format Fold, rounding_format Predictor>
    friend result<folded_network> fold_network(const ffn_weights& w, const matrix_view<const float>& inputs,
                                               const fold_options& options, const context& on);
    ffn_shape shape_;
    buffer fold_, predictor_, neurons_;
    std::vector<float> fold_bias_, up_bias_, down_bias_;
    folded_ffn_parts parts_;
    double expected_ = 0;
};

namespace folding {

/// Weights rounded to a format and packed in `memory`, with a plan.
template <rounding_format F>
result<any_linear> plan_rounded(const matrix_view<const float>& w, std::span<const float> bias,
                                buffer& memory, const context& on) {
    const auto rounded = quantize<F>(w);
    if (!rounded)
        return rounded.error();
    memory = buffer(packed_bytes<F>(w.rows, w.cols));
    const auto packed = pack(*rounded, memory);
    if (!packed)
        return packed.error();
    const auto plan = linear<F>::plan(*packed, {.bias = bias}, on);
    if (!plan)
        return plan.error();
    return any_linear(*plan);
}

/// Adds what neurons see of rows of inputs: estimates v, exact inputs u and outputs s.
inline status collect(const ffn_weights& w, const any_linear& predictor,
                      const matrix_view<const float>& inputs, const context& on,
                      activation_statistics& statistics) {
    const auto exact = dense_linear<float>::plan(w.up, {.bias = w.up_bias}, on);
    const auto ops = float_ops::plan(on);
    if (!exact || !ops)
        return exact ? ops.error() : exact.error();
    constexpr std::size_t together = 256;
    const std::size_t h = w.up.rows;
    std::vector<float> v(together * h), u(together * h), s(together * h);
    const auto layout = predictor.input_plan();
    const buffer memory(activation_bytes(layout, together));
    for (std::size_t first = 0; first < inputs.rows; first += together) {
        const auto x = rows(inputs, {first, std::min(first + together, inputs.rows)});
        auto a = activations::create(memory, layout, x.rows);
        if (!a)
            return a.error();
        a->quantize(x);
        predictor.run(*a, matrix(v.data(), x.rows, h));
        exact->run(x, matrix(u.data(), x.rows, h));
        w.activation.apply(*ops, u.data(), s.data(), x.rows * h);
        if (const status done = statistics.add(matrix<const float>(v.data(), x.rows, h),
                                               matrix<const float>(u.data(), x.rows, h),
                                               matrix<const float>(s.data(), x.rows, h));
            !done)
            return done;
    }
    return {};
}

} // namespace folding

template <rounding_format Fold, rounding_format Predictor>
result<folded_network> fold_network(const ffn_weights& w, const matrix_view<const float>& inputs,
                                    const fold_options& options, const context& on) {
    const ffn_shape shape = w.shape();
    if (w.down.cols != shape.neurons || inputs.cols != shape.inputs)
        return status::error(errc::bad_shape,
                             "fold: W1 is %zu x %zu, W2^T %zu x %zu, inputs have %zu columns", w.up.rows,
                             w.up.cols, w.down.rows, w.down.cols, inputs.cols);
    if ((!w.up_bias.empty() && w.up_bias.size() != shape.neurons) ||
        (!w.down_bias.empty() && w.down_bias.size() != shape.outputs))
        return status::error(errc::bad_shape,
                             "fold: biases of %zu and %zu values for %zu neurons and %zu outputs",
                             w.up_bias.size(), w.down_bias.size(), shape.neurons, shape.outputs);
    folded_network n;
    n.shape_ = shape;
    n.up_bias_.assign(shape.neurons, 0.0f);
    std::copy(w.up_bias.begin(), w.up_bias.end(), n.up_bias_.begin());
    n.down_bias_.assign(w.down_bias.begin(), w.down_bias.end());

    const auto predictor = folding::plan_rounded<Predictor>(w.up, n.up_bias_, n.predictor_, on);
    if (!predictor)
        return predictor.error();
    auto statistics = activation_statistics::make(shape.neurons, options.bins);
    if (!statistics)
        return statistics.error();
    if (const status seen = folding::collect(w, *predictor, inputs, on, *statistics); !seen)
        return seen;

    const auto weights = output_weights(w.down);
    std::vector<std::vector<linear_range>> ranges(shape.neurons);
    std::vector<std::vector<curve_point>> curves(shape.neurons);
    for (std::size_t i = 0; i < shape.neurons; ++i) {
        auto found = best_ranges(*statistics, i);
        if (!found)
            return found.error();
        ranges[i] = std::move(*found);
        curves[i] = error_curve(ranges[i], weights[i]);
    }
    const layer_curves layers[] = {{curves}};
    const auto shared = share_coverage(layers, {.target = options.coverage});
    if (!shared)
        return shared.error();

    const neuron_shape stored{shape.neurons, shape.inputs, shape.outputs, options.in, options.out, false};
    const auto layout = neuron_layout::of(stored);
    if (!layout)
        return layout.error();
    n.neurons_ = buffer(layout->bytes);
    const auto writer = neuron_writer::create(n.neurons_, stored);
    if (!writer)
        return writer.error();
    std::vector<double> slopes(shape.neurons), intercepts(shape.neurons);
    std::vector<float> row(std::max(shape.inputs, shape.outputs));
    for (std::size_t i = 0; i < shape.neurons; ++i) {
        const std::size_t range = curves[i][shared->points[0][i]].range;
        const linear_range r = range == curve_point::nothing ? linear_range() : ranges[i][range];
        slopes[i] = r.slope;
        intercepts[i] = r.intercept;
        const auto low = static_cast<float>(r.low), high = static_cast<float>(r.high);
        writer->line(
            i, {static_cast<float>(r.slope), static_cast<float>(r.intercept), n.up_bias_[i], low, high});
        writer->thresholds(i, low, high);
        encode_row(stored.in, w.up.row(i), shape.inputs, writer->in(i));
        for (std::size_t c = 0; c < shape.outputs; ++c)
            row[c] = w.down.row(c)[i];
        encode_row(stored.out, row.data(), shape.outputs, writer->out(i));
    }
    const auto neurons = writer->finish();
    if (!neurons)
        return neurons.error();
    auto folded = fold(w.up, n.up_bias_, w.down, w.down_bias, slopes, intercepts);
    if (!folded)
        return folded.error();
    n.fold_bias_ = std::move(folded->bias);
    const auto fold = folding::plan_rounded<Fold>(folded->view(), n.fold_bias_, n.fold_, on);
    if (!fold)
        return fold.error();

    n.expected_ = 1 - shared->mean;
    n.parts_ = {.fold = *fold,
                .predictor = *predictor,
                .neurons = *neurons,
                .activation = w.activation,
                .output_bias = n.down_bias_};
    return n;
}

} // namespace crumb::inline CRUMB_ABI
