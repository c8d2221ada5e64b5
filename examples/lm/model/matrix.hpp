// A weight matrix of a model in the precision that the user asked for.
#pragma once

#include "gguf/gguf.hpp"

#include <crumb/core/buffer.hpp>
#include <crumb/crumb.hpp>

#include <array>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

namespace lm {

using crumb::buffer;

#define LM_WEIGHT_TYPE(format) format,
/// What the weight matrices are multiplied as. `stored` takes them as the file has them; then floats, the
/// formats of `crumb::format_list`, nested weights.
enum class weight_type { stored, f32, CRUMB_FOR_EACH_FORMAT(LM_WEIGHT_TYPE) nested };
#undef LM_WEIGHT_TYPE
/// What quantized weights are multiplied with. `panels` is `int8` with approximate int8 panels (see
/// `crumb::linear_mode`) for batches of at least `panel_batch` rows; `f32` expands the weights and shows what
/// int8 activations cost.
enum class activation_type { int8, panels, f32 };
inline constexpr std::size_t panel_batch = 32;

inline constexpr auto weight_names = []<class... F>(crumb::type_list<F...>) {
    return std::array<std::string_view, 3 + sizeof...(F)>{"stored", "f32", F::name...,
                                                          crumb::nested_view::name};
}(crumb::format_list{});
static_assert(weight_names.size() == static_cast<std::size_t>(weight_type::nested) + 1);

/// Calls f(std::type_identity<F>()) for the format of a weight type, if it is one of `crumb::format_list`.
template <class F>
void with_format(weight_type type, F&& f) {
    [&]<class... Format>(crumb::type_list<Format...>) {
        std::size_t i = 2;
        ((static_cast<std::size_t>(type) == i++ ? f(std::type_identity<Format>()) : void()), ...);
    }(crumb::format_list{});
}
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

/// The table sets in a file's keys, by the name of their format.
class codebook_sets {
  public:
    /// Empty if there is none.
    std::span<const std::int8_t> find(std::string_view format) const noexcept {
        for (const auto& [name, entries] : sets_)
            if (name == format)
                return entries;
        return {};
    }
    void set(std::string_view format, std::vector<std::int8_t> entries) {
        sets_.emplace_back(std::string(format), std::move(entries));
    }
    /// Reads the keys `crumb.codebooks.<format>` of a file.
    static crumb::result<codebook_sets> read(const gguf& file);
    static std::string key(std::string_view format) { return "crumb.codebooks." + std::string(format); }

  private:
    std::vector<std::pair<std::string, std::vector<std::int8_t>>> sets_;
};

/// The ways to multiply one packed matrix.
template <class F>
struct quantized_plans {
    crumb::linear<F> exact;
    std::optional<crumb::linear<F>> panels;
    const crumb::linear<F>& for_rows(std::size_t rows) const noexcept {
        return panels && rows >= panel_batch ? *panels : exact;
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

/// n x k weights with their own memory (or the mapped file's), ready to run.
class matrix {
  public:
    /// Takes `tensor`, checks that its shape is n x k, and converts it; of packed weights it uses the file's
    /// bytes as they lie. `bias` is empty or has n values that outlive the matrix. Packed weights of
    /// codebook formats take their tables from `codebooks`; to make them of other weights is what `quantize`
    /// does.
    /// Errors name the tensor.
    static crumb::result<matrix> make(const gguf_tensor& tensor, std::size_t n, std::size_t k,
                                      weight_type type, activation_type activations,
                                      std::span<const float> bias, const codebook_sets& codebooks);

    std::size_t n() const noexcept { return n_; }
    std::size_t k() const noexcept { return k_; }
    /// Bytes of the weights in their storage format.
    std::size_t stored_bytes() const noexcept { return stored_bytes_; }
    /// Of nested weights.
    std::optional<crumb::precision_range> precisions() const noexcept { return precisions_; }
    /// The product, for `crumb::folded_ffn`. Nested weights, which have several, are an error.
    crumb::result<crumb::any_linear> plan() const;
    /// The n x k weights, row after row, to be changed in place; empty unless they are multiplied as dense
    /// floats.
    std::span<float> floats() noexcept;
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
    crumb::status plan_blocks(const gguf_tensor& tensor, activation_type activations,
                              std::span<const float> bias, const codebook_sets& codebooks);
    template <class F>
    crumb::status plan_packed(const crumb::packed_view<F>& packed, activation_type activations,
                              std::span<const float> bias, std::span<const std::int8_t> codebooks);
    crumb::status plan_nested(const gguf_tensor& tensor, activation_type activations,
                              std::span<const float> bias);
    crumb::status plan_floats(const gguf_tensor& tensor, std::span<const float> bias,
                              const codebook_sets& codebooks);
    /// Plans `memory_`, which holds n x k numbers.
    template <class T>
    crumb::status plan_dense(std::span<const float> bias);

    std::size_t n_ = 0, k_ = 0, stored_bytes_ = 0;
    std::optional<crumb::precision_range> precisions_;
    buffer memory_;
    std::vector<float> bias_; ///< of nested weights as floats; with corrections, if those were expanded
    template <class... F>
    static std::variant<crumb::dense_linear<float>, crumb::dense_linear<crumb::half>, nested_plans,
                        nested_floats, quantized_plans<F>...>
        any_plan(crumb::type_list<F...>);
    decltype(any_plan(crumb::format_list{})) plan_;
};

/// What a tensor of packed weights says of itself. Such a tensor is a row of type I8 that holds the bytes of
/// `crumb::pack`.
struct packed_shape {
    weight_type type;
    std::size_t n, k;
};
/// Nothing if the tensor holds something else.
std::optional<packed_shape> find_packed(const gguf_tensor& tensor) noexcept;

/// Rows and columns of a tensor's matrix.
struct matrix_shape {
    std::size_t n, k;
    friend bool operator==(const matrix_shape&, const matrix_shape&) = default;
};
matrix_shape shape_of(const gguf_tensor& tensor) noexcept;

/// Every element of a tensor of any supported type as float. NaN, infinity and other types are errors that
/// name the tensor.
crumb::result<std::vector<float>> to_floats(const gguf_tensor& tensor, const codebook_sets& codebooks = {});

} // namespace lm
