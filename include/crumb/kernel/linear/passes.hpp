// Passes over the tiles of packed weights: which tiles a product of one row takes at a time, and what it asks
// for ahead.
#pragma once

#include <crumb/config.hpp>

#include <cstddef>
#include <cstdint>

namespace crumb::inline CRUMB_ABI::kernel {

/// The tiles of a pass: `first` and those `apart`, twice `apart`, ... further on. The passes after it take
/// the tiles that follow each of them in memory, until the first of a pass is `end`.
struct pass_tiles {
    constexpr pass_tiles(std::size_t tile) noexcept : pass_tiles(tile, 1, tile + 1) {}
    constexpr pass_tiles(std::size_t tile, std::size_t distance, std::size_t last) noexcept
        : first(tile), apart(distance), end(last) {}
    std::size_t first, apart, end;
};
/// From the first tile of a pass of `Tiles` to another, `stride` apart each; or to that of the pass behind.
template <int Tiles>
constexpr std::size_t pass_offset(int tile, bool behind, std::size_t stride) noexcept {
    return static_cast<std::size_t>(tile) * stride + (behind ? (Tiles - 1) * stride : 0);
}
/// The first of passes of `Tiles` tiles for one row, from tile t of `end` on. The hardware's prefetchers lose
/// a stream where it jumps, so short tiles are not multiplied with their neighbour but with one far enough
/// away; further than that would be slower again.
template <std::size_t Tiles>
constexpr pass_tiles pass_at(std::size_t t, std::size_t end, std::size_t tile_bytes) noexcept {
    constexpr std::size_t min_stream = 32768; // bytes of codes
    const std::size_t apart = 1 + min_stream / (tile_bytes + 1), most = (end - t) / Tiles;
    return {t, apart < most ? apart : most, t + (apart < most ? apart : most)};
}

/// How far ahead of each of `tiles` tiles a pass prefetches, in bytes: where one row takes one tile or more,
/// depending on the CPU, all that its pass has share `I::prefetch_bytes`.
template <class I>
constexpr std::size_t distance_ahead(std::size_t tiles) noexcept {
    return I::single_tiles_by_streams && tiles == I::single_tiles ? I::prefetch_bytes / tiles
                                                                  : I::prefetch_bytes;
}

/// The lines ahead of a pass over one tile or two, asked for one by one: all at once would fill the line
/// buffers, and loads wait behind that. Those of two tiles come by turns, since memory answers two streams
/// faster where `cpu_features::two_streams` says so.
class lines_ahead {
  public:
    static constexpr std::size_t line = 64;

    /// From `at` on, and from `apart` bytes further on if that is not 0.
    CRUMB_INLINE lines_ahead(const std::uint8_t* at, std::size_t apart) noexcept
        : next_(at), other_(at + (apart != 0 ? apart : line)), step_(apart != 0 ? line : 2 * line) {}

    CRUMB_INLINE void next() noexcept {
        __builtin_prefetch(next_);
        const std::uint8_t* asked = next_;
        next_ = other_;
        other_ = asked + step_;
    }
    CRUMB_INLINE void skip(std::size_t bytes) noexcept {
        next_ += bytes;
        other_ += bytes;
    }

  private:
    const std::uint8_t *next_, *other_;
    std::size_t step_;
};

} // namespace crumb::inline CRUMB_ABI::kernel
