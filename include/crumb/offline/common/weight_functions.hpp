// Kernels for quantizers, and arithmetic beside them: the same bits on every ISA and under all compiler
// flags.
#pragma once

#include <crumb/dispatch/weights.hpp>

namespace crumb::inline CRUMB_ABI {

/// Functions of quantizers for the ISA that a context names; all of them give the same bits.
CRUMB_WHEN_CALLED result<const dispatch::weight_functions*> choose_weight_functions(const context& on) {
    const auto isa = choose_isa(on);
    if (!isa)
        return isa.error();
    return &dispatch::functions_at<dispatch::weight_functions>(*isa);
}

/// x, a product: no compiler fuses it with a sum.
inline double rounded(double x) noexcept {
    CRUMB_ROUND_PRODUCT(x);
    return x;
}

} // namespace crumb::inline CRUMB_ABI
