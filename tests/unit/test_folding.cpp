// Folded feed-forward networks, and how far predictors may be off.
#include <crumb/offline/common/random.hpp>
#include <crumb/offline/folding/folding.hpp>
#include <crumb/offline/folding/predictor_margin.hpp>
#include <crumb/op/linear/dense_linear.hpp>

#include <gtest/gtest.h>

#include <numbers>
#include <string>

namespace test_folding {
namespace {

using crumb::errc;
using crumb::fold;
using crumb::fold_refit;
using crumb::half;
using crumb::linear_range;
using crumb::matrix;
using crumb::predictor_errors;
using crumb::sound_bounds;
using crumb::splitmix64;

std::vector<float> random_floats(std::size_t size, splitmix64& random, double scale = 1) {
    std::vector<float> out(size);
    for (float& x : out)
        x = static_cast<float>(scale * (2 * random.uniform() - 1));
    return out;
}

// ---- folding ----

TEST(Folding, IsTheSumOverNeurons) {
    splitmix64 random(1);
    // More neurons than are converted at a time, rows further apart than they are wide.
    const std::size_t d = 7, h = 300, outputs = 5, gap = 3;
    const auto up = random_floats(h * (d + gap), random), down = random_floats(outputs * (h + gap), random);
    const auto up_bias = random_floats(h, random), down_bias = random_floats(outputs, random);
    std::vector<double> a(h), b(h);
    for (std::size_t n = 0; n < h; ++n) {
        a[n] = random.uniform() - 0.2;
        b[n] = random.uniform() - 0.5;
    }
    const auto w1 = matrix(up.data(), h, d, d + gap), w2 = matrix(down.data(), outputs, h, h + gap);
    for (const bool biased : {true, false}) {
        const std::span<const float> b1 = biased ? up_bias : std::span<const float>();
        const std::span<const float> b2 = biased ? down_bias : std::span<const float>();
        const auto exact = fold<double>(w1, b1, w2, b2, a, b);
        const auto rounded = fold(w1, b1, w2, b2, a, b);
        ASSERT_TRUE(exact);
        ASSERT_TRUE(rounded);
        EXPECT_EQ(rounded->view().rows, outputs);
        EXPECT_EQ(rounded->view().cols, d);
        const auto expect = [](double want, double magnitude, double got, float got_float) {
            EXPECT_NEAR(got, want, 1e-12 * magnitude);
            EXPECT_NEAR(double{got_float}, want, 1e-12 * magnitude + 0x1p-24 * std::fabs(want));
        };
        for (std::size_t o = 0; o < outputs; ++o) {
            double bias = biased ? double{down_bias[o]} : 0, size = std::fabs(bias);
            for (std::size_t n = 0; n < h; ++n) {
                const double term = double{w2.row(o)[n]} * (a[n] * (biased ? double{up_bias[n]} : 0) + b[n]);
                bias += term;
                size += std::fabs(term);
            }
            expect(bias, size, exact->bias[o], rounded->bias[o]);
            for (std::size_t i = 0; i < d; ++i) {
                double sum = 0, all = 0;
                for (std::size_t n = 0; n < h; ++n) {
                    const double term = double{w2.row(o)[n]} * a[n] * double{w1.row(n)[i]};
                    sum += term;
                    all += std::fabs(term);
                }
                expect(sum, all, exact->weights[o * d + i], rounded->weights[o * d + i]);
            }
        }
    }
    const auto weights = crumb::output_weights(w2);
    ASSERT_EQ(weights.size(), h);
    for (std::size_t n = 0; n < h; ++n) {
        double sum = 0;
        for (std::size_t o = 0; o < outputs; ++o)
            sum += double{w2.row(o)[n]} * double{w2.row(o)[n]};
        EXPECT_DOUBLE_EQ(weights[n], sum);
    }
}

TEST(Folding, ReproducesTheExampleOfThePaper) {
    // TARDIS, figure 8. The paper's: x = (-1, -1); the columns (3, -1) and (1, 2) of W1 (section 4.1);
    // slopes, intercepts and ranges; xC + B = (0.3, -0.1); neuron one is outside its range, what it added is
    // (0.4, 0), by a row (-1, 0) of W2. The row (1, 1) of neuron two follows from these.
    const std::vector<float> up = {3, -1, 1, 2}, down = {-1, 1, 0, 1}, x = {-1, -1};
    const std::vector<double> slopes = {0.25, 0.1}, intercepts = {0.1, 0.2};
    const auto f = fold(matrix(up.data(), 2, 2), {}, matrix(down.data(), 2, 2), {}, slopes, intercepts);
    ASSERT_TRUE(f);
    double y[2], u[2];
    for (std::size_t o = 0; o < 2; ++o) {
        y[o] = double{f->bias[o]} + double{x[0]} * double{f->weights[2 * o]} +
               double{x[1]} * double{f->weights[2 * o + 1]};
        u[o] = double{x[0]} * double{up[2 * o]} + double{x[1]} * double{up[2 * o + 1]};
    }
    // Weights below 1 are rounded to floats.
    const double rounding = 3 * 0x1p-25;
    EXPECT_NEAR(y[0], 0.3, rounding);
    EXPECT_NEAR(y[1], -0.1, rounding);
    EXPECT_FALSE(u[0] >= -1.5 && u[0] < 0.12);
    EXPECT_TRUE(u[1] >= -3.5 && u[1] < -0.1);
    const double wrong = slopes[0] * u[0] + intercepts[0];
    EXPECT_NEAR(wrong * double{down[0]}, 0.4, 1e-15);
    EXPECT_EQ(wrong * double{down[2]}, 0.0);
    // Fixed, it is the network whose second neuron alone is linear.
    const double gelu = u[0] / 2 * (1 + std::erf(u[0] / std::numbers::sqrt2));
    const double linear = slopes[1] * u[1] + intercepts[1];
    for (std::size_t o = 0; o < 2; ++o)
        EXPECT_NEAR(y[o] + (gelu - wrong) * double{down[2 * o]},
                    gelu * double{down[2 * o]} + linear * double{down[2 * o + 1]}, rounding);
}

TEST(Folding, RefusesShapesAndValues) {
    const std::vector<float> ones(12, 1.0f);
    const std::vector<double> h(3, 1.0);
    const auto up = matrix(ones.data(), 3, 4), down = matrix(ones.data(), 2, 3);
    const std::span<const float> b1(ones.data(), 3), b2(ones.data(), 2);
    ASSERT_TRUE(fold(up, b1, down, b2, h, h));
    const auto refuses = [](const auto& r, errc code, const char* name) {
        EXPECT_EQ(r.error().code(), code);
        EXPECT_NE(std::string(r.message()).find(name), std::string::npos) << r.message();
    };
    refuses(fold(up, b1, matrix(ones.data(), 2, 4), b2, h, h), errc::bad_shape, "down 2 x 4");
    refuses(fold(up, b2, down, b2, h, h), errc::bad_shape, "2 biases of up");
    refuses(fold(up, b1, down, b1, h, h), errc::bad_shape, "3 biases of down");
    refuses(fold(up, b1, down, b2, std::span(h).first(2), h), errc::bad_shape, "2 slopes");
    refuses(fold(up, b1, down, b2, h, std::span(h).first(1)), errc::bad_shape, "1 intercepts");
    std::vector<float> bad = ones;
    bad[1] = std::nanf("");
    const std::span<const float> bad_span(bad);
    refuses(fold(matrix(bad_span.data(), 3, 4), b1, down, b2, h, h), errc::not_finite, "up");
    refuses(fold(up, b1, matrix(bad_span.data(), 2, 3), b2, h, h), errc::not_finite, "down");
    refuses(fold(up, bad_span.first(3), down, b2, h, h), errc::not_finite, "bias of up");
    refuses(fold(up, b1, down, bad_span.first(2), h, h), errc::not_finite, "bias of down");
    const std::vector<double> infinite = {1, HUGE_VAL, 1}, huge(3, 1e39);
    refuses(fold(up, b1, down, b2, infinite, h), errc::not_finite, "slopes");
    refuses(fold(up, b1, down, b2, h, infinite), errc::not_finite, "intercepts");
    refuses(fold(up, b1, down, b2, huge, h), errc::not_finite, "folded weights");
    refuses(fold(up, b1, down, b2, h, huge), errc::not_finite, "folded bias");
}

/// Residuals c x + b of rows that are not centered; all numbers are multiples of 2^-8 and exact.
struct planted_map {
    std::size_t rows, d, outputs;
    std::vector<float> x, r;
    std::vector<double> c, b;

    planted_map(std::size_t m, std::size_t inputs, std::size_t out, std::uint64_t seed)
        : rows(m), d(inputs), outputs(out), x(m * inputs), r(m * out), c(out * inputs), b(out) {
        splitmix64 random(seed);
        const auto number = [&] { return (static_cast<double>(random.below(128)) - 64) / 16; };
        for (double& v : c)
            v = number();
        for (double& v : b)
            v = number();
        for (std::size_t i = 0; i < x.size(); ++i)
            x[i] = static_cast<float>(number() + static_cast<double>(i % d));
        for (std::size_t i = 0; i < rows; ++i)
            for (std::size_t o = 0; o < outputs; ++o) {
                double sum = b[o];
                for (std::size_t k = 0; k < d; ++k)
                    sum += c[o * d + k] * double{x[i * d + k]};
                r[i * outputs + o] = static_cast<float>(sum);
            }
    }
    crumb::status add_to(fold_refit& refit, std::size_t first, std::size_t size) const {
        return refit.add(matrix(x.data() + first * d, size, d),
                         matrix(r.data() + first * outputs, size, outputs));
    }
};

TEST(Folding, RefitRecoversAPlantedMap) {
    const planted_map p(700, 9, 4, 2);
    fold_refit refit(p.d, p.outputs);
    ASSERT_TRUE(p.add_to(refit, 0, 600));
    ASSERT_TRUE(p.add_to(refit, 600, 100));
    EXPECT_EQ(refit.rows(), 700u);
    const auto change = refit.solve(0);
    ASSERT_TRUE(change);
    // Sums are exact; solving loses the condition number of the moments, below 1e3.
    for (std::size_t i = 0; i < p.c.size(); ++i)
        EXPECT_NEAR(change->weights[i], p.c[i], 1e-10);
    for (std::size_t o = 0; o < p.outputs; ++o)
        EXPECT_NEAR(change->bias[o], p.b[o], 1e-9);

    crumb::folded_layer<float> layer = {p.d, p.outputs, std::vector<float>(p.c.size(), 1.0f),
                                        std::vector<float>(p.outputs, 2.0f)};
    layer.add(*change);
    for (std::size_t i = 0; i < p.c.size(); ++i)
        EXPECT_NEAR(double{layer.weights[i]}, 1 + p.c[i], 1e-6);
    for (std::size_t o = 0; o < p.outputs; ++o)
        EXPECT_NEAR(double{layer.bias[o]}, 2 + p.b[o], 1e-6);
}

TEST(Folding, RidgeShrinksTheMapButKeepsTheMean) {
    const planted_map p(500, 1, 2, 3);
    fold_refit refit(p.d, p.outputs);
    ASSERT_TRUE(p.add_to(refit, 0, 500));
    const auto change = refit.solve(0.25).value();
    double mean = 0;
    for (const float x : p.x)
        mean += double{x} / 500;
    for (std::size_t o = 0; o < 2; ++o) {
        EXPECT_NEAR(change.weights[o], p.c[o] / 1.25, 1e-12);
        EXPECT_NEAR(change.bias[o] + change.weights[o] * mean, p.b[o] + p.c[o] * mean, 1e-12);
    }
}

TEST(Folding, RefitNeedsRowsOrARidge) {
    const planted_map p(5, 9, 2, 4);
    fold_refit refit(p.d, p.outputs);
    EXPECT_EQ(refit.solve().error().code(), errc::invalid_argument);
    ASSERT_TRUE(p.add_to(refit, 0, 5));
    EXPECT_EQ(refit.solve(0).error().code(), errc::invalid_argument);
    EXPECT_EQ(refit.solve(-1).error().code(), errc::invalid_argument);
    EXPECT_TRUE(refit.solve(1e-3));
    std::vector<float> bad(p.x.begin(), p.x.begin() + 9), r(p.r.begin(), p.r.begin() + 2);
    EXPECT_EQ(refit.add(matrix(bad.data(), 1, 8), matrix(r.data(), 1, 2)).code(), errc::bad_shape);
    EXPECT_EQ(refit.add(matrix(bad.data(), 1, 9), matrix(r.data(), 2, 1)).code(), errc::bad_shape);
    bad[8] = HUGE_VALF;
    EXPECT_EQ(refit.add(matrix(bad.data(), 1, 9), matrix(r.data(), 1, 2)).code(), errc::not_finite);
    EXPECT_EQ(refit.rows(), 5u);

    fold_refit constant(3, 1);
    const std::vector<float> x(300, 0.3f);
    std::vector<float> y(100);
    for (std::size_t i = 0; i < 100; ++i)
        y[i] = static_cast<float>(i % 2);
    ASSERT_TRUE(constant.add(matrix(x.data(), 100, 3), matrix(y.data(), 100, 1)));
    const auto change = constant.solve(0).value();
    for (const double w : change.weights)
        EXPECT_EQ(w, 0.0);
    EXPECT_NEAR(change.bias[0], 0.5, 1e-15);
}

TEST(Folding, RefitRefusesInputsThatDepend) {
    splitmix64 random(5);
    for (int round = 0; round < 20; ++round) {
        fold_refit refit(3, 1);
        const auto x = random_floats(3 * 100, random), r = random_floats(100, random);
        std::vector<float> dependent = x;
        for (std::size_t i = 0; i < 100; ++i) {
            // Exact sums, so that nothing but the rounding of the moments tells the columns apart.
            float* row = dependent.data() + 3 * i;
            row[0] = std::round(row[0] * 1024) / 1024;
            row[1] = std::round(row[1] * 1024) / 1024;
            row[2] = row[0] + row[1];
        }
        ASSERT_TRUE(refit.add(matrix(dependent.data(), 100, 3), matrix(r.data(), 100, 1)));
        EXPECT_EQ(refit.solve(0).error().code(), errc::invalid_argument);
        EXPECT_TRUE(refit.solve(1e-3));
    }
}

// ---- margins as measured ----

/// All pairs of inputs and errors, so that errors do not depend on inputs; all sums are exact.
struct predictor_sample {
    std::vector<float> v, u;
    std::vector<double> errors;

    explicit predictor_sample(std::uint64_t seed) {
        splitmix64 random(seed);
        for (int i = 0; i < 200; ++i) {
            // Skewed and off center, with a few that are far off.
            const double e = random.uniform() * random.uniform() * (i % 50 == 0 ? 4 : 1) - 0.125;
            errors.push_back(std::floor(e * 1024) / 1024);
        }
        for (int k = -40; k <= 40; ++k)
            for (const double e : errors) {
                u.push_back(static_cast<float>(k) / 16);
                v.push_back(static_cast<float>(k / 16.0 + e));
            }
        std::sort(errors.begin(), errors.end());
    }
    predictor_errors measured(std::size_t bins = 256) const {
        auto p = predictor_errors::make(1, bins).value();
        EXPECT_TRUE(p.add(matrix(v.data(), v.size(), 1), matrix(u.data(), u.size(), 1)));
        return p;
    }
};

TEST(PredictorMargin, QuantilesBoundTheSharesBeyond) {
    const predictor_sample x(5);
    const auto p = x.measured();
    const double width = (x.errors.back() - x.errors.front()) / 127; // of a bin, at most
    for (const double share : {0.0, 0.005, 0.05, 0.3, 0.5, 0.9, 1.0}) {
        const double lower = p.lower(0, share), upper = p.upper(0, 1 - share);
        const auto beyond = static_cast<std::size_t>(std::floor(share * 200 + 1e-9));
        const auto below = std::lower_bound(x.errors.begin(), x.errors.end(), lower) - x.errors.begin();
        const auto above = x.errors.end() - std::upper_bound(x.errors.begin(), x.errors.end(), upper);
        EXPECT_LE(static_cast<std::size_t>(below), beyond) << share;
        EXPECT_LE(static_cast<std::size_t>(above), beyond) << share;
        // And no further out than a bin.
        EXPECT_GE(lower + width, x.errors[std::min<std::size_t>(beyond, 199)]) << share;
        EXPECT_LE(upper - width, x.errors[199 - std::min<std::size_t>(beyond, 199)]) << share;
    }
}

TEST(PredictorMargin, MissesAtMostTheShareAskedFor) {
    const predictor_sample x(6);
    const auto p = x.measured();
    linear_range r;
    const auto check = [&](double low, double high, double miss) {
        r.low = low;
        r.high = high;
        const auto t = p.thresholds(0, r, miss);
        double missed = 0, outside = 0, inside = 0, kept = 0;
        for (std::size_t i = 0; i < x.u.size(); ++i) {
            const bool linear = x.v[i] >= t.low && x.v[i] < t.high;
            const bool fits = double{x.u[i]} >= low && double{x.u[i]} < high;
            (fits ? inside : outside) += 1;
            (fits ? kept : missed) += linear;
        }
        EXPECT_LE(missed, miss * outside) << low << " " << high << " " << miss;
        return kept / inside;
    };
    for (const double miss : {0.0, 0.01, 0.1, 0.3}) {
        check(-1, 0.5, miss);
        check(-HUGE_VAL, 0.5, miss);
        check(-1, HUGE_VAL, miss);
        // What fits is still linear, but for inputs near to the ends.
        EXPECT_GT(check(-2, 2, miss), 0.4);
    }
    // Inputs just outside of one end are what the quantile is made for: all of them are near it.
    const double miss = 0.2;
    const auto t = p.thresholds(0, {-1, HUGE_VAL}, miss);
    double missed = 0;
    for (const double e : x.errors)
        missed += -1 - 1e-6 + e >= double{t.low};
    EXPECT_LE(missed, miss * 200);
    EXPECT_GE(missed, miss * 200 - 30);
}

TEST(PredictorMargin, ThresholdsCollapseAndStayInfinite) {
    const predictor_sample x(7);
    const auto p = x.measured();
    const auto all = p.thresholds(0, {-HUGE_VAL, HUGE_VAL}, 0);
    EXPECT_EQ(all.low, -HUGE_VALF);
    EXPECT_EQ(all.high, HUGE_VALF);
    EXPECT_FALSE(all.never());
    EXPECT_TRUE(p.thresholds(0, {-0.1, 0.1}, 0).never());
    EXPECT_TRUE(p.thresholds(0, {}, 0.5).never());
    EXPECT_TRUE(p.thresholds(0, {}, 0.9).never());
    EXPECT_FALSE(p.thresholds(0, {-2, 2}, 0.1).never());
    // A predictor without errors leaves ranges as they are.
    auto exact = predictor_errors::make(1, 16).value();
    EXPECT_FALSE(exact.thresholds(0, {-2, 2}, 0.1).never());
    ASSERT_TRUE(exact.add(matrix(x.u.data(), x.u.size(), 1), matrix(x.u.data(), x.u.size(), 1)));
    const auto same = exact.thresholds(0, {-0.5, 0.25}, 0);
    EXPECT_EQ(same.low, -0.5f);
    EXPECT_EQ(same.high, 0.25f);
    // Thresholds are rounded inwards: both floats nearest to 0.1 lie outside.
    const auto rounded = exact.thresholds(0, {-0.1, 0.1}, 0);
    EXPECT_EQ(rounded.low, std::nextafter(-0.1f, 0.0f));
    EXPECT_EQ(rounded.high, std::nextafter(0.1f, 0.0f));
}

TEST(PredictorMargin, MergesAndRefuses) {
    const predictor_sample x(8);
    const auto whole = x.measured();
    auto first = predictor_errors::make(1, 256).value(), second = first;
    const std::size_t half_of = x.u.size() / 2;
    ASSERT_TRUE(first.add(matrix(x.v.data(), half_of, 1), matrix(x.u.data(), half_of, 1)));
    ASSERT_TRUE(second.add(matrix(x.v.data() + half_of, x.u.size() - half_of, 1),
                           matrix(x.u.data() + half_of, x.u.size() - half_of, 1)));
    ASSERT_TRUE(second.merge(first));
    EXPECT_EQ(second.rows(), whole.rows());
    for (const double p : {0.0, 0.1, 0.5, 0.99}) {
        EXPECT_EQ(second.lower(0, p), whole.lower(0, p));
        EXPECT_EQ(second.upper(0, p), whole.upper(0, p));
    }
    EXPECT_EQ(first.merge(predictor_errors::make(1, 16).value()).code(), errc::bad_shape);
    EXPECT_EQ(first.merge(predictor_errors::make(2, 256).value()).code(), errc::bad_shape);
    std::vector<float> bad = {1, HUGE_VALF};
    EXPECT_EQ(first.add(matrix(bad.data(), 1, 2), matrix(bad.data(), 1, 2)).code(), errc::bad_shape);
    EXPECT_EQ(first.add(matrix(bad.data(), 2, 1), matrix(x.u.data(), 2, 1)).code(), errc::not_finite);
    EXPECT_EQ(first.add(matrix(x.u.data(), 2, 1), matrix(bad.data(), 2, 1)).code(), errc::not_finite);
    EXPECT_EQ(first.rows(), half_of);
}

// ---- margins that hold for all inputs ----

TEST(SoundBound, HalvesAreRoundedUp) {
    for (std::uint16_t bits = 0; bits < 0x7c00; ++bits) {
        const double x = double{to_float(half{bits})};
        ASSERT_EQ(crumb::half_above(x).bits, bits);
        if (bits != 0) {
            ASSERT_EQ(crumb::half_above(std::nextafter(x, 0.0)).bits, bits);
        }
        ASSERT_EQ(crumb::half_above(std::nextafter(x, HUGE_VAL)).bits, bits + 1);
    }
    EXPECT_FALSE(is_finite(crumb::half_above(1e300)));
}

struct bound_problem {
    std::size_t neurons = 40, inputs = 70, groups = 3; // the last of 6 inputs
    std::vector<float> w, stored;
    crumb::bound_matrix bounds;

    explicit bound_problem(splitmix64& random) : w(random_floats(neurons * inputs, random)), stored(w) {
        for (float& x : stored)
            x = std::round(x * 4) / 4;
        auto b = sound_bounds(matrix(w.data(), neurons, inputs), matrix(stored.data(), neurons, inputs));
        EXPECT_TRUE(b);
        bounds = *b;
    }
    /// The bound with X and D in double, and the difference that it is for.
    double margin(std::size_t n, const std::vector<double>& x, const std::vector<double>& rounded) const {
        double sum = 0;
        for (std::size_t g = 0; g < groups; ++g) {
            double xx = 0, dd = 0;
            for (std::size_t i = g * 32; i < std::min((g + 1) * 32, inputs); ++i) {
                xx += x[i] * x[i];
                dd += (x[i] - rounded[i]) * (x[i] - rounded[i]);
            }
            sum += double{to_float(bounds.view().row(n)[g])} * std::sqrt(xx) +
                   double{to_float(bounds.view().row(n)[groups + g])} * std::sqrt(dd);
        }
        return sum;
    }
    double difference(std::size_t n, const std::vector<double>& x, const std::vector<double>& rounded) const {
        double sum = 0;
        for (std::size_t i = 0; i < inputs; ++i)
            sum += double{w[n * inputs + i]} * x[i] - double{stored[n * inputs + i]} * rounded[i];
        return std::fabs(sum);
    }
};

TEST(SoundBound, HoldsForRandomInputs) {
    splitmix64 random(9);
    const bound_problem p(random);
    EXPECT_EQ(p.bounds.view().rows, 40u);
    EXPECT_EQ(p.bounds.view().cols, 6u);
    for (int round = 0; round < 200; ++round) {
        std::vector<double> x(p.inputs), rounded(p.inputs);
        for (std::size_t i = 0; i < p.inputs; ++i) {
            x[i] = std::pow(2 * random.uniform() - 1, 3);
            rounded[i] = round % 2 == 0 ? x[i] : std::round(x[i] * 16) / 16;
        }
        for (std::size_t n = 0; n < p.neurons; ++n)
            EXPECT_GE(p.margin(n, x, rounded), p.difference(n, x, rounded)) << n;
    }
}

TEST(SoundBound, IsReachedByTheWorstInputs) {
    splitmix64 random(10);
    const bound_problem p(random);
    for (std::size_t n = 0; n < p.neurons; ++n) {
        std::vector<double> x(p.inputs), rounded(p.inputs);
        for (const bool by_sign : {true, false}) {
            for (std::size_t i = 0; i < p.inputs; ++i) {
                const double stored = double{p.stored[n * p.inputs + i]};
                const double e = double{p.w[n * p.inputs + i]} - stored;
                x[i] = by_sign ? std::copysign(1.0, e) : e;
                rounded[i] = x[i] - 0.01 * (by_sign ? std::copysign(1.0, stored) : stored);
            }
            const double margin = p.margin(n, x, rounded), difference = p.difference(n, x, rounded);
            EXPECT_GE(margin, difference);
            // Inputs along the errors leave nothing but the rounding of halves.
            if (!by_sign) {
                EXPECT_LE(margin, difference * (1 + 0x1p-10 + 1e-9));
            }
        }
    }
}

TEST(SoundBound, HoldsAsAProductOfHalves) {
    splitmix64 random(11);
    const bound_problem p(random);
    const auto plan = crumb::dense_linear<half>::plan(p.bounds.view()).value();
    const std::size_t d = p.inputs, roundings = 2 * p.groups + 36;
    const double gamma = static_cast<double>(roundings) * 0x1p-24;
    for (std::size_t n = 0; n < p.neurons; ++n) {
        std::vector<double> x(d), rounded(d);
        std::vector<float> norms(2 * p.groups), y(p.neurons);
        for (std::size_t g = 0; g < p.groups; ++g) {
            float xx = 0, dd = 0;
            for (std::size_t i = g * 32; i < std::min((g + 1) * 32, d); ++i) {
                const float stored = p.stored[n * d + i], value = p.w[n * d + i] - stored;
                const float kept = value - stored / 64;
                x[i] = double{value};
                rounded[i] = double{kept};
                xx += value * value;
                dd += (value - kept) * (value - kept);
            }
            norms[g] = std::sqrt(xx);
            norms[p.groups + g] = std::sqrt(dd);
        }
        plan.run(matrix<const float>(norms.data(), 1, norms.size()), matrix(y.data(), 1, y.size()));
        for (std::size_t k = 0; k < p.neurons; ++k) {
            EXPECT_GE(double{y[k]} * (1 + gamma / (1 - gamma)), p.difference(k, x, rounded));
            EXPECT_NEAR(double{y[k]}, p.margin(k, x, rounded), gamma * p.margin(k, x, rounded));
        }
    }
}

TEST(SoundBound, Refuses) {
    std::vector<float> w(64, 1.0f), other(64, 1.0f);
    const auto up = matrix(w.data(), 1, 64);
    ASSERT_TRUE(sound_bounds(up, matrix(other.data(), 1, 64)));
    EXPECT_EQ(sound_bounds(up, matrix(other.data(), 2, 32)).error().code(), errc::bad_shape);
    EXPECT_EQ(sound_bounds(up, matrix(other.data(), 1, 63)).error().code(), errc::bad_shape);
    other[40] = 65504;
    const auto large = sound_bounds(up, matrix(other.data(), 1, 64));
    EXPECT_EQ(large.error().code(), errc::not_finite);
    EXPECT_NE(std::string(large.message()).find("neuron 0, group 1"), std::string::npos) << large.message();
    other[40] = std::nanf("");
    EXPECT_EQ(sound_bounds(up, matrix(other.data(), 1, 64)).error().code(), errc::not_finite);
    EXPECT_EQ(sound_bounds(matrix(other.data(), 1, 64), up).error().code(), errc::not_finite);
}

} // namespace
} // namespace test_folding
