// The functions of quantizers of weights, per ISA.
#pragma once

#include <crumb/dispatch/table.hpp>
#include <crumb/kernel/weights/kernels.hpp>

#if CRUMB_HEADER_ONLY
#include <crumb/kernel/weights/definitions.hpp>
#endif

namespace crumb::inline CRUMB_ABI::dispatch {

/// The functions that quantizers take from an ISA; all ISAs give the same bits.
struct weight_functions {
    const char* isa = nullptr;
    void (*add_product)(const kernel::product_args<float>&) noexcept = nullptr;
    void (*subtract_product)(const kernel::product_args<double>&) noexcept = nullptr;
    void (*add_moments)(const kernel::moment_args&) noexcept = nullptr;
    void (*fit_scales)(const kernel::fit_args&) noexcept = nullptr;
    void (*evaluate_scales)(const kernel::evaluate_args&) noexcept = nullptr;
    void (*evaluate_nested)(const kernel::nested_args&) noexcept = nullptr;
    void (*fit_nested)(const kernel::nested_fit_args&) noexcept = nullptr;
    void (*descend_nested)(const kernel::descent_args&) noexcept = nullptr;
};

template <>
struct function_table<weight_functions> {
    template <class Isa>
    static constexpr weight_functions of{
        isa_traits<Isa>::name,
        &kernel::add_product<own_or_base_isa<Isa>>,
        &kernel::subtract_product<own_or_base_isa<Isa>>,
        &kernel::add_moments<own_or_base_isa<Isa>>,
        &kernel::fit_scales<own_or_base_isa<Isa>>,
        &kernel::evaluate_scales<own_or_base_isa<Isa>>,
        &kernel::evaluate_nested<own_or_base_isa<Isa>>,
        &kernel::fit_nested<own_or_base_isa<Isa>>,
        &kernel::descend_nested<own_or_base_isa<Isa>>,
    };
};

CRUMB_DECLARE_TABLE(weight_functions)

} // namespace crumb::inline CRUMB_ABI::dispatch
