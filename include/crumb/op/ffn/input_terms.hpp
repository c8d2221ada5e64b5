// Rows of inputs as a predictor rounded them, in the forms that fixes and bounds need.
#pragma once

#include <crumb/format/activations.hpp>

#include <algorithm>
#include <cmath>

namespace crumb::inline CRUMB_ABI::detail {

constexpr std::size_t groups_of(std::size_t inputs) noexcept {
    return (inputs + group_size - 1) / group_size;
}

/// A row's codes, scales and starts in plain order, see `kernel::quantized_row`: `padded` groups, those after
/// the inputs are 0. `offset` is what rows of weights add to their codes.
inline void write_codes(const activation_row& from, std::size_t inputs, std::size_t padded, int offset,
                        std::int8_t* codes, float* scales, std::int32_t* starts) noexcept {
    std::fill_n(codes, padded * group_size, std::int8_t{0});
    std::fill_n(scales, padded, 0.0f);
    std::fill_n(starts, padded * 8, 0);
    for (std::size_t g = 0; g < groups_of(inputs); ++g) {
        int sum = 0;
        for (std::size_t i = g * group_size; i < (g + 1) * group_size; ++i) {
            codes[i] = from.code(i);
            sum += codes[i];
        }
        scales[g] = from.scale(g);
        starts[g * 8] = -offset * sum;
    }
}

/// What the codes of a row stand for.
inline void write_rounded(const activation_row& from, std::size_t inputs, float* to) noexcept {
    for (std::size_t i = 0; i < inputs; ++i)
        to[i] = from.scale(i / group_size) * static_cast<float>(from.code(i));
}

/// ||x_g|| and ||x_g - x^_g|| of a row's groups g of 32 inputs, the first of all groups before the second,
/// both rounded upwards. The products' own rounding, (groups + 2) eps times the sum of magnitudes (twice that
/// without FMA), is a part of the second.
inline void write_norms(const activation_row& from, const float* x, std::size_t inputs,
                        float* norms) noexcept {
    const std::size_t groups = groups_of(inputs);
    constexpr double up = 1 + 0x1p-22;
    const double rounding = double(groups + 2) * 0x1p-23;
    for (std::size_t g = 0; g < groups; ++g) {
        const double scale = double(from.scale(g));
        double length = 0, error = 0;
        for (std::size_t i = g * group_size; i < std::min((g + 1) * group_size, inputs); ++i) {
            const double e = double(x[i]) - scale * from.code(i);
            length += double(x[i]) * double(x[i]);
            error += e * e;
        }
        length = std::sqrt(length);
        error = std::sqrt(error);
        norms[g] = static_cast<float>(length * up);
        norms[groups + g] = static_cast<float>((error + rounding * (length + error)) * up);
    }
}

} // namespace crumb::inline CRUMB_ABI::detail
