// The function tables of the float operations and of attention, per ISA.
#pragma once

#include <crumb/dispatch/table.hpp>
#include <crumb/kernel/float_kernels.hpp>

namespace crumb::inline CRUMB_ABI::dispatch {

using elementwise_function = void (*)(const kernel::elementwise_args&) noexcept;

/// What `float_ops` keeps of the ISA it chose.
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

/// What `attention` keeps of the ISA it chose.
struct attention_functions {
    const char* isa = nullptr;
    void (*run_f32)(const kernel::attention_args<float>&) noexcept = nullptr;
    void (*run_f16)(const kernel::attention_args<half>&) noexcept = nullptr;
    void (*merge)(const kernel::merge_args&) noexcept = nullptr;
};

template <>
struct function_table<float_functions> {
    template <class Isa>
    static constexpr float_functions of{
        Isa::name,
        &kernel::rms_norm<plain_isa<Isa>>,
        &kernel::layer_norm<plain_isa<Isa>>,
        &kernel::softmax<plain_isa<Isa>>,
        &kernel::rope<plain_isa<Isa>>,
        &kernel::apply<kernel::function::silu, plain_isa<Isa>>,
        &kernel::apply_gated<kernel::function::silu, plain_isa<Isa>>,
        &kernel::apply<kernel::function::gelu_tanh, plain_isa<Isa>>,
        &kernel::apply_gated<kernel::function::gelu_tanh, plain_isa<Isa>>,
        &kernel::apply<kernel::function::gelu_erf, plain_isa<Isa>>,
        &kernel::apply_gated<kernel::function::gelu_erf, plain_isa<Isa>>,
        &kernel::add<plain_isa<Isa>>,
        &kernel::to_halves<plain_isa<Isa>>,
        &kernel::to_floats<plain_isa<Isa>>,
    };
};
template <>
struct function_table<attention_functions> {
    template <class Isa>
    static constexpr attention_functions of{
        Isa::name,
        &kernel::attention<float, plain_isa<Isa>>,
        &kernel::attention<half, plain_isa<Isa>>,
        &kernel::merge<plain_isa<Isa>>,
    };
};

} // namespace crumb::inline CRUMB_ABI::dispatch

CRUMB_EXTERN_TABLE(float_functions)
CRUMB_EXTERN_TABLE(attention_functions)
