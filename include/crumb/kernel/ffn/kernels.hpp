// The kernels of folded feed-forward networks by name; the bodies are in neuron_rows.inl and
// neuron_tiles.inl.
#pragma once

#include <crumb/core/view.hpp>
#include <crumb/format/neuron_rows.hpp>

namespace crumb::inline CRUMB_ABI::kernel {

/// Which estimates lie outside their ranges.
struct range_test_args {
    const float* estimates = nullptr; ///< of neuron n at estimates[n]
    const float* low = nullptr;
    const float* high = nullptr;
    const float* margins = nullptr; ///< by which ranges shrink on both sides, or null
    range neurons;                  ///< closed, begins and ends at whole tiles (or at the last neuron)
    std::uint32_t* list = nullptr;  ///< room for a whole tile more than there are neurons
};

/// Records of neurons, and which of them.
struct neuron_args {
    const std::byte* records = nullptr;
    std::size_t record_bytes = 0;
    std::size_t row_offset = 0; ///< of the row within a record
    const std::uint32_t* list = nullptr;
    std::size_t count = 0; ///< neurons of the list to use
    /// What comes into the cache meanwhile: with neuron i of the list, `next_bytes` bytes at `next_offset` of
    /// the record of neuron next[i], i < next_count.
    const std::uint32_t* next = nullptr;
    std::size_t next_count = 0, next_offset = 0, next_bytes = 0;
};
/// A row of quantized activations in plain order, padded with zeros to a multiple of 16 groups of 32.
struct quantized_row {
    const std::int8_t* codes = nullptr;
    const float* scales = nullptr; ///< of the groups
    /// -code_offset * (sum of the codes) of groups 2 i and 2 i + 1 at 16 i and 16 i + 8; else 0.
    const std::int32_t* starts = nullptr;
};
/// What is added to the codes of rows so that none is negative.
constexpr int code_offset(row_codec codec) noexcept {
    return codec == row_codec::q8_0 ? 128 : codec == row_codec::q4_0 ? 8 : 3;
}
struct neuron_dot_args : neuron_args {
    const float* x = nullptr;
    quantized_row quantized; ///< instead of x, on ISAs with `multiplies_codes`
    std::size_t inputs = 0;
    float* sums = nullptr; ///< one per neuron of the list
};
struct neuron_add_args : neuron_args {
    const float* factors = nullptr; ///< one per neuron of the list
    float* y = nullptr;             ///< output c at y[c]
    range outputs;                  ///< closed, begins at a whole group of 32
};
/// Neurons as the tiles of a product with 8-bit codes.
struct neuron_tile_args {
    const std::byte* records = nullptr;
    std::size_t record_bytes = 0;
    std::size_t row_offset = 0;
    range neurons; ///< closed; of `pack_outputs`: begins at a whole group
    range columns; ///< inputs or outputs, closed; begins at a whole group
    half* scales = nullptr;
    std::uint8_t* codes = nullptr;
    /// Of `pack_inputs`: weights to which those of the rows are added, or null, as `unpack` writes them for
    /// these neurons, and the largest magnitude of their codes.
    const std::int8_t* others = nullptr;
    const float* other_scales = nullptr;
    float max_other = 0;
};

// One specialization per ISA is compiled inside its target region.
template <class Isa>
struct range_test_run;
// Codes of four rows at a time are what an ISA names as `four_rows`: isa/portable/four_rows.inl says what
// the functions compute.
template <class Isa, row_codec Codec>
struct row_reader;
template <class Isa, row_codec Codec>
struct neuron_rows_run;
template <class Isa, row_codec Codec>
struct neuron_tiles_run;
/// Rows of a codec times quantized activations, where an ISA has that: it says so with `multiplies_codes`.
template <class Isa, row_codec Codec>
struct code_dots;
template <class Isa>
struct line_prefetch;
/// Rows of q4_0 times factors, in integers.
template <class Isa>
struct code_adds;
template <class Isa>
inline constexpr bool multiplies_codes = requires { requires Isa::multiplies_codes; };

/// Whether an ISA writes lanes outside their ranges by itself: `append_outside(u, low, high, first, list)`.
template <class Isa>
inline constexpr bool has_append_outside =
    requires(typename Isa::f32 u, std::uint32_t* list) { Isa::append_outside(u, u, u, 0u, list); };

/// Whether an ISA loads halves that lie apart: `gather_halves<Stride>(first, count)`.
template <class Isa>
inline constexpr bool gathers_halves =
    requires(const std::byte* first) { Isa::template gather_halves<18>(first, std::size_t{16}); };

/// Appends the neurons with !(low + margin <= estimate < high - margin) to the list, in order, and says how
/// many. No branch depends on an estimate.
template <class Isa>
std::size_t range_test(const range_test_args& args) noexcept {
    return range_test_run<Isa>::run(args);
}

/// sums[i] = sum over k of w[list[i], k] x[k], x as floats or quantized. Floats: groups of 32 in order, even
/// and odd ones apart, a group's sum times its scale with one fused multiply-add. A sum does not depend on
/// its neighbours in the list.
template <row_codec Codec, class Isa>
void neuron_dots(const neuron_dot_args& args) noexcept {
    neuron_rows_run<Isa, Codec>::dots(args);
}

/// y[c] += sum over i of factors[i] w[list[i], c]. Most codecs: neuron by neuron in the order of the list,
/// one rounding for factor times scale, one for the fused multiply-add. q4_0: 16 neurons of the list at a
/// time. In a group of 32 outputs these have the step D = max |factor * scale| / 127, their factors times
/// scales are rounded to whole D, as activations are, and their sum is exact but for one rounding: it is off
/// by at most D / 2 times the sum of |codes|, and the roundings of floats.
template <row_codec Codec, class Isa>
void neuron_adds(const neuron_add_args& args) noexcept {
    neuron_rows_run<Isa, Codec>::adds(args);
}

/// Rows of `neurons` as packed q8_0 with these neurons as output channels and `columns` as inputs: tiles of
/// 16 channels, see `packed_layout`. Exact: codes and scales are those of the rows. With `others`, both sums
/// of weights: a channel and 32 inputs get the scale D = (max_other |d'| + 128 / U |d|) / 126, d and d' the
/// scales of row and others, U = 1, 16 and 42 for q8_0, q4_0 and u2, rounded to a half; a weight moves by at
/// most .52 D.
template <row_codec Codec, class Isa>
void pack_inputs(const neuron_tile_args& args) noexcept {
    neuron_tiles_run<Isa, Codec>::inputs(args);
}

/// Rows of `neurons` as packed q8_0 with `columns` as output channels and these neurons as inputs. 32
/// channels and 32 neurons share the scale D = 128 / (127 U) max |d| over the rows' scales, rounded to a
/// half; a weight moves by at most .51 D.
template <row_codec Codec, class Isa>
void pack_outputs(const neuron_tile_args& args) noexcept {
    neuron_tiles_run<Isa, Codec>::outputs(args);
}

} // namespace crumb::inline CRUMB_ABI::kernel
