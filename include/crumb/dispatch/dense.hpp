// The functions of dense products, per ISA.
#pragma once

#include <crumb/dispatch/table.hpp>
#include <crumb/kernel/linear/dense_kernels.hpp>

#if CRUMB_HEADER_ONLY
#include <crumb/kernel/linear/definitions.hpp>
#endif

#include <type_traits>

namespace crumb::inline CRUMB_ABI::dispatch {

template <class T>
using dense_function = void (*)(const kernel::dense_args<T>&) noexcept;

/// The functions that `dense_linear` takes from its ISA.
struct dense_functions {
    const char* isa = nullptr;
    dense_function<float> float_weights = nullptr;
    dense_function<half> half_weights = nullptr;
    dense_function<bf16> bf16_weights = nullptr;

    /// The function for weights of type T.
    template <class T>
    dense_function<T> get() const noexcept {
        if constexpr (std::is_same_v<T, float>)
            return float_weights;
        else if constexpr (std::is_same_v<T, half>)
            return half_weights;
        else
            return bf16_weights;
    }
};

template <>
struct function_table<dense_functions> {
    template <class Isa>
    static constexpr dense_functions of{
        isa_traits<Isa>::name,
        &kernel::dense<float, own_or_base_isa<Isa>>,
        &kernel::dense<half, own_or_base_isa<Isa>>,
        &kernel::dense<bf16, own_or_base_isa<Isa>>,
    };
};

CRUMB_DECLARE_TABLE(dense_functions)

} // namespace crumb::inline CRUMB_ABI::dispatch
