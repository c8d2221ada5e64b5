// The functions of the float operations, per ISA.
#pragma once

#include <crumb/dispatch/table.hpp>
#include <crumb/kernel/float/kernels.hpp>

#if CRUMB_HEADER_ONLY
#include <crumb/kernel/float/definitions.hpp>
#endif

namespace crumb::inline CRUMB_ABI::dispatch {

using elementwise_function = void (*)(const kernel::elementwise_args&) noexcept;

/// The functions that `float_ops` takes from its ISA.
struct float_functions {
    const char* isa = nullptr;
    void (*rms_norm)(const kernel::norm_args&) noexcept = nullptr;
    void (*layer_norm)(const kernel::norm_args&) noexcept = nullptr;
    void (*softmax)(const kernel::softmax_args&) noexcept = nullptr;
    void (*rope)(const kernel::rope_args&) noexcept = nullptr;
    elementwise_function silu = nullptr;
    elementwise_function silu_gated = nullptr;
    elementwise_function gelu_tanh = nullptr;
    elementwise_function gelu_tanh_gated = nullptr;
    elementwise_function gelu_erf = nullptr;
    elementwise_function gelu_erf_gated = nullptr;
    elementwise_function add = nullptr;
    void (*to_halves)(const float*, half*, std::size_t) noexcept = nullptr;
    void (*to_floats)(const half*, float*, std::size_t) noexcept = nullptr;
};

template <>
struct function_table<float_functions> {
    template <class Isa>
    static constexpr float_functions of{
        isa_traits<Isa>::name,
        &kernel::rms_norm<own_or_base_isa<Isa>>,
        &kernel::layer_norm<own_or_base_isa<Isa>>,
        &kernel::softmax<own_or_base_isa<Isa>>,
        &kernel::rope<own_or_base_isa<Isa>>,
        &kernel::apply<kernel::function::silu, own_or_base_isa<Isa>>,
        &kernel::apply_gated<kernel::function::silu, own_or_base_isa<Isa>>,
        &kernel::apply<kernel::function::gelu_tanh, own_or_base_isa<Isa>>,
        &kernel::apply_gated<kernel::function::gelu_tanh, own_or_base_isa<Isa>>,
        &kernel::apply<kernel::function::gelu_erf, own_or_base_isa<Isa>>,
        &kernel::apply_gated<kernel::function::gelu_erf, own_or_base_isa<Isa>>,
        &kernel::add<own_or_base_isa<Isa>>,
        &kernel::to_halves<own_or_base_isa<Isa>>,
        &kernel::to_floats<own_or_base_isa<Isa>>,
    };
};

CRUMB_DECLARE_TABLE(float_functions)

} // namespace crumb::inline CRUMB_ABI::dispatch
