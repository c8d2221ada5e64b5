// The threads of crumb-lm.
#include "team.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace {

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
        const lm::team t(size);
        std::vector<int> steps(size);
        std::atomic<int> wrong = 0;
        t.run([&](std::size_t part, std::size_t parts) {
            for (int step = 1; step <= 200; ++step) {
                steps[part] = step;
                t.barrier();
                wrong += steps[(part + 1) % parts] != step;
                t.barrier();
            }
        });
        EXPECT_EQ(wrong, 0);
    }
}

TEST(Team, SleepersWakeUp) {
    const lm::team t(3);
    std::atomic<int> sum = 0;
    for (int round = 0; round < 3; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        t.run([&](std::size_t part, std::size_t) {
            if (part == 1)
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
            t.barrier();
            ++sum;
        });
    }
    EXPECT_EQ(sum, 9);
}

TEST(Team, ACopyIsTheSameTeam) {
    auto first = std::make_unique<lm::team>(2);
    const lm::team second = *first;
    first.reset();
    std::atomic<int> sum = 0;
    second.run([&](std::size_t, std::size_t) {
        second.barrier();
        ++sum;
    });
    EXPECT_EQ(sum, 2);
}

TEST(Team, TakesAllCoresWithoutANumber) { EXPECT_EQ(lm::team(0).size(), lm::team::all()); }

} // namespace
