// The kernels by name: templates over a format and an ISA, whose bodies are in the .inl files.
#pragma once

#include <crumb/core/view.hpp>
#include <crumb/format/activations.hpp>
#include <crumb/format/packed.hpp>

namespace crumb::inline CRUMB_ABI::kernel {

/// Everything that a matrix product needs; all pointers belong to the caller.
struct linear_args {
    const half* scales = nullptr;        ///< packed_view::scales
    const std::uint8_t* codes = nullptr; ///< packed_view::codes
    std::size_t groups = 0;              ///< groups of 32 inputs
    std::size_t n = 0;                   ///< output channels of the weights

    const std::int8_t* x_codes = nullptr; ///< activations, laid out as activation_layout says
    const float* x_scales = nullptr;
    const std::int32_t* x_sums = nullptr; ///< null where the layout's offset is 0
    std::size_t x_rows = 0;               ///< rows of the whole activation object

    float* y = nullptr; ///< result: row r, channel c at y[r * y_stride + c]
    std::size_t y_stride = 0;
    const float* bias = nullptr; ///< n values added to each row, or null

    range rows;     ///< rows to compute, closed
    range channels; ///< channels to compute, closed
};

/// What activation quantization needs.
struct quantize_args {
    const float* x = nullptr; ///< row r, input i at x[r * x_stride + i]
    std::size_t x_stride = 0;
    std::size_t k = 0;
    std::size_t rows = 0;      ///< rows of the whole activation object
    std::size_t row_block = 8; ///< of the layout
    int offset = 0;            ///< of the layout
    std::int8_t* codes = nullptr;
    float* scales = nullptr;
    std::int32_t* sums = nullptr;
    range part; ///< rows to quantize, closed
};

// One specialization per ISA is compiled inside its target region.
template <class Isa, class Codes>
struct product_of;
template <class Isa, class Product, int Rows>
struct row_pair;
/// The product that blocks of rows use: `Product::rows` where an ISA has another one for them.
template <class Product>
struct product_for_rows {
    using type = Product;
};
template <class Product>
requires requires { typename Product::rows; }
struct product_for_rows<Product> {
    using type = typename Product::rows;
    static_assert(type::offset == Product::offset && type::factor == Product::factor);
};
template <class Isa, class Format>
struct linear_tile;
template <class Isa, class Format>
struct linear_run;
template <class Isa>
struct activation_quantizer;

/// y[0, c] = bias[c] + sum over k of w[c, k] * x[0, k] for one row of activations (`args.x_rows` is 1): whole
/// tiles of 16 channels, the group sums exact, one fused multiply-add per group.
template <class Format, class Isa>
void gemv(const linear_args& args) noexcept {
    linear_run<Isa, Format>::gemv(args);
}

/// y[r, c] = bias[c] + sum over k of w[c, k] * x[r, k] for the rows and channels of `args`. Every output is
/// the same sequence of roundings as in `gemv`, whatever the number of rows or the split.
template <class Format, class Isa>
void gemm(const linear_args& args) noexcept {
    linear_run<Isa, Format>::gemm(args);
}

/// Quantizes rows of activations: scale = max |x| / 127 per group, code = x * (127 / max |x|) rounded to
/// nearest, ties to even. A group with NaN or infinity gets the scale NaN, so that its outputs are NaN.
template <class Isa>
void quantize_activations(const quantize_args& args) noexcept {
    activation_quantizer<Isa>::run(args);
}

} // namespace crumb::inline CRUMB_ABI::kernel
