// What keys and values are kept as, by the names of `--kv`.
#pragma once

#include <crumb/op/cache/kv_cache_options.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace lm {

/// A codec and the tokens that it leaves as halves.
struct kv_type {
    crumb::kv_codec codec;
    std::size_t sinks = 4;           ///< first tokens
    std::size_t window = 32;         ///< newest tokens
    bool exact = false;              ///< attention decodes codes instead of scanning them by tables
    float skip = 0;                  ///< share of a query's weights whose values generation may leave unread
    bool int8_prompts = false;       ///< batches of more than 16 tokens attend by products of int8 matrices
    std::optional<float> limit = {}; ///< `crumb::kv_plane_limits::score`, if another than the default
    std::size_t scales = crumb::kv_scale_trials; ///< `crumb::kv_cache_options::scale_trials`

    static constexpr std::size_t max_sinks = 4096, max_window = 65536;

    static const kv_type f32, f16;

    friend bool operator==(const kv_type&, const kv_type&) = default;

    /// From f32, f16, q8_0, kivi4, kivi2, pq4, pq3, pq2 or pq:<dims>x<bits> (plain product quantization; bits
    /// 4+4 adds two tables), followed by :sinks=S, :window=W, :exact, :prompts=int8, :skip=E, :limit=E,
    /// :scales=N in any order, each once.
    static crumb::result<kv_type> parse(std::string_view text);
    /// The codec's name as `parse` reads it.
    std::string name() const;
};

inline constexpr kv_type kv_type::f32{crumb::kv_codec::f32()};
inline constexpr kv_type kv_type::f16{crumb::kv_codec::f16()};

} // namespace lm
