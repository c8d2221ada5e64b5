// The kernels by name: templates over a format and an ISA, whose bodies are in the .inl files.
#pragma once

#include <crumb/core/view.hpp>
#include <crumb/format/activations.hpp>
#include <crumb/format/nested.hpp>
#include <crumb/format/packed.hpp>
#include <crumb/kernel/linear/passes.hpp>

#include <bit>
#include <type_traits>

namespace crumb::inline CRUMB_ABI::kernel {

/// Everything that a matrix product needs; all pointers belong to the caller.
struct linear_args {
    const half* scales = nullptr;             ///< packed_view::scales of `half_scales`
    const std::int8_t* multipliers = nullptr; ///< packed_view::scales of `block_scales`
    const std::uint8_t* exponents = nullptr;  ///< packed_view::exponents
    const std::uint8_t* records = nullptr;    ///< packed_view::scales of formats with records
    const std::uint8_t* codes = nullptr;      ///< packed_view::codes
    const std::uint8_t* planes[2] = {};       ///< nested_view::plane(1) and (2)
    const std::int8_t* codebooks = nullptr;   ///< tables of 16 entries, see `lookup_tables`
    float tensor_scale = 1;                   ///< packed_view::tensor_scale
    std::size_t groups = 0;                   ///< groups of 32 inputs
    std::size_t n = 0;                        ///< output channels of the weights
    bool two_streams = false;                 ///< see `cpu_features`

    const std::int8_t* x_codes = nullptr; ///< activations, laid out as activation_layout says
    const float* x_scales = nullptr;
    const std::int32_t* x_starts = nullptr; ///< null where the layout has none
    const float* x_shifts = nullptr;        ///< null where the layout has none
    const void* x_sums = nullptr;           ///< null where the layout has none
    std::size_t x_groups = 0;               ///< groups of 32 inputs of the activations
    std::size_t x_rows = 0;                 ///< rows of the whole activation object

    float* y = nullptr; ///< result: row r, channel c at y[r * y_stride + c]
    std::size_t y_stride = 0;
    const half* corrections = nullptr; ///< a value per channel of all tiles, added to each row, or null
    const float* bias = nullptr;       ///< n values added after that, or null
    bool adds = false;                 ///< instead, what `y` holds; only exact products

    range rows;     ///< rows to compute, closed
    range channels; ///< channels to compute, closed
};

/// What activation quantization needs.
struct quantize_args {
    const float* x = nullptr; ///< row r, input i at x[r * x_stride + i]
    std::size_t x_stride = 0;
    std::size_t rows = 0; ///< rows of the whole activation object
    activation_layout layout;
    std::int8_t* codes = nullptr;
    float* scales = nullptr;
    std::int32_t* starts = nullptr; ///< (origin's bits) - offset * (sum of the group's codes); or null
    float* shifts = nullptr;        ///< -origin * scale; or null
    void* sums = nullptr;           ///< of codes, see activation_layout; or null
    range part;                     ///< rows to quantize, closed
};

/// Packed weights to be written as bytes.
struct unpack_args {
    linear_args weights;          ///< of which `channels` says which: from a whole tile on
    std::int8_t* codes = nullptr; ///< tile by tile, group by group, as `byte_codes` has them
    float* scales = nullptr;      ///< 16 for each group of a tile
};

/// 8 rows by 8 channels of int8 over `inputs` inputs with one scale per row and one per channel.
struct panel_args {
    const std::int8_t* panel = nullptr; ///< chunk by chunk of 8 inputs: 8 codes of each of 8 channels
    const float* w_scales = nullptr;    ///< of the channels
    const std::int8_t* x = nullptr;     ///< a block of rows in the order `pairs`
    const float* x_scales = nullptr;    ///< of the rows
    std::size_t inputs = 0;             ///< a multiple of 32, at most 2^16
};

// One specialization per ISA is compiled inside its target region.
template <class Isa, class Codes>
struct product_of;
/// The product that blocks of rows use: `Product::rows` where an ISA has another one for them.
template <class Product>
struct product_for_rows {
    using type = Product;
};
template <class Product>
requires requires { typename Product::rows; }
struct product_for_rows<Product> {
    using type = typename Product::rows;
    static_assert(type::offset == Product::offset && type::factor == Product::factor);
};
template <class Isa, class Product>
struct toggled_product;

/// A format of indices whose entries are all from -32 to 31.
template <class Format>
struct narrow_entries : Format {
    struct codes : Format::codes {
        static constexpr bool narrow = true;
    };
};
/// ISAs that multiply such entries faster than others have a product `narrow_lookups` for them; void: one
/// that is inherited is not used.
template <class Isa, class Codes>
inline constexpr bool has_narrow_lookups = [] {
    if constexpr (indexed_codes<Codes> && requires { typename Isa::narrow_lookups; })
        return Codes::bits == 2 && !std::is_void_v<typename Isa::narrow_lookups>;
    else
        return false;
}();
template <class Isa, class Codes>
requires requires { Codes::narrow; }
struct product_of<Isa, Codes> {
    using type = typename Isa::narrow_lookups;
};
template <class Isa>
struct blocks;
template <class Isa, class Format>
struct tile_shape;
template <class Isa, class Scales, int Vectors>
struct scale_reader;
template <class Isa, std::size_t Planes, int Vectors>
struct plane_reader;
template <class Isa, class Format, int Vectors>
struct packed_reader;
template <class Isa, class Format, class Product, int Vectors>
struct packed_operands;
template <class Isa, class Format, class Product, int Vectors>
struct panel_operands;
template <class Isa, class Format, class Product, int Vectors>
struct kept_operands;
template <class Isa, class Format, class Product, int Vectors>
struct prefetching_operands;
/// Micro-kernels. ISAs with their own have, without the final factor, `single` that writes the 16 channels of
/// a tile times one row to out[c], and `block` that writes the tile times a block of rows to out[16 r + c].
template <class Isa, class Format>
struct linear_tile;
template <class Isa, class Format, class Tile = linear_tile<Isa, Format>>
struct linear_run;
template <class Isa, class Format>
struct panel_run;
/// Products of int8 panels, where an ISA has them: the same for all formats.
template <class Isa>
struct panel_product;
/// What looks up codes in another way than its base multiplies bytes alike.
template <class Isa>
requires requires { sizeof(panel_product<typename Isa::base_isa>); }
struct panel_product<Isa> : panel_product<typename Isa::base_isa> {};
template <class Isa, class Format>
struct unpack_run;
template <class Isa>
struct activation_quantizer;
/// Whether an ISA brings its own `linear_tile`.
template <class Isa>
inline constexpr bool has_own_tiles = requires { typename Isa::own_tiles; };

/// The order of activations that an ISA's micro-kernels read.
template <class Isa>
inline constexpr activation_order order_of = [] {
    if constexpr (requires { Isa::order; })
        return Isa::order;
    else
        return activation_order::chunks;
}();

// Of formats with records: bits of packed codes, products of codes without a sign, and the loops over them.
template <class Isa>
struct sixteen_bytes;
template <class Isa>
struct quad_rows;
template <class Isa>
struct trit_sums;
template <class Isa>
struct two_bit_sums;
template <class Isa>
struct byte_shifts;
template <class Isa>
struct field_bits;
template <class Isa, int Bits>
struct field_product;
/// Whether sums of products with floats as scales begin at the bits of `activation_origin`: no conversion.
template <class Isa>
inline constexpr bool from_origin = requires { requires Isa::from_origin; };
/// Whether operands of a `field_product` may have a sign.
template <class Product>
inline constexpr bool takes_signs = requires { requires Product::takes_signs; };
template <class Isa, int Bits>
struct field_reader;
template <class Isa>
struct record_integers;
template <class Isa, class Format>
struct record_reader;
template <class Isa, int Subs>
struct record_term_sums;
template <class Isa, int Bits, int Subs, bool Integers>
struct record_block;
/// Panels, where an ISA has another way: `run` as `record_block::panel`.
template <class Isa, int Bits, int Subs, bool Integers>
struct record_panel;
template <class Isa, class Format>
struct record_codes;
template <class Isa, class Format>
struct single_codes;
template <class Isa, class Format>
struct record_tile;
template <class Isa, class Format>
struct record_passes;
template <class Isa, class Format>
struct record_run;
/// Where an ISA has another way for one row: `run` adds the products of a tile's first blocks, or of all
/// where `takes_all` is true, to 16 totals, and returns how many blocks these are.
template <class Isa, class Format>
struct record_single;

/// What a tile needs of its records for up to 8 groups of 32. Integers are kept as bits of floats.
struct record_terms {
    alignas(64) float factors[16][tile_channels]; ///< of sums: integers, or scales as floats
    alignas(64) float terms[16][tile_channels];   ///< of sums of activations: likewise
    alignas(64) float unit[tile_channels];        ///< over integers
    alignas(64) float minimum_unit[tile_channels];
    /// Of sums of activations, for integers of codes that are counted from a middle of their own.
    alignas(64) float middles[4][tile_channels];
};

/// What panels do with sums of activations where a scale serves 32 of them.
enum class record_sums : std::uint8_t {
    none,   ///< nothing: codes have no offset
    starts, ///< they are integers, at which sums of products begin
    terms,  ///< they are floats, and are multiplied with `record_terms::terms`
};

/// Rows of activations that form a block, from a group of 32 on.
struct record_rows {
    const std::int8_t* codes = nullptr; ///< of the group
    const float* scales = nullptr;      ///< of the group, or of its block of 256
    const float* shifts = nullptr;      ///< -`activation_origin` times these scales, if `from_origin`
    const void* sums = nullptr;         ///< likewise
    int offset = 0;                     ///< what codes are counted from, with integer scales
    record_sums use = record_sums::none;
};

/// What kernels know of a format with records at compile time.
template <class F>
struct record_shape {
    /// Scales are integers under a half per 256 inputs, and so are sums until the block ends.
    static constexpr bool integers = block_inputs<F> == record_inputs;
    /// Sums of a group of 32 that have scales of their own; 0: a block is one sum.
    static constexpr int sub_groups = F::scales::group == 16 ? 2 : F::scales::group == record_inputs ? 0 : 1;
    static constexpr int least = [] {
        int low = 0;
        if constexpr (has_table<F>)
            for (const std::int8_t entry : F::codebooks)
                low = entry < low ? entry : low;
        return low;
    }();
    /// Packed codes are shifted left by so many bits in registers.
    static constexpr int up = code_step_of<F> == 2 ? 1 : 0;
    static_assert(code_step_of<F> <= 2);
    /// Bits of what codes become in registers; 8: they keep their sign.
    static constexpr int bits = [] {
        if constexpr (has_table<F>) {
            int most = 0, n = 1;
            for (const std::int8_t entry : F::codebooks)
                most = entry - least > most ? entry - least : most;
            while (most >> n != 0)
                ++n;
            return n <= 6 ? n : 8;
        } else if constexpr (codes_of_blocks<typename F::codes>) {
            return 2;
        } else {
            return F::codes::field_bits + up;
        }
    }();
    /// Value = register - offset, but for the offset that a product of 8 bits has.
    static constexpr int offset = !has_table<F> ? code_offset_of<F> : bits == 8 ? 0 : -least;
    /// With a scale per 32 activations, what sums of registers begin at is this times the sum of the
    /// activations; 0: minima, or the offset of a product of 8 bits, are added as floats.
    static constexpr int sum_factor = integers || has_minima<F> ? 0 : -offset;
    /// Of codes counted from their offset, or with minima from their middle where a group has one sum, the
    /// largest magnitude is 2^(centered_bits - 1).
    static constexpr int centered_bits = [] {
        constexpr int from = !has_minima<F> ? offset : sub_groups == 1 ? 1 << (bits - 1) : 0;
        constexpr int above = (1 << bits) - 1 - from;
        constexpr int most = from > above ? from : above;
        return static_cast<int>(std::bit_width(static_cast<unsigned>(most - 1))) + 1;
    }();
    /// Those of the largest magnitude that a code or a value has.
    static constexpr int sum_bits = [] {
        constexpr int of_offset = static_cast<int>(std::bit_width(static_cast<unsigned>(offset)));
        return bits == 8 || bits >= of_offset ? bits : of_offset;
    }();
};

/// Products whose operand for the high codes is the byte as it is, and their activations. Specialized, with
/// `available`, where an ISA and a bit layout have them.
template <class Isa, class Codes>
struct absorbed_product {
    static constexpr bool available = false;
};
/// Pairs of bits: the byte as it is, and shifted left by 2, 4 and 6.
template <class Isa>
requires requires { typename Isa::absorbed_pairs; }
struct absorbed_product<Isa, index_codes<2, 0>> {
    static constexpr bool available = true;
    static constexpr int bits = 2;
    static constexpr float factor = 0.03125f;
    using type = typename Isa::absorbed_pairs;
};
template <class Isa, class Format>
struct absorbed_tile;
template <class Isa, class Format, class Tile>
struct absorbed_run;
template <class Isa>
struct absorbed_quantizer;

/// y[0, c] = bias[c] + sum over k of w[c, k] * x[0, k] for one row of activations (`args.x_rows` is 1): whole
/// tiles of 16 channels, the group sums exact, one fused multiply-add per group.
template <class Format, class Isa>
void gemv(const linear_args& args) noexcept {
    linear_run<Isa, Format>::gemv(args);
}

/// y[r, c] = bias[c] + sum over k of w[c, k] * x[r, k] for the rows and channels of `args`. Every output is
/// the same sequence of roundings as in `gemv`, whatever the number of rows or the split.
template <class Format, class Isa>
void gemm(const linear_args& args) noexcept {
    linear_run<Isa, Format>::gemm(args);
}

/// As `gemv` and `gemm`, for formats with records. With integer scales: block by block of 256 inputs the
/// exact sum I of scale * code * activation, and likewise M of minima; fma(fl(I s), d, y), then fma(fl(M s),
/// dmin, y), s the activations' scale. Others: group by group (of 16 or 32) fma(fl(I s), d, y), then fma(S,
/// m, y), S the sum of the activations' codes times s, rounded, and m the minimum, or what a code without its
/// sign begins at.
template <class Format, class Isa>
void record_gemv(const linear_args& args) noexcept {
    record_passes<Isa, Format>::gemv(args);
}
template <class Format, class Isa>
void record_gemm(const linear_args& args) noexcept {
    record_run<Isa, Format>::gemm(args);
}

/// y[r, c] as `gemm`, with weights requantized to int8 panels: w' = D[c, b] round(code * m / S), m =
/// round(127 d / max |d|), D = S max |d| / 127, where b is a block of `panel_inputs` inputs, max |d| the
/// largest scale of the channel in it and S = 8 for 4-bit, 128 for 8-bit codes. |w' - w| <= D. Activations
/// have one scale per block.
template <class Format, class Isa>
void panel_gemm(const linear_args& args) noexcept {
    panel_run<Isa, Format>::gemm(args);
}

/// weight = scale * code, but for the rounding of a scale; says the largest magnitude that a code can have:
/// more than 63.
template <class Format, class Isa>
float unpack(const unpack_args& args) noexcept {
    return unpack_run<Isa, Format>::run(args);
}

/// Quantizes rows of activations: scale = `activation_scale(max |x|)` per group, code = x * (1 / scale)
/// rounded to nearest, ties to even. A group with NaN, infinity or more than `largest_activation` gets the
/// scale NaN, so that its outputs are NaN.
template <class Isa>
void quantize_activations(const quantize_args& args) noexcept {
    activation_quantizer<Isa>::run(args);
}

/// As `gemm`, for weights in `absorbing_nibble_codes` or uniform 2-bit indices and activations from
/// `quantize_absorbed`.
template <class Format, class Isa>
void absorbed(const linear_args& args) noexcept {
    absorbed_run<Isa, Format, typename Isa::template absorbed_tile<Format>>::run(args);
}

/// Quantizes rows of activations for `absorbed`. With pairs (l, h) of inputs (i, 16 + i) of a group:
/// s = `activation_scale(max(|h|, |l - h / 16|))`, y = round(h / s), z = round(l / s - y / 16). Codes 0..15
/// are z, codes 16..31 are y; the start is the bits of the origin - 8 (sum y + 16 sum z).
///
/// For 2 bits, a group's inputs 8 r + i + {16, 20, 0, 4}, r < 2, i < 4, are what a byte's pairs from the
/// upper to the lowest are multiplied with; their codes are a = round(x_a / s), b = round(x_b / s - a / 4),
/// c = round(x_c / s - b / 4 - a / 16), d = round(x_d / s - c / 4 - b / 16 - a / 64), s = `activation_scale`
/// of the largest magnitude without the rounding. If the a of a group have an odd sum, the first that is not
/// 0 is moved by one towards it, so that the start, -96 sum (inputs) = -(96 sum (a + b + c + d) + 24 sum (a +
/// b + c) + 6 sum (a + b) + 1.5 sum a) from the origin, is whole.
template <class Isa>
void quantize_absorbed(const quantize_args& args) noexcept {
    absorbed_quantizer<Isa>::run(args);
}

} // namespace crumb::inline CRUMB_ABI::kernel
