// Rouge-L: the score of a sequence by its longest common subsequence with a reference.
#pragma once

#include <crumb/core/status.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace lm {

/// Length of the longest common subsequence, in time |a| |b| and memory min(|a|, |b|).
inline std::size_t common_subsequence(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
    if (a.size() < b.size())
        std::swap(a, b);
    // lengths[j]: LCS of the tokens of `a` so far and the first j of `b`.
    std::vector<std::size_t> lengths(b.size() + 1, 0);
    for (const std::int32_t token : a) {
        std::size_t diagonal = 0;
        for (std::size_t j = 0; j < b.size(); ++j) {
            const std::size_t above = lengths[j + 1];
            lengths[j + 1] = token == b[j] ? diagonal + 1 : std::max(above, lengths[j]);
            diagonal = above;
        }
    }
    return lengths.back();
}

/// The parts of a Rouge-L score.
struct rouge_score {
    std::size_t common = 0; ///< length of the longest common subsequence
    double precision = 0;   ///< share of the candidate
    double recall = 0;      ///< share of the reference
    double f = 0;
};

/// Rouge-L (Lin 2004): P = LCS / |candidate|, R = LCS / |reference|, F = (1 + beta^2) P R / (R + beta^2 P);
/// all 0 where nothing is common. Refuses a beta that is negative or not finite.
inline crumb::result<rouge_score> rouge_l(std::span<const std::int32_t> candidate,
                                          std::span<const std::int32_t> reference, double beta = 1) {
    if (!(beta >= 0) || !std::isfinite(beta))
        return crumb::status::error(crumb::errc::invalid_argument, "rouge: beta is %g", beta);
    rouge_score s;
    s.common = common_subsequence(candidate, reference);
    if (s.common == 0)
        return s;
    s.precision = double(s.common) / double(candidate.size());
    s.recall = double(s.common) / double(reference.size());
    const double b = beta * beta;
    s.f = (1 + b) * s.precision * s.recall / (s.recall + b * s.precision);
    return s;
}

} // namespace lm
