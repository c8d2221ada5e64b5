// The float operations around the products, by name; the bodies are in the .inl files.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/core/view.hpp>

namespace crumb::inline CRUMB_ABI::kernel {

// ---- elementwise functions -------------------------------------------------------------------------------
/// Functions of one number, as tags. Errors (measured over all floats) are at their definitions in math.inl
/// and elementwise.inl; NaN gives NaN, infinities give the limits.
namespace function {
struct exp {};       ///< e^x; results below 2^-126 are subnormal, below 2^-149 zero
struct tanh {};      ///< hyperbolic tangent
struct erf {};       ///< error function
struct logistic {};  ///< 1 / (1 + e^-x)
struct silu {};      ///< x logistic(x)
struct gelu_tanh {}; ///< x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
struct gelu_erf {};  ///< x / 2 (1 + erf(x / sqrt(2)))
} // namespace function

/// Operands of equal shape; y may be x or up.
struct elementwise_args {
    matrix_view<const float> x;
    matrix_view<const float> up; ///< second operand, where there is one
    matrix_view<float> y;
    range rows; ///< rows to compute, closed
};

// ---- normalization ---------------------------------------------------------------------------------------
/// y may be x.
struct norm_args {
    matrix_view<const float> x;
    const float* w = nullptr;    ///< x.cols factors
    const float* bias = nullptr; ///< x.cols summands, or null; LayerNorm only
    float epsilon = 0;           ///< added to the mean of squares or the variance
    matrix_view<float> y;
    range rows; ///< rows to compute, closed
};

// ---- softmax ---------------------------------------------------------------------------------------------
/// y may be x.
struct softmax_args {
    matrix_view<const float> x;
    matrix_view<float> y;
    float scale = 1;            ///< multiplies x
    std::size_t valid = 0;      ///< columns of row 0 that take part
    std::size_t valid_step = 0; ///< how many more in each following row
    range rows;                 ///< rows to compute, closed
};

// ---- rotary embedding ------------------------------------------------------------------------------------
/// Cosines and sines: row p holds cos(p f_i), i = 0 .. dims / 2 - 1, then sin(p f_i).
struct rope_args {
    matrix_view<float> x;         ///< row r: heads of `head_size` elements each, token at `position` + r
    std::size_t head_size = 0;    ///< x.cols is a multiple
    const float* table = nullptr; ///< as above
    std::size_t dims = 0;         ///< rotated elements at the beginning of each head; even
    std::size_t position = 0;     ///< of row 0
    bool interleaved = false;     ///< pairs (2i, 2i + 1), else (i, i + dims / 2)
    range rows;                   ///< rows to compute, closed
};

/// Whether an ISA looks up what codes stand for: `look_up_field<Bits, First>(codes, table)`.
template <class Isa>
inline constexpr bool looks_up_fields = requires(const std::uint8_t* codes, typename Isa::f32 table) {
    Isa::template look_up_field<4, 0>(codes, table);
};

// One specialization per ISA is compiled inside its target region.
template <class Isa>
struct math;
template <class Isa, class Function>
struct elementwise_run;
template <class Isa>
struct copy_run;
template <class Isa>
struct norm_run;
template <class Isa>
struct softmax_run;
template <class Isa>
struct rope_run;

/// y[r, c] = Function(x[r, c]).
template <class Function, class Isa>
void apply(const elementwise_args& args) noexcept {
    elementwise_run<Isa, Function>::ungated(args);
}

/// y[r, c] = Function(x[r, c]) * up[r, c].
template <class Function, class Isa>
void apply_gated(const elementwise_args& args) noexcept {
    elementwise_run<Isa, Function>::gated(args);
}

/// y[r, c] = x[r, c] + up[r, c].
template <class Isa>
void add(const elementwise_args& args) noexcept {
    copy_run<Isa>::add(args);
}

/// y[i] = x[i] as half, rounded to nearest, ties to even.
template <class Isa>
void to_halves(const float* x, half* y, std::size_t n) noexcept {
    copy_run<Isa>::to_halves(x, y, n);
}

/// y[i] = x[i], exactly.
template <class Isa>
void to_floats(const half* x, float* y, std::size_t n) noexcept {
    copy_run<Isa>::to_floats(x, y, n);
}

/// y[r, c] = w[c] x[r, c] / sqrt(mean over c of x[r, c]^2 + epsilon).
template <class Isa>
void rms_norm(const norm_args& args) noexcept {
    norm_run<Isa>::rms_norm(args);
}

/// y[r, c] = w[c] (x[r, c] - mean) / sqrt(variance + epsilon) + bias[c].
template <class Isa>
void layer_norm(const norm_args& args) noexcept {
    norm_run<Isa>::layer_norm(args);
}

/// y[r, c] = exp(scale x[r, c] - max) / sum of these, over the row's valid columns; 0 in the others.
template <class Isa>
void softmax(const softmax_args& args) noexcept {
    softmax_run<Isa>::run(args);
}

/// Rotates pairs (a, b) of each head to (a cos - b sin, a sin + b cos), in place.
template <class Isa>
void rope(const rope_args& args) noexcept {
    rope_run<Isa>::run(args);
}

} // namespace crumb::inline CRUMB_ABI::kernel
