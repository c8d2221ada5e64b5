// Attention of many rows by products of int8 matrices.
#include "guarded.hpp"
#include "isa_test.hpp"
#include "kv_problem.hpp"

#include <crumb/op/cache/int8_products.hpp>

#include <cmath>
#include <thread>

namespace test_prompt_attention {
namespace {

using crumb::errc;
using crumb::kv_codec;
using crumb::kv_route;
using crumb_test::cache_problem;
using crumb_test::codecs;
using crumb_test::for_each_isa;
using crumb_test::guarded;
using crumb_test::step_problem;
using crumb_test::tested_isa;

constexpr double eps = 2 * 0x1p-24;

/// Attention by products, and its bound.
struct prompt_problem : step_problem {
    using step_problem::step_problem;

    crumb::kv_attention plan(const char* isa, bool int8 = true) const {
        crumb::kv_attention_options of{.heads = heads};
        if (int8) {
            const auto by = crumb::int8_products({isa});
            EXPECT_TRUE(by.ok()) << by.message();
            of.prompts = *by;
        }
        const auto p = crumb::kv_attention::plan(options, of, {isa});
        EXPECT_TRUE(p.ok()) << p.message();
        return *p;
    }
    void run(const char* isa, const crumb::kv_attention_part& part = {}) {
        const auto p = plan(isa);
        guarded<std::byte> memory(p.scratch_bytes(rows));
        const auto done = p.run(queries(), *cache, 0, result(), memory.span(), part);
        ASSERT_TRUE(done.ok()) << done.message();
    }

    /// Largest distance of x from its int8 code times the scale of a group whose largest magnitude is
    /// `most`: half a scale, and what rounding the scale to fp16 adds.
    static double step(double most) { return most / 127 * (0.5 + 0x1p-9) + 127 * 0x1p-25; }

    // |y - exact| <= (e^(2 E) - 1) max |v - exact| + e^(2 E) W: E bounds errors of scores by rounded keys and
    // queries, W those of the output by rounded weights and values.
    void check() {
        const std::size_t d = options.head_size, group = heads / options.kv_heads, most = position + rows;
        const double scale = 1 / std::sqrt(double(d));
        for (std::size_t h = 0; h < options.kv_heads; ++h) {
            std::vector<std::vector<double>> keys, values;
            for (std::size_t t = 0; t < most; ++t) {
                keys.push_back(decoded(0, h, true, t));
                values.push_back(decoded(0, h, false, t));
            }
            // Every fifth row and the last.
            for (std::size_t r = rows % 5 == 0 ? 4 : rows % 5 - 1; r < rows; r += 5)
                for (std::size_t g = 0; g < group; ++g) {
                    const float* query = q.data() + r * cols() + (h * group + g) * d;
                    const std::size_t tokens = position + r + 1;
                    std::vector<double> weight(tokens), want(d);
                    double top = -1e300, score_error = 0, magnitude = 0, total = 0;
                    for (std::size_t t = 0; t < tokens; ++t) {
                        double s = 0, size = 0, error = 0;
                        for (std::size_t c = 0; c < d; c += 32) {
                            const std::size_t end = std::min(d, c + 32);
                            double query_most = 0, key_most = 0, query_sum = 0, key_sum = 0;
                            for (std::size_t i = c; i < end; ++i) {
                                const double x = scale * double(query[i]), k = keys[t][i];
                                s += x * k;
                                size += std::fabs(x * k);
                                query_most = std::max(query_most, std::fabs(x));
                                key_most = std::max(key_most, std::fabs(k));
                                query_sum += std::fabs(x);
                                key_sum += std::fabs(k);
                            }
                            // The sum of rounded queries is off by at most a step each.
                            error += step(query_most) * key_sum +
                                     step(key_most) * (query_sum + 32 * step(query_most));
                        }
                        weight[t] = s;
                        top = std::max(top, s);
                        magnitude = std::max(magnitude, size);
                        score_error = std::max(score_error, error);
                    }
                    for (double& w : weight)
                        total += w = std::exp(w - top);
                    for (std::size_t t = 0; t < tokens; ++t)
                        for (std::size_t i = 0; i < d; ++i)
                            want[i] += weight[t] / total * values[t][i];
                    const std::size_t sinks = cache->layer(0).sinks;
                    for (std::size_t i = 0; i < d; ++i) {
                        double rounded = 0, farthest = 0, largest = 0;
                        for (std::size_t first = 0; first < tokens;
                             first = first < sinks ? sinks : first + 32) {
                            const std::size_t end = std::min(tokens, first < sinks ? sinks : first + 32);
                            double weight_most = 0, weight_sum = 0, value_most = 0;
                            for (std::size_t t = first; t < end; ++t) {
                                weight_most = std::max(weight_most, weight[t]);
                                weight_sum += weight[t];
                                value_most = std::max(value_most, std::fabs(values[t][i]));
                                farthest = std::max(farthest, std::fabs(values[t][i] - want[i]));
                            }
                            largest = std::max(largest, value_most);
                            rounded += 32 * step(weight_most) * value_most +
                                       (weight_sum + 32 * step(weight_most)) * step(value_most);
                        }
                        const double shift = std::expm1(2 * score_error);
                        const double bound =
                            shift * farthest + (1 + shift) * rounded / total +
                            ((8 + 2 * double(d)) * magnitude + double(tokens) + 64) * eps * largest;
                        ASSERT_LE(std::fabs(double(y[r * cols() + (h * group + g) * d + i]) - want[i]), bound)
                            << "row " << r << ", head " << h * group + g << ", element " << i;
                    }
                }
        }
    }
};

crumb::kv_cache_options options_of(const kv_codec& codec, std::size_t head_size, std::size_t max_rows,
                                   std::size_t kv_heads = 1) {
    return {.layers = 1,
            .kv_heads = kv_heads,
            .head_size = head_size,
            .max_tokens = 1200,
            .max_rows = max_rows,
            .codec = codec};
}

TEST(PromptAttention, StaysWithinItsBound) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs)
            for (const std::size_t size : {32, 48, 64})
                for (const auto& [rows, position] : {std::pair{17, 250}, {100, 291}}) {
                    if (size != 64 && rows != 100)
                        continue;
                    SCOPED_TRACE(std::string(name) + ", heads of " + std::to_string(size) + ", " +
                                 std::to_string(rows) + " rows at " + std::to_string(position));
                    prompt_problem p(options_of(codec, size, 100), size == 64 ? 3 : 1,
                                     static_cast<std::size_t>(position), static_cast<std::size_t>(rows),
                                     isa.name);
                    ASSERT_NO_FATAL_FAILURE(p.run(isa.name));
                    ASSERT_NO_FATAL_FAILURE(p.check());
                }
    });
}

// More queries than a pass has, one that is a whole pass, large heads; sharp weights, and all alike.
TEST(PromptAttention, GroupsHeadSizesAndSpreads) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [size, group] : {std::pair{128, 8}, {256, 2}, {16, 160}, {512, 1}})
            for (const float spread : {0.0f, 1.0f, 20.0f}) {
                SCOPED_TRACE("heads of " + std::to_string(size) + ", " + std::to_string(group) +
                             " queries, " + std::to_string(spread));
                prompt_problem p(options_of(kv_codec::f16(), static_cast<std::size_t>(size), 100),
                                 static_cast<std::size_t>(group), 130, 17, isa.name, spread);
                ASSERT_NO_FATAL_FAILURE(p.run(isa.name));
                ASSERT_NO_FATAL_FAILURE(p.check());
            }
    });
}

// What the products change is seen: results differ from those in floats, but not for the first tokens.
TEST(PromptAttention, WholeBlocksBeforeARowAreRounded) {
    for_each_isa([](const tested_isa& isa) {
        prompt_problem p(options_of(kv_codec::f16(), 64, 100), 2, 0, 90, isa.name);
        ASSERT_NO_FATAL_FAILURE(p.run(isa.name));
        const auto floats = crumb::kv_attention::plan(p.options, {.heads = p.heads}, {isa.name});
        crumb::buffer memory(floats->scratch_bytes(p.rows));
        std::vector<float> exact(p.y.size());
        ASSERT_TRUE(
            floats->run(p.queries(), *p.cache, 0, crumb::matrix(exact.data(), p.rows, p.cols()), memory));
        const std::size_t whole = 64 * p.cols();
        for (std::size_t i = 0; i < whole; ++i)
            ASSERT_EQ(p.y[i], exact[i]) << i;
        std::size_t other = 0;
        for (std::size_t i = whole; i < exact.size(); ++i)
            other += p.y[i] != exact[i];
        EXPECT_GT(other, (exact.size() - whole) / 2);
    });
}

TEST(PromptAttention, PartsAreBitIdentical) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs) {
            prompt_problem p(options_of(codec, 64, 100, 3), 2, 300, 100, isa.name);
            for (const bool int8 : {false, true}) {
                SCOPED_TRACE(std::string(name) + (int8 ? ", int8" : ", floats"));
                const auto plan = p.plan(isa.name, int8);
                const auto work = [&](crumb::range rows, crumb::range kv_heads) {
                    guarded<std::byte> memory(plan.scratch_bytes(p.rows));
                    const auto done = plan.run(p.queries(), *p.cache, 0, p.result(), memory.span(),
                                               {.rows = rows, .kv_heads = kv_heads});
                    EXPECT_TRUE(done.ok()) << done.message();
                };
                work({0, p.rows}, {0, 3});
                const auto whole = p.y;
                std::fill(p.y.begin(), p.y.end(), -7.0f);
                const auto parts = [&](std::size_t h) {
                    for (const crumb::range rows :
                         {crumb::range{0, 1}, crumb::range{1, 9}, crumb::range{9, 80}, crumb::range{80, 100}})
                        work(rows, {h, h + 1});
                };
                std::thread other(parts, 0);
                parts(1);
                parts(2);
                other.join();
                EXPECT_EQ(p.y, whole);
            }
        }
    });
}

// A part of few rows may have more heads go together than the whole step, and stays within its memory.
TEST(PromptAttention, PartsOfFewRowsStayWithinTheStepsMemory) {
    for (const auto& [name, codec] : codecs)
        for (const auto& [group, kv_heads] : {std::pair{3, 12}, {4, 8}}) {
            prompt_problem p(options_of(codec, 64, 20, static_cast<std::size_t>(kv_heads)),
                             static_cast<std::size_t>(group), 70, 17, nullptr);
            for_each_isa([&](const tested_isa& isa) {
                for (const bool int8 : {false, true}) {
                    SCOPED_TRACE(std::string(name) + (int8 ? ", int8" : ", floats"));
                    const auto plan = p.plan(isa.name, int8);
                    for (std::size_t part = 1; part <= 17; ++part) {
                        guarded<std::byte> memory(plan.scratch_bytes(17));
                        const auto done = plan.run(p.queries(), *p.cache, 0, p.result(), memory.span(),
                                                   {.rows = {0, part}});
                        ASSERT_TRUE(done.ok()) << done.message();
                    }
                }
            });
        }
}

// A row has the same bits in every step of more than 16 rows: later tokens do not matter.
TEST(PromptAttention, LaterRowsAreNotSeen) {
    for_each_isa([](const tested_isa& isa) {
        prompt_problem p(options_of(kv_codec::f16(), 64, 100), 2, 100, 100, isa.name);
        ASSERT_NO_FATAL_FAILURE(p.run(isa.name));
        const auto all = p.y;
        for (const std::size_t rows : {17, 28, 29, 60}) {
            // Rows that come later are not in the cache, and what was there is overwritten.
            prompt_problem fewer(options_of(kv_codec::f16(), 64, 100), 2, 100, 100, isa.name);
            for (std::size_t i = rows * fewer.width(); i < fewer.k.size(); ++i)
                fewer.k[i] = fewer.v[i] = 60000;
            ASSERT_TRUE(fewer.cache
                            ->write(0, crumb::matrix<const float>(fewer.k.data(), 100, fewer.width()),
                                    crumb::matrix<const float>(fewer.v.data(), 100, fewer.width()))
                            .ok());
            fewer.rows = rows;
            ASSERT_NO_FATAL_FAILURE(fewer.run(isa.name));
            for (std::size_t i = 0; i < rows * p.cols(); ++i)
                ASSERT_EQ(fewer.y[i], all[i]) << rows << " rows, " << i;
        }
    });
}

TEST(PromptAttention, RangesMergeToTheWhole) {
    for_each_isa([](const tested_isa& isa) {
        for (const kv_codec& codec : {kv_codec::f16(), kv_codec::kivi(4)}) {
            prompt_problem p(options_of(codec, 64, 100), 2, 600, 20, isa.name);
            const auto plan = p.plan(isa.name);
            crumb::buffer memory(plan.scratch_bytes(p.rows)), partials(plan.partial_bytes(p.rows, 2));
            for (std::size_t i = 0; i < 2; ++i)
                ASSERT_TRUE(plan.partial(p.queries(), *p.cache, 0,
                                         {i == 0 ? crumb::range{0, 260} : crumb::range{260, 620},
                                          partials.bytes(), i},
                                         memory)
                                .ok());
            plan.merge(partials.bytes(), 2, p.result());
            ASSERT_NO_FATAL_FAILURE(p.check());
        }
    });
}

TEST(PromptAttention, TakesTheRouteWhereItCan) {
    for_each_isa([](const tested_isa& isa) {
        const auto by = crumb::int8_products({isa.name});
        ASSERT_TRUE(by.ok()) << by.message();
        for (const auto& [name, codec] : codecs) {
            const auto route = [&, codec_of = codec](std::size_t head_size, std::size_t span,
                                                     std::size_t rows) {
                auto o = options_of(codec_of, head_size, 100);
                o.span = span;
                const cache_problem p(o);
                const auto plan =
                    crumb::kv_attention::plan(p.options, {.heads = 2, .prompts = *by}, {isa.name});
                EXPECT_TRUE(plan.ok()) << plan.message();
                return plan->route(rows);
            };
            EXPECT_EQ(route(64, 0, 17) == kv_route::matrices, codec.kind != crumb::kv_kind::f32) << name;
            EXPECT_NE(route(64, 0, 16), kv_route::matrices) << name;
            EXPECT_NE(route(64, 100, 17), kv_route::matrices) << name;
            EXPECT_NE(route(40, 0, 17), kv_route::matrices) << name;
        }
    });
    EXPECT_EQ(crumb::int8_products({"none"}).error().code(), errc::unsupported);

    prompt_problem p(options_of(kv_codec::f16(), 64, 100), 1, 10, 20, nullptr);
    std::vector<crumb::kv_error> errors(p.rows * p.heads);
    const auto plan = p.plan(nullptr);
    crumb::buffer memory(plan.scratch_bytes(p.rows));
    EXPECT_EQ(plan.run(p.queries(), *p.cache, 0, p.result(), memory, {.errors = errors.data()}).code(),
              errc::unsupported);
    EXPECT_EQ(p.y[0], -7.0f);
}

} // namespace
} // namespace test_prompt_attention
