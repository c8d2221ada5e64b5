#include "model/layer_caches.hpp"

#include <crumb/op/cache/int8_products.hpp>

#include "machine/memory.hpp"

#include <algorithm>
#include <cstdio>

namespace lm {

using crumb::result;
using crumb::status;

namespace {

/// Tokens that a cache of whole sequences takes memory for at a time: long pages are read faster than short
/// ones.
constexpr std::size_t page_tokens = 16384;

/// The codebooks of a group's layers, one behind another.
result<crumb::pq_codebooks> codebooks_of(layer_group& group, const model_shape& d,
                                         const crumb::pq_codebooks& all) {
    const crumb::kv_codec& codec = all.codec();
    for (const std::size_t layer : group.layers)
        for (std::size_t h = 0; h < d.kv_heads; ++h)
            for (const bool keys : {true, false}) {
                const crumb::pq_tables t = all.tables(layer, h, keys);
                group.entries.insert(group.entries.end(), t.entries,
                                     t.entries + d.head_size * codec.entries());
                group.scales.insert(group.scales.end(), t.scales, t.scales + d.head_size);
                if (t.metric != nullptr)
                    group.metric.insert(group.metric.end(), t.metric, t.metric + d.head_size * codec.dims);
            }
    return crumb::pq_codebooks::make({.codec = codec,
                                      .head_size = d.head_size,
                                      .layer_step = d.kv_heads,
                                      .head_step = 1,
                                      .sets = group.layers.size() * d.kv_heads,
                                      .entries = group.entries,
                                      .scales = group.scales,
                                      .metric = group.metric});
}

} // namespace

result<layer_caches> layer_caches::make(const model_shape& d, const kv_type& kv, std::size_t context,
                                        std::size_t batch, const crumb::pq_codebooks& codebooks) {
    layer_caches out;
    std::vector<std::size_t> spans;
    for (std::size_t i = 0; i < d.layers; ++i) {
        // A window that no sequence outgrows is none.
        const std::size_t window = d.each_layer[i].window, span = window < context ? window : 0;
        const auto group =
            static_cast<std::size_t>(std::find(spans.begin(), spans.end(), span) - spans.begin());
        if (group == spans.size()) {
            spans.push_back(span);
            out.groups_.emplace_back();
        }
        out.places_.push_back({group, out.groups_[group].layers.size()});
        out.groups_[group].layers.push_back(i);
    }
    for (std::size_t i = 0; i < spans.size(); ++i) {
        layer_group& group = out.groups_[i];
        crumb::kv_cache_options options{.layers = group.layers.size(),
                                        .kv_heads = d.kv_heads,
                                        .head_size = d.head_size,
                                        .max_tokens = context,
                                        .max_rows = batch,
                                        .page_tokens = crumb::kv_part_tokens,
                                        .span = spans[i],
                                        .codec = kv.codec,
                                        .sinks = kv.sinks,
                                        .window = kv.window,
                                        .scale_trials = kv.scales,
                                        .codebooks = codebooks};
        if (spans[i] == 0)
            options.page_tokens = crumb::round_up(std::min(context, page_tokens), crumb::kv_part_tokens);
        if (spans.size() > 1 && !codebooks.empty()) {
            if (!codebooks.serves(d.layers, d.kv_heads) || codebooks.head_size() != d.head_size)
                return status::error(crumb::errc::bad_shape,
                                     "%zu sets of codebooks do not serve %zu layers of %zu heads of %zu",
                                     codebooks.sets(), d.layers, d.kv_heads, d.head_size);
            const auto own = codebooks_of(group, d, codebooks);
            if (!own)
                return own.error();
            options.codebooks = *own;
        }
        const auto bytes = crumb::kv_cache::state_bytes(options);
        if (!bytes)
            return bytes.error();
        group.state = buffer(*bytes);
        const auto cache = crumb::kv_cache::create(options, group.state.bytes());
        if (!cache)
            return cache.error();
        group.cache.emplace(*cache);
        crumb::kv_attention_options attention{.heads = d.heads,
                                              .scale = d.attention_scale,
                                              .mode =
                                                  kv.exact ? crumb::kv_mode::exact : crumb::kv_mode::fast};
        if (kv.limit)
            attention.limits.score = *kv.limit;
        if (kv.int8_prompts) {
            const auto products = crumb::int8_products();
            if (!products)
                return products.error();
            attention.prompts = *products;
        }
        const auto attend = crumb::kv_attention::plan(options, attention);
        if (!attend)
            return attend.error();
        group.attend.emplace(*attend);
    }
    return out;
}

double layer_caches::missing_bytes(std::size_t tokens) const noexcept {
    double bytes = 0;
    for (const layer_group& g : groups_)
        bytes += static_cast<double>(g.cache->page_bytes()) *
                 (static_cast<double>(g.cache->pages_for(tokens)) - static_cast<double>(g.pages.size()));
    return bytes;
}

status layer_caches::grow(std::size_t tokens) {
    char what[64];
    std::snprintf(what, sizeof what, "a cache of %zu tokens", tokens);
    for (layer_group& g : groups_)
        while (g.cache->page_count() < g.cache->pages_for(tokens)) {
            if (const status fits = check_memory(static_cast<double>(g.cache->page_bytes()), what); !fits)
                return fits;
            g.pages.emplace_back(g.cache->page_bytes(), buffer::untouched);
            if (const status s = g.cache->add_page(g.pages.back().bytes()); !s)
                return s;
        }
    return {};
}

double layer_caches::bytes() const noexcept {
    double all = 0;
    for (const layer_group& g : groups_)
        all += static_cast<double>(g.state.bytes().size()) +
               static_cast<double>(g.pages.size()) * static_cast<double>(g.cache->page_bytes());
    return all;
}

status layer_caches::advance(std::size_t rows) {
    for (layer_group& g : groups_)
        if (const status s = g.cache->advance(rows); !s)
            return s;
    return {};
}

std::size_t layer_caches::truncate(std::size_t tokens) noexcept {
    for (const layer_group& g : groups_)
        if (tokens < g.cache->length() && !g.cache->can_truncate(tokens))
            tokens = 0;
    for (layer_group& g : groups_)
        g.cache->truncate(tokens);
    return groups_.front().cache->length();
}

} // namespace lm
