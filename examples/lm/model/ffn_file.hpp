// Folded feed-forward networks in a model's file.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "model/ffn.hpp"
#include "model/model.hpp"

namespace lm {

/// A folded network as files keep it.
struct stored_ffn {
    std::vector<float> fold_floats; ///< C, row after row; empty if it is packed
    buffer fold;                    ///< C packed
    std::size_t fold_bytes = 0;
    std::vector<float> fold_bias; ///< B
    buffer predictor;             ///< packed
    std::size_t predictor_bytes = 0;
    std::vector<float> predictor_bias; ///< b1, and what the mean input makes of rounding
    buffer neurons;
    std::size_t neuron_bytes = 0;
    std::vector<crumb::half> bounds; ///< sound: neurons x 2 groups
    float fixed = 0;                 ///< share of neurons, on the calibration text
};

/// The networks of all layers.
struct stored_ffns {
    ffn_recipe recipe;
    std::vector<std::int8_t> fold_codebooks, predictor_codebooks;
    std::vector<stored_ffn> layers;
};

/// What the names of their keys and tensors begin with.
inline constexpr std::string_view ffn_prefix = "crumb.ffn.";

/// Adds networks to a file: keys `crumb.ffn.version`, `.model`, `.recipe`, `.fixed`, `.fold_codebooks`,
/// `.predictor_codebooks`, tensors `crumb.ffn.<layer>.fold`, `.bias`, `.predictor`, `.predictor_bias`,
/// `.neurons` and perhaps `.bounds`. `ffns` stays the caller's until the file is written.
void write_ffns(gguf_writer& to, const model& m, const stored_ffns& ffns);

/// The network of one layer, ready to run. Refers to the file's bytes and to the model's biases.
class folded_layer {
  public:
    const crumb::folded_ffn& plan() const noexcept { return *plan_; }
    /// Bytes of everything.
    std::size_t bytes() const noexcept { return bytes_; }

  private:
    friend crumb::result<std::vector<folded_layer>> read_ffns(const model& m, const model_options& options);
    std::vector<float> fold_bias_, predictor_bias_;
    buffer fold_; ///< where the file's bytes are floats
    std::optional<crumb::folded_ffn> plan_;
    std::size_t bytes_ = 0;
};

/// What a file has: an error if it has none, if they are damaged, of another model or of a version this
/// program does not read. Refers to the model's matrices with `ffn_type::both`.
crumb::result<std::vector<folded_layer>> read_ffns(const model& m, const model_options& options);

} // namespace lm
