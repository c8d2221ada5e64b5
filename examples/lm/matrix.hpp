// A weight matrix of a model in the precision that the user asked for.
#pragma once

#include "buffer.hpp"
#include "gguf.hpp"

#include <crumb/crumb.hpp>

#include <optional>
#include <string_view>
#include <variant>

namespace lm {

/// What the weight matrices are multiplied as. `stored` takes them as the file has them (F16 as f32).
enum class weight_type { stored, f32, q8_0, q4_0 };
/// What quantized weights are multiplied with. `f32` expands the weights and shows what int8 activations cost.
enum class activation_type { int8, f32 };

inline constexpr std::string_view weight_names[] = {"stored", "f32", "q8_0", "q4_0"};

/// Quantized copies of one input, shared by all matrices that read it.
class matrix_input {
  public:
    /// Space for `max_rows` rows of up to `max_k` inputs.
    matrix_input(std::size_t max_rows, std::size_t max_k) : max_rows_(max_rows), max_k_(max_k) {}

    /// Forgets the copies and refers to x, which must stay unchanged until the next call.
    void set(const crumb::matrix_view<const float>& x) noexcept {
        x_ = x;
        used_ = 0;
    }
    /// Where rows quantized after `plan` are or will be, and whether they still have to be.
    crumb::activations& slot(const crumb::activation_plan& plan, bool& fresh);
    const crumb::matrix_view<const float>& x() const noexcept { return x_; }

  private:
    struct copy {
        buffer memory;
        crumb::activation_plan plan;
        crumb::activations rows;
    };
    std::size_t max_rows_, max_k_;
    crumb::matrix_view<const float> x_;
    std::array<copy, 3> copies_;
    std::size_t used_ = 0;
};

/// n x k weights with their own memory (or the mapped file's), ready to run.
class matrix {
  public:
    /// Takes `tensor`, checks that its shape is n x k, and converts it. `bias` is empty or has n values that
    /// outlive the matrix. Errors name the tensor.
    static crumb::result<matrix> make(const gguf_tensor& tensor, std::size_t n, std::size_t k, weight_type type,
                                      activation_type activations, std::span<const float> bias);

    std::size_t n() const noexcept { return n_; }
    std::size_t k() const noexcept { return k_; }
    /// Bytes of the weights in their storage format.
    std::size_t stored_bytes() const noexcept { return stored_bytes_; }
    /// The layout of activations that `run` wants, or nothing if it takes floats.
    std::optional<crumb::activation_plan> activation_plan() const;
    /// Computes the channels of `part` for all rows of `input`, whose slot is quantized.
    void run(matrix_input& input, const crumb::matrix_view<float>& y, crumb::range channels) const;

  private:
    template <class F>
    crumb::status plan_quantized(const gguf_tensor& tensor, activation_type activations, std::span<const float> bias);
    crumb::status plan_dense(std::span<const float> bias);

    std::size_t n_ = 0, k_ = 0, stored_bytes_ = 0;
    buffer memory_;
    std::variant<crumb::dense_linear<float>, crumb::linear<crumb::q8_0>, crumb::linear<crumb::q4_0>> plan_;
};

/// Every element of a tensor of any supported type as float. NaN, infinity and other types are errors that name
/// the tensor.
crumb::result<std::vector<float>> to_floats(const gguf_tensor& tensor);

} // namespace lm
