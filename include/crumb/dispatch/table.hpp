// The functions of an ISA, one struct per kind of work.
#pragma once

#include <crumb/dispatch/isa.hpp>

#include <array>

namespace crumb::inline CRUMB_ABI::dispatch {

/// The ISA whose functions an ISA uses where it has none of its own: the one that it names as `base_isa`, or
/// itself.
template <class Isa>
struct base_isa_of {
    using type = Isa;
};
template <class Isa>
requires requires { typename Isa::base_isa; }
struct base_isa_of<Isa> {
    using type = typename Isa::base_isa;
};
template <class Isa>
using own_or_base_isa = typename base_isa_of<Isa>::type;
/// Whether an ISA with a base has products of its own for every format, not for codebooks only.
template <class Isa>
inline constexpr bool has_own_products = requires { typename Isa::own_products; };

/// Specialized for each struct of functions: `of<Isa>` are those of an ISA.
template <class Functions>
struct function_table;
/// The same with compiled kernels (CRUMB_COMPILED_KERNELS): `at(isa)` points to a struct of functions.
template <class Functions>
struct compiled_table;

/// The functions of the ISA at `isa` of `isa_list`.
template <class Functions>
const Functions& table_entry(std::size_t isa) noexcept {
    static constexpr auto entries = []<class... I>(type_list<I...>) {
        return std::array<Functions, sizeof...(I)>{function_table<Functions>::template of<I>...};
    }(isa_list{});
    return entries[isa];
}

/// The functions of the ISA at `isa` of `isa_names`.
template <class Functions>
const Functions& functions_at(std::size_t isa) noexcept {
#if CRUMB_HEADER_ONLY
    return table_entry<Functions>(isa);
#else
    return *static_cast<const Functions*>(compiled_table<Functions>::at(isa));
#endif
}

} // namespace crumb::inline CRUMB_ABI::dispatch

/// Declares the entry point of the functions of a kind of work; in namespace crumb::dispatch.
#if CRUMB_HEADER_ONLY
#define CRUMB_DECLARE_TABLE(functions)
#else
#define CRUMB_DECLARE_TABLE(functions)                                                                       \
    extern "C" const void* CRUMB_ENTRY(functions)(std::size_t isa) noexcept;                                 \
    template <>                                                                                              \
    struct compiled_table<functions> {                                                                       \
        static const void* at(std::size_t isa) noexcept { return CRUMB_ENTRY(functions)(isa); }              \
    };
#endif
/// Defines it, where kernels are compiled: in one source file of a program.
#define CRUMB_COMPILE_TABLE(functions)                                                                       \
    extern "C" const void* CRUMB_ENTRY(functions)(std::size_t isa) noexcept {                                \
        return &crumb::dispatch::table_entry<crumb::dispatch::functions>(isa);                               \
    }
