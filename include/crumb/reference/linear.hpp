// Products with quantized weights in double precision: what the kernels are compared with.
#pragma once

#include <crumb/format/activations.hpp>
#include <crumb/format/packed.hpp>

#include <cmath>

namespace crumb::inline CRUMB_ABI::reference {

/// A sum of products, and the sum of their magnitudes, of which error bounds are made.
struct product {
    double value = 0;
    double magnitude = 0; ///< sum |w x|
};

/// Weight k of output channel n.
template <weight_format F>
double weight(const storage_view<F>& w, std::size_t n, std::size_t k) noexcept {
    const auto& block = w.block(n, k / F::group);
    return double(to_float(F::scale(block))) * F::code(block, k % F::group);
}

/// sum over k of w[n, k] x[k] with float activations.
template <weight_format F>
product linear(const storage_view<F>& w, std::size_t n, const float* x) noexcept {
    product p;
    for (std::size_t k = 0; k < w.k; ++k) {
        const double term = weight(w, n, k) * double(x[k]);
        p.value += term;
        p.magnitude += std::fabs(term);
    }
    return p;
}

/// Quantized activations as they lie in memory.
struct activation_view {
    activation_layout layout;
    const std::int8_t* codes = nullptr;
    const float* scales = nullptr;
    std::size_t rows = 0;

    int code(std::size_t row, std::size_t k) const noexcept {
        const row_position at = block_of(row, rows, layout.row_block);
        return codes[at.first * layout.k_padded() + k / 8 * 8 * at.height + 8 * (row - at.first) + k % 8];
    }
    double scale(std::size_t row, std::size_t group) const noexcept {
        const row_position at = block_of(row, rows, layout.row_block);
        return double(scales[at.first * layout.groups() + group * at.height + row - at.first]);
    }
};

/// sum over i of code(w[n], i) code(x[row], i) within a group: exact, and equal on every ISA.
template <weight_format F>
std::int64_t group_sum(const storage_view<F>& w, std::size_t n, const activation_view& x, std::size_t row,
                       std::size_t group) noexcept {
    const auto& block = w.block(n, group);
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < F::group && group * F::group + i < w.k; ++i)
        sum += std::int64_t{F::code(block, i)} * x.code(row, group * F::group + i);
    return sum;
}

/// sum over k of w[n, k] x[row, k] with quantized activations.
template <weight_format F>
product linear(const storage_view<F>& w, std::size_t n, const activation_view& x, std::size_t row) noexcept {
    product p;
    for (std::size_t g = 0; g < w.groups(); ++g) {
        const auto& block = w.block(n, g);
        const double scale = double(to_float(F::scale(block))) * x.scale(row, g);
        p.value += scale * double(group_sum(w, n, x, row, g));
        double magnitude = 0;
        for (std::size_t i = 0; i < F::group && g * F::group + i < w.k; ++i)
            magnitude += std::abs(F::code(block, i) * x.code(row, g * F::group + i));
        p.magnitude += std::fabs(scale) * magnitude;
    }
    return p;
}

} // namespace crumb::inline CRUMB_ABI::reference
