// A transformer read from a GGUF file: what `architecture.hpp` has an entry for.
#pragma once

#include "model/ffn.hpp"
#include "model/matrix.hpp"
#include "model/model_shape.hpp"
#include "model/packed_file.hpp"
#include "text/tokenizer.hpp"

#include <crumb/core/buffer.hpp>

#include <memory>
#include <string>
#include <vector>

namespace lm {

using crumb::buffer;

/// Which of a model's attention and feed-forward matrices one is.
struct matrix_role {
    static constexpr std::size_t inputs = 4; ///< of a layer: matrices that read the same numbers share one
    std::size_t layer = 0;
    std::size_t reads = 0; ///< 0: normed, before attention; 1: attended; 2: normed, before FFN; 3: activated
    std::size_t input() const noexcept { return layer * inputs + reads; }
    bool is_ffn() const noexcept { return reads >= 2; }
};
/// The role that a tensor's name says; nothing for embeddings, norms and biases.
std::optional<matrix_role> find_role(std::string_view tensor) noexcept;

/// A matrix of a model, by the name of its tensor.
struct named_matrix {
    std::string name;
    const matrix* m;
    matrix_role role;
};

/// Those of some layers, out of a model's.
std::span<const named_matrix> of_layers(std::span<const named_matrix> matrices, crumb::range layers);
/// The first of them, not none, and those behind it that read the same numbers.
std::span<const named_matrix> same_inputs(std::span<const named_matrix> matrices);

/// The tensor of `model::output_basis`.
inline constexpr const char* output_basis_tensor = "output_basis.weight";
/// The key of a rotated model: a number by its source and its rotation.
inline constexpr const char* rotation_key = "crumb.rotation";

class folded_layer;

/// One layer: attention and feed-forward, each behind a norm. Empty vectors are parameters the model lacks.
struct model_layer {
    std::vector<float> attention_norm, attention_norm_bias, ffn_norm, ffn_norm_bias;
    std::vector<float> query_norm, key_norm;               ///< of a head
    std::vector<float> attention_post_norm, ffn_post_norm; ///< of what is added to the residual stream
    std::vector<float> qkv_bias, output_bias, up_bias, down_bias;
    std::vector<float> q_bias, k_bias, v_bias, gate_bias;
    matrix q, k, v;
    matrix qkv; ///< the three in one, instead
    matrix output, up, down;
    matrix gate;                                ///< if it is a matrix of its own; else `up` may begin with it
    std::shared_ptr<const folded_layer> folded; ///< instead of up and down or beside them, or null
};

/// How `model::load` prepares the matrices.
struct model_options {
    weight_type weights = weight_type::stored;
    activation_type activations = activation_type::int8;
    ffn_type ffn = ffn_type::dense; ///< whether folded networks replace the matrices `up` and `down`
    bool ffn_by_lists = false;      ///< every row of a batch is folded, as in generation
    bool floats_on_demand = false;  ///< with f32 weights, of the layers: see `model::bring`
    std::optional<architecture_traits> traits = {}; ///< instead of the entry of the file's architecture
    const pack_source* source =
        nullptr; ///< of packed weights, if it has just been described; see `check_source`
};

/// A model ready to run. Immovable parts of it (biases) are referred to by its matrices.
class model {
  public:
    model(model&&) = default;

    /// Maps and reads a file. Refuses packed weights whose source has changed. Attention and feed-forward
    /// matrices become `options.weights`; embeddings, positions, norms, biases and the output matrix stay as
    /// the file has them, except that matrices in types that are decoded only (IQ1, IQ2, IQ3, Q8_1, Q8_K)
    /// become q8_0 where they would stay. Errors name what is missing, unknown or of the wrong shape.
    static crumb::result<model> load(const std::string& path, const model_options& options);
    /// The same from a file's bytes, at an address that they keep; `path` is for messages.
    static crumb::result<model> load(buffer file, const std::string& path, const model_options& options);

    const std::string& path() const noexcept { return path_; }
    const model_shape& shape() const noexcept { return shape_; }
    const tokenizer& vocabulary() const noexcept { return *tokenizer_; }
    const std::vector<model_layer>& layers() const noexcept { return layers_; }
    const std::vector<float>& output_norm() const noexcept { return output_norm_; }
    const std::vector<float>& output_norm_bias() const noexcept { return output_norm_bias_; }
    const matrix& output() const noexcept { return output_; }
    /// Of a model whose residual stream was rotated and whose output matrix is its embedding: width x width,
    /// multiplied with the normed stream before the output matrix reads it. Else it has no rows.
    const matrix& output_basis() const noexcept { return output_basis_; }
    /// The name of its tensor: a model without an output matrix uses its embedding.
    const char* output_tensor() const noexcept {
        return file_.find_tensor("output.weight") != nullptr ? "output.weight" : "token_embd.weight";
    }
    /// Attention and feed-forward matrices in the order of their inputs.
    std::vector<named_matrix> matrices() const;
    /// Brings the floats of some of `matrices()`, where those are there on demand only, and lets them go: no
    /// part of a pass may run that multiplies others. One thread at a time. See `matrix::bring`.
    crumb::status bring(std::span<const named_matrix> which) const;
    void leave(std::span<const named_matrix> which) const;
    /// The weights of one of `matrices()`, to be changed in place: see `matrix::floats`.
    std::span<float> floats(const named_matrix& each) noexcept;
    /// Numbers that are added to its outputs: see `matrix::correct`.
    crumb::status correct(const named_matrix& each, std::span<const float> corrections);
    const gguf& file() const noexcept { return file_; }
    /// Other weights for one of `matrices()` at `bits` bits: see `matrix::replace`.
    crumb::status replace(const named_matrix& each, int bits, std::span<const float> weights,
                          std::span<const float> corrections);
    /// Writes the embedding of a token, which is decoded where it is stored.
    void embedding(std::size_t token, float* out) const { embedding_.read(token, out); }
    /// A learned position, or null.
    const float* position(std::size_t i) const noexcept {
        return positions_.empty() ? nullptr : positions_.data() + i * shape_.width;
    }
    /// Name of the type that the file's own attention and feed-forward matrices have, in lower case; of
    /// several types each with the number of matrices, "q4_k 180, q6_k 31".
    const std::string& stored_type() const noexcept { return stored_type_; }
    /// What a user may not expect of how matrices are multiplied, in sentences.
    const std::vector<std::string>& notices() const noexcept { return notices_; }
    /// What the file has for its matrices beside their tensors.
    const matrix_extras& extras() const noexcept { return *extras_; }
    /// Precisions that all attention and feed-forward matrices have in common, if they are nested.
    const std::optional<crumb::precision_range>& precisions() const noexcept { return precisions_; }
    /// Average bits per weight over all matrices: attention, feed-forward, output, embedding.
    double bits_per_weight() const noexcept;
    /// Bytes of the same matrices in their storage formats.
    std::size_t weight_bytes() const noexcept { return weight_bytes_; }

  private:
    class loader;
    model() = default;

    static crumb::result<model> load(gguf file, buffer memory, const std::string& path,
                                     const model_options& options);

    std::string path_, stored_type_;
    std::vector<std::string> notices_;
    buffer memory_; ///< of a file that is not mapped
    gguf file_;
    std::optional<tokenizer> tokenizer_;
    model_shape shape_;
    std::unique_ptr<const matrix_extras> extras_; ///< rows of the embedding refer to it
    tensor_rows embedding_;
    std::vector<float> positions_, output_norm_, output_norm_bias_, vocabulary_bias_;
    mutable crumb::arena weights_; ///< what matrices refer to
    std::vector<model_layer> layers_;
    matrix output_, output_basis_;
    std::optional<crumb::precision_range> precisions_;
    std::size_t weight_bytes_ = 0, weight_count_ = 0;
};

} // namespace lm
