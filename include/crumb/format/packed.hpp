// Packed weights: output channels interleaved for the dot instructions, in the caller's memory.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/invariants.hpp>
#include <crumb/format/packed_header.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/storage.hpp>

#include <cstring>
#include <string>

namespace crumb::inline CRUMB_ABI {

/// What a weight's code is in packed weights: (code + `code_offset`) / `code_step` where a format says so.
template <class F>
inline constexpr int code_offset_of = [] {
    if constexpr (requires { F::code_offset; })
        return F::code_offset;
    else
        return 0;
}();
template <class F>
inline constexpr int code_step_of = [] {
    if constexpr (requires { F::code_step; })
        return F::code_step;
    else
        return 1;
}();

namespace detail {
template <class F>
struct packed_scale_type {
    using type = decltype(packed_scale(typename F::scales::value{}));
};
template <class F>
requires has_records<F>
struct packed_scale_type<F> {
    using type = std::uint8_t;
};
} // namespace detail

/// Sizes of the packed form of n x k weights. Streams follow the header: the exponents if the format has
/// them, all scales, all codes, each ordered by tile of 16 channels and by group (exponents: by 8 groups)
/// within the tile (paper section 4.1.1: scales first). Scales and codes begin at multiples of 64 bytes, as
/// every code tile does. Ragged n and k are padded with zero scales and zero codes.
///
/// Formats with records have these in the place of scales, one per tile and block, and whole blocks of
/// groups.
template <weight_format F>
struct packed_layout {
    static_assert(multiplied_format_check<F>::passed);
    static constexpr bool has_exponents = std::same_as<typename F::scales, block_scales>;
    static constexpr std::size_t block_groups = block_inputs<F> / group_size; ///< groups of 32 in a block
    using scale_unit = typename detail::packed_scale_type<F>::type;           ///< of the stream of scales
    /// Bytes of scales per tile and group, of records per tile and block.
    static constexpr std::size_t scale_bytes = [] {
        if constexpr (has_records<F>)
            return F::records::bytes;
        else
            return tile_channels * sizeof(scale_unit);
    }();
    /// Bytes of codes per tile and group; of `codes_of_blocks` per tile and block.
    static constexpr std::size_t code_bytes = F::codes::bytes;
    std::size_t tiles = 0;
    std::size_t groups = 0; ///< of 32
    std::size_t scales_offset = 0;
    std::size_t codes_offset = 0;
    std::size_t bytes = 0;

    /// Blocks in a row.
    std::size_t blocks() const noexcept { return (groups + block_groups - 1) / block_groups; }
    static result<packed_layout> of(std::size_t n, std::size_t k) noexcept {
        const auto size = packed_units::of(n, k);
        if (!size)
            return size.error();
        packed_layout p;
        p.tiles = size->tiles;
        p.groups = size->groups;
        if constexpr (has_records<F>)
            p.groups = p.blocks() * block_groups;
        const std::size_t exponents = has_exponents ? p.tiles * p.blocks() * tile_channels : 0;
        const std::size_t scales = p.tiles * (has_records<F> ? p.blocks() : p.groups);
        const std::size_t codes = p.tiles * (codes_of_blocks<typename F::codes> ? p.blocks() : p.groups);
        p.scales_offset = round_up(sizeof(packed_header) + exponents, alignment);
        p.codes_offset = round_up(p.scales_offset + scales * scale_bytes, alignment);
        p.bytes = p.codes_offset + codes * code_bytes;
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
        constexpr std::size_t used = has_tensor_scale<F> ? sizeof(float) : 0;
        if (auto s = check_zero(std::as_bytes(std::span(header.reserved).subspan(used)),
                                "packed weights, reserved");
            !s)
            return s;
        packed_view v;
        if constexpr (has_tensor_scale<F>) {
            std::memcpy(&v.tensor_scale_, header.reserved, sizeof v.tensor_scale_);
            if (!has_finite_weights<F>(v.tensor_scale_))
                return status::error(errc::not_finite, "packed weights: the tensor's scale is %g",
                                     double{v.tensor_scale_});
        }
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
    /// The scale of the tensor, 1 where the format has none.
    float tensor_scale() const noexcept { return tensor_scale_; }
    /// The stream of scales: 16 fp16 numbers or signed bytes per tile and group; or the records.
    const typename packed_layout<F>::scale_unit* scales() const noexcept {
        return reinterpret_cast<const typename packed_layout<F>::scale_unit*>(base_ + layout_.scales_offset);
    }
    /// The stream of codes: `packed_layout<F>::code_bytes` bytes per tile and group (of `codes_of_blocks`:
    /// and block), 64-byte aligned.
    const std::uint8_t* codes() const noexcept {
        return reinterpret_cast<const std::uint8_t*>(base_ + layout_.codes_offset);
    }

  private:
    status check_contents() const noexcept {
        if constexpr (has_records<F>)
            return check_records();
        else if constexpr (packed_layout<F>::has_exponents)
            return check_exponents(exponents(), tiles() * blocks() * tile_channels,
                                   "packed weights, exponents");
        else
            return check_scales(scales(), tiles() * groups() * tile_channels, "packed weights, scales");
    }
    status check_records() const noexcept {
        constexpr std::size_t values = std::same_as<typename F::scales::value, half_multiple>
                                           ? 1 // the others are multiples of the same half
                                           : F::scales::block_groups;
        for (std::size_t i = 0; i < tiles() * blocks(); ++i)
            for (std::size_t channel = 0; channel < tile_channels; ++channel)
                for (std::size_t g = 0; g < values; ++g) {
                    const auto* record = scales() + i * packed_layout<F>::scale_bytes;
                    bool finite = has_finite_weights<F>(F::records::scale(record, channel, g));
                    if constexpr (has_minima<F>)
                        finite = finite && is_finite(F::records::minimum(record, channel, g));
                    if (!finite)
                        return status::error(errc::not_finite,
                                             "packed weights, records: block %zu of channel %zu has weights "
                                             "that are not finite",
                                             i % blocks(), i / blocks() * tile_channels + channel);
                }
        return {};
    }

    const std::byte* base_ = nullptr;
    std::size_t n_ = 0;
    std::size_t k_ = 0;
    float tensor_scale_ = 1;
    packed_layout<F> layout_;
};

namespace detail {

/// Records and codes of all blocks; codes after k as they are stored.
template <weight_format F>
void pack_blocks(const storage_view<F>& w, const packed_layout<F>& layout, std::uint8_t* records,
                 std::uint8_t* codes) noexcept {
    using to = packed_layout<F>;
    for (std::size_t row = 0; row < w.n; ++row) {
        const std::size_t tile = row / tile_channels, channel = row % tile_channels;
        for (std::size_t b = 0; b < layout.blocks(); ++b) {
            const typename F::block& block = w.blocks[row * w.stride + b];
            const std::size_t at = tile * layout.blocks() + b;
            F::records::template put<F>(records + at * to::scale_bytes, channel, block);
            if constexpr (codes_of_blocks<typename F::codes>) {
                std::uint8_t stored[4 * F::codes::block_rows];
                F::get_stored_bytes(block, stored);
                for (std::size_t i = 0; i < sizeof stored; ++i)
                    codes[at * to::code_bytes + i / 4 * tile_row_bytes + 4 * channel + i % 4] = stored[i];
            } else {
                for (std::size_t i = 0; i < block_inputs<F>; ++i)
                    F::codes::put(codes + (at * to::block_groups + i / group_size) * to::code_bytes, channel,
                                  i % group_size, (F::code(block, i) + code_offset_of<F>) / code_step_of<F>);
            }
        }
    }
}

/// Block `index` of a row.
template <weight_format F>
typename F::block unpack_block(const packed_view<F>& w, std::size_t row, std::size_t index) noexcept {
    using from = packed_layout<F>;
    typename F::block block{};
    const std::size_t at = row / tile_channels * w.blocks() + index, channel = row % tile_channels;
    const std::uint8_t* record = w.scales() + at * from::scale_bytes;
    int code[block_inputs<F>] = {};
    if constexpr (codes_of_blocks<typename F::codes>) {
        std::uint8_t stored[4 * F::codes::block_rows];
        for (std::size_t i = 0; i < sizeof stored; ++i)
            stored[i] = w.codes()[at * from::code_bytes + i / 4 * tile_row_bytes + 4 * channel + i % 4];
        F::set_stored_bytes(block, F::records::scale(record, channel, 0), stored);
        return block;
    } else {
        for (std::size_t i = 0; i < block_inputs<F>; ++i)
            code[i] = F::codes::get(w.codes() + (at * from::block_groups + i / group_size) * from::code_bytes,
                                    channel, i % group_size) *
                          code_step_of<F> -
                      code_offset_of<F>;
        for (std::size_t g = 0; g < F::scales::block_groups; ++g) {
            const int* of_group = code + g * F::scales::group;
            if constexpr (has_minima<F>)
                F::set(block, F::records::scale(record, channel, g), F::records::minimum(record, channel, g),
                       of_group, g);
            else
                F::set(block, F::records::scale(record, channel, g), of_group, g);
        }
        return block;
    }
}

template <writable_format F>
typename F::block unpack_groups(const packed_view<F>& w, std::size_t row, std::size_t index) noexcept {
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

} // namespace detail

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
        for (std::size_t g = 0; g < layout->blocks() * F::scales::block_groups && g < w.groups(); ++g) {
            bool finite = has_finite_weights<F>(w.scale(row, g));
            if constexpr (has_minima<F>)
                finite = finite && is_finite(w.minimum(row, g));
            if (!finite)
                return status::error(errc::not_finite,
                                     "stored weights: scale of row %zu, group %zu is not finite", row, g);
        }
    if constexpr (has_tensor_scale<F>)
        if (!has_finite_weights<F>(w.tensor_scale))
            return status::error(errc::not_finite, "stored weights: the tensor's scale is %g",
                                 double{w.tensor_scale});

    packed_header header;
    std::memcpy(header.format, F::name, std::strlen(F::name));
    header.n = w.n;
    header.k = w.k;
    header.bytes = layout->bytes;
    if constexpr (has_tensor_scale<F>)
        std::memcpy(header.reserved, &w.tensor_scale, sizeof w.tensor_scale);
    std::memset(buffer.data(), 0, layout->bytes);
    std::memcpy(buffer.data(), &header, sizeof header);
    [[maybe_unused]] auto* exponents = reinterpret_cast<std::uint8_t*>(buffer.data() + sizeof header);
    auto* scales =
        reinterpret_cast<typename packed_layout<F>::scale_unit*>(buffer.data() + layout->scales_offset);
    auto* codes = reinterpret_cast<std::uint8_t*>(buffer.data() + layout->codes_offset);
    if constexpr (has_records<F>) {
        detail::pack_blocks(w, *layout, scales, codes);
    } else {
        for (std::size_t row = 0; row < w.n; ++row) {
            const std::size_t tile = row / tile_channels, channel = row % tile_channels;
            for (std::size_t g = 0; g < layout->groups; ++g) {
                const std::size_t unit = tile * layout->groups + g;
                const auto scale = w.scale(row, g);
                if constexpr (packed_layout<F>::has_exponents)
                    exponents[(tile * layout->blocks() + g / F::scales::block_groups) * tile_channels +
                              channel] = scale.exponent;
                scales[unit * tile_channels + channel] = packed_scale(scale);
                for (std::size_t i = 0; i < group_size; ++i)
                    F::codes::put(codes + unit * layout->code_bytes, channel, i,
                                  g * group_size + i < w.k ? w.code(row, g * group_size + i) : 0);
            }
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

/// Block `index` of a row, as it was stored before packing; weights after k are zero, or, of formats with
/// records, as stored.
template <weight_format F>
typename F::block unpack(const packed_view<F>& w, std::size_t row, std::size_t index) noexcept {
    if constexpr (has_records<F>) {
        return detail::unpack_block(w, row, index);
    } else {
        return detail::unpack_groups(w, row, index);
    }
}

} // namespace crumb::inline CRUMB_ABI
