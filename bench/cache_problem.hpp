// Codecs and random codebooks for rows of the cache.
#pragma once

#include <crumb/core/must.hpp>
#include <crumb/format/kv_codec.hpp>
#include <crumb/format/pq_codebooks.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
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

} // namespace crumb::bench
