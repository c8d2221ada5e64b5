// The search for codes of a product-quantized cache, in arithmetic that gives the same codes on every CPU.
#pragma once

#include <crumb/format/pq_codebooks.hpp>

#include <algorithm>
#include <cmath>

namespace crumb::inline CRUMB_ABI {

// A code is the first among equals that minimizes, in exact integers,
//     sum over i of e[i]^2 - 2 r[i] e[i]      (r[i] - e[i] squared, less a constant)
// where e is the centroid and r the residual of a token in a sub-space, both on the sub-space's own grid:
//     e[i] = round(w[i] * gain),                              w = W (channel_scale * entry),  |e[i]| <= 682
//     r[i] = round(clamp(y[i] * (1 / s) * gain)),             y = W (x - mean),               |r[i]| <= 1023
// Operations are single IEEE operations on floats in the order shown, rounding is to nearest, ties to even,
// gains are powers of two. Products with W are sums of doubles in the order of the columns, rounded to float
// at the end: their terms are exact, so that fused multiply-adds give the same. Without a metric, w and y are
// the operands themselves. Scores lie within +- 2^23 for 4 dimensions: score * 256 + code is a 32-bit key
// whose minimum is the answer, and 16 r[i] and 32 e[i] fit into 16 bits, so that one multiply-add of pairs
// (vpdpwssd) takes two terms of a key.
//
// Which codes are nearest is up to s, and no s is best for all tokens: codecs with scales search once for
// each of the first `scale_trials` of `kv_scale_factors`, with 1 / s the reciprocal of the root mean square
// times the factor. The codes are kept that leave the least of sum (y - s w)^2 with the s that fits them
// best, sum y w / sum w^2, of equals the first.

/// What codes explain of a token, (sum y w)^2 / sum w^2, with `with` = sum y w and `own` = sum w^2; 0 if a
/// scale of 0 is best.
constexpr double kv_fit(double with, double own) noexcept {
    return with > 0 && own > 0 ? with * with / own : 0.0;
}

/// Bounds of the grid: of the centroids and of the residuals.
inline constexpr int kv_grid_entry = 682, kv_grid_residual = 1023;
/// Scales of tokens below this are 0, as they round to 0 in fp16.
inline constexpr float kv_min_scale = 0x1p-25f;

/// The int8 number of a code: an entry, or the sum of two.
constexpr int kv_entry(const kv_codec& codec, const std::int8_t* entries, unsigned code) noexcept {
    return codec.additive ? entries[code & 15] + entries[16 + (code >> 4)] : entries[code];
}

/// Component i of W v in sub-space j; v has `dims` components.
constexpr float kv_weighted(const kv_codec& codec, const pq_tables& tables, std::size_t j, std::size_t i,
                            const float* v) noexcept {
    if (tables.metric == nullptr)
        return v[i];
    const float* row = tables.metric + (j * codec.dims + i) * codec.dims;
    double sum = 0;
    for (std::size_t b = 0; b < codec.dims; ++b)
        sum += double{row[b]} * double{v[b]};
    return static_cast<float>(sum);
}

/// Component i of w for a code of sub-space j.
constexpr float kv_weighted_centroid(const kv_codec& codec, const pq_tables& tables, std::size_t j,
                                     std::size_t i, unsigned code) noexcept {
    float c[4] = {};
    for (std::size_t b = 0; b < codec.dims; ++b) {
        const std::size_t channel = j * codec.dims + b;
        c[b] = tables.scales[channel] *
               static_cast<float>(kv_entry(codec, tables.entries + channel * codec.entries(), code));
    }
    return kv_weighted(codec, tables, j, i, c);
}

/// The gain of a sub-space whose largest |w[i]| is `max`: the largest power of two with max * gain <= 682,
/// within 2^-100 to 2^100; 1 if all are 0.
inline float kv_gain_of(float max) noexcept {
    if (!(max > 0))
        return 1;
    int exponent = 0;
    const float fraction = std::frexp(max, &exponent);
    const int bits = (fraction * 1024 <= static_cast<float>(kv_grid_entry) ? 10 : 9) - exponent;
    return std::ldexp(1.0f, std::clamp(bits, -100, 100));
}

/// The gain of sub-space j.
inline float kv_grid_gain(const kv_codec& codec, const pq_tables& tables, std::size_t j) noexcept {
    float max = 0;
    for (unsigned code = 0; code < 1u << codec.bits; ++code)
        for (std::size_t i = 0; i < codec.dims; ++i)
            max = std::max(max, std::fabs(kv_weighted_centroid(codec, tables, j, i, code)));
    return kv_gain_of(max);
}

/// e[i] of w[i].
inline int kv_grid_centroid(float w, float gain) noexcept {
    return static_cast<int>(std::nearbyint(w * gain));
}

/// r[i] of y[i].
inline int kv_grid_value(float y, float inverse_scale, float gain) noexcept {
    constexpr float max = kv_grid_residual;
    return static_cast<int>(std::nearbyint(std::clamp(y * inverse_scale * gain, -max, max)));
}

/// The finite fp16 number nearest to `x`.
constexpr half kv_half(float x) noexcept {
    constexpr float max = 65504;
    return to_half(x > max ? max : x < -max ? -max : x);
}

} // namespace crumb::inline CRUMB_ABI
