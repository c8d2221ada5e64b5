#include "guarded.hpp"
#include "isa_test.hpp"
#include "random_numbers.hpp"

#include <crumb/op/attention.hpp>
#include <crumb/reference/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace test_attention {
namespace {

using crumb_test::for_each_isa;
using crumb_test::guard;
using crumb_test::guarded;
using crumb_test::normal_numbers;
using crumb_test::tested_isa;

// The documented bound is for one rounding per multiply-add; twice that holds for ISAs without FMA too.
constexpr double eps = 2 * 0x1p-24;

enum class layout { token_major, head_major };

/// Queries, a cache with garbage after its last token, and results, all next to pages that fault.
template <class T>
struct problem {
    crumb::attention_shape shape;
    std::size_t rows, position;
    guarded<float> q, y;
    guarded<T> k, v;
    crumb::kv_array_view<T> keys, values;

    problem(const crumb::attention_shape& s, std::size_t m, std::size_t pos, layout order, guard side,
            unsigned seed, float spread = 1)
        : shape(s), rows(m), position(pos), q(m * s.heads * s.head_size, side),
          y(m * s.heads * s.head_size, side), k((pos + m) * s.kv_heads * s.head_size, side),
          v(k.size(), side) {
        std::mt19937 engine(seed);
        normal_numbers<float> normal;
        for (float& x : q)
            x = spread * normal(engine);
        for (std::size_t i = 0; i < k.size(); ++i) {
            set(k[i], spread * normal(engine));
            set(v[i], normal(engine));
        }
        const std::size_t tokens = pos + m, d = s.head_size;
        const bool by_token = order == layout::token_major;
        keys = {k.data(), tokens, by_token ? s.kv_heads * d : d, by_token ? d : tokens * d};
        values = keys;
        values.data = v.data();
    }

    static void set(float& to, float x) { to = x; }
    static void set(crumb::half& to, float x) { to = crumb::to_half(x); }
    std::size_t cols() const { return shape.heads * shape.head_size; }
    auto queries() { return crumb::matrix<const float>(q.data(), rows, cols()); }
    auto result() { return crumb::matrix(y.data(), rows, cols()); }
    crumb::kv_arrays<T> arrays(std::size_t at) { return {keys, values, at}; }
    crumb::kv_arrays<T> arrays() { return arrays(position); }

    /// Compares y with the reference: |error| <= ((4 + 2 d) S + tokens + 32) eps max |v|, times `slack`.
    void check(double slack = 1) {
        const std::size_t d = shape.head_size, group = shape.heads / shape.kv_heads;
        const double scale = shape.scale != 0 ? double(shape.scale) : 1 / std::sqrt(double(d));
        std::vector<double> want(d);
        for (std::size_t r = 0; r < rows; ++r) {
            for (std::size_t h = 0; h < shape.heads; ++h) {
                const std::size_t tokens = position + r + 1, kv = h / group * keys.head_stride;
                const auto size = crumb::reference::attention(
                    &q[r * cols() + h * d], crumb::matrix(keys.data + kv, tokens, d, keys.token_stride),
                    crumb::matrix(values.data + kv, tokens, d, values.token_stride), scale, want.data());
                const double bound =
                    slack * ((4 + 2 * double(d)) * size.score + double(tokens) + 32) * eps * size.value;
                for (std::size_t i = 0; i < d; ++i)
                    ASSERT_LE(std::fabs(y[r * cols() + h * d + i] - want[i]), bound)
                        << "row " << r << ", head " << h << ", element " << i << ", head size " << d
                        << ", position " << position;
            }
        }
    }
};

crumb::attention plan_for(const crumb::attention_shape& shape, const char* isa) {
    auto plan = crumb::attention::plan(shape, {isa});
    EXPECT_TRUE(plan) << plan.message();
    EXPECT_STREQ(plan->isa(), isa);
    return *plan;
}

template <class T>
void run(problem<T>& p, const char* isa) {
    const crumb::attention plan = plan_for(p.shape, isa);
    guarded<std::byte> scratch(plan.scratch_bytes(p.rows));
    plan.run(p.queries(), p.arrays(), p.result(), scratch.span());
    p.check();
}

template <class T>
class attention : public testing::Test {};
using cache_types = testing::Types<float, crumb::half>;
TYPED_TEST_SUITE(attention, cache_types, );

TYPED_TEST(attention, every_head_size) {
    for_each_isa([](const tested_isa& isa) {
        for (std::size_t d = 1; d <= 70; ++d) {
            const layout order = d % 2 == 0 ? layout::token_major : layout::head_major;
            problem<TypeParam> p({.heads = 4, .kv_heads = 2, .head_size = d}, 3, d % 5, order,
                                 d % 3 == 0 ? guard::before : guard::after, unsigned(d));
            run(p, isa.name);
        }
        for (const std::size_t d : {80, 96, 112, 128, 192, 256, 257, 511, 512}) {
            problem<TypeParam> p({.heads = 2, .kv_heads = 1, .head_size = d}, 2, 7, layout::token_major,
                                 guard::after, unsigned(d));
            run(p, isa.name);
        }
    });
}

// Positions around the limits of blocks, groups around those of tiles.
TYPED_TEST(attention, contexts_and_groups) {
    for_each_isa([](const tested_isa& isa) {
        for (const std::size_t position : {0, 1, 3, 4, 61, 62, 63, 64, 65, 127, 128, 129, 200}) {
            for (const std::size_t group : {1, 2, 3, 4, 5, 7, 8, 9}) {
                for (const std::size_t d : {32, 20}) {
                    problem<TypeParam> p(
                        {.heads = 2 * group, .kv_heads = 2, .head_size = d, .scale = 0.5f}, 1 + position % 2,
                        position, group % 2 ? layout::head_major : layout::token_major,
                        group % 2 ? guard::after : guard::before, unsigned(position + group));
                    run(p, isa.name);
                }
            }
        }
    });
}

TYPED_TEST(attention, prompts) {
    for_each_isa([](const tested_isa& isa) {
        for (const std::size_t rows : {2, 5, 63, 64, 65, 130}) {
            for (const std::size_t group : {1, 3, 70}) {
                if (group == 70 && rows > 5)
                    continue;
                problem<TypeParam> p({.heads = group, .kv_heads = 1, .head_size = 16}, rows, rows % 3,
                                     layout::token_major, guard::after, unsigned(rows + group));
                run(p, isa.name);
            }
        }
    });
}

// Large scores: the weights are nearly a maximum, and the running maximum has to be carried along.
TYPED_TEST(attention, sharp) {
    for_each_isa([](const tested_isa& isa) {
        problem<TypeParam> p({.heads = 4, .kv_heads = 2, .head_size = 64}, 3, 300, layout::head_major,
                             guard::after, 5, 8);
        run(p, isa.name);
    });
}

TYPED_TEST(attention, parts_are_bit_identical) {
    for_each_isa([](const tested_isa& isa) {
        for (const std::size_t d : {64, 24}) {
            problem<TypeParam> p({.heads = 6, .kv_heads = 3, .head_size = d}, 37, 50, layout::token_major,
                                 guard::after, 9);
            run(p, isa.name);
            const std::vector<float> whole(p.y.begin(), p.y.end());
            std::fill(p.y.begin(), p.y.end(), 0.0f);
            const crumb::attention plan = plan_for(p.shape, isa.name);
            const auto work = [&](std::size_t h) {
                for (const crumb::range rows :
                     {crumb::range{0, 1}, crumb::range{1, 8}, crumb::range{8, 37}}) {
                    guarded<std::byte> scratch(plan.scratch_bytes(rows.size()));
                    plan.run(p.queries(), p.arrays(), p.result(), scratch.span(),
                             {.rows = rows, .kv_heads = {h, h + 1}});
                }
            };
            std::thread other(work, 0);
            work(1);
            work(2);
            other.join();
            for (std::size_t i = 0; i < whole.size(); ++i)
                ASSERT_EQ(p.y[i], whole[i]) << i;
        }
    });
}

TYPED_TEST(attention, split_and_merge) {
    for_each_isa([](const tested_isa& isa) {
        for (const std::size_t splits : {1, 2, 3, 7}) {
            for (const std::size_t d : {32, 17}) {
                const std::size_t rows = 3, position = 150;
                problem<TypeParam> p({.heads = 4, .kv_heads = 2, .head_size = d}, rows, position,
                                     layout::head_major, guard::after, unsigned(splits));
                const crumb::attention plan = plan_for(p.shape, isa.name);
                guarded<std::byte> partials(plan.partial_bytes(rows, splits));
                guarded<std::byte> scratch(plan.scratch_bytes(rows));
                for (std::size_t s = 0; s < splits; ++s)
                    for (std::size_t h = 0; h < 2; ++h)
                        plan.partial(p.queries(), p.arrays(),
                                     {crumb::split(position + rows, splits, s), partials.span(), s},
                                     scratch.span(), {.kv_heads = {h, h + 1}});
                plan.merge(partials.span(), splits, p.result(), {.kv_heads = {1, 2}});
                plan.merge(partials.span(), splits, p.result(), {.kv_heads = {0, 1}});
                p.check(2);
            }
        }
    });
}

// Ranges that a row does not see at all contribute nothing.
TYPED_TEST(attention, empty_splits) {
    for_each_isa([](const tested_isa& isa) {
        const std::size_t rows = 70, position = 0;
        problem<TypeParam> p({.heads = 2, .kv_heads = 2, .head_size = 8}, rows, position, layout::token_major,
                             guard::after, 3);
        const crumb::attention plan = plan_for(p.shape, isa.name);
        guarded<std::byte> partials(plan.partial_bytes(rows, 4));
        guarded<std::byte> scratch(plan.scratch_bytes(rows));
        const crumb::range tokens[] = {{0, 10}, {10, 65}, {65, 70}, {70, 90}};
        for (std::size_t s = 0; s < 4; ++s)
            plan.partial(p.queries(), p.arrays(), {tokens[s], partials.span(), s}, scratch.span());
        plan.merge(partials.span(), 4, p.result());
        p.check(2);
        plan.merge(partials.span().subspan(plan.partial_bytes(rows, 3)), 1, p.result());
        for (const float y : p.y)
            ASSERT_EQ(y, 0.0f);
    });
}

// NaN in a key or value reaches the rows that see it, and no row before.
TYPED_TEST(attention, later_tokens_are_not_seen) {
    for_each_isa([](const tested_isa& isa) {
        for (const std::size_t d : {16, 5}) {
            for (const std::size_t bad : {3, 64, 66}) {
                for (const bool in_keys : {false, true}) {
                    problem<TypeParam> p({.heads = 3, .kv_heads = 1, .head_size = d}, 70, 0,
                                         layout::token_major, guard::after, 4);
                    auto& cache = in_keys ? p.k : p.v;
                    for (std::size_t i = 0; i < d; ++i)
                        problem<TypeParam>::set(cache[bad * d + i], std::numeric_limits<float>::quiet_NaN());
                    const crumb::attention plan = plan_for(p.shape, isa.name);
                    guarded<std::byte> scratch(plan.scratch_bytes(70));
                    plan.run(p.queries(), p.arrays(0), p.result(), scratch.span());
                    for (std::size_t i = 0; i < p.y.size(); ++i)
                        ASSERT_EQ(std::isnan(p.y[i]), i / (3 * d) >= bad) << i;
                }
            }
        }
    });
}

TYPED_TEST(attention, infinite_scores) {
    for_each_isa([](const tested_isa& isa) {
        problem<TypeParam> p({.heads = 1, .kv_heads = 1, .head_size = 4}, 1, 2, layout::token_major,
                             guard::after, 6);
        for (float& x : p.q)
            x = 1;
        for (std::size_t i = 0; i < 4; ++i)
            problem<TypeParam>::set(p.k[4 + i], -std::numeric_limits<float>::infinity());
        const crumb::attention plan = plan_for(p.shape, isa.name);
        guarded<std::byte> scratch(plan.scratch_bytes(1));
        plan.run(p.queries(), p.arrays(2), p.result(), scratch.span());
        for (const float y : p.y) // that token's weight is 0
            EXPECT_TRUE(std::isfinite(y));
        for (std::size_t i = 0; i < 4; ++i)
            problem<TypeParam>::set(p.k[4 + i], std::numeric_limits<float>::infinity());
        plan.run(p.queries(), p.arrays(2), p.result(), scratch.span());
        for (const float y : p.y)
            EXPECT_TRUE(std::isnan(y));
    });
}

TEST(attention_plan, refuses) {
    const auto message = [](const crumb::attention_shape& shape) {
        const auto plan = crumb::attention::plan(shape);
        EXPECT_FALSE(plan);
        return plan ? std::string() : std::string(plan.message());
    };
    EXPECT_NE(message({.heads = 0, .kv_heads = 1, .head_size = 8}).find("0 heads"), std::string::npos);
    EXPECT_NE(message({.heads = 4, .kv_heads = 0, .head_size = 8}).find("0 kv_heads"), std::string::npos);
    EXPECT_NE(message({.heads = 8, .kv_heads = 3, .head_size = 8}).find("no multiple of 3"),
              std::string::npos);
    EXPECT_NE(message({.heads = 8, .kv_heads = 8, .head_size = 0}).find("head_size is 0"), std::string::npos);
    EXPECT_NE(message({.heads = 8, .kv_heads = 8, .head_size = 513}).find("513"), std::string::npos);
    EXPECT_NE(message({.heads = 8, .kv_heads = 8, .head_size = 8, .scale = -1}).find("scale"),
              std::string::npos);
    const auto plan = crumb::attention::plan({.heads = 8, .kv_heads = 2, .head_size = 64});
    ASSERT_TRUE(plan) << plan.message();
    EXPECT_EQ(plan->shape().scale, 0.125f);
    EXPECT_EQ(plan->scratch_bytes(1000), plan->scratch_bytes(64));
    EXPECT_FALSE(crumb::attention::plan({.heads = 8, .kv_heads = 2, .head_size = 64}, {"abacus"}));
}

#if defined(GTEST_HAS_DEATH_TEST)
TEST(attention_death, preconditions) {
    testing::FLAGS_gtest_death_test_style = "fast"; // the other one executes this program, which qemu cannot
    problem<float> p({.heads = 2, .kv_heads = 1, .head_size = 8}, 1, 3, layout::token_major, guard::after, 1);
    const auto plan = crumb::attention::plan(p.shape);
    guarded<std::byte> scratch(plan->scratch_bytes(1));
    EXPECT_DEATH(plan->run(p.queries(), p.arrays(4), p.result(), scratch.span()),
                 "rows see 5 tokens, there are 4 keys and 4 values");
    EXPECT_DEATH(plan->run(p.queries(), p.arrays(3), p.result(), {}), "scratch");
}
#endif

} // namespace
} // namespace test_attention
