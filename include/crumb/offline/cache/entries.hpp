// The entries of a sub-space: trained on points, and kept on the int8 grid.
#pragma once

#include <crumb/offline/cache/additive_tables.hpp>
#include <crumb/offline/cache/trained_codebooks.hpp>

namespace crumb::inline CRUMB_ABI {

/// The entries of a sub-space, [entries][dims], trained on its points, rows of dims: centroids of k-means, or
/// the low entries and then the high ones of `train_additive_tables`. `weights`: of the rows, or empty.
inline result<std::vector<float>> train_kv_entries(const kv_codec& codec,
                                                   const matrix_view<const float>& points, std::uint64_t seed,
                                                   std::size_t max_rounds = 10,
                                                   std::span<const float> weights = {}) {
    kmeans_options k;
    k.centroids = codec.entries();
    // A few centroids converge slowly, and their rounds are cheap.
    const bool few = k.centroids <= 64 && !codec.additive;
    k.max_rounds = few ? max_rounds * std::max<std::size_t>(1, 128 / k.centroids) : max_rounds;
    k.tolerance = k.centroids <= 64 ? 1e-5 : 1e-4;
    k.seed = seed;
    if (!codec.additive) {
        auto clusters = kmeans(points, k, weights);
        if (!clusters)
            return clusters.error();
        return std::move(clusters->centroids);
    }
    auto tables = train_additive_tables(points, k, weights);
    if (!tables)
        return tables.error();
    std::vector<float> entries = std::move(tables->low);
    entries.insert(entries.end(), tables->high.begin(), tables->high.end());
    return entries;
}

/// Stores the entries of a channel (counted through all sets, keys before values) on the int8 grid: the
/// largest number, or sum of two, is at most 127.
inline void store_kv_entries(kv_codebooks& out, std::size_t channel, const Eigen::VectorXd& values) {
    constexpr Eigen::Index low = additive_tables::entries;
    const bool additive = out.codec.additive;
    const double max = additive
                           ? values.head(low).cwiseAbs().maxCoeff() + values.tail(low).cwiseAbs().maxCoeff()
                           : values.cwiseAbs().maxCoeff();
    // Two numbers may both be rounded up.
    const auto scale = static_cast<float>(max / (additive ? 126 : 127));
    out.scales[channel] = scale;
    std::int8_t* to = out.entries.data() + channel * out.codec.entries();
    for (Eigen::Index e = 0; e < values.size(); ++e)
        to[e] =
            scale > 0
                ? static_cast<std::int8_t>(std::clamp<long>(std::lrint(values[e] / double{scale}), -127, 127))
                : std::int8_t{0};
}

} // namespace crumb::inline CRUMB_ABI
