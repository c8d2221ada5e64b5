// A compile-time list of types.
#pragma once

#include <crumb/config.hpp>

#include <cstddef>

namespace crumb::inline CRUMB_ABI {

/// Types as a value.
template <class... T>
struct type_list {
    static constexpr std::size_t size = sizeof...(T);
    /// Calls `f.operator()<T>()` for every type in order.
    template <class F>
    static constexpr void for_each(F&& f) {
        (f.template operator()<T>(), ...);
    }
};

/// The types after the first, for lists from a macro that writes ", type" for each.
template <class First, class... T>
using type_list_tail = type_list<T...>;

namespace detail {
template <class... A, class... B>
type_list<A..., B...> join(type_list<A...>, type_list<B...>);
}
/// The types of one list, then those of another.
template <class A, class B>
using joined = decltype(detail::join(A{}, B{}));

} // namespace crumb::inline CRUMB_ABI
