// Dense-and-sparse decomposition: what is kept, and what error feedback makes of the rest.
#include "eval/evaluate.hpp"
#include "lab/commands.hpp"
#include "lab/sparse.hpp"
#include "lm/tiny_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace test_sparse {
namespace {

using namespace lm::test;
using lm::lab::decomposed_matrix;
using lm::lab::sparse_feedback;

constexpr std::size_t outputs = 24, inputs = 96;

/// Weights with heavy tails for inputs that have much in common.
struct problem {
    std::vector<float> weights;
    crumb::second_moments<double> moments{inputs};
    crumb::nested_levels levels = crumb::nested_levels::uniform(2, 4);

    problem() : weights(outputs * inputs) {
        std::mt19937 random(3);
        std::normal_distribution<float> normal;
        for (float& w : weights) {
            w = 0.1f * normal(random);
            if (random() % 40 == 0)
                w *= 8;
        }
        std::vector<float> x(400 * inputs);
        for (std::size_t r = 0; r < 400; ++r) {
            const float common = normal(random), other = normal(random);
            for (std::size_t i = 0; i < inputs; ++i)
                x[r * inputs + i] = common + (i % 2 == 0 ? other : -other) + 0.3f * normal(random) + 0.5f;
        }
        EXPECT_TRUE(moments.add(crumb::matrix<const float>(x.data(), 400, inputs)));
    }
    crumb::matrix_view<const float> w() const {
        return crumb::matrix<const float>(weights.data(), outputs, inputs);
    }
    decomposed_matrix decomposed(double share, std::size_t threads = 1) const {
        const auto feedback = sparse_feedback::make(moments.centered(), moments.mean());
        EXPECT_TRUE(feedback) << feedback.message();
        auto out = feedback->decompose(w(), lm::lab::find_outliers(w(), moments.importance(), share), levels,
                                       lm::team(threads));
        EXPECT_TRUE(out) << out.message();
        return std::move(*out);
    }
    /// (w - q) H (w - q)^T, all rows together.
    double error(const std::vector<float>& q) const {
        const auto h = moments.centered();
        double sum = 0;
        for (std::size_t r = 0; r < outputs; ++r) {
            Eigen::RowVectorXd e(inputs);
            for (std::size_t i = 0; i < inputs; ++i)
                e[static_cast<Eigen::Index>(i)] = double{weights[r * inputs + i]} - q[r * inputs + i];
            sum += (e * h).dot(e);
        }
        return sum;
    }
    /// The `count` weights that are farthest off become exact.
    std::vector<float> restored(std::vector<float> q, std::size_t count) const {
        std::vector<std::size_t> order(q.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return std::fabs(weights[a] - q[a]) > std::fabs(weights[b] - q[b]);
        });
        for (std::size_t i = 0; i < count; ++i)
            q[order[i]] = weights[order[i]];
        return q;
    }
};

TEST(Outliers, AreTheLargestByImportance) {
    const std::vector<float> w = {1, -3, 2, 0.5f, 0, 4, -1, 2};
    const auto view = crumb::matrix<const float>(w.data(), 2, 4);
    const std::vector<float> even(4, 1.0f), last = {1, 1, 1, 100};
    EXPECT_EQ(lm::lab::find_outliers(view, even, 0.25), (std::vector<std::uint8_t>{0, 1, 0, 0, 0, 1, 0, 0}));
    EXPECT_EQ(lm::lab::find_outliers(view, last, 0.25), (std::vector<std::uint8_t>{0, 0, 0, 1, 0, 0, 0, 1}));
    EXPECT_EQ(lm::lab::find_outliers(view, even, 0), std::vector<std::uint8_t>(8, 0));
    EXPECT_EQ(lm::lab::find_outliers(view, even, 2), std::vector<std::uint8_t>(8, 1));
}

TEST(SparseFeedback, KeepsOutliersExactly) {
    const problem p;
    const decomposed_matrix m = p.decomposed(0.05);
    EXPECT_EQ(std::accumulate(m.kept.begin(), m.kept.end(), std::size_t{0}), outputs * inputs / 20);
    for (int bits = 2; bits <= 4; ++bits) {
        const auto q = lm::lab::expand(m, p.w(), bits);
        for (std::size_t i = 0; i < q.size(); ++i)
            if (m.kept[i] != 0) {
                EXPECT_EQ(q[i], p.weights[i]);
            }
        EXPECT_NE(q, p.weights);
    }
}

// Outliers that are taken out of finished codes leave the errors that were to balance theirs.
TEST(SparseFeedback, IsBetterThanNoSparsePartAndThanOneThatComesLater) {
    const problem p;
    const decomposed_matrix none = p.decomposed(0), some = p.decomposed(0.02);
    for (int bits = 2; bits <= 4; ++bits) {
        const auto plain = lm::lab::expand(none, p.w(), bits);
        const double alone = p.error(plain), fair = p.error(lm::lab::expand(some, p.w(), bits));
        const double late = p.error(p.restored(plain, outputs * inputs / 50));
        EXPECT_LT(fair, 0.7 * alone) << bits;
        EXPECT_LT(fair, 0.7 * late) << bits;
    }
}

TEST(SparseFeedback, WithoutOutliersIsNestedFeedback) {
    const problem p;
    const decomposed_matrix m = p.decomposed(0);
    auto h = p.moments.centered();
    const auto system =
        crumb::feedback_system::make(crumb::matrix<const double>(h.data(), inputs, inputs), 0.05);
    ASSERT_TRUE(system);
    auto q = crumb::nested_quantized::zeros(p.levels, outputs, inputs);
    ASSERT_TRUE(crumb::nested_feedback(*system).quantize(p.w(), q));
    EXPECT_EQ(m.dense.codes, q.codes);
    ASSERT_TRUE(crumb::correct_means(p.w(), p.moments.mean(), q));
    for (std::size_t i = 0; i < q.corrections.size(); ++i)
        EXPECT_NEAR(crumb::to_float(m.dense.corrections[i]), crumb::to_float(q.corrections[i]), 1e-3);
}

TEST(SparseFeedback, ThreadsMakeNoDifference) {
    const problem p;
    const decomposed_matrix a = p.decomposed(0.03), b = p.decomposed(0.03, 3);
    EXPECT_EQ(a.dense.codes, b.dense.codes);
    EXPECT_EQ(lm::lab::expand(a, p.w(), 3), lm::lab::expand(b, p.w(), 3));
}

TEST(SparseFeedback, RefusesOtherShapes) {
    const problem p;
    EXPECT_FALSE(sparse_feedback::make(p.moments.centered(), std::vector<float>(5)));
    const auto feedback = sparse_feedback::make(p.moments.centered(), p.moments.mean());
    ASSERT_TRUE(feedback);
    EXPECT_FALSE(feedback->decompose(crumb::matrix<const float>(p.weights.data(), 32, 64),
                                     std::vector<std::uint8_t>(32 * 64), p.levels, lm::team(1)));
    EXPECT_FALSE(feedback->decompose(p.w(), {}, p.levels, lm::team(1)));
}

/// Tiny models and their nested weights.
class Decomposer : public testing::TestWithParam<lm::architecture> {
  protected:
    static tiny_shape shape() {
        return {.arch = GetParam(), .width = 64, .hidden = 96, .heads = 4, .kv_heads = 2};
    }
    Decomposer() {
        lm::quantize_options o;
        o.model = source_.path();
        o.weights = lm::weight_type::nested;
        o.vocabulary = lm::weight_type::stored;
        o.chunks = 8;
        o.sweeps = 0;
        o.threads = 1;
        o.out = nested_.path();
        const auto done = lm::quantize(o);
        EXPECT_TRUE(done) << done.message();
    }
    static lm::model loaded(const temporary_file& file, const lm::model_options& how) {
        auto m = lm::model::load(file.path(), how);
        EXPECT_TRUE(m) << m.message();
        return std::move(*m);
    }
    lm::model nested(lm::activation_type activations = lm::activation_type::f32) const {
        return loaded(nested_, {lm::weight_type::stored, activations});
    }

    temporary_file source_{tiny_model(shape()).file()}, nested_{bytes()};
    lm::model full_ = loaded(source_, {lm::weight_type::f32, lm::activation_type::f32});
};

TEST_P(Decomposer, PutsPartsIntoNestedModels) {
    const auto divergence = [&](const lm::model& m, int bits) {
        auto a = lm::session::make(m, lm::team(1), lm::kv_type::f16, 48, 48);
        auto b = lm::session::make(full_, lm::team(1), lm::kv_type::f16, 48, 48);
        a->precision(bits);
        const auto e = lm::evaluate(*a, &*b, random_tokens(192, 4), 48, 0, {});
        EXPECT_TRUE(e) << e.message();
        return e->kl;
    };
    const auto decomposer = lm::lab::decomposer::make(full_, "", 8, 1);
    ASSERT_TRUE(decomposer) << decomposer.message();
    const auto all = decomposer->run({2, 2}, 1);
    ASSERT_TRUE(all) << all.message();
    lm::model exact = nested();
    ASSERT_TRUE(decomposer->put(*all, 2, exact));
    EXPECT_LT(divergence(exact, 2), 1e-9) << "all weights are kept";
    const auto some = decomposer->run({2, 2}, 0.2);
    ASSERT_TRUE(some) << some.message();
    lm::model sparse = nested();
    const double before = divergence(sparse, 2), other = divergence(sparse, 3);
    ASSERT_TRUE(decomposer->put(*some, 2, sparse));
    EXPECT_LT(divergence(sparse, 2), 0.8 * before);
    EXPECT_EQ(divergence(sparse, 3), other);
    lm::model kernels = nested(lm::activation_type::int8);
    EXPECT_FALSE(decomposer->put(*some, 2, kernels)) << "only floats can be replaced";
}

TEST_P(Decomposer, MakesControlsOfSchedules) {
    const temporary_file file = text_file(60);
    lm::lab::schedules_options o;
    o.model = nested_.path();
    o.text = o.calibrate = file.path();
    o.threads = 1;
    o.only = "3 bits and 1.0 % sparse|2 bits and 1.0 % sparse, nested";
    o.study.against = source_.path();
    o.study.prompts = 2;
    o.study.prompt = 16;
    o.study.tokens = 12;
    const auto rows = [&] {
        testing::internal::CaptureStdout();
        const auto done = lm::lab::schedules(o);
        const std::string out = testing::internal::GetCapturedStdout();
        EXPECT_TRUE(done) << done.message();
        return out;
    };
    const std::string out = rows();
    std::size_t from = 0;
    for (const char* row :
         {"3 bits and 1.0 % sparse             3.333", "3 bits and 1.0 % sparse, nested     3.333",
          "2 bits and 1.0 % sparse, nested     2.333"}) {
        const std::size_t at = out.find(row, from);
        ASSERT_NE(at, out.npos) << row << " is not in order in " << out;
        from = at;
    }
    EXPECT_EQ(out.find("2.1 % sparse"), out.npos) << out;
    o.calibrate.clear();
    EXPECT_EQ(rows().find("sparse"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Models, Decomposer,
                         testing::Values(lm::architecture::llama, lm::architecture::gpt2));

} // namespace
} // namespace test_sparse
