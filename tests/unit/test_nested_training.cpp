// Nested weights: training of tables, and error feedback for all precisions together.
#include <crumb/offline/common/second_moments.hpp>
#include <crumb/offline/nested/feedback.hpp>
#include <crumb/offline/nested/training.hpp>
#include <crumb/offline/weights/error_feedback.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace test_nested_training {
namespace {

using crumb::feedback_system;
using crumb::nested_feedback;
using crumb::nested_levels;
using crumb::nested_quantized;

std::vector<float> random_weights(std::size_t count, unsigned seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> gauss(0.0f, 0.02f);
    std::vector<float> w(count);
    for (float& x : w)
        x = gauss(engine);
    return w;
}

/// Second moments of inputs of which each resembles the one before it, and all a common one.
crumb::second_moments<> correlated(std::size_t k, unsigned seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> gauss;
    const std::size_t rows = 4 * k + 64;
    std::vector<float> x(rows * k);
    for (std::size_t r = 0; r < rows; ++r) {
        const float common = 0.3f * gauss(engine);
        float last = gauss(engine);
        for (std::size_t i = 0; i < k; ++i) {
            last = 0.7f * last + 0.7f * gauss(engine);
            x[r * k + i] = last + common;
        }
    }
    crumb::second_moments<> m(k);
    EXPECT_TRUE(m.add(crumb::matrix(x.data(), rows, k)).ok());
    return m;
}

feedback_system system_of(std::size_t k, unsigned seed) {
    const auto h = correlated(k, seed).matrix();
    auto s = feedback_system::make(crumb::matrix(h.data(), k, k));
    EXPECT_TRUE(s.ok()) << s.message();
    return std::move(*s);
}

crumb::trained_nested trained(const std::vector<float>& w, std::size_t n, std::size_t k,
                              const crumb::nested_training_options& o = {}) {
    const crumb::training_matrix m{crumb::matrix(w.data(), n, k), {}};
    auto r = crumb::train_nested({&m, 1}, o);
    EXPECT_TRUE(r.ok()) << r.message();
    return std::move(*r);
}

nested_quantized quantized(const nested_feedback& f, const nested_levels& levels, const std::vector<float>& w,
                           std::size_t n, std::size_t k) {
    auto q = nested_quantized::zeros(levels, n, k);
    const auto s = f.quantize(crumb::matrix(w.data(), n, k), q);
    EXPECT_TRUE(s.ok()) << s.message();
    return q;
}

/// Codes have `parent` bits, and scales are finite.
void expect_valid(const nested_quantized& q) {
    for (const std::uint8_t c : q.codes)
        ASSERT_LT(c, 1u << q.levels.parent);
    for (const crumb::half s : q.scales)
        ASSERT_TRUE(crumb::is_finite(s));
}

double squared_error(const std::vector<float>& w, const crumb::nested_storage_view& q, int bits) {
    double sum = 0;
    for (std::size_t r = 0; r < q.n; ++r)
        for (std::size_t i = 0; i < q.k; ++i)
            sum += std::pow(double{w[r * q.k + i]} - q.weight(r, i, bits), 2);
    return sum;
}

double feedback_error(const nested_feedback& f, const std::vector<float>& w, const nested_quantized& q,
                      int bits) {
    double sum = 0;
    for (std::size_t r = 0; r < q.n; ++r)
        sum += f.error(w.data() + r * q.k, q, r, bits);
    return sum;
}

void expect_int8_tables(const nested_levels& l) {
    ASSERT_TRUE(crumb::check_levels(l).ok());
    int widest = 0;
    for (int p = l.seed; p <= l.parent; ++p)
        for (const int v : l.table(p))
            widest = std::max(widest, std::abs(v));
    EXPECT_EQ(widest, 127);
}

struct precisions {
    int seed, parent;
};
constexpr precisions all_precisions[] = {{2, 2}, {2, 3}, {2, 4}, {3, 3}, {3, 4}, {4, 4}};

// ---- training -------------------------------------------------------------------------------------------

TEST(NestedTraining, TablesAreInt8AndErrorsFall) {
    const auto w = random_weights(64 * 256, 1);
    for (const auto& p : all_precisions) {
        std::size_t calls = 0;
        crumb::nested_training_options o{.seed = p.seed, .parent = p.parent};
        o.progress = [&](std::size_t done, std::size_t all) {
            EXPECT_LE(done, all);
            ++calls;
        };
        const auto t = trained(w, 64, 256, o);
        EXPECT_EQ(t.levels.seed, p.seed);
        EXPECT_EQ(t.levels.parent, p.parent);
        expect_int8_tables(t.levels);
        EXPECT_GT(calls, 0u);
        ASSERT_FALSE(t.errors.empty());
        for (std::size_t i = 1; i < t.errors.size(); ++i)
            EXPECT_LT(t.errors[i], t.errors[i - 1]);
    }
}

TEST(NestedTraining, SameSeedSameTables) {
    const auto w = random_weights(256 * 256, 2);
    crumb::nested_training_options o;
    o.max_groups = 300;
    const auto first = trained(w, 256, 256, o);
    EXPECT_EQ(first.levels, trained(w, 256, 256, o).levels);
    o.random_seed = 2;
    EXPECT_NE(first.levels, trained(w, 256, 256, o).levels);
}

TEST(NestedTraining, DegenerateMatrices) {
    for (const auto& p : all_precisions) {
        const crumb::nested_training_options o{.seed = p.seed, .parent = p.parent};
        expect_int8_tables(trained(std::vector<float>(8 * 96), 8, 96, o).levels); // zeros
        expect_int8_tables(trained(std::vector<float>(8 * 96, 0.25f), 8, 96, o).levels);
        expect_int8_tables(trained(random_weights(32, 3), 1, 32, o).levels); // one group
        expect_int8_tables(trained(random_weights(3 * 5, 4), 3, 5, o).levels);
        const auto none = crumb::train_nested({}, o);
        ASSERT_TRUE(none.ok());
        expect_int8_tables(none->levels);
    }
}

TEST(NestedTraining, RefusesWhatItCannotTrainOn) {
    auto w = random_weights(4 * 64, 5);
    const crumb::training_matrix m{crumb::matrix(w.data(), 4, 64), {}};
    const auto code = [&](const crumb::nested_training_options& o) {
        return crumb::train_nested({&m, 1}, o).error().code();
    };
    EXPECT_EQ(code({.seed = 1}), crumb::errc::invalid_argument);
    EXPECT_EQ(code({.parent = 5}), crumb::errc::invalid_argument);
    EXPECT_EQ(code({.seed = 4, .parent = 3}), crumb::errc::invalid_argument);
    for (const float bad :
         {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
        EXPECT_EQ(code({.lambda = {1, bad, 1}}), crumb::errc::invalid_argument);
    EXPECT_TRUE(crumb::train_nested({&m, 1}, {.seed = 3, .lambda = {0, 1, 1}}).ok());
    const std::vector<float> importance(63, 1.0f);
    const crumb::training_matrix narrow{m.w, importance};
    EXPECT_EQ(crumb::train_nested({&narrow, 1}).error().code(), crumb::errc::bad_shape);
    w[77] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(code({}), crumb::errc::not_finite);
}

TEST(NestedTraining, EveryPrecisionIsNearlyThatOfACodebookOfItsOwn) {
    constexpr std::size_t n = 64, k = 256;
    const auto w = random_weights(n * k, 6);
    const auto system = *feedback_system::independent(k, {});
    const nested_feedback f(system, {.length_power = 0});
    const auto q = quantized(f, trained(w, n, k).levels, w, n, k);
    expect_valid(q);
    const auto even = quantized(f, nested_levels::uniform(2, 4), w, n, k);
    const auto alone = *crumb::error_feedback::independent(k, {}, {.length_power = 0});
    for (int p = 2; p <= 4; ++p) {
        const crumb::training_matrix m{crumb::matrix(w.data(), n, k), {}};
        const auto t = crumb::train_codebooks({&m, 1}, {.entries = std::size_t{1} << p, .selector_bits = 0});
        ASSERT_TRUE(t.ok());
        auto own = crumb::leveled_matrix::zeros(t->levels, n, k);
        ASSERT_TRUE(alone.quantize(m.w, own).ok());
        double error = 0;
        for (std::size_t r = 0; r < n; ++r)
            error += alone.error(w.data() + r * k, own, r) / 1.01;
        EXPECT_LT(squared_error(w, q, p), 1.35 * error) << p;
        EXPECT_LT(squared_error(w, q, p), squared_error(w, even, p)) << p;
    }
}

// ---- error feedback -------------------------------------------------------------------------------------

TEST(NestedFeedback, LowersTheErrorOfEveryPrecision) {
    constexpr std::size_t n = 24, k = 288;
    constexpr auto even = crumb::even_precisions;
    const auto w = random_weights(n * k, 7);
    const auto system = system_of(k, 8);
    const auto alone = *feedback_system::independent(k, correlated(k, 8).importance());
    for (const nested_levels& l : {trained(w, n, k).levels, nested_levels::uniform(2, 4)}) {
        const nested_feedback plain(alone, {.length_power = 0}),
            chain(system, {.lambda = even, .sweeps = 0, .length_power = 0}),
            swept(system, {.lambda = even, .descent = {.hot = 0, .cold = 0}, .length_power = 0}),
            all(system, {.lambda = even, .length_power = 0});
        const auto rounded = quantized(plain, l, w, n, k), first = quantized(chain, l, w, n, k),
                   second = quantized(swept, l, w, n, k), third = quantized(all, l, w, n, k);
        double sums[3] = {};
        for (int p = 2; p <= 4; ++p) {
            const double none = feedback_error(all, w, rounded, p);
            EXPECT_LT(feedback_error(all, w, first, p), 0.8 * none) << p;
            EXPECT_LT(feedback_error(all, w, third, p), 0.7 * none) << p;
            const double lambda = std::pow(4.0, p);
            sums[0] += lambda * feedback_error(all, w, first, p);
            sums[1] += lambda * feedback_error(all, w, second, p);
            sums[2] += lambda * feedback_error(all, w, third, p);
        }
        EXPECT_LT(sums[1], sums[0]);
        EXPECT_LT(sums[2], sums[1]);
    }
}

TEST(NestedFeedback, OnePrecisionIsErrorFeedback) {
    constexpr std::size_t n = 16, k = 160;
    const auto w = random_weights(n * k, 9);
    const auto h = correlated(k, 10).matrix();
    const auto system = system_of(k, 10);
    const auto own = *crumb::error_feedback::make(crumb::matrix(h.data(), k, k));
    for (int p = 2; p <= 4; ++p) {
        const auto l = trained(w, n, k, {.seed = p, .parent = p}).levels;
        const nested_feedback f(system);
        const auto q = quantized(f, l, w, n, k);
        auto flat = crumb::leveled_matrix::zeros(crumb::levels_at(l, p), n, k);
        ASSERT_TRUE(own.quantize(crumb::matrix(w.data(), n, k), flat).ok());
        double error = 0;
        for (std::size_t r = 0; r < n; ++r)
            error += own.error(w.data() + r * k, flat, r);
        EXPECT_NEAR(feedback_error(f, w, q, p), error, 0.1 * error) << p;
    }
}

TEST(NestedFeedback, EveryPrecisionIsNearlyThatOfErrorFeedbackOfItsOwn) {
    constexpr std::size_t n = 32, k = 256;
    const auto w = random_weights(n * k, 11);
    const auto moments = correlated(k, 12);
    const auto h = moments.matrix();
    const auto system = system_of(k, 12);
    const auto own = *crumb::error_feedback::make(crumb::matrix(h.data(), k, k));
    const nested_feedback f(system);
    const auto q = quantized(f, trained(w, n, k).levels, w, n, k);
    for (int p = 2; p <= 4; ++p) {
        const crumb::training_matrix m{crumb::matrix(w.data(), n, k), {}};
        const auto t = crumb::train_codebooks({&m, 1}, {.entries = std::size_t{1} << p, .selector_bits = 0});
        ASSERT_TRUE(t.ok());
        auto flat = crumb::leveled_matrix::zeros(t->levels, n, k);
        ASSERT_TRUE(own.quantize(m.w, flat).ok());
        double error = 0;
        for (std::size_t r = 0; r < n; ++r)
            error += own.error(w.data() + r * k, flat, r);
        const double ratio = feedback_error(f, w, q, p) / error;
        EXPECT_LT(ratio, 2.1) << p;
        RecordProperty("ratio" + std::to_string(p), std::to_string(ratio));
    }
}

TEST(NestedFeedback, DescentsLowerTheLoss) {
    constexpr std::size_t n = 8, k = 224;
    const auto w = random_weights(n * k, 23);
    const auto system = system_of(k, 24);
    for (const auto& p : all_precisions) {
        const auto l = trained(w, n, k, {.seed = p.seed, .parent = p.parent}).levels;
        const crumb::precision_weights lambda = {2, 5, 16};
        const nested_feedback f(
            system, {.lambda = lambda, .descent = {.hot = 0, .cold = 0, .rescale = 0}, .length_power = 0});
        const auto before = quantized(f, l, w, n, k);
        crumb::nested_descent::chains targets;
        for (auto& t : targets) {
            t.resize(n, static_cast<Eigen::Index>(system.size()));
            for (std::size_t r = 0; r < n; ++r)
                t.row(static_cast<Eigen::Index>(r)) =
                    system.in_order([&](std::size_t c) { return w[r * k + c]; });
        }
        const auto losses = [&](const nested_quantized& q) {
            std::vector<double> each(n);
            for (std::size_t r = 0; r < n; ++r) {
                each[r] = crumb::nested_descent(system, l, lambda).loss(targets, r, q, r);
                double sum = 0;
                for (int bits = p.seed; bits <= p.parent; ++bits)
                    sum += double{lambda[crumb::nested_search::slot(bits)]} *
                           f.error(w.data() + r * k, q, r, bits);
                EXPECT_NEAR(each[r], sum, 1e-4 * sum);
            }
            return each;
        };
        const auto after = [&](const crumb::nested_descent_options& o) {
            auto q = before;
            crumb::nested_descent(system, l, lambda, o).run(targets, q, {0, n});
            expect_valid(q);
            return q;
        };
        // One pass after another, none raises the loss of a row.
        auto last = losses(before);
        for (std::size_t passes = 1; passes < 8; ++passes) {
            const auto now = losses(after({.hot = 0, .cold = passes}));
            for (std::size_t r = 0; r < n; ++r)
                EXPECT_LE(now[r], last[r] * (1 + 1e-5));
            last = now;
        }
        // Noise leaves local minima, and never makes a row worse however hot.
        const auto first = losses(before), cold = losses(after({.hot = 0})), warm = losses(after({})),
                   wild = losses(after({.hot = 2, .cold = 1, .from = 1e4, .to = 1e4}));
        double cold_sum = 0, warm_sum = 0;
        for (std::size_t r = 0; r < n; ++r) {
            EXPECT_LE(warm[r], first[r]);
            EXPECT_LE(wild[r], first[r]);
            cold_sum += cold[r];
            warm_sum += warm[r];
        }
        EXPECT_LT(warm_sum, cold_sum);
        // The same seed, the same codes, in whatever parts.
        const auto q = after({});
        auto parts = before;
        const crumb::nested_descent descent(system, l, lambda);
        for (std::size_t r = 0; r < n; ++r) {
            auto own = targets;
            for (auto& t : own)
                t = crumb::nested_descent::chains::value_type(t.row(static_cast<Eigen::Index>(r)));
            descent.run(own, parts, {r, r + 1});
        }
        EXPECT_EQ(q.codes, parts.codes);
        EXPECT_NE(q.codes, after({.seed = 2}).codes);
    }
}

TEST(NestedFeedback, LambdaTradesPrecisions) {
    constexpr std::size_t n = 16, k = 128;
    const auto w = random_weights(n * k, 13);
    const auto system = system_of(k, 14);
    const auto l = trained(w, n, k).levels;
    const nested_feedback even(system), low(system, {.lambda = {10, 4, 16}}),
        high(system, {.lambda = {1, 4, 160}});
    const auto q = quantized(even, l, w, n, k);
    EXPECT_LT(feedback_error(even, w, quantized(low, l, w, n, k), 2), feedback_error(even, w, q, 2));
    EXPECT_LT(feedback_error(even, w, quantized(high, l, w, n, k), 4), feedback_error(even, w, q, 4));
}

TEST(NestedFeedback, AnyWidthAndPrecisions) {
    for (const std::size_t k : {1u, 31u, 32u, 33u, 100u, 300u}) {
        const auto w = random_weights(5 * k, 15);
        const auto system = system_of(k, 16);
        const auto alone = *feedback_system::independent(k, {});
        for (const auto& p : all_precisions) {
            const auto l = trained(w, 5, k, {.seed = p.seed, .parent = p.parent}).levels;
            for (const feedback_system* s : {&system, &alone}) {
                const auto q = quantized(nested_feedback(*s), l, w, 5, k);
                expect_valid(q);
                for (int bits = p.seed; bits <= p.parent; ++bits)
                    EXPECT_LT(squared_error(w, q, bits),
                              squared_error(w, nested_quantized::zeros(l, 5, k), bits));
            }
        }
    }
}

TEST(NestedFeedback, ZerosStayZeros) {
    const std::vector<float> w(4 * 96);
    const auto system = system_of(96, 17);
    const auto q = quantized(nested_feedback(system), nested_levels::uniform(2, 4), w, 4, 96);
    for (int p = 2; p <= 4; ++p)
        EXPECT_EQ(squared_error(w, q, p), 0.0);
}

TEST(NestedFeedback, RowsByThemselvesAndTogether) {
    constexpr std::size_t n = 128, k = 96;
    const auto w = random_weights(n * k, 18);
    const auto system = system_of(k, 19);
    const auto l = trained(w, n, k).levels;
    const nested_feedback f(system, {.sweeps = 2});
    const auto all = quantized(f, l, w, n, k), again = quantized(f, l, w, n, k);
    auto parts = nested_quantized::zeros(l, n, k);
    for (const crumb::range r : {crumb::range{64, n}, crumb::range{0, 64}})
        ASSERT_TRUE(f.quantize(crumb::matrix(w.data(), n, k), parts, r).ok());
    EXPECT_EQ(all.codes, again.codes);
    EXPECT_EQ(all.codes, parts.codes);
    for (std::size_t i = 0; i < all.scales.size(); ++i) {
        EXPECT_EQ(all.scales[i].bits, again.scales[i].bits);
        EXPECT_EQ(all.scales[i].bits, parts.scales[i].bits);
    }
}

TEST(NestedFeedback, RefusesWhatItCannotQuantize) {
    constexpr std::size_t n = 3, k = 64;
    auto w = random_weights(n * k, 20);
    const auto m = crumb::matrix<const float>(w.data(), n, k);
    const auto system = system_of(k, 21);
    const nested_levels l = nested_levels::uniform(2, 4);
    const auto code = [&](nested_quantized q, const crumb::nested_feedback_options& o = {}) {
        const auto before = q.codes;
        const auto s = nested_feedback(system, o).quantize(m, q);
        if (!s) {
            EXPECT_EQ(before, q.codes);
        }
        return s.code();
    };
    EXPECT_EQ(code(nested_quantized::zeros(l, n, k)), crumb::errc::ok);
    EXPECT_EQ(code(nested_quantized::zeros(l, n, k + 1)), crumb::errc::bad_shape);
    EXPECT_EQ(code(nested_quantized::zeros(l, n + 1, k)), crumb::errc::bad_shape);
    auto bad = nested_quantized::zeros(l, n, k);
    bad.codes.pop_back();
    EXPECT_EQ(code(bad), crumb::errc::bad_shape);
    bad = nested_quantized::zeros(l, n, k);
    bad.levels.parent = 5;
    EXPECT_EQ(code(bad), crumb::errc::invalid_argument);
    bad.levels = l;
    bad.levels.table(3)[4] = bad.levels.table(3)[3];
    EXPECT_EQ(code(bad), crumb::errc::invalid_argument);
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(code(nested_quantized::zeros(l, n, k), {.lambda = {1, 0, 1}}), crumb::errc::invalid_argument);
    EXPECT_EQ(code(nested_quantized::zeros(l, n, k), {.lambda = {nan, 1, 1}}), crumb::errc::invalid_argument);
    for (const double t : {0.0, -1.0, double{nan}, double{std::numeric_limits<float>::infinity()}}) {
        EXPECT_EQ(code(nested_quantized::zeros(l, n, k), {.descent = {.from = t}}),
                  crumb::errc::invalid_argument);
        EXPECT_EQ(code(nested_quantized::zeros(l, n, k), {.descent = {.to = t}}),
                  crumb::errc::invalid_argument);
    }
    for (const double gain : {-1.0, double{nan}})
        EXPECT_EQ(code(nested_quantized::zeros(l, n, k), {.descent = {.least_gain = gain}}),
                  crumb::errc::invalid_argument);
    EXPECT_EQ(code(nested_quantized::zeros(l, n, k), {.length_power = double{nan}}),
              crumb::errc::invalid_argument);
    for (const float x : {nan, std::numeric_limits<float>::infinity(), 1e6f}) {
        w[70] = x;
        EXPECT_EQ(code(nested_quantized::zeros(l, n, k)), crumb::errc::not_finite);
    }
}

// ---- targets and means of each precision ------------------------------------------------------------------

TEST(NestedTargets, OfOneMatrixAreThatMatrix) {
    constexpr std::size_t n = 8, k = 96;
    const auto w = random_weights(n * k, 30);
    const auto system = system_of(k, 31);
    const auto l = trained(w, n, k).levels;
    const nested_feedback f(system);
    auto q = nested_quantized::zeros(l, n, k);
    const auto m = crumb::matrix<const float>(w.data(), n, k);
    ASSERT_TRUE(f.quantize(crumb::nested_targets{m, m, m}, q).ok());
    EXPECT_EQ(q.codes, quantized(f, l, w, n, k).codes);
}

// Codes for targets of their own are nearer to them than codes for what these have in common, at every
// precision.
TEST(NestedTargets, EachPrecisionComesNearItsOwn) {
    constexpr std::size_t n = 16, k = 160;
    const auto w = random_weights(n * k, 32);
    const auto system = system_of(k, 33);
    const nested_feedback f(system, {.length_power = 0});
    for (const auto& p : all_precisions) {
        const auto l = trained(w, n, k, {.seed = p.seed, .parent = p.parent}).levels;
        std::array<std::vector<float>, crumb::nested_precisions> own;
        crumb::nested_targets targets;
        for (int bits = p.seed; bits <= p.parent; ++bits) { // of those not stored there are none
            const std::size_t at = crumb::nested_search::slot(bits);
            own[at] = random_weights(n * k, 34 + static_cast<unsigned>(bits));
            const float share = bits == 2 ? 0.5f : bits == 3 ? 0.2f : 0.1f;
            for (std::size_t i = 0; i < n * k; ++i)
                own[at][i] = w[i] + share * own[at][i];
            targets[at] = crumb::matrix<const float>(own[at].data(), n, k);
        }
        auto q = nested_quantized::zeros(l, n, k);
        const auto s = f.quantize(targets, q);
        ASSERT_TRUE(s.ok()) << s.message();
        expect_valid(q);
        const auto common = quantized(f, l, w, n, k);
        for (int bits = p.seed; bits <= p.parent; ++bits) {
            const auto& to = own[crumb::nested_search::slot(bits)];
            EXPECT_LT(feedback_error(f, to, q, bits), feedback_error(f, to, common, bits))
                << p.seed << "-" << p.parent << " at " << bits;
        }
    }
}

TEST(NestedTargets, OfOtherShapesAreRefused) {
    constexpr std::size_t n = 3, k = 64;
    auto w = random_weights(n * k, 38);
    const auto system = system_of(k, 39);
    const auto m = crumb::matrix<const float>(w.data(), n, k);
    const auto code = [&](const crumb::nested_targets& targets, int seed = 2) {
        auto q = nested_quantized::zeros(nested_levels::uniform(seed, 4), n, k);
        const auto s = nested_feedback(system).quantize(targets, q);
        if (!s) {
            EXPECT_EQ(q.codes, std::vector<std::uint8_t>(n * k));
        }
        return s.code();
    };
    EXPECT_EQ(code({m, m, m}), crumb::errc::ok);
    EXPECT_EQ(code({crumb::matrix_view<const float>(), m, m}, 3), crumb::errc::ok);
    EXPECT_EQ(code({crumb::matrix_view<const float>(), m, m}), crumb::errc::bad_shape);
    EXPECT_EQ(code({m, crumb::matrix<const float>(w.data(), n - 1, k), m}), crumb::errc::bad_shape);
    EXPECT_EQ(code({m, m, crumb::matrix<const float>(w.data(), n, k - 1)}), crumb::errc::bad_shape);
    auto bad = w;
    bad[70] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(code({m, m, crumb::matrix<const float>(bad.data(), n, k)}), crumb::errc::not_finite);
}

TEST(NestedMeans, OutputsAreRightOnAverageAtEveryPrecision) {
    constexpr std::size_t n = 6, k = 96;
    const auto w = random_weights(n * k, 40);
    const auto system = system_of(k, 41);
    const auto l = trained(w, n, k).levels;
    auto q = quantized(nested_feedback(system), l, w, n, k);
    std::array<std::vector<float>, crumb::nested_precisions> input;
    std::array<std::vector<double>, crumb::nested_precisions> output;
    std::array<crumb::nested_means, crumb::nested_precisions> means;
    for (std::size_t p = 0; p < crumb::nested_precisions; ++p) {
        input[p] = random_weights(k, 42 + static_cast<unsigned>(p));
        for (const float x : random_weights(n, 45 + static_cast<unsigned>(p)))
            output[p].push_back(double{x});
        means[p] = {input[p], output[p]};
    }
    ASSERT_TRUE(crumb::correct_means(means, q).ok());
    const crumb::nested_storage_view view = q;
    for (int bits = 2; bits <= 4; ++bits)
        for (std::size_t r = 0; r < n; ++r) {
            const std::size_t p = crumb::nested_search::slot(bits);
            double sum = 0;
            for (std::size_t i = 0; i < k; ++i)
                sum += view.weight(r, i, bits) * double{input[p][i]};
            const double correction = double{crumb::to_float(q.corrections[p * n + r])};
            // Half a unit of fp16, which has 11 bits and no numbers between 0 and 2^-24.
            EXPECT_NEAR(sum + correction, output[p][r], std::ldexp(std::fabs(correction), -11) + 0x1p-25);
        }
    // Means of the full model's inputs: what the older form does.
    for (std::size_t p = 0; p < crumb::nested_precisions; ++p) {
        input[p] = input[0];
        for (std::size_t r = 0; r < n; ++r) {
            output[p][r] = 0;
            for (std::size_t i = 0; i < k; ++i)
                output[p][r] += double{w[r * k + i]} * double{input[0][i]};
        }
        means[p] = {input[p], output[p]};
    }
    auto same = q;
    ASSERT_TRUE(crumb::correct_means(means, q).ok());
    ASSERT_TRUE(crumb::correct_means(crumb::matrix<const float>(w.data(), n, k), input[0], same).ok());
    for (std::size_t i = 0; i < q.corrections.size(); ++i) {
        const double want = double{crumb::to_float(same.corrections[i])};
        EXPECT_NEAR(double{crumb::to_float(q.corrections[i])}, want,
                    std::ldexp(std::fabs(want), -10) + 0x1p-24);
    }
    // Refused, and nothing changes.
    const auto before = q.corrections;
    const auto unchanged = [&] {
        return std::equal(before.begin(), before.end(), q.corrections.begin(),
                          [](crumb::half a, crumb::half b) { return a.bits == b.bits; });
    };
    means[1].input = means[1].input.first(k - 1);
    EXPECT_EQ(crumb::correct_means(means, q).code(), crumb::errc::bad_shape);
    means[1].input = input[1];
    output[2][n - 1] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(crumb::correct_means(means, q).code(), crumb::errc::not_finite);
    output[2][n - 1] = 1e6;
    EXPECT_EQ(crumb::correct_means(means, q).code(), crumb::errc::not_finite);
    EXPECT_TRUE(unchanged());
}

// ---- the linear algebra ---------------------------------------------------------------------------------

TEST(FeedbackSystem, FactorsH) {
    constexpr std::size_t k = 70;
    const auto h = correlated(k, 22).matrix();
    const auto s = system_of(k, 22);
    ASSERT_EQ(s.size(), 96u);
    ASSERT_TRUE(s.has_feedback());
    const double mean = h.diagonal().mean();
    for (std::size_t i = 0; i < s.size(); ++i) {
        for (std::size_t j = 0; j < s.size(); ++j) {
            const auto at = [](std::size_t x) { return static_cast<Eigen::Index>(x); };
            if (s.column(i) == k || s.column(j) == k) {
                EXPECT_EQ(s.mix()(at(i), at(j)), 0.0f);
                continue;
            }
            // R_ij = mix_ij R_jj, and 1 for mix_jj.
            double product = 0;
            for (std::size_t m = std::max(i, j); m < s.size(); ++m) {
                const double a = i == m ? 1.0 : double{s.mix()(at(i), at(m))},
                             b = j == m ? 1.0 : double{s.mix()(at(j), at(m))};
                product += a * b * double{s.weight()[m]};
            }
            const double wanted = h(at(s.column(i)), at(s.column(j))) / mean + (i == j ? 0.01 : 0.0);
            EXPECT_NEAR(product, wanted, 1e-5);
            EXPECT_NEAR(double{s.h()(at(i), at(j))}, wanted, 1e-5);
        }
    }
}

} // namespace
} // namespace test_nested_training
