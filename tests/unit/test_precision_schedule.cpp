// Schedules of precisions, the controls among them, and the object that decoding asks.
#include <crumb/offline/schedule/random_schedule.hpp>
#include <crumb/op/schedule/precision_scheduler.hpp>

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using crumb::errc;
using crumb::precision_phase;
using crumb::precision_range;
using crumb::precision_schedule;
using crumb::precision_scheduler;
using crumb::schedule_levels;

using phases = std::vector<precision_phase>;
constexpr precision_range all = {2, 4};
constexpr schedule_levels two = {.stored = all, .prefill = 4, .high = 4, .low = 2, .length = 10};

std::string digits(const precision_schedule& s, std::size_t steps) {
    std::string out;
    for (std::size_t i = 0; i < steps; ++i)
        out += static_cast<char>('0' + s.next(i));
    return out;
}
std::string made(int prefill, const phases& p, std::size_t length, std::size_t steps) {
    const auto s = precision_schedule::make(all, prefill, p, length);
    return s ? digits(*s, steps) : s.message();
}
void expect_refused(const crumb::result<precision_schedule>& s, errc code, const char* part) {
    ASSERT_FALSE(s.ok());
    EXPECT_EQ(s.error().code(), code);
    EXPECT_NE(std::string(s.message()).find(part), std::string::npos) << s.message();
}

static_assert(std::is_trivially_copyable_v<precision_schedule>);
static_assert(std::is_trivially_copyable_v<precision_scheduler>);

TEST(PrecisionSchedule, PhasesServeTheirSteps) {
    EXPECT_EQ(made(4, {{0, 4}, {2, 3}, {5, 2}}, 8, 8), "44333222");
    EXPECT_EQ(made(4, {{0, 3}, {7, 2}}, 8, 8), "33333332");
    EXPECT_EQ(made(2, {{0, 4}}, 3, 3), "444");
    EXPECT_EQ(made(4, {{0, 4}, {2, 2}}, 4, 7), "4422222") << "the last phase has no end";
    // Empty phases, and one that never comes.
    EXPECT_EQ(made(4, {{0, 4}, {0, 3}, {5, 2}}, 8, 8), "33333222");
    EXPECT_EQ(made(4, {{0, 4}, {0, 3}, {0, 2}}, 8, 8), "22222222");
    EXPECT_EQ(made(4, {{0, 4}, {4, 3}, {8, 2}}, 8, 10), "4444333333");
    EXPECT_EQ(made(4, {{0, 4}, {1, 4}, {2, 4}, {3, 3}, {4, 3}, {5, 2}}, 6, 6), "444332");
}

TEST(PrecisionSchedule, PromptHasItsOwnPrecision) {
    for (const int prefill : {2, 3, 4}) {
        const auto s = precision_schedule::make(all, prefill, phases{{0, 3}}, 5);
        ASSERT_TRUE(s.ok()) << s.message();
        EXPECT_EQ(s->prefill(), prefill);
        EXPECT_EQ(s->next(0), 3);
        EXPECT_EQ(s->length(), 5u);
    }
    EXPECT_EQ(precision_schedule().prefill(), 4);
    EXPECT_EQ(digits({}, 3), "444");
}

TEST(PrecisionSchedule, EqualIfEveryStepIs) {
    const auto plain = precision_schedule::make(all, 4, phases{{0, 4}, {3, 2}}, 8);
    const auto roundabout =
        precision_schedule::make(all, 4, phases{{0, 4}, {1, 4}, {3, 3}, {3, 2}, {6, 2}, {8, 2}}, 8);
    ASSERT_TRUE(plain.ok() && roundabout.ok());
    EXPECT_EQ(*plain, *roundabout);
    EXPECT_EQ(plain->phases().size(), 2u);
    EXPECT_EQ(plain->phases()[1], (precision_phase{3, 2}));
    EXPECT_NE(*plain, *precision_schedule::make(all, 4, phases{{0, 4}, {4, 2}}, 8));
    EXPECT_NE(*plain, *precision_schedule::make(all, 3, phases{{0, 4}, {3, 2}}, 8)) << "another prefill";
    EXPECT_NE(*plain, *precision_schedule::make(all, 4, phases{{0, 4}, {3, 2}}, 9)) << "another length";
    EXPECT_EQ(*precision_schedule::constant(all, 4, 3, 8),
              *precision_schedule::make(all, 4, phases{{0, 3}}, 8));
}

TEST(PrecisionSchedule, AverageBitsAreTheMeanOverSteps) {
    std::vector<precision_schedule> schedules = {
        *precision_schedule::make(all, 4, phases{{0, 4}, {3, 3}, {7, 2}}, 10),
        *precision_schedule::constant(all, 4, 3, 10), *precision_schedule::alternating(two),
        *precision_schedule::low_within(two, {3, 6})};
    for (const auto& s : schedules)
        for (std::size_t steps = 1; steps < 14; ++steps) {
            std::size_t sum = 0;
            for (std::size_t i = 0; i < steps; ++i)
                sum += static_cast<std::size_t>(s.next(i));
            EXPECT_EQ(s.total_bits(steps), sum) << digits(s, steps);
            EXPECT_DOUBLE_EQ(s.average_bits(steps), double(sum) / double(steps));
        }
    EXPECT_EQ(schedules[0].average_bits(0), 0.0);
}

TEST(PrecisionSchedule, RefusesWhatIsNoSchedule) {
    const auto make = [](const precision_range& stored, int prefill, const phases& p, std::size_t length) {
        return precision_schedule::make(stored, prefill, p, length);
    };
    for (const precision_range& stored : {precision_range{1, 4}, {2, 5}, {4, 3}})
        expect_refused(make(stored, 3, {{0, 3}}, 8), errc::invalid_argument, "stored precisions");
    expect_refused(make({3, 4}, 2, {{0, 3}}, 8), errc::invalid_argument, "2 bits are requested");
    expect_refused(make({2, 3}, 3, {{0, 4}}, 8), errc::invalid_argument, "4 bits are requested");
    expect_refused(make({3, 4}, 4, {{0, 4}, {2, 2}}, 8), errc::invalid_argument, "2 bits are requested");
    expect_refused(make(all, 4, {}, 8), errc::invalid_argument, "no phases");
    expect_refused(make(all, 4, {{1, 4}}, 8), errc::invalid_argument, "begin with step 0");
    expect_refused(make(all, 4, {{0, 4}}, 0), errc::invalid_argument, "no steps");
    expect_refused(make(all, 4, {{0, 4}, {9, 2}}, 8), errc::invalid_argument, "past the 8 steps");
    expect_refused(make(all, 4, {{0, 4}, {5, 3}, {4, 2}}, 8), errc::invalid_argument, "out of order");
    expect_refused(make(all, 4, {{0, 3}, {4, 4}}, 8), errc::invalid_argument, "rises from 3 to 4");
    // A phase that is left out because it never comes still has to be right.
    expect_refused(make(all, 4, {{0, 3}, {8, 4}}, 8), errc::invalid_argument, "rises");
}

TEST(PrecisionSchedule, GridIsThePapers) {
    EXPECT_EQ(crumb::grid_step(0, 5, 256), 0u);
    EXPECT_EQ(crumb::grid_step(1, 5, 256), 64u);
    EXPECT_EQ(crumb::grid_step(3, 5, 256), 192u);
    EXPECT_EQ(crumb::grid_step(4, 5, 256), 256u);
    for (const std::size_t length : {4, 5, 7, 100, 1000003})
        for (std::size_t i = 0; i < 5; ++i)
            EXPECT_EQ(crumb::grid_step(i, 5, length), i * length / 4);
    EXPECT_TRUE(crumb::check_grid(2, 1).ok());
    EXPECT_TRUE(crumb::check_grid(9, 8).ok());
    EXPECT_EQ(crumb::check_grid(10, 8).code(), errc::invalid_argument);
    EXPECT_EQ(crumb::check_grid(1, 8).code(), errc::invalid_argument);
    EXPECT_EQ(crumb::check_grid(2, 0).code(), errc::invalid_argument);
}

TEST(PrecisionSchedule, Controls) {
    EXPECT_EQ(digits(*precision_schedule::high_then_low(two, 4), 10), "4444222222");
    EXPECT_EQ(digits(*precision_schedule::high_then_low(two, 0), 10), "2222222222");
    EXPECT_EQ(digits(*precision_schedule::high_then_low(two, 10), 10), "4444444444");
    EXPECT_EQ(digits(*precision_schedule::alternating(two), 10), "4242424242");
    // Figure 3: low precision in the first, the middle and the last third.
    for (const auto& [part, want] : {std::pair{0u, "2224444444"}, {1u, "4442224444"}, {2u, "4444442222"}})
        EXPECT_EQ(digits(*precision_schedule::low_within(two, crumb::split(10, 3, part)), 10), want);
    EXPECT_EQ(digits(*precision_schedule::low_within(two, {}), 10), "2222222222");
    EXPECT_EQ(digits(*precision_schedule::low_within(two, {4, 4}), 10), "4444444444");
    EXPECT_EQ(digits(*precision_schedule::low_within(two, {0, 0}), 10), "4444444444");
    EXPECT_EQ(digits(*precision_schedule::low_within(two, {7, 99}), 10), "4444444222");

    const schedule_levels same = {.stored = all, .prefill = 4, .high = 3, .low = 3, .length = 10};
    const auto constant = precision_schedule::constant(all, 4, 3, 10);
    EXPECT_EQ(*precision_schedule::alternating(same), *constant);
    EXPECT_EQ(*precision_schedule::low_within(same, {2, 5}), *constant);
    EXPECT_NE(*precision_schedule::alternating(two), *precision_schedule::constant(all, 4, 4, 10));
}

TEST(PrecisionSchedule, ControlsRefuseWhatIsNoSchedule) {
    schedule_levels rising = two;
    std::swap(rising.high, rising.low);
    schedule_levels missing = two;
    missing.stored = {3, 4};
    for (const auto& s :
         {precision_schedule::high_then_low(rising, 3), precision_schedule::alternating(rising),
          precision_schedule::low_within(rising, {1, 2})})
        expect_refused(s, errc::invalid_argument, "rises from 2 to 4");
    for (const auto& s :
         {precision_schedule::high_then_low(missing, 3), precision_schedule::alternating(missing),
          precision_schedule::low_within(missing, {1, 2})})
        expect_refused(s, errc::invalid_argument, "2 bits are requested");
    expect_refused(precision_schedule::high_then_low(two, 11), errc::invalid_argument, "past the 10 steps");
    expect_refused(precision_schedule::low_within(two, {11, 12}), errc::invalid_argument, "past the 10");
    expect_refused(precision_schedule::low_within(two, {5, 3}), errc::invalid_argument, "out of order");
    expect_refused(precision_schedule::constant(all, 4, 5, 10), errc::invalid_argument, "5 bits");
}

TEST(PrecisionSchedule, RandomSwitchPointsAreSeededAndCoverTheGrid) {
    auto a = *crumb::random_schedules::make(two, 6, 7), b = *crumb::random_schedules::make(two, 6, 7),
         other = *crumb::random_schedules::make(two, 6, 8);
    std::set<std::string> seen;
    bool differs = false;
    for (int i = 0; i < 200; ++i) {
        const auto s = a.next();
        EXPECT_EQ(s, b.next());
        differs = differs || !(s == other.next());
        seen.insert(digits(s, 10));
    }
    EXPECT_TRUE(differs);
    EXPECT_EQ(seen, (std::set<std::string>{"2222222222", "4422222222", "4444222222", "4444442222",
                                           "4444444422", "4444444444"}));
    EXPECT_EQ(crumb::random_schedules::make(two, 12, 7).error().code(), errc::invalid_argument);
    schedule_levels missing = two;
    missing.stored = {3, 4};
    EXPECT_EQ(crumb::random_schedules::make(missing, 6, 7).error().code(), errc::invalid_argument);
}

TEST(PrecisionScheduler, FollowsItsScheduleAndKeepsCount) {
    precision_scheduler s(*precision_schedule::high_then_low(two, 2));
    EXPECT_EQ(s.prefill(), 4);
    EXPECT_EQ(s.average_bits(), 0.0);
    for (const int want : {4, 4, 2, 2})
        EXPECT_EQ(s.next(s.steps()), want);
    EXPECT_EQ(s.steps(), 4u);
    EXPECT_EQ(s.average_bits(), 3.0);
    EXPECT_FALSE(s.ended());
    s.end();
    EXPECT_TRUE(s.ended());
    EXPECT_EQ(s.average_bits(), 3.0) << "the record outlives EOS";

    s.begin();
    EXPECT_FALSE(s.ended());
    EXPECT_EQ(s.steps(), 0u);
    EXPECT_EQ(s.next(0), 4);
    s.begin(*precision_schedule::constant(all, 3, 2, 10));
    EXPECT_EQ(s.prefill(), 3);
    EXPECT_EQ(s.next(0), 2);
    EXPECT_EQ(s.average_bits(), 2.0);
}

TEST(PrecisionScheduler, CopiesAreIndependent) {
    precision_scheduler a(*precision_schedule::constant(all, 4, 4, 10));
    a.next(0);
    precision_scheduler b = a;
    b.begin(*precision_schedule::constant(all, 4, 2, 10));
    b.end();
    EXPECT_EQ(a.next(1), 4);
    EXPECT_EQ(a.steps(), 2u);
    EXPECT_FALSE(a.ended());
}

TEST(PrecisionScheduler, LowersWhileTheModelIsSureWithHysteresis) {
    auto s = *precision_scheduler::make(*precision_schedule::constant(all, 4, 4, 20),
                                        {.bits = 2, .lower_at = 0.5, .raise_at = 1.0});
    const std::pair<double, int> course[] = {{0.7, 4}, {0.5, 2}, {0.7, 2}, {1.0, 2}, {1.01, 4},
                                             {0.7, 4}, {0.0, 2}, {NAN, 4}, {0.7, 4}};
    for (const auto& [uncertainty, want] : course)
        EXPECT_EQ(s.next(s.steps(), uncertainty), want) << "step " << s.steps() << ", " << uncertainty;
    EXPECT_DOUBLE_EQ(s.average_bits(), (5 * 4 + 4 * 2) / 9.0);
    // A new prompt begins unsure.
    EXPECT_EQ(s.next(9, 0.1), 2);
    s.begin();
    EXPECT_EQ(s.next(0, 0.7), 4);
    EXPECT_EQ(s.next(1), 4) << "nothing is known";
}

TEST(PrecisionScheduler, NeverRaisesAboveTheSchedule) {
    auto s = *precision_scheduler::make(*precision_schedule::high_then_low(two, 2),
                                        {.bits = 3, .lower_at = 1, .raise_at = 1});
    for (const int want : {3, 3, 2, 2})
        EXPECT_EQ(s.next(s.steps(), 0.0), want);
    precision_scheduler without(*precision_schedule::high_then_low(two, 2));
    EXPECT_EQ(without.next(0, 0.0), 4);
}

TEST(PrecisionScheduler, RefusesBadSwitches) {
    const precision_schedule s;
    const auto code = [&](const crumb::certainty_switch& sure, const precision_range& stored = {}) {
        const auto made = precision_scheduler::make(s, sure, stored);
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
