// Q4_0 packed for products that absorb one nibble of a byte into the activations.
#pragma once

#include <crumb/format/q4_0.hpp>

namespace crumb::inline CRUMB_ABI {

/// The blocks and weights of `q4_0`, packed in `absorbing_nibble_codes`. Pack weights in this format to use
/// `linear_mode::absorbed`; exact products work as well, at the price of one more operation per register.
struct q4_0_absorbing : q4_0 {
    static constexpr const char* name = "q4_0_absorbing";
    using codes = absorbing_nibble_codes;
};

} // namespace crumb::inline CRUMB_ABI
