// The functions of an ISA, one struct per kind of work.
#pragma once

#include <crumb/dispatch/isa.hpp>

namespace crumb::inline CRUMB_ABI::dispatch {

/// Specialized for each struct of functions: `of<Isa>` are those of an ISA.
template <class Functions>
struct function_table;

/// The functions of the ISA at `isa` of `isa_list`. Not inline, so that a program may compile the kernels
/// once: see dispatch/instantiate.hpp.
template <class Functions>
const Functions& functions_at(std::size_t isa) noexcept {
    static constexpr auto entries = []<class... I>(type_list<I...>) {
        return std::array<Functions, sizeof...(I)>{function_table<Functions>::template of<I>...};
    }(isa_list{});
    return entries[isa];
}

} // namespace crumb::inline CRUMB_ABI::dispatch

#define CRUMB_INSTANTIATE_TABLE(functions)                                                                   \
    template const crumb::dispatch::functions& crumb::dispatch::functions_at<crumb::dispatch::functions>(    \
        std::size_t) noexcept;

#if defined(CRUMB_EXTERN_TEMPLATES)
#define CRUMB_EXTERN_TABLE(functions) extern CRUMB_INSTANTIATE_TABLE(functions)
#else
#define CRUMB_EXTERN_TABLE(functions)
#endif
