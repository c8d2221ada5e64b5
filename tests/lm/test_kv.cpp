// Coded caches in sessions: names, how near they are to halves.
#include "decisions.hpp"
#include "kv_models.hpp"

#include <cmath>
#include <cstring>

namespace test_kv {
namespace {

using namespace lm::test;
using lm::activation_type;
using lm::architecture;
using lm::kv_type;
using lm::weight_type;

TEST(KvType, ReadsNamesAndOptions) {
    const std::pair<const char*, kv_type> known[] = {
        {"f32", kv_type::f32},
        {"f16", kv_type::f16},
        {"q8_0", {kv_codec::q8_0()}},
        {"kivi4", {kv_codec::kivi(4)}},
        {"kivi2", {kv_codec::kivi(2)}},
        {"pq4", {kv_codec::pq(2, 8, true, true)}},
        {"pq3", {kv_codec::pq(2, 6, false, true)}},
        {"pq2", {kv_codec::pq(4, 8, false, true)}},
        {"pq:2x8", {kv_codec::pq(2, 8, false, false)}},
        {"pq:4x6", {kv_codec::pq(4, 6, false, false)}},
        {"pq:1x4", {kv_codec::pq(1, 4, false, false)}},
        {"pq:2x4+4", {kv_codec::pq(2, 8, true, false)}},
        {"pq4:sinks=0:window=1", {kv_codec::pq(2, 8, true, true), 0, 1}},
        {"pq4:exact:window=128:sinks=4096", {kv_codec::pq(2, 8, true, true), 4096, 128, true}},
        {"pq:4x8:sinks=7", {kv_codec::pq(4, 8, false, false), 7}},
        {"pq2:skip=0.001", {kv_codec::pq(4, 8, false, true), 4, 32, false, 0.001f}},
        {"pq2:skip=0.123456789", {kv_codec::pq(4, 8, false, true), 4, 32, false, 0.123456789f}},
        {"pq2:skip=1e-30", {kv_codec::pq(4, 8, false, true), 4, 32, false, 1e-30f}},
        {"f16:prompts=int8", {kv_codec::f16(), 4, 32, false, 0, true}},
        {"kivi4:limit=16", {kv_codec::kivi(4), 4, 32, false, 0, false, 16.0f}},
        {"pq2:skip=0.5:limit=0", {kv_codec::pq(4, 8, false, true), 4, 32, false, 0.5f, false, 0.0f}},
        {"pq3:scales=1", {kv_codec::pq(2, 6, false, true), 4, 32, false, 0, false, std::nullopt, 1}},
        {"kivi4:scales=5", {kv_codec::kivi(4)}},
        {"pq2:prompts=int8:skip=0.5", {kv_codec::pq(4, 8, false, true), 4, 32, false, 0.5f, true}},
    };
    for (const auto& [text, kv] : known) {
        EXPECT_EQ(parsed(text), kv) << text;
        EXPECT_EQ(parsed(kv.name()), kv) << kv.name();
    }
    EXPECT_EQ(kv_type::f16.name(), "f16");
    EXPECT_EQ(parsed("pq2").name(), "pq2:sinks=4:window=32");
    EXPECT_EQ(parsed("pq:2x4+4:exact").name(), "pq:2x4+4:sinks=4:window=32:exact");
    EXPECT_EQ(parsed("pq4:scales=2").name(), "pq4:sinks=4:window=32:scales=2");
    EXPECT_EQ(parsed("pq4:skip=.0010").name(), "pq4:sinks=4:window=32:skip=0.001");
    EXPECT_EQ(parsed("pq4:skip=0.123456789").name(), "pq4:sinks=4:window=32:skip=0.12345679");
    EXPECT_EQ(lm::codec_name(kv_codec::pq(2, 8, true, true)), "pq4");
    EXPECT_EQ(lm::codec_name(kv_codec::pq(2, 8, true, false)), "pq:2x4+4");
}

TEST(KvType, RefusesWhatItDoesNotKnow) {
    for (const char* text : {"",
                             "pq",
                             "pq5",
                             "PQ4",
                             "pq4 ",
                             "q4_0",
                             "kivi3",
                             "pq:",
                             "pq:2",
                             "pq:2x",
                             "pq:x8",
                             "pq:3x8",
                             "pq:0x8",
                             "pq:2x5",
                             "pq:2x264",
                             "pq:258x8",
                             "pq:2x-8",
                             "pq:2x4+5",
                             "pq:1x8x8",
                             "pq4:",
                             "pq4::exact",
                             "pq4:sinks",
                             "pq4:sinks=",
                             "pq4:sinks=-1",
                             "pq4:sinks=x",
                             "pq4:sinks=4097",
                             "pq4:window=65537",
                             "pq4:window=1 ",
                             "pq4:window=99999999999999999999",
                             "pq4:slack=1",
                             "pq4:exactly",
                             "pq4:skip=",
                             "pq4:skip=1",
                             "pq4:skip=-0.1",
                             "pq4:skip=nan",
                             "pq4:skip=0.1:exact",
                             "kivi4:limit=",
                             "kivi4:limit=-1",
                             "kivi4:limit=nan",
                             "kivi4:limit=inf",
                             "kivi4:limit=1:exact",
                             "q8_0:limit=1",
                             "f16:limit=1",
                             "f16:skip=0.1",
                             "f16:exact",
                             "f16:prompts=",
                             "f16:prompts=floats",
                             "f32:prompts=int8",
                             "f32:sinks=8",
                             "f32:window=0",
                             "pq4:scales=",
                             "pq4:scales=0",
                             "pq4:scales=6",
                             "pq:2x8:scales=1",
                             "kivi4:scales=1",
                             ":pq4"}) {
        const auto kv = kv_type::parse(text);
        ASSERT_FALSE(kv.ok()) << text;
        EXPECT_EQ(std::string(kv.message()).find("--kv " + std::string(text) + ": "), 0u) << kv.message();
    }
    const std::string long_text(1000, 'x');
    for (const auto& [text, what] :
         {std::pair<std::string, std::string>{"q5_0", "codecs are f32, f16, q8_0, kivi4"},
          {"pq:3x4",
           "pq:<1|2|4>x<4|6|8|4+4>, then :sinks=S, :window=W, :exact, :prompts=int8, :skip=E, :limit=E, "
           ":scales=N"},
          {"pq4:sinks=5000", "--kv pq4:sinks=5000: sinks are 0 to 4096"},
          {"pq4:window=65537", "a window has 0 to 65536 tokens"},
          {"pq4:skip=1", "skip is a share from 0 to below 1"},
          {"f16:skip=0.5", "skip is for pq codecs"},
          {"kivi2:limit=-1", "limit is a number from 0 on"},
          {"q8_0:limit=1", "a limit of planes is for pq and kivi codecs"},
          {"f16:prompts=f16", "prompts can be int8"},
          {"f32:prompts=int8", "int8 products are for halves and codes, not for f32"},
          {"f32:sinks=8", "sinks, window and exact are for codes, not for f32 and f16"},
          {"pq4:slack=1",
           "'slack=1' is unknown; known are sinks=S, window=W, exact, prompts=int8, skip=E, limit=E and "
           "scales=N"},
          {"pq4:scales=6", "scales are 1 to 5"},
          {"kivi4:scales=2", "scales are tried for pq4, pq3 and pq2"},
          {"pq4:exact:window=1:exact", "exact is given twice"},
          {"pq4:window=1:window=1", "window is given twice"},
          {long_text, "...: codecs are f32"},
          {long_text, ":skip=E"},
          {"pq4:" + long_text, "window=W, exact, prompts=int8, skip=E, limit=E and scales=N"}}) {
        const auto kv = kv_type::parse(text);
        ASSERT_FALSE(kv.ok()) << text;
        EXPECT_NE(std::string(kv.message()).find(what), std::string::npos) << kv.message();
    }
    EXPECT_EQ(parsed("kivi4:window=65536:sinks=4096").window, 65536u);
}

constexpr const char* coded[] = {"q8_0", "kivi4", "kivi2", "pq4", "pq3", "pq2", "pq:2x8"};

using Kv = kv_models;

// The measure is a cache whose keys and values are all 0. A codec that mixes up tokens, channels, scales or
// means is off by as much as the numbers are large, and so is that cache; to second order the divergence is
// the square of the error. What is allowed is some times the share of the numbers' energy that the codec
// loses at most: 2^-14 for 8 bits, and for a range of about 5 deviations in 4 or 2 bits 1/100 or 1/4.
// Codebooks of a few thousand random tokens lose as much.
TEST_P(Kv, CodesStayNearHalves) {
    auto halves = start(kv_type::f16, context, {});
    const kv_type plain = parsed("pq:2x8:window=1");
    crumb::kv_codebooks nothing = train(plain.codec);
    std::fill(nothing.entries.begin(), nothing.entries.end(), std::int8_t{0});
    const double lost = divergence(plain, nothing, halves);
    ASSERT_GT(lost, 0.05);
    const auto share = [&](const char* name, double most) {
        const kv_type kv = parsed(std::string(name) + ":window=1");
        const double kl = divergence(kv, train(kv.codec), halves) / lost;
        EXPECT_LT(kl, most) << name;
        EXPECT_GT(kl, 0) << name << ": is anything coded?";
        return kl;
    };
    const double q8_0 = share("q8_0", 0.001), kivi4 = share("kivi4", 0.06), kivi2 = share("kivi2", 0.7);
    const double pq4 = share("pq4", 0.08), pq3 = share("pq3", 0.2), pq2 = share("pq2", 0.5);
    share("pq:2x8", 0.08);
    share("pq:2x4+4:exact", 0.08);
    EXPECT_LT(q8_0, kivi4);
    EXPECT_LT(kivi4, kivi2);
    EXPECT_LT(pq4, pq3);
    EXPECT_LT(pq3, pq2);
}

// Tables and weights are rounded to 7 and 14 bits: far less than what the codes lose.
TEST_P(Kv, TablesStayNearDecodedCodes) {
    for (const char* name : {"pq4", "pq3", "pq2", "pq:2x8", "pq:1x4", "pq:4x4+4"}) {
        const kv_type fast = parsed(std::string(name) + ":window=1");
        kv_type exact = fast;
        exact.exact = true;
        const auto books = train(fast.codec);
        auto halves = start(kv_type::f16, context, {}), decoded = start(exact, 1, books);
        EXPECT_LT(divergence(fast, books, decoded), 0.01 * divergence(fast, books, halves)) << name;
    }
}

TEST_P(Kv, CountsPlanesAndChangesNoBit) {
    const auto text = random_tokens(context, 5);
    for (const char* name : {"pq4:window=1", "kivi4:window=1"}) {
        const kv_type kv = parsed(name);
        const auto books = train(kv.codec);
        auto plain = start(kv, 1, books), counted = start(kv, 1, books);
        counted.count_planes();
        EXPECT_EQ(run(plain, text, {1}), run(counted, text, {1})) << name;
        EXPECT_EQ(plain.planes().heads, 0u) << name;
        // Steps from the first one on that finds coded tokens.
        const auto planes = counted.planes();
        const auto& d = counted.of().shape();
        EXPECT_GT(planes.heads, d.layers * d.heads * crumb::kv_block_tokens) << name;
        EXPECT_LT(planes.heads, d.layers * d.heads * context) << name;
        EXPECT_EQ(planes.heads % (d.layers * d.heads), 0u) << name;
        for (const double share : {planes.scores, planes.weights}) {
            EXPECT_GE(share, 0) << name;
            EXPECT_LE(share, static_cast<double>(planes.heads)) << name;
        }
    }
    const auto counted_scores = [&](const char* name) {
        auto s = start(parsed(name), 1, {});
        s.count_planes();
        run(s, text, {1});
        return s.planes().scores / static_cast<double>(s.planes().heads);
    };
    EXPECT_EQ(counted_scores("kivi4:window=1:limit=1000000"), 0);
    EXPECT_EQ(counted_scores("kivi4:window=1:limit=0"), 1);
    auto halves = start(kv_type::f16, 1, {});
    halves.count_planes();
    run(halves, text, {1});
    EXPECT_EQ(halves.planes().heads, 0u);
}

// Without anything left unread only the order of the sums is another, and with it how a few weights are
// rounded. Tokens that are encoded while others are coded already may get other codes from that, which then
// stay.
TEST_P(Kv, ValuesOfLittleWeightMayStayUnread) {
    const kv_type all = parsed("pq4:window=1");
    const auto books = train(all.codec);
    const auto text = random_tokens(context, 5);
    auto whole = start(all, 1, books);
    const auto expected = run(whole, text, {1});
    EXPECT_EQ(whole.kv_left_unread(), 0);
    const auto largest = [&](std::span<const float> logits) {
        double most = 0;
        for (std::size_t i = 0; i < logits.size(); ++i)
            most = std::max(most, std::fabs(static_cast<double>(logits[i] - expected[i])));
        return most;
    };
    const std::size_t vocabulary = expected.size() / context;
    const std::size_t same_codes = all.sinks + 2 * crumb::kv_block_tokens;
    double unread = 0;
    for (const char* share : {"0.0000001", "0.5", "0.99"}) {
        auto s = start(parsed("pq4:window=1:skip=" + std::string(share)), 1, books);
        const auto logits = run(s, text, {1});
        const bool first = std::string(share) == "0.0000001";
        EXPECT_EQ(s.kv_left_unread() > unread, !first) << share;
        if (first) {
            EXPECT_LT(largest(std::span(logits).first(same_codes * vocabulary)), 0.01);
            double squares = 0;
            for (std::size_t i = 0; i < logits.size(); ++i)
                squares += std::pow(static_cast<double>(logits[i] - expected[i]), 2);
            EXPECT_LT(std::sqrt(squares / static_cast<double>(logits.size())), 0.01);
        } else {
            EXPECT_GT(largest(logits), 0.1) << share;
        }
        unread = s.kv_left_unread();
    }
    EXPECT_LT(unread, 1);
}

// With 4 sinks and a window of 32, tokens 4 to 67 become codes when there are 100 tokens, the next 64 when
// there are 164. Pieces that end there read the same codes as single tokens do.
TEST_P(Kv, BatchesDoNotChangeABitBetweenEncodings) {
    const auto text = random_tokens(228, 5);
    for (const char* name : coded) {
        kv_type kv = parsed(name);
        kv.exact = true;
        const auto books = train(kv.codec);
        auto s = start(kv, 128, books);
        const auto expected = run(s, text, {100, 64});
        for (const std::vector<std::size_t>& pieces :
             {std::vector<std::size_t>{1}, {37, 63, 1}, {100, 7, 57, 9}}) {
            s.reset();
            EXPECT_EQ(run(s, text, pieces), expected) << name << ": " << pieces[0] << " and so on";
        }
        for (const std::size_t threads : {2, 3}) {
            auto parallel =
                lm::session::make(model_, lm::team(threads, together), kv, context, 128, *books.view());
            ASSERT_TRUE(parallel.ok()) << parallel.message();
            EXPECT_EQ(run(*parallel, text, {100, 64}), expected) << name << ": " << threads << " threads";
        }
    }
}

// Blocks are encoded while tokens are decoded, by threads that wait for others. From which length on they are
// read as codes is up to their position: so are all logits, however many threads there are, and however many
// items are left when a block is due.
TEST_P(Kv, EncodesBesideDecodingWithoutChangingABit) {
    const auto text = random_tokens(240, 5);
    for (const char* name : {"pq4", "kivi4:window=0", "q8_0:sinks=0:window=100"}) {
        const kv_type kv = parsed(name);
        const auto books = train(kv.codec);
        std::vector<float> expected;
        for (const std::size_t threads : {1, 2, 3}) {
            auto s = lm::session::make(model_, lm::team(threads, together), kv, context, 128, *books.view());
            ASSERT_TRUE(s.ok()) << s.message();
            std::vector<lm::encoded_block> blocks;
            s->trace_encoding([&](const lm::encoded_block& b) { blocks.push_back(b); });
            const auto logits = run(*s, text, {1});
            if (expected.empty())
                expected = logits;
            EXPECT_EQ(logits, expected) << name << ": " << threads << " threads";
            // Beside decoding as long as a window has the block; without one it is due at once.
            ASSERT_EQ(blocks.empty(), kv.window == 0) << name;
            for (const lm::encoded_block& b : blocks) {
                EXPECT_EQ(b.first, kv.sinks + 64 * static_cast<std::size_t>(&b - blocks.data())) << name;
                EXPECT_EQ(b.coded, b.first + 64 + kv.window) << name;
                EXPECT_GE(b.begun, b.first + 64) << name;
                EXPECT_LT(b.begun, b.coded) << name;
                EXPECT_EQ(b.items, model_.shape().layers * model_.shape().kv_heads) << name;
                EXPECT_EQ(threads == 1 ? b.between : b.beside, b.items) << name << ", token " << b.first;
            }
            // A piece that ends where a block is due leaves no step in between.
            blocks.clear();
            s->reset();
            const std::size_t before = kv.sinks + 64, due = before + kv.window;
            fed(*s, std::span(text).first(before), 0);
            fed(*s, std::span(text).subspan(before, kv.window), 0);
            const auto rest = run(*s, std::span(text).subspan(due, 20), {1});
            EXPECT_EQ(s->cached(0).cache.coded(), 64u);
            for (const lm::encoded_block& b : blocks)
                EXPECT_LT(b.beside + b.between, b.items) << name;
            // Given up and begun again.
            if (kv.window > 2) {
                s->reset();
                fed(*s, std::span(text).first(before), 0);
                fed(*s, std::span(text).subspan(before, 1), 0);
                s->rewind(before - 1);
                fed(*s, std::span(text).subspan(before - 1, 2), 0);
                EXPECT_EQ(s->cached(0).cache.coded(), 0u);
                fed(*s, std::span(text).subspan(before + 1, kv.window - 1), 0);
                EXPECT_EQ(run(*s, std::span(text).subspan(due, 20), {1}), rest) << name;
            }
        }
    }
}

// A step may come down to one part at any barrier, and so may encoding at its start.
TEST_P(Kv, GoingOnAloneDoesNotChangeABit) {
    const auto text = random_tokens(102, 5);
    const kv_type kv = parsed("pq4:exact");
    const auto books = train(kv.codec);
    auto one = start(kv, 128, books);
    const auto expected = run(one, text, {100, 1});
    nth_decision when;
    const lm::team team(2, when.function());
    auto two = lm::session::make(model_, team, kv, context, 128, *books.view());
    ASSERT_TRUE(two.ok()) << two.message();
    const std::size_t all = when.for_each([&] {
        two->reset();
        EXPECT_EQ(run(*two, text, {100, 1}), expected) << "alone from decision " << when.n;
    });
    EXPECT_GE(all, 1 + 3 * (1 + 4 * model_.shape().layers));
}

TEST_P(Kv, RewindsWithoutATraceWhereNoCodeIsCut) {
    const auto text = random_tokens(200, 5);
    for (const char* name : coded) {
        const kv_type kv = parsed(name);
        const auto books = train(kv.codec);
        auto s = start(kv, 64, books);
        const auto first = run(s, text, {1});
        // Tokens 4 to 131 are codes from 164 tokens on.
        for (const std::size_t length : {199, 180, 164}) {
            s.rewind(length);
            EXPECT_EQ(s.length(), length);
            const auto again = run(s, std::span(text).subspan(length), {1});
            EXPECT_TRUE(std::equal(again.begin(), again.end(),
                                   first.begin() + static_cast<std::ptrdiff_t>(length * 256), first.end()))
                << name << ": rewound to " << length;
        }
        s.reset();
        EXPECT_EQ(run(s, text, {1}), first) << name;
    }
}

// What is left of a cut block goes back to the window as it was decoded: the next tokens read the same
// numbers, rounded to halves. Those fed again before the cut token differ, as they met halves the first time.
TEST_P(Kv, RewindsIntoCodes) {
    const auto text = random_tokens(200, 5);
    for (const char* name : coded) {
        kv_type kv = parsed(name);
        kv.exact = true;
        const auto books = train(kv.codec);
        auto s = start(kv, 64, books);
        run(s, text, {1});
        s.rewind(120);
        EXPECT_EQ(s.length(), 120u);
        // Token 120 once behind the codes of tokens 68 to 119 and once behind what became of them: as codes
        // are cut, they are decoded, so that it makes no difference but for the rounding.
        const auto one = run(s, std::span(text).subspan(120, 1), {1});
        s.rewind(120);
        EXPECT_EQ(run(s, std::span(text).subspan(120, 1), {1}), one) << name;
        EXPECT_EQ(run(s, std::span(text).subspan(121), {1}).size(), 79u * 256) << name;
    }
}

TEST_P(Kv, ReportsItsBytes) {
    const auto& d = model_.shape();
    ASSERT_EQ(d.head_size, 32u);
    const double channels = static_cast<double>(2 * d.layers * d.kv_heads * d.head_size);
    // Heads of 32: a scale per token adds half a bit, as the means of 32 tokens do.
    const std::pair<const char*, double> bits[] = {{"f32", 32},   {"f16", 16},   {"q8_0", 8.5}, {"kivi4", 5},
                                                   {"kivi2", 3},  {"pq4", 5},    {"pq3", 4},    {"pq2", 3},
                                                   {"pq:2x8", 4}, {"pq:1x4", 4}, {"pq:4x4", 1}};
    for (const auto& [name, each] : bits) {
        const kv_type kv = parsed(name);
        EXPECT_EQ(start(kv, 1, train(kv.codec)).kv_bytes_per_token(), channels * each / 8) << name;
    }
}

TEST_P(Kv, RefusesKeysBeyondHalves) {
    tiny_model big(shape());
    auto& t =
        big.tensors[GetParam() == architecture::llama ? "blk.1.attn_k.weight" : "blk.1.attn_qkv.weight"];
    for (std::size_t i = 0; i + 4 <= t.data.size(); i += 4) {
        float x;
        std::memcpy(&x, t.data.data() + i, 4);
        x *= 1e7f;
        std::memcpy(t.data.data() + i, &x, 4);
    }
    const temporary_file file(big.file());
    const lm::model m = load(file.path());
    for (const char* name : {"f16", "q8_0", "kivi2"}) {
        auto s = lm::session::make(m, lm::team(2), parsed(name), context, 8);
        ASSERT_TRUE(s.ok()) << s.message();
        const auto logits = s->feed(random_tokens(3, 1), 1);
        ASSERT_FALSE(logits) << name;
        const std::string message = logits.message();
        EXPECT_EQ(message.find("tensor"), 0u) << message;
        EXPECT_NE(message.find("blk.1.attn_"), std::string::npos) << message;
        EXPECT_NE(message.find("kv_cache: token 0, kv head 0: a key is "), std::string::npos) << message;
        EXPECT_EQ(s->length(), 0u);
    }
    const auto books = lm::train_codebooks(m, kv_codec::pq(2, 8, true, true), training(), {});
    EXPECT_FALSE(books.ok());
}

TEST_P(Kv, SessionsWantTheCodebooksOfTheirModel) {
    const kv_type kv = parsed("pq4");
    const auto without = lm::session::make(model_, lm::team(1), kv, context, 1);
    ASSERT_FALSE(without.ok());
    EXPECT_STREQ(without.message(), "kv_cache: the codec needs codebooks");
    auto few = train(kv.codec);
    const std::size_t all = few.sets;
    few.sets = 1;
    EXPECT_NE(std::string(few.view().message()).find("1 sets of heads of"), std::string::npos);
    few.entries.resize(few.entries.size() / all);
    few.scales.resize(few.scales.size() / all);
    ASSERT_TRUE(few.view()) << few.view().message();
    const auto small = lm::session::make(model_, lm::team(1), kv, context, 1, *few.view());
    ASSERT_FALSE(small.ok());
    EXPECT_NE(std::string(small.message()).find("1 sets of codebooks do not serve 2 layers"),
              std::string::npos)
        << small.message();
}

TEST_P(Kv, SharedCodebooksServeAllHeads) {
    const kv_codec codec = kv_codec::pq(2, 8, true, true);
    auto halves = start(kv_type::f16, context, {});
    std::size_t bytes = std::numeric_limits<std::size_t>::max();
    for (const auto sharing : {crumb::kv_sharing::none, crumb::kv_sharing::layers, crumb::kv_sharing::all}) {
        auto how = training();
        how.sharing = sharing;
        const auto books = lm::train_codebooks(model_, codec, how, {});
        ASSERT_TRUE(books.ok()) << books.message();
        EXPECT_LE(books->bytes(), bytes);
        bytes = books->bytes();
        EXPECT_LT(divergence({codec}, *books, halves), 0.1);
        // A file keeps what is shared.
        const temporary_file on_disk(with_codebooks(model_, model_, *books));
        const lm::model m = load(on_disk.path());
        const auto read = lm::read_codebooks(m, codec);
        ASSERT_TRUE(read.ok() && read->has_value()) << read.message();
        EXPECT_EQ((*read)->identity(), books->identity());
    }
}

// Turning is undone where halves are read: as long as nothing is encoded, what is left are the roundings of
// other halves. A byte of q8_0 has three bits less.
TEST_P(Kv, TurnedKeysMeetTurnedQueries) {
    lm::kv_training how = training();
    how.errors = crumb::code_errors::turned;
    const kv_codec codec = kv_codec::pq4();
    const auto books = lm::train_codebooks(model_, codec, how, {});
    ASSERT_TRUE(books.ok()) << books.message();
    ASSERT_TRUE(books->view()->are_turned());
    lm::session reference = start(kv_type::f16, 64, {});
    const double of_bytes = divergence(parsed("q8_0"), {}, reference);
    EXPECT_LT(divergence(parsed("pq4:window=65536"), *books, reference), of_bytes);

    const auto text = random_tokens(110, 5);
    auto one = start({codec}, 128, *books);
    const auto expected = run(one, text, {70, 1});
    auto two = lm::session::make(model_, lm::team(2, together), {codec}, context, 128, *books->view());
    ASSERT_TRUE(two.ok()) << two.message();
    EXPECT_EQ(run(*two, text, {70, 1}), expected);
    one.reset();
    EXPECT_EQ(run(one, text, {9, 40, 20, 1}), expected);
}

INSTANTIATE_TEST_SUITE_P(Architectures, Kv, testing::Values(architecture::llama, architecture::gpt2),
                         architecture_name);

} // namespace
} // namespace test_kv
