// The sizes of this machine's caches.
#pragma once

#include <crumb/core/buffer.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>

namespace crumb::bench {

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
