// The threads of crumb-lm.
#include "decisions.hpp"
#include "machine/team.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include <sys/resource.h>

namespace test_team {
namespace {

using lm::test::nth_decision;
using lm::test::together;

TEST(Team, EveryPartRunsOnceInAThreadOfItsOwn) {
    for (const std::size_t size : {1, 2, 3, 8}) {
        const lm::team t(size);
        EXPECT_EQ(t.size(), size);
        for (int round = 0; round < 100; ++round) {
            std::vector<std::thread::id> ids(size);
            t.run([&](std::size_t part, std::size_t parts) {
                EXPECT_EQ(parts, size);
                ids[part] = std::this_thread::get_id();
            });
            EXPECT_EQ(ids[0], std::this_thread::get_id());
            for (std::size_t i = 0; i < size; ++i)
                for (std::size_t j = 0; j < i; ++j)
                    EXPECT_NE(ids[i], ids[j]);
        }
    }
}

TEST(Team, NobodyPassesABarrierEarly) {
    for (const std::size_t size : {2, 5}) {
        const lm::team t(size, together);
        lm::pace pace;
        std::vector<int> steps(size);
        std::atomic<int> wrong = 0;
        t.step(pace, 1, [&](std::size_t part, std::size_t parts) {
            for (int step = 1; step <= 200; ++step) {
                steps[part] = step;
                wrong += t.barrier(part) != size;
                wrong += steps[(part + 1) % parts] != step;
                wrong += t.barrier(part) != size;
            }
        });
        EXPECT_EQ(wrong, 0);
    }
}

TEST(Team, AllButTheLastAtABarrierAreIdleOnce) {
    for (const std::size_t size : {2, 4}) {
        const lm::team t(size, together);
        lm::pace pace;
        std::atomic<std::size_t> idle = 0;
        constexpr std::size_t barriers = 50;
        t.step(pace, 1, [&](std::size_t part, std::size_t) {
            for (std::size_t i = 0; i < barriers; ++i) {
                auto once = [&]() noexcept { ++idle; };
                t.barrier(part, once);
            }
        });
        EXPECT_EQ(idle, barriers * (size - 1));
    }
}

TEST(Team, SleepersWakeUp) {
    const lm::team t(3, together);
    lm::pace pace;
    std::atomic<int> sum = 0;
    for (int round = 0; round < 3; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        t.step(pace, 1, [&](std::size_t part, std::size_t) {
            if (part == 1)
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
            t.barrier(part);
            ++sum;
        });
    }
    EXPECT_EQ(sum, 9);
}

TEST(Team, ACopyIsTheSameTeam) {
    auto first = std::make_unique<lm::team>(2, together);
    const lm::team second = *first;
    first.reset();
    lm::pace pace;
    std::atomic<int> sum = 0;
    second.step(pace, 1, [&](std::size_t part, std::size_t) {
        second.barrier(part);
        ++sum;
    });
    EXPECT_EQ(sum, 2);
}

/// Counts all numbers up, each from what its neighbour was at the last barrier. Returns how often a barrier
/// gave a number of parts that was not expected: one from the n-th decision on, the 0th being the start.
std::size_t count_up(const lm::team& t, lm::pace& pace, std::vector<std::size_t>& values,
                     std::size_t barriers, std::size_t n) {
    std::vector<std::size_t> old(values.size());
    std::atomic<std::size_t> wrong = 0;
    t.step(pace, 1, [&](std::size_t part, std::size_t parts) {
        wrong += parts != (n == 0 ? 1 : t.size());
        for (std::size_t b = 1; b <= barriers; ++b) {
            const std::vector<std::size_t>& from = b % 2 == 1 ? values : old;
            std::vector<std::size_t>& to = b % 2 == 1 ? old : values;
            for (std::size_t i = part; i < values.size(); i += parts)
                to[i] = from[(i + 1) % values.size()] + 1;
            parts = t.barrier(part);
            wrong += parts != (b >= n ? 1 : t.size());
        }
    });
    return wrong;
}

TEST(Team, OnePartGoesOnFromAnyBarrier) {
    constexpr std::size_t barriers = 8;
    for (const std::size_t size : {2, 3}) {
        nth_decision when;
        const lm::team t(size, when.function());
        lm::pace pace;
        for (int round = 0; round < 20; ++round)
            for (std::size_t n = 0; n <= barriers + 1; ++n) {
                when.set(n);
                std::vector<std::size_t> values(30);
                EXPECT_EQ(count_up(t, pace, values, barriers, n), 0u) << n;
                EXPECT_EQ(values, std::vector<std::size_t>(30, barriers)) << n;
                EXPECT_EQ(when.asked, std::min(n, barriers) + 1) << n;
            }
    }
}

TEST(Team, TheClockMayDecideAsItLikes) {
    for (const std::size_t size : {1, 2, 3}) {
        const lm::team t(size);
        lm::pace pace;
        for (int round = 0; round < 2000; ++round) {
            std::vector<std::size_t> values(8);
            count_up(t, pace, values, 6, 0);
            ASSERT_EQ(values, std::vector<std::size_t>(8, 6)) << round;
        }
        std::atomic<std::size_t> all = 0;
        t.run([&](std::size_t, std::size_t) { ++all; });
        EXPECT_EQ(all, size);
    }
}

TEST(Team, WhatAPartOfARunThrowsIsThrownWhenAllHaveEnded) {
    for (const std::size_t size : {1, 2, 3})
        for (std::size_t thrower = 0; thrower < size; ++thrower) {
            const lm::team t(size);
            for (int round = 0; round < 20; ++round) {
                std::atomic<std::size_t> ended = 0;
                EXPECT_THROW(t.run([&](std::size_t part, std::size_t) {
                    ++ended;
                    if (part == thrower)
                        throw std::bad_alloc();
                }),
                             std::bad_alloc);
                EXPECT_EQ(ended, size);
                ended = 0;
                t.run([&](std::size_t, std::size_t) { ++ended; });
                EXPECT_EQ(ended, size);
            }
        }
}

TEST(Team, APartThatThrowsEndsTheStepForAll) {
    constexpr std::size_t barriers = 4;
    for (const std::size_t size : {2, 3})
        for (std::size_t thrower = 0; thrower < size; ++thrower)
            for (std::size_t at = 0; at <= barriers; ++at) {
                const lm::team t(size, together);
                lm::pace pace;
                std::vector<std::size_t> begun(size);
                EXPECT_THROW(t.step(pace, 1,
                                    [&](std::size_t part, std::size_t) {
                                        for (std::size_t b = 0; b <= barriers; ++b) {
                                            ++begun[part];
                                            if (part == thrower && b == at)
                                                throw std::bad_alloc();
                                            if (b < barriers)
                                                t.barrier(part);
                                        }
                                    }),
                             std::bad_alloc);
                EXPECT_EQ(begun[thrower], at + 1);
                std::vector<std::size_t> values(30);
                EXPECT_EQ(count_up(t, pace, values, barriers, barriers + 1), 0u);
                EXPECT_EQ(values, std::vector<std::size_t>(30, barriers));
                EXPECT_EQ(begun, std::vector<std::size_t>(size, at + 1));
            }
}

TEST(Team, OnePartAloneMayThrow) {
    nth_decision when;
    const lm::team t(2, when.function());
    lm::pace pace;
    for (std::size_t n = 0; n < 2; ++n) {
        when.set(n);
        EXPECT_THROW(t.step(pace, 1,
                            [&](std::size_t part, std::size_t) {
                                if (t.barrier(part) == 1)
                                    throw std::bad_alloc();
                            }),
                     std::bad_alloc);
    }
    when.set(100);
    std::vector<std::size_t> values(4);
    EXPECT_EQ(count_up(t, pace, values, 2, 100), 0u);
    EXPECT_EQ(values, std::vector<std::size_t>(4, 2));
}

// In a process of its own, which has memory left for a few stacks only. Sanitizers need more than that for
// themselves.
#if defined(__has_feature)
#define CRUMB_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CRUMB_SANITIZED 1
#else
#define CRUMB_SANITIZED 0
#endif
#if !CRUMB_SANITIZED
TEST(TeamDeathTest, ThreadsThatTheSystemRefusesAreAnError) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const auto start = [] {
        const rlimit few = {std::size_t{512} << 20, std::size_t{512} << 20};
        ::setrlimit(RLIMIT_AS, &few);
        try {
            const lm::team t(2000);
        } catch (const std::system_error&) {
            std::_Exit(7);
        }
        std::_Exit(0);
    };
    EXPECT_EXIT(start(), testing::ExitedWithCode(7), "");
}
#endif

constexpr lm::balance::time us = 1000;

TEST(Balance, ATryEndsWhenATenthOfTheStepIsLost) {
    lm::balance b;
    ASSERT_TRUE(b.try_step(10'000 * us, 2));
    EXPECT_EQ(b.patience(0), 1000 * us);
    EXPECT_TRUE(b.pays(0, 400 * us));
    EXPECT_EQ(b.patience(0), 600 * us);
    EXPECT_EQ(b.patience(1000 * us), 1100 * us);
    EXPECT_TRUE(b.pays(1000 * us, 1100 * us)); // 500 are gained
    EXPECT_FALSE(b.pays(0, 1 * us));
}

TEST(Balance, ShortStepsEndForMoreThanNoiseOnly) {
    lm::balance b;
    ASSERT_TRUE(b.try_step(100 * us, 2));
    EXPECT_TRUE(b.pays(0, 200 * us));
    EXPECT_FALSE(b.pays(0, 1 * us));
}

TEST(Balance, SmallLossesOfManyStepsAddUpAndGainsDoNot) {
    lm::balance b;
    ASSERT_TRUE(b.try_step(1000 * us, 2));
    EXPECT_TRUE(b.pays(500 * us, 10 * us));
    for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(b.try_step(1000 * us, 2));
        EXPECT_TRUE(b.pays(100 * us, 150 * us));
    }
    ASSERT_TRUE(b.try_step(1000 * us, 2));
    EXPECT_FALSE(b.pays(100 * us, 150 * us));
}

TEST(Balance, MoreThreadsGainMore) {
    lm::balance two, five;
    ASSERT_TRUE(two.try_step(1000 * us, 2));
    ASSERT_TRUE(five.try_step(1000 * us, 5));
    EXPECT_FALSE(two.pays(1000 * us, 1000 * us));
    EXPECT_TRUE(five.pays(1000 * us, 1000 * us));
}

TEST(Balance, TheNextTryComesAfterTenTimesWhatWasLost) {
    lm::balance b;
    ASSERT_TRUE(b.try_step(1000 * us, 2));
    EXPECT_FALSE(b.pays(0, 3000 * us));
    for (int i = 0; i < 29; ++i) {
        ASSERT_FALSE(b.try_step(1000 * us, 2)) << i;
        b.alone(1000 * us, 0);
    }
    b.alone(1000 * us, 0);
    ASSERT_TRUE(b.try_step(1000 * us, 2));
    EXPECT_TRUE(b.pays(0, 200 * us));
}

TEST(Balance, ALongStepDoesNotWaitForAShortPenance) {
    lm::balance b;
    ASSERT_TRUE(b.try_step(1000 * us, 2));
    EXPECT_FALSE(b.pays(0, 3000 * us));
    EXPECT_FALSE(b.try_step(60'000 * us, 2));
    EXPECT_TRUE(b.try_step(60'002 * us, 2));
}

TEST(Balance, WhileOthersTakeTheCoreThereIsNoTry) {
    lm::balance b;
    ASSERT_TRUE(b.try_step(1000 * us, 2));
    EXPECT_FALSE(b.pays(0, 3000 * us));
    for (int i = 0; i < 2000; ++i) {
        ASSERT_FALSE(b.try_step(1000 * us, 2)) << i;
        b.alone(1000 * us, 1000 * us);
    }
    // Half a second on a machine that is idle again.
    for (int i = 0; i < 500; ++i) {
        ASSERT_FALSE(b.try_step(1000 * us, 2)) << i;
        b.alone(1000 * us, 0);
    }
    EXPECT_TRUE(b.try_step(1000 * us, 2));
    // What others took before a try does not matter.
    b.alone(1000 * us, 1000 * us);
    EXPECT_TRUE(b.try_step(1000 * us, 2));
}

TEST(Team, TakesAllCoresWithoutANumber) { EXPECT_EQ(lm::team(0).size(), lm::team::all()); }

} // namespace
} // namespace test_team
