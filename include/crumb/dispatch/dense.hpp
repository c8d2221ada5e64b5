// The function table of dense products, per weight type and ISA.
#pragma once

#include <crumb/dispatch/isa.hpp>
#include <crumb/kernel/dense.hpp>

namespace crumb::inline CRUMB_ABI::dispatch {

template <class T>
using dense_function = void (*)(const kernel::dense_args<T>&) noexcept;

/// The functions for weights of type `T`, in the order of `isa_list`.
template <class T>
inline constexpr auto dense_table = []<class... I>(type_list<I...>) {
    return std::array<dense_function<T>, sizeof...(I)>{&kernel::dense<T, plain_isa<I>>...};
}(isa_list{});

} // namespace crumb::inline CRUMB_ABI::dispatch
