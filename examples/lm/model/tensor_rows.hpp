// Tensors of any readable type, decoded row by row.
#pragma once

#include "gguf/gguf.hpp"
#include "gguf/packed_weights.hpp"
#include "model/matrix_extras.hpp"
#include "model/weight_type.hpp"

#include <optional>
#include <span>
#include <vector>

namespace lm {

/// What a tensor of packed weights in a known format says of itself.
struct packed_shape {
    weight_type type;
    std::size_t n, k;
};
/// Nothing if the tensor holds something else.
std::optional<packed_shape> find_packed(const gguf_tensor& tensor) noexcept;

/// An error behind the name of the tensor.
crumb::status in_tensor(const gguf_tensor& tensor, const crumb::status& error);
/// An error if a value is infinite or NaN; `first`: which element of the tensor the values begin with.
crumb::status check_finite(const gguf_tensor& tensor, std::span<const float> values, std::size_t first = 0);
/// The table set of a format, empty if it needs none; an error if the file has no fitting one.
crumb::result<std::span<const std::int8_t>> codebooks_for(weight_type type, const matrix_extras& extras);

/// The blocks of a tensor of the type `ggml_type_of<F>`. Scales and minima, which are all that can be
/// infinite or NaN, are checked; errors name the tensor.
template <crumb::weight_format F>
crumb::result<crumb::storage_view<F>> blocks_of(const gguf_tensor& tensor, const matrix_extras& extras) {
    const auto* blocks = reinterpret_cast<const typename F::block*>(tensor.data.data());
    const std::size_t k = tensor.dims[0];
    auto view = crumb::storage<F>({blocks, tensor.data.size() / sizeof *blocks}, tensor.elements() / k, k);
    if (!view)
        return in_tensor(tensor, view.error());
    view->tensor_scale = extras.scale(tensor);
    for (std::size_t r = 0; r < view->n; ++r)
        for (std::size_t g = 0; g < view->groups(); ++g) {
            const char* wrong = crumb::has_finite_weights<F>(view->scale(r, g)) ? nullptr : "scale";
            if constexpr (crumb::has_minima<F>)
                if (!is_finite(view->minimum(r, g)))
                    wrong = "minimum";
            if (wrong != nullptr)
                return in_tensor(tensor,
                                 crumb::status::error(crumb::errc::not_finite,
                                                      "%s, the %s of row %zu, group %zu is not finite",
                                                      ggml_type_name(tensor.type).c_str(), wrong, r, g));
        }
    return view;
}

/// A matrix in a tensor as rows of floats. Refers to the tensor's bytes and to the table sets that it was
/// opened with; copy it freely.
class tensor_rows {
  public:
    tensor_rows() = default;
    /// Errors name the tensor: a type that is not read, numbers or scales that are not finite.
    static crumb::result<tensor_rows> open(const gguf_tensor& tensor, const matrix_extras& extras);

    std::size_t rows() const noexcept { return shape_.n; }
    /// Numbers of a row.
    std::size_t size() const noexcept { return shape_.k; }
    /// Writes a row.
    void read(std::size_t row, float* out) const { read_(row, out); }

  private:
    friend crumb::result<std::vector<float>> to_floats(const gguf_tensor&, const matrix_extras&);
    /// Without a look at every number.
    static crumb::result<tensor_rows> make(const gguf_tensor& tensor, const matrix_extras& extras);
    matrix_shape shape_{};
    row_reader read_;
};

/// Every element of a tensor of any readable type as float. NaN, infinity and other types are errors that
/// name the tensor.
crumb::result<std::vector<float>> to_floats(const gguf_tensor& tensor, const matrix_extras& extras);

} // namespace lm
