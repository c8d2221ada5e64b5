// Memory for many small objects that live as long as each other, such as the weights of a model.
#pragma once

#include <crumb/core/buffer.hpp>

#include <map>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Hands out places in large buffers. A `buffer` of less than 2 MiB lies on ordinary pages, and reading
/// weights from those costs up to half of the bandwidth; places of an arena share huge pages, one after
/// another in the order in which they are taken, which is also what prefetching across two matrices wants.
/// Movable, places stay. One thread at a time.
class arena {
  public:
    /// Memory is taken from the system `chunk` bytes at a time.
    explicit arena(std::size_t chunk = std::size_t{32} << 20) : chunk_(chunk) {}

    /// `other` is empty afterwards.
    arena(arena&& other) noexcept { *this = std::move(other); }
    /// Frees what it had; `other` is empty afterwards.
    arena& operator=(arena&& other) noexcept {
        chunk_ = other.chunk_;
        owned_ = std::exchange(other.owned_, {});
        left_ = std::exchange(other.left_, {});
        free_ = std::exchange(other.free_, {});
        return *this;
    }

    /// `size` bytes aligned to `crumb::alignment` with any contents; they belong to the arena. Throws
    /// std::bad_alloc.
    std::span<std::byte> take(std::size_t size) {
        const std::size_t room = round_up(size, alignment);
        if (const auto at = free_.find(room); at != free_.end() && !at->second.empty()) {
            std::byte* place = at->second.back();
            at->second.pop_back();
            return {place, size};
        }
        // What fills a good part of a chunk would waste as much at its end; what no memory has rounds to 0.
        if (std::max(size, room) > chunk_ / 4)
            return {owned_.emplace_back(size, buffer::untouched).data(), size};
        if (left_.size() < room) {
            owned_.emplace_back(chunk_, buffer::untouched);
            left_ = owned_.back().bytes();
        }
        const std::span<std::byte> place = left_.first(size);
        left_ = left_.subspan(room);
        return place;
    }
    /// Takes back what `take` has given, for the next one who asks for as many bytes.
    void give_back(std::span<std::byte> place) {
        if (!place.empty())
            free_[round_up(place.size(), alignment)].push_back(place.data());
    }

  private:
    std::size_t chunk_ = 0;
    std::vector<buffer> owned_;
    std::span<std::byte> left_; ///< of the last chunk
    std::map<std::size_t, std::vector<std::byte*>> free_;
};

} // namespace crumb::inline CRUMB_ABI
