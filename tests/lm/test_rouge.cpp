// Rouge-L.
#include "eval/rouge.hpp"

#include <crumb/offline/common/random.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

namespace test_rouge {
namespace {

using crumb::errc;
using crumb::splitmix64;

std::vector<std::int32_t> tokens(const std::string& s) { return {s.begin(), s.end()}; }

/// By the definition: the longest subsequence of `a` that is one of `b`.
std::size_t longest_common(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
    std::size_t best = 0;
    for (unsigned subset = 0; subset < 1u << a.size(); ++subset) {
        std::size_t at = 0, size = 0;
        for (std::size_t i = 0; i < a.size() && at <= b.size(); ++i) {
            if ((subset >> i & 1) == 0)
                continue;
            while (at < b.size() && b[at] != a[i])
                ++at;
            if (at == b.size())
                size = 0;
            else
                ++size;
            ++at;
        }
        if (at <= b.size())
            best = std::max(best, size);
    }
    return best;
}

TEST(Rouge, CommonSubsequences) {
    EXPECT_EQ(lm::common_subsequence(tokens("ABCBDAB"), tokens("BDCABA")), 4u);
    EXPECT_EQ(lm::common_subsequence(tokens("XMJYAUZ"), tokens("MZJAWXU")), 4u);
    EXPECT_EQ(lm::common_subsequence(tokens("abc"), tokens("")), 0u);
    EXPECT_EQ(lm::common_subsequence(tokens(""), tokens("")), 0u);
    splitmix64 random(2);
    for (int round = 0; round < 200; ++round) {
        std::vector<std::int32_t> a(random.below(9)), b(random.below(12));
        for (auto* x : {&a, &b})
            for (auto& t : *x)
                t = static_cast<std::int32_t>(random.below(4)) - 1;
        EXPECT_EQ(lm::common_subsequence(a, b), longest_common(a, b));
        EXPECT_EQ(lm::common_subsequence(b, a), longest_common(a, b));
    }
}

TEST(Rouge, WorkedExamples) {
    // Lin 2004, section 3: "police killed the gunman" against "police kill the gunman" and "the gunman kill
    // police": 3/4 and 2/4.
    const std::vector<std::int32_t> reference = {1, 2, 3, 4}, close = {1, 5, 3, 4}, far = {3, 4, 5, 1};
    EXPECT_EQ(lm::rouge_l(close, reference)->f, 0.75);
    EXPECT_EQ(lm::rouge_l(far, reference)->f, 0.5);
    EXPECT_EQ(lm::rouge_l(reference, reference)->f, 1.0);

    const std::vector<std::int32_t> longer = {1, 9, 3, 9, 4, 9};
    const auto s = lm::rouge_l(longer, reference);
    EXPECT_EQ(s->common, 3u);
    EXPECT_EQ(s->precision, 0.5);
    EXPECT_EQ(s->recall, 0.75);
    EXPECT_DOUBLE_EQ(s->f, 0.6);
    EXPECT_DOUBLE_EQ(lm::rouge_l(longer, reference, 2)->f, 5 * 0.5 * 0.75 / (0.75 + 4 * 0.5));
    EXPECT_DOUBLE_EQ(lm::rouge_l(longer, reference, 0)->f, 0.5) << "precision alone";

    EXPECT_EQ(lm::rouge_l({}, reference)->f, 0.0);
    EXPECT_EQ(lm::rouge_l(reference, {})->f, 0.0);
    EXPECT_EQ(lm::rouge_l(tokens("xyz"), reference)->f, 0.0);
    for (const double beta : {-1.0, double(NAN), double(INFINITY)})
        EXPECT_EQ(lm::rouge_l(close, reference, beta).error().code(), errc::invalid_argument);
}

} // namespace
} // namespace test_rouge
