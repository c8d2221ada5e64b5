#include "model/tensor_rows.hpp"

#include "gguf/iq_decode.hpp"

#include <crumb/format/packed.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

template <class F>
void decode(const crumb::storage_view<F>& w, std::size_t row, float* out) {
    for (std::size_t i = 0; i < w.k; ++i)
        *out++ = static_cast<float>(w.weight(row, i));
}

/// Numbers one by one: `T` as it is stored, which `value` makes a float of.
template <class T, class F>
row_reader plain(const gguf_tensor& tensor, F value) {
    return
        [data = tensor.data.data(), size = std::size_t{tensor.dims[0]}, value](std::size_t row, float* out) {
            for (std::size_t i = 0; i < size; ++i) {
                T x;
                std::memcpy(&x, data + (row * size + i) * sizeof x, sizeof x);
                out[i] = value(x);
            }
        };
}

/// Tensors whose type is one of ggml's.
result<row_reader> of_ggml(const gguf_tensor& tensor, const matrix_extras& extras) {
    switch (tensor.type) {
    case ggml_type::f32:
        return plain<float>(tensor, [](float x) { return x; });
    case ggml_type::f16:
        return plain<crumb::half>(tensor, [](crumb::half x) { return crumb::to_float(x); });
    case ggml_type::bf16:
        return plain<crumb::bf16>(tensor, [](crumb::bf16 x) { return crumb::to_float(x); });
    default:
        break;
    }
    if (is_decoded(tensor.type)) {
        const ggml_type_info& info = *find_ggml_type(tensor.type);
        const std::size_t bytes = tensor.dims[0] / info.block * info.block_bytes;
        return row_reader([type = tensor.type, data = tensor.data, bytes](std::size_t row, float* out) {
            (void)lm::decode(type, data.subspan(row * bytes, bytes), out);
        });
    }
    result<row_reader> out = status::error(
        errc::unsupported,
        "tensor %.*s: %s%s is not supported: F32, F16, BF16 and ggml's types of blocks are",
        static_cast<int>(std::min<std::size_t>(tensor.name.size(), 64)), tensor.name.data(),
        find_ggml_type(tensor.type) != nullptr ? "type " : "", ggml_type_name(tensor.type).c_str());
    if (const auto format = format_of(tensor.type))
        with_format(*format, [&]<class F>(std::type_identity<F>) {
            const auto view = blocks_of<F>(tensor, extras);
            if (view)
                out = row_reader([view = *view](std::size_t row, float* to) { decode(view, row, to); });
            else
                out = view.error();
        });
    return out;
}

/// Tensors of packed weights.
result<row_reader> of_packed(const gguf_tensor& tensor, const packed_shape& packed,
                             const matrix_extras& extras) {
    const auto tables = codebooks_for(packed.type, extras);
    auto rows = tables ? read_packed_rows(tensor.data, *tables) : result<row_reader>(tables.error());
    return rows ? rows : in_tensor(tensor, rows.error());
}

} // namespace

std::optional<packed_shape> find_packed(const gguf_tensor& tensor) noexcept {
    const auto header = find_packed_header(tensor);
    for (std::size_t i = 2; header && i < weight_names.size(); ++i)
        if (format_name(*header) == weight_names[i])
            return packed_shape{static_cast<weight_type>(i), header->n, header->k};
    return {};
}

status in_tensor(const gguf_tensor& tensor, const status& error) {
    return status::error(error.code(), "tensor %.*s: %s",
                         static_cast<int>(std::min<std::size_t>(tensor.name.size(), 64)), tensor.name.data(),
                         error.message());
}

status check_finite(const gguf_tensor& tensor, std::span<const float> values, std::size_t first) {
    for (std::size_t i = 0; i < values.size(); ++i)
        if (!std::isfinite(values[i]))
            return in_tensor(tensor, status::error(errc::not_finite, "%s, element %zu is not finite",
                                                   ggml_type_name(tensor.type).c_str(), first + i));
    return {};
}

result<std::span<const std::int8_t>> codebooks_for(weight_type type, const matrix_extras& extras) {
    std::span<const std::int8_t> found;
    status s;
    with_format(type, [&]<class F>(std::type_identity<F>) {
        if constexpr (crumb::needs_codebooks<F>) {
            found = extras.codebooks(F::name);
            if (found.size() != crumb::codebook_entries<F>)
                s = status::error(errc::corrupt, "key %s: %zu entries, %zu are needed",
                                  matrix_extras::codebook_key(F::name).c_str(), found.size(),
                                  crumb::codebook_entries<F>);
        }
    });
    if (!s)
        return s;
    return found;
}

result<tensor_rows> tensor_rows::make(const gguf_tensor& tensor, const matrix_extras& extras) {
    const auto packed = find_packed(tensor);
    auto read = packed ? of_packed(tensor, *packed, extras) : of_ggml(tensor, extras);
    if (!read)
        return read.error();
    tensor_rows out;
    out.shape_ = {packed ? packed->n : tensor.elements() / tensor.dims[0],
                  packed ? packed->k : std::size_t{tensor.dims[0]}};
    out.read_ = std::move(*read);
    return out;
}

// Finite scales are not enough: what is under two of them may still be beyond a float.
result<tensor_rows> tensor_rows::open(const gguf_tensor& tensor, const matrix_extras& extras) {
    auto out = make(tensor, extras);
    std::vector<float> row(out ? out->size() : 0);
    for (std::size_t r = 0; out && r < out->rows(); ++r) {
        out->read(r, row.data());
        if (const status s = check_finite(tensor, row, r * row.size()); !s)
            return s;
    }
    return out;
}

result<std::vector<float>> to_floats(const gguf_tensor& tensor, const matrix_extras& extras) {
    const auto rows = tensor_rows::make(tensor, extras);
    if (!rows)
        return rows.error();
    std::vector<float> out(rows->rows() * rows->size());
    for (std::size_t r = 0; r < rows->rows(); ++r)
        rows->read(r, out.data() + r * rows->size());
    if (const status s = check_finite(tensor, out, 0); !s)
        return s;
    return out;
}

} // namespace lm
