// How sure a difference of means is.
#pragma once

#include <crumb/offline/common/random.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace lm::lab {

/// The interval that holds the mean of a - b with 95 % probability, by bootstrap over the pairs.
struct interval {
    double low = 0, high = 0;
};
inline interval bootstrap(std::span<const double> a, std::span<const double> b, std::uint64_t seed) {
    constexpr std::size_t rounds = 4000;
    crumb::splitmix64 random(seed);
    std::vector<double> means(rounds);
    for (double& mean : means) {
        for (std::size_t i = 0; i < a.size(); ++i) {
            const std::size_t at = random.below(a.size());
            mean += (a[at] - b[at]) / static_cast<double>(a.size());
        }
    }
    std::sort(means.begin(), means.end());
    return {means[rounds / 40], means[rounds - 1 - rounds / 40]};
}

} // namespace lm::lab
