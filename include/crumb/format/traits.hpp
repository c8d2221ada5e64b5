// The concept of a weight format, and the bit layouts of packed codes.
#pragma once

#include <crumb/format/scales.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace crumb::inline CRUMB_ABI {

/// Output channels that are interleaved in a packed tile.
inline constexpr std::size_t tile_channels = 16;
/// Input channels of a group: they share a scale.
inline constexpr std::size_t group_size = 32;
/// Bytes of a register row of a tile: 4 bytes of each of 16 channels.
inline constexpr std::size_t tile_row_bytes = 64;

/// Packed codes of 4 bits, two's complement. Row j (0..3) of a tile holds, for channel c, bytes
/// 64 j + 4 c + i, i = 0..3: code 4 j + i of the group in the low nibble, code 16 + 4 j + i in the high one.
/// Two's complement nibbles are the paper's sign-toggled ones (section 4.1.2): shifted left or masked they
/// are 16 times the code, as a signed byte.
struct nibble_codes {
    static constexpr std::size_t rows = 4;                      ///< register rows per tile
    static constexpr std::size_t bytes = rows * tile_row_bytes; ///< per tile and group
    static constexpr int minimum = -8;
    static constexpr int maximum = 7;
    static constexpr int panel_shift = 3; ///< int8 panels hold round(code * m / 2^panel_shift), |m| <= 127

    /// The byte of a tile that holds code k of a channel.
    static constexpr std::size_t byte_of(std::size_t channel, std::size_t k) noexcept {
        return k % 16 / 4 * tile_row_bytes + 4 * channel + k % 4;
    }
    /// Writes code `k` of channel `channel` into a tile whose bytes were zero.
    static constexpr void put(std::uint8_t* tile, std::size_t channel, std::size_t k, int code) noexcept {
        auto& byte = tile[byte_of(channel, k)];
        byte = static_cast<std::uint8_t>(byte | (k < 16 ? code & 15 : (code & 15) << 4));
    }
    /// Code k of a channel of a tile.
    static constexpr int get(const std::uint8_t* tile, std::size_t channel, std::size_t k) noexcept {
        const int nibble = (tile[byte_of(channel, k)] >> (k < 16 ? 0 : 4)) & 15;
        return nibble < 8 ? nibble : nibble - 16;
    }
};

/// As `nibble_codes`, with code + 8 in the low nibbles, so that a byte is, as a signed number, 16 times the
/// high code plus what the low nibble holds. (A low nibble in two's complement is no linear function of its
/// code.)
struct absorbing_nibble_codes : nibble_codes {
    static constexpr int low_offset = 8;

    /// Writes code k of a channel into a tile whose bytes were zero.
    static constexpr void put(std::uint8_t* tile, std::size_t channel, std::size_t k, int code) noexcept {
        nibble_codes::put(tile, channel, k, k < 16 ? code + low_offset : code);
    }
    /// Code k of a channel of a tile.
    static constexpr int get(const std::uint8_t* tile, std::size_t channel, std::size_t k) noexcept {
        const int byte = tile[byte_of(channel, k)] ^ low_offset;
        const int nibble = (byte >> (k < 16 ? 0 : 4)) & 15;
        return nibble < 8 ? nibble : nibble - 16;
    }
};

/// Packed codes of 8 bits, two's complement. Row j (0..7) holds, for channel c, bytes 64 j + 4 c + i: code
/// 4 j + i of the group.
struct byte_codes {
    static constexpr std::size_t rows = 8;
    static constexpr std::size_t bytes = rows * tile_row_bytes;
    static constexpr int minimum = -128;
    static constexpr int maximum = 127;
    static constexpr int panel_shift = 7; ///< as in `nibble_codes`

    /// The byte of a tile that holds code k of a channel.
    static constexpr std::size_t byte_of(std::size_t channel, std::size_t k) noexcept {
        return k / 4 * tile_row_bytes + 4 * channel + k % 4;
    }
    /// Writes code k of a channel into a tile.
    static constexpr void put(std::uint8_t* tile, std::size_t channel, std::size_t k, int code) noexcept {
        tile[byte_of(channel, k)] = static_cast<std::uint8_t>(code);
    }
    /// Code k of a channel of a tile.
    static constexpr int get(const std::uint8_t* tile, std::size_t channel, std::size_t k) noexcept {
        return static_cast<std::int8_t>(tile[byte_of(channel, k)]);
    }
};

/// Bit layouts whose codes are indices into codebooks; see format/index_codes.hpp.
template <class Codes>
concept indexed_codes = requires { Codes::selector_bits; };

/// Bit layouts with planes of further bits beside the first; see format/nested.hpp.
template <class Codes>
concept codes_in_planes = indexed_codes<Codes> && requires { Codes::planes; };
/// How many.
template <class Codes>
inline constexpr std::size_t planes_of = [] {
    if constexpr (codes_in_planes<Codes>)
        return Codes::planes;
    else
        return std::size_t{0};
}();

/// Scales or minima that are described: of what type, for how many inputs, stored in blocks of how many
/// groups.
template <class S>
concept described_scales = requires(typename S::value value) {
    { to_float(value) } -> std::same_as<float>;
    { is_finite(value) } -> std::same_as<bool>;
    requires S::group == 16 || S::group == 32 || S::group == 64 || S::group == 128 || S::group == 256;
    requires S::block_groups >= 1;
    { S::per_tensor } -> std::convertible_to<bool>;
};

/// Formats whose groups begin at a minimum: `minimum(block, group)` is what the code 0 stands for.
template <class F>
concept has_minima = requires { typename F::minima; };
/// Formats with one float for all of a tensor over their scales.
template <class F>
concept has_tensor_scale = F::scales::per_tensor;
/// Formats whose codes stand for entries of one table of signed bytes that belongs to the format.
template <class F>
concept has_table = requires { F::codebooks[0]; };
/// What an entry of such a table is multiplied by: 1 if the format says nothing, `table_unit` otherwise.
template <class F>
inline constexpr float table_unit_of = [] {
    if constexpr (requires { F::table_unit; })
        return F::table_unit;
    else
        return 1.0f;
}();
/// Formats that name a bit layout of packed codes.
template <class F>
concept has_packed_codes = requires {
    requires F::codes::rows == 4 || F::codes::rows == 8; // register rows of a tile
    F::codes::bytes;
};
/// Formats whose packed codes are indices into codebooks.
template <class F>
concept has_indexed_codes = has_packed_codes<F> && indexed_codes<typename F::codes>;

/// Formats whose packed scales are records, see format/records.hpp.
template <class F>
concept has_records = requires { F::records::bytes; };

// What the kernels multiply, property by property: a compiler names the one that a format lacks.
template <class F>
concept groups_of_32 = F::scales::group == group_size;
template <class F>
concept scales_of_kernels =
    (std::same_as<typename F::scales::value, half> && F::scales::block_groups == 1) ||
    (std::same_as<typename F::scales::value, block_scale> && F::scales::block_groups == 8);
template <class F>
concept without_minima = !has_minima<F>;
template <class F>
concept without_tensor_scale = !has_tensor_scale<F>;
template <class F>
concept whole_values = table_unit_of<F> == 1.0f;

/// What kernels have to know of weights, and what they multiply.
template <class F>
concept multiplied_format =
    (has_records<F> || (groups_of_32<F> && scales_of_kernels<F> && without_minima<F> &&
                        without_tensor_scale<F> && whole_values<F> && has_packed_codes<F>)) &&
    requires {
        { F::name } -> std::convertible_to<const char*>;
        F::codes::bytes;
    };

/// A group-quantized weight format, one that can be decoded: weight = scale(group) * value(code), plus
/// minimum(group) if the format has minima, the whole times the tensor's scale if it has one. The value is
/// the code itself, an entry of the format's table or, if the bit layout is one of indices, of a codebook. A
/// name has up to 15 characters: it is the tag of packed weights. A block holds `F::scales::block_groups`
/// groups. Anyone's type that satisfies this and `multiplied_format` can be packed and multiplied; the
/// library's own are listed in format/list.hpp.
template <class F>
concept weight_format = described_scales<typename F::scales> && requires(const typename F::block& block) {
    { F::name } -> std::convertible_to<const char*>;
    { F::scale(block, std::size_t{}) } -> std::same_as<typename F::scales::value>; // of a group
    { F::code(block, std::size_t{}) } -> std::same_as<int>;                        // i of the block
} && (!has_minima<F> || requires(const typename F::block& block) {
                            requires described_scales<typename F::minima>;
                            requires F::minima::group == F::scales::group;
                            {
                                F::minimum(block, std::size_t{})
                            } -> std::same_as<typename F::minima::value>; // of a group
                        });

/// Says in a sentence why a format is not multiplied, at the place that wants to.
template <class F>
struct multiplied_format_check {
#define CRUMB_REFUSED "no kernel multiplies this format yet: "
    static constexpr bool recorded = has_records<F>;
    static_assert(recorded || groups_of_32<F>, CRUMB_REFUSED "its groups are not of 32 inputs");
    static_assert(recorded || scales_of_kernels<F>,
                  CRUMB_REFUSED "its scales are neither half_scales nor block_scales");
    static_assert(recorded || without_minima<F>, CRUMB_REFUSED "its groups have minima");
    static_assert(recorded || without_tensor_scale<F>,
                  CRUMB_REFUSED "its scales are under one of the whole tensor");
    static_assert(recorded || whole_values<F>, CRUMB_REFUSED "the entries of its table are no whole numbers");
    static_assert(recorded || has_packed_codes<F>,
                  CRUMB_REFUSED "its `codes` is no bit layout of 4 or 8 rows");
#undef CRUMB_REFUSED
    static constexpr bool passed = multiplied_format<F>;
};

/// A format whose blocks can be written, group by group.
template <class F>
concept writable_format =
    weight_format<F> && requires(typename F::block& out, typename F::scales::value scale, const int* codes) {
        { F::set(out, scale, codes, std::size_t{}) }; // scale and codes of a group
    };

/// A format that rounds floats by itself, without knowing more than a block of them.
template <class F>
concept rounding_format = writable_format<F> && requires(typename F::block& out, const float* x) {
    { F::encode(x, out) }; // finite floats, rounded to nearest
};

/// Inputs in a block of storage.
template <weight_format F>
inline constexpr std::size_t block_inputs = F::scales::block_groups * F::scales::group;

/// Bits that a format stores per weight, its scales included.
template <weight_format F>
inline constexpr double bits_per_weight = 8.0 * double(sizeof(typename F::block)) / double(block_inputs<F>);

} // namespace crumb::inline CRUMB_ABI
