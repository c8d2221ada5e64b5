// The functions of attention over arrays, per ISA.
#pragma once

#include <crumb/dispatch/table.hpp>
#include <crumb/kernel/attention/kernels.hpp>

#if CRUMB_HEADER_ONLY
#include <crumb/kernel/attention/definitions.hpp>
#endif

namespace crumb::inline CRUMB_ABI::dispatch {

/// The functions that `attention` takes from its ISA.
struct attention_functions {
    const char* isa = nullptr;
    void (*run_f32)(const kernel::attention_args<float>&) noexcept = nullptr;
    void (*run_f16)(const kernel::attention_args<half>&) noexcept = nullptr;
    void (*merge)(const kernel::merge_args&) noexcept = nullptr;
};

template <>
struct function_table<attention_functions> {
    template <class Isa>
    static constexpr attention_functions of{
        isa_traits<Isa>::name,
        &kernel::attention<float, own_or_base_isa<Isa>>,
        &kernel::attention<half, own_or_base_isa<Isa>>,
        &kernel::merge<own_or_base_isa<Isa>>,
    };
};

CRUMB_DECLARE_TABLE(attention_functions)

} // namespace crumb::inline CRUMB_ABI::dispatch
