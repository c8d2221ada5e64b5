// must(): the value of a result, or the end of the program.
#pragma once

#include <crumb/core/status.hpp>

namespace crumb::inline CRUMB_ABI {

/// Prints the message of an error on stderr and aborts.
inline void must(const status& s) noexcept {
    if (!s) {
        std::fprintf(stderr, "crumb: %s\n", s.message());
        std::abort();
    }
}

/// The value; prints the message and aborts if there is none.
template <class T>
T must(result<T> r) noexcept {
    must(r.error());
    return std::move(r.value());
}

} // namespace crumb::inline CRUMB_ABI
