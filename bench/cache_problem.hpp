// Codecs and random codebooks for rows of the cache, and a check of what attention over it yields.
#pragma once

#include <crumb/core/must.hpp>
#include <crumb/format/kv_codec.hpp>
#include <crumb/format/pq_codebooks.hpp>
#include <crumb/op/cache/kv_attention.hpp>
#include <crumb/op/cache/kv_cache.hpp>
#include <crumb/reference/attention.hpp>
#include <crumb/reference/kv_codec.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace crumb::bench {

inline constexpr std::size_t head_size = 128; ///< of rows whose name has no other

/// Plain product quantization, beside the codecs that have names.
inline constexpr named_kv_codec plain_pq_codecs[] = {
    {"pq:2x8", kv_codec::pq(2, 8, false, false)},
    {"pq:2x4+4", kv_codec::pq(2, 8, true, false)},
    {"pq:1x4", kv_codec::pq(1, 4, false, false)},
};

/// Codebooks of every key-value head, the same in all layers; none if the codec has none.
struct random_codebooks {
    random_codebooks(const kv_codec& c, std::size_t kv_heads, std::mt19937& engine,
                     std::size_t channels_ = head_size)
        : codec(c), sets(kv_heads), channels(channels_) {
        std::normal_distribution<float> normal(0, codec.additive ? 25.0f : 40.0f);
        const int most = codec.additive ? 63 : 127;
        if (!codec.has_codebooks())
            return;
        entries.resize(2 * sets * channels * codec.entries());
        scales.assign(2 * sets * channels, 0.02f);
        for (std::int8_t& e : entries)
            e = static_cast<std::int8_t>(std::clamp(static_cast<int>(normal(engine)), -most, most));
    }
    /// Refers to this object.
    pq_codebooks view() const {
        if (!codec.has_codebooks())
            return {};
        return must(pq_codebooks::make({.codec = codec,
                                        .head_size = channels,
                                        .head_step = 1,
                                        .sets = sets,
                                        .entries = entries,
                                        .scales = scales}));
    }

    kv_codec codec;
    std::size_t sets, channels;
    std::vector<std::int8_t> entries;
    std::vector<float> scales;
};

/// Keys or values of a kv head's first `tokens` tokens in layer 0, as they are cached.
inline std::vector<float> cached_rows(const kv_cache& cache, std::size_t kv_head, bool keys,
                                      std::size_t tokens) {
    const auto view = cache.layer(0);
    const std::size_t channels = cache.options().head_size;
    const std::size_t coded = cache.options().codec.is_uncoded() ? tokens : view.sinks + view.coded;
    std::vector<float> rows(tokens * channels);
    const auto put = [&](std::size_t t, const half* from) {
        std::transform(from, from + channels, rows.begin() + static_cast<std::ptrdiff_t>(t * channels),
                       [](half x) { return to_float(x); });
    };
    for (std::size_t t = 0; t < std::min(view.sinks, tokens); ++t)
        put(t, (keys ? view.sink_keys : view.sink_values).row(kv_head * view.sinks + t));
    std::vector<double> row(channels);
    for (std::size_t first = view.sinks; first < coded; first += kv_part_tokens) {
        const auto part = must(reference::kv_part::make(
            view.page.part(keys), view.tables(kv_head, keys),
            const_cast<std::byte*>(view.part((first - view.sinks) / kv_part_tokens, kv_head, keys))));
        for (std::size_t t = first; t < std::min(first + kv_part_tokens, coded); ++t) {
            part.decode(t - first, row.data());
            std::copy(row.begin(), row.end(), rows.begin() + static_cast<std::ptrdiff_t>(t * channels));
        }
    }
    for (std::size_t t = coded; t < tokens; ++t)
        put(t, (keys ? view.window_keys : view.window_values)
                   .row(kv_head * view.slots + (t - view.sinks) % view.slots));
    return rows;
}

/// sum (a - b)^2 / sum b^2.
inline double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, all = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference += double(a[i] - b[i]) * double(a[i] - b[i]);
        all += double(b[i]) * double(b[i]);
    }
    return difference / all;
}

/// Compares what one query head has got of its kv head's first `tokens` tokens with double precision, within
/// the step's own bound. Empty if it is right.
inline std::string check_attention(const kv_cache& cache, std::size_t kv_head, std::size_t tokens,
                                   const float* q, const float* y, const kv_error& error) {
    const std::size_t channels = cache.options().head_size;
    const std::vector<float> k = cached_rows(cache, kv_head, true, tokens),
                             v = cached_rows(cache, kv_head, false, tokens);
    std::vector<double> want(channels);
    const auto size = reference::attention(q, matrix<const float>(k.data(), tokens, channels),
                                           matrix<const float>(v.data(), tokens, channels),
                                           1 / std::sqrt(double(channels)), want.data());
    const double bound = 8 * (double(tokens) + 2 * double(channels) * size.score) * 0x1p-24 * size.value +
                         std::expm1(2 * double(error.score)) * 2 * size.value + double(error.weight);
    for (std::size_t i = 0; i < channels; ++i)
        if (!(std::fabs(double(y[i]) - want[i]) <= bound))
            return "wrong result: " + std::to_string(y[i]) + " instead of " + std::to_string(want[i]);
    return {};
}

} // namespace crumb::bench
