// Caches of keys and values in all codecs, small, for snapshots.
#pragma once

#include "parts.hpp"

#include <crumb/crumb.hpp>

#include <vector>

namespace lm::fuzz {

/// A cache with memory of its own, which is made once and used again.
class cache_of {
  public:
    cache_of(const crumb::kv_codec& codec, std::size_t layers, std::size_t kv_heads, std::size_t head_size,
             std::size_t sinks, std::size_t window, std::size_t page_tokens, dice& random);
    crumb::kv_cache cache;

    /// An empty cache without pages.
    void clear();
    /// Pages for so many tokens, if the cache may have so many.
    void add_pages(std::size_t tokens);

  private:
    crumb::kv_cache_options shape_;
    std::vector<std::int8_t> entries_;
    std::vector<float> scales_;
    crumb::buffer state_;
    std::vector<crumb::buffer> pages_;
};

/// Every codec with a name and some without, in several shapes.
std::vector<cache_of>& all_caches();

/// What a snapshot's header says of the bytes behind it, for a cache of the shape of `cache`.
std::uint64_t content_hash(const crumb::kv_cache& cache, const crumb::kv_snapshot_header& header,
                           std::span<const std::byte> content);

} // namespace lm::fuzz
