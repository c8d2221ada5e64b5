// Buffers on huge pages, and the sizes of this machine's caches.
#pragma once

#include <crumb/core/memory.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#if CRUMB_OS_LINUX
#include <sys/mman.h>
#endif

namespace crumb::bench {

/// Zeroed, touched memory. Without huge pages a single stream measures page walks instead of memory.
class buffer {
  public:
    buffer() noexcept = default;
    explicit buffer(std::size_t bytes)
        : data_(static_cast<std::byte*>(::operator new(round_up(bytes, page), std::align_val_t{page}))),
          bytes_(bytes) {
#if CRUMB_OS_LINUX
        // Advice that is refused leaves ordinary pages, which is what a user of that machine gets as well.
        (void)madvise(data_, round_up(bytes, page), MADV_HUGEPAGE);
#endif
        std::memset(data_, 0, round_up(bytes, page));
    }
    buffer(buffer&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    buffer& operator=(buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~buffer() { ::operator delete(data_, std::align_val_t{page}); }

    std::byte* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return bytes_; }

  private:
    static constexpr std::size_t page = std::size_t{2} << 20;
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
};

/// Bytes of the largest data cache of `level`, or of any level if that is 0; `otherwise` if unknown.
inline std::size_t cache_bytes(int level, std::size_t otherwise) {
    int most = 0;
    for (const auto& cache : benchmark::CPUInfo::Get().caches)
        if (cache.type != "Instruction" && (level == 0 || cache.level == level))
            most = std::max(most, cache.size);
    return most > 0 ? static_cast<std::size_t>(most) : otherwise;
}

/// Size of the last-level cache.
inline std::size_t last_level_cache() { return cache_bytes(0, std::size_t{32} << 20); }

/// What rows that read from memory rotate over: four last-level caches, at least 64 MiB, at most 1 GiB.
/// Caches that do not replace the oldest line first keep some of a rotation over one and a half.
inline std::size_t dram_working_set() {
    return std::clamp(4 * last_level_cache(), std::size_t{64} << 20, std::size_t{1} << 30);
}

} // namespace crumb::bench
