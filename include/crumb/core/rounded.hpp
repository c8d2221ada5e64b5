// Rounding where a decision hangs on it.
#pragma once

#include <crumb/config.hpp>

namespace crumb::inline CRUMB_ABI {

/// x itself, rounded: a product that comes here is not fused with the sum that it goes into, whatever the
/// compiler's flags.
template <class T>
CRUMB_INLINE T rounded(T x) noexcept {
#if CRUMB_ARCH_X86_64
    __asm__("" : "+x"(x));
#else
    __asm__("" : "+w"(x));
#endif
    return x;
}

} // namespace crumb::inline CRUMB_ABI
