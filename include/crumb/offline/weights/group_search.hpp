// The best scale, table and indices for one group of weights.
#pragma once

#include <crumb/offline/common/weight_functions.hpp>
#include <crumb/offline/weights/level_set.hpp>

#include <bit>

namespace crumb::inline CRUMB_ABI {

/// Effort of the search for scales.
struct search_options {
    std::size_t starts = 3; ///< scales that least squares begins from, per table and sign
    std::size_t steps = 2;  ///< of least squares from each start
    std::size_t rounds = 2; ///< rounds of `group_search::lanes` candidates that are evaluated exactly
};

/// One group as a least-squares problem: index after index, the error of input i is
///     weight[i] (c_i - d level)^2,   c_i = target[i] + sum over j < i of mix[32 j + i] (own[j] - d level_j),
/// which with weight = diag(R)^2 and mix = R / diag(R) is e^T H e, H = R R^T, R upper triangular. Without
/// `mix` inputs are independent. All arrays have 32 elements; surplus ones have weight, target, own and mix
/// 0.
struct group_problem {
    const float* target = nullptr;
    const float* own = nullptr;
    const float* weight = nullptr;
    const float* mix = nullptr;
};

/// The choice for a group.
struct group_choice {
    stored_scale scale;
    unsigned selector = 0;
    float error = std::numeric_limits<float>::infinity();
    std::array<float, group_size> value = {}; ///< levels, as numbers
};

/// Searches groups for one level set.
class group_search {
  public:
    static constexpr std::size_t lanes = kernel::search_lanes;
    /// A scale not yet on the format's grid, with its error as if inputs were independent.
    struct candidate {
        float d = 0;
        unsigned selector = 0;
        float error = 0;
    };
    using candidates = std::array<candidate, lanes>;
    /// What scales near the best one are multiplied by, in the first round and later.
    using factor_set = std::array<float, lanes / 2>;
    static constexpr factor_set wide_factors = {0.88f, 0.93f, 0.96f, 0.98f, 1.02f, 1.04f, 1.07f, 1.12f};
    static constexpr factor_set narrow_factors = {0.952f, 0.972f, 0.984f, 0.992f,
                                                  1.008f, 1.016f, 1.028f, 1.048f};

    /// Over a set's levels, by the kernels of an ISA.
    group_search(const level_set& s, const dispatch::weight_functions& functions,
                 const search_options& options = {})
        : set_(s), functions_(functions), options_(options), index_(256 * s.tables()) {
        std::array<float, 16> widest = {};
        for (std::size_t t = 0; t < s.tables(); ++t) {
            for (std::size_t i = 0; i < s.entries; ++i) {
                level_[t * s.entries + i] = s.table(t)[i];
                index_[t * 256 + static_cast<std::uint8_t>(s.table(t)[i])] = static_cast<std::uint8_t>(i);
                if (i > 0)
                    middle_[t * s.entries + i] = 0.5f * static_cast<float>(s.table(t)[i] + s.table(t)[i - 1]);
                widest[t] = std::max(widest[t], std::fabs(static_cast<float>(s.table(t)[i])));
            }
        }
        // Coarse levels clip the largest weight, finer ones less.
        const float min = s.entries <= 4 ? 0.4f : s.entries <= 8 ? 0.6f : s.entries <= 16 ? 0.75f : 0.95f;
        for (unsigned t = 0; t < s.tables(); ++t) {
            for (std::size_t i = 0; i < options.starts; ++i) {
                const float part = options.starts < 2 ? 1.0f
                                                      : 1.0f - (1.0f - min) * static_cast<float>(i) /
                                                                   static_cast<float>(options.starts - 1);
                starts_.push_back({part / widest[t], t});
                starts_.push_back({-part / widest[t], t});
            }
        }
    }

    /// The levels.
    const level_set& set() const noexcept { return set_; }
    /// What was asked for.
    const search_options& options() const noexcept { return options_; }

    /// The candidates of smallest error, best first, from alternating nearest level and least-squares scale.
    /// Returns their number, 0 for a group of zeros.
    std::size_t propose(const float* w, const float* weight, candidates& out) const {
        float max = 0;
        for (std::size_t i = 0; i < group_size; ++i)
            max = std::max(max, weight[i] > 0 ? std::fabs(w[i]) : 0.0f);
        if (max < std::numeric_limits<float>::min())
            return 0;
        std::size_t found = 0;
        for (std::size_t first = 0; first < starts_.size(); first += lanes) {
            const std::size_t count = std::min(lanes, starts_.size() - first);
            fitted f;
            for (std::size_t n = 0; n < count; ++n) {
                f.d[n] = starts_[first + n].factor * max;
                f.table[n] = static_cast<float>(starts_[first + n].selector);
            }
            fit(w, weight, count, options_.steps, f);
            for (std::size_t n = 0; n < count; ++n)
                found = insert(out, found, {f.d[n], starts_[first + n].selector, f.error[n]});
        }
        return found;
    }

    /// The scales of a block of 256 inputs, or of none.
    struct block_grid {
        /// Scales are multiples of 2^e.
        explicit block_grid(int e = 0) noexcept : up(power_of_two(e)), down(power_of_two(-e)) {}
        float up, down;

      private:
        static float power_of_two(int e) noexcept {
            return std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23);
        }
    };

    /// The nearest scale that the format can store: fp16, or 2^e b of the grid with |b| <= 127, whose low
    /// bits are the selector.
    stored_scale snap(float d, unsigned selector, const block_grid& grid) const noexcept {
        if (set_.scales == scale_kind::half)
            return nearest_half_scale(d, selector, set_.selector_bits);
        // 1.5 2^23 leaves no bits for fractions.
        constexpr float magic = 0x1.8p23f;
        const float step = static_cast<float>(1u << set_.selector_bits), own = static_cast<float>(selector);
        const float x = std::clamp(d * grid.down, -127.0f, 127.0f);
        float b = own + step * (((x - own) / step + magic) - magic);
        b = b > 127 ? b - step : b < -127 ? b + step : b;
        return {b * grid.up, static_cast<std::uint16_t>(static_cast<int>(b) & 0xff)};
    }

    /// Solves a group: evaluates `found` candidates and then, round by round, scales near the best.
    group_choice solve(const group_problem& p, const candidates& proposed, std::size_t found,
                       const block_grid& grid) const {
        group_choice best;
        lane_set l;
        if (found == 0)
            l.add(snap(0, 0, grid), 0);
        for (std::size_t i = 0; i < found; ++i)
            l.add(snap(proposed[i].d, proposed[i].selector, grid), proposed[i].selector);
        evaluate(p, l, best);
        for (std::size_t round = 1; round < options_.rounds && found != 0; ++round) {
            const auto& factors = round == 1 ? wide_factors : narrow_factors;
            const float d = best.scale.d;
            const unsigned selector = best.selector;
            l.count = 0;
            for (const float f : factors)
                l.add(snap(d * f, selector, grid), selector);
            if (l.second != 0)
                for (const float f : factors)
                    l.add(snap(l.second * f, l.second_selector, grid), l.second_selector);
            evaluate(p, l, best);
        }
        return best;
    }

    /// Evaluates one scale.
    group_choice evaluate(const group_problem& p, stored_scale scale, unsigned selector) const {
        group_choice best;
        lane_set l;
        l.add(scale, selector);
        evaluate(p, l, best);
        return best;
    }

    /// The index of a level that `solve` returned.
    std::uint8_t index(unsigned selector, float value) const noexcept {
        return index_[selector * 256 + static_cast<std::uint8_t>(static_cast<std::int8_t>(value))];
    }

    /// The index of the level nearest to w / d.
    std::uint8_t nearest(float w, float d, unsigned selector) const noexcept {
        const float* middle = middle_.data() + selector * set_.entries;
        const float x = w * (1.0f / d);
        return static_cast<std::uint8_t>(std::lower_bound(middle + 1, middle + set_.entries, x) - middle - 1);
    }

    /// Alternates nearest levels and d = wv / vv, at most `steps` times. The error is that of the last scale
    /// with the levels before it, which nearest ones can only lower.
    void converge(const float* w, const float* a, candidate& c, std::size_t steps) const noexcept {
        fitted f;
        f.d[0] = c.d;
        f.table[0] = static_cast<float>(c.selector);
        fit(w, a, 1, steps, f);
        c.d = f.d[0];
        c.error = f.error[0];
    }

  private:
    struct start {
        float factor; ///< of the largest weight
        unsigned selector;
    };
    struct fitted {
        fitted() { d.fill(1); }
        std::array<float, lanes> d, error, table = {};
    };
    /// Candidates on the grid, side by side.
    struct lane_set {
        lane_set() { d.fill(1); }
        std::size_t count = 0;
        std::array<float, lanes> d, table = {};
        std::array<std::uint16_t, lanes> bits = {};
        float second = 0; ///< scale of the best with another table than the overall best
        unsigned second_selector = 0;

        void add(stored_scale s, unsigned selector) noexcept {
            d[count] = s.d;
            bits[count] = s.bits;
            table[count++] = static_cast<float>(selector);
        }
        unsigned selector(std::size_t n) const noexcept { return static_cast<unsigned>(table[n]); }
    };
    kernel::search_tables tables() const noexcept {
        return {level_.data(), middle_.data(), set_.entries, set_.tables()};
    }

    void fit(const float* w, const float* a, std::size_t count, std::size_t steps, fitted& f) const noexcept {
        functions_.fit_scales({tables(), w, a, count, f.table.data(), f.d.data(), f.error.data(), steps});
    }

    static std::size_t insert(candidates& out, std::size_t found, const candidate& c) {
        for (std::size_t i = 0; i < found; ++i) {
            if (out[i].selector == c.selector && std::fabs(out[i].d - c.d) < 4e-3f * std::fabs(c.d)) {
                out[i].error = std::min(out[i].error, c.error);
                return found;
            }
        }
        if (found == lanes && out[lanes - 1].error <= c.error)
            return found;
        std::size_t at = found < lanes ? found++ : lanes - 1;
        for (; at > 0 && out[at - 1].error > c.error; --at)
            out[at] = out[at - 1];
        out[at] = c;
        return found;
    }

    /// Runs through the inputs once for all lanes and keeps what is better than `best`.
    void evaluate(const group_problem& p, lane_set& l, group_choice& best) const {
        alignas(64) float value[group_size][lanes], loss[lanes];
        functions_.evaluate_scales({tables(), p.target, p.own, p.weight, p.mix, l.count, l.table.data(),
                                    l.d.data(), loss, &value[0][0]});
        std::size_t chosen = lanes;
        for (std::size_t n = 0; n < l.count; ++n) {
            if (loss[n] < best.error) {
                best.error = loss[n];
                chosen = n;
            }
        }
        if (chosen < lanes) {
            best.scale = {l.d[chosen], l.bits[chosen]};
            best.selector = l.selector(chosen);
            for (std::size_t i = 0; i < group_size; ++i)
                best.value[i] = value[i][chosen];
        }
        l.second = 0;
        float second = std::numeric_limits<float>::infinity();
        for (std::size_t n = 0; n < l.count; ++n) {
            if (n != chosen && loss[n] < second &&
                (l.selector(n) != best.selector || l.d[n] * best.scale.d < 0)) {
                second = loss[n];
                l.second = l.d[n];
                l.second_selector = l.selector(n);
            }
        }
    }

    level_set set_;
    const dispatch::weight_functions& functions_;
    search_options options_;
    std::vector<start> starts_;
    std::vector<std::uint8_t> index_; ///< of the level that is a byte, per table
    std::array<float, level_set::max_levels> level_ = {}, middle_ = {};
};

} // namespace crumb::inline CRUMB_ABI
