// Products with float or half-precision weights, by name; the bodies are in dense.inl.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/core/view.hpp>

namespace crumb::inline CRUMB_ABI::kernel {

/// Everything that a dense product needs; all pointers belong to the caller. `T` is float, half or bf16.
template <class T>
struct dense_args {
    matrix_view<const T> w;     ///< n x k weights
    matrix_view<const float> x; ///< m x k activations
    matrix_view<float> y;       ///< m x n result
    const float* bias = nullptr;
    range rows;                             ///< rows of y to compute, closed
    range channels;                         ///< columns of y to compute, closed
    bool converts_on_product_ports = false; ///< see `cpu_features`
};

template <class Isa, std::size_t Rows>
struct dense_block;
template <class Isa, class T>
struct dense_run;

/// y[r, c] = bias[c] + sum over k of w[c, k] x[r, k], in single precision. 1024 inputs at a time are one
/// sequence of fused multiply-adds per register lane, then one sum of the lanes, whatever the split: |error|
/// <= (ceil(min(k, 1024) / lanes) + lanes + ceil(k / 1024)) eps (sum |w x| + |bias|), twice as much without
/// FMA.
template <class T, class Isa>
void dense(const dense_args<T>& args) noexcept {
    dense_run<Isa, T>::run(args);
}

} // namespace crumb::inline CRUMB_ABI::kernel
