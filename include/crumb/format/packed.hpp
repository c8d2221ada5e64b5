// Packing stored weights into the caller's memory, and unpacking them.
#pragma once

#include <crumb/core/view.hpp>
#include <crumb/format/packed_view.hpp>

#include <cstring>
#include <string_view>

namespace crumb::inline CRUMB_ABI {

namespace detail {

/// Records and codes of all blocks of rows; codes after k as they are stored.
template <weight_format F>
void pack_blocks(const storage_view<F>& w, const packed_layout<F>& layout, range rows, std::uint8_t* records,
                 std::uint8_t* codes) noexcept {
    using to = packed_layout<F>;
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
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

/// The same of formats without records; codes after k are 0. `exponents`: of formats that have them.
template <weight_format F>
void pack_groups(const storage_view<F>& w, const packed_layout<F>& layout, range rows,
                 [[maybe_unused]] std::uint8_t* exponents, typename packed_layout<F>::scale_unit* scales,
                 std::uint8_t* codes) noexcept {
    for (std::size_t row = rows.begin; row < rows.end; ++row) {
        const std::size_t tile = row / tile_channels, channel = row % tile_channels;
        for (std::size_t g = 0; g < layout.groups; ++g) {
            const std::size_t unit = tile * layout.groups + g;
            const auto scale = w.scale(row, g);
            if constexpr (packed_layout<F>::has_exponents)
                exponents[(tile * layout.blocks() + g / F::scales::block_groups) * tile_channels + channel] =
                    scale.exponent;
            scales[unit * tile_channels + channel] = packed_scale(scale);
            for (std::size_t i = 0; i < group_size; ++i)
                F::codes::put(codes + unit * layout.code_bytes, channel, i,
                              g * group_size + i < w.k ? w.code(row, g * group_size + i) : 0);
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

/// The part of `pack` for `channels`, which begin and end at multiples of 16 or at the end. Threads may pack
/// disjoint parts; when all of them have succeeded, `packed_view::open` opens the buffer. Nothing is written
/// on error.
template <weight_format F>
status pack_channels(const storage_view<F>& w, std::span<std::byte> buffer, range channels) noexcept {
    static_assert(std::string_view(F::name).size() < sizeof(packed_header::format));
    const auto layout = packed_layout<F>::of(w.n, w.k);
    if (!layout)
        return layout.error();
    if (w.stride < layout->blocks())
        return status::error(errc::bad_shape, "stored weights: row stride %zu is below %zu blocks", w.stride,
                             layout->blocks());
    if (auto s = check_buffer(buffer, layout->bytes, "buffer for packed weights"); !s)
        return s;
    if (channels.begin > w.n || channels.begin > channels.end)
        return status::error(errc::invalid_argument, "channels %zu to %zu of %zu", channels.begin,
                             channels.end, w.n);
    channels = channels.within(w.n);
    if (channels.begin % tile_channels != 0 || (channels.end % tile_channels != 0 && channels.end != w.n))
        return status::error(errc::invalid_argument, "channels %zu to %zu of %zu are no whole tiles of %zu",
                             channels.begin, channels.end, w.n, tile_channels);
    for (std::size_t row = channels.begin; row < channels.end; ++row)
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

    using to = packed_layout<F>;
    const std::size_t tiles = (channels.size() + tile_channels - 1) / tile_channels;
    const std::size_t first = channels.begin / tile_channels;
    std::byte* const base = buffer.data();
    // A stream has the bytes of its tiles one after the other, and zeros up to the next stream.
    const auto clear = [&](std::size_t begin, std::size_t tile_bytes, std::size_t end) {
        std::memset(base + begin + first * tile_bytes, 0, tiles * tile_bytes);
        if (first == 0)
            std::memset(base + begin + layout->tiles * tile_bytes, 0,
                        end - begin - layout->tiles * tile_bytes);
    };
    const std::size_t units = has_records<F> ? layout->blocks() : layout->groups;
    clear(sizeof(packed_header), to::has_exponents ? layout->blocks() * tile_channels : 0,
          layout->scales_offset);
    clear(layout->scales_offset, units * to::scale_bytes, layout->codes_offset);
    clear(layout->codes_offset,
          (layout->bytes - layout->codes_offset) / (layout->tiles == 0 ? 1 : layout->tiles), layout->bytes);
    if (first == 0) {
        packed_header header;
        std::memcpy(header.format, F::name, std::strlen(F::name));
        header.n = w.n;
        header.k = w.k;
        header.bytes = layout->bytes;
        if constexpr (has_tensor_scale<F>)
            std::memcpy(header.reserved, &w.tensor_scale, sizeof w.tensor_scale);
        std::memcpy(base, &header, sizeof header);
    }
    auto* scales = reinterpret_cast<typename to::scale_unit*>(base + layout->scales_offset);
    auto* codes = reinterpret_cast<std::uint8_t*>(base + layout->codes_offset);
    if constexpr (has_records<F>)
        detail::pack_blocks(w, *layout, channels, scales, codes);
    else
        detail::pack_groups(w, *layout, channels,
                            reinterpret_cast<std::uint8_t*>(base + sizeof(packed_header)), scales, codes);
    return {};
}

/// Packs stored weights into `buffer` (at least `packed_bytes<F>(n, k)` bytes, aligned to
/// `crumb::alignment`; nothing is written on error). Refuses scales that are infinite or NaN.
template <weight_format F>
result<packed_view<F>> pack(const storage_view<F>& w, std::span<std::byte> buffer) noexcept {
    if (const status s = pack_channels(w, buffer, {}); !s)
        return s;
    return packed_view<F>::open(buffer.first(packed_bytes<F>(w.n, w.k)));
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
