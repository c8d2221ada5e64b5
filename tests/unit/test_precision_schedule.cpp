// Schedules of precisions, and the object that decoding asks.
#include <crumb/op/schedule/precision_scheduler.hpp>

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

namespace test_precision_schedule {
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
        *precision_schedule::constant(all, 4, 3, 10), *precision_schedule::high_then_low(two, 3)};
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

TEST(PrecisionSchedule, HighThenLow) {
    EXPECT_EQ(digits(*precision_schedule::high_then_low(two, 4), 10), "4444222222");
    EXPECT_EQ(digits(*precision_schedule::high_then_low(two, 0), 10), "2222222222");
    EXPECT_EQ(digits(*precision_schedule::high_then_low(two, 10), 10), "4444444444");
    schedule_levels rising = two;
    std::swap(rising.high, rising.low);
    schedule_levels missing = two;
    missing.stored = {3, 4};
    expect_refused(precision_schedule::high_then_low(rising, 3), errc::invalid_argument, "rises from 2 to 4");
    expect_refused(precision_schedule::high_then_low(missing, 3), errc::invalid_argument,
                   "2 bits are requested");
    expect_refused(precision_schedule::high_then_low(two, 11), errc::invalid_argument, "past the 10 steps");
    expect_refused(precision_schedule::constant(all, 4, 5, 10), errc::invalid_argument, "5 bits");
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

} // namespace
} // namespace test_precision_schedule
