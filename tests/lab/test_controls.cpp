// Controls for schedules of precision.
#include "lab/controls.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

namespace test_controls {
namespace {

using namespace lm::lab;
using crumb::errc;
using crumb::precision_range;
using crumb::precision_schedule;
using crumb::schedule_levels;

constexpr precision_range all = {2, 4};
constexpr schedule_levels two = {.stored = all, .prefill = 4, .high = 4, .low = 2, .length = 10};

/// Bits of the steps of `two`.
std::string digits(const lm::step_precision& bits) {
    std::string out;
    for (std::size_t i = 0; i < two.length; ++i)
        out += static_cast<char>('0' + bits(i, {}));
    return out;
}
void expect_refused(const crumb::result<lm::step_precision>& s, const char* part) {
    ASSERT_FALSE(s.ok());
    EXPECT_EQ(s.error().code(), errc::invalid_argument);
    EXPECT_NE(std::string(s.message()).find(part), std::string::npos) << s.message();
}

TEST(Controls, Alternate) { EXPECT_EQ(digits(*alternating(two)), "4242424242"); }

// PMPD, figure 3: low precision in the first, the middle and the last third.
TEST(Controls, LowWithin) {
    for (const auto& [part, want] : {std::pair{0u, "2224444444"}, {1u, "4442224444"}, {2u, "4444442222"}})
        EXPECT_EQ(digits(*low_within(two, crumb::split(10, 3, part))), want);
    EXPECT_EQ(digits(*low_within(two, {})), "2222222222");
    EXPECT_EQ(digits(*low_within(two, {4, 4})), "4444444444");
    EXPECT_EQ(digits(*low_within(two, {0, 0})), "4444444444");
    EXPECT_EQ(digits(*low_within(two, {7, 99})), "4444444222");
}

TEST(Controls, RefuseWhatIsNoSchedule) {
    schedule_levels rising = two;
    std::swap(rising.high, rising.low);
    schedule_levels missing = two;
    missing.stored = {3, 4};
    for (const auto& s : {alternating(rising), low_within(rising, {1, 2})})
        expect_refused(s, "rises from 2 to 4");
    for (const auto& s : {alternating(missing), low_within(missing, {1, 2})})
        expect_refused(s, "2 bits are requested");
    expect_refused(low_within(two, {11, 12}), "past the 10");
    expect_refused(low_within(two, {5, 3}), "out of order");
}

TEST(Controls, RandomSwitchPointsAreSeededAndCoverTheGrid) {
    auto a = *random_schedules::make(two, 6, 7), b = *random_schedules::make(two, 6, 7),
         other = *random_schedules::make(two, 6, 8);
    std::set<std::string> seen;
    bool differs = false;
    for (int i = 0; i < 200; ++i) {
        const auto s = a.next();
        EXPECT_EQ(s, b.next());
        differs = differs || !(s == other.next());
        seen.insert(digits(lm::steps_of(s)));
    }
    EXPECT_TRUE(differs);
    EXPECT_EQ(seen, (std::set<std::string>{"2222222222", "4422222222", "4444222222", "4444442222",
                                           "4444444422", "4444444444"}));
    EXPECT_EQ(random_schedules::make(two, 12, 7).error().code(), errc::invalid_argument);
    schedule_levels missing = two;
    missing.stored = {3, 4};
    EXPECT_EQ(random_schedules::make(missing, 6, 7).error().code(), errc::invalid_argument);
}

TEST(CertaintyScheduler, LowersWhileTheModelIsSureWithHysteresis) {
    const auto made = *certainty_scheduler::make(*precision_schedule::constant(all, 4, 4, 20),
                                                 {.bits = 2, .lower_at = 0.5, .raise_at = 1.0});
    certainty_scheduler s = made;
    const std::pair<double, int> course[] = {{0.7, 4}, {0.5, 2}, {0.7, 2}, {1.0, 2}, {1.01, 4},
                                             {0.7, 4}, {0.0, 2}, {NAN, 4}, {0.7, 4}};
    std::size_t step = 0;
    for (const auto& [uncertainty, want] : course) {
        EXPECT_EQ(s.next(step, uncertainty), want) << "step " << step << ", " << uncertainty;
        ++step;
    }
    // A new prompt begins unsure.
    EXPECT_EQ(s.next(9, 0.1), 2);
    s = made;
    EXPECT_EQ(s.next(0, 0.7), 4);
}

TEST(CertaintyScheduler, ReadsLogits) {
    const auto made = *certainty_scheduler::make(*precision_schedule::constant(all, 4, 4, 20),
                                                 {.bits = 2, .lower_at = 0.3, .raise_at = 0.3});
    const lm::step_precision a = made.steps(), b = a;
    const float sure[] = {0, 9, 0}, unsure[] = {1, 1, 1};
    EXPECT_EQ(a(0, sure), 2);
    EXPECT_EQ(a(1, unsure), 4);
    EXPECT_EQ(b(0, unsure), 4);
}

TEST(CertaintyScheduler, NeverRaisesAboveTheSchedule) {
    auto s = *certainty_scheduler::make(*precision_schedule::high_then_low(two, 2),
                                        {.bits = 3, .lower_at = 1, .raise_at = 1});
    for (const auto& [step, want] : {std::pair{0u, 3}, {1u, 3}, {2u, 2}, {3u, 2}})
        EXPECT_EQ(s.next(step, 0.0), want);
}

TEST(CertaintyScheduler, RefusesBadSwitches) {
    const precision_schedule s;
    const auto code = [&](const certainty_switch& sure, const precision_range& stored = {}) {
        const auto made = certainty_scheduler::make(s, sure, stored);
        return made ? errc::ok : made.error().code();
    };
    EXPECT_EQ(code({2, 0.5, 1}), errc::ok);
    EXPECT_EQ(code({0, 0.5, 1}), errc::invalid_argument);
    EXPECT_EQ(code({5, 0.5, 1}), errc::invalid_argument);
    EXPECT_EQ(code({2, 0.5, 1}, {3, 4}), errc::invalid_argument);
    EXPECT_EQ(code({2, 1, 0.5}), errc::invalid_argument);
    EXPECT_EQ(code({2, -0.1, 0.5}), errc::invalid_argument);
    EXPECT_EQ(code({2, NAN, 0.5}), errc::invalid_argument);
    EXPECT_EQ(code({2, 0.5, NAN}), errc::invalid_argument);
    EXPECT_EQ(code({2, 0.5, INFINITY}), errc::invalid_argument);
}

} // namespace
} // namespace test_controls
