// Models with nested weights: their files, their precisions, and schedules.
#include "cli/commands.hpp"
#include "eval/evaluate.hpp"
#include "eval/study.hpp"
#include "fed.hpp"
#include "gguf/gguf_writer.hpp"
#include "model/schedule_file.hpp"
#include "tiny_model.hpp"
#include "train/schedule_training.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

namespace test_nested {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::nested_type;
using lm::precision_option;
using lm::weight_type;

TEST(NestedType, IsRead) {
    EXPECT_EQ(*nested_type::parse("nested"), nested_type{});
    EXPECT_EQ(*nested_type::parse("nested:2-4"), nested_type{});
    EXPECT_EQ(*nested_type::parse("nested:3-4:uniform"), (nested_type{3, 4, true}));
    EXPECT_EQ(nested_type::parse("nested:2-3:codebook")->name(), "nested:2-3:codebook");
    for (const char* text : {"nested:", "nested:4-2", "nested:1-4", "nested:2-5",
                             "nested:2-4:", "nested:2-4x", "nested:2-4:even", "nested:2", "nested2-4"})
        EXPECT_FALSE(nested_type::parse(text)) << text;
}

TEST(PrecisionOption, IsRead) {
    EXPECT_TRUE(precision_option::parse("schedule")->from_file);
    EXPECT_EQ(precision_option::parse("3")->name(), "3");
    EXPECT_TRUE(precision_option::parse("3")->is_constant());
    EXPECT_EQ(precision_option::parse("4/3")->name(), "4/3");
    EXPECT_FALSE(precision_option::parse("4/3")->is_constant());
    const auto falling = *precision_option::parse("4,3@64,2@128");
    EXPECT_EQ(falling.prefill, 4);
    EXPECT_EQ(falling.phases.size(), 3u);
    EXPECT_EQ(falling.name(), "4/4,3@64,2@128");
    EXPECT_EQ(precision_option::parse(falling.name())->name(), falling.name());
    for (const char* text : {"", "x", "0", "4/", "/4", "4,3", "4,3@", "4,@3", "4,3@x", "4@2", "-3", "4,3@1,"})
        EXPECT_FALSE(precision_option::parse(text)) << text;
}

/// A file of a tiny model's nested weights, made once.
const std::string& nested_file() {
    static const temporary_file file = [] {
        const temporary_file source(
            tiny_model({.width = 64, .hidden = 96, .heads = 4, .kv_heads = 2}).file());
        const temporary_file out{bytes()};
        lm::quantize_options o;
        o.model = source.path();
        o.weights = weight_type::nested;
        o.vocabulary = weight_type::stored;
        o.chunks = 4;
        o.sweeps = 1;
        o.threads = 2;
        o.out = out.path();
        const auto done = lm::quantize(o);
        EXPECT_TRUE(done.ok()) << done.message();
        std::ifstream in(out.path(), std::ios::binary);
        const std::string all{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
        const auto raw = std::as_bytes(std::span(all));
        return temporary_file(bytes(raw.begin(), raw.end()));
    }();
    return file.path();
}

lm::model loaded(activation_type activations = activation_type::int8) {
    auto m = lm::model::load(nested_file(), {weight_type::stored, activations});
    EXPECT_TRUE(m.ok()) << m.message();
    return std::move(*m);
}
lm::session session_of(const lm::model& m) {
    auto s = lm::session::make(m, lm::team(2), lm::kv_type::f16, 48, 48);
    EXPECT_TRUE(s.ok()) << s.message();
    return std::move(*s);
}

TEST(NestedModel, HasItsPrecisions) {
    const lm::model m = loaded();
    EXPECT_EQ(m.stored_type(), "nested");
    ASSERT_TRUE(m.precisions());
    EXPECT_EQ(*m.precisions(), (crumb::precision_range{2, 4}));
}

// Kernels on the mapped bytes, and the floats that they stand for, give the same model at every precision:
// what lies between is the rounding of activations to 8 bits.
TEST(NestedModel, KernelsAndFloatsAgreeAtEveryPrecision) {
    const lm::model kernels = loaded(), floats = loaded(activation_type::f32);
    lm::session a = session_of(kernels), b = session_of(floats);
    std::vector<float> before;
    for (int bits = 4; bits >= 2; --bits) {
        a.precision(bits);
        b.precision(bits);
        const auto e = lm::evaluate(a, &b, random_tokens(192, 4), 48, 0, {});
        ASSERT_TRUE(e.ok()) << e.message();
        EXPECT_LT(e->kl, 2e-3) << bits;
        a.reset();
        const auto logits = fed(a, random_tokens(20, 5), 1);
        const std::vector<float> now(logits.begin(), logits.end());
        EXPECT_NE(now, before) << "precision " << bits << " changes nothing";
        before = now;
    }
}

// Corrections included.
TEST(NestedModel, ExpandedIsItsHighestPrecision) {
    const lm::model nested = loaded(activation_type::f32);
    const auto expanded = lm::model::load(nested_file(), {weight_type::f32, activation_type::f32});
    ASSERT_TRUE(expanded) << expanded.message();
    lm::session a = session_of(nested), b = session_of(*expanded);
    const auto want = fed(a, random_tokens(20, 5), 1), got = fed(b, random_tokens(20, 5), 1);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin(), got.end()));
}

TEST(NestedModel, IsNotQuantizedAgain) {
    lm::quantize_options o;
    o.model = nested_file();
    o.weights = weight_type::cb2s;
    o.out = nested_file() + ".out";
    EXPECT_NE(std::string(lm::quantize(o).message()).find("corrections"), std::string::npos);
    EXPECT_FALSE(std::ifstream(o.out).good());
}

TEST(NestedModel, StepsFollowTheSchedule) {
    const lm::model m = loaded();
    const auto source = lm::source_of(*precision_option::parse("4/3,2@5"), m, 20);
    ASSERT_TRUE(source) << source.message();
    lm::session scheduled = session_of(m), by_hand = session_of(m);
    lm::decoder d(scheduled, *source);
    const auto tokens = random_tokens(20, 6);
    ASSERT_TRUE(d.begin(std::span(tokens).first(8)));
    by_hand.precision(4);
    fed(by_hand, std::span(tokens).first(8), 1);
    for (std::size_t i = 8; i < 20; ++i) {
        const auto a = d.step(tokens[i]);
        by_hand.precision(i - 8 < 5 ? 3 : 2);
        const auto b = fed(by_hand, {&tokens[i], 1}, 1);
        ASSERT_TRUE(a) << a.message();
        ASSERT_TRUE(std::equal(a->begin(), a->end(), b.begin(), b.end())) << i;
    }
    EXPECT_DOUBLE_EQ(d.average_bits(), (5 * 3 + 7 * 2) / 12.0);
    // A window's first half is its prompt.
    const auto e = lm::evaluate(scheduled, nullptr, tokens, 20, 0, {}, &*source);
    ASSERT_TRUE(e) << e.message();
    EXPECT_DOUBLE_EQ(e->bits, (5 * 3 + 4 * 2) / 9.0);
}

TEST(NestedModel, RefusesWhatItDoesNotHave) {
    const lm::model m = loaded();
    EXPECT_STREQ(lm::source_of(*precision_option::parse("5"), m, 8).message(),
                 "schedule: 5 bits are requested, the weights have 2 to 4");
    EXPECT_STREQ(lm::source_of(*precision_option::parse("2,3@4"), m, 8).message(),
                 "schedule: precision rises from 2 to 3 bits at step 4");
    const auto none = lm::source_of(*precision_option::parse("schedule"), m, 8);
    ASSERT_FALSE(none);
    EXPECT_NE(std::string(none.message()).find("has none"), std::string::npos);
    const temporary_file flat(tiny_model({.width = 64, .hidden = 96}).file());
    const auto plain = lm::model::load(flat.path(), {});
    ASSERT_TRUE(plain);
    EXPECT_FALSE(plain->precisions());
    const auto refused = lm::source_of(*precision_option::parse("4"), *plain, 8);
    ASSERT_FALSE(refused);
    EXPECT_NE(std::string(refused.message()).find("are not nested"), std::string::npos);
}

/// The nested file with a schedule in it.
template <class Schedule>
bytes with_schedule(const lm::model& m, const Schedule& schedule,
                    const std::function<void(lm::gguf_writer&)>& damage = {}) {
    lm::gguf_writer writer(3, crumb::alignment);
    for (const lm::gguf_value& value : m.file().values())
        writer.set(value);
    for (const lm::gguf_tensor& t : m.file().tensors())
        writer.add_tensor(t);
    lm::write_schedule(writer, m, schedule);
    if (damage)
        damage(writer);
    const auto all = writer.bytes();
    EXPECT_TRUE(all) << all.message();
    return *all;
}

TEST(ScheduleFile, KeepsStaticSchedules) {
    const lm::model m = loaded();
    const auto schedule = *crumb::precision_schedule::make(
        *m.precisions(), 4, std::vector<crumb::precision_phase>{{0, 4}, {7, 2}}, 30);
    const temporary_file file(with_schedule(m, schedule));
    const auto again = lm::model::load(file.path(), {});
    ASSERT_TRUE(again) << again.message();
    const auto read = lm::read_schedule(*again);
    ASSERT_TRUE(read) << read.message();
    ASSERT_TRUE(*read);
    const lm::session s = session_of(*again);
    const auto chosen = (*read)->choose(s, 0);
    ASSERT_TRUE(chosen) << chosen.message();
    for (std::size_t step = 0; step < 30; ++step)
        EXPECT_EQ((*chosen)(step, {}), schedule.next(step)) << step;
    EXPECT_EQ((*read)->prefill, 4);
    EXPECT_FALSE(*lm::read_schedule(m));
}

TEST(ScheduleFile, RefusesDamage) {
    const lm::model m = loaded();
    const auto schedule = *crumb::precision_schedule::constant(*m.precisions(), 4, 3, 30);
    const auto error = [&](const std::function<void(lm::gguf_writer&)>& damage) {
        const temporary_file file(with_schedule(m, schedule, damage));
        const auto again = lm::model::load(file.path(), {});
        EXPECT_TRUE(again) << again.message();
        const auto read = lm::read_schedule(*again);
        return read ? std::string("none") : std::string(read.message());
    };
    const auto has = [](const std::string& text, const char* part) {
        return text.find(part) != std::string::npos ? testing::AssertionSuccess()
                                                    : testing::AssertionFailure() << text;
    };
    EXPECT_TRUE(has(error([](auto& w) { w.set("crumb.schedule.version", std::uint32_t{2}); }), "reads 1"));
    EXPECT_TRUE(
        has(error([](auto& w) { w.set("crumb.schedule.model", std::uint64_t{5}); }), "another model"));
    EXPECT_TRUE(has(error([](auto& w) { w.set("crumb.schedule.kind", std::string_view("odd")); }),
                    "neither static nor learned"));
    EXPECT_TRUE(has(error([](auto& w) { w.set("crumb.schedule.prefill", std::uint32_t{9}); }), "9 bits"));
    const std::int32_t steps[] = {0, 20, 10}, bits[] = {4, 3, 2}, past[] = {0, 31, 32};
    EXPECT_TRUE(has(error([&](auto& w) {
                        w.set_array("crumb.schedule.steps", std::span<const std::int32_t>(steps));
                        w.set_array("crumb.schedule.bits", std::span<const std::int32_t>(bits));
                    }),
                    "out of order"));
    EXPECT_TRUE(has(error([&](auto& w) {
                        w.set_array("crumb.schedule.steps", std::span<const std::int32_t>(past));
                        w.set_array("crumb.schedule.bits", std::span<const std::int32_t>(bits));
                    }),
                    "past the 30 steps"));
    EXPECT_TRUE(has(
        error([&](auto& w) { w.set_array("crumb.schedule.steps", std::span<const std::int32_t>(steps)); }),
        "3 steps and 1 precisions"));
    EXPECT_TRUE(has(error([](auto& w) { w.set("crumb.schedule.kind", std::string_view("learned")); }),
                    "crumb.schedule.high"));
}

TEST(ScheduleFile, KeepsLearnedSchedulesOverAnyCache) {
    const lm::model m = loaded();
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    lm::stored_schedule schedule;
    schedule.levels = {*m.precisions(), 4, 4, 2, 30};
    crumb::trained_schedule& t = schedule.trained;
    t.shape = {.heads = 2, .head_size = 16, .hidden = 5, .points = 4};
    for (const auto& [v, size] : {std::pair{&t.query, 32}, {&t.w1, 160}, {&t.b1, 5}, {&t.w2, 20}, {&t.b2, 4}})
        for (int i = 0; i < size; ++i)
            v->push_back(normal(random));
    const temporary_file file(with_schedule(m, schedule));
    const auto again = lm::model::load(file.path(), {});
    ASSERT_TRUE(again) << again.message();
    const auto read = lm::read_schedule(*again);
    ASSERT_TRUE(read) << read.message();
    const auto direct = lm::learned_source("direct", std::make_shared<lm::stored_schedule>(schedule));
    ASSERT_TRUE(direct) << direct.message();
    for (const char* kv : {"f16", "q8_0", "kivi4:sinks=2:window=2"}) {
        auto s = lm::session::make(*again, lm::team(1), *lm::kv_type::parse(kv), 48, 1);
        ASSERT_TRUE(s) << s.message();
        EXPECT_FALSE((*read)->choose(*s, 0)) << "an empty cache";
        fed(*s, random_tokens(20, 8), 1);
        const auto a = (*read)->choose(*s, 0), b = direct->choose(*s, 0);
        ASSERT_TRUE(a) << a.message();
        for (std::size_t step = 0; step < 30; ++step)
            EXPECT_EQ((*a)(step, {}), (*b)(step, {})) << step;
        EXPECT_EQ((*a)(0, {}) == 4 || (*a)(0, {}) == 2, true);
    }
    // Parameters that are not numbers.
    schedule.trained.w2[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(lm::learned_source("bad", std::make_shared<lm::stored_schedule>(schedule)));
}

TEST(Study, MeasuresSchedules) {
    const lm::model m = loaded();
    const temporary_file file = text_file(400);
    lm::study_options o;
    o.prompts = 5;
    o.prompt = 16;
    o.tokens = 12;
    auto study = lm::study::make(m, nullptr, lm::kv_type::f16, {}, file.path(), o, 2);
    ASSERT_TRUE(study) << study.message();
    const auto schedule = [&](int bits) {
        return lm::constant_source("", *crumb::precision_schedule::constant(*m.precisions(), bits, bits, 11));
    };
    const auto high = study->run(schedule(4), lm::study::measure::both);
    ASSERT_TRUE(high) << high.message();
    // The reference is the same model, but for the order of sums in attention.
    EXPECT_LT(lm::mean_of(high->kl), 1e-6);
    EXPECT_EQ(high->rouge, study->full_rouge());
    EXPECT_EQ(high->bits, 4);
    const auto low = study->run(schedule(2), lm::study::measure::divergence);
    ASSERT_TRUE(low) << low.message();
    EXPECT_GT(lm::mean_of(low->kl), 1e-4);
    EXPECT_TRUE(low->rouge.empty());
    EXPECT_EQ(low->kl_at.size(), 12u);
    const auto features = lm::cache_features(*study, 1);
    ASSERT_TRUE(features) << features.message();
    EXPECT_EQ((*features)[2].rows, 16u);
    EXPECT_EQ((*features)[2].width, 32u);
    EXPECT_EQ((*features)[2].values.size(), 16u * 32u);
    o.prompts = 1000;
    EXPECT_FALSE(lm::study::make(m, nullptr, lm::kv_type::f16, {}, file.path(), o, 1));
    o.prompts = 2;
    o.tokens = 40;
    EXPECT_FALSE(lm::study::make(m, nullptr, lm::kv_type::f16, {}, file.path(), o, 1));
}

} // namespace
} // namespace test_nested
