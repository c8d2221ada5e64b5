// Models with folded networks: recipes, files, and what they compute.
#include "cli/commands.hpp"
#include "decisions.hpp"
#include "eval/evaluate.hpp"
#include "fed.hpp"
#include "gguf/gguf_writer.hpp"
#include "tiny_model.hpp"
#include "train/ffn_training.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <random>

namespace test_ffn {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::architecture;
using lm::ffn_recipe;
using lm::ffn_type;
using lm::weight_type;

TEST(FfnRecipe, IsRead) {
    for (const char* text : {"tardis:coverage=0.85:predictor=cb2s:fold=q8_0:rows=q8_0",
                             "tardis:parameters=0.35:predictor=u2:fold=f32:rows=f16:uniform:greedy:plain",
                             "tardis:coverage=1:predictor=cb2s:residual=u2:fold=q4_0:rows=q4_0",
                             "tardis:coverage=0:sound:fold=q8_0:rows=f32",
                             "tardis:coverage=0.9:predictor=q4_0:fold=cb4:rows=q8_0:miss=0.01"}) {
        const auto recipe = ffn_recipe::parse(text);
        ASSERT_TRUE(recipe) << recipe.message();
        EXPECT_EQ(recipe->name(), text);
    }
    EXPECT_EQ(ffn_recipe::parse("tardis")->name(), ffn_recipe().name());
    for (const char* text :
         {"", "dense", "tardis:", "tardis:coverage", "tardis:coverage=", "tardis:coverage=2",
          "tardis:coverage=-1", "tardis:parameters=0", "tardis:predictor=f32", "tardis:predictor=nested",
          "tardis:residual=f32", "tardis:rows=u2", "tardis:miss=0.6", "tardis:sound:residual=u2",
          "tardis:sound:miss=0.1", "tardis:odd", "tardis::sound"})
        EXPECT_FALSE(ffn_recipe::parse(text)) << text;
    const std::string long_text(1000, 'x');
    for (const auto& [text, what] :
         {std::pair<std::string, std::string>{"dense", "--ffn dense: known is tardis, then :coverage=C"},
          {long_text, "...: known is tardis"},
          {long_text, ":uniform, :greedy, :plain"},
          {"tardis:odd", "--ffn tardis:odd is unknown; known are coverage=C"},
          {"tardis:" + long_text, "uniform, greedy and plain"},
          {"tardis:coverage=2", "coverage is a share from 0 to 1"},
          {"tardis:parameters=0", "parameters are a share above 0, at most 1"},
          {"tardis:predictor=f32", "predictors are q8_0, q4_0, cb4, cb3, cb2, cb2s, u2 and iq4_nl"},
          {"tardis:fold=f16", "folds are f32, q8_0, q4_0, cb4, cb3, cb2, cb2s, u2 and iq4_nl"},
          {"tardis:residual=f32", "residuals are q8_0, q4_0 and u2"},
          {"tardis:rows=u2", "rows are f32, f16, q8_0 and q4_0"},
          {"tardis:miss=0.5", "miss is a share from 0 to below 0.5"},
          {"tardis:rows=f16:rows=f16", "rows is given twice"},
          {"tardis:sound:plain:sound", "sound is given twice"}}) {
        const auto recipe = ffn_recipe::parse(text);
        ASSERT_FALSE(recipe) << text;
        EXPECT_NE(std::string(recipe.message()).find(what), std::string::npos) << recipe.message();
    }
}

TEST(FfnRecipe, CountsParametersAsThePaperDoes) {
    // d^2 + 2 bits of 4 d^2 + f 8 d^2 halves of 8 d^2.
    const auto two = *ffn_recipe::parse("tardis:predictor=u2:parameters=0.35");
    EXPECT_NEAR(two.left(4096, 16384, 0.1), (1 + 2 / 16.0 * 4 + 0.1 * 8) / 8, 1e-12);
    EXPECT_NEAR(two.left(4096, 16384, 1 - two.target(4096, 16384)), 0.35, 1e-12);
    EXPECT_NEAR(ffn_recipe::parse("tardis:predictor=q8_0")->left(256, 1024, 0), (1 + 8 / 16.0 * 4) / 8,
                1e-12);
    EXPECT_EQ(ffn_recipe::parse("tardis:predictor=u2:parameters=0.01")->target(4096, 16384), 1.0);
}

const tiny_shape gpt2{.arch = architecture::gpt2, .width = 64, .hidden = 112, .heads = 4, .kv_heads = 4};

std::string text_file() {
    static const std::unique_ptr<temporary_file> file = [] {
        bytes text;
        std::mt19937 random(5);
        for (int i = 0; i < 48 * 24; ++i)
            text.push_back(static_cast<std::byte>('a' + random() % 26));
        return std::make_unique<temporary_file>(text);
    }();
    return file->path();
}

/// A file of the tiny model with folded networks.
std::unique_ptr<temporary_file> folded(const char* recipe, const tiny_shape& shape = gpt2) {
    const temporary_file source(tiny_model(shape).file());
    auto out = std::make_unique<temporary_file>(bytes());
    lm::calibrate_options o;
    o.model = source.path();
    o.ffn = *ffn_recipe::parse(recipe);
    o.text = text_file();
    o.threads = 2;
    o.out = out->path();
    const crumb::status s = lm::calibrate(o);
    EXPECT_TRUE(s.ok()) << s.message();
    return out;
}

lm::loaded_model load(const std::string& path, ffn_type ffn, std::size_t threads = 1) {
    lm::common_options o;
    o.model = path;
    o.ffn = ffn;
    o.ffn_by_lists = true;
    o.threads = threads;
    o.activations = activation_type::f32;
    auto loaded = lm::load(o, 0, 48);
    EXPECT_TRUE(loaded) << loaded.message();
    return std::move(*loaded);
}

std::vector<float> logits(lm::session& s, std::size_t batch = 40) {
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < 40; ++i)
        tokens.push_back('a' + i * 7 % 26);
    s.reset();
    std::vector<float> out;
    for (std::size_t i = 0; i < tokens.size(); i += batch) {
        const auto part = fed(s, std::span(tokens).subspan(i, std::min(batch, tokens.size() - i)), 1);
        out.assign(part.begin(), part.end());
    }
    return out;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double error = 0, length = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        error += std::pow(double{a[i]} - double{b[i]}, 2);
        length += std::pow(double{b[i]}, 2);
    }
    return std::sqrt(error / length);
}

TEST(FoldedModel, CoverageZeroIsTheModelItself) {
    const auto file = folded("tardis:coverage=0:fold=f32:rows=f32");
    auto dense = load(file->path(), ffn_type::dense), fixed = load(file->path(), ffn_type::tardis);
    fixed.run->count_ffn(true);
    const auto want = logits(*dense.run), got = logits(*fixed.run);
    // Roundings of floats, in 2 layers of sums of 112 terms and 5 norms.
    EXPECT_LT(distance(got, want), 1e-5);
    const lm::ffn_counts counts = fixed.run->ffn();
    EXPECT_EQ(counts.tokens, 40u);
    EXPECT_EQ(counts.neurons, 2u * 40 * 112);
    EXPECT_EQ(counts.fixed, counts.neurons);
    EXPECT_EQ(counts.missed, 0u);
}

TEST(FoldedModel, DoesNotDependOnThreadsOrBatches) {
    for (const char* recipe :
         {"tardis:coverage=0.6:residual=u2:fold=q4_0:rows=q4_0", "tardis:coverage=0.6:sound"}) {
        const auto file = folded(recipe);
        auto one = load(file->path(), ffn_type::tardis), three = load(file->path(), ffn_type::tardis, 3);
        one.run->count_ffn(true);
        three.run->count_ffn(true);
        const auto want = logits(*one.run);
        EXPECT_EQ(logits(*three.run), want);
        EXPECT_EQ(one.run->ffn().fixed, three.run->ffn().fixed);
        EXPECT_EQ(one.run->ffn().missed, three.run->ffn().missed);
        EXPECT_EQ(one.run->ffn().bytes, three.run->ffn().bytes);
        EXPECT_GT(one.run->ffn().fixed, 0u);
        EXPECT_LT(one.run->ffn().fixed, one.run->ffn().neurons);
        EXPECT_EQ(logits(*one.run, 7), want);
    }
}

// A step may come down to one part at any barrier, those between phases of a folded network included.
TEST(FoldedModel, GoingOnAloneDoesNotChangeABit) {
    const auto file = folded("tardis:coverage=0.6:residual=u2:fold=q4_0:rows=q4_0");
    auto one = load(file->path(), ffn_type::tardis);
    for (const std::size_t batch : {40, 20, 7}) {
        one.run->count_ffn(true);
        const auto want = logits(*one.run, batch);
        for (const std::size_t threads : {2, 3}) {
            nth_decision when;
            auto s =
                lm::session::make(*one.weights, lm::team(threads, when.function()), lm::kv_type::f16, 48, 48);
            ASSERT_TRUE(s) << s.message();
            const std::size_t all = when.for_each([&] {
                s->count_ffn(true);
                EXPECT_EQ(logits(*s, batch), want) << threads << " threads, alone from decision " << when.n;
                EXPECT_EQ(s->ffn().fixed, one.run->ffn().fixed);
                EXPECT_EQ(s->ffn().missed, one.run->ffn().missed);
            });
            EXPECT_GE(all, 2 + 8u * 2);
        }
    }
}

// Prompts are those of the network before folding, single tokens those of the folded one.
TEST(FoldedModel, KeepsMatricesForPrompts) {
    const auto file = folded("tardis:coverage=0.6:residual=u2:fold=q4_0:rows=q4_0");
    for (const weight_type weights : {weight_type::stored, weight_type::q4_0}) {
        lm::common_options o;
        o.model = file->path();
        o.weights = weights;
        const auto open = [&](ffn_type ffn, std::size_t threads) {
            o.ffn = ffn;
            o.threads = threads;
            auto loaded = lm::load(o, 0, 48);
            EXPECT_TRUE(loaded) << loaded.message();
            return std::move(*loaded);
        };
        auto dense = open(ffn_type::dense, 1), tardis = open(ffn_type::tardis, 1);
        auto both = open(ffn_type::both, 1), three = open(ffn_type::both, 3);
        EXPECT_EQ(logits(*both.run), logits(*dense.run));
        EXPECT_EQ(logits(*three.run), logits(*dense.run));
        EXPECT_EQ(logits(*both.run, 1), logits(*tardis.run, 1));
        EXPECT_NE(logits(*both.run, 1), logits(*both.run));
    }
    lm::common_options o;
    o.model = file->path();
    o.ffn = ffn_type::both;
    o.weights = weight_type::nested;
    EXPECT_FALSE(lm::load(o, 0, 48));
}

TEST(FoldedModel, IsCloserTheMoreIsFixed) {
    double before = 0;
    for (const char* recipe :
         {"tardis:coverage=0.3:rows=f32:fold=f32", "tardis:coverage=0.7:rows=f32:fold=f32",
          "tardis:coverage=1:rows=f32:fold=f32"}) {
        const auto file = folded(recipe);
        auto dense = load(file->path(), ffn_type::dense), fast = load(file->path(), ffn_type::tardis);
        const double error = distance(logits(*fast.run), logits(*dense.run));
        EXPECT_GT(error, before) << recipe;
        before = error;
    }
    EXPECT_LT(before, 0.5);
}

TEST(FoldedModel, MissesNothingWhereThatIsProven) {
    const auto file = folded("tardis:coverage=0.8:sound:fold=f32:rows=f32");
    auto loaded = load(file->path(), ffn_type::tardis);
    loaded.run->count_ffn(true);
    (void)logits(*loaded.run);
    EXPECT_EQ(loaded.run->ffn().missed, 0u);
    EXPECT_LT(loaded.run->ffn().fixed, loaded.run->ffn().neurons);
    EXPECT_GT(loaded.run->ffn().fixed, 0u);
}

TEST(FoldedModel, MissesAsMuchAsAsked) {
    const auto share = [](const char* recipe) {
        const auto file = folded(recipe);
        auto loaded = load(file->path(), ffn_type::tardis);
        loaded.run->count_ffn(true);
        // The text of the calibration.
        std::ifstream in(text_file());
        std::string text{std::istreambuf_iterator<char>(in), {}};
        for (std::size_t w = 0; w + 48 <= text.size(); w += 48) {
            loaded.run->reset();
            const std::vector<std::int32_t> tokens(text.begin() + std::ptrdiff_t(w),
                                                   text.begin() + std::ptrdiff_t(w + 48));
            fed(*loaded.run, tokens, 1);
        }
        const auto counts = loaded.run->ffn();
        return double(*counts.missed) / double(counts.missed.value() + counts.fixed);
    };
    // Of the inputs outside, misses are at most `miss`; a share of those outside and those that are fixed in
    // vain is less.
    EXPECT_LT(share("tardis:coverage=0.7:miss=0.02:rows=f32"), 0.02);
    EXPECT_GT(share("tardis:coverage=0.7:miss=0.4:rows=f32"), 0.02);
}

TEST(FoldedModel, RefusesWhatDoesNotFold) {
    const temporary_file llama(tiny_model({.width = 32, .hidden = 64}).file());
    lm::calibrate_options o;
    o.model = llama.path();
    o.ffn = ffn_recipe();
    o.text = text_file();
    o.out = llama.path() + ".out";
    EXPECT_NE(std::string(lm::calibrate(o).message()).find("gated"), std::string::npos);
    lm::common_options run;
    run.model = llama.path();
    run.ffn = ffn_type::tardis;
    EXPECT_NE(std::string(lm::load(run, 0, 8).message()).find("gated"), std::string::npos);

    const temporary_file plain(tiny_model(gpt2).file());
    run.model = plain.path();
    EXPECT_NE(std::string(lm::load(run, 0, 8).message()).find("no folded networks"), std::string::npos);
    o.model = plain.path();
    const temporary_file brief(bytes(96, std::byte{'a'}));
    o.text = brief.path();
    EXPECT_NE(std::string(lm::calibrate(o).message()).find("too few"), std::string::npos);
    EXPECT_FALSE(std::ifstream(o.out).good());
}

TEST(FoldedModel, RefusesDamagedFiles) {
    const auto file = folded("tardis:coverage=0.6:residual=u2");
    const auto source = lm::gguf::open(file->path());
    ASSERT_TRUE(source) << source.message();
    const auto message = [&](const char* without, auto&& change) {
        lm::gguf_writer writer(3, crumb::alignment);
        writer.copy(*source, without);
        change(writer);
        const auto all = writer.bytes();
        EXPECT_TRUE(all) << all.message();
        const temporary_file damaged(*all);
        lm::common_options o;
        o.model = damaged.path();
        o.ffn = ffn_type::tardis;
        return std::string(lm::load(o, 0, 8).message());
    };
    const auto nothing = [](lm::gguf_writer&) {};
    EXPECT_NE(message("crumb.ffn.1.neurons", nothing).find("crumb.ffn.1.neurons"), std::string::npos);
    EXPECT_NE(message("crumb.ffn.predictor_codebooks", nothing).find("predictor_codebooks"),
              std::string::npos);
    EXPECT_NE(message("none", [](auto& w) { w.set("crumb.ffn.version", std::uint32_t{9}); }).find("version"),
              std::string::npos);
    EXPECT_NE(
        message("none", [](auto& w) { w.set("crumb.ffn.model", std::uint64_t{9}); }).find("another model"),
        std::string::npos);
    EXPECT_NE(
        message("none", [](auto& w) { w.set("crumb.ffn.recipe", std::string_view("x")); }).find("tardis"),
        std::string::npos);
    const auto short_row = [](lm::gguf_writer& w) {
        static const bytes few(64, std::byte{0});
        const std::uint64_t dims[] = {few.size()};
        w.add_tensor("crumb.ffn.0.neurons", lm::ggml_type::i8, dims, few);
    };
    EXPECT_NE(message("crumb.ffn.0.neurons", short_row).find("CRMN"), std::string::npos);
}

} // namespace
} // namespace test_ffn
