// Packed weights: output channels interleaved for the dot instructions; their layout, and views of them.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/invariants.hpp>
#include <crumb/format/packed_header.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/storage.hpp>

#include <cstring>

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
    /// Of n x k weights; refuses sizes that no memory has.
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

    /// Output channels.
    std::size_t n() const noexcept { return n_; }
    /// Inputs.
    std::size_t k() const noexcept { return k_; }
    /// Tiles of 16 channels.
    std::size_t tiles() const noexcept { return layout_.tiles; }
    /// Groups of 32 inputs.
    std::size_t groups() const noexcept { return layout_.groups; }
    /// Blocks of scales in a row: groups, or groups of 8 groups.
    std::size_t blocks() const noexcept { return layout_.blocks(); }
    /// Bytes in all.
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

} // namespace crumb::inline CRUMB_ABI
