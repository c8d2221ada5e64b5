// Feed-forward networks in double precision, the reference of folded ones.
#pragma once

#include <crumb/core/view.hpp>
#include <crumb/format/neuron_rows.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace crumb::inline CRUMB_ABI::reference {

/// sum over k of w[k] x[k] of a stored row, and the sum of magnitudes.
struct row_product {
    double value = 0;
    double magnitude = 0;
};
inline row_product multiply(row_codec codec, const std::byte* row, const float* x, std::size_t n) noexcept {
    row_product p;
    for (std::size_t k = 0; k < n; ++k) {
        const double term = double(row_weight(codec, row, k)) * double(x[k]);
        p.value += term;
        p.magnitude += std::fabs(term);
    }
    return p;
}

/// y = W2^T sigma(W1 x + b1) + b2 from the stored rows of neurons that are not the residual of a predictor;
/// b1 as in their lines, `output_bias` (b2) may be null.
template <class Activation>
std::vector<double> ffn(const neuron_rows& neurons, const float* x, const float* output_bias,
                        const Activation& activation) {
    const neuron_shape& s = neurons.shape();
    std::vector<double> y(s.outputs, 0.0);
    for (std::size_t c = 0; c < s.outputs && output_bias != nullptr; ++c)
        y[c] = double(output_bias[c]);
    for (std::size_t n = 0; n < s.neurons; ++n) {
        const double u = multiply(s.in, neurons.in(n), x, s.inputs).value + double(neurons.line(n).bias);
        const double a = activation(u);
        for (std::size_t c = 0; c < s.outputs; ++c)
            y[c] += a * double(row_weight(s.out, neurons.out(n), c));
    }
    return y;
}

/// The sum of a row's fixes, which is added to xC + B: sum over n with !(low <= estimate < high) of (sigma(u)
/// - (a u + b)) W2[n], and a bound on its rounding error (see the kernels in kernel/ffn/kernels.hpp); `slope`
/// bounds |sigma'|, `rounding` the relative error of sigma.
struct ffn_fixes {
    std::vector<double> value, error, magnitude;
    std::size_t count = 0;
};

/// A neuron's output weights times a factor that is off by at most `error`.
struct ffn_fix {
    std::size_t neuron = 0;
    double factor = 0, error = 0;
};
/// Adds to error[c] the error of rounding factors times scales to whole steps, 16 `fixes` at a time in their
/// order: at most half a step and a few roundings of 127 steps for each code.
inline void add_step_errors(const neuron_rows& neurons, const std::vector<ffn_fix>& fixes,
                            std::vector<double>& error) {
    constexpr std::size_t together = rows_added_together;
    const auto size_of_scale = [&](std::size_t n, std::size_t c) {
        half scale;
        std::memcpy(&scale, neurons.out(n) + c / group_size * row_block<row_codec::q4_0>::bytes,
                    sizeof scale);
        return std::fabs(double(to_float(scale)));
    };
    for (std::size_t first = 0; first < fixes.size(); first += together) {
        const std::size_t end = std::min(first + together, fixes.size());
        for (std::size_t c = 0; c < error.size(); ++c) {
            double max = double(min_factor), codes = 0;
            for (std::size_t i = first; i < end; ++i) {
                const double scale = size_of_scale(fixes[i].neuron, c);
                max = std::max(max, (std::fabs(fixes[i].factor) + fixes[i].error) * scale);
                if (scale != 0)
                    codes += std::fabs(double(row_weight(row_codec::q4_0, neurons.out(fixes[i].neuron), c))) /
                             scale;
            }
            error[c] += codes * max * (.5 / 127 + 8 * 0x1p-23);
        }
    }
}

template <class Activation>
ffn_fixes fixes(const neuron_rows& neurons, const float* x, const float* estimates,
                const Activation& activation, double slope, double rounding) {
    const neuron_shape& s = neurons.shape();
    constexpr double eps = 0x1p-23; // twice that with FMA, for ISAs without
    const double groups = std::ceil(double(s.inputs) / 32);
    ffn_fixes out{std::vector<double>(s.outputs), std::vector<double>(s.outputs),
                  std::vector<double>(s.outputs), 0};
    std::vector<ffn_fix> all;
    for (std::size_t n = 0; n < s.neurons; ++n) {
        if (estimates[n] >= neurons.low()[n] && estimates[n] < neurons.high()[n])
            continue;
        ++out.count;
        const neuron_line& line = neurons.line(n);
        const row_product p = multiply(s.in, neurons.in(n), x, s.inputs);
        const double base = double(line.bias) + (s.residual ? double(estimates[n]) : 0.0);
        const double size =
            std::fabs(double(line.bias)) + (s.residual ? std::fabs(double(estimates[n])) : 0.0);
        const double u = p.value + base;
        const double linear = double(line.slope) * u + double(line.intercept);
        const double factor = activation(u) - linear;
        const double u_error = (groups + 36) * eps * p.magnitude + 3 * eps * (std::fabs(u) + size);
        const double factor_error =
            (slope + std::fabs(double(line.slope))) * u_error + rounding * std::fabs(activation(u)) +
            3 * eps * (std::fabs(activation(u)) + std::fabs(linear) + std::fabs(double(line.slope) * u));
        all.push_back({n, factor, factor_error});
        for (std::size_t c = 0; c < s.outputs; ++c) {
            const double w = double(row_weight(s.out, neurons.out(n), c));
            out.value[c] += factor * w;
            out.magnitude[c] += std::fabs(factor * w);
            out.error[c] += factor_error * std::fabs(w) + 2 * eps * std::fabs(factor * w);
        }
    }
    if (rounds_factors(s.out))
        add_step_errors(neurons, all, out.error);
    // Every addition rounds a partial sum.
    for (std::size_t c = 0; c < s.outputs; ++c)
        out.error[c] += double(out.count) * eps * out.magnitude[c];
    return out;
}

} // namespace crumb::inline CRUMB_ABI::reference
