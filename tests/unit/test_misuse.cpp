// What calls that cannot be right come to: a status, or the end of the program with both numbers.
#include "kv_problem.hpp"

#include <crumb/core/arena.hpp>
#include <crumb/crumb.hpp>
#include <crumb/offline/cache/default_codebooks.hpp>
#include <crumb/offline/weights/store.hpp>
#include <crumb/util.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace test_misuse {
namespace {

using crumb::errc;

/// n x k weights in q4_0 with a plan, and activations for it.
struct product {
    std::vector<float> w, x, y;
    crumb::buffer packed, memory;
    crumb::linear<crumb::q4_0> plan;
    crumb::activations a;
    product(std::size_t n, std::size_t k, std::size_t rows)
        : w(n * k, 0.5f), x(rows * k, 1.0f), y(rows * n), packed(crumb::packed_bytes<crumb::q4_0>(n, k)),
          plan(*crumb::linear<crumb::q4_0>::plan(*crumb::pack(
              *crumb::quantize<crumb::q4_0>(crumb::matrix<const float>(w.data(), n, k)), packed))) {
        memory = crumb::buffer(crumb::activation_bytes(plan.input_plan(), rows));
        a = *crumb::activations::create(memory, plan.input_plan(), rows);
    }
    auto plan_weights() const { return *crumb::packed_view<crumb::q4_0>::open(packed); }
    auto in() { return crumb::matrix<const float>(x.data(), a.rows(), plan.k()); }
    auto out() { return crumb::matrix(y.data(), a.rows(), plan.n()); }
};

crumb::kv_cache_options options_of(const crumb::kv_codec& codec) {
    return {.layers = 2, .kv_heads = 2, .head_size = 16, .max_tokens = 512, .max_rows = 4, .codec = codec};
}

/// A cache with attention over it, and a step's rows.
struct step : crumb_test::cache_problem {
    crumb::kv_attention attend;
    crumb::buffer room;
    std::vector<float> q, y;
    explicit step(const crumb::kv_codec& codec)
        : cache_problem(options_of(codec)), attend(*crumb::kv_attention::plan(options, {.heads = 4})),
          room(attend.scratch_bytes(4)), q(4 * 64, 0.1f), y(4 * 64) {}
    crumb::status read(std::size_t rows, std::size_t layer = 0, const crumb::kv_attention_part& part = {}) {
        return attend.run(crumb::matrix<const float>(q.data(), rows, 64), *cache, layer,
                          crumb::matrix(y.data(), rows, 64), room, part);
    }
};

void expect(const crumb::status& s, errc code, const char* message) {
    EXPECT_EQ(s.code(), code) << s.message();
    EXPECT_STREQ(s.message(), message);
}

TEST(Misuse, OfViewsWithoutAStride) {
    std::vector<float> x(12);
    const crumb::matrix_view<const float> view(x.data(), 3, 4);
    EXPECT_EQ(view.stride, 4u);
    EXPECT_EQ(view.row(2), x.data() + 8);
}

TEST(Misuse, OfStoredWeights) {
    std::vector<crumb::q8_0::block> blocks(8);
    EXPECT_TRUE(crumb::storage<crumb::q8_0>(blocks, 4, 64).ok());
    expect(crumb::storage<crumb::q8_0>(blocks, 4, 32).error(), errc::bad_shape,
           "stored weights: 8 blocks of format q8_0, 4 rows of 32 inputs take 1 each");
    expect(crumb::storage<crumb::q8_0>(blocks, 64, 40).error(), errc::bad_shape,
           "stored weights: 8 blocks of format q8_0, 64 rows of 40 inputs take 2 each");
    crumb::buffer memory(crumb::packed_bytes<crumb::q8_0>(4, 64));
    EXPECT_EQ(crumb::pack(crumb::storage<crumb::q8_0>(blocks, 5, 64), memory).error().code(),
              errc::bad_shape);
}

TEST(Misuse, OfNames) {
    expect(crumb::kv_codec::named("kivi5").error(), errc::invalid_argument,
           "no kv codec is called 'kivi5'; known are f32 f16 q8_0 kivi4 kivi2 pq4 pq3 pq2");
    for (const auto& each : crumb::kv_codecs)
        EXPECT_EQ(*crumb::kv_codec::named(each.name), each.codec);
    EXPECT_EQ(crumb::float_ops::plan({"abacus"}).error().code(), errc::unsupported);
}

TEST(Misuse, OfACacheOfAnotherCodec) {
    step coded(crumb::kv_codec::kivi4());
    const auto halves = *crumb::kv_attention::plan(options_of(crumb::kv_codec::f16()), {.heads = 4});
    coded.write(1);
    expect(
        halves.run(crumb::matrix<const float>(coded.q.data(), 1, 64), *coded.cache, 0,
                   crumb::matrix(coded.y.data(), 1, 64), coded.room),
        errc::bad_shape,
        "kv_attention: the cache has 2 kv heads of 16 in another codec and span 0, the plan 2 of 16 and 0");
}

TEST(Misuse, OfPositions) {
    for (const auto& codec : {crumb::kv_codec::f16(), crumb::kv_codec::q8_0()}) {
        step s(codec);
        expect(s.read(1), errc::invalid_argument,
               "kv_attention: layer 0, kv head 0: 1 tokens are read, 0 are there");
        s.write(2);
        EXPECT_TRUE(s.read(2).ok());
        expect(s.read(3), errc::invalid_argument,
               "kv_attention: layer 0, kv head 0: 3 tokens are read, 2 are there");
        expect(s.read(1, 2), errc::invalid_argument, "kv_attention: layer 2 of 2");
        expect(s.read(1, 1, {.position = 7}), errc::invalid_argument,
               "kv_attention: layer 1, kv head 0: 8 tokens are read, 2 are there");
        expect(s.read(1, 1, {.position = 513}), errc::invalid_argument,
               "kv_attention: position 513, the cache is for 512 tokens");
        // Without `advance`, the next step would write over this one's tokens.
        const auto again = s.cache->write(0, crumb::matrix<const float>(s.k.data(), 2, s.width()),
                                          crumb::matrix<const float>(s.v.data(), 2, s.width()));
        expect(
            again, errc::invalid_argument,
            "kv_cache: layer 0, kv head 0: attention has read token 0; advance before the next is written");
        expect(s.cache->advance(3), errc::invalid_argument,
               "kv_cache: advance by 3 tokens, layer 0, kv head 0 has 2");
        EXPECT_TRUE(s.cache->advance(2).ok());
        expect(s.cache->advance(1), errc::invalid_argument,
               "kv_cache: advance by 1 tokens, layer 0, kv head 0 has 0");
        s.write(1);
        EXPECT_TRUE(s.read(1).ok());
        s.cache->truncate(2); // gives the step up
        s.write(1);
        EXPECT_TRUE(s.cache->advance(1).ok());
        EXPECT_TRUE(s.read(1, 0, {.position = 1}).ok());
    }
}

TEST(Misuse, OfBuffers) {
    step s(crumb::kv_codec::f16());
    s.write(4);
    EXPECT_EQ(s.attend
                  .run(crumb::matrix<const float>(s.q.data(), 4, 64), *s.cache, 0,
                       crumb::matrix(s.y.data(), 4, 64), s.room.bytes().first(64))
                  .code(),
              errc::buffer_too_small);
    EXPECT_EQ(s.attend
                  .run(crumb::matrix<const float>(s.q.data(), 4, 64), *s.cache, 0,
                       crumb::matrix(s.y.data(), 4, 32, 64), s.room)
                  .code(),
              errc::bad_shape);
}

TEST(Misuse, OfMemoryForWeights) {
    product p(16, 64, 1);
    const auto stored = *crumb::quantize<crumb::q4_0>(crumb::matrix<const float>(p.w.data(), 16, 64));
    crumb::buffer memory(p.packed.size() + crumb::alignment);
    EXPECT_EQ(crumb::pack(stored, memory.bytes().first(64)).error().code(), errc::buffer_too_small);
    EXPECT_EQ(crumb::pack(stored, memory.bytes().subspan(8)).error().code(), errc::misaligned);
    EXPECT_EQ(crumb::packed_view<crumb::q8_0>::open(p.packed).error().code(), errc::wrong_format);
    // Weights that were not packed for it.
    const crumb::linear_options absorbed{.mode = crumb::linear_mode::absorbed};
    EXPECT_EQ(crumb::linear<crumb::q4_0>::plan(p.plan_weights(), absorbed).error().code(), errc::unsupported);
    const crumb::linear_options unknown{.mode = crumb::linear_mode(7)};
    expect(crumb::linear<crumb::q4_0>::plan(p.plan_weights(), unknown).error(), errc::invalid_argument,
           "linear: mode 7, the last is 2");
}

TEST(Misuse, OfForgottenPagesAndCodes) {
    auto options = options_of(crumb::kv_codec::q8_0());
    options.max_rows = 1;
    crumb::buffer state(*crumb::kv_cache::state_bytes(options));
    auto cache = *crumb::kv_cache::create(options, state);
    std::vector<float> x(32, 0.5f);
    const auto row = crumb::matrix<const float>(x.data(), 1, 32);
    const auto step = [&] {
        for (std::size_t layer = 0; layer < options.layers; ++layer)
            if (const crumb::status s = cache.write(layer, row, row); !s)
                return s;
        return cache.advance(1);
    };
    const auto steps = [&] {
        crumb::status s;
        while (s.ok())
            s = step();
        return s;
    };
    EXPECT_EQ(steps().code(), errc::buffer_too_small);
    EXPECT_EQ(cache.length(), cache.sinks()); // which need no page
    crumb::buffer page(cache.page_bytes());
    EXPECT_TRUE(cache.add_page(page).ok());
    EXPECT_EQ(steps().code(), errc::buffer_too_small);
    EXPECT_EQ(cache.length(), cache.sinks() + cache.slots()); // without `encode`
}

TEST(Misuse, OfBytesOfAnyFormat) {
    product p(16, 64, 1);
    const auto any = crumb::any_linear::open(p.packed);
    ASSERT_TRUE(any) << any.message();
    p.a.quantize(p.in());
    std::vector<float> y(16);
    any->run(p.a, crumb::matrix(y.data(), 1, 16));
    p.plan.run(p.a, p.out());
    EXPECT_EQ(y, p.y);
    EXPECT_EQ(crumb::any_linear::open(p.packed.bytes().first(40)).error().code(), errc::buffer_too_small);
    std::memcpy(p.packed.data() + 8, "q9_0", 5);
    expect(crumb::any_linear::open(p.packed).error(), errc::wrong_format,
           "packed weights: format q9_0, which is none of this build's");
}

// Sanitizers end a program that asks for so much.
#if defined(__has_feature)
#define CRUMB_SANITIZED __has_feature(address_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define CRUMB_SANITIZED 1
#else
#define CRUMB_SANITIZED 0
#endif
#if !CRUMB_SANITIZED
TEST(Misuse, OfBuffersThatNoMemoryHas) {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    EXPECT_THROW((void)crumb::buffer(most, crumb::buffer::zeros), std::bad_alloc);
    EXPECT_THROW((void)crumb::buffer(most - 10, crumb::buffer::untouched), std::bad_alloc);
    crumb::arena memory;
    EXPECT_THROW((void)memory.take(most), std::bad_alloc);
}
#endif

TEST(Misuse, OfSizesThatNoMemoryHas) {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    const float one = 1;
    const auto weights = [&](std::size_t rows, std::size_t cols, std::size_t stride) {
        return crumb::quantize<crumb::q4_0>(crumb::matrix(&one, rows, cols, stride)).error().code();
    };
    EXPECT_EQ(weights(std::size_t{1} << 62, 128, 128), errc::bad_shape);
    EXPECT_EQ(weights(1, most, most), errc::bad_shape);
    EXPECT_EQ(weights(2, 32, 31), errc::bad_shape);
    crumb::buffer table(4096);
    EXPECT_EQ(crumb::rope_table::create(table, 0, {.dims = most - 1}).error().code(), errc::bad_shape);
    step s(crumb::kv_codec::f16());
    s.write(2);
    EXPECT_TRUE(s.cache->advance(2).ok());
    for (const std::size_t rows : {most, most - 1, std::size_t{511}})
        EXPECT_EQ(s.cache->check_room(rows).code(), errc::invalid_argument);
}

TEST(Misuse, OfNumbersThatAreNone) {
    crumb::buffer table(4096);
    EXPECT_EQ(crumb::rope_table::create(table, 8, {.dims = 16, .scale = 1e308}).error().code(),
              errc::not_finite);
    EXPECT_EQ(crumb::rope_table::create(table, 8, {.dims = 16, .magnitude = 1e300}).error().code(),
              errc::invalid_argument);
    EXPECT_EQ(crumb::neuron_layout::of({16, 32, 32, crumb::row_codec(9), crumb::row_codec::f16, false})
                  .error()
                  .code(),
              errc::invalid_argument);
    EXPECT_EQ(
        crumb::kv_attention::plan(options_of(crumb::kv_codec::f16()), {.heads = 4, .mode = crumb::kv_mode(9)})
            .error()
            .code(),
        errc::invalid_argument);
    EXPECT_EQ(crumb::kv_ranges::of(100000, options_of(crumb::kv_codec::f16()), 0).count(), 1u);
    EXPECT_EQ(crumb::kv_ranges::of(100, options_of(crumb::kv_codec::f16()), std::size_t{1} << 63).count(),
              1u);
    EXPECT_EQ(crumb::grid_step(0, 1, 10), 0u);
    EXPECT_FALSE(crumb::default_kv_codebooks(crumb::kv_codec::pq(0, 8, false, true), 64));
    EXPECT_FALSE(crumb::default_kv_codebooks(crumb::kv_codec::pq(2, 31, false, true), 64));
    const auto levels = *crumb::nested_layout::of(16, 64, 3);
    EXPECT_EQ(levels.bytes_at(9), levels.bytes);
    EXPECT_EQ(levels.bytes_at(-3), levels.bytes_at(2));
    product p(32, 64, 1);
    const auto stored = *crumb::quantize<crumb::q4_0>(crumb::matrix<const float>(p.w.data(), 32, 64));
    const crumb::storage_view<crumb::q4_0> view = stored;
    EXPECT_EQ(crumb::pack_channels(view, p.packed.bytes(), {64, 16}).code(), errc::invalid_argument);
    constexpr std::size_t last = std::numeric_limits<std::size_t>::max();
    EXPECT_EQ(crumb::pack_channels(view, p.packed.bytes(), {last - 15, last}).code(), errc::invalid_argument);
}

TEST(Misuse, OfAnArenaThatHasMoved) {
    crumb::arena first;
    std::byte* const place = first.take(64).data();
    crumb::arena second = std::move(first);
    crumb::arena third;
    std::byte* const new_place = first.take(64).data();
    EXPECT_NE(new_place, second.take(64).data());
    first = std::move(third);
    EXPECT_NE(place, nullptr);
}

#if defined(GTEST_HAS_DEATH_TEST)
class MisuseDeathTest : public testing::Test {
  protected:
    // The other style executes this program anew, which an emulator cannot.
    MisuseDeathTest() { testing::FLAGS_gtest_death_test_style = "fast"; }
};

TEST_F(MisuseDeathTest, OfActivationsOfAnotherPlan) {
    product one(16, 64, 1), other(16, 128, 1);
    other.a.quantize(other.in());
    EXPECT_DEATH(one.plan.run(other.a, one.out()), "linear.hpp:[0-9]+: .*128 inputs .* reads 64 inputs");
    const crumb::any_linear any = one.plan;
    EXPECT_DEATH(any.run(other.a, one.out()), "128 inputs .* reads 64 inputs");
    EXPECT_DEATH(any.run(one.in(), one.out()), "reads activations, not floats");
    EXPECT_DEATH(one.a.quantize(other.in()), "x is 1 x 128, the activations are 1 x 64");
}

TEST_F(MisuseDeathTest, OfIndices) {
    const product p(40, 64, 1);
    const crumb::any_linear any = p.plan;
    std::vector<std::int8_t> codes(48 * 64);
    std::vector<float> scales(48 * 2);
    EXPECT_DEATH((void)any.constant(40), "output 40 of 40");
    EXPECT_DEATH((void)any.unpack({1024, 1056}, codes.data(), scales.data()), "channels 1024 to 40 of 40");
    EXPECT_DEATH((void)any.unpack({8, 24}, codes.data(), scales.data()), "channels 8 to 24 of 40");
    EXPECT_GT(any.unpack({}, codes.data(), scales.data()), 0.0f);
    EXPECT_DEATH((void)crumb::split(10, 0, 0), "split: 0 parts in steps of 1");
    EXPECT_DEATH((void)crumb::split(10, 1, 0, 0), "split: 1 parts in steps of 0");
    EXPECT_DEATH((void)crumb::levels_of<crumb::cb4>(), "levels of format cb4: 0 entries");
    EXPECT_DEATH((void)crumb::uniform_levels(0, 1, 5000), "uniform levels: 5000");
    const crumb::neuron_shape shape{16, 32, 32, crumb::row_codec::q8_0, crumb::row_codec::q8_0, false};
    const crumb::buffer memory(crumb::neuron_layout::of(shape)->bytes);
    const auto writer = *crumb::neuron_writer::create(memory, shape);
    EXPECT_DEATH(writer.thresholds(100000, 0, 1), "neuron 100000 of 16");
    EXPECT_DEATH((void)writer.in(16), "neuron 16 of 16");
    step s(crumb::kv_codec::kivi4());
    s.write(4);
    EXPECT_TRUE(s.cache->advance(4).ok());
    const crumb::buffer scratch(s.cache->encode_scratch_bytes());
    EXPECT_DEATH(s.cache->encode({0, 64, 4}, scratch), "no such encoding: 64 tokens from 0 on, 4 pairs");
    EXPECT_DEATH(s.cache->end_encoding({0, 1000064, 4}), "no such encoding");
}

TEST_F(MisuseDeathTest, OfShapes) {
    product p(16, 64, 2);
    p.a.quantize(p.in());
    EXPECT_DEATH(p.plan.run(p.a, crumb::matrix(p.y.data(), 2, 15, 16)), "y is 2 x 15, the product is 2 x 16");
    EXPECT_DEATH(crumb::any_linear().run(p.a, p.out()), "the plan is empty");
    EXPECT_DEATH(crumb::any_linear().run(p.in(), p.out()), "the plan is empty");
    EXPECT_DEATH((crumb::linear<crumb::q4_0>().run(p.a, p.out())), "the plan is empty");
    EXPECT_DEATH(crumb::attention().isa(), "attention: the plan is empty");
    EXPECT_DEATH(crumb::attention().merge({}, 0, {}), "attention: the plan is empty");
    EXPECT_DEATH(crumb::kv_attention().isa(), "attention: the plan is empty");
    EXPECT_DEATH(crumb::kv_cache().isa(), "kv_cache: the cache was not created");
    EXPECT_DEATH(crumb::kv_cache().length(), "kv_cache: the cache was not created");
    const auto attend = *crumb::attention::plan({.heads = 1, .kv_heads = 1, .head_size = 16});
    const crumb::kv_array_view<float> kv{p.w.data(), 1, 16, 16};
    EXPECT_DEATH(attend.run(crumb::matrix<const float>(p.x.data(), 1, 16), crumb::kv_arrays<float>{kv, kv},
                            crumb::matrix(p.y.data(), 1, 16), p.memory.bytes().first(64)),
                 "attention: scratch has 64 bytes, [0-9]+ are needed");
    const crumb::attention_split beyond{{}, p.memory.bytes(), std::numeric_limits<std::size_t>::max()};
    EXPECT_DEATH(attend.partial(crumb::matrix<const float>(p.x.data(), 1, 16),
                                crumb::kv_arrays<float>{kv, kv}, beyond, p.memory),
                 "attention::partial: partials has");
    EXPECT_DEATH(attend.run(crumb::matrix<const float>(p.x.data(), 1, 16),
                            crumb::kv_arrays<float>{kv, kv, std::numeric_limits<std::size_t>::max()},
                            crumb::matrix(p.y.data(), 1, 16), p.memory),
                 "attention: position 18446744073709551615");
    const auto ops = *crumb::float_ops::plan();
    crumb::buffer memory(crumb::rope_table_bytes(8, 16));
    const auto table = *crumb::rope_table::create(memory, 8, {.dims = 16});
    EXPECT_DEATH(ops.rope(crumb::matrix(p.x.data(), 2, 64), 16, table, 7),
                 "rows up to 2 of position 7, the table has 8 positions");
    EXPECT_DEATH(
        ops.rope(crumb::matrix(p.x.data(), 2, 64), 16, table, std::numeric_limits<std::size_t>::max()),
        "the table has 8 positions");
}

#if CRUMB_DEBUG_CHECKS
TEST_F(MisuseDeathTest, OfRowsThatWereNotQuantized) {
    product p(16, 64, 2);
    EXPECT_DEATH(p.plan.run(p.a, p.out()), "row 0 of 2 has not been quantized");
    p.a.quantize(p.in(), {0, 1});
    EXPECT_DEATH(p.plan.run(p.a, p.out()), "row 1 of 2 has not been quantized");
    p.plan.run(p.a, p.out(), {.rows = {0, 1}});
}

TEST_F(MisuseDeathTest, OfRows) {
    product p(16, 64, 2);
    p.a.quantize(p.in());
    const auto one_row = *crumb::linear<crumb::q4_0>::plan(p.plan_weights(), {.max_rows = 1});
    EXPECT_DEATH(one_row.run(p.a, p.out()), "2 rows, the plan is for 1");
    EXPECT_DEATH(p.plan.run(p.a, crumb::matrix(p.y.data(), 2, 16, 8)), "rows of 16 floats, 8 apart");
    EXPECT_DEATH(crumb::any_linear(one_row).run(p.a, p.out()), "2 rows, the plan is for 1");
    const auto dense = *crumb::dense_linear<float>::plan(crumb::matrix<const float>(p.w.data(), 16, 64));
    EXPECT_DEATH(dense.run(p.in(), crumb::matrix(p.y.data(), 2, 16, 8)), "rows of 16 floats, 8 apart");
}

TEST_F(MisuseDeathTest, OfRanges) {
    product p(64, 64, 1);
    p.a.quantize(p.in());
    EXPECT_DEATH(p.plan.run(p.a, p.out(), {.channels = {16, 8}}), "channels 16 to 8 of 64");
    EXPECT_DEATH(p.plan.run(p.a, p.out(), {.channels = {100, 200}}), "channels 100 to 200 of 64");
    EXPECT_DEATH(p.plan.run(p.a, p.out(), {.rows = {1, 2}}), "rows 1 to 2 of 1");
    step s(crumb::kv_codec::f16());
    s.write(1);
    EXPECT_DEATH((void)s.read(1, 0, {.kv_heads = {1, 3}}), "kv heads 1 to 3 of 2");
    const auto ops = *crumb::float_ops::plan();
    EXPECT_DEATH(ops.add(p.out(), p.out(), p.out(), {0, 3}), "rows 0 to 3 of 1");
    EXPECT_DEATH(ops.softmax(p.out(), p.out(), {}, {2, 1}), "rows 2 to 1 of 1");
    const auto attend = *crumb::attention::plan({.heads = 1, .kv_heads = 1, .head_size = 16});
    const crumb::buffer partials(attend.partial_bytes(1, 1));
    EXPECT_DEATH(attend.merge(partials, 1, crumb::matrix(p.y.data(), 1, 16), {.rows = {0, 2}}),
                 "rows 0 to 2 of 1");
}
#endif
#endif

} // namespace
} // namespace test_misuse
