// Codebooks of a product-quantized cache as training makes them, files keep them and caches use them.
#pragma once

#include <crumb/format/pq_codebooks.hpp>

#include <bit>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Which keys (or values) share codebooks.
enum class kv_sharing : std::uint8_t {
    none,   ///< none: one per layer and head
    heads,  ///< all heads of a layer
    layers, ///< the same head in all layers
    all     ///< all layers and heads
};

/// How errors of codes count while codebooks are trained.
enum class code_errors {
    plain,    ///< alike
    weighted, ///< by the samples' second moments, which become `pq_tables::metric`
    /// Likewise, of keys and values that are turned first, so that channels are uncorrelated and strong ones
    /// share codes with weak ones: see `kv_turn`.
    turned
};

/// Trained codebooks. Set `layer * layer_step + head * head_step` belongs to a layer and head.
struct kv_codebooks {
    kv_codec codec;
    std::size_t head_size = 0;
    std::size_t layer_step = 0, head_step = 0, sets = 0;
    std::vector<std::int8_t> entries; ///< as in `pq_codebook_parts`
    std::vector<float> scales;
    std::vector<float> metric; ///< or empty
    std::vector<float> turns;  ///< or empty

    /// For a cache; empty if the codec has no codebooks.
    result<pq_codebooks> view() const noexcept {
        if (!codec.has_codebooks())
            return pq_codebooks();
        return pq_codebooks::make({.codec = codec,
                                   .head_size = head_size,
                                   .layer_step = layer_step,
                                   .head_step = head_step,
                                   .sets = sets,
                                   .entries = entries,
                                   .scales = scales,
                                   .metric = metric,
                                   .turns = turns});
    }
    /// Bytes of all of them.
    std::size_t bytes() const noexcept {
        return entries.size() + sizeof(float) * (scales.size() + metric.size() + turns.size());
    }
    /// A 64-bit FNV-1a hash over codec, sizes and contents; the same on all machines.
    std::uint64_t identity() const noexcept {
        std::uint64_t hash = 0xcbf29ce484222325u;
        const auto add = [&](std::uint64_t value, int size) {
            for (int i = 0; i < size; ++i)
                hash = (hash ^ (value >> 8 * i & 0xff)) * 0x100000001b3u;
        };
        for (const int field : {static_cast<int>(codec.kind), int{codec.bits}, int{codec.dims},
                                int{codec.additive}, int{codec.residual}})
            add(static_cast<std::uint64_t>(field), 1);
        for (const std::size_t field :
             {head_size, layer_step, head_step, sets, entries.size(), scales.size(), metric.size()})
            add(field, 8);
        for (const std::int8_t e : entries)
            add(static_cast<std::uint8_t>(e), 1);
        for (const auto* floats : {&scales, &metric, &turns})
            for (const float f : *floats)
                add(std::bit_cast<std::uint32_t>(f), 4);
        return hash;
    }
};

} // namespace crumb::inline CRUMB_ABI
