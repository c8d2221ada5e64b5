// Choosing the next token.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace lm {

/// Temperature and top-k sampling; the same tokens for the same seed and logits on every machine.
class sampler {
  public:
    /// Temperature 0 takes the likeliest token; top_k 0 keeps all.
    sampler(float temperature, std::size_t top_k, std::uint64_t seed)
        : temperature_(temperature), top_k_(top_k), random_(seed) {}

    std::int32_t operator()(std::span<const float> logits) {
        if (temperature_ <= 0)
            return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        order_.resize(logits.size());
        std::iota(order_.begin(), order_.end(), 0);
        const std::size_t kept = top_k_ == 0 ? logits.size() : std::min(top_k_, logits.size());
        const auto likelier = [&](std::int32_t a, std::int32_t b) {
            const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
            return x != y ? x > y : a < b;
        };
        std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(kept), order_.end(),
                          likelier);
        const double most = logits[static_cast<std::size_t>(order_[0])];
        weights_.resize(kept);
        for (std::size_t i = 0; i < kept; ++i)
            weights_[i] = std::exp((logits[static_cast<std::size_t>(order_[i])] - most) /
                                   static_cast<double>(temperature_));
        const double total = std::accumulate(weights_.begin(), weights_.end(), 0.0);
        // The standard's distributions differ between libraries; 53 bits of the generator do not.
        double left = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
        for (std::size_t i = 0; i < kept; ++i)
            if ((left -= weights_[i]) < 0)
                return order_[i];
        return order_[kept - 1];
    }

  private:
    float temperature_;
    std::size_t top_k_;
    std::mt19937_64 random_;
    std::vector<std::int32_t> order_;
    std::vector<double> weights_;
};

} // namespace lm
