// The interval of a mean.
#include "lab/bootstrap.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace test_bootstrap {
namespace {

TEST(Bootstrap, HoldsTheMean) {
    std::vector<double> a, b;
    for (int i = 0; i < 200; ++i) {
        a.push_back(0.5 + 0.1 * std::sin(i));
        b.push_back(0.4 + 0.1 * std::cos(i));
    }
    const lm::lab::interval less = lm::lab::bootstrap(a, b, 1);
    EXPECT_LT(less.low, 0.1);
    EXPECT_GT(less.high, 0.1);
    EXPECT_GT(less.low, 0.05);
    EXPECT_LT(less.high, 0.15);
    const lm::lab::interval same = lm::lab::bootstrap(a, a, 1);
    EXPECT_EQ(same.low, 0);
    EXPECT_EQ(same.high, 0);
}

} // namespace
} // namespace test_bootstrap
