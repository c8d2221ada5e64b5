// How long what is left of a task will take.
#include "train/work_meter.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

namespace test_work_meter {
namespace {

using lm::work_kind;

lm::work_costs costs(double streams, double sums) {
    lm::work_costs out = {};
    out[static_cast<std::size_t>(work_kind::streams)] = streams;
    out[static_cast<std::size_t>(work_kind::sums)] = sums;
    return out;
}

void wait(double seconds) {
    using clock = std::chrono::steady_clock;
    const auto end = clock::now() + std::chrono::duration<double>(seconds);
    while (clock::now() < end) {
    }
}

TEST(WorkMeter, KnowsNothingBeforeAnythingIsDone) {
    lm::work_meter meter;
    meter.plan(costs(1, 1));
    EXPECT_TRUE(std::isinf(meter.seconds_left()));
    EXPECT_EQ(meter.share_done(), 0);
}

TEST(WorkMeter, EveryKindHasItsOwnPace) {
    lm::work_meter meter;
    meter.plan(costs(10, 10));
    wait(0.004);
    meter.lap(work_kind::streams, 1);
    // Of sums nothing is known but that they may take as long.
    EXPECT_DOUBLE_EQ(meter.seconds_left(), 19 * meter.seconds(work_kind::streams));
    wait(0.001);
    meter.lap(work_kind::sums, 5);
    EXPECT_DOUBLE_EQ(meter.seconds_left(),
                     9 * meter.seconds(work_kind::streams) + meter.seconds(work_kind::sums));
    EXPECT_DOUBLE_EQ(meter.share_done(), meter.seconds() / (meter.seconds() + meter.seconds_left()));
    EXPECT_GE(meter.seconds(work_kind::streams), 0.004);
    EXPECT_GE(meter.seconds(work_kind::sums), 0.001);
}

TEST(WorkMeter, PartsAreSharesOfThePlan) {
    std::size_t shown = 0;
    lm::work_meter meter([&](const lm::work_meter&) { ++shown; });
    meter.plan(costs(10, 0));
    const auto parts = meter.parts_of(work_kind::streams);
    wait(0.001);
    parts(1, 4);
    EXPECT_DOUBLE_EQ(meter.seconds_left(), 3 * meter.seconds());
    parts(4, 4);
    EXPECT_EQ(meter.seconds_left(), 0);
    EXPECT_EQ(meter.share_done(), 1);
    EXPECT_EQ(shown, 2u);
}

TEST(WorkMeter, WhatIsFinishedEarlyIsNotWaitedFor) {
    lm::work_meter meter;
    meter.plan(costs(10, 10));
    wait(0.001);
    meter.lap(work_kind::streams, 10);
    meter.finish(work_kind::sums);
    EXPECT_EQ(meter.seconds_left(), 0);
    // More than planned is no less than nothing.
    meter.lap(work_kind::sums, 1);
    EXPECT_EQ(meter.seconds_left(), 0);
}

TEST(WorkMeter, WhatIsDoneStaysOutOfALaterPlan) {
    lm::work_meter meter;
    meter.plan(costs(10, 10));
    wait(0.001);
    meter.lap(work_kind::streams, 10);
    meter.plan(costs(0, 10));
    wait(0.001);
    meter.lap(work_kind::sums, 5);
    EXPECT_DOUBLE_EQ(meter.seconds_left(), meter.seconds(work_kind::sums));
}

} // namespace
} // namespace test_work_meter
