// Perplexity, KL divergence and agreement against their definitions.
#include "eval/evaluate.hpp"
#include "fed.hpp"
#include "tiny_model.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace test_evaluate {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::architecture;
using lm::weight_type;

/// A model with a session.
struct loaded {
    explicit loaded(const tiny_model& tiny, const lm::model_options& options = {})
        : file(tiny.file()), m(std::move(*lm::model::load(file.path(), options))),
          s(std::move(*lm::session::make(m, lm::team(1), lm::kv_type::f16, m.shape().context, 16))) {}

    temporary_file file;
    lm::model m;
    lm::session s;
};

std::vector<double> probabilities(std::span<const double> logits) {
    std::vector<double> p(logits.begin(), logits.end());
    double sum = 0;
    for (double& each : p)
        sum += each = std::exp(each);
    for (double& each : p)
        each /= sum;
    return p;
}

/// The probabilities behind every token of a window.
std::vector<std::vector<double>> window(lm::session& s, std::span<const std::int32_t> tokens) {
    s.reset();
    const auto logits = fed(s, tokens, tokens.size());
    const std::vector<double> exact(logits.begin(), logits.end());
    std::vector<std::vector<double>> out;
    for (std::size_t t = 0; t < tokens.size(); ++t)
        out.push_back(probabilities(std::span(exact).subspan(t * 256, 256)));
    return out;
}

struct moments {
    double mean = 0, error = 0;
};
moments moments_of(const std::vector<double>& x) {
    moments m;
    const auto n = static_cast<double>(x.size());
    for (const double v : x)
        m.mean += v / n;
    for (const double v : x)
        m.error += (v - m.mean) * (v - m.mean) / (n - 1) / n;
    m.error = std::sqrt(m.error);
    return m;
}

constexpr lm::model_options in_full = {weight_type::f32, activation_type::f32};

class Evaluate : public testing::TestWithParam<architecture> {
  protected:
    tiny_shape shape() const {
        return {.arch = GetParam(),
                .width = 24,
                .heads = 3,
                .kv_heads = GetParam() == architecture::llama ? 1u : 3u};
    }
    const std::vector<std::int32_t> text_ = random_tokens(150, 7);
};

TEST_P(Evaluate, ScoresTheSecondHalfOfEveryWindow) {
    loaded l{tiny_model(shape())};
    for (const std::size_t ctx : {4, 5, 16, 31, 48}) {
        std::vector<double> nll;
        const std::size_t windows = text_.size() / ctx;
        for (std::size_t w = 0; w < windows; ++w) {
            const auto tokens = std::span(text_).subspan(w * ctx, ctx);
            const auto p = window(l.s, tokens);
            for (std::size_t i = ctx / 2; i <= ctx - 2; ++i)
                nll.push_back(-std::log(p[i][static_cast<std::size_t>(tokens[i + 1])]));
        }
        std::size_t calls = 0;
        const auto e = lm::evaluate(l.s, nullptr, text_, ctx, 0, [&](std::size_t done, std::size_t all) {
            EXPECT_EQ(done, ++calls);
            EXPECT_EQ(all, windows);
        });
        ASSERT_TRUE(e.ok()) << e.message();
        EXPECT_EQ(calls, windows);
        EXPECT_EQ(e->tokens, windows * (ctx - 1 - ctx / 2));
        EXPECT_EQ(e->tokens, nll.size());
        EXPECT_EQ(e->fed, windows * ctx);
        EXPECT_GT(e->seconds, 0);
        EXPECT_NEAR(e->nll, moments_of(nll).mean, 1e-12);
        EXPECT_NEAR(e->nll_error, moments_of(nll).error, 1e-12);
        EXPECT_EQ(e->kl, 0);
        EXPECT_EQ(e->agreement, 0);
    }
}

TEST_P(Evaluate, TakesAsManyWindowsAsWanted) {
    loaded l{tiny_model(shape())};
    const auto two = lm::evaluate(l.s, nullptr, text_, 32, 2, {});
    const auto first = lm::evaluate(l.s, nullptr, std::span(text_).first(2 * 32 + 31), 32, 0, {});
    ASSERT_TRUE(two.ok() && first.ok());
    EXPECT_EQ(two->tokens, 2u * 15u);
    EXPECT_EQ(two->nll, first->nll);
    // More windows than there are.
    const auto all = lm::evaluate(l.s, nullptr, text_, 32, 100, {});
    EXPECT_EQ(all->tokens, 4u * 15u);
    EXPECT_EQ(all->nll, lm::evaluate(l.s, nullptr, text_, 32, 0, {})->nll);
}

TEST_P(Evaluate, AgreesWithItself) {
    loaded l{tiny_model(shape())};
    loaded same{tiny_model(shape())};
    const auto alone = lm::evaluate(l.s, nullptr, text_, 48, 0, {});
    const auto e = lm::evaluate(l.s, &same.s, text_, 48, 0, {});
    ASSERT_TRUE(e.ok()) << e.message();
    EXPECT_EQ(e->kl, 0);
    EXPECT_EQ(e->kl_error, 0);
    EXPECT_EQ(e->agreement, 1);
    EXPECT_EQ(e->nll, alone->nll);
}

TEST_P(Evaluate, MeasuresTheDistanceFromAReference) {
    tiny_shape other = shape();
    other.seed = 2;
    loaded reference(tiny_model(shape()), in_full);
    // Another model, and the same one with fewer bits.
    loaded models[] = {loaded(tiny_model(other), in_full),
                       loaded(tiny_model(shape()), {weight_type::q4_0, activation_type::int8})};
    double distances[2], agreements[2];
    for (std::size_t i = 0; i < 2; ++i) {
        lm::session& s = models[i].s;
        const std::size_t ctx = 40;
        std::vector<double> kl, agreement, nll;
        for (std::size_t w = 0; w < text_.size() / ctx; ++w) {
            const auto tokens = std::span(text_).subspan(w * ctx, ctx);
            const auto p = window(reference.s, tokens), q = window(s, tokens);
            for (std::size_t t = ctx / 2; t <= ctx - 2; ++t) {
                double sum = 0;
                for (std::size_t v = 0; v < 256; ++v)
                    sum += p[t][v] * std::log(p[t][v] / q[t][v]);
                kl.push_back(sum);
                const auto likeliest = [](const std::vector<double>& x) {
                    return std::max_element(x.begin(), x.end()) - x.begin();
                };
                agreement.push_back(likeliest(p[t]) == likeliest(q[t]) ? 1 : 0);
                nll.push_back(-std::log(q[t][static_cast<std::size_t>(tokens[t + 1])]));
            }
        }
        const auto e = lm::evaluate(s, &reference.s, text_, ctx, 0, {});
        ASSERT_TRUE(e.ok()) << e.message();
        EXPECT_NEAR(e->kl, moments_of(kl).mean, 1e-12);
        EXPECT_NEAR(e->kl_error, moments_of(kl).error, 1e-12);
        EXPECT_NEAR(e->agreement, moments_of(agreement).mean, 1e-12);
        EXPECT_NEAR(e->nll, moments_of(nll).mean, 1e-12);
        distances[i] = e->kl;
        agreements[i] = e->agreement;
    }
    EXPECT_GT(distances[1], 0);
    EXPECT_GT(distances[0], 10 * distances[1]);
    EXPECT_LT(agreements[0], agreements[1]);
}

TEST_P(Evaluate, RefusesWindowsThatDoNotFit) {
    loaded l{tiny_model(shape())};
    tiny_shape small = shape();
    small.context = 20;
    loaded shorter{tiny_model(small)};
    const auto error = [&](lm::session* reference, std::size_t ctx, std::size_t size) {
        const auto e = lm::evaluate(l.s, reference, std::span(text_).first(size), ctx, 0, {});
        return std::string(e.ok() ? "" : e.message());
    };
    EXPECT_EQ(error(nullptr, 48, 48), "");
    EXPECT_EQ(error(nullptr, 4, 4), "");
    EXPECT_EQ(error(nullptr, 3, 100), "a window of 3 tokens is too short: 4 are needed");
    EXPECT_EQ(error(nullptr, 0, 100), "a window of 0 tokens is too short: 4 are needed");
    EXPECT_EQ(error(nullptr, 49, 100), "a window of 49 tokens does not fit the context of 48");
    EXPECT_EQ(error(&shorter.s, 21, 100), "a window of 21 tokens does not fit the context of 20");
    EXPECT_EQ(error(nullptr, 48, 47), "the text has 47 tokens, one window needs 48");
    EXPECT_EQ(error(nullptr, 48, 0), "the text has 0 tokens, one window needs 48");
}

TEST_P(Evaluate, RefusesOutputThatIsNotFinite) {
    tiny_model m(shape());
    m.add("output.weight", lm::ggml_type::f32, 256, 24, 1e38f);
    loaded large(m), usual{tiny_model(shape())};
    for (const auto& e : {lm::evaluate(large.s, nullptr, text_, 48, 0, {}),
                          lm::evaluate(usual.s, &large.s, text_, 48, 0, {})}) {
        ASSERT_FALSE(e.ok());
        EXPECT_EQ(e.error().code(), crumb::errc::not_finite);
        EXPECT_EQ(std::string(e.message()).find("tensor output.weight: channel "), 0u) << e.message();
    }
}

INSTANTIATE_TEST_SUITE_P(All, Evaluate, testing::Values(architecture::llama, architecture::gpt2),
                         [](const auto& test) {
                             return test.param == architecture::llama ? "Llama" : "Gpt2";
                         });

TEST(Surprise, IsTheNegativeLogarithmOfTheProbability) {
    const float logits[] = {0.0f, 1.0f, -2.0f};
    const double sum = 1 + std::exp(1.0) + std::exp(-2.0);
    EXPECT_NEAR(lm::surprise(logits, 0), std::log(sum), 1e-15);
    EXPECT_NEAR(lm::surprise(logits, 2), std::log(sum) + 2, 1e-15);
    // Far from what exp can hold.
    const float large[] = {1000.0f, 990.0f, -1000.0f};
    EXPECT_NEAR(lm::surprise(large, 1), 10 + std::log1p(std::exp(-10.0)), 1e-12);
    EXPECT_NEAR(lm::surprise(large, 2), 2000, 1e-3);
}

} // namespace
} // namespace test_evaluate
