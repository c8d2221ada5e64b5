// Choosing the next token.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <unordered_set>
#include <vector>

namespace lm {

/// How tokens are chosen.
struct sampling {
    float temperature = 0.8f; ///< 0 takes the likeliest token
    std::size_t top_k = 40;   ///< likeliest tokens that are kept; 0 keeps all
    float top_p = 1.0f;       ///< fewest tokens that have this probability together
    float min_p = 0.0f;       ///< tokens at least as likely as this share of the likeliest
    float repetition = 1.0f;  ///< what logits of recent tokens are divided by (if negative, multiplied)
    std::size_t repetition_last = 64; ///< tokens that are recent
    std::uint64_t seed = 1;
};

/// Penalizes recent tokens, keeps the likeliest by top-k, then top-p, then min-p, and chooses among them at a
/// temperature. The same tokens for the same seed and logits on every machine.
class sampler {
  public:
    explicit sampler(const sampling& how) : how_(how), random_(how.seed) {}

    /// A token that the next ones should not repeat; those that are chosen need not be told.
    void saw(std::int32_t token) {
        if (how_.repetition != 1.0f && how_.repetition_last != 0)
            recent_.push_back(token);
        if (recent_.size() >= 2 * how_.repetition_last + 1024)
            recent_.erase(recent_.begin(), recent_.end() - static_cast<std::ptrdiff_t>(how_.repetition_last));
    }

    std::int32_t operator()(std::span<const float> logits) {
        const std::int32_t token = choose(penalized(logits));
        saw(token);
        return token;
    }

  private:
    static constexpr std::uint64_t one = std::uint64_t{1} << 32;

    /// exp(-x) for x >= 0, times `one`: by integers, as no two libraries round `exp` alike. Off by less than
    /// one and a part in 2^23.
    static std::uint64_t exp_minus(double x) noexcept {
        // one * 2^-(2^-i), rounded
        constexpr std::array<std::uint64_t, 25> roots = {
            0x80000000u, 0xB504F334u, 0xD744FCCBu, 0xEAC0C6E8u, 0xF5257D15u, 0xFA83B2DBu, 0xFD3E0C0Du,
            0xFE9E115Cu, 0xFF4ECB59u, 0xFFA75652u, 0xFFD3A752u, 0xFFE9D2B3u, 0xFFF4E91Cu, 0xFFFA747Fu,
            0xFFFD3A3Bu, 0xFFFE9D1Du, 0xFFFF4E8Eu, 0xFFFFA747u, 0xFFFFD3A3u, 0xFFFFE9D2u, 0xFFFFF4E9u,
            0xFFFFFA74u, 0xFFFFFD3Au, 0xFFFFFE9Du, 0xFFFFFF4Fu};
        const double halvings = x * 1.4426950408889634;
        if (!(halvings < 40))
            return 0;
        const auto fixed = static_cast<std::uint64_t>(halvings * 0x1p24);
        std::uint64_t y = one;
        for (std::size_t i = 1; i < roots.size(); ++i)
            if ((fixed >> (24 - i) & 1) != 0)
                y = (y * roots[i]) >> 32;
        return y >> (fixed >> 24);
    }

    std::span<const float> penalized(std::span<const float> logits) {
        if (recent_.empty())
            return logits;
        logits_.assign(logits.begin(), logits.end());
        const std::size_t count = std::min(recent_.size(), how_.repetition_last);
        const std::unordered_set<std::int32_t> last(recent_.end() - static_cast<std::ptrdiff_t>(count),
                                                    recent_.end());
        for (const std::int32_t token : last)
            if (token >= 0 && static_cast<std::size_t>(token) < logits_.size()) {
                float& logit = logits_[static_cast<std::size_t>(token)];
                logit = logit > 0 ? logit / how_.repetition : logit * how_.repetition;
            }
        return logits_;
    }

    std::int32_t choose(std::span<const float> logits) {
        if (how_.temperature <= 0)
            return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
        order_.resize(logits.size());
        std::iota(order_.begin(), order_.end(), 0);
        std::size_t kept = how_.top_k == 0 ? logits.size() : std::min(how_.top_k, logits.size());
        const auto likelier = [&](std::int32_t a, std::int32_t b) {
            const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
            return x != y ? x > y : a < b;
        };
        std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(kept), order_.end(),
                          likelier);
        const double most = logits[static_cast<std::size_t>(order_[0])];
        const auto below = [&](std::size_t i) { return most - logits[static_cast<std::size_t>(order_[i])]; };
        if (how_.top_p < 1 || how_.min_p > 0) {
            weigh(kept, [&](std::size_t i) { return below(i); });
            kept = likely();
        }
        const double temperature = how_.temperature;
        const std::uint64_t total = weigh(kept, [&](std::size_t i) { return below(i) / temperature; });
        // The standard's distributions differ between libraries; 53 bits of the generator do not. Of 2^20
        // tokens the total fits into as many.
        auto left = static_cast<std::uint64_t>(static_cast<double>(random_() >> 11) * 0x1p-53 *
                                               static_cast<double>(total));
        for (std::size_t i = 0; i < kept; ++i) {
            if (left < weights_[i])
                return order_[i];
            left -= weights_[i];
        }
        return order_[0];
    }

    /// Weights of the first `count` tokens, which are exp(-distance), and their sum.
    template <class Distance>
    std::uint64_t weigh(std::size_t count, const Distance& distance) {
        weights_.resize(count);
        std::uint64_t total = 0;
        for (std::size_t i = 0; i < count; ++i)
            total += weights_[i] = exp_minus(distance(i));
        return total;
    }
    /// How many of the weighed tokens top-p and min-p keep: at least one.
    std::size_t likely() const {
        const std::uint64_t total = std::accumulate(weights_.begin(), weights_.end(), std::uint64_t{0});
        const double enough = static_cast<double>(how_.top_p) * static_cast<double>(total);
        std::uint64_t sum = 0;
        std::size_t kept = 0;
        while (kept < weights_.size() && (kept == 0 || static_cast<double>(sum) < enough))
            sum += weights_[kept++];
        const double least = static_cast<double>(how_.min_p) * static_cast<double>(weights_[0]);
        while (kept > 1 && static_cast<double>(weights_[kept - 1]) < least)
            --kept;
        return kept;
    }

    sampling how_;
    std::mt19937_64 random_;
    std::vector<std::int32_t> order_, recent_;
    std::vector<std::uint64_t> weights_;
    std::vector<float> logits_;
};

} // namespace lm
