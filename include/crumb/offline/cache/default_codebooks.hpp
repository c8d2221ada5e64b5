// Codebooks of a product-quantized cache for a model that nothing is known of.
#pragma once

#include <crumb/offline/cache/entries.hpp>

#include <numbers>

namespace crumb::inline CRUMB_ABI {

/// Codebooks for any layer, head and channel of a model without calibration: they are trained on normally
/// distributed numbers whose channels have unequal deviations, as a head's have, in a fraction of a second,
/// and are the same on every machine that computes alike. Meant for codecs that take means and scales out;
/// others assume numbers of magnitude 1. Refuses codecs without codebooks, and heads that do not divide.
inline result<kv_codebooks> default_kv_codebooks(const kv_codec& codec, std::size_t head_size,
                                                 std::uint64_t seed = 1) {
    if (!is_known(codec) || !codec.has_codebooks() || head_size == 0 || head_size > 512 ||
        head_size % codec.dims != 0)
        return status::error(errc::invalid_argument,
                             "kv codebooks: no default ones of this codec for heads of %zu", head_size);
    // One sub-space stands for all.
    constexpr std::size_t points = 16384;
    constexpr double spread = 0.4; ///< of the deviations' logarithms
    splitmix64 random(seed);
    const auto normal = [&] {
        // Box and Muller.
        const double u = 1 - random.uniform(), v = random.uniform();
        return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
    };
    std::vector<float> x(points * codec.dims);
    for (float& each : x) {
        const double deviation = std::exp(spread * normal() - spread * spread);
        each = static_cast<float>(deviation * normal());
    }
    kv_codebooks out;
    out.codec = codec;
    out.head_size = head_size;
    out.sets = 1;
    const auto centers = train_kv_entries(codec, matrix<const float>(x.data(), points, codec.dims), seed);
    if (!centers)
        return centers.error();
    out.entries.resize(2 * head_size * codec.entries());
    out.scales.resize(2 * head_size);
    for (std::size_t channel = 0; channel < 2 * head_size; ++channel) {
        Eigen::VectorXd values(static_cast<Eigen::Index>(codec.entries()));
        for (std::size_t e = 0; e < codec.entries(); ++e)
            values[static_cast<Eigen::Index>(e)] = double{(*centers)[e * codec.dims + channel % codec.dims]};
        store_kv_entries(out, channel, values);
    }
    return out;
}

} // namespace crumb::inline CRUMB_ABI
