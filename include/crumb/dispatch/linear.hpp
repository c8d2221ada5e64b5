// The function table of matrix products, per format and ISA.
#pragma once

#include <crumb/dispatch/isa.hpp>
#include <crumb/format/list.hpp>
#include <crumb/format/nested.hpp>
#include <crumb/kernel/kernel.hpp>

namespace crumb::inline CRUMB_ABI::dispatch {

/// What a plan keeps of the ISA and the mode it chose.
struct linear_functions {
    const char* isa = nullptr;
    activation_layout layout; ///< of the activations, but for k
    void (*gemv)(const kernel::linear_args&) noexcept = nullptr;
    void (*gemm)(const kernel::linear_args&) noexcept = nullptr;
    void (*quantize)(const kernel::quantize_args&) noexcept = nullptr;
    float (*unpack)(const kernel::unpack_args&) noexcept = nullptr;
};

/// The functions for `Format`, in the order of `isa_list`.
template <multiplied_format Format>
struct linear_table {
    /// The ISA whose kernels an ISA uses for the format.
    template <class Isa>
    using kernels = std::conditional_t<indexed_codes<typename Format::codes>, Isa, plain_isa<Isa>>;

    template <class Isa>
    static constexpr linear_functions exact{
        Isa::name,
        {.row_block = Isa::row_block,
         .offset = kernel::product_of<Isa, typename Format::codes>::type::offset,
         .order = kernel::order_of<Isa>},
        &kernel::gemv<Format, kernels<Isa>>,
        &kernel::gemm<Format, kernels<Isa>>,
        &kernel::quantize_activations<plain_isa<Isa>>,
        &kernel::unpack<Format, kernels<Isa>>,
    };
    /// Products with int8 panels; without functions where an ISA has none.
    template <class Isa>
    static constexpr linear_functions panels = [] {
        linear_functions f;
        f.isa = Isa::name;
        if constexpr (Isa::panel_row_block != 0) {
            constexpr bool pairs = kernel::order_of<Isa> != activation_order::chunks;
            f.layout = {.row_block = Isa::panel_row_block,
                        .offset = Isa::int8s::offset,
                        .group = panel_inputs,
                        .order = pairs ? activation_order::pairs : activation_order::chunks};
            f.gemv = f.gemm = &kernel::panel_gemm<Format, kernels<Isa>>;
            f.quantize = &kernel::quantize_activations<plain_isa<Isa>>;
            f.unpack = &kernel::unpack<Format, kernels<Isa>>;
        }
        return f;
    }();
    /// Absorbed products; without functions where an ISA or a bit layout has none.
    template <class Isa>
    static constexpr linear_functions absorbed = [] {
        linear_functions f;
        f.isa = Isa::name;
        if constexpr (kernel::absorbed_product<Isa, typename Format::codes>::available) {
            f.layout = {.row_block = 1,
                        .absorbed = kernel::absorbed_product<Isa, typename Format::codes>::bits};
            f.gemv = f.gemm = &kernel::absorbed<Format, Isa>;
            f.quantize = &kernel::quantize_absorbed<Isa>;
            f.unpack = &kernel::unpack<Format, kernels<Isa>>;
        }
        return f;
    }();
    /// By `linear_mode`, then in the order of `isa_list`.
    static constexpr auto entries = []<class... I>(type_list<I...>) {
        using row = std::array<linear_functions, sizeof...(I)>;
        return std::array<row, 3>{row{exact<I>...}, row{panels<I>...}, row{absorbed<I>...}};
    }(isa_list{});
};

/// The functions of a format for a `linear_mode` on an ISA. Not inline, so that a program may compile the
/// kernels of a format once: see dispatch/instantiate.hpp.
template <multiplied_format Format>
const linear_functions& functions_of(std::size_t mode, std::size_t isa) noexcept {
    return linear_table<Format>::entries[mode][isa];
}

} // namespace crumb::inline CRUMB_ABI::dispatch

#define CRUMB_INSTANTIATE(format)                                                                            \
    template const crumb::dispatch::linear_functions& crumb::dispatch::functions_of<crumb::format>(          \
        std::size_t, std::size_t) noexcept;

#if defined(CRUMB_EXTERN_TEMPLATES)
#define CRUMB_EXTERN_FORMAT(format) extern CRUMB_INSTANTIATE(format)
CRUMB_FOR_EACH_FORMAT(CRUMB_EXTERN_FORMAT)
CRUMB_FOR_EACH_PRECISION(CRUMB_EXTERN_FORMAT)
#undef CRUMB_EXTERN_FORMAT
#endif
