// A weight matrix of a model in the precision that the user asked for.
#pragma once

#include "gguf/gguf.hpp"
#include "model/matrix_extras.hpp"
#include "model/tensor_rows.hpp"
#include "model/weight_type.hpp"

#include <crumb/core/arena.hpp>
#include <crumb/crumb.hpp>

#include <array>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

namespace lm {

/// What quantized weights are multiplied with. `panels` is `int8` with approximate int8 panels (see
/// `crumb::linear_mode`) for batches of at least `panel_batch` rows; `f32` expands the weights and shows what
/// int8 activations cost.
enum class activation_type { int8, panels, f32 };
inline constexpr std::size_t panel_batch = 32;

inline constexpr std::string_view activation_names[] = {"int8", "panels", "f32"};

/// One input of several matrices with the quantized copies that they want. Every thread has an object of its
/// own over the same memory: the same calls in the same order make the same copies.
class matrix_input {
  public:
    static constexpr std::size_t max_copies = 3;
    /// `memory` has room for `max_copies` copies.
    matrix_input(const crumb::matrix_view<const float>& x, std::span<std::byte> memory)
        : x_(x), memory_(memory) {}

    /// Quantizes `rows` of the input as `plan` wants it, unless that is done.
    void quantize(const crumb::activation_plan& plan, crumb::range rows);
    /// The copy for `plan`, whose rows all threads have quantized.
    const crumb::activations& copy(const crumb::activation_plan& plan) const;
    const crumb::matrix_view<const float>& x() const noexcept { return x_; }

  private:
    crumb::matrix_view<const float> x_;
    std::span<std::byte> memory_;
    std::array<crumb::activations, max_copies> copies_;
    std::size_t used_ = 0;
};

/// The ways to multiply one matrix.
struct matrix_plans {
    crumb::any_linear exact;
    crumb::any_linear panels; ///< or empty
    const crumb::any_linear& for_rows(std::size_t rows) const noexcept {
        return panels && rows >= panel_batch ? panels : exact;
    }
};

/// The same of nested weights, at every precision.
struct nested_plans {
    crumb::nested_linear exact;
    std::optional<crumb::nested_linear> panels;
    const crumb::nested_linear& for_rows(std::size_t rows) const noexcept {
        return panels && rows >= panel_batch ? *panels : exact;
    }
};
/// Nested weights expanded to floats, once for every precision from the seed on.
struct nested_floats {
    std::vector<crumb::dense_linear<float>> at;
};

/// What a matrix becomes.
struct matrix_options {
    weight_type type = weight_type::stored;
    activation_type activations = activation_type::int8;
    std::span<const float> bias = {}; ///< empty, or n values that outlive the matrix
    bool on_demand = false;           ///< of `f32`: see `matrix::bring`
};

/// n x k weights in an arena (or as they are mapped), ready to run.
class matrix {
  public:
    /// Takes `tensor`, checks that its shape is n x k, and converts it, to `memory`, which outlives it; of
    /// packed weights it uses the file's bytes as they lie. Stored as a type that is not multiplied, it
    /// becomes floats. Packed weights of codebook formats take their tables from `extras`; to make them of
    /// other weights is what `quantize` does. Errors name the tensor.
    static crumb::result<matrix> make(const gguf_tensor& tensor, std::size_t n, std::size_t k,
                                      const matrix_options& options, const matrix_extras& extras,
                                      crumb::arena& memory);

    /// Decodes the weights of a matrix on demand, from the tensor that it was made of, to memory of `memory`:
    /// only until `leave` they are there to be multiplied and changed. Of other matrices they always are, and
    /// both functions do nothing.
    crumb::status bring(const gguf_tensor& tensor, const matrix_extras& extras, crumb::arena& memory);
    void leave(crumb::arena& memory);

    std::size_t n() const noexcept { return n_; }
    std::size_t k() const noexcept { return k_; }
    /// Bytes of the weights in their storage format.
    std::size_t stored_bytes() const noexcept { return stored_bytes_; }
    /// Bytes of weights in the arena: 0 where they are used as they are mapped.
    std::size_t copied_bytes() const noexcept { return memory_.size(); }
    /// Whether its product is of quantized activations, not of floats.
    bool reads_activations() const noexcept;
    /// Whether panels were asked for and the format has none: batches are multiplied exactly.
    bool lacks_panels() const noexcept { return lacks_panels_; }
    /// Of nested weights.
    std::optional<crumb::precision_range> precisions() const noexcept { return precisions_; }
    /// The product, for `crumb::folded_ffn`. Nested weights, which have several, are an error.
    crumb::result<crumb::any_linear> plan() const;
    /// The n x k weights, row after row, to be changed in place; empty unless they are multiplied as dense
    /// floats, and are there.
    std::span<float> floats() noexcept;
    /// Adds a number to every output from now on, until others or until `leave`; only where `floats` has the
    /// weights.
    crumb::status correct(std::span<const float> corrections);
    /// Of nested weights that are multiplied as floats: at `bits` bits they become `weights` (n x k, row
    /// after row), with a correction for every row.
    crumb::status replace(int bits, std::span<const float> weights, std::span<const float> corrections);
    /// What `prepare` may quantize for; none where the matrix reads floats.
    std::vector<crumb::activation_plan> input_plans() const;
    /// Quantizes rows of `input` if `run` wants that.
    void prepare(matrix_input& input, crumb::range rows) const;
    /// Computes `channels` for all rows of `input`, which are prepared; nested weights at `bits` bits, one of
    /// `precisions`.
    void run(const matrix_input& input, const crumb::matrix_view<float>& y, crumb::range channels,
             int bits) const;

  private:
    template <class F>
    crumb::status plan_format(const gguf_tensor& tensor, const matrix_options& options,
                              const matrix_extras& extras, crumb::arena& memory);
    template <class F>
    crumb::status plan_blocks(const gguf_tensor& tensor, const crumb::storage_view<F>& blocks,
                              const matrix_options& options, crumb::arena& memory);
    template <class F>
    crumb::status plan_packed(const crumb::packed_view<F>& packed, const matrix_options& options,
                              std::span<const std::int8_t> codebooks);
    crumb::status plan_nested(const gguf_tensor& tensor, const matrix_options& options, crumb::arena& memory);
    crumb::status plan_floats(const gguf_tensor& tensor, std::span<const float> bias,
                              const matrix_extras& extras, crumb::arena& memory);
    float* numbers() const noexcept { return reinterpret_cast<float*>(memory_.data()); }
    /// A tensor of n x k numbers of type T, which are used where they lie.
    template <class T>
    crumb::status plan_as_stored(const gguf_tensor& tensor, std::span<const float> bias,
                                 const matrix_extras& extras);
    /// Plans n x k numbers.
    template <class T>
    crumb::status plan_dense(const T* weights, std::span<const float> bias);

    std::size_t n_ = 0, k_ = 0, stored_bytes_ = 0;
    std::optional<crumb::precision_range> precisions_;
    std::span<std::byte> memory_; ///< of an arena
    std::vector<float> bias_;     ///< of nested weights as floats; with corrections, if those were expanded
    std::span<const float> given_bias_;                   ///< of decoded floats
    std::vector<float> corrected_bias_;                   ///< the same and corrections, if there are some
    std::optional<std::span<const float>> demanded_bias_; ///< of a matrix on demand
    bool is_floats_ = false, lacks_panels_ = false;
    std::variant<matrix_plans, nested_plans, nested_floats> plan_;
};

} // namespace lm
