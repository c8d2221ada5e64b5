// Allocation by phase, and the solver of static schedules.
#include <crumb/offline/common/random.hpp>
#include <crumb/offline/schedule/solver.hpp>

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>

namespace test_schedule_solver {
namespace {

using crumb::errc;
using crumb::precision_phase;
using crumb::precision_range;
using crumb::precision_schedule;
using crumb::quality_target;
using crumb::schedule_solver;
using crumb::schedule_space;
using crumb::splitmix64;
using crumb::status;

// ---- phases ----

/// Quality by pair, and which pairs were asked for.
struct phase_table {
    std::map<std::pair<int, int>, double> quality;
    std::set<std::pair<int, int>> asked;

    crumb::phase_quality function() {
        return [this](int prefill, int decode) {
            EXPECT_TRUE(asked.insert({prefill, decode}).second) << prefill << " " << decode << " twice";
            EXPECT_GE(prefill, decode);
            return quality.at({prefill, decode});
        };
    }
};

TEST(PhaseAllocation, FindsTheLeastPairOfEveryMonotoneQuality) {
    splitmix64 random(3);
    std::size_t evaluations = 0, pairs = 0;
    for (int round = 0; round < 300; ++round) {
        const precision_range stored = {2 + static_cast<int>(random.below(2)), 4};
        phase_table t;
        std::optional<std::pair<int, int>> want;
        for (int d = stored.seed; d <= stored.parent; ++d)
            for (int p = d; p <= stored.parent; ++p) {
                double q = random.uniform();
                for (const auto& [at, below] : t.quality)
                    if (at.first <= p && at.second <= d)
                        q = std::max(q, below);
                t.quality[{p, d}] = q;
            }
        const double least = random.uniform() * 1.1;
        for (int d = stored.seed; d <= stored.parent; ++d)
            for (int p = d; p <= stored.parent; ++p)
                if (!want && t.quality[{p, d}] >= least)
                    want = {p, d};
        for (const bool monotone : {true, false}) {
            t.asked.clear();
            const auto got = crumb::allocate_phases(stored, {least, 0}, t.function(), monotone);
            ASSERT_TRUE(got.ok()) << got.message();
            ASSERT_EQ(got->held, want.has_value());
            EXPECT_EQ(std::pair(got->prefill, got->decode), want.value_or(std::pair{4, 4}));
            EXPECT_EQ(got->quality, t.quality.at({got->prefill, got->decode}));
            EXPECT_EQ(got->evaluations, t.asked.size());
            EXPECT_EQ(got->space, t.quality.size());
            if (monotone) {
                evaluations += got->evaluations;
                pairs += got->space;
            }
        }
    }
    EXPECT_LT(evaluations * 4, pairs * 3);
}

TEST(PhaseAllocation, FindsALonelyPairWithoutMonotony) {
    phase_table t;
    for (int d = 2; d <= 4; ++d)
        for (int p = d; p <= 4; ++p)
            t.quality[{p, d}] = p == 3 && d == 2 ? 1 : 0;
    const auto got = crumb::allocate_phases({2, 4}, {1.25, 0.25}, t.function(), false);
    ASSERT_TRUE(got.ok());
    EXPECT_TRUE(got->held);
    EXPECT_EQ(std::pair(got->prefill, got->decode), std::pair(3, 2));
    t.asked.clear();
    EXPECT_FALSE(crumb::allocate_phases({2, 4}, {1.25, 0.25}, t.function(), true)->held);
}

TEST(PhaseAllocation, RefusesWhatCannotBe) {
    const auto one = [](int, int) { return 1.0; };
    const auto code = [](const auto& r) { return r ? errc::ok : r.error().code(); };
    EXPECT_EQ(code(crumb::allocate_phases({2, 5}, {1, 0}, one)), errc::invalid_argument);
    EXPECT_EQ(code(crumb::allocate_phases({2, 4}, {NAN, 0}, one)), errc::invalid_argument);
    EXPECT_EQ(code(crumb::allocate_phases({2, 4}, {1, -1}, one)), errc::invalid_argument);
    EXPECT_EQ(code(crumb::allocate_phases({2, 4}, {1, INFINITY}, one)), errc::invalid_argument);
    EXPECT_EQ(code(crumb::allocate_phases({2, 4}, {1, 0}, nullptr)), errc::invalid_argument);
    for (const bool monotone : {true, false}) {
        std::size_t calls = 0;
        const auto nan = crumb::allocate_phases(
            {2, 4}, {1, 0}, [&](int, int) { return ++calls == 2 ? NAN : 0.0; }, monotone);
        EXPECT_EQ(code(nan), errc::not_finite);
        EXPECT_EQ(calls, 2u);
        const auto broken = crumb::allocate_phases(
            {2, 4}, {1, 0},
            [](int, int) -> crumb::result<double> { return status::error(errc::corrupt, "no text"); },
            monotone);
        ASSERT_EQ(code(broken), errc::corrupt);
        EXPECT_STREQ(broken.message(), "no text");
    }
}

// ---- schedules ----

/// All schedules of a space, by counting.
std::vector<precision_schedule> every_schedule(const schedule_space& s) {
    std::vector<precision_schedule> all;
    const std::size_t count = s.precisions.size();
    std::vector<std::size_t> at(count - 1, 0);
    for (;;) {
        std::vector<precision_phase> phases = {{0, s.precisions[0]}};
        for (std::size_t i = 1; i < count; ++i)
            phases.push_back({crumb::grid_step(at[i - 1], s.points, s.length), s.precisions[i]});
        if (std::is_sorted(at.begin(), at.end()))
            all.push_back(*precision_schedule::make(s.stored, s.prefill, phases, s.length));
        std::size_t i = 0;
        while (i < at.size() && ++at[i] == s.points)
            at[i++] = 0;
        if (i == at.size())
            return all;
    }
}

/// A quality that more bits never lower: every step gains by its own amounts, then a random monotone curve.
struct monotone_quality {
    std::vector<double> gain[5];
    std::set<std::string> asked;

    monotone_quality(std::size_t steps, splitmix64& random) {
        for (int bits = 2; bits <= 4; ++bits)
            for (std::size_t i = 0; i < steps; ++i) {
                const double step = random.uniform() / double(1 + i);
                gain[bits].push_back(bits == 2 ? step : gain[bits - 1][i] + step);
            }
    }
    double operator()(const precision_schedule& s) const {
        double q = 0;
        for (std::size_t i = 0; i < gain[2].size(); ++i)
            q += gain[s.next(i)][i];
        return std::floor(q * 4) / 4; // plateaus
    }
};

std::string name(const precision_schedule& s) {
    std::string out;
    for (std::size_t i = 0; i < s.length(); ++i)
        out += static_cast<char>('0' + s.next(i));
    return out;
}

/// The fewest bits of a schedule that holds a target; none.
template <class Quality>
std::optional<std::size_t> min_bits(const schedule_space& s, const Quality& quality, double least) {
    std::optional<std::size_t> best;
    for (const auto& x : every_schedule(s))
        if (quality(x) >= least && (!best || x.total_bits(s.length) < *best))
            best = x.total_bits(s.length);
    return best;
}

const schedule_space spaces[] = {
    {.precisions = {4, 3, 2}, .length = 48, .points = 9},
    {.precisions = {4, 3, 2}, .length = 50, .points = 17},
    {.precisions = {4, 2}, .length = 64, .points = 33},
    {.precisions = {3, 2}, .length = 7, .points = 8},
    {.precisions = {4, 3, 2}, .length = 5, .points = 2},
    {.precisions = {3}, .length = 5, .points = 2},
};

TEST(ScheduleSolver, SpaceIsThatOfThePaper) {
    for (const schedule_space& s : spaces) {
        const auto solver = schedule_solver::make(s, [](const precision_schedule&) { return 0.0; });
        ASSERT_TRUE(solver.ok()) << solver.message();
        EXPECT_EQ(solver->space(), every_schedule(s).size());
    }
    // Without a choice of precisions, all that are stored.
    const auto all = schedule_solver::make({.stored = {3, 4}, .prefill = 4, .length = 8, .points = 5},
                                           [](const precision_schedule&) { return 0.0; });
    EXPECT_EQ(all->space(), 5u);
}

TEST(ScheduleSolver, FindsTheOptimumOfMonotoneQualities) {
    for (const schedule_space& s : spaces) {
        SCOPED_TRACE(std::to_string(s.points) + " points, " + std::to_string(s.precisions.size()));
        splitmix64 random(s.points);
        std::size_t evaluations = 0, spaces_searched = 0;
        for (int round = 0; round < 60; ++round) {
            monotone_quality quality(s.length, random);
            const double worst = quality(every_schedule(s).front()), best = quality(every_schedule(s).back());
            const double least = worst + (best - worst) * (random.uniform() * 1.2 - 0.1);
            const auto want = min_bits(s, quality, least);
            for (const bool monotone : {true, false}) {
                std::set<std::string> asked;
                auto solver = *schedule_solver::make(s, [&](const precision_schedule& x) {
                    EXPECT_TRUE(asked.insert(name(x)).second) << name(x) << " twice";
                    return quality(x);
                });
                const auto got = solver.solve({least + 0.5, 0.5}, monotone);
                ASSERT_TRUE(got.ok()) << got.message();
                ASSERT_EQ(got->held, want.has_value());
                EXPECT_EQ(got->schedule.total_bits(s.length),
                          want.value_or(s.length * unsigned(s.precisions[0])));
                EXPECT_EQ(got->quality, quality(got->schedule));
                EXPECT_EQ(got->average_bits, got->schedule.average_bits(s.length));
                EXPECT_EQ(got->evaluations, asked.size());
                EXPECT_EQ(got->space, every_schedule(s).size());
                EXPECT_EQ(solver.evaluations(), asked.size());
                if (monotone) {
                    evaluations += got->evaluations;
                    spaces_searched += got->space;
                }
            }
        }
        if (s.points > 8) {
            EXPECT_LT(evaluations * 4, spaces_searched);
        }
    }
}

TEST(ScheduleSolver, BisectsTwoPrecisions) {
    const schedule_space s = {.precisions = {4, 2}, .length = 64, .points = 33};
    for (std::size_t switch_at = 0; switch_at <= 64; switch_at += 2) {
        auto solver = *schedule_solver::make(s, [&](const precision_schedule& x) {
            return x.total_bits(64) >= 128 + 2 * switch_at ? 1.0 : 0.0;
        });
        const auto got = solver.solve({1, 0});
        ASSERT_TRUE(got.ok() && got->held);
        EXPECT_EQ(got->schedule.total_bits(64), 128 + 2 * switch_at);
        EXPECT_LE(got->evaluations, 6u) << "of 33";
    }
}

TEST(ScheduleSolver, PrunesWhatIsRuledOut) {
    const schedule_space s = {.precisions = {4, 3, 2}, .length = 50, .points = 17};
    splitmix64 random(5);
    for (int round = 0; round < 20; ++round) {
        monotone_quality quality(s.length, random);
        const double least = quality(*precision_schedule::high_then_low({.length = 50}, random.below(51)));
        std::vector<precision_schedule> failed;
        std::size_t fewest = std::numeric_limits<std::size_t>::max();
        auto solver = *schedule_solver::make(s, [&](const precision_schedule& x) {
            EXPECT_LT(x.total_bits(50), fewest);
            for (const auto& f : failed) {
                bool below = true;
                for (std::size_t i = 0; i < 50; ++i)
                    below = below && x.next(i) <= f.next(i);
                EXPECT_FALSE(below) << name(x) << " is below " << name(f);
            }
            const double q = quality(x);
            if (q >= least)
                fewest = x.total_bits(50);
            else
                failed.push_back(x);
            return q;
        });
        ASSERT_TRUE(solver.solve({least, 0}).ok());
        EXPECT_FALSE(failed.empty());
    }
}

TEST(ScheduleSolver, RemembersAcrossTargets) {
    const schedule_space s = {.precisions = {4, 3, 2}, .length = 48, .points = 13};
    splitmix64 random(9);
    const monotone_quality quality(s.length, random);
    const double best = quality(precision_schedule());
    std::set<std::string> asked;
    auto solver = *schedule_solver::make(s, [&](const precision_schedule& x) {
        EXPECT_TRUE(asked.insert(name(x)).second) << name(x) << " twice";
        return quality(x);
    });
    std::size_t sum = 0;
    for (const double epsilon : {0.5, 0.25, 2.0, 0.0, 1.0, 0.5}) {
        const auto got = solver.solve({best, epsilon});
        ASSERT_TRUE(got.ok() && got->held);
        EXPECT_EQ(got->schedule.total_bits(48), min_bits(s, quality, best - epsilon));
        sum += got->evaluations;
    }
    EXPECT_EQ(sum, asked.size());
    EXPECT_EQ(solver.solve({best, 0.25})->evaluations, 0u);
}

TEST(ScheduleSolver, IsRightWithoutMonotony) {
    const schedule_space s = {.precisions = {4, 3, 2}, .length = 48, .points = 9};
    splitmix64 random(11);
    std::size_t misled = 0;
    for (int round = 0; round < 100; ++round) {
        std::map<std::string, double> table;
        for (const auto& x : every_schedule(s))
            table[name(x)] = random.uniform();
        const auto quality = [&](const precision_schedule& x) { return table.at(name(x)); };
        const auto want = min_bits(s, quality, 0.9);
        auto solver = *schedule_solver::make(s, quality);
        const auto got = solver.solve({0.9, 0}, false);
        ASSERT_TRUE(got.ok());
        ASSERT_EQ(got->held, want.has_value());
        if (want) {
            EXPECT_EQ(got->schedule.total_bits(48), *want);
        }
        const auto pruned = schedule_solver::make(s, quality)->solve({0.9, 0}, true);
        misled +=
            pruned->held != got->held || pruned->schedule.total_bits(48) != got->schedule.total_bits(48);
    }
    EXPECT_GT(misled, 0u) << "these qualities do not need the option";
}

TEST(ScheduleSolver, TellsThatNothingHolds) {
    for (const bool monotone : {true, false}) {
        auto solver = *schedule_solver::make({.precisions = {4, 3}, .prefill = 3, .length = 8, .points = 5},
                                             [](const precision_schedule& s) { return s.average_bits(8); });
        const auto got = solver.solve({4.5, 0.25}, monotone);
        ASSERT_TRUE(got.ok());
        EXPECT_FALSE(got->held);
        EXPECT_EQ(got->schedule, *precision_schedule::constant({2, 4}, 3, 4, 8));
        EXPECT_EQ(got->quality, 4.0);
    }
}

TEST(ScheduleSolver, RefusesBadParameters) {
    const auto zero = [](const precision_schedule&) { return 0.0; };
    const auto code = [&](const schedule_space& s) {
        const auto made = schedule_solver::make(s, zero);
        return made ? errc::ok : made.error().code();
    };
    EXPECT_EQ(code({.length = 8, .points = 5}), errc::ok);
    EXPECT_EQ(code({.length = 8, .points = 1}), errc::invalid_argument);
    EXPECT_EQ(code({.length = 8, .points = 10}), errc::invalid_argument);
    EXPECT_EQ(code({.length = 0, .points = 2}), errc::invalid_argument);
    EXPECT_EQ(code({.stored = {2, 5}, .length = 8, .points = 5}), errc::invalid_argument);
    EXPECT_EQ(code({.stored = {2, 3}, .prefill = 4, .length = 8, .points = 5}), errc::invalid_argument);
    EXPECT_EQ(code({.stored = {3, 4}, .precisions = {4, 2}, .length = 8, .points = 5}),
              errc::invalid_argument);
    EXPECT_EQ(code({.precisions = {2, 4}, .length = 8, .points = 5}), errc::invalid_argument);
    EXPECT_EQ(code({.precisions = {3, 3}, .length = 8, .points = 5}), errc::invalid_argument);
    EXPECT_EQ(code({.length = 5000, .points = 1025}), errc::invalid_argument);
    EXPECT_EQ(code({.precisions = {4, 2}, .length = 1 << 20, .points = (1 << 19) + 1}),
              errc::invalid_argument);

    EXPECT_EQ(schedule_solver::make({.length = 8, .points = 5}, nullptr).error().code(),
              errc::invalid_argument);

    for (const bool monotone : {true, false}) {
        auto solver = *schedule_solver::make({.length = 8, .points = 5}, zero);
        for (const quality_target& t : {quality_target{NAN, 0}, {1, NAN}, {INFINITY, 0}, {1, -0.1}})
            EXPECT_EQ(solver.solve(t, monotone).error().code(), errc::invalid_argument);
        EXPECT_EQ(solver.evaluations(), 0u);
        auto nan =
            *schedule_solver::make({.length = 8, .points = 5}, [](const precision_schedule&) { return NAN; });
        EXPECT_EQ(nan.solve({1, 0}, monotone).error().code(), errc::not_finite);
        auto broken = *schedule_solver::make({.length = 8, .points = 5},
                                             [](const precision_schedule&) -> crumb::result<double> {
                                                 return status::error(errc::corrupt, "no text");
                                             });
        EXPECT_STREQ(broken.solve({1, 0}, monotone).message(), "no text");
    }
}

} // namespace
} // namespace test_schedule_solver
