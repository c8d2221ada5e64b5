// Packed weights in a file: what `crumb-lm quantize` writes in formats that GGUF lacks, `crumb-lm pack` in
// all.
#pragma once

#include "gguf/gguf.hpp"

#include <crumb/format/packed.hpp>
#include <crumb/linear.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

namespace lm {

/// What a tensor of packed weights says of itself. Such a tensor is a row of type I8 that holds the bytes of
/// `crumb::pack`, or of nested weights. Nothing if the tensor holds something else.
inline std::optional<crumb::packed_header> find_packed_header(const gguf_tensor& tensor) noexcept {
    crumb::packed_header header;
    const crumb::packed_header expected;
    if (tensor.type != ggml_type::i8 || tensor.rank != 1 || tensor.data.size() < sizeof header)
        return {};
    std::memcpy(&header, tensor.data.data(), sizeof header);
    if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0)
        return {};
    return header;
}

/// The name of the format that packed weights have.
inline std::string_view format_name(const crumb::packed_header& header) noexcept {
    return {header.format, strnlen(header.format, sizeof header.format)};
}

/// Rows and columns of a tensor's matrix.
struct matrix_shape {
    std::size_t n, k;
    friend bool operator==(const matrix_shape&, const matrix_shape&) = default;
};
inline matrix_shape shape_of(const gguf_tensor& tensor) noexcept {
    if (const auto packed = find_packed_header(tensor))
        return {packed->n, packed->k};
    return {tensor.dims[1], tensor.dims[0]};
}

/// The key with the table set of a codebook format.
inline std::string codebook_key(std::string_view format) { return "crumb.codebooks." + std::string(format); }
/// The table set of a format; empty if the file has none. An error if the key holds other than signed bytes.
inline crumb::result<std::vector<std::int8_t>> read_weight_codebooks(const gguf& file,
                                                                     std::string_view format) {
    const std::string key = codebook_key(format);
    std::vector<std::int8_t> entries;
    if (file.find(key) == nullptr)
        return entries;
    const auto values = file.get_i32s(key);
    if (!values)
        return values.error();
    for (const std::int32_t v : *values) {
        if (v < -128 || v > 127)
            return crumb::status::error(crumb::errc::corrupt, "key %s holds %d, not a signed byte",
                                        key.c_str(), v);
        entries.push_back(static_cast<std::int8_t>(v));
    }
    return entries;
}

/// Writes a row of weights as floats.
using row_reader = std::function<void(std::size_t row, float* out)>;

namespace detail {

template <class F>
row_reader rows_of(const crumb::packed_view<F>& w, std::span<const std::int8_t> codebooks) {
    return [w, codebooks](std::size_t row, float* out) {
        for (std::size_t b = 0; b < w.blocks(); ++b) {
            const auto block = crumb::unpack(w, row, b);
            const std::size_t size = std::min(w.k() - b * crumb::block_inputs<F>, crumb::block_inputs<F>);
            const crumb::storage_view<F> stored{&block, 1, size, 1, codebooks, w.tensor_scale()};
            for (std::size_t i = 0; i < size; ++i)
                *out++ = static_cast<float>(stored.weight(0, i));
        }
    };
}

} // namespace detail

/// The rows of packed weights in any listed format, nested ones at their highest precision. Refers to the
/// bytes and to the table set, which fits the format.
inline crumb::result<row_reader> read_packed_rows(std::span<const std::byte> bytes,
                                                  std::span<const std::int8_t> codebooks) {
    const auto header = crumb::read_packed_header(bytes);
    if (!header)
        return header.error();
    if (header->has_format(crumb::nested_view::name)) {
        const auto w = crumb::nested_view::open(bytes);
        if (!w)
            return w.error();
        return row_reader([w = *w](std::size_t row, float* out) {
            for (std::size_t i = 0; i < w.k(); ++i)
                *out++ = static_cast<float>(w.weight(row, i, w.levels().parent));
        });
    }
    crumb::result<row_reader> made = crumb::status::error(
        crumb::errc::wrong_format, "packed weights: format %.16s is not known", header->format);
    crumb::all_format_list::for_each([&]<class F>() {
        if (!header->has_format(F::name))
            return;
        const auto w = crumb::packed_view<F>::open(bytes);
        if (w)
            made = detail::rows_of(*w, codebooks);
        else
            made = w.error();
    });
    return made;
}

/// The product with a tensor of packed weights in whatever format, nested ones at their highest precision.
/// The plan refers to the file's bytes. Errors name the tensor or the key.
CRUMB_WHEN_CALLED
crumb::result<crumb::any_linear> open_packed(const gguf& file, const gguf_tensor& tensor) {
    const auto header = find_packed_header(tensor);
    const auto books = read_weight_codebooks(file, header ? format_name(*header) : std::string_view());
    if (!books)
        return books.error();
    const auto plan = crumb::any_linear::open(tensor.data, {.codebooks = *books});
    if (!plan)
        return crumb::status::error(plan.error().code(), "tensor %.*s: %s",
                                    static_cast<int>(std::min<std::size_t>(tensor.name.size(), 64)),
                                    tensor.name.data(), plan.message());
    return *plan;
}

/// All weights of a packed tensor, row after row. Errors as of `open_packed`.
CRUMB_WHEN_CALLED
crumb::result<std::vector<float>> read_packed_floats(const gguf& file, const gguf_tensor& tensor) {
    if (const auto checked = open_packed(file, tensor); !checked)
        return checked.error();
    const auto books = read_weight_codebooks(file, format_name(*find_packed_header(tensor)));
    if (!books)
        return books.error();
    const auto row = read_packed_rows(tensor.data, *books);
    if (!row)
        return row.error();
    const matrix_shape shape = shape_of(tensor);
    std::vector<float> out(shape.n * shape.k);
    for (std::size_t r = 0; r < shape.n; ++r)
        (*row)(r, out.data() + r * shape.k);
    return out;
}

} // namespace lm
