// Attention of one query in double precision, the reference of the kernels.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/core/view.hpp>

#include <cmath>
#include <cstddef>
#include <limits>

namespace crumb::inline CRUMB_ABI::reference {

/// Magnitudes from which error bounds of attention are made.
struct attention_size {
    double score = 0; ///< max over tokens of sum over i of |scale q_i k_i|
    double value = 0; ///< max |v|
};

/// y = sum over t of softmax_t(scale q . k[t]) v[t] for one query head; row t of k and v is token t's.
template <class T>
attention_size attention(const float* q, const matrix_view<const T>& k, const matrix_view<const T>& v,
                         double scale, double* y) noexcept {
    const std::size_t tokens = k.rows, head_size = k.cols;
    const auto number = [](const T& x) {
        if constexpr (sizeof(T) == sizeof(half))
            return double(to_float(x));
        else
            return double(x);
    };
    const auto score = [&](std::size_t t) {
        double s = 0;
        for (std::size_t i = 0; i < head_size; ++i)
            s += scale * double(q[i]) * number(k.row(t)[i]);
        return s;
    };
    attention_size size;
    double max = -std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < tokens; ++t) {
        max = std::fmax(max, score(t));
        double magnitude = 0;
        for (std::size_t i = 0; i < head_size; ++i) {
            magnitude += std::fabs(scale * double(q[i]) * number(k.row(t)[i]));
            size.value = std::fmax(size.value, std::fabs(number(v.row(t)[i])));
        }
        size.score = std::fmax(size.score, magnitude);
    }
    for (std::size_t i = 0; i < head_size; ++i)
        y[i] = 0;
    double total = 0;
    for (std::size_t t = 0; t < tokens; ++t) {
        const double weight = std::exp(score(t) - max);
        total += weight;
        for (std::size_t i = 0; i < head_size; ++i)
            y[i] += weight * number(v.row(t)[i]);
    }
    for (std::size_t i = 0; i < head_size && tokens != 0; ++i)
        y[i] /= total;
    return size;
}

} // namespace crumb::inline CRUMB_ABI::reference
