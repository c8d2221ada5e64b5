#include "caches.hpp"

namespace lm::fuzz {

cache_of::cache_of(const crumb::kv_codec& codec, std::size_t layers, std::size_t kv_heads,
                   std::size_t head_size, std::size_t sinks, std::size_t window, std::size_t page_tokens,
                   dice& random)
    : shape_{.layers = layers,
             .kv_heads = kv_heads,
             .head_size = head_size,
             .max_tokens = 600,
             .max_rows = 80,
             .page_tokens = page_tokens,
             .codec = codec,
             .sinks = sinks,
             .window = window} {
    if (codec.has_codebooks()) {
        // One set for all.
        entries_.resize(2 * head_size * codec.entries());
        for (auto& e : entries_)
            e = static_cast<std::int8_t>(static_cast<int>(random.below(127)) - 63);
        scales_ = floats(2 * head_size, 0.005f, random, 0.01f);
        shape_.codebooks =
            crumb::pq_codebooks::make(
                {.codec = codec, .head_size = head_size, .sets = 1, .entries = entries_, .scales = scales_})
                .value();
    }
    state_ = crumb::buffer(crumb::kv_cache::state_bytes(shape_).value());
    clear();
}

void cache_of::clear() {
    std::fill(state_.bytes().begin(), state_.bytes().end(), std::byte{0});
    cache =
        crumb::kv_cache::create(shape_, state_.bytes().first(*crumb::kv_cache::state_bytes(shape_))).value();
}

void cache_of::add_pages(std::size_t tokens) {
    if (tokens > shape_.max_tokens)
        return;
    for (std::size_t i = cache.page_count(); i < cache.pages_for(tokens); ++i) {
        if (i == pages_.size())
            pages_.emplace_back(cache.page_bytes());
        if (!cache.add_page(pages_[i].bytes().first(cache.page_bytes())))
            std::abort();
    }
}

std::vector<cache_of>& all_caches() {
    static std::vector<cache_of> caches = [] {
        std::vector<cache_of> out;
        dice random(2);
        for (const crumb::named_kv_codec& each : crumb::kv_codecs)
            out.emplace_back(each.codec, 1, 1, 8, 2, 1, 256, random);
        out.emplace_back(crumb::kv_codec::f16(), 2, 2, 5, 0, 0, 512, random);
        out.emplace_back(crumb::kv_codec::q8_0(), 1, 2, 36, 0, 3, 256, random);
        out.emplace_back(crumb::kv_codec::kivi(4), 2, 1, 33, 4, 1, 256, random);
        out.emplace_back(crumb::kv_codec::kivi(2), 1, 1, 33, 0, 70, 512, random);
        out.emplace_back(crumb::kv_codec::pq(1, 4, false, false), 1, 1, 12, 1, 0, 256, random);
        out.emplace_back(crumb::kv_codec::pq(2, 8, false, false), 1, 2, 16, 5, 2, 256, random);
        return out;
    }();
    return caches;
}

std::uint64_t content_hash(const crumb::kv_cache& cache, const crumb::kv_snapshot_header& header,
                           std::span<const std::byte> content) {
    // As `save` does: first the header and the halves, then part by part; a part's bytes are a multiple of 8.
    const std::size_t halves = std::min(cache.fp16_rows().size(), content.size());
    return crumb::kv_hash(content.subspan(halves),
                          crumb::kv_hash(content.first(halves), crumb::detail::hash_of(header)));
}

} // namespace lm::fuzz
