// The float operations in double precision, one row at a time, the reference of the kernels.
#pragma once

#include <crumb/config.hpp>

#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

namespace crumb::inline CRUMB_ABI::reference {

inline double logistic(double x) noexcept { return 1 / (1 + std::exp(-x)); }

/// x logistic(x); the limits at infinity.
inline double silu(double x) noexcept { return x < -800 ? 0.0 : x * logistic(x); }

/// The argument of the hyperbolic tangent in GELU's approximation.
inline double gelu_argument(double x) noexcept {
    return std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
}

/// x / 2 (1 + tanh(gelu_argument(x))), without cancellation for x < 0.
inline double gelu_tanh(double x) noexcept { return x < -200 ? 0.0 : x * logistic(2 * gelu_argument(x)); }

/// x / 2 (1 + erf(x / sqrt 2)), without cancellation for x < 0.
inline double gelu_erf(double x) noexcept { return x < -200 ? 0.0 : x / 2 * std::erfc(-x / std::sqrt(2.0)); }

/// y = w x / sqrt(mean of x^2 + epsilon).
inline void rms_norm(const float* x, const float* w, std::size_t n, double epsilon, double* y) noexcept {
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i)
        squares += double(x[i]) * double(x[i]);
    for (std::size_t i = 0; i < n; ++i)
        y[i] = double(w[i]) * double(x[i]) / std::sqrt(squares / double(n) + epsilon);
}

/// Mean and variance (divided by n) of a row.
struct moments {
    double mean = 0;
    double variance = 0;
};
inline moments moments_of(const float* x, std::size_t n) noexcept {
    moments m;
    for (std::size_t i = 0; i < n; ++i)
        m.mean += double(x[i]) / double(n);
    for (std::size_t i = 0; i < n; ++i)
        m.variance += (double(x[i]) - m.mean) * (double(x[i]) - m.mean) / double(n);
    return m;
}

/// y = w (x - mean) / sqrt(variance + epsilon) + bias; `bias` may be null.
inline void layer_norm(const float* x, const float* w, const float* bias, std::size_t n, double epsilon,
                       double* y) noexcept {
    const moments m = moments_of(x, n);
    for (std::size_t i = 0; i < n; ++i)
        y[i] = double(w[i]) * (double(x[i]) - m.mean) / std::sqrt(m.variance + epsilon) +
               (bias != nullptr ? double(bias[i]) : 0.0);
}

/// y[i] = exp(scale x[i]) / sum of these over i < valid; 0 for the other i.
inline void softmax(const float* x, std::size_t n, std::size_t valid, double scale, double* y) noexcept {
    double max = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < valid; ++i)
        max = std::fmax(max, scale * double(x[i]));
    double sum = 0;
    for (std::size_t i = 0; i < valid; ++i)
        sum += std::exp(scale * double(x[i]) - max);
    for (std::size_t i = 0; i < n; ++i)
        y[i] = i < valid ? std::exp(scale * double(x[i]) - max) / sum : 0.0;
}

/// Rotates pair i of one head x at `position` by position * base^(-2i / dims), for the pairs (2i, 2i + 1) or
/// (i, i + dims / 2); elements beyond `dims` stay.
inline void rope(std::span<const float> x, std::size_t dims, double base, std::size_t position,
                 bool interleaved, double* y) noexcept {
    for (std::size_t i = 0; i < x.size(); ++i)
        y[i] = double(x[i]);
    for (std::size_t i = 0; i < dims / 2; ++i) {
        const std::size_t a = interleaved ? 2 * i : i;
        const std::size_t b = interleaved ? 2 * i + 1 : i + dims / 2;
        const double angle = double(position) * std::pow(base, -2.0 * double(i) / double(dims));
        y[a] = double(x[a]) * std::cos(angle) - double(x[b]) * std::sin(angle);
        y[b] = double(x[a]) * std::sin(angle) + double(x[b]) * std::cos(angle);
    }
}

} // namespace crumb::inline CRUMB_ABI::reference
