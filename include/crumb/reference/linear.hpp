// Products with quantized weights in double precision, the reference of the kernels.
#pragma once

#include <crumb/format/activations.hpp>
#include <crumb/format/packed.hpp>

#include <algorithm>
#include <cmath>

namespace crumb::inline CRUMB_ABI::reference {

/// A sum of products, and the sum of their magnitudes, for error bounds.
struct product {
    double value = 0;
    double magnitude = 0; ///< sum |w x|
};

/// sum over k of w[n, k] x[k] with float activations.
template <weight_format F>
product linear(const storage_view<F>& w, std::size_t n, const float* x) noexcept {
    product p;
    for (std::size_t k = 0; k < w.k; ++k) {
        const double term = w.weight(n, k) * double(x[k]);
        p.value += term;
        p.magnitude += std::fabs(term);
    }
    return p;
}

/// A row of quantized activations, as products read it.
struct activation_values {
    activation_row at;
    int absorbed = 0; ///< as `activation_layout` has it

    /// Code of input k.
    int code(std::size_t k) const noexcept { return at.code(k); }
    /// Scale of a group.
    double scale(std::size_t group) const noexcept { return double(at.scale(group)); }
    /// The value of a code, in units of the scale. Absorbed: codes 0..15 lack a sixteenth of
    /// codes 16..31; for 2 bits see `kernel::quantize_absorbed`.
    double value(std::size_t k) const noexcept {
        const double own = code(k);
        const std::size_t in_group = k % group_size;
        if (absorbed == 4)
            return in_group < 16 ? own + code(k + 16) / 16.0 : own;
        if (absorbed == 0)
            return own;
        // The four codes of a byte, from the uppermost down, are those of inputs 16, 20, 0 and 4.
        const std::size_t first = k - in_group + in_group % 16 / 8 * 8 + in_group % 4;
        const double a = code(first + 16), b = code(first + 20), c = code(first);
        return in_group >= 16 ? (in_group % 8 < 4 ? a : b + a / 4)
                              : (in_group % 8 < 4 ? c + b / 4 + a / 16 : own + c / 4 + b / 16 + a / 64);
    }
};

/// Quantized activations as they lie in memory.
struct activation_view {
    activation_layout layout;
    const std::int8_t* codes = nullptr;
    const float* scales = nullptr;
    std::size_t rows = 0;

    /// Row r; finding it takes longer than reading a code.
    activation_values row(std::size_t r) const noexcept {
        return {activation_row::of(layout, codes, scales, rows, r), layout.absorbed};
    }
    /// Code of input k of a row.
    int code(std::size_t r, std::size_t k) const noexcept { return row(r).code(k); }
    /// Scale of a row's group.
    double scale(std::size_t r, std::size_t group) const noexcept { return row(r).scale(group); }
    /// The value of a code, in units of the scale.
    double value(std::size_t r, std::size_t k) const noexcept { return row(r).value(k); }
};

/// What codes of a format with records are moved by to lose their sign.
template <weight_format F>
inline constexpr int largest_offset = [] {
    int most = code_offset_of<F>;
    if constexpr (has_table<F>)
        for (const std::int8_t entry : F::codebooks)
            most = -entry > most ? -entry : most;
    return most;
}();

/// Roundings that a sum of the kernels passes at most: |error| <= roundings eps (the product's magnitude).
/// Groups of 32 inputs take two; of formats with records, sums of 16 or 32 take four, or blocks of 256.
template <weight_format F>
constexpr std::size_t roundings(std::size_t k) noexcept {
    if constexpr (has_records<F>) {
        constexpr std::size_t sum = F::scales::group == 16 ? 16 : group_size;
        constexpr std::size_t inputs = block_inputs<F> == record_inputs ? record_inputs : sum;
        return 4 * ((k + inputs - 1) / inputs) + 4;
    } else {
        return (k + group_size - 1) / group_size + 2;
    }
}

/// sum over k of w[n, k] x[row, k] with quantized activations. Of formats with records, the magnitude counts
/// what kernels add: codes without a sign, and minima.
template <weight_format F>
product linear(const storage_view<F>& w, std::size_t n, const activation_view& x, std::size_t row) noexcept {
    product p;
    const activation_values from = x.row(row);
    if constexpr (has_records<F>) {
        constexpr double offset = 2.0 * largest_offset<F>;
        for (std::size_t g = 0; g < w.groups(); ++g) {
            const double scale = double(to_float(w.scale(n, g))) * double(table_unit_of<F>) *
                                 (has_tensor_scale<F> ? double(w.tensor_scale) : 1.0);
            double minimum = 0;
            if constexpr (has_minima<F>)
                minimum = std::fabs(double(to_float(w.minimum(n, g))));
            for (std::size_t k = g * F::scales::group; k < std::min((g + 1) * F::scales::group, w.k); ++k) {
                const double input = from.value(k) * from.scale(k / x.layout.group);
                const double most = std::fabs(scale) * (std::abs(w.value(n, k)) + offset) + minimum;
                p.value += w.weight(n, k) * input;
                p.magnitude += most * std::fabs(input);
            }
        }
        return p;
    }
    for (std::size_t g = 0; g < w.groups(); ++g) {
        const double scale = double(to_float(w.scale(n, g))) * from.scale(g);
        double sum = 0, magnitude = 0; // exact: multiples of 1/16 below 2^20
        for (std::size_t k = g * group_size; k < std::min((g + 1) * group_size, w.k); ++k) {
            const double term = w.value(n, k) * from.value(k);
            sum += term;
            magnitude += std::fabs(term);
        }
        p.value += scale * sum;
        p.magnitude += std::fabs(scale) * magnitude;
    }
    return p;
}

/// The product with the weights w' of int8 panels (see `kernel::panel_gemm`), and a bound on its difference
/// to that with the stored ones: sum |w' - w| |x|.
struct panel_product : product {
    double requantized = 0;
};
template <weight_format F>
panel_product panel_linear(const storage_view<F>& w, std::size_t n, const activation_view& x,
                           std::size_t row) noexcept {
    constexpr int shift = F::codes::panel_shift;
    constexpr std::size_t span = panel_inputs / group_size;
    panel_product p;
    const activation_values from = x.row(row);
    for (std::size_t first = 0; first < w.groups(); first += span) {
        const std::size_t end = std::min(first + span, w.groups());
        float max = smallest_scale;
        for (std::size_t g = first; g < end; ++g)
            max = std::fmax(max, std::fabs(to_float(w.scale(n, g))));
        const float inverse = 127.0f / max;
        const double scale = double(max * (float(1 << shift) / 127.0f));
        const double x_scale = from.scale(first / span);
        for (std::size_t k = first * group_size; k < std::min(end * group_size, w.k); ++k) {
            const int m = int(std::nearbyint(to_float(w.scale(n, k / group_size)) * inverse));
            const int code = (w.value(n, k) * m + (1 << shift) / 2) >> shift;
            const double term = scale * code * x_scale * from.code(k);
            p.value += term;
            p.magnitude += std::fabs(term);
            p.requantized += std::fabs((scale * code - w.weight(n, k)) * x_scale * from.code(k));
        }
    }
    return p;
}

} // namespace crumb::inline CRUMB_ABI::reference
