// Packed weights: output channels interleaved for the dot instructions, in the caller's memory.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/core/view.hpp>
#include <crumb/format/traits.hpp>

#include <cstring>
#include <string>

namespace crumb::inline CRUMB_ABI {

/// Weights in storage order: row n (an output channel) is `groups` consecutive blocks, `stride` blocks apart.
/// Rows whose k is not a multiple of 32 end with a block whose surplus codes are zero.
template <weight_format F>
struct storage_view {
    const typename F::block* blocks = nullptr;
    std::size_t n = 0;      ///< output channels
    std::size_t k = 0;      ///< input channels
    std::size_t stride = 0; ///< blocks from one row to the next, at least ceil(k / 32)

    constexpr std::size_t groups() const noexcept { return (k + F::group - 1) / F::group; }
    constexpr const typename F::block& block(std::size_t row, std::size_t group) const noexcept {
        return blocks[row * stride + group];
    }
};

/// A view of n x k weights whose rows follow each other without a gap, as in a GGUF tensor.
template <weight_format F>
constexpr storage_view<F> storage(const typename F::block* blocks, std::size_t n, std::size_t k) noexcept {
    return {blocks, n, k, (k + F::group - 1) / F::group};
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
};
static_assert(sizeof(packed_header) == alignment);

/// Sizes of the packed form of n x k weights. Two streams follow the header: all scales, then all codes, each
/// ordered by tile of 16 channels and by group within the tile (paper section 4.1.1: scales first). Every
/// code tile begins at a multiple of 64 bytes. Ragged n and k are padded with zero scales and zero codes.
template <weight_format F>
struct packed_layout {
    static constexpr std::size_t scale_bytes = tile_channels * sizeof(half);   ///< per tile and group
    static constexpr std::size_t code_bytes = F::codes::rows * tile_row_bytes; ///< per tile and group
    std::size_t tiles = 0;
    std::size_t groups = 0;
    std::size_t codes_offset = 0;
    std::size_t bytes = 0;

    static result<packed_layout> of(std::size_t n, std::size_t k) noexcept {
        // Weights of a petabyte overflow nothing below and exist nowhere.
        if (n > (std::size_t{1} << 40) || k > (std::size_t{1} << 40))
            return status::error(errc::bad_shape, "%zu x %zu weights are beyond any memory", n, k);
        packed_layout p;
        p.tiles = (n + tile_channels - 1) / tile_channels;
        p.groups = (k + F::group - 1) / F::group;
        std::size_t units = 0;
        if (!multiply(p.tiles, p.groups, units) || units > (std::size_t{1} << 50))
            return status::error(errc::bad_shape, "%zu x %zu weights are beyond any memory", n, k);
        p.codes_offset = round_up(sizeof(packed_header) + units * scale_bytes, alignment);
        p.bytes = p.codes_offset + units * code_bytes;
        return p;
    }
};

/// Bytes of the packed form of n x k weights, header included; 0 if the shape is absurd.
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

    /// Checks tag, version, shape and size of packed bytes, and refers to them. `bytes` must be aligned to
    /// `crumb::alignment` and outlive the view.
    static result<packed_view> open(std::span<const std::byte> bytes) noexcept {
        if (auto s = check_buffer(bytes, sizeof(packed_header), "packed weights"); !s)
            return s;
        packed_header header;
        std::memcpy(&header, bytes.data(), sizeof header);
        const packed_header expected;
        if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0)
            return status::error(errc::wrong_format, "packed weights: the tag CRMB is missing");
        if (header.version != expected.version)
            return status::error(errc::wrong_version,
                                 "packed weights: layout version %u, this build reads %u", header.version,
                                 expected.version);
        char name[sizeof header.format + 1] = {};
        std::memcpy(name, header.format, sizeof header.format);
        if (std::strcmp(name, F::name) != 0)
            return status::error(errc::wrong_format, "packed weights: format %s, expected %s", name, F::name);
        const auto layout = packed_layout<F>::of(header.n, header.k);
        if (!layout)
            return layout.error();
        if (layout->bytes != header.bytes)
            return status::error(errc::corrupt, "packed weights: %zu bytes by shape, %llu by header",
                                 layout->bytes, static_cast<unsigned long long>(header.bytes));
        if (auto s = check_buffer(bytes, layout->bytes, "packed weights"); !s)
            return s;
        packed_view v;
        v.base_ = bytes.data();
        v.n_ = header.n;
        v.k_ = header.k;
        v.layout_ = *layout;
        return v;
    }

    std::size_t n() const noexcept { return n_; }
    std::size_t k() const noexcept { return k_; }
    std::size_t tiles() const noexcept { return layout_.tiles; }
    std::size_t groups() const noexcept { return layout_.groups; }
    std::size_t bytes() const noexcept { return layout_.bytes; }
    /// The stream of scales: 16 halves per tile and group.
    const half* scales() const noexcept {
        return reinterpret_cast<const half*>(base_ + sizeof(packed_header));
    }
    /// The stream of codes: `packed_layout<F>::code_bytes` bytes per tile and group, 64-byte aligned.
    const std::uint8_t* codes() const noexcept {
        return reinterpret_cast<const std::uint8_t*>(base_ + layout_.codes_offset);
    }

  private:
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
    if (w.stride < w.groups())
        return status::error(errc::bad_shape, "stored weights: row stride %zu is below %zu blocks", w.stride,
                             w.groups());
    if (auto s = check_buffer(buffer, layout->bytes, "buffer for packed weights"); !s)
        return s;
    for (std::size_t row = 0; row < w.n; ++row)
        for (std::size_t g = 0; g < layout->groups; ++g)
            if (!is_finite(F::scale(w.block(row, g))))
                return status::error(errc::not_finite,
                                     "stored weights: scale of row %zu, group %zu is not finite", row, g);

    packed_header header;
    std::memcpy(header.format, F::name, std::strlen(F::name));
    header.n = w.n;
    header.k = w.k;
    header.bytes = layout->bytes;
    std::memset(buffer.data(), 0, layout->bytes);
    std::memcpy(buffer.data(), &header, sizeof header);
    auto* scales = reinterpret_cast<half*>(buffer.data() + sizeof header);
    auto* codes = reinterpret_cast<std::uint8_t*>(buffer.data() + layout->codes_offset);
    for (std::size_t row = 0; row < w.n; ++row) {
        for (std::size_t g = 0; g < layout->groups; ++g) {
            const auto& block = w.block(row, g);
            const std::size_t unit = row / tile_channels * layout->groups + g;
            const std::size_t used = w.k - g * F::group < F::group ? w.k - g * F::group : F::group;
            scales[unit * tile_channels + row % tile_channels] = F::scale(block);
            for (std::size_t i = 0; i < F::group; ++i)
                F::codes::put(codes + unit * layout->code_bytes, row % tile_channels, i,
                              i < used ? F::code(block, i) : 0);
        }
    }
    return packed_view<F>::open(buffer.first(layout->bytes));
}

/// The stored block (row, group) that packed weights were made from, surplus codes of a ragged k as zero.
template <weight_format F>
typename F::block unpack(const packed_view<F>& w, std::size_t row, std::size_t group) noexcept {
    const std::size_t unit = row / tile_channels * w.groups() + group;
    const std::uint8_t* tile = w.codes() + unit * packed_layout<F>::code_bytes;
    int code[F::group];
    for (std::size_t i = 0; i < F::group; ++i)
        code[i] = F::codes::get(tile, row % tile_channels, i);
    typename F::block block;
    F::set(block, w.scales()[unit * tile_channels + row % tile_channels], code);
    return block;
}

} // namespace crumb::inline CRUMB_ABI
