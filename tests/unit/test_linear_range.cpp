// Statistics of activations, linear ranges, and how coverage is shared.
#include <crumb/offline/common/random.hpp>
#include <crumb/offline/folding/coverage.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <numbers>

namespace test_linear_range {
namespace {

using crumb::activation_statistics;
using crumb::best_range;
using crumb::best_ranges;
using crumb::coverage_options;
using crumb::curve_point;
using crumb::errc;
using crumb::error_curve;
using crumb::layer_curves;
using crumb::linear_range;
using crumb::matrix;
using crumb::matrix_view;
using crumb::search_ranges;
using crumb::share_coverage;
using crumb::splitmix64;

double gelu(double u) { return u / 2 * (1 + std::erf(u / std::numbers::sqrt2)); }

double normal(splitmix64& random) {
    return std::sqrt(-2 * std::log(1 - random.uniform())) * std::cos(2 * std::numbers::pi * random.uniform());
}

/// Rows of one or more neurons: tested values, inputs, outputs.
struct sample {
    std::size_t neurons = 1;
    std::vector<float> v, u, s;

    void push(double tested, double input, const std::function<double(double)>& sigma = gelu) {
        v.push_back(static_cast<float>(tested));
        u.push_back(static_cast<float>(input));
        s.push_back(static_cast<float>(sigma(double{u.back()})));
    }
    std::size_t rows() const { return v.size() / neurons; }
    matrix_view<const float> view(const std::vector<float>& x, std::size_t first, std::size_t size) const {
        return matrix(x.data() + first * neurons, size, neurons);
    }
    crumb::status add_to(activation_statistics& a, std::size_t first, std::size_t size) const {
        return a.add(view(v, first, size), view(u, first, size), view(s, first, size));
    }
    activation_statistics statistics(std::size_t bins) const {
        auto a = activation_statistics::make(neurons, bins).value();
        EXPECT_TRUE(add_to(a, 0, rows()));
        return a;
    }
};

/// A neuron whose tested values are near to its inputs, some far out.
sample noisy_neuron(std::size_t rows, std::uint64_t seed) {
    splitmix64 random(seed);
    sample x;
    for (std::size_t i = 0; i < rows; ++i) {
        const double u = i % 40 == 0 ? 3 * normal(random) : 0.8 * normal(random) - 0.7;
        x.push(u + 0.1 * normal(random), u);
    }
    return x;
}

// ---- statistics ----

TEST(ActivationStatistics, BinsHoldTheRowsBetweenTheirEdges) {
    sample x = noisy_neuron(3000, 1);
    const auto a = x.statistics(64);
    const auto& h = a.histogram();
    EXPECT_GE(h.used(0), 32u);
    EXPECT_LE(h.used(0), 64u);
    EXPECT_EQ(h.min(0), double{*std::min_element(x.v.begin(), x.v.end())});
    EXPECT_EQ(h.max(0), double{*std::max_element(x.v.begin(), x.v.end())});
    double rows = 0;
    for (std::size_t i = 0; i < h.used(0); ++i) {
        crumb::activation_moments want;
        for (std::size_t r = 0; r < x.rows(); ++r)
            if (double{x.v[r]} >= h.edge(0, i) && double{x.v[r]} < h.edge(0, i + 1)) {
                const double u = double{x.u[r]}, s = double{x.s[r]};
                want.add({1, u, u * u, s, u * s, s * s});
            }
        const auto& got = h.bin(0, i);
        EXPECT_EQ(got.count, want.count) << i;
        // Sums of at most 3000 terms below 100.
        const double rounding = 3000 * 3000 * 100 * 0x1p-53;
        EXPECT_NEAR(got.u, want.u, rounding) << i;
        EXPECT_NEAR(got.uu, want.uu, rounding) << i;
        EXPECT_NEAR(got.s, want.s, rounding) << i;
        EXPECT_NEAR(got.us, want.us, rounding) << i;
        EXPECT_NEAR(got.ss, want.ss, rounding) << i;
        EXPECT_EQ(double{static_cast<float>(h.edge(0, i))}, h.edge(0, i)) << i;
        rows += got.count;
    }
    EXPECT_EQ(rows, 3000.0);
}

TEST(ActivationStatistics, DoNotDependOnTheOrderOfBatches) {
    // Multiples of 2^-6 below 2^4: all sums are exact.
    splitmix64 random(2);
    sample x;
    x.neurons = 19;
    const auto square = [](double u) { return u * u / 16; };
    for (std::size_t i = 0; i < 200 * x.neurons; ++i) {
        const double u = (static_cast<double>(random.below(2048)) - 1024) * 0x1p-6 / (i % 7 == 0 ? 1 : 8);
        x.push(std::floor(u * 64) / 64, std::floor(u * 64) / 64, square);
    }
    const auto whole = x.statistics(32);
    auto backwards = activation_statistics::make(x.neurons, 32).value();
    auto first = activation_statistics::make(x.neurons, 32).value();
    auto second = first, none = first;
    for (std::size_t b = 0; b < 10; ++b) {
        ASSERT_TRUE(x.add_to(backwards, (9 - b) * 20, 20));
        ASSERT_TRUE(x.add_to(b % 3 == 0 ? first : second, b * 20, 20));
    }
    ASSERT_TRUE(second.merge(first));
    ASSERT_TRUE(second.merge(none));
    ASSERT_TRUE(none.merge(second));
    for (const auto* other : {&backwards, &second, &none}) {
        ASSERT_EQ(other->rows(), whole.rows());
        for (std::size_t n = 0; n < x.neurons; ++n) {
            const auto &a = whole.histogram(), &b = other->histogram();
            ASSERT_EQ(a.used(n), b.used(n));
            for (std::size_t i = 0; i < a.used(n); ++i) {
                EXPECT_EQ(a.edge(n, i), b.edge(n, i));
                EXPECT_EQ(a.bin(n, i).count, b.bin(n, i).count);
                EXPECT_EQ(a.bin(n, i).uu, b.bin(n, i).uu);
                EXPECT_EQ(a.bin(n, i).us, b.bin(n, i).us);
                EXPECT_EQ(a.bin(n, i).ss, b.bin(n, i).ss);
            }
        }
    }
}

TEST(ActivationStatistics, GridsReachFromTinyToHuge) {
    sample x;
    for (const double v : {0.0, 1e-44, -3e-39, 2e-7, -1.0, 77.0, 3e38, -3.4e38})
        x.push(v, 0);
    auto a = activation_statistics::make(1, 16).value();
    for (std::size_t r = 0; r < x.rows(); ++r) {
        ASSERT_TRUE(x.add_to(a, r, 1));
        const auto& h = a.histogram();
        EXPECT_EQ(h.count(0), static_cast<double>(r + 1));
        EXPECT_LE(h.used(0), 16u);
        EXPECT_LE(h.edge(0, 0), h.min(0));
        EXPECT_GT(h.edge(0, h.used(0)), h.max(0));
        EXPECT_GT(h.bin(0, 0).count, 0.0);
        EXPECT_GT(h.bin(0, h.used(0) - 1).count, 0.0);
    }
    EXPECT_GE(a.histogram().used(0), 8u);
}

TEST(ActivationStatistics, QuantilesAreExactUpToABin) {
    sample x = noisy_neuron(4001, 3);
    const auto a = x.statistics(256);
    std::sort(x.v.begin(), x.v.end());
    for (const double p : {0.0, 0.01, 0.25, 0.5, 0.65, 0.9, 0.999, 1.0}) {
        const double rank = p * 4001;
        const auto below = static_cast<std::size_t>(std::clamp(std::floor(rank) - 1, 0.0, 4000.0));
        const auto above = static_cast<std::size_t>(std::clamp(std::ceil(rank), 0.0, 4000.0));
        EXPECT_GE(a.quantile(0, p), double{x.v[below]} - a.histogram().width(0)) << p;
        EXPECT_LE(a.quantile(0, p), double{x.v[above]} + a.histogram().width(0)) << p;
    }
    EXPECT_EQ(a.quantile(0, 0), double{x.v.front()});
    EXPECT_EQ(a.quantile(0, 1), double{x.v.back()});
}

TEST(ActivationStatistics, CentroidIsTheModeOfTheDensity) {
    splitmix64 random(4);
    sample x;
    for (std::size_t i = 0; i < 5000; ++i) {
        const double v = i % 10 < 7 ? 0.4 * normal(random) - 2 : 0.3 * normal(random) + 3;
        x.push(v, v);
    }
    const auto a = x.statistics(256);
    const auto& h = a.histogram();
    std::vector<double> points;
    for (std::size_t i = 0; i < h.used(0); ++i)
        points.push_back(h.center(0, i));
    const auto density = a.density(0, points);
    const double c = a.centroid(0);
    const double at_centroid = a.density(0, std::vector{c})[0];
    // Kernels are cut off where they are below 2e-8 of their height.
    EXPECT_GE(at_centroid * (1 + 1e-6), *std::max_element(density.begin(), density.end()));
    // Heights 0.7 / 0.4 and 0.3 / 0.3: the first is the mode, even if the rows' mean is between them.
    EXPECT_NEAR(c, -2, 0.4);
    // Its integral, by a rule that is exact for sums of Gaussians as wide as a step and wider (to 1e-8).
    const double step = h.width(0);
    double sum = 0;
    for (double v = h.min(0) - 8 * a.bandwidth(0); v < h.max(0) + 8 * a.bandwidth(0); v += step)
        sum += step * a.density(0, std::vector{v})[0];
    EXPECT_NEAR(sum, 1, 1e-7);
}

TEST(ActivationStatistics, ShortestShareIsThatOfTheSortedRows) {
    sample x = noisy_neuron(4000, 5);
    const auto a = x.statistics(256);
    std::sort(x.v.begin(), x.v.end());
    const double span = double{x.v.back()} - double{x.v.front()};
    for (const double share : {0.3, 0.65, 0.95}) {
        const auto rows = static_cast<std::size_t>(share * 4000);
        double shortest = span;
        for (std::size_t i = 0; i + rows < x.v.size(); ++i)
            shortest = std::min(shortest, double{x.v[i + rows]} - double{x.v[i]});
        EXPECT_NEAR(a.shortest_share(0, share), shortest / span, 2 * a.histogram().width(0) / span) << share;
    }
    EXPECT_EQ(a.shortest_share(0, 1), 1.0);
    // Of 16 equal bins, the four in the middle have half the rows.
    sample y;
    for (std::size_t i = 0; i < 16; ++i)
        for (std::size_t k = 0; k < (i >= 6 && i < 10 ? 12u : 4u); ++k)
            y.push(static_cast<double>(i), 0);
    // Values span 15 units, in bins of one unit of which the last ends with its values.
    EXPECT_NEAR(y.statistics(16).shortest_share(0, 0.5), 4.0 / 15, 1e-12);
    // One that ends with the greatest value and begins within a bin: half of the last bin but one.
    sample z;
    for (std::size_t i = 0; i < 16; ++i)
        for (std::size_t k = 0; k < (i >= 14 ? 10u : 1u); ++k)
            z.push(static_cast<double>(i), 0);
    EXPECT_NEAR(z.statistics(16).shortest_share(0, 15.0 / 34), 0.5 / 15, 1e-12);
}

TEST(ActivationStatistics, NeuronsThatDoNotVary) {
    for (const double c : {0.0, -0.3, 1e30}) {
        sample x;
        for (std::size_t i = 0; i < 40; ++i)
            x.push(c, c, [](double u) { return u; });
        const auto a = x.statistics(16);
        EXPECT_EQ(a.centroid(0), double{static_cast<float>(c)});
        EXPECT_EQ(a.quantile(0, 0.3), double{static_cast<float>(c)});
        EXPECT_EQ(a.shortest_share(0, 0.65), 0.0);
    }
}

TEST(ActivationStatistics, RefuseAndAddNothing) {
    EXPECT_EQ(activation_statistics::make(0).error().code(), errc::invalid_argument);
    EXPECT_EQ(activation_statistics::make(4, 100).error().code(), errc::invalid_argument);
    EXPECT_EQ(activation_statistics::make(4, 8).error().code(), errc::invalid_argument);
    auto a = activation_statistics::make(2, 16).value();
    EXPECT_TRUE(std::isnan(a.quantile(0, 0.5)));
    EXPECT_TRUE(std::isnan(a.centroid(1)));
    std::vector<float> x(6, 1.0f);
    EXPECT_EQ(a.add(matrix(x.data(), 3, 2), matrix(x.data(), 2, 2), matrix(x.data(), 3, 2)).code(),
              errc::bad_shape);
    EXPECT_EQ(a.add(matrix(x.data(), 2, 3), matrix(x.data(), 2, 3), matrix(x.data(), 2, 3)).code(),
              errc::bad_shape);
    for (std::size_t bad = 0; bad < 3; ++bad)
        for (const float value : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
            std::vector<float> m[3] = {x, x, x};
            m[bad][5] = value;
            EXPECT_EQ(
                a.add(matrix(m[0].data(), 3, 2), matrix(m[1].data(), 3, 2), matrix(m[2].data(), 3, 2)).code(),
                errc::not_finite);
        }
    EXPECT_EQ(a.rows(), 0u);
    EXPECT_EQ(a.histogram().used(0), 0u);
    EXPECT_EQ(a.merge(activation_statistics::make(2, 32).value()).code(), errc::bad_shape);
    EXPECT_EQ(a.merge(activation_statistics::make(3, 16).value()).code(), errc::bad_shape);
}

// ---- ranges ----

/// Least squares over the rows with low <= v < high, from the rows themselves.
linear_range direct(const sample& x, double low, double high) {
    double n = 0, u = 0, s = 0, uu = 0, us = 0;
    const auto inside = [&](std::size_t r) { return double{x.v[r]} >= low && double{x.v[r]} < high; };
    for (std::size_t r = 0; r < x.rows(); ++r)
        if (inside(r)) {
            n += 1;
            u += double{x.u[r]};
            s += double{x.s[r]};
        }
    linear_range out = {low, high};
    if (n == 0)
        return out;
    for (std::size_t r = 0; r < x.rows(); ++r)
        if (inside(r)) {
            uu += (double{x.u[r]} - u / n) * (double{x.u[r]} - u / n);
            us += (double{x.u[r]} - u / n) * (double{x.s[r]} - s / n);
        }
    out.slope = uu > 0 ? us / uu : 0;
    out.intercept = s / n - out.slope * u / n;
    for (std::size_t r = 0; r < x.rows(); ++r)
        if (inside(r)) {
            const double e = double{x.s[r]} - out.slope * double{x.u[r]} - out.intercept;
            out.error += e * e / static_cast<double>(x.rows());
        }
    out.covered = n / static_cast<double>(x.rows());
    return out;
}

void expect_direct(const linear_range& r, const sample& x) {
    const linear_range want = direct(x, r.low, r.high);
    EXPECT_EQ(r.covered, want.covered);
    // Prefix sums of 2000 squares below 100 cancel, sums of fewer rows are divided by their spread.
    EXPECT_NEAR(r.error, want.error, 1e-12);
    if (want.covered * static_cast<double>(x.rows()) >= 5) {
        EXPECT_NEAR(r.slope, want.slope, 1e-7);
        EXPECT_NEAR(r.intercept, want.intercept, 1e-7);
    }
}

TEST(LinearRange, LinesAreTheLeastSquaresOfTheRows) {
    const sample x = noisy_neuron(2000, 6);
    const auto a = x.statistics(64);
    const auto greedy = search_ranges(a, 0);
    ASSERT_TRUE(greedy);
    ASSERT_GT(greedy->size(), 20u);
    for (const auto& r : *greedy)
        expect_direct(r, x);
    const auto best = best_ranges(a, 0);
    ASSERT_TRUE(best);
    for (const auto& r : *best)
        expect_direct(r, x);
}

TEST(LinearRange, GrowsFromTheCentroidWhereThatCostsLeast) {
    const sample x = noisy_neuron(2000, 7);
    const auto a = x.statistics(64);
    const auto& h = a.histogram();
    const auto ranges = search_ranges(a, 0).value();
    EXPECT_LE(ranges[0].low, a.centroid(0));
    EXPECT_GE(ranges[0].high, a.centroid(0));
    EXPECT_EQ(ranges.back().low, -HUGE_VAL);
    EXPECT_EQ(ranges.back().high, HUGE_VAL);
    EXPECT_EQ(ranges.back().covered, 1.0);
    // The next edge beyond which there are more rows, or the end.
    const auto lower = [&](double low) {
        double edge = -HUGE_VAL;
        for (std::size_t i = 1; i < h.used(0); ++i)
            if (h.edge(0, i) < low && h.bin(0, i).count > 0)
                edge = h.edge(0, i);
        return edge;
    };
    const auto higher = [&](double high) {
        for (std::size_t i = 0; i + 1 < h.used(0); ++i)
            if (h.edge(0, i) >= high && h.bin(0, i).count > 0)
                return h.edge(0, i + 1);
        return HUGE_VAL;
    };
    for (std::size_t i = 1; i < ranges.size(); ++i) {
        const auto &before = ranges[i - 1], &r = ranges[i];
        const bool left = r.low < before.low;
        ASSERT_NE(left, r.high > before.high);
        EXPECT_EQ(left ? r.low : r.high, left ? lower(before.low) : higher(before.high));
        EXPECT_GT(r.covered, before.covered);
        EXPECT_GE(r.error, before.error - 1e-12);
        if (left ? before.high == HUGE_VAL : before.low == -HUGE_VAL)
            continue;
        const linear_range other =
            left ? direct(x, before.low, higher(before.high)) : direct(x, lower(before.low), before.high);
        EXPECT_LE((r.error - before.error) / (r.covered - before.covered),
                  (other.error - before.error) / (other.covered - before.covered) + 1e-8)
            << i;
    }
}

TEST(LinearRange, BestRangeIsThatOfAllRuns) {
    for (std::uint64_t seed = 10; seed < 14; ++seed) {
        const sample x = noisy_neuron(300, seed);
        const auto a = x.statistics(16);
        const auto& h = a.histogram();
        const auto greedy = search_ranges(a, 0).value();
        const auto hull = best_ranges(a, 0).value();
        const double weight = 2.5;
        for (const double multiplier : {0.0, 1e-5, 1e-3, 0.01, 0.03, 0.1, 1.0, 10.0}) {
            const auto cost = [&](const linear_range& r) {
                return weight * r.error + multiplier * (1 - r.covered);
            };
            const auto got = best_range(a, 0, weight, multiplier);
            ASSERT_TRUE(got);
            double least = multiplier;
            for (std::size_t i = 0; i < h.used(0); ++i)
                for (std::size_t j = i + 1; j <= h.used(0); ++j)
                    least = std::min(least, cost(direct(x, h.edge(0, i), h.edge(0, j))));
            EXPECT_NEAR(cost(*got), least, 1e-12) << multiplier;
            EXPECT_NEAR(cost(direct(x, got->low, got->high)), least, 1e-12) << multiplier;
            for (const auto& r : greedy)
                EXPECT_LE(cost(*got), cost(r) + 1e-12) << multiplier;
            double of_hull = multiplier;
            for (const auto& r : hull)
                of_hull = std::min(of_hull, cost(r));
            EXPECT_NEAR(of_hull, least, 1e-12) << multiplier;
        }
        EXPECT_EQ(best_range(a, 0, weight, 1e6)->covered, 1.0);
    }
}

TEST(LinearRange, BestRangeFindsWhatTheGreedySearchMisses) {
    // Most rows lie where the function is curved; far off it is straight.
    sample x;
    splitmix64 random(15);
    for (std::size_t i = 0; i < 1000; ++i) {
        const double u = i % 5 < 3 ? normal(random) * 0.3 : 6 + random.uniform() * 2;
        x.push(u, u);
    }
    const auto a = x.statistics(64);
    const double multiplier = 0.001;
    const auto cost = [&](const linear_range& r) { return r.error + multiplier * (1 - r.covered); };
    double greedy = multiplier;
    const auto ranges = search_ranges(a, 0).value();
    for (const auto& r : ranges)
        greedy = std::min(greedy, cost(r));
    EXPECT_LT(cost(best_range(a, 0, 1, multiplier).value()), greedy);
}

TEST(LinearRange, WhatIsFreeIsCoveredAndWhatIsNotIsLeft) {
    sample dead, curved;
    for (std::size_t i = 0; i < 64; ++i) {
        dead.push(-0.1 * static_cast<double>(i), -0.1 * static_cast<double>(i), [](double) { return 0.0; });
        // Four inputs in every bin, not on a line.
        const double u = static_cast<double>(i) / 4;
        curved.push(u, u, [](double x) { return x * x; });
    }
    EXPECT_EQ(best_range(dead.statistics(16), 0, 1, 0)->covered, 1.0);
    const auto nothing = best_range(curved.statistics(16), 0, 1, 0).value();
    EXPECT_EQ(nothing.covered, 0.0);
    EXPECT_EQ(nothing.error, 0.0);
    EXPECT_EQ(nothing.low, nothing.high);
}

TEST(LinearRange, ErrorCurveIsTheLowerHull) {
    const auto a = noisy_neuron(2000, 16).statistics(128);
    const auto ranges = search_ranges(a, 0).value();
    const auto curve = error_curve(ranges, 3);
    ASSERT_GT(curve.size(), 3u);
    EXPECT_EQ(curve[0].covered, 0.0);
    EXPECT_EQ(curve[0].error, 0.0);
    EXPECT_EQ(curve[0].range, curve_point::nothing);
    EXPECT_EQ(curve.back().covered, 1.0);
    for (std::size_t i = 1; i < curve.size(); ++i) {
        EXPECT_EQ(curve[i].covered, ranges[curve[i].range].covered);
        EXPECT_EQ(curve[i].error, 3 * ranges[curve[i].range].error);
        const double slope =
            (curve[i].error - curve[i - 1].error) / (curve[i].covered - curve[i - 1].covered);
        if (i + 1 < curve.size()) {
            EXPECT_LT(slope,
                      (curve[i + 1].error - curve[i].error) / (curve[i + 1].covered - curve[i].covered));
        }
        for (const auto& r : ranges)
            EXPECT_GE(3 * r.error, curve[i].error + slope * (r.covered - curve[i].covered) - 1e-12);
    }
    const auto one = error_curve({}, 1);
    EXPECT_EQ(one.size(), 1u);
}

TEST(LinearRange, ConstantAndStraightNeurons) {
    sample constant, straight, spread;
    splitmix64 random(17);
    for (std::size_t i = 0; i < 64; ++i) {
        constant.push(-0.75, -0.75);
        spread.push(random.uniform(), 0.5);
        straight.push(1 + random.uniform(), 1 + random.uniform(), [](double u) { return std::max(u, 0.0); });
    }
    for (const auto* x : {&constant, &spread}) {
        const auto ranges = search_ranges(x->statistics(32), 0).value();
        const auto& r = ranges.back();
        EXPECT_EQ(r.low, -HUGE_VAL);
        EXPECT_EQ(r.high, HUGE_VAL);
        EXPECT_EQ(r.covered, 1.0);
        EXPECT_EQ(r.slope, 0.0);
        EXPECT_NEAR(r.intercept, double{x->s[0]}, 1e-15);
        EXPECT_NEAR(r.error, 0, 1e-15);
    }
    EXPECT_EQ(search_ranges(constant.statistics(32), 0)->size(), 1u);
    const auto r = best_range(straight.statistics(32), 0, 1, 0.01).value();
    EXPECT_EQ(r.covered, 1.0);
    EXPECT_NEAR(r.slope, 1, 1e-12);
    EXPECT_NEAR(r.intercept, 0, 1e-12);
}

TEST(LinearRange, RefusesTooFewRowsAndBadArguments) {
    sample x = noisy_neuron(crumb::min_range_rows - 1, 18);
    EXPECT_EQ(search_ranges(x.statistics(16), 0).error().code(), errc::invalid_argument);
    x = noisy_neuron(crumb::min_range_rows, 18);
    const auto a = x.statistics(16);
    EXPECT_TRUE(search_ranges(a, 0));
    EXPECT_EQ(search_ranges(a, 1).error().code(), errc::invalid_argument);
    EXPECT_EQ(best_ranges(a, 1).error().code(), errc::invalid_argument);
    EXPECT_EQ(best_range(a, 0, -1, 1).error().code(), errc::invalid_argument);
    EXPECT_EQ(best_range(a, 0, 1, std::nan("")).error().code(), errc::invalid_argument);
}

// ---- coverage ----

/// Convex curves of a few points.
std::vector<std::vector<curve_point>> random_curves(std::size_t neurons, std::size_t points,
                                                    splitmix64& random) {
    std::vector<std::vector<curve_point>> out(neurons);
    for (auto& curve : out) {
        std::vector<double> steps(points);
        double all = 0, slope = 0;
        for (double& s : steps)
            all += s = 0.2 + random.uniform();
        curve.resize(1);
        for (std::size_t i = 0; i < points; ++i) {
            slope += random.uniform();
            const curve_point before = curve.back();
            curve.push_back({i + 1 == points ? 1.0 : before.covered + steps[i] / all,
                             before.error + slope * steps[i] / all, i});
        }
    }
    return out;
}

struct model {
    std::vector<std::vector<curve_point>> first, second;
    std::vector<layer_curves> layers() const { return {{first, 1.5}, {second, 0.4}}; }
};

TEST(Coverage, IsTheBestOfAllChoicesOfItsMean) {
    splitmix64 random(20);
    for (int round = 0; round < 40; ++round) {
        const model m = {random_curves(2, 4, random), random_curves(3, 3, random)};
        const auto layers = m.layers();
        coverage_options o;
        o.min = round % 2 == 0 ? 0 : 0.1;
        o.max = round % 4 < 2 ? 1 : 0.9;
        o.target = o.min + (o.max - o.min) * random.uniform();
        const auto c = share_coverage(layers, o);
        ASSERT_TRUE(c);
        std::vector<const std::vector<curve_point>*> curves;
        std::vector<double> weights;
        std::vector<std::size_t> chosen;
        for (std::size_t l = 0; l < 2; ++l)
            for (std::size_t n = 0; n < layers[l].neurons.size(); ++n) {
                curves.push_back(&layers[l].neurons[n]);
                weights.push_back(layers[l].weight);
                chosen.push_back(c->points[l][n]);
            }
        const auto allowed = [&](std::size_t k, std::size_t p) {
            const auto& curve = *curves[k];
            return curve[p].covered >= o.min &&
                   (curve[p].covered <= o.max || p == crumb::first_covering(curve, o.min));
        };
        // All choices within the bounds, point by point.
        std::vector<std::size_t> at(curves.size(), 0);
        double best = HUGE_VAL, error = 0, covered = 0, longest = 0;
        for (;;) {
            double e = 0, t = 0;
            bool good = true;
            for (std::size_t k = 0; k < at.size(); ++k) {
                good = good && allowed(k, at[k]);
                e += weights[k] * (*curves[k])[at[k]].error;
                t += (*curves[k])[at[k]].covered;
            }
            if (good && t / static_cast<double>(at.size()) >= c->mean - 1e-12)
                best = std::min(best, e);
            std::size_t k = 0;
            while (k < at.size() && ++at[k] == curves[k]->size())
                at[k++] = 0;
            if (k == at.size())
                break;
        }
        bool all_taken = true;
        for (std::size_t k = 0; k < at.size(); ++k) {
            EXPECT_TRUE(allowed(k, chosen[k]));
            error += weights[k] * (*curves[k])[chosen[k]].error;
            covered += (*curves[k])[chosen[k]].covered;
            all_taken = all_taken && (chosen[k] + 1 == curves[k]->size() || !allowed(k, chosen[k] + 1));
            for (std::size_t i = 1; i < curves[k]->size(); ++i)
                longest = std::max(longest, (*curves[k])[i].covered - (*curves[k])[i - 1].covered);
        }
        EXPECT_NEAR(c->error, error, 1e-12);
        EXPECT_NEAR(c->mean, covered / 5, 1e-12);
        EXPECT_NEAR(error, best, 1e-12);
        EXPECT_NEAR((2 * c->layers[0] + 3 * c->layers[1]) / 5, c->mean, 1e-12);
        if (!all_taken) {
            EXPECT_GE(c->mean, o.target - 1e-12);
        }
        if (o.min == 0) {
            EXPECT_LE(c->mean, o.target + longest / 5);
        }
    }
}

TEST(Coverage, OneMultiplierServesAllLayers) {
    splitmix64 random(21);
    const model m = {random_curves(30, 20, random), random_curves(20, 20, random)};
    const auto layers = m.layers();
    const auto c = share_coverage(layers, {.target = 0.6}).value();
    const auto uniform = crumb::uniform_coverage(layers, 0.6).value();
    for (std::size_t l = 0; l < 2; ++l)
        for (std::size_t n = 0; n < layers[l].neurons.size(); ++n) {
            const auto& curve = layers[l].neurons[n];
            const std::size_t i = c.points[l][n];
            const auto slope = [&](std::size_t k) {
                return layers[l].weight * (curve[k].error - curve[k - 1].error) /
                       (curve[k].covered - curve[k - 1].covered);
            };
            if (i > 0) {
                EXPECT_LE(slope(i), c.multiplier * (1 + 1e-12));
            }
            if (i + 1 < curve.size()) {
                EXPECT_GE(slope(i + 1), c.multiplier * (1 - 1e-12));
            }
            const std::size_t u = uniform.points[l][n];
            EXPECT_GE(curve[u].covered, 0.6);
            EXPECT_LT(curve[u - 1].covered, 0.6);
        }
    // Uniform coverage is a choice like others, and costs more at the same price of coverage.
    EXPECT_LT(c.error - 50 * c.multiplier * c.mean, uniform.error - 50 * c.multiplier * uniform.mean);
    EXPECT_GE(c.mean, 0.6);
    EXPECT_LT(c.mean, 0.61);
    // The layer whose errors cost less is covered more.
    EXPECT_GT(c.layers[1], c.layers[0]);
}

TEST(Coverage, HoldsItsBounds) {
    splitmix64 random(22);
    model m = {random_curves(30, 40, random), random_curves(20, 40, random)};
    // A neuron without a point between the bounds keeps the lower one.
    m.second.push_back({{0, 0}, {1, 5, 0}});
    const auto c = share_coverage(m.layers(), {.target = 0.7, .min = 0.5, .max = 0.8}).value();
    double least = 1, most = 0;
    for (std::size_t l = 0; l < 2; ++l)
        for (std::size_t n = 0; n < c.points[l].size() - l; ++n) {
            const double t = (l == 0 ? m.first : m.second)[n][c.points[l][n]].covered;
            least = std::min(least, t);
            most = std::max(most, t);
        }
    EXPECT_GE(least, 0.5);
    EXPECT_LE(most, 0.8);
    EXPECT_EQ(c.points[1].back(), 1u);
    const auto all = share_coverage(m.layers(), {.target = 1}).value();
    EXPECT_EQ(all.mean, 1.0);
    const auto none = share_coverage(m.layers(), {.target = 0}).value();
    EXPECT_EQ(none.mean, 0.0);
    EXPECT_EQ(none.multiplier, 0.0);
}

TEST(Coverage, RefusesBadTargetsAndCurves) {
    splitmix64 random(23);
    const model m = {random_curves(2, 4, random), random_curves(2, 4, random)};
    const auto layers = m.layers();
    const double nan = std::nan("");
    for (const coverage_options& o : {coverage_options{.target = 1.1},
                                      {.target = -0.1},
                                      {.target = nan},
                                      {.target = 0.5, .min = 0.6},
                                      {.target = 0.5, .max = 0.4},
                                      {.target = 0.5, .min = -1},
                                      {.target = 0.5, .max = 2}})
        EXPECT_EQ(share_coverage(layers, o).error().code(), errc::invalid_argument);
    EXPECT_EQ(crumb::uniform_coverage(layers, 2).error().code(), errc::invalid_argument);
    EXPECT_EQ(share_coverage({}).error().code(), errc::invalid_argument);
    const std::vector<std::vector<curve_point>> concave = {{{0, 0}, {0.5, 2}, {1, 3}}};
    const std::vector<std::vector<curve_point>> open = {{{0, 0}, {0.5, 2}}};
    const std::vector<std::vector<curve_point>> falling = {{{0, 0}, {0.5, -2}, {1, 0}}};
    for (const auto* curves : {&concave, &open, &falling}) {
        const std::vector<layer_curves> bad = {{m.first}, {*curves}};
        EXPECT_EQ(share_coverage(bad).error().code(), errc::invalid_argument);
    }
    const std::vector<layer_curves> weightless = {{m.first, 0.0}};
    EXPECT_EQ(share_coverage(weightless).error().code(), errc::invalid_argument);
}

} // namespace
} // namespace test_linear_range
