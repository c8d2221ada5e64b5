// The tag of packed weights, and the tiles and groups that they fill.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/core/status.hpp>
#include <crumb/format/traits.hpp>

#include <cstring>

namespace crumb::inline CRUMB_ABI {

/// The tag at the start of packed weights; 64 bytes, little-endian.
struct packed_header {
    static constexpr std::uint32_t current_version = 1;
    char magic[4] = {'C', 'R', 'M', 'B'};
    std::uint32_t version = current_version; ///< of the layout
    char format[16] = {};                    ///< name of the weight format, zero-padded
    std::uint64_t n = 0;
    std::uint64_t k = 0;
    std::uint64_t bytes = 0;        ///< of header, scales and codes together
    std::uint8_t reserved[16] = {}; ///< of formats with a scale of the tensor, first that float

    /// Whether the tag names this format.
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
    /// Pairs of a tile and a group.
    std::size_t count() const noexcept { return tiles * groups; }
    /// Of n x k weights; refuses sizes that no memory has.
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

} // namespace crumb::inline CRUMB_ABI
