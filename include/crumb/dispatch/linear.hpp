// The function table of matrix products, per format and ISA.
#pragma once

#include <crumb/dispatch/table.hpp>
#include <crumb/format/list.hpp>
#include <crumb/format/nested.hpp>
#include <crumb/kernel/linear/kernels.hpp>

#if CRUMB_HEADER_ONLY
#include <crumb/kernel/linear/definitions.hpp>
#endif

namespace crumb::inline CRUMB_ABI::dispatch {

/// The functions that a plan takes from its ISA and mode.
struct linear_functions {
    const char* isa = nullptr; ///< null where the format's kernels are left out, see CRUMB_OMIT_FORMAT
    activation_layout layout;  ///< of the activations; k is left to the plan
    void (*gemv)(const kernel::linear_args&) noexcept = nullptr;
    void (*gemm)(const kernel::linear_args&) noexcept = nullptr;
    void (*quantize)(const kernel::quantize_args&) noexcept = nullptr;
    float (*unpack)(const kernel::unpack_args&) noexcept = nullptr;
};

/// Behind the values of `linear_mode`: exact products with `kernel::narrow_entries`.
inline constexpr std::size_t narrow_products = 3;

/// The functions for `Format`, in the order of `isa_list`.
template <multiplied_format Format>
struct linear_table {
    /// The ISA whose kernels an ISA uses for the format.
    template <class Isa>
    using kernels = std::conditional_t<indexed_codes<typename Format::codes> || has_own_products<Isa>, Isa,
                                       own_or_base_isa<Isa>>;

    template <class Isa>
    static constexpr linear_functions exact{
        isa_traits<Isa>::name,
        {.row_block = Isa::row_block,
         .offset = kernel::product_of<Isa, typename Format::codes>::type::offset,
         .order = kernel::order_of<Isa>},
        &kernel::gemv<Format, kernels<Isa>>,
        &kernel::gemm<Format, kernels<Isa>>,
        &kernel::quantize_activations<own_or_base_isa<Isa>>,
        &kernel::unpack<Format, own_or_base_isa<Isa>>,
    };
    /// The same for codebooks whose entries are all from -32 to 31; null functions if the ISA is not faster
    /// so.
    template <class Isa>
    static constexpr linear_functions narrow = [] {
        linear_functions f;
        f.isa = isa_traits<Isa>::name;
        if constexpr (kernel::has_narrow_lookups<kernels<Isa>, typename Format::codes>) {
            using narrow_format = kernel::narrow_entries<Format>;
            f = exact<Isa>;
            f.layout.offset = kernels<Isa>::narrow_lookups::offset;
            f.gemv = &kernel::gemv<narrow_format, kernels<Isa>>;
            f.gemm = &kernel::gemm<narrow_format, kernels<Isa>>;
        }
        return f;
    }();
    /// Products with int8 panels; null functions if the ISA has none.
    template <class Isa>
    static constexpr linear_functions panels = [] {
        linear_functions f;
        f.isa = isa_traits<Isa>::name;
        if constexpr (Isa::panel_row_block != 0) {
            constexpr bool pairs = kernel::order_of<Isa> != activation_order::chunks;
            f.layout = {.row_block = Isa::panel_row_block,
                        .offset = Isa::int8s::offset,
                        .group = panel_inputs,
                        .order = pairs ? activation_order::pairs : activation_order::chunks};
            f.gemv = f.gemm = &kernel::panel_gemm<Format, kernels<Isa>>;
            f.quantize = &kernel::quantize_activations<own_or_base_isa<Isa>>;
            f.unpack = &kernel::unpack<Format, own_or_base_isa<Isa>>;
        }
        return f;
    }();
    /// Absorbed products; null functions if the ISA or the bit layout has none.
    template <class Isa>
    static constexpr linear_functions absorbed = [] {
        linear_functions f;
        f.isa = isa_traits<Isa>::name;
        if constexpr (kernel::absorbed_product<Isa, typename Format::codes>::available) {
            f.layout = {.row_block = 1,
                        .absorbed = kernel::absorbed_product<Isa, typename Format::codes>::bits};
            f.gemv = f.gemm = &kernel::absorbed<Format, Isa>;
            f.quantize = &kernel::quantize_absorbed<Isa>;
            f.unpack = &kernel::unpack<Format, own_or_base_isa<Isa>>;
        }
        return f;
    }();
    /// By `linear_mode` and `narrow_products`, then in the order of `isa_list`.
    static constexpr auto entries = []<class... I>(type_list<I...>) {
        using row = std::array<linear_functions, sizeof...(I)>;
        return std::array<row, 4>{row{exact<I>...}, row{panels<I>...}, row{absorbed<I>...},
                                  row{narrow<I>...}};
    }(isa_list{});
};

/// The same of formats with records, which have one mode.
template <multiplied_format Format>
requires has_records<Format>
struct linear_table<Format> {
    template <class Isa>
    using kernels = std::conditional_t<has_own_products<Isa>, Isa, own_or_base_isa<Isa>>;

    template <class Isa>
    static constexpr linear_functions exact{
        isa_traits<Isa>::name,
        {.row_block = Isa::record_row_block,
         .group = kernel::record_shape<Format>::integers ? record_inputs : group_size,
         .sum_inputs = kernel::record_shape<Format>::integers || kernel::record_shape<Format>::sub_groups == 2
                           ? 16u
                           : 32u,
         .sum_factor = kernel::record_shape<Format>::sum_factor,
         .from_origin = kernel::from_origin<kernels<Isa>> && !kernel::record_shape<Format>::integers},
        &kernel::record_gemv<Format, kernels<Isa>>,
        &kernel::record_gemm<Format, kernels<Isa>>,
        &kernel::quantize_activations<own_or_base_isa<Isa>>,
    };
    template <class Isa>
    static constexpr linear_functions none{isa_traits<Isa>::name, {}};
    /// By `linear_mode` and `narrow_products`, then in the order of `isa_list`.
    static constexpr auto entries = []<class... I>(type_list<I...>) {
        using row = std::array<linear_functions, sizeof...(I)>;
        return std::array<row, 4>{row{exact<I>...}, row{none<I>...}, row{none<I>...}, row{none<I>...}};
    }(isa_list{});
};

/// Whether this file defines the kernels of a format.
template <class Format>
constexpr bool is_defined = []<class First, class... I>(type_list<First, I...>) {
    using isa = typename linear_table<Format>::template kernels<First>;
    if constexpr (has_records<Format>)
        return requires { sizeof(kernel::record_run<isa, Format>); };
    else
        return requires { sizeof(kernel::linear_run<isa, Format>); };
}(isa_list{});

/// The same with compiled kernels (CRUMB_COMPILED_KERNELS): `at(mode, isa)` points to the functions of a
/// format. Those of the caller's own formats come from the caller's file, for an ISA of the same name.
template <class Format>
struct compiled_format {
    static const void* at(std::size_t mode, std::size_t isa) noexcept {
        static_assert(is_defined<Format>, "this format is not among the compiled kernels: include "
                                          "crumb/kernel/linear/definitions.hpp to compile its kernels here");
        return &linear_table<Format>::entries[mode][listed_isas().find(isa_names()[isa])];
    }
};
#if !CRUMB_HEADER_ONLY
#define CRUMB_DECLARE_FORMAT(format)                                                                         \
    extern "C" const void* CRUMB_ENTRY(linear_##format)(std::size_t mode, std::size_t isa) noexcept;         \
    template <>                                                                                              \
    struct compiled_format<format> {                                                                         \
        static const void* at(std::size_t mode, std::size_t isa) noexcept {                                  \
            return CRUMB_ENTRY(linear_##format)(mode, isa);                                                  \
        }                                                                                                    \
    };
CRUMB_FOR_EACH_FORMAT(CRUMB_DECLARE_FORMAT)
CRUMB_FOR_EACH_RECORD_FORMAT(CRUMB_DECLARE_FORMAT)
CRUMB_FOR_EACH_VARIANT(CRUMB_DECLARE_FORMAT)
CRUMB_FOR_EACH_PRECISION(CRUMB_DECLARE_FORMAT)
#undef CRUMB_DECLARE_FORMAT
#endif

/// The functions of a format for a `linear_mode` on the ISA at `isa` of `isa_names`.
template <multiplied_format Format>
const linear_functions& functions_of(std::size_t mode, std::size_t isa) noexcept {
#if CRUMB_HEADER_ONLY
    return linear_table<Format>::entries[mode][isa];
#else
    return *static_cast<const linear_functions*>(compiled_format<Format>::at(mode, isa));
#endif
}

/// An error where a program does without the kernels of a format.
inline status check_compiled(const linear_functions& functions, const char* format) noexcept {
    if (functions.isa == nullptr)
        return status::error(errc::unsupported,
                             "format %s: its kernels are left out of this program, see CRUMB_KERNEL_FORMATS",
                             format);
    return {};
}

} // namespace crumb::inline CRUMB_ABI::dispatch

/// Defines the entry point of a format, where kernels are compiled: in one source file of a program.
#define CRUMB_COMPILE_FORMAT(format)                                                                         \
    extern "C" const void* CRUMB_ENTRY(linear_##format)(std::size_t mode, std::size_t isa) noexcept {        \
        return &crumb::dispatch::linear_table<crumb::format>::entries[mode][isa];                            \
    }
/// Defines it for a format whose kernels the program does without: plans of the format are errors.
#define CRUMB_OMIT_FORMAT(format)                                                                            \
    extern "C" const void* CRUMB_ENTRY(linear_##format)(std::size_t, std::size_t) noexcept {                 \
        static constexpr crumb::dispatch::linear_functions none;                                             \
        return &none;                                                                                        \
    }
