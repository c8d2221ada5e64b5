// Packed weights: output channels interleaved for the dot instructions, in the caller's memory.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/core/view.hpp>
#include <crumb/format/invariants.hpp>
#include <crumb/format/traits.hpp>

#include <array>
#include <cstring>
#include <string>

namespace crumb::inline CRUMB_ABI {

/// The number of entries in the table set of a format: 0 if its codes are weights themselves.
template <weight_format F>
inline constexpr std::size_t codebook_entries = [] {
    if constexpr (has_indexed_codes<F>)
        return F::codes::table_entries;
    else
        return std::size_t{0};
}();

/// Whether the user has to bring the codebooks of a format.
template <weight_format F>
inline constexpr bool needs_codebooks = codebook_entries<F> != 0 && !has_table<F>;

/// The lookup tables of a format's indices. If nibbles are two indices without a selector, there are two
/// tables, for the upper and the lower index of a nibble. With indices of 2 bits and a selector, the second
/// table has the selector in the upper two bits of a nibble.
template <weight_format F>
constexpr auto lookup_tables([[maybe_unused]] std::span<const std::int8_t> codebooks) noexcept {
    if constexpr (codebook_entries<F> == 0) {
        return std::array<std::int8_t, 0>{};
    } else {
        using codes = typename F::codes;
        constexpr std::size_t entries = codebook_entries<F>;
        std::array<std::int8_t, 2 * entries> tables{};
        if constexpr (!needs_codebooks<F>)
            codebooks = F::codebooks;
        for (std::size_t i = 0; i < entries && i < codebooks.size(); ++i) {
            tables[i] = codebooks[codes::paired ? i / 4 : i];
            tables[entries + i] = codebooks[codes::paired      ? i % 4
                                            : codes::bits == 2 ? 4 * (i % 4) + i / 4
                                                               : i];
        }
        return tables;
    }
}

/// Weights in storage order: row n (an output channel) is ceil(k / block_inputs) consecutive blocks, `stride`
/// blocks apart. Padding after k in the last block of a row is ignored.
template <weight_format F>
struct storage_view {
    const typename F::block* blocks = nullptr;
    std::size_t n = 0;      ///< output channels
    std::size_t k = 0;      ///< input channels
    std::size_t stride = 0; ///< blocks from one row to the next, at least ceil(k / block_inputs)
    std::span<const std::int8_t> codebooks = {}; ///< to read weights of codebook formats
    float tensor_scale = 1;                      ///< of formats that have one

    static constexpr std::size_t group_inputs = F::scales::group; ///< inputs that share a scale
    constexpr std::size_t groups() const noexcept { return (k + group_inputs - 1) / group_inputs; }
    /// The block that holds a group.
    constexpr const typename F::block& block(std::size_t row, std::size_t group) const noexcept {
        return blocks[row * stride + group / F::scales::block_groups];
    }
    constexpr auto scale(std::size_t row, std::size_t group) const noexcept {
        return F::scale(block(row, group), group % F::scales::block_groups);
    }
    constexpr int code(std::size_t row, std::size_t i) const noexcept {
        return F::code(block(row, i / group_inputs), i % block_inputs<F>);
    }
    /// The value of weight i's code: itself or an entry of a table.
    constexpr int value(std::size_t row, std::size_t i) const noexcept {
        const int c = code(row, i);
        if constexpr (needs_codebooks<F>)
            return codebooks[F::codes::entry(c, selector(row, i / group_inputs))];
        else if constexpr (has_indexed_codes<F>)
            return F::codebooks[F::codes::entry(c, selector(row, i / group_inputs))];
        else if constexpr (has_table<F>)
            return F::codebooks[c];
        else
            return c;
    }
    /// Weight i of a row.
    constexpr double weight(std::size_t row, std::size_t i) const noexcept {
        const std::size_t group = i / group_inputs;
        double w = double(to_float(scale(row, group))) * value(row, i);
        if constexpr (table_unit_of<F> != 1.0f)
            w *= double(table_unit_of<F>);
        if constexpr (has_minima<F>)
            w += double(to_float(F::minimum(block(row, group), group % F::scales::block_groups)));
        if constexpr (has_tensor_scale<F>)
            w *= double(tensor_scale);
        return w;
    }

  private:
    constexpr unsigned selector(std::size_t row, std::size_t group) const noexcept {
        if constexpr (F::codes::selector_bits == 0)
            return 0;
        else
            return F::selector(block(row, group), group % F::scales::block_groups);
    }
};

/// A view of n x k weights whose rows follow each other without a gap, as in a GGUF tensor: n output
/// channels, k inputs, n ceil(k / block_inputs) blocks, which is checked. `codebooks`: to read weights of
/// codebook formats.
template <weight_format F>
result<storage_view<F>> storage(std::span<const typename F::block> blocks, std::size_t n, std::size_t k,
                                std::span<const std::int8_t> codebooks = {}) noexcept {
    const std::size_t row = k / block_inputs<F> + (k % block_inputs<F> != 0 ? 1 : 0);
    std::size_t needed = 0;
    if (!multiply(n, row, needed) || blocks.size() != needed)
        return status::error(errc::bad_shape,
                             "stored weights: %zu blocks of format %s, %zu rows of %zu inputs take %zu each",
                             blocks.size(), F::name, n, k, row);
    return storage_view<F>{blocks.data(), n, k, row, codebooks};
}

/// The tag at the start of packed weights; 64 bytes, little-endian.
struct packed_header {
    static constexpr std::uint32_t current_version = 1;
    char magic[4] = {'C', 'R', 'M', 'B'};
    std::uint32_t version = current_version; ///< of the layout
    char format[16] = {};                    ///< name of the weight format, zero-padded
    std::uint64_t n = 0;
    std::uint64_t k = 0;
    std::uint64_t bytes = 0; ///< of header, scales and codes together
    std::uint8_t reserved[16] = {};

    bool has_format(const char* name) const noexcept {
        return std::strlen(name) <= sizeof format && std::strncmp(format, name, sizeof format) == 0;
    }
};
static_assert(sizeof(packed_header) == alignment);

/// The tag of packed weights; an error if there is another tag or version.
inline result<packed_header> read_packed_header(std::span<const std::byte> bytes) noexcept {
    if (auto s = check_buffer(bytes, sizeof(packed_header), "packed weights"); !s)
        return s;
    packed_header header;
    std::memcpy(&header, bytes.data(), sizeof header);
    const packed_header expected;
    if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0)
        return status::error(errc::wrong_format, "packed weights: the tag CRMB is missing");
    if (header.version != expected.version)
        return status::error(errc::wrong_version, "packed weights: layout version %u, this build reads %u",
                             header.version, expected.version);
    return header;
}

/// The same for weights in a format; an error if they have another one.
inline result<packed_header> read_packed_header(std::span<const std::byte> bytes,
                                                const char* format) noexcept {
    auto header = read_packed_header(bytes);
    if (header && !header->has_format(format))
        return status::error(errc::wrong_format, "packed weights: format %.16s, expected %s", header->format,
                             format);
    return header;
}

/// The tiles of 16 channels and the groups of 32 inputs that n x k weights fill.
struct packed_units {
    std::size_t tiles = 0;
    std::size_t groups = 0;
    std::size_t count() const noexcept { return tiles * groups; }
    static result<packed_units> of(std::size_t n, std::size_t k) noexcept {
        // A petabyte: beyond any memory, and small enough that no size overflows.
        std::size_t units = 0;
        if (n <= (std::size_t{1} << 40) && k <= (std::size_t{1} << 40) &&
            multiply((n + tile_channels - 1) / tile_channels, (k + group_size - 1) / group_size, units) &&
            units <= (std::size_t{1} << 50))
            return packed_units{(n + tile_channels - 1) / tile_channels, (k + group_size - 1) / group_size};
        return status::error(errc::bad_shape, "%zu x %zu weights are beyond any memory", n, k);
    }
};

/// Sizes of the packed form of n x k weights. Streams follow the header: the exponents if the format has
/// them, all scales, all codes, each ordered by tile of 16 channels and by group (exponents: by 8 groups)
/// within the tile (paper section 4.1.1: scales first). Scales and codes begin at multiples of 64 bytes, as
/// every code tile does. Ragged n and k are padded with zero scales and zero codes.
template <weight_format F>
struct packed_layout {
    static_assert(multiplied_format_check<F>::passed);
    using scale_unit = decltype(packed_scale(typename F::scales::value{})); ///< of the stream of scales
    static constexpr std::size_t scale_bytes = tile_channels * sizeof(scale_unit); ///< per tile and group
    static constexpr std::size_t code_bytes = F::codes::bytes;                     ///< per tile and group
    static constexpr bool has_exponents = std::same_as<typename F::scales, block_scales>;
    std::size_t tiles = 0;
    std::size_t groups = 0;
    std::size_t scales_offset = 0;
    std::size_t codes_offset = 0;
    std::size_t bytes = 0;

    /// Blocks of scales in a row.
    std::size_t blocks() const noexcept {
        return (groups + F::scales::block_groups - 1) / F::scales::block_groups;
    }
    static result<packed_layout> of(std::size_t n, std::size_t k) noexcept {
        const auto size = packed_units::of(n, k);
        if (!size)
            return size.error();
        packed_layout p;
        p.tiles = size->tiles;
        p.groups = size->groups;
        const std::size_t units = size->count();
        const std::size_t exponents = has_exponents ? p.tiles * p.blocks() * tile_channels : 0;
        p.scales_offset = round_up(sizeof(packed_header) + exponents, alignment);
        p.codes_offset = round_up(p.scales_offset + units * scale_bytes, alignment);
        p.bytes = p.codes_offset + units * code_bytes;
        return p;
    }
};

/// Bytes of the packed form of n x k weights, header included; 0 if the shape is out of range.
template <weight_format F>
std::size_t packed_bytes(std::size_t n, std::size_t k) noexcept {
    const auto layout = packed_layout<F>::of(n, k);
    return layout ? layout->bytes : 0;
}

/// Packed weights in memory that somebody else owns: a buffer or a mapped file.
template <weight_format F>
class packed_view {
  public:
    packed_view() noexcept = default;

    /// Checks packed bytes (see format/invariants.hpp), which takes a pass over the scales, and refers to
    /// them. `bytes` must be aligned to `crumb::alignment` and outlive the view.
    static result<packed_view> open(std::span<const std::byte> bytes) noexcept {
        const auto read = read_packed_header(bytes, F::name);
        if (!read)
            return read.error();
        const packed_header& header = *read;
        const auto layout = packed_layout<F>::of(header.n, header.k);
        if (!layout)
            return layout.error();
        if (layout->bytes != header.bytes)
            return status::error(errc::corrupt, "packed weights: %zu bytes by shape, %llu by header",
                                 layout->bytes, static_cast<unsigned long long>(header.bytes));
        if (auto s = check_buffer(bytes, layout->bytes, "packed weights"); !s)
            return s;
        if (auto s = check_zero(std::as_bytes(std::span(header.reserved)), "packed weights, reserved"); !s)
            return s;
        packed_view v;
        v.base_ = bytes.data();
        v.n_ = header.n;
        v.k_ = header.k;
        v.layout_ = *layout;
        if (auto s = v.check_contents(); !s)
            return s;
        return v;
    }
    /// The same; an error unless they are n x k weights.
    static result<packed_view> open(std::span<const std::byte> bytes, std::size_t n, std::size_t k) noexcept {
        auto v = open(bytes);
        if (v && (v->n() != n || v->k() != k))
            return status::error(errc::bad_shape, "packed weights: %zu x %zu, %zu x %zu are needed", v->n(),
                                 v->k(), n, k);
        return v;
    }

    std::size_t n() const noexcept { return n_; }
    std::size_t k() const noexcept { return k_; }
    std::size_t tiles() const noexcept { return layout_.tiles; }
    std::size_t groups() const noexcept { return layout_.groups; }
    /// Blocks of scales in a row: groups, or groups of 8 groups.
    std::size_t blocks() const noexcept { return layout_.blocks(); }
    std::size_t bytes() const noexcept { return layout_.bytes; }
    /// The stream of exponents: 16 bytes per tile and 8 groups. Null where the format has none.
    const std::uint8_t* exponents() const noexcept {
        return packed_layout<F>::has_exponents
                   ? reinterpret_cast<const std::uint8_t*>(base_ + sizeof(packed_header))
                   : nullptr;
    }
    /// The stream of scales: 16 fp16 numbers or signed bytes per tile and group.
    const typename packed_layout<F>::scale_unit* scales() const noexcept {
        return reinterpret_cast<const typename packed_layout<F>::scale_unit*>(base_ + layout_.scales_offset);
    }
    /// The stream of codes: `packed_layout<F>::code_bytes` bytes per tile and group, 64-byte aligned.
    const std::uint8_t* codes() const noexcept {
        return reinterpret_cast<const std::uint8_t*>(base_ + layout_.codes_offset);
    }

  private:
    status check_contents() const noexcept {
        if constexpr (packed_layout<F>::has_exponents)
            return check_exponents(exponents(), tiles() * blocks() * tile_channels,
                                   "packed weights, exponents");
        else
            return check_scales(scales(), tiles() * groups() * tile_channels, "packed weights, scales");
    }

    const std::byte* base_ = nullptr;
    std::size_t n_ = 0;
    std::size_t k_ = 0;
    packed_layout<F> layout_;
};

/// Packs stored weights into `buffer` (at least `packed_bytes<F>(n, k)` bytes, aligned to
/// `crumb::alignment`; nothing is written on error). Refuses scales that are infinite or NaN.
template <weight_format F>
result<packed_view<F>> pack(const storage_view<F>& w, std::span<std::byte> buffer) noexcept {
    static_assert(std::char_traits<char>::length(F::name) < sizeof(packed_header::format));
    const auto layout = packed_layout<F>::of(w.n, w.k);
    if (!layout)
        return layout.error();
    if (w.stride < layout->blocks())
        return status::error(errc::bad_shape, "stored weights: row stride %zu is below %zu blocks", w.stride,
                             layout->blocks());
    if (auto s = check_buffer(buffer, layout->bytes, "buffer for packed weights"); !s)
        return s;
    for (std::size_t row = 0; row < w.n; ++row)
        for (std::size_t g = 0; g < layout->groups; ++g)
            if (!is_finite(w.scale(row, g)))
                return status::error(errc::not_finite,
                                     "stored weights: scale of row %zu, group %zu is not finite", row, g);

    packed_header header;
    std::memcpy(header.format, F::name, std::strlen(F::name));
    header.n = w.n;
    header.k = w.k;
    header.bytes = layout->bytes;
    std::memset(buffer.data(), 0, layout->bytes);
    std::memcpy(buffer.data(), &header, sizeof header);
    [[maybe_unused]] auto* exponents = reinterpret_cast<std::uint8_t*>(buffer.data() + sizeof header);
    auto* scales =
        reinterpret_cast<typename packed_layout<F>::scale_unit*>(buffer.data() + layout->scales_offset);
    auto* codes = reinterpret_cast<std::uint8_t*>(buffer.data() + layout->codes_offset);
    for (std::size_t row = 0; row < w.n; ++row) {
        const std::size_t tile = row / tile_channels, channel = row % tile_channels;
        for (std::size_t g = 0; g < layout->groups; ++g) {
            const std::size_t unit = tile * layout->groups + g;
            const auto scale = w.scale(row, g);
            if constexpr (packed_layout<F>::has_exponents)
                exponents[(tile * layout->blocks() + g / F::scales::block_groups) * tile_channels + channel] =
                    scale.exponent;
            scales[unit * tile_channels + channel] = packed_scale(scale);
            for (std::size_t i = 0; i < group_size; ++i)
                F::codes::put(codes + unit * layout->code_bytes, channel, i,
                              g * group_size + i < w.k ? w.code(row, g * group_size + i) : 0);
        }
    }
    return packed_view<F>::open(buffer.first(layout->bytes));
}

/// The same of what `storage` returns.
template <weight_format F>
result<packed_view<F>> pack(const result<storage_view<F>>& w, std::span<std::byte> buffer) noexcept {
    if (!w)
        return w.error();
    return pack(*w, buffer);
}

/// Block `index` of a row, as it was stored before packing; weights after k are zero.
template <writable_format F>
typename F::block unpack(const packed_view<F>& w, std::size_t row, std::size_t index) noexcept {
    const std::size_t tile = row / tile_channels, channel = row % tile_channels;
    typename F::block block{};
    for (std::size_t i = 0; i < F::scales::block_groups; ++i) {
        const std::size_t g = index * F::scales::block_groups + i;
        const std::size_t unit = tile * w.groups() + g;
        int code[group_size] = {};
        typename F::scales::value scale{};
        if constexpr (packed_layout<F>::has_exponents)
            scale.exponent = w.exponents()[(tile * w.blocks() + index) * tile_channels + channel];
        if (g < w.groups()) {
            const auto packed = w.scales()[unit * tile_channels + channel];
            if constexpr (packed_layout<F>::has_exponents)
                scale.multiplier = packed;
            else
                scale = packed;
            for (std::size_t k = 0; k < group_size; ++k)
                code[k] = F::codes::get(w.codes() + unit * packed_layout<F>::code_bytes, channel, k);
        }
        F::set(block, scale, code, i);
    }
    return block;
}

} // namespace crumb::inline CRUMB_ABI
