// The function table of matrix products, per format and ISA.
#pragma once

#include <crumb/dispatch/isa.hpp>
#include <crumb/kernel/kernel.hpp>

namespace crumb::inline CRUMB_ABI::dispatch {

/// What a plan keeps of the ISA it chose.
struct linear_functions {
    const char* isa = nullptr;
    std::size_t row_block = 8; ///< of the activation layout
    int offset = 0;            ///< of the activation layout
    void (*gemv)(const kernel::linear_args&) noexcept = nullptr;
    void (*gemm)(const kernel::linear_args&) noexcept = nullptr;
    void (*quantize)(const kernel::quantize_args&) noexcept = nullptr;
};

/// The functions for `Format`, in the order of `isa_list`.
template <weight_format Format>
struct linear_table {
    template <class Isa>
    static constexpr linear_functions functions{
        Isa::name,
        Isa::row_block,
        kernel::product_of<Isa, typename Format::codes>::type::offset,
        &kernel::gemv<Format, Isa>,
        &kernel::gemm<Format, Isa>,
        &kernel::quantize_activations<Isa>,
    };
    static constexpr auto entries = []<class... I>(type_list<I...>) {
        return std::array<linear_functions, sizeof...(I)>{functions<I>...};
    }(isa_list{});
};

} // namespace crumb::inline CRUMB_ABI::dispatch
