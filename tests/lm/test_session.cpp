// Forward passes: against double precision, and that nothing depends on batches and threads.
#include "decisions.hpp"
#include "fed.hpp"
#include "model/session.hpp"
#include "naive_model.hpp"
#include "tiny_model.hpp"
#include "train/rotation.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace test_session {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::architecture;
using lm::ggml_type;
using lm::kv_type;
using lm::weight_type;

constexpr tiny_shape shapes[] = {
    {.rope_dims = 4, .name = "LlamaOdd"},
    {.width = 30, .hidden = 37, .heads = 3, .kv_heads = 3, .tied = true, .name = "LlamaTied"},
    {.width = 32,
     .hidden = 70,
     .layers = 1,
     .heads = 4,
     .kv_heads = 1,
     .matrices = ggml_type::f16,
     .embedding = ggml_type::f16,
     .name = "LlamaF16"},
    {.width = 64,
     .hidden = 96,
     .heads = 2,
     .kv_heads = 1,
     .rope_dims = 20,
     .tied = true,
     .matrices = ggml_type::q8_0,
     .embedding = ggml_type::q8_0,
     .name = "LlamaQ8_0"},
    {.width = 96,
     .hidden = 32,
     .heads = 6,
     .kv_heads = 2,
     .matrices = ggml_type::q4_0,
     .embedding = ggml_type::f16,
     .name = "LlamaQ4_0"},
    {.arch = architecture::gpt2, .width = 24, .hidden = 41, .heads = 3, .name = "Gpt2Odd"},
    {.arch = architecture::gpt2,
     .width = 40,
     .hidden = 72,
     .heads = 2,
     .tied = true,
     .matrices = ggml_type::f16,
     .embedding = ggml_type::f16,
     .name = "Gpt2F16"},
    {.arch = architecture::gpt2,
     .width = 64,
     .hidden = 128,
     .layers = 1,
     .heads = 4,
     .matrices = ggml_type::q4_0,
     .embedding = ggml_type::q4_0,
     .name = "Gpt2Q4_0"},
};

struct precision {
    weight_type weights = weight_type::stored;
    activation_type activations = activation_type::int8;
    kv_type kv = kv_type::f16;
};
constexpr precision full = {weight_type::f32, activation_type::f32, kv_type::f32};
constexpr precision int8 = {weight_type::q8_0, activation_type::int8, kv_type::f16};

class Session : public testing::TestWithParam<tiny_shape> {
  protected:
    lm::model load(const precision& p) const {
        auto m = lm::model::load(file_.path(), {p.weights, p.activations});
        EXPECT_TRUE(m.ok()) << m.message();
        return std::move(*m);
    }
    static lm::session start(const lm::model& m, kv_type kv, std::size_t threads = 1,
                             std::size_t batch = 64) {
        return start(m, kv, lm::team(threads, together), batch);
    }
    static lm::session start(const lm::model& m, kv_type kv, const lm::team& threads, std::size_t batch) {
        auto s = lm::session::make(m, threads, kv, m.shape().context, batch);
        EXPECT_TRUE(s.ok()) << s.message();
        return std::move(*s);
    }
    /// All logits of a text that is fed piece by piece; the last size repeats.
    static std::vector<float> run(lm::session& s, const std::vector<std::int32_t>& text,
                                  std::vector<std::size_t> pieces) {
        std::vector<float> out;
        for (std::size_t at = 0, i = 0; at < text.size(); ++i) {
            const std::size_t size = std::min(pieces[std::min(i, pieces.size() - 1)], text.size() - at);
            const auto logits = fed(s, std::span(text).subspan(at, size), size);
            out.insert(out.end(), logits.begin(), logits.end());
            at += size;
        }
        EXPECT_EQ(s.length(), text.size());
        return out;
    }
    std::vector<float> run(const precision& p, std::size_t threads, std::size_t batch,
                           const std::vector<std::size_t>& pieces) const {
        const lm::model m = load(p);
        lm::session s = start(m, p.kv, threads, batch);
        return run(s, text_, pieces);
    }

    /// Compares every ISA of this CPU with double precision. `informative`: what the tolerance has to be
    /// below, relative to the logits, so that the comparison says something.
    void compare(const precision& p, double informative) const {
        const auto file = lm::gguf::open(file_.path());
        ASSERT_TRUE(file.ok());
        naive_model naive(*file, {.weights = p.weights,
                                  .half_cache = p.kv == kv_type::f16,
                                  .int8_activations = p.activations == activation_type::int8});
        const auto expected = naive.logits(text_);
        const auto tolerance = naive.tolerance(text_, expected);
        for (std::size_t t = 0; t < text_.size(); ++t)
            EXPECT_LT(tolerance[t], informative * norm_of(expected[t])) << "token " << t;
        for (std::size_t isa = 0; isa < crumb::isa_names().size(); ++isa) {
            if (!crumb::isa_supported(isa))
                continue;
            ::setenv("CRUMB_ISA", crumb::isa_names()[isa], 1);
            const auto logits = run(p, 1, 64, {text_.size()});
            ::unsetenv("CRUMB_ISA");
            ASSERT_EQ(logits.size(), text_.size() * 256);
            for (std::size_t t = 0; t < text_.size(); ++t) {
                const auto row = logits.begin() + static_cast<std::ptrdiff_t>(t * 256);
                const double apart = distance({row, row + 256}, expected[t]);
                EXPECT_LE(apart, tolerance[t]) << crumb::isa_names()[isa] << ", token " << t;
            }
        }
    }

    temporary_file file_{tiny_model(GetParam()).file()};
    std::vector<std::int32_t> text_ = random_tokens(21, 5);
};

TEST_P(Session, FullPrecisionMatchesDoublePrecision) { compare(full, 0.01); }

TEST_P(Session, HalfPrecisionCacheMatchesDoublePrecision) {
    compare({weight_type::f32, activation_type::f32, kv_type::f16}, 0.01);
}

TEST_P(Session, QuantizedWeightsMatchTheirValuesInDoublePrecision) {
    for (const weight_type weights : {weight_type::stored, weight_type::q8_0, weight_type::q4_0})
        compare({weights, activation_type::f32, kv_type::f32}, 0.01);
}

TEST_P(Session, RoundedActivationsMatchWithinHalfAStepOfEach) {
    for (const weight_type weights : {weight_type::stored, weight_type::q8_0, weight_type::q4_0})
        compare({weights, activation_type::int8, kv_type::f32}, 0.2);
}

TEST_P(Session, BatchesDoNotChangeABit) {
    for (const precision& p : {full, int8, precision{}, precision{weight_type::q4_0}}) {
        const auto expected = run(p, 1, 64, {text_.size()});
        for (const std::vector<std::size_t>& pieces : {std::vector<std::size_t>{1}, {2, 1, 9, 3}, {16, 1}})
            EXPECT_EQ(run(p, 1, 64, pieces), expected) << pieces[0] << " and so on";
        // Pieces longer than the session's batch are cut.
        for (const std::size_t batch : {1, 2, 8, 20})
            EXPECT_EQ(run(p, 1, batch, {text_.size()}), expected) << "batch " << batch;
    }
}

TEST_P(Session, ThreadsDoNotChangeABit) {
    for (const precision& p : {full, int8, precision{weight_type::q4_0}}) {
        const auto expected = run(p, 1, 64, {12, 1});
        for (const std::size_t threads : {2, 3, 5})
            EXPECT_EQ(run(p, threads, 64, {12, 1}), expected) << threads << " threads";
    }
}

// A step may come down to one part at its start and at each of its barriers.
TEST_P(Session, GoingOnAloneDoesNotChangeABit) {
    for (const precision& p : {full, precision{weight_type::q4_0}}) {
        const lm::model m = load(p);
        lm::session one = start(m, p.kv);
        const std::vector<std::size_t> pieces = {6, 1, 1, 9};
        const std::vector<std::int32_t> text(text_.begin(), text_.begin() + 17);
        const auto expected = run(one, text, pieces);
        for (const std::size_t threads : {2, 3}) {
            nth_decision when;
            lm::session s = start(m, p.kv, lm::team(threads, when.function()), 64);
            const std::size_t all = when.for_each([&] {
                s.reset();
                EXPECT_EQ(run(s, text, pieces), expected)
                    << threads << " threads, alone from decision " << when.n;
            });
            EXPECT_GE(all, pieces.size() * (1 + 4 * m.shape().layers));
        }
    }
}

TEST_P(Session, ResetForgets) {
    const lm::model m = load({});
    lm::session s = start(m, kv_type::f16);
    const auto first = run(s, text_, {4});
    s.reset();
    EXPECT_EQ(s.length(), 0u);
    run(s, random_tokens(30, 9), {30});
    s.reset();
    EXPECT_EQ(run(s, text_, {4}), first);
}

TEST_P(Session, RewindsToAnEarlierToken) {
    const lm::model m = load({});
    lm::session s = start(m, kv_type::f16);
    const auto first = run(s, text_, {text_.size()});
    s.rewind(100);
    EXPECT_EQ(s.length(), text_.size());
    s.rewind(7);
    EXPECT_EQ(s.length(), 7u);
    const auto again = fed(s, std::span(text_).subspan(7), text_.size() - 7);
    EXPECT_TRUE(std::equal(again.begin(), again.end(), first.begin() + 7 * 256));
}

TEST_P(Session, AProfileAddsUpToTheTime) {
    const lm::model m = load({});
    lm::session s = start(m, kv_type::f16, 2);
    fed(s, text_, 1);
    for (const double t : s.times())
        EXPECT_EQ(t, 0);
    s.profile(true);
    s.reset();
    const auto begin = std::chrono::steady_clock::now();
    fed(s, text_, 1);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    double sum = 0;
    for (const double t : s.times()) {
        EXPECT_GE(t, 0);
        sum += t;
    }
    EXPECT_GT(sum, 0);
    EXPECT_LE(sum, seconds);
    s.profile(false);
    s.reset();
    fed(s, text_, 1);
    EXPECT_EQ(s.times()[0], 0);
}

TEST_P(Session, GivesAsManyLogitsAsWanted) {
    const auto all = run(precision{}, 1, 64, {text_.size()});
    const lm::model m = load({});
    for (const std::size_t batch : {4, 64}) {
        lm::session s = start(m, kv_type::f16, 1, batch);
        for (std::size_t wanted = 0; wanted <= text_.size(); ++wanted) {
            s.reset();
            const auto logits = fed(s, text_, wanted);
            ASSERT_EQ(logits.size(), wanted * 256);
            EXPECT_TRUE(std::equal(logits.begin(), logits.end(), all.end() - static_cast<int>(wanted * 256)))
                << wanted << " wanted, batch " << batch;
        }
    }
}

TEST_P(Session, FillsItsContext) {
    const lm::model m = load({});
    const auto text = random_tokens(m.shape().context, 3);
    lm::session whole = start(m, kv_type::f16);
    const auto expected = fed(whole, text, 1);
    lm::session single = start(m, kv_type::f16, 1, 1);
    for (std::size_t i = 0; i + 1 < text.size(); ++i)
        fed(single, {&text[i], 1}, 0);
    const auto last = fed(single, {&text.back(), 1}, 1);
    EXPECT_EQ(single.length(), single.context());
    EXPECT_TRUE(std::equal(last.begin(), last.end(), expected.begin()));

    // A shorter context does not change what fits into it.
    auto shorter = lm::session::make(m, lm::team(1), kv_type::f16, 7, 64);
    ASSERT_TRUE(shorter.ok());
    EXPECT_EQ(shorter->context(), 7u);
    std::vector<float> few;
    for (const float x : fed(*shorter, std::span(text).first(7), 7))
        few.push_back(x);
    whole.reset();
    const auto same = fed(whole, std::span(text).first(7), 7);
    EXPECT_TRUE(std::equal(few.begin(), few.end(), same.begin(), same.end()));
}

TEST_P(Session, ReportsItsCache) {
    const lm::model m = load({});
    const auto& d = m.shape();
    const std::size_t numbers = 2 * d.layers * d.kv_heads * d.head_size;
    EXPECT_EQ(start(m, kv_type::f16).kv_bytes_per_token(), 2 * numbers);
    EXPECT_EQ(start(m, kv_type::f32).kv_bytes_per_token(), 4 * numbers);
}

INSTANTIATE_TEST_SUITE_P(All, Session, testing::ValuesIn(shapes),
                         [](const auto& test) { return std::string(test.param.name); });

/// Three kv heads: two and four threads share heads, by ranges of 256 tokens.
class SessionDepth : public testing::TestWithParam<const char*> {
  protected:
    static constexpr std::size_t prompt = 500, steps = 40;

    std::vector<float> run(const std::vector<std::int32_t>& text, const lm::team& threads,
                           std::size_t shortest, std::size_t batch = 128) const {
        auto s = lm::session::make(*model_, threads, *kv_type::parse(GetParam()), 600, batch);
        EXPECT_TRUE(s.ok()) << s.message();
        s->shortest_range(shortest);
        std::vector<float> out;
        const auto feed = [&](std::size_t first, std::size_t n) {
            const auto logits = fed(*s, std::span(text).subspan(first, n), n);
            out.insert(out.end(), logits.begin(), logits.end());
        };
        feed(0, prompt);
        for (std::size_t i = 0; i < steps; ++i)
            feed(prompt + i, 1);
        return out;
    }

    temporary_file file_{tiny_model({.width = 24, .heads = 6, .kv_heads = 3, .context = 600}).file()};
    crumb::result<lm::model> model_ = lm::model::load(file_.path(), {});
    std::vector<std::int32_t> text_ = random_tokens(prompt + steps, 5);
};

TEST_P(SessionDepth, ThreadsThatShareHeadsDoNotChangeABit) {
    ASSERT_TRUE(model_.ok()) << model_.message();
    const auto expected = run(text_, lm::team(1), 256);
    for (const std::size_t threads : {2, 4})
        EXPECT_EQ(run(text_, lm::team(threads, together), 256), expected) << threads << " threads";
    if (kv_type::parse(GetParam())->codec.is_uncoded()) {
        EXPECT_EQ(run(text_, lm::team(2, together), 256, 3), expected) << "small batches";
    }
    // Ranges are summed in an order of their own.
    const auto whole = run(text_, lm::team(1), 4096);
    EXPECT_NE(whole, expected);
    const std::ptrdiff_t before = 511 * 256;
    EXPECT_TRUE(std::equal(whole.begin(), whole.begin() + before, expected.begin()));
}

TEST_P(SessionDepth, GoingOnAloneAmongSharedHeadsDoesNotChangeABit) {
    ASSERT_TRUE(model_.ok()) << model_.message();
    const kv_type kv = *kv_type::parse(GetParam());
    const std::vector<std::int32_t> text(text_.begin(), text_.begin() + 521);
    const auto start = [&](const lm::team& threads) {
        auto s = lm::session::make(*model_, threads, kv, 600, 520);
        EXPECT_TRUE(s.ok()) << s.message();
        s->shortest_range(256);
        fed(*s, std::span(text).first(520), 0);
        return std::move(*s);
    };
    lm::session one = start(lm::team(1));
    const auto logits = fed(one, std::span(text).subspan(520), 1);
    const std::vector<float> expected(logits.begin(), logits.end());
    nth_decision when;
    lm::session s = start(lm::team(2, when.function()));
    const std::size_t all = when.for_each([&] {
        s.rewind(520);
        const auto again = fed(s, std::span(text).subspan(520), 1);
        EXPECT_TRUE(std::equal(again.begin(), again.end(), expected.begin())) << "from decision " << when.n;
    });
    EXPECT_GE(all, 1 + 6 * model_->shape().layers);
}

INSTANTIATE_TEST_SUITE_P(Codecs, SessionDepth, testing::Values("f16", "q8_0", "kivi4"),
                         [](const auto& test) { return std::string(test.param); });

TEST(SessionPrompts, Int8ProductsDependOnNeitherThreadsNorBatches) {
    const temporary_file file(tiny_model({.width = 96, .heads = 6, .kv_heads = 3, .context = 600}).file());
    const auto m = lm::model::load(file.path(), {});
    ASSERT_TRUE(m.ok()) << m.message();
    const std::vector<std::int32_t> text = random_tokens(500, 5);
    const auto run = [&](const char* kv, std::size_t threads, std::size_t batch) {
        auto s = lm::session::make(*m, lm::team(threads, together), *kv_type::parse(kv), 600, batch);
        EXPECT_TRUE(s.ok()) << s.message();
        s->shortest_range(256);
        const auto logits = fed(*s, text, text.size());
        return std::vector<float>(logits.begin(), logits.end());
    };
    for (const std::string codec : {"f16", "kivi4"}) {
        const std::string by_int8 = codec + ":prompts=int8";
        const auto expected = run(by_int8.c_str(), 1, 128);
        for (const std::size_t threads : {2, 4})
            EXPECT_EQ(run(by_int8.c_str(), threads, 128), expected) << codec << ", " << threads << " threads";
        EXPECT_NE(run(codec.c_str(), 1, 128), expected) << codec;
        if (codec == "f16") {
            EXPECT_EQ(run(by_int8.c_str(), 2, 250), expected) << "batches of 250";
        }
    }
}

TEST(SessionLimits, AContextIsChecked) {
    const temporary_file file(tiny_model({.context = 48}).file());
    const auto m = lm::model::load(file.path(), {});
    ASSERT_TRUE(m.ok()) << m.message();
    EXPECT_STREQ(lm::session::make(*m, lm::team(1), kv_type::f16, 0, 8).message(),
                 "a context of 0 tokens: the model allows 1 to 48");
    EXPECT_STREQ(lm::session::make(*m, lm::team(1), kv_type::f16, 49, 8).message(),
                 "a context of 49 tokens: the model allows 1 to 48");
    EXPECT_TRUE(lm::session::make(*m, lm::team(1), kv_type::f16, 48, 1000).ok());
    EXPECT_TRUE(lm::session::make(*m, lm::team(1), kv_type::f16, 1, 0).ok());
}

TEST(SessionLimits, AContextBeyondTheMemoryIsAnError) {
    // 67 million tokens of 12 kB each.
    const temporary_file file(
        tiny_model({.width = 256, .hidden = 8, .layers = 6, .heads = 1, .kv_heads = 1, .context = 64u << 20})
            .file());
    const auto m = lm::model::load(file.path(), {});
    ASSERT_TRUE(m.ok()) << m.message();
    const auto s = lm::session::make(*m, lm::team(1), kv_type::f32, 64u << 20, 8);
    // Memory is taken as tokens come; who needs all of it asks before.
    ASSERT_TRUE(s) << s.message();
    EXPECT_TRUE(s->fits(1000));
    const auto all = s->fits(64u << 20);
    ASSERT_FALSE(all);
    EXPECT_EQ(std::string(all.message()).find("a context of 67108864 tokens needs 8931"), 0u)
        << all.message();
    EXPECT_NE(std::string(all.message()).find(" MB of memory, this machine has "), std::string::npos);
}

TEST(SessionLimits, AnUnknownIsaIsNamed) {
    const temporary_file file(tiny_model({}).file());
    ::setenv("CRUMB_ISA", "mmx", 1);
    const auto m = lm::model::load(file.path(), {});
    ::unsetenv("CRUMB_ISA");
    ASSERT_FALSE(m.ok());
    EXPECT_NE(std::string(m.message()).find("CRUMB_ISA is 'mmx'; this build has"), std::string::npos)
        << m.message();
}

void expect_parts_to_make_the_pass(const std::string& path) {
    const auto m = lm::model::load(path, {weight_type::f32, activation_type::f32});
    ASSERT_TRUE(m.ok()) << m.message();
    auto s = lm::session::make(*m, lm::team(2), kv_type::f16, 32, 32);
    ASSERT_TRUE(s.ok()) << s.message();
    const auto tokens = random_tokens(20, 5);
    const auto logits = fed(*s, tokens, 20);
    const std::vector<float> expected(logits.begin(), logits.end());

    const auto& d = m->shape();
    std::vector<float> stream(20 * d.width), inner(20 * std::max(d.attention_width(), d.hidden)),
        out(20 * d.vocabulary);
    const auto h = crumb::matrix(stream.data(), 20, d.width);
    const auto step = [&](lm::pass_part part, std::size_t layer, const auto& from, const auto& to) {
        const auto done = s->run(part, layer, from, to);
        EXPECT_TRUE(done.ok()) << done.message();
    };
    ASSERT_TRUE(s->embed(tokens, h).ok());
    for (std::size_t i = 0; i < d.layers; ++i) {
        const auto attended = crumb::matrix(inner.data(), 20, d.attention_width());
        step(lm::pass_part::attention, i, h, attended);
        step(lm::pass_part::add_attention, i, attended, h);
        const auto activated = crumb::matrix(inner.data(), 20, d.hidden);
        step(lm::pass_part::network, i, h, activated);
        step(lm::pass_part::add_network, i, activated, h);
    }
    step(lm::pass_part::output_input, 0, h, h);
    step(lm::pass_part::output, 0, h, crumb::matrix(out.data(), 20, d.vocabulary));
    EXPECT_EQ(out, expected);

    EXPECT_FALSE(s->run(lm::pass_part::attention, d.layers, h, h).ok());
    EXPECT_FALSE(s->run(lm::pass_part::network, 0, h, crumb::matrix(out.data(), 20, d.hidden + 1)).ok());
    EXPECT_FALSE(s->embed({}, crumb::matrix(stream.data(), 0, d.width)).ok());
    EXPECT_FALSE(s->embed(std::vector<std::int32_t>{256}, crumb::matrix(stream.data(), 1, d.width)).ok());
}

TEST_P(Session, PartsMakeThePass) {
    const temporary_file file(tiny_model(GetParam()).file());
    expect_parts_to_make_the_pass(file.path());
}

TEST(RotatedSession, PartsMakeThePass) {
    for (const bool tied : {false, true}) {
        const temporary_file file(tiny_model({.tied = tied}).file()), rotated{bytes()};
        const auto m = lm::model::load(file.path(), {});
        ASSERT_TRUE(m.ok()) << m.message();
        ASSERT_TRUE(lm::write_rotated(*m, 3, rotated.path()).ok());
        expect_parts_to_make_the_pass(rotated.path());
    }
}

} // namespace
} // namespace test_session
