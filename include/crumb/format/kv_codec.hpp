// Codecs: how a cache stores keys and values.
#pragma once

#include <crumb/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace crumb::inline CRUMB_ABI {

enum class kv_kind : std::uint8_t {
    f32,     ///< floats
    f16,     ///< fp16
    q8_0,    ///< per token and 32 channels: x = d c, -127 <= c <= 127, d fp16
    uniform, ///< x = z + d c, c >= 0: keys per channel and 32 tokens, values per token and 32 channels (KIVI)
    pq       ///< product quantization, see `kv_codec`
};

/// How keys and values are encoded. Product quantization (MILLION) cuts the vector of a head into
/// head_size / dims sub-vectors and stores for each the index of a centroid:
///     x[j * dims + i] = mean[b][j * dims + i] + s[t] * channel_scale[j * dims + i] * entry[j][i][code[j][t]]
/// where b is the token's block of `kv_mean_tokens` and s the token's scale; without `residual`, mean = 0
/// and s = 1. Additive codes are two nibbles: the entry is entry[j][i][low] + entry[j][i][16 + high].
struct kv_codec {
    kv_kind kind = kv_kind::f16;
    std::uint8_t bits = 16; ///< of a code. pq: 4, 6 or 8; uniform: 2 or 4; q8_0: 8; f16: 16; f32: 32
    std::uint8_t dims = 1;  ///< channels of a code: pq: 1, 2 or 4
    bool additive = false;  ///< pq with 8 bits: two tables of 16 entries, which are summed
    bool residual = false;  ///< pq: codes of (x - mean of a block) / scale of a token

    friend constexpr bool operator==(const kv_codec&, const kv_codec&) = default;

    /// Floats as they are.
    static constexpr kv_codec f32() noexcept { return {kv_kind::f32, 32, 1, false, false}; }
    /// Rounded to halves.
    static constexpr kv_codec f16() noexcept { return {}; }
    /// Bytes, a scale per 32 channels.
    static constexpr kv_codec q8_0() noexcept { return {kv_kind::q8_0, 8, 1, false, false}; }
    /// Uniform codes of 2 or 4 bits (KIVI).
    static constexpr kv_codec kivi(std::uint8_t bits) noexcept {
        return {kv_kind::uniform, bits, 1, false, false};
    }
    /// Product quantization (MILLION); `is_known` says of what.
    static constexpr kv_codec pq(std::uint8_t dims, std::uint8_t bits, bool additive,
                                 bool residual) noexcept {
        return {kv_kind::pq, bits, dims, additive, residual};
    }

    /// 5 bits per channel.
    static constexpr kv_codec kivi4() noexcept { return kivi(4); }
    /// 3 bits per channel.
    static constexpr kv_codec kivi2() noexcept { return kivi(2); }
    /// Pairs of channels, two nibbles whose entries are added, with means and scales.
    static constexpr kv_codec pq4() noexcept { return pq(2, 8, true, true); }
    /// Pairs of channels, 64 centroids, with means and scales.
    static constexpr kv_codec pq3() noexcept { return pq(2, 6, false, true); }
    /// Four channels, 256 centroids, with means and scales.
    static constexpr kv_codec pq2() noexcept { return pq(4, 8, false, true); }
    /// The codec of a name of `kv_codecs`; an error lists them.
    static result<kv_codec> named(std::string_view name) noexcept;

    /// Whether tokens are stored as floats or fp16, without sinks and window.
    constexpr bool is_uncoded() const noexcept { return kind == kv_kind::f32 || kind == kv_kind::f16; }
    /// Whether codes stand for entries of trained tables.
    constexpr bool has_codebooks() const noexcept { return kind == kv_kind::pq; }
    /// Entries of a component's table: 2^bits, or twice 16.
    constexpr std::size_t entries() const noexcept { return additive ? 32 : std::size_t{1} << bits; }
};

/// What 1 / (scale of a token) is multiplied with in the searches for its codes; see kv_search.hpp.
inline constexpr float kv_scale_factors[] = {1, 1.109375f, 0.90234375f, 1.23046875f, 0.8125f};
/// How many searches there are at most.
inline constexpr std::size_t kv_scale_trials = std::size(kv_scale_factors);

/// Whether there is such a codec.
constexpr bool is_known(const kv_codec& c) noexcept {
    switch (c.kind) {
    case kv_kind::f32:
        return c == kv_codec::f32();
    case kv_kind::f16:
        return c == kv_codec::f16();
    case kv_kind::q8_0:
        return c == kv_codec::q8_0();
    case kv_kind::uniform:
        return c == kv_codec::kivi(2) || c == kv_codec::kivi(4);
    case kv_kind::pq:
        return (c.bits == 4 || c.bits == 6 || c.bits == 8) && (c.dims == 1 || c.dims == 2 || c.dims == 4) &&
               (!c.additive || c.bits == 8);
    }
    return false;
}

/// The named codecs, `pq4`, `pq3` and `pq2` among them.
struct named_kv_codec {
    const char* name;
    kv_codec codec;
};
inline constexpr named_kv_codec kv_codecs[] = {
    {"f32", kv_codec::f32()},     {"f16", kv_codec::f16()},     {"q8_0", kv_codec::q8_0()},
    {"kivi4", kv_codec::kivi4()}, {"kivi2", kv_codec::kivi2()}, {"pq4", kv_codec::pq4()},
    {"pq3", kv_codec::pq3()},     {"pq2", kv_codec::pq2()},
};

inline result<kv_codec> kv_codec::named(std::string_view name) noexcept {
    for (const named_kv_codec& each : kv_codecs)
        if (name == each.name)
            return each.codec;
    char names[128] = {};
    std::size_t length = 0;
    for (const named_kv_codec& each : kv_codecs)
        length +=
            static_cast<std::size_t>(std::snprintf(names + length, sizeof names - length, " %s", each.name));
    return status::error(errc::invalid_argument, "no kv codec is called '%.*s'; known are%s",
                         int(name.size() < 32 ? name.size() : 32), name.data(), names);
}

} // namespace crumb::inline CRUMB_ABI
