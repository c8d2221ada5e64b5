// must() and or_exit(): the value of a result, or the end of the program.
#pragma once

#include <crumb/core/status.hpp>

namespace crumb::inline CRUMB_ABI {

/// Prints the message of an error on stderr and aborts: for what cannot fail.
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

/// Prints the message of an error on stderr and exits with status 1: for what files or users get wrong.
inline void or_exit(const status& s) noexcept {
    if (!s) {
        std::fprintf(stderr, "%s\n", s.message());
        std::exit(1);
    }
}

/// The value; prints the message and exits if there is none.
template <class T>
T or_exit(result<T> r) noexcept {
    or_exit(r.error());
    return std::move(r.value());
}

} // namespace crumb::inline CRUMB_ABI
