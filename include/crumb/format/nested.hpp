// Nested weights as they are packed: planes of bits, most significant first, each a stream of its own.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/core/type_list.hpp>
#include <crumb/core/view.hpp>
#include <crumb/format/index_codes.hpp>
#include <crumb/format/nested_levels.hpp>
#include <crumb/format/packed.hpp>
#include <crumb/format/u2.hpp>

#include <cstring>

namespace crumb::inline CRUMB_ABI {

/// Codes of 3 or 4 bits in planes. The first plane is that of `index_codes<2, 0>`: two register rows of pairs
/// of bits per tile and group. Each further bit is one register row per tile and group in a stream of its
/// own: with j = k % 16 / 4, the third bit of input k of channel c is in byte 4 c + k % 4 at bit {0, 2, 1,
/// 3}[j] + (k < 16 ? 0 : 4), the fourth at {1, 3, 0, 2}[j] + (k < 16 ? 0 : 4).
///
/// So rows are merged without a shift. A nibble takes its pair from the first plane and its other two bits
/// from the further planes; with 4 bits, a bit-select merges the second and third plane for two rows first.
/// The order of the bits in a nibble differs from row to row, and so do the tables.
template <int Bits>
struct plane_codes {
    static_assert(Bits == 3 || Bits == 4);
    static constexpr int bits = Bits;
    static constexpr int selector_bits = 0;
    static constexpr bool paired = false;
    static constexpr std::size_t planes = Bits - 2;          ///< after the first
    static constexpr std::size_t rows = 4;                   ///< register rows of nibbles
    static constexpr std::size_t bytes = 2 * tile_row_bytes; ///< of the first plane, per tile and group
    static constexpr std::size_t table_entries = 16;
    static constexpr std::size_t tables = rows;
    static constexpr int minimum = 0;
    static constexpr int maximum = (1 << Bits) - 1;
    static constexpr int panel_shift = 7; ///< as in `index_codes`

    /// Where the third and the fourth bits of register row `row` lie in a nibble of their plane.
    static constexpr unsigned third_of(std::size_t row) noexcept {
        constexpr unsigned at[4] = {0, 2, 1, 3};
        return at[row];
    }
    /// Where the fourth bits lie.
    static constexpr unsigned fourth_of(std::size_t row) noexcept { return third_of(row) ^ 1; }
    /// The index that a merged nibble of register row `row` stands for.
    static constexpr std::size_t index_of(std::size_t row, std::size_t nibble) noexcept {
        const bool even = row % 2 == 0; // the pair is in the upper half
        const std::size_t pair = even ? nibble >> 2 : nibble & 3;
        const std::size_t third = nibble >> third_of(row) & 1, fourth = nibble >> fourth_of(row) & 1;
        return Bits == 3 ? 2 * pair + third : 4 * pair + 2 * third + fourth;
    }
};

/// Nested weights at one precision, as kernels see them. 2 bits lie as in `u2` and use its kernels.
struct nested3 {
    static constexpr const char* name = "nested3";
    using scales = half_scales;
    using codes = plane_codes<3>;
};
/// The same of 4 bits.
struct nested4 {
    static constexpr const char* name = "nested4";
    using scales = half_scales;
    using codes = plane_codes<4>;
};
using precision_list = type_list<u2, nested3, nested4>;

/// Calls F(name) for every precision with kernels of its own.
#define CRUMB_FOR_EACH_PRECISION(F) F(nested3) F(nested4)

/// The lookup tables of a precision: 16 entries per register row of nibbles; for 2 bits those of
/// `index_codes<2, 0>`.
using nested_tables = std::array<std::int8_t, 64>;
template <class Precision>
constexpr nested_tables nested_lookup_tables(const nested_levels& l) noexcept {
    using codes = typename Precision::codes;
    const auto levels = l.table(codes::bits);
    nested_tables t{};
    for (std::size_t v = 0; v < 16; ++v) {
        if constexpr (codes::bits == 2) {
            t[v] = levels[v / 4];
            t[16 + v] = levels[v % 4];
        } else {
            for (std::size_t row = 0; row < codes::rows; ++row)
                t[16 * row + v] = levels[codes::index_of(row, v)];
        }
    }
    return t;
}

/// Sizes of packed nested weights. The streams: a header, the levels, the corrections of each precision, all
/// scales, then the planes; scales and planes are ordered by tile of 16 channels and by group within the
/// tile. Precision p reads the first p - 1 planes, a prefix of the bytes. Ragged n and k are padded with
/// zeros.
struct nested_layout {
    static constexpr std::size_t levels_offset = sizeof(packed_header);
    static constexpr std::size_t corrections_offset = levels_offset + alignment;
    std::size_t tiles = 0, groups = 0;
    std::size_t scales_offset = 0;
    std::size_t plane_offset[3] = {}; ///< of the pairs, the third, the fourth bits
    std::size_t bytes = 0;

    /// Bytes that a product at a precision reads; others count as the nearest one.
    std::size_t bytes_at(int bits) const noexcept {
        return bits >= max_nested_bits
                   ? bytes
                   : plane_offset[bits < min_nested_bits ? min_nested_bits - 1 : bits - 1];
    }
    /// Of n x k weights of `parent` bits; refuses sizes that no memory has.
    static result<nested_layout> of(std::size_t n, std::size_t k, int parent) noexcept {
        const auto size = packed_units::of(n, k);
        if (!size)
            return size.error();
        nested_layout l;
        l.tiles = size->tiles;
        l.groups = size->groups;
        const std::size_t units = size->count();
        const std::size_t corrections =
            l.tiles * tile_channels * static_cast<std::size_t>(parent - 1) * sizeof(half);
        l.scales_offset = round_up(corrections_offset + corrections, alignment);
        const std::size_t codes = round_up(l.scales_offset + units * tile_channels * sizeof(half), alignment);
        l.plane_offset[0] = codes;
        for (std::size_t p = 1; p < 3; ++p)
            l.plane_offset[p] = codes + units * (p + 1) * tile_row_bytes;
        l.bytes = codes + units * static_cast<std::size_t>(parent) * tile_row_bytes;
        return l;
    }
};

/// Bytes of packed nested weights with `parent` bits; 0 if the shape or the bits are out of range.
inline std::size_t nested_packed_bytes(std::size_t n, std::size_t k, int parent) noexcept {
    if (parent < min_nested_bits || parent > max_nested_bits)
        return 0;
    const auto layout = nested_layout::of(n, k, parent);
    return layout ? layout->bytes : 0;
}

/// Packed nested weights in memory that somebody else owns: a buffer or a mapped file.
class nested_view {
  public:
    static constexpr const char* name = "nested"; ///< the format that the header names
    using pairs = index_codes<2, 0>;              ///< the first plane

    nested_view() noexcept = default;

    /// Checks packed bytes (see format/invariants.hpp), which takes a pass over the scales, and refers to
    /// them. They must be aligned to `crumb::alignment` and outlive the view.
    static result<nested_view> open(std::span<const std::byte> bytes) noexcept {
        const auto read = read_packed_header(bytes, name);
        if (!read)
            return read.error();
        const packed_header& header = *read;
        if (auto s = check_buffer(bytes, nested_layout::corrections_offset, "packed nested weights"); !s)
            return s;
        nested_view v;
        v.levels_.seed = header.reserved[0];
        v.levels_.parent = header.reserved[1];
        std::memcpy(v.levels_.levels.data(), bytes.data() + nested_layout::levels_offset,
                    v.levels_.levels.size());
        if (auto s = check_levels(v.levels_); !s)
            return s;
        if (auto s =
                check_zero(std::as_bytes(std::span(header.reserved)).subspan(2), "nested weights, reserved");
            !s)
            return s;
        constexpr std::size_t levels_end = nested_layout::levels_offset + sizeof v.levels_.levels;
        if (auto s = check_zero(bytes.subspan(levels_end, nested_layout::corrections_offset - levels_end),
                                "nested weights, after the levels");
            !s)
            return s;
        const auto layout = nested_layout::of(header.n, header.k, v.levels_.parent);
        if (!layout)
            return layout.error();
        if (layout->bytes != header.bytes)
            return status::error(errc::corrupt, "packed nested weights: %zu bytes by shape, %llu by header",
                                 layout->bytes, static_cast<unsigned long long>(header.bytes));
        if (auto s = check_buffer(bytes, layout->bytes, "packed nested weights"); !s)
            return s;
        v.base_ = bytes.data();
        v.n_ = header.n;
        v.k_ = header.k;
        v.layout_ = *layout;
        const auto precisions = static_cast<std::size_t>(v.levels_.parent - min_nested_bits + 1);
        if (auto s = check_scales(v.corrections(min_nested_bits), precisions * v.tiles() * tile_channels,
                                  "nested weights, corrections");
            !s)
            return s;
        if (auto s =
                check_scales(v.scales(), v.tiles() * v.groups() * tile_channels, "nested weights, scales");
            !s)
            return s;
        return v;
    }
    /// The same; an error unless they are n x k weights.
    static result<nested_view> open(std::span<const std::byte> bytes, std::size_t n, std::size_t k) noexcept {
        auto v = open(bytes);
        if (v && (v->n() != n || v->k() != k))
            return status::error(errc::bad_shape, "packed nested weights: %zu x %zu, %zu x %zu are needed",
                                 v->n(), v->k(), n, k);
        return v;
    }

    /// Output channels.
    std::size_t n() const noexcept { return n_; }
    /// Inputs.
    std::size_t k() const noexcept { return k_; }
    /// Tiles of 16 channels.
    std::size_t tiles() const noexcept { return layout_.tiles; }
    /// Groups of 32 inputs.
    std::size_t groups() const noexcept { return layout_.groups; }
    /// The tables of all precisions.
    const nested_levels& levels() const noexcept { return levels_; }
    /// Bytes in all.
    std::size_t bytes() const noexcept { return layout_.bytes; }
    /// Bytes that a product at a precision reads, header included.
    std::size_t bytes_at(int bits) const noexcept { return layout_.bytes_at(bits); }
    /// 16 fp16 scales per tile and group.
    const half* scales() const noexcept {
        return reinterpret_cast<const half*>(base_ + layout_.scales_offset);
    }
    /// Corrections at a precision: fp16, one per channel of all tiles.
    const half* corrections(int bits) const noexcept {
        return reinterpret_cast<const half*>(base_ + nested_layout::corrections_offset) +
               static_cast<std::size_t>(bits - min_nested_bits) * layout_.tiles * tile_channels;
    }
    /// Plane 0: 128 bytes of pairs per tile and group; planes 1 and 2: 64 bytes of third and fourth bits.
    const std::uint8_t* plane(std::size_t i) const noexcept {
        return reinterpret_cast<const std::uint8_t*>(base_ + layout_.plane_offset[i]);
    }

    /// Scale of a row's group.
    half scale(std::size_t row, std::size_t group) const noexcept {
        return scales()[unit(row, group) * tile_channels + row % tile_channels];
    }
    /// The code of a weight, all `parent` bits.
    int code(std::size_t row, std::size_t i) const noexcept {
        const std::size_t u = unit(row, i / group_size), channel = row % tile_channels, in = i % group_size;
        int code = pairs::get(plane(0) + u * pairs::bytes, channel, in);
        for (int p = 1; p < levels_.parent - 1; ++p) {
            const auto index = static_cast<std::size_t>(p);
            const int byte = plane(index)[u * tile_row_bytes + 4 * channel + in % 4];
            code = code << 1 | (byte >> bit_of(index, in) & 1);
        }
        return code;
    }
    /// Weight i of a row at a precision.
    double weight(std::size_t row, std::size_t i, int bits) const noexcept {
        const auto q = static_cast<std::size_t>(code(row, i) >> (levels_.parent - bits));
        return double(to_float(scale(row, i / group_size))) * levels_.table(bits)[q];
    }

    /// The bit of a byte of plane 1 or 2 that belongs to input `in` of a group.
    static constexpr unsigned bit_of(std::size_t plane, std::size_t in) noexcept {
        using codes = plane_codes<4>;
        const std::size_t row = in % 16 / 4;
        return (plane == 1 ? codes::third_of(row) : codes::fourth_of(row)) + (in < 16 ? 0 : 4);
    }

  private:
    std::size_t unit(std::size_t row, std::size_t group) const noexcept {
        return row / tile_channels * layout_.groups + group;
    }
    const std::byte* base_ = nullptr;
    std::size_t n_ = 0, k_ = 0;
    nested_levels levels_;
    nested_layout layout_;
};

/// Packs nested weights into `buffer` (at least `nested_packed_bytes`, aligned to `crumb::alignment`; nothing
/// is written on error). Refuses levels that `check_levels` refuses, codes beyond the parent's bits, and
/// scales or corrections that are infinite or NaN.
inline result<nested_view> pack(const nested_storage_view& w, std::span<std::byte> buffer) noexcept {
    if (auto s = check_levels(w.levels); !s)
        return s;
    const auto layout = nested_layout::of(w.n, w.k, w.levels.parent);
    if (!layout)
        return layout.error();
    if (auto s = check_buffer(buffer, layout->bytes, "buffer for packed nested weights"); !s)
        return s;
    for (std::size_t row = 0; row < w.n; ++row) {
        for (std::size_t g = 0; g < layout->groups; ++g)
            if (!is_finite(w.scales[row * layout->groups + g]))
                return status::error(errc::not_finite,
                                     "nested weights: scale of row %zu, group %zu is not finite", row, g);
        for (int bits = min_nested_bits; bits <= w.levels.parent; ++bits)
            if (!is_finite(w.correction(row, bits)))
                return status::error(errc::not_finite,
                                     "nested weights: correction of row %zu at %d bits is not finite", row,
                                     bits);
        for (std::size_t i = 0; i < w.k; ++i)
            if (w.codes[row * w.k + i] >> w.levels.parent != 0)
                return status::error(errc::invalid_argument,
                                     "nested weights: code (%zu, %zu) is %d, of %d bits", row, i,
                                     w.codes[row * w.k + i], w.levels.parent);
    }

    packed_header header;
    std::memcpy(header.format, nested_view::name, std::strlen(nested_view::name));
    header.n = w.n;
    header.k = w.k;
    header.bytes = layout->bytes;
    header.reserved[0] = static_cast<std::uint8_t>(w.levels.seed);
    header.reserved[1] = static_cast<std::uint8_t>(w.levels.parent);
    std::memset(buffer.data(), 0, layout->bytes);
    std::memcpy(buffer.data(), &header, sizeof header);
    std::memcpy(buffer.data() + nested_layout::levels_offset, w.levels.levels.data(), w.levels.levels.size());
    auto* corrections = reinterpret_cast<half*>(buffer.data() + nested_layout::corrections_offset);
    auto* scales = reinterpret_cast<half*>(buffer.data() + layout->scales_offset);
    const auto plane = [&](std::size_t p) {
        return reinterpret_cast<std::uint8_t*>(buffer.data() + layout->plane_offset[p]);
    };
    for (std::size_t row = 0; row < w.n; ++row) {
        const std::size_t channel = row % tile_channels;
        for (int bits = min_nested_bits; bits <= w.levels.parent; ++bits)
            corrections[static_cast<std::size_t>(bits - min_nested_bits) * layout->tiles * tile_channels +
                        row] = w.correction(row, bits);
        for (std::size_t i = 0; i < w.k; ++i) {
            const std::size_t u = row / tile_channels * layout->groups + i / group_size, in = i % group_size;
            if (in == 0)
                scales[u * tile_channels + channel] = w.scales[row * layout->groups + i / group_size];
            const int code = w.codes[row * w.k + i];
            nested_view::pairs::put(plane(0) + u * nested_view::pairs::bytes, channel, in,
                                    code >> (w.levels.parent - 2));
            for (std::size_t p = 1; p + 1 < static_cast<std::size_t>(w.levels.parent); ++p) {
                auto& byte = plane(p)[u * tile_row_bytes + 4 * channel + in % 4];
                const int bit = code >> (w.levels.parent - 2 - static_cast<int>(p)) & 1;
                byte = static_cast<std::uint8_t>(byte | bit << nested_view::bit_of(p, in));
            }
        }
    }
    return nested_view::open(buffer.first(layout->bytes));
}

} // namespace crumb::inline CRUMB_ABI
