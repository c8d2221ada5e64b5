// Formats by matrix under one multiplier, against all choices there are.
#include "train/format_choice.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace test_format_choice {
namespace {

using lm::format_option;

double loss_of(const std::vector<std::vector<format_option>>& m, const std::vector<std::size_t>& chosen) {
    double sum = 0;
    for (std::size_t i = 0; i < m.size(); ++i)
        sum += m[i][chosen[i]].loss;
    return sum;
}
std::uint64_t bytes_of(const std::vector<std::vector<format_option>>& m,
                       const std::vector<std::size_t>& chosen) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < m.size(); ++i)
        sum += m[i][chosen[i]].bytes;
    return sum;
}

/// The least loss of all choices within the budget.
double best_of(const std::vector<std::vector<format_option>>& m, std::uint64_t budget) {
    double best = std::numeric_limits<double>::infinity();
    std::vector<std::size_t> chosen(m.size(), 0);
    for (;;) {
        if (bytes_of(m, chosen) <= budget)
            best = std::min(best, loss_of(m, chosen));
        std::size_t i = 0;
        while (i < m.size() && ++chosen[i] == m[i].size())
            chosen[i++] = 0;
        if (i == m.size())
            return best;
    }
}

/// Five matrices of four formats: losses fall by 3 to 5 with every bit, one format is worse than a smaller
/// one.
std::vector<std::vector<format_option>> problem() {
    std::vector<std::vector<format_option>> out;
    std::uint32_t x = 7;
    for (std::size_t m = 0; m < 5; ++m) {
        x = x * 1664525u + 1013904223u;
        const std::uint64_t size = 100 + (x >> 24);
        double loss = 1.0 + static_cast<double>(x >> 28);
        out.emplace_back();
        for (std::uint64_t bits = 2; bits < 6; ++bits) {
            out.back().push_back({size * bits, loss});
            loss /= 3.0 + static_cast<double>(bits % 3);
        }
    }
    out[2][1].loss = out[2][0].loss * 2;
    std::swap(out[3][0], out[3][2]); // in no order
    return out;
}

TEST(FormatChoice, StaysWithinTheBudgetAndNearTheBest) {
    const auto m = problem();
    std::uint64_t least = 0, most = 0, largest_step = 0;
    for (const auto& each : m) {
        std::uint64_t low = each[0].bytes, high = each[0].bytes;
        for (const format_option& o : each) {
            low = std::min(low, o.bytes);
            high = std::max(high, o.bytes);
        }
        least += low;
        most += high;
        largest_step = std::max(largest_step, high - low);
    }
    double last = std::numeric_limits<double>::infinity();
    for (std::uint64_t budget = least; budget <= most; budget += 50) {
        const auto chosen = lm::choose_formats(m, budget);
        ASSERT_TRUE(chosen.ok()) << chosen.message();
        EXPECT_LE(bytes_of(m, *chosen), budget);
        // One multiplier reaches the best of a budget that is smaller by less than one matrix's step: where
        // the step that would come next does not fit.
        if (budget >= least + largest_step) {
            EXPECT_LE(loss_of(m, *chosen), best_of(m, budget - largest_step) * (1 + 1e-12)) << budget;
        }
        EXPECT_GE(loss_of(m, *chosen), best_of(m, budget) * (1 - 1e-12)) << budget;
        last = std::min(last, loss_of(m, *chosen));
    }
    const auto all = lm::choose_formats(m, most);
    ASSERT_TRUE(all.ok());
    EXPECT_DOUBLE_EQ(loss_of(m, *all), best_of(m, most));
}

TEST(FormatChoice, RefusesWhatCannotBe) {
    const auto m = problem();
    std::uint64_t least = 0;
    for (const auto& each : m) {
        std::uint64_t low = each[0].bytes;
        for (const format_option& o : each)
            low = std::min(low, o.bytes);
        least += low;
    }
    EXPECT_TRUE(lm::choose_formats(m, least).ok());
    const auto small = lm::choose_formats(m, least - 1);
    ASSERT_FALSE(small.ok());
    EXPECT_EQ(std::string(small.message()), std::to_string(least) + " bytes are needed at least, " +
                                                std::to_string(least - 1) + " are there");
    const std::vector<std::vector<format_option>> none(1);
    EXPECT_FALSE(lm::choose_formats(none, 1).ok());
    const std::vector<std::vector<format_option>> infinite{{{1, std::numeric_limits<double>::infinity()}}};
    EXPECT_FALSE(lm::choose_formats(infinite, 1).ok());
}

} // namespace
} // namespace test_format_choice
