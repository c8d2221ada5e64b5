// The functions of folded feed-forward networks, per ISA.
#pragma once

#include <crumb/dispatch/table.hpp>
#include <crumb/kernel/ffn/kernels.hpp>

#if CRUMB_HEADER_ONLY
#include <crumb/kernel/ffn/definitions.hpp>
#endif

#include <array>

namespace crumb::inline CRUMB_ABI::dispatch {

/// The functions that `folded_ffn` takes from its ISA.
struct ffn_functions {
    /// For rows of a codec. Codecs without scales have no tiles.
    struct rows {
        void (*dots)(const kernel::neuron_dot_args&) noexcept = nullptr;
        void (*adds)(const kernel::neuron_add_args&) noexcept = nullptr;
        void (*pack_inputs)(const kernel::neuron_tile_args&) noexcept = nullptr;
        void (*pack_outputs)(const kernel::neuron_tile_args&) noexcept = nullptr;
    };
    const char* isa = nullptr;
    bool multiplies_codes = false; ///< whether `neuron_dot_args::quantized` is read
    std::size_t (*range_test)(const kernel::range_test_args&) noexcept = nullptr;
    std::array<rows, row_codecs> of; ///< by `row_codec`
};

template <>
struct function_table<ffn_functions> {
    template <class Isa, row_codec C>
    static constexpr ffn_functions::rows rows_of() {
        ffn_functions::rows r{&kernel::neuron_dots<C, Isa>, &kernel::neuron_adds<C, Isa>};
        if constexpr (requires { typename row_block<C>::format; }) {
            r.pack_inputs = &kernel::pack_inputs<C, Isa>;
            r.pack_outputs = &kernel::pack_outputs<C, Isa>;
        }
        return r;
    }
    template <class Isa>
    static constexpr ffn_functions of{
        isa_traits<Isa>::name,
        kernel::multiplies_codes<own_or_base_isa<Isa>>,
        &kernel::range_test<own_or_base_isa<Isa>>,
        {rows_of<own_or_base_isa<Isa>, row_codec::f32>(), rows_of<own_or_base_isa<Isa>, row_codec::f16>(),
         rows_of<own_or_base_isa<Isa>, row_codec::q8_0>(), rows_of<own_or_base_isa<Isa>, row_codec::q4_0>(),
         rows_of<own_or_base_isa<Isa>, row_codec::u2>()},
    };
};

CRUMB_DECLARE_TABLE(ffn_functions)

} // namespace crumb::inline CRUMB_ABI::dispatch
