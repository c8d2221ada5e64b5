// Kernels for quantizers, and arithmetic beside them: the same bits on every ISA and under all compiler
// flags.
#pragma once

#include <crumb/dispatch/weights.hpp>

#include <cmath>

namespace crumb::inline CRUMB_ABI {

/// Functions of quantizers for the ISA that a context names; all of them give the same bits.
CRUMB_WHEN_CALLED result<const dispatch::weight_functions*> choose_weight_functions(const context& on) {
    const auto isa = choose_isa(on);
    if (!isa)
        return isa.error();
    return &dispatch::functions_at<dispatch::weight_functions>(*isa);
}

/// Rows whose products quantizers make at a time, a multiple of a tile's rows: one copy of a panel of the
/// other matrix serves all of them.
inline constexpr std::size_t product_rows = 96;

/// x, a product: no compiler fuses it with a sum.
inline double rounded(double x) noexcept {
    CRUMB_ROUND_PRODUCT(x);
    return x;
}

/// ln x of a positive normal number, to about 1e-15: the same bits everywhere, as no library promises.
inline double natural_log(double x) noexcept {
    int exponent = 0;
    double m = std::frexp(x, &exponent); // .5 .. 1
    if (m < 0.70710678118654752) {
        m *= 2;
        --exponent;
    }
    // ln m = 2 atanh s
    const double s = (m - 1) / (m + 1), square = s * s;
    double sum = 0;
    for (int i = 27; i > 0; i -= 2)
        sum = rounded(sum * square) + 1.0 / i;
    return rounded(exponent * 0.69314718055994531) + 2 * s * sum;
}

/// e^x for |x| < 700, to about 1e-15.
inline double exponential(double x) noexcept {
    const double n = std::nearbyint(x / 0.69314718055994531);
    const double r = x - rounded(n * 0.69314718055994531);
    double sum = 1;
    for (int i = 18; i > 0; --i)
        sum = 1 + rounded(sum * (r / i));
    return std::ldexp(sum, static_cast<int>(n));
}

} // namespace crumb::inline CRUMB_ABI
