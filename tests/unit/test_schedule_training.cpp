// The learned scheduler: inference over caches and features, labels, training.
#include "guarded.hpp"
#include "isa_test.hpp"
#include "kv_problem.hpp"

#include <crumb/offline/schedule/training.hpp>

#include <numeric>
#include <string>

namespace test_schedule_training {
namespace {

using crumb::errc;
using crumb::learned_schedule;
using crumb::learned_shape;
using crumb::precision_schedule;
using crumb::schedule_levels;
using crumb::schedule_sample;
using crumb::schedule_training_options;
using crumb_test::cache_problem;
using crumb_test::for_each_isa;
using crumb_test::guarded;
using crumb_test::tested_isa;

constexpr schedule_levels levels = {.stored = {2, 4}, .prefill = 4, .high = 4, .low = 2, .length = 100};
constexpr double eps = 2 * 0x1p-24; // ISAs without FMA round twice

std::vector<float> gauss(std::size_t count, unsigned seed, float scale = 1) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> x(count);
    for (float& v : x)
        v = normal(engine);
    return x;
}

/// Random parameters.
struct parameters {
    learned_shape shape;
    std::vector<float> query, w1, b1, w2, b2;

    explicit parameters(const learned_shape& s, float scale = 1)
        : shape(s), query(gauss(s.width(), 1, scale)),
          w1(gauss(s.hidden * s.width(), 2, scale / std::sqrt(float(s.width())))),
          b1(gauss(s.hidden, 3, scale)),
          w2(gauss(s.points * s.hidden, 4, scale / std::sqrt(float(s.hidden)))),
          b2(gauss(s.points, 5, scale)) {}
    crumb::learned_weights view() const { return {query, w1, b1, w2, b2}; }
};

/// What inference has to find, in double, with bounds from those of attention, sums and softmax.
struct expected {
    std::vector<double> pooled, pooled_error, p, p_error;

    /// Rows are [head][token][element].
    expected(const parameters& m, const std::vector<float>& keys, const std::vector<float>& values,
             std::size_t tokens) {
        const std::size_t d = m.shape.head_size, width = m.shape.width();
        pooled.resize(width);
        pooled_error.resize(width);
        for (std::size_t h = 0; h < m.shape.heads; ++h) {
            const auto size = crumb::reference::attention(
                m.query.data() + h * d, crumb::matrix(keys.data() + h * tokens * d, tokens, d),
                crumb::matrix(values.data() + h * tokens * d, tokens, d), 1 / std::sqrt(double(d)),
                pooled.data() + h * d);
            for (std::size_t i = 0; i < d; ++i)
                pooled_error[h * d + i] =
                    ((4 + 2 * double(d)) * size.score + double(tokens) + 32) * eps * size.value;
        }
        std::vector<double> hidden, hidden_error, logits, error;
        layer(m.w1, m.b1, pooled, pooled_error, hidden, hidden_error);
        for (double& x : hidden)
            x = std::max(x, 0.0);
        layer(m.w2, m.b2, hidden, hidden_error, logits, error);
        const double most = *std::max_element(logits.begin(), logits.end());
        const double off = *std::max_element(error.begin(), error.end());
        double sum = 0, large = 0;
        for (const double x : logits) {
            sum += std::exp(x - most);
            large = std::max(large, std::fabs(x));
        }
        for (const double x : logits) {
            p.push_back(std::exp(x - most) / sum);
            p_error.push_back((std::expm1(2 * off) + (double(logits.size()) / 4 + 16 + 4 * large) * eps) *
                                  p.back() +
                              0x1p-149);
        }
    }

  private:
    static void layer(const std::vector<float>& w, const std::vector<float>& b, const std::vector<double>& x,
                      const std::vector<double>& x_error, std::vector<double>& y,
                      std::vector<double>& error) {
        for (std::size_t r = 0; r < b.size(); ++r) {
            double sum = double(b[r]), size = std::fabs(sum), off = 0;
            for (std::size_t i = 0; i < x.size(); ++i) {
                const double weight = double(w[r * x.size() + i]);
                sum += weight * x[i];
                size += std::fabs(weight * x[i]);
                off += std::fabs(weight) * x_error[i];
            }
            y.push_back(sum);
            error.push_back(off + (double(x.size()) + 8) * eps * (size + off));
        }
    }
};

void expect_choice(const crumb::result<crumb::learned_choice>& got, const std::vector<float>& p,
                   const expected& want) {
    ASSERT_TRUE(got.ok()) << got.message();
    for (std::size_t i = 0; i < p.size(); ++i)
        EXPECT_LE(std::fabs(double(p[i]) - want.p[i]), want.p_error[i]) << "point " << i;
    EXPECT_EQ(got->point, static_cast<std::size_t>(std::max_element(p.begin(), p.end()) - p.begin()));
    EXPECT_EQ(got->schedule, *precision_schedule::high_then_low(
                                 levels, crumb::grid_step(got->point, p.size(), levels.length)));
}

TEST(LearnedSchedule, ReadsCachesOfAnyCodec) {
    const parameters m({.heads = 2, .head_size = 16, .hidden = 24, .points = 9});
    for_each_isa([&](const tested_isa& isa) {
        for (const auto& [name, codec] : crumb_test::codecs)
            for (const std::size_t tokens : {1, 150, 300}) {
                SCOPED_TRACE(std::string(name) + ", " + std::to_string(tokens) + " tokens");
                cache_problem c(
                    {.layers = 2, .kv_heads = 2, .head_size = 16, .max_tokens = 400, .codec = codec},
                    isa.name);
                c.fill(tokens);
                std::vector<float> keys, values;
                for (std::size_t h = 0; h < 2; ++h)
                    for (std::size_t t = 0; t < tokens; ++t)
                        for (const bool k : {true, false})
                            for (const double x : c.decoded(1, h, k, t))
                                (k ? keys : values).push_back(float(x));
                const auto plan = learned_schedule::plan(m.shape, m.view(), levels, {isa.name});
                ASSERT_TRUE(plan.ok()) << plan.message();
                guarded<std::byte> scratch(*plan->scratch_bytes(c.options));
                std::vector<float> p(9);
                const auto got = plan->run(*c.cache, 1, scratch.span(), p);
                ASSERT_NO_FATAL_FAILURE(expect_choice(got, p, expected(m, keys, values, tokens)));
                const auto other = plan->run(*c.cache, 0, scratch.span(), p);
                EXPECT_TRUE(other.ok());
            }
    });
}

TEST(LearnedSchedule, ReadsRowsOfFeatures) {
    const learned_shape shapes[] = {{1, 5, 3, 2}, {3, 16, 17, 33}, {2, 64, 1, 5}};
    for_each_isa([&](const tested_isa& isa) {
        for (const auto& shape : shapes)
            for (const std::size_t tokens : {1, 7, 131}) {
                const parameters m(shape);
                const std::size_t d = shape.head_size, stride = shape.width() + 3;
                const auto rows = gauss(tokens * stride, 8);
                std::vector<float> heads;
                for (std::size_t h = 0; h < shape.heads; ++h)
                    for (std::size_t t = 0; t < tokens; ++t)
                        for (std::size_t i = 0; i < d; ++i)
                            heads.push_back(rows[t * stride + h * d + i]);
                const auto plan = learned_schedule::plan(m.shape, m.view(), levels, {isa.name});
                ASSERT_TRUE(plan.ok()) << plan.message();
                guarded<std::byte> scratch(plan->scratch_bytes());
                std::vector<float> p(shape.points);
                const auto view = crumb::matrix(rows.data(), tokens, shape.width(), stride);
                const auto got = plan->run(view, scratch.span(), p);
                ASSERT_NO_FATAL_FAILURE(expect_choice(got, p, expected(m, heads, heads, tokens)));
                const auto silent = plan->run(view, scratch.span());
                ASSERT_TRUE(silent.ok());
                EXPECT_EQ(silent->point, got->point);
            }
    });
}

TEST(LearnedSchedule, TakesTheFirstAmongEquals) {
    parameters m({.heads = 1, .head_size = 4, .hidden = 2, .points = 5}, 0);
    const auto rows = gauss(12, 8);
    const auto choose = [&] {
        const auto plan = learned_schedule::plan(m.shape, m.view(), levels);
        crumb::buffer scratch(plan->scratch_bytes());
        return *plan->run(crumb::matrix(rows.data(), 3, 4), scratch.bytes());
    };
    EXPECT_EQ(choose().point, 0u);
    EXPECT_EQ(choose().schedule, *precision_schedule::constant({2, 4}, 4, 2, 100));
    m.b2 = {0, 1, 0, 1, 0};
    EXPECT_EQ(choose().point, 1u);
    m.b2[4] = 2;
    EXPECT_EQ(choose().schedule, *precision_schedule::constant({2, 4}, 4, 4, 100));
}

TEST(LearnedSchedule, PlanRefusesWhatDoesNotFit) {
    const parameters m({.heads = 2, .head_size = 4, .hidden = 3, .points = 5});
    const auto code = [](const parameters& p, const schedule_levels& l = levels, const char* isa = nullptr) {
        const auto plan = learned_schedule::plan(p.shape, p.view(), l, {isa});
        return plan ? errc::ok : plan.error().code();
    };
    ASSERT_EQ(code(m), errc::ok);
    for (const auto size :
         {&learned_shape::heads, &learned_shape::head_size, &learned_shape::hidden, &learned_shape::points}) {
        parameters p = m;
        for (const std::size_t n : {std::size_t{0}, m.shape.*size + 1, std::size_t{5000}, ~std::size_t{0}}) {
            p.shape.*size = n;
            EXPECT_EQ(code(p), errc::bad_shape) << n;
        }
    }
    for (const auto values :
         {&parameters::query, &parameters::w1, &parameters::b1, &parameters::w2, &parameters::b2}) {
        parameters p = m;
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            (p.*values).back() = bad;
            EXPECT_EQ(code(p), errc::not_finite);
        }
        (p.*values).pop_back();
        EXPECT_EQ(code(p), errc::bad_shape);
    }
    schedule_levels l = levels;
    l.length = 3;
    EXPECT_EQ(code(m, l), errc::invalid_argument) << "five points over three steps";
    l = levels;
    l.stored = {3, 4};
    EXPECT_EQ(code(m, l), errc::invalid_argument);
    EXPECT_EQ(code(m, levels, "abacus"), errc::unsupported);
}

TEST(LearnedSchedule, RunRefusesWhatItCannotRead) {
    const parameters m({.heads = 2, .head_size = 16, .hidden = 3, .points = 5});
    const auto plan = *learned_schedule::plan(m.shape, m.view(), levels);
    const auto code = [](const crumb::result<crumb::learned_choice>& r) {
        return r ? errc::ok : r.error().code();
    };
    const crumb::kv_cache_options options = {
        .layers = 2, .kv_heads = 2, .head_size = 16, .max_tokens = 300, .codec = crumb::kv_codec::f32()};
    cache_problem c(options);
    crumb::buffer memory(std::max(*plan.scratch_bytes(options), plan.scratch_bytes()) + 1);
    const auto scratch = memory.bytes();
    std::vector<float> p(5);
    EXPECT_EQ(code(plan.run(*c.cache, 0, scratch, p)), errc::invalid_argument) << "no tokens";
    c.fill(20);
    EXPECT_EQ(code(plan.run(*c.cache, 0, scratch, p)), errc::ok);
    EXPECT_EQ(code(plan.run(*c.cache, 2, scratch, p)), errc::invalid_argument) << "no such layer";
    EXPECT_EQ(code(plan.run(*c.cache, 0, scratch, {p.data(), 4})), errc::bad_shape);
    EXPECT_EQ(code(plan.run(*c.cache, 0, scratch.first(*plan.scratch_bytes(options) - 1), p)),
              errc::buffer_too_small);
    EXPECT_EQ(code(plan.run(*c.cache, 0, scratch.subspan(1), p)), errc::misaligned);
    for (const auto size : {&crumb::kv_cache_options::kv_heads, &crumb::kv_cache_options::head_size}) {
        auto other = options;
        other.*size = 8;
        cache_problem wrong(other);
        wrong.fill(2);
        EXPECT_EQ(code(plan.run(*wrong.cache, 0, scratch, p)), errc::bad_shape);
        EXPECT_EQ(plan.scratch_bytes(other).error().code(), errc::bad_shape);
    }

    auto rows = gauss(4 * 32, 8);
    EXPECT_EQ(code(plan.run(crumb::matrix<const float>(rows.data(), 4, 32), scratch, p)), errc::ok);
    EXPECT_EQ(code(plan.run(crumb::matrix<const float>(rows.data(), 0, 32), scratch, p)),
              errc::invalid_argument);
    EXPECT_EQ(code(plan.run(crumb::matrix<const float>(rows.data(), 4, 31), scratch, p)), errc::bad_shape);
    EXPECT_EQ(code(plan.run(crumb::matrix<const float>(rows.data(), 4, 32, 16), scratch, p)),
              errc::bad_shape);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
        rows[70] = bad;
        const auto r = plan.run(crumb::matrix<const float>(rows.data(), 4, 32), scratch, p);
        EXPECT_EQ(code(r), errc::not_finite);
        EXPECT_NE(std::string(r.message()).find("feature 6 of token 2"), std::string::npos) << r.message();
    }
}

TEST(LearnedSchedule, RefusesFeaturesThatOverflow) {
    const parameters m({.heads = 1, .head_size = 16, .hidden = 3, .points = 5}, 100);
    for_each_isa([&](const tested_isa& isa) {
        const auto plan = *learned_schedule::plan(m.shape, m.view(), levels, {isa.name});
        const crumb::kv_cache_options options = {
            .layers = 1, .kv_heads = 1, .head_size = 16, .max_tokens = 9, .codec = crumb::kv_codec::f32()};
        crumb::buffer scratch(*plan.scratch_bytes(options));
        for (const bool keys : {true, false}) {
            cache_problem c(options, isa.name);
            std::vector<float> large(3 * 16, 3e38f), small(3 * 16, 1);
            ASSERT_TRUE(c.cache
                            ->write(0, crumb::matrix<const float>((keys ? large : small).data(), 3, 16),
                                    crumb::matrix<const float>((keys ? small : large).data(), 3, 16))
                            .ok());
            ASSERT_TRUE(c.cache->advance(3).ok());
            const auto got = plan.run(*c.cache, 0, scratch.bytes());
            ASSERT_FALSE(got.ok());
            EXPECT_EQ(got.error().code(), errc::not_finite) << got.message();
        }
    });
}

// ---- training ----

TEST(ScheduleLabel, IsTheShortestPrefixThatMatches) {
    const double scores[] = {0.2, 0.5, 0.4, 0.6, 0.55};
    const std::pair<double, std::size_t> cases[] = {{0.1, 0},  {0.2, 0}, {0.21, 1}, {0.5, 1},
                                                    {0.51, 3}, {0.6, 3}, {0.7, 4}};
    for (const auto& [full, want] : cases)
        EXPECT_EQ(*crumb::switch_label(scores, full), want) << full;
    EXPECT_EQ(crumb::switch_label({}, 0.5).error().code(), errc::invalid_argument);
    EXPECT_EQ(crumb::switch_label(std::span(scores, 1), 0.5).error().code(), errc::invalid_argument);
    EXPECT_EQ(crumb::switch_label(scores, NAN).error().code(), errc::not_finite);
    const double broken[] = {0.7, NAN};
    EXPECT_EQ(crumb::switch_label(broken, 0.5).error().code(), errc::not_finite);
}

/// Samples and the rows that they refer to.
struct sample_set {
    std::size_t width;
    std::vector<std::vector<float>> memory;
    std::vector<schedule_sample> samples;

    explicit sample_set(std::size_t w) : width(w) {}
    void add(std::vector<float> keys, std::vector<float> values, std::size_t label, std::size_t stride = 0) {
        stride = stride == 0 ? width : stride;
        const std::size_t tokens = keys.size() / stride;
        memory.push_back(std::move(keys));
        const float* k = memory.back().data();
        memory.push_back(std::move(values));
        samples.push_back({crumb::matrix(k, tokens, width, stride),
                           crumb::matrix<const float>(memory.back().data(), tokens, width, stride), label});
    }
};

TEST(ScheduleTraining, GradientIsTheDifferenceQuotient) {
    const learned_shape shape = {.heads = 2, .head_size = 5, .hidden = 7, .points = 4};
    crumb::schedule_network network(shape);
    network.center.setRandom();
    network.scale = network.scale + 0.5 * Eigen::VectorXd::LinSpaced(10, -1, 1);
    sample_set set(10);
    set.add(gauss(9 * 10, 1), gauss(9 * 10, 2), 3);
    set.add(gauss(4 * 13, 3), gauss(4 * 13, 4), 0, 13);
    const auto start = gauss(static_cast<std::size_t>(network.parameters()), 5, 0.7f);
    Eigen::VectorXd theta =
        Eigen::Map<const Eigen::VectorXf>(start.data(), network.parameters()).cast<double>();
    ASSERT_EQ(network.parameters(), 10 + 7 * 10 + 7 + 4 * 7 + 4);

    const auto loss = [&] {
        return -1.5 * network.log_probabilities(theta, set.samples[0])[3] -
               0.5 * network.log_probabilities(theta, set.samples[1])[0];
    };
    Eigen::VectorXd gradient = Eigen::VectorXd::Zero(theta.size());
    const double reported = network.loss(theta, set.samples[0], 1.5, gradient) +
                            network.loss(theta, set.samples[1], 0.5, gradient);
    EXPECT_NEAR(reported, loss(), 1e-12);
    // The quotient is off by step^2 times a third derivative and by rounding / step.
    constexpr double step = 1e-5;
    for (Eigen::Index i = 0; i < theta.size(); ++i) {
        const double at = theta[i];
        theta[i] = at + step;
        const double above = loss();
        theta[i] = at - step;
        const double below = loss();
        theta[i] = at;
        EXPECT_NEAR(gradient[i], (above - below) / (2 * step), 1e-8) << "parameter " << i;
    }
    EXPECT_GT(gradient.head(10).norm(), 1e-3) << "the query has no part in this";
}

/// One token says the label in its value; only its key tells which one that is.
sample_set marked_tokens(std::size_t count, std::size_t points, unsigned seed) {
    constexpr std::size_t d = 8;
    crumb::splitmix64 random(seed);
    sample_set set(2 * d);
    for (std::size_t n = 0; n < count; ++n) {
        const std::size_t tokens = 12 + random.below(20), at = random.below(tokens),
                          label = random.below(points);
        auto keys = gauss(tokens * 2 * d, unsigned(random.below(1 << 30)), 0.5f);
        auto values = gauss(tokens * 2 * d, unsigned(random.below(1 << 30)));
        for (std::size_t t = 0; t < tokens; ++t)
            keys[t * 2 * d] = t == at ? 4.0f : 0.0f;
        for (std::size_t i = 0; i < points; ++i)
            values[at * 2 * d + i] = i == label ? 3.0f : 0.0f;
        set.add(std::move(keys), std::move(values), label);
    }
    return set;
}

schedule_training_options quick() {
    schedule_training_options o;
    o.hidden = 16;
    o.epochs = 80;
    o.rate = 0.02;
    o.held_out = 0.25;
    o.patience = 30;
    return o;
}

TEST(ScheduleTraining, LearnsWhereToLook) {
    const auto set = marked_tokens(240, 5, 1), fresh = marked_tokens(60, 5, 2);
    auto options = quick();
    std::vector<double> losses;
    options.progress = [&](std::size_t epoch, const crumb::schedule_epoch& e) {
        EXPECT_EQ(epoch, losses.size());
        losses.push_back(e.loss);
    };
    const auto trained = crumb::train_schedule(set.samples, 2, 8, 5, options);
    ASSERT_TRUE(trained.ok()) << trained.message();
    EXPECT_EQ(losses.size(), trained->epochs.size());
    EXPECT_LT(trained->epochs.back().loss, 0.1 * trained->epochs.front().loss);
    EXPECT_GE(trained->accuracy, 0.95);
    EXPECT_GE(trained->held_out_accuracy, 0.9);
    // Labels are drawn evenly: none is half of them.
    EXPECT_GT(trained->held_out_majority, 0.0);
    EXPECT_LT(trained->held_out_majority, 0.5);

    // What was trained is what inference computes, over a cache.
    const auto plan = learned_schedule::plan(trained->shape, trained->weights(), levels);
    ASSERT_TRUE(plan.ok()) << plan.message();
    std::size_t right = 0;
    for (const schedule_sample& s : fresh.samples) {
        cache_problem c({.layers = 1,
                         .kv_heads = 2,
                         .head_size = 8,
                         .max_tokens = 64,
                         .max_rows = 64,
                         .codec = crumb::kv_codec::f16()});
        ASSERT_TRUE(c.cache->write(0, s.keys, s.values).ok());
        EXPECT_TRUE(c.cache->advance(s.keys.rows).ok());
        crumb::buffer scratch(*plan->scratch_bytes(c.options));
        const auto got = plan->run(*c.cache, 0, scratch.bytes());
        ASSERT_TRUE(got.ok()) << got.message();
        right += got->point == s.label;
    }
    EXPECT_GE(double(right), 0.9 * double(fresh.samples.size()));
}

TEST(ScheduleTraining, ResultIsTheNetworkThatWasTrained) {
    // Channels far from zero mean and unit variance, so that folding them into the first layer matters.
    sample_set set(16);
    for (unsigned n = 0; n < 40; ++n) {
        auto rows = gauss(6 * 16, 100 + n);
        for (std::size_t i = 0; i < rows.size(); ++i)
            rows[i] = 50 + rows[i] * (i % 16 == 3 ? 20.0f : 0.1f) + (i % 16 == n % 3 ? 1.0f : 0.0f);
        set.add(rows, rows, n % 3);
    }
    auto options = quick();
    options.held_out = 0;
    const auto trained = crumb::train_schedule(set.samples, 2, 8, 3, options);
    ASSERT_TRUE(trained.ok()) << trained.message();
    EXPECT_EQ(trained->best_epoch + 1, options.epochs) << "nothing is held out";
    EXPECT_EQ(trained->held_out_accuracy, 0.0);
    EXPECT_EQ(trained->held_out_majority, 0.0);
    EXPECT_GE(trained->accuracy, 0.95);
    const auto plan = *learned_schedule::plan(trained->shape, trained->weights(), levels);
    crumb::buffer scratch(plan.scratch_bytes());
    std::size_t right = 0;
    for (const auto& s : set.samples)
        right += plan.run(s.values, scratch.bytes())->point == s.label;
    EXPECT_EQ(double(right) / double(set.samples.size()), trained->accuracy);
}

TEST(ScheduleTraining, SeedsDecide) {
    const auto set = marked_tokens(40, 3, 4);
    auto options = quick();
    options.epochs = 3;
    const auto a = crumb::train_schedule(set.samples, 2, 8, 3, options);
    const auto b = crumb::train_schedule(set.samples, 2, 8, 3, options);
    options.seed = 2;
    const auto c = crumb::train_schedule(set.samples, 2, 8, 3, options);
    EXPECT_EQ(a->query, b->query);
    EXPECT_EQ(a->w1, b->w1);
    EXPECT_EQ(a->b1, b->b1);
    EXPECT_EQ(a->w2, b->w2);
    EXPECT_EQ(a->b2, b->b2);
    EXPECT_NE(a->w1, c->w1);
}

TEST(ScheduleTraining, StopsEarlyAndKeepsTheBest) {
    // Labels that mean nothing: what is learned by heart does not help those held out.
    sample_set set(16);
    for (unsigned n = 0; n < 60; ++n)
        set.add(gauss(5 * 16, 300 + n), gauss(5 * 16, 400 + n), n * n % 7 % 3);
    auto options = quick();
    options.epochs = 300;
    options.patience = 5;
    const auto stopped = crumb::train_schedule(set.samples, 2, 8, 3, options);
    ASSERT_TRUE(stopped.ok()) << stopped.message();
    EXPECT_EQ(stopped->epochs.size(), stopped->best_epoch + 1 + options.patience);
    EXPECT_LT(stopped->epochs.size(), options.epochs);
    for (const auto& e : stopped->epochs)
        EXPECT_GE(e.held_out_loss, stopped->epochs[stopped->best_epoch].held_out_loss);
    options.epochs = stopped->best_epoch + 1;
    const auto until_then = crumb::train_schedule(set.samples, 2, 8, 3, options);
    EXPECT_EQ(stopped->w1, until_then->w1);
    EXPECT_EQ(stopped->b2, until_then->b2);
}

TEST(ScheduleTraining, WeighsClasses) {
    // Features that tell nothing: probabilities become the labels' shares, as weighted.
    sample_set set(4);
    for (unsigned n = 0; n < 50; ++n)
        set.add(std::vector<float>(8, 1), std::vector<float>(8, 1), n % 5 == 0 ? 1 : 0);
    auto options = quick();
    options.held_out = 0;
    options.epochs = 300;
    options.batch = 50;
    for (const double weight : {1.0, 12.0}) {
        options.class_weights = {1, weight};
        const auto trained = crumb::train_schedule(set.samples, 1, 4, 2, options);
        ASSERT_TRUE(trained.ok()) << trained.message();
        const auto plan = *learned_schedule::plan(trained->shape, trained->weights(), levels);
        crumb::buffer scratch(plan.scratch_bytes());
        std::vector<float> p(2);
        ASSERT_TRUE(plan.run(set.samples[0].values, scratch.bytes(), p).ok());
        EXPECT_NEAR(double(p[1]), weight / (4 + weight), 0.01);
    }
}

TEST(ScheduleTraining, L2KeepsWeightsSmall) {
    const auto set = marked_tokens(60, 3, 4);
    auto options = quick();
    const auto norm = [&](double l2) {
        options.l2 = l2;
        const auto trained = crumb::train_schedule(set.samples, 2, 8, 3, options);
        return std::inner_product(trained->w2.begin(), trained->w2.end(), trained->w2.begin(), 0.0);
    };
    EXPECT_LT(norm(0.1), 0.5 * norm(0));
}

TEST(ScheduleTraining, RefusesWhatItCannotLearnFrom) {
    auto set = marked_tokens(4, 3, 4);
    const auto code = [&](std::size_t heads = 2, std::size_t size = 8, std::size_t points = 3,
                          const schedule_training_options& o = quick()) {
        auto options = o;
        options.epochs = std::min<std::size_t>(options.epochs, 1);
        const auto trained = crumb::train_schedule(set.samples, heads, size, points, options);
        return trained ? errc::ok : trained.error().code();
    };
    ASSERT_EQ(code(), errc::ok);
    EXPECT_EQ(code(2, 7), errc::bad_shape);
    EXPECT_EQ(code(0, 8), errc::bad_shape);
    EXPECT_EQ(code(2, 0), errc::bad_shape);
    EXPECT_EQ(code(1, 513), errc::bad_shape);
    EXPECT_EQ(code(2, 8, 1), errc::bad_shape);

    const auto good = set.samples;
    const auto changed = [&](auto&& change) {
        set.samples = good;
        change(set.samples[1]);
        return code();
    };
    EXPECT_EQ(changed([](schedule_sample& s) { s.label = 3; }), errc::invalid_argument);
    EXPECT_EQ(changed([](schedule_sample& s) { s.keys.rows = s.values.rows = 0; }), errc::bad_shape);
    EXPECT_EQ(changed([](schedule_sample& s) { --s.values.rows; }), errc::bad_shape);
    EXPECT_EQ(changed([](schedule_sample& s) { --s.keys.cols; }), errc::bad_shape);
    EXPECT_EQ(changed([](schedule_sample& s) { --s.values.cols; }), errc::bad_shape);
    EXPECT_EQ(changed([](schedule_sample& s) { s.keys.stride = 15; }), errc::bad_shape);
    set.samples = good;
    for (const std::size_t at : {2, 3})
        for (const float bad : {NAN, INFINITY}) {
            const float before = std::exchange(set.memory[at][17], bad);
            EXPECT_EQ(code(), errc::not_finite);
            set.memory[at][17] = before;
        }
    ASSERT_EQ(code(), errc::ok);

    const auto with = [&](auto&& change) {
        auto o = quick();
        change(o);
        return code(2, 8, 3, o);
    };
    using options = schedule_training_options;
    EXPECT_EQ(with([](options& o) { o.hidden = 0; }), errc::invalid_argument);
    EXPECT_EQ(with([](options& o) { o.hidden = 5000; }), errc::bad_shape);
    EXPECT_EQ(with([](options& o) { o.epochs = 0; }), errc::invalid_argument);
    EXPECT_EQ(with([](options& o) { o.batch = 0; }), errc::invalid_argument);
    for (const double bad : {0.0, -1.0, double(NAN), double(INFINITY)})
        EXPECT_EQ(with([&](options& o) { o.rate = bad; }), errc::invalid_argument);
    for (const double bad : {-1.0, double(NAN), double(INFINITY)})
        EXPECT_EQ(with([&](options& o) { o.l2 = bad; }), errc::invalid_argument);
    for (const double bad : {-0.1, 1.0, double(NAN)})
        EXPECT_EQ(with([&](options& o) { o.held_out = bad; }), errc::invalid_argument);
    EXPECT_EQ(with([](options& o) { o.class_weights = {1, 1}; }), errc::bad_shape);
    for (const double bad : {0.0, -1.0, double(NAN), double(INFINITY)})
        EXPECT_EQ(with([&](options& o) { o.class_weights = {1, bad, 1}; }), errc::invalid_argument);
    EXPECT_EQ(with([](options& o) { o.rate = 1e200; }), errc::not_finite) << "steps that lead nowhere";
    EXPECT_EQ(with([](options& o) { o.held_out = std::nextafter(1.0, 0.0); }), errc::ok);

    set.samples.clear();
    EXPECT_EQ(code(), errc::invalid_argument);
}

} // namespace
} // namespace test_schedule_training
