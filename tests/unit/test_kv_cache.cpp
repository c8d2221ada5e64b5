#include "isa_test.hpp"
#include "kv_problem.hpp"
#include "random_numbers.hpp"

#include <crumb/op/cache/kv_snapshot.hpp>

namespace test_kv_cache {
namespace {

using crumb::buffer;
using crumb::errc;
using crumb::kv_codec;
using crumb_test::cache_problem;
using crumb_test::codecs;
using crumb_test::for_each_isa;
using crumb_test::step_problem;
using crumb_test::tested_isa;

constexpr double eps = 2 * 0x1p-24;

/// Attention over a filled cache: exact mode against the reference, fast mode against its own bound.
struct run_problem : step_problem {
    using step_problem::step_problem;
    crumb::kv_mode ran = crumb::kv_mode::fast; ///< the mode of the last run

    crumb::kv_attention plan(crumb::kv_mode mode, const char* isa) {
        const auto p = crumb::kv_attention::plan(options, {.heads = heads, .mode = mode}, {isa});
        EXPECT_TRUE(p.ok()) << p.message();
        return *p;
    }
    std::vector<crumb::kv_error> run(crumb::kv_mode mode, const char* isa, std::size_t layer = 0) {
        ran = mode;
        const auto p = plan(mode, isa);
        crumb::buffer memory(p.scratch_bytes(rows));
        std::vector<crumb::kv_error> errors(rows * heads);
        const auto done = p.run(queries(), *cache, layer, result(), memory, {.errors = errors.data()});
        EXPECT_TRUE(done.ok()) << done.message();
        return errors;
    }
    /// Sum over channels of |scale q_i| max over tokens of |k_i|.
    static double largest_score(const float* q, const std::vector<float>& keys, std::size_t d) {
        double sum = 0;
        for (std::size_t i = 0; i < d; ++i) {
            double most = 0;
            for (std::size_t at = i; at < keys.size(); at += d)
                most = std::max(most, std::fabs(double(keys[at])));
            sum += std::fabs(double(q[i])) * most;
        }
        return sum / std::sqrt(double(d));
    }
    /// The first token that a row sees.
    std::size_t oldest(std::size_t row) const {
        const std::size_t end = position + row + 1, span = options.span;
        return span == 0 || end < span ? 0 : end - span;
    }
    /// Compares y with attention over what the cache stands for.
    void check(std::size_t layer, const std::vector<crumb::kv_error>* errors) {
        const std::size_t d = options.head_size, group = heads / options.kv_heads;
        std::vector<double> want(d);
        for (std::size_t h = 0; h < options.kv_heads; ++h) {
            const std::size_t tokens = position + rows;
            std::vector<float> keys(tokens * d), values(tokens * d);
            for (std::size_t t = oldest(0); t < tokens; ++t) {
                const auto key = decoded(layer, h, true, t), value = decoded(layer, h, false, t);
                std::copy(key.begin(), key.end(), keys.begin() + static_cast<std::ptrdiff_t>(t * d));
                std::copy(value.begin(), value.end(), values.begin() + static_cast<std::ptrdiff_t>(t * d));
            }
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t g = 0; g < group; ++g) {
                    const std::size_t head = h * group + g, first = oldest(r), end = position + r + 1,
                                      seen = end - first;
                    const auto size = crumb::reference::attention(
                        q.data() + r * cols() + head * d,
                        crumb::matrix<const float>(keys.data() + first * d, seen, d),
                        crumb::matrix<const float>(values.data() + first * d, seen, d),
                        1 / std::sqrt(double(d)), want.data());
                    // In fast mode uniform codes are summed as q . z + (q d) . code: with z and d code
                    // between them up to three times as large as the largest key of the block.
                    double score = size.score, value = size.value;
                    if (ran == crumb::kv_mode::fast && options.codec.kind == crumb::kv_kind::uniform) {
                        score = 3 * largest_score(q.data() + r * cols() + head * d, keys, d);
                        value *= 3;
                    }
                    double bound = ((8 + 2 * double(d)) * score + double(seen) + 64) * eps * value;
                    if (errors != nullptr) {
                        const crumb::kv_error e = (*errors)[r * heads + head];
                        double farthest = 0;
                        for (std::size_t t = first; t < end; ++t)
                            for (std::size_t i = 0; i < d; ++i)
                                farthest = std::max(farthest, std::fabs(double(values[t * d + i]) - want[i]));
                        bound += std::expm1(2 * double(e.score)) * farthest + double(e.weight);
                    }
                    for (std::size_t i = 0; i < d; ++i)
                        ASSERT_LE(std::fabs(double(y[r * cols() + head * d + i]) - want[i]), bound)
                            << "row " << r << ", head " << head << ", element " << i;
                }
        }
    }
};

crumb::kv_cache_options options_of(const kv_codec& codec, std::size_t head_size, std::size_t kv_heads = 2,
                                   std::size_t layers = 1) {
    return {
        .layers = layers, .kv_heads = kv_heads, .head_size = head_size, .max_tokens = 1200, .codec = codec};
}

/// Whether codes without codebooks may be multiplied as integers.
bool may_be_integers(const kv_codec& codec) {
    return codec.kind == crumb::kv_kind::q8_0 || codec.kind == crumb::kv_kind::uniform;
}
/// Whether a result in fast mode is off by what `kv_error` bounds.
bool has_errors(const kv_codec& codec) { return codec.has_codebooks() || may_be_integers(codec); }
/// Heads of `size`, and the smallest ones whose codes are multiplied as integers.
std::vector<std::size_t> heads_of(const kv_codec& codec, std::size_t size) {
    return may_be_integers(codec) ? std::vector<std::size_t>{size, 64} : std::vector{size};
}

TEST(KvAttention, ExactModeIsAttentionOverDecodedTokens) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs)
            for (const std::size_t tokens : {0, 3, 101, 330}) {
                SCOPED_TRACE(std::string(name) + ", " + std::to_string(tokens) + " tokens");
                run_problem p(options_of(codec, tokens == 330 ? 20 : 16, 1, 2), 2, tokens, 1, isa.name);
                p.run(crumb::kv_mode::exact, isa.name, 1);
                ASSERT_NO_FATAL_FAILURE(p.check(1, nullptr));
            }
    });
}

TEST(KvAttention, FastModeStaysWithinItsBound) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs)
            for (const auto& [size, spread] :
                 {std::pair{32, 0.1f}, {36, 1.0f}, {64, 8.0f}, {80, 1.0f}, {512, 0.5f}}) {
                // The longest rows of factors.
                if (size == 512 && codec.kind != crumb::kv_kind::uniform)
                    continue;
                SCOPED_TRACE(std::string(name) + ", head size " + std::to_string(size) + ", spread " +
                             std::to_string(spread));
                const auto head_size = static_cast<std::size_t>(size);
                const std::size_t queries = size == 64 ? 5 : size == 36 ? 3 : 2;
                run_problem p(options_of(codec, head_size, 1), queries, 170, 1, isa.name, spread);
                const auto errors = p.run(crumb::kv_mode::fast, isa.name);
                ASSERT_NO_FATAL_FAILURE(p.check(0, has_errors(codec) ? &errors : nullptr));
                if (codec.has_codebooks() && spread == 1)
                    for (const auto& e : errors) {
                        // What is decoded is exact.
                        EXPECT_EQ(e.score > 0,
                                  crumb::kernel::is_scan(p.plan(crumb::kv_mode::fast, isa.name).route()));
                        EXPECT_TRUE(std::isfinite(e.score) && std::isfinite(e.weight));
                    }
            }
    });
}

TEST(KvAttention, RowsOfAChunkSeeCodesAndEachOther) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs)
            for (const std::size_t head : heads_of(codec, 16))
                for (const std::size_t rows : {2, 9, 40}) {
                    SCOPED_TRACE(std::string(name) + ", " + std::to_string(rows) + " rows, heads of " +
                                 std::to_string(head));
                    auto options = options_of(codec, head, 1);
                    options.max_rows = 40;
                    run_problem p(options, 2, 170, rows, isa.name);
                    const auto errors = p.run(crumb::kv_mode::fast, isa.name);
                    ASSERT_NO_FATAL_FAILURE(p.check(0, has_errors(codec) && rows <= 16 ? &errors : nullptr));
                }
    });
}

// Drafts of up to 16 tokens are verified in one step: its rows have to be what single steps give.
TEST(KvAttention, RowsOfAStepAreSingleRows) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs)
            for (const std::size_t head : heads_of(codec, 32))
                for (const std::size_t group : {1, 4})
                    for (const std::size_t span : {0, 100}) {
                        SCOPED_TRACE(std::string(name) + ", " + std::to_string(group) + " queries, span " +
                                     std::to_string(span));
                        auto options = options_of(codec, head, 1);
                        options.max_rows = 16;
                        options.span = span;
                        run_problem p(options, group, 230, 16, isa.name);
                        p.run(crumb::kv_mode::fast, isa.name);
                        const auto together = p.y;
                        const auto plan = p.plan(crumb::kv_mode::fast, isa.name);
                        crumb::buffer memory(plan.scratch_bytes(16));
                        for (const std::size_t rows : {1, 3, 7}) {
                            std::fill(p.y.begin(), p.y.end(), -7.0f);
                            for (std::size_t r = 0; r < 16; r += rows)
                                ASSERT_TRUE(plan.run(p.queries(), *p.cache, 0, p.result(), memory,
                                                     {.rows = {r, std::min<std::size_t>(r + rows, 16)}}));
                            EXPECT_EQ(p.y, together) << rows << " rows at a time";
                        }
                    }
    });
}

TEST(KvAttention, ThePlanChoosesTheRoute) {
    using crumb::kv_route;
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs)
            for (const std::size_t group : {1, 2, 3, 4, 8, 16, 17}) {
                SCOPED_TRACE(std::string(name) + ", " + std::to_string(group) + " queries");
                const cache_problem p(options_of(codec, 64, 1));
                const auto plan = crumb::kv_attention::plan(p.options, {.heads = group}, {isa.name});
                ASSERT_TRUE(plan.ok());
                const auto& functions =
                    crumb::dispatch::functions_at<crumb::dispatch::kv_attention_functions>(
                        crumb::isa_index(isa.name));
                const bool reads = functions.scans.score != nullptr;
                EXPECT_EQ(reads, std::string_view(isa.name) != "portable");
                const auto from = reads ? functions.scans.expansion(codec).from : 0;
                const bool integers = may_be_integers(codec) && from != 0 && group >= from && group <= 16;
                EXPECT_EQ(plan->route() == kv_route::integers, integers);
                if (codec.kind == crumb::kv_kind::uniform && !reads) {
                    EXPECT_EQ(plan->route(), kv_route::decoded);
                }
                if (codec.kind == crumb::kv_kind::pq) {
                    EXPECT_EQ(plan->route(), group == 17 || !reads        ? kv_route::decoded
                                             : from != 0 && group >= from ? kv_route::expanded
                                                                          : kv_route::tables);
                    EXPECT_EQ(plan->route(17), kv_route::decoded);
                    EXPECT_STREQ(name_of(plan->route(17)), "decoded");
                    const auto exact = crumb::kv_attention::plan(
                        p.options, {.heads = group, .mode = crumb::kv_mode::exact}, {isa.name});
                    EXPECT_EQ(exact->route(), kv_route::decoded);
                }
                // Bytes that become floats give the same bits whichever way they do.
                for (std::size_t rows = 1; rows <= 16; ++rows)
                    EXPECT_TRUE(plan->route(rows) == plan->route() ||
                                (codec.kind == crumb::kv_kind::q8_0 && !integers));
            }
    });
}

// With limits of 0 all parts take both planes, with large ones none does; the bound holds, and says the
// price.
TEST(KvAttention, LimitsDecideAboutSecondPlanes) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs)
            for (const std::size_t group : {1, 4, 8}) {
                const std::size_t size = codec.has_codebooks() ? 32 : 64;
                SCOPED_TRACE(std::string(name) + ", " + std::to_string(group) + " queries");
                run_problem p(options_of(codec, size, 1), group, 300, 1, isa.name);
                const auto route = p.plan(crumb::kv_mode::fast, isa.name).route();
                if (codec.has_codebooks()
                        ? !crumb::kernel::is_scan(route)
                        : codec.kind != crumb::kv_kind::uniform || route != crumb::kv_route::integers)
                    continue;
                const auto errors_of = [&](const crumb::kv_plane_limits& limits) {
                    const auto plan = crumb::kv_attention::plan(
                        p.options, {.heads = p.heads, .limits = limits}, {isa.name});
                    EXPECT_TRUE(plan.ok()) << plan.message();
                    crumb::buffer memory(plan->scratch_bytes(1));
                    std::vector<crumb::kv_error> errors(p.heads);
                    EXPECT_TRUE(
                        plan->run(p.queries(), *p.cache, 0, p.result(), memory, {.errors = errors.data()}));
                    p.ran = crumb::kv_mode::fast;
                    p.check(0, &errors);
                    return errors;
                };
                // Where the second plane of a query costs nothing, it is always taken.
                const auto& functions =
                    crumb::dispatch::functions_at<crumb::dispatch::kv_attention_functions>(
                        crumb::isa_index(isa.name));
                const bool whole =
                    route == crumb::kv_route::expanded && functions.scans.expansion(codec).whole;
                const auto fine = errors_of({0, 0, 0}), coarse = errors_of({1e30f, 1e30f, 1e30f});
                for (std::size_t h = 0; h < p.heads; ++h) {
                    EXPECT_EQ(fine[h].second_scores, 1.0f);
                    EXPECT_EQ(fine[h].second_weights, 1.0f);
                    EXPECT_EQ(coarse[h].second_scores, whole ? 1.0f : 0.0f);
                    EXPECT_EQ(coarse[h].second_weights, 0.0f);
                    if (whole)
                        EXPECT_EQ(fine[h].score, coarse[h].score);
                    else
                        EXPECT_LT(fine[h].score, coarse[h].score);
                    EXPECT_LT(fine[h].weight, coarse[h].weight);
                }
                // A limit between the two is kept, by a second plane where it has to be.
                const float limit = 0.5f * (fine[0].score + coarse[0].score);
                EXPECT_LE(errors_of({.score = limit})[0].score, limit);
            }
    });
    const cache_problem p(options_of(kv_codec::pq4(), 32, 1));
    const auto refused = crumb::kv_attention::plan(p.options, {.heads = 1, .limits = {.score = -1}});
    EXPECT_STREQ(refused.message(),
                 "kv_attention: limits of planes are -1, 0.015625 and 0.00390625, they have to be 0 or more");
}

// The shortest span sees nothing but its own token, the longest some parts; sequences go through the pages of
// all of them several times.
TEST(KvAttention, ASpanSeesItsTokensAlone) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs)
            for (const std::size_t head : heads_of(codec, 16))
                for (const auto& [span, tokens, rows] :
                     {std::tuple{1, 300, 9}, {40, 20, 9}, {40, 777, 1}, {40, 777, 9}, {300, 1100, 40}}) {
                    SCOPED_TRACE(std::string(name) + ", span " + std::to_string(span) + ", " +
                                 std::to_string(tokens) + " tokens, " + std::to_string(rows) +
                                 " rows, heads of " + std::to_string(head));
                    auto options = options_of(codec, head, 1);
                    options.max_rows = 40;
                    options.span = static_cast<std::size_t>(span);
                    const auto m = static_cast<std::size_t>(rows);
                    run_problem p(options, 2, static_cast<std::size_t>(tokens), m, isa.name);
                    EXPECT_LE(p.pages.size(), std::size_t(span == 300 ? 3 : 2));
                    const auto errors = p.run(crumb::kv_mode::fast, isa.name);
                    ASSERT_NO_FATAL_FAILURE(p.check(0, has_errors(codec) && m <= 16 ? &errors : nullptr));
                    p.run(crumb::kv_mode::exact, isa.name);
                    ASSERT_NO_FATAL_FAILURE(p.check(0, nullptr));
                    // The same bits whichever rows go together.
                    const auto together = p.y;
                    const auto plan = p.plan(crumb::kv_mode::exact, isa.name);
                    crumb::buffer memory(plan.scratch_bytes(m));
                    for (std::size_t r = 0; r < m; ++r)
                        ASSERT_TRUE(
                            plan.run(p.queries(), *p.cache, 0, p.result(), memory, {.rows = {r, r + 1}}));
                    EXPECT_EQ(p.y, together);
                }
    });
}

TEST(KvAttention, UncodedTokensGiveWhatAttentionGives) {
    for_each_isa([](const tested_isa& isa) {
        run_problem p(options_of(kv_codec::f32(), 48), 3, 500, 4, isa.name);
        p.run(crumb::kv_mode::fast, isa.name);
        const std::size_t d = 48, tokens = 504;
        std::vector<float> k(2 * tokens * d), v(2 * tokens * d);
        for (std::size_t h = 0; h < 2; ++h)
            for (std::size_t t = 0; t < tokens; ++t) {
                const auto key = p.decoded(0, h, true, t), value = p.decoded(0, h, false, t);
                for (std::size_t i = 0; i < d; ++i) {
                    k[(h * tokens + t) * d + i] = static_cast<float>(key[i]);
                    v[(h * tokens + t) * d + i] = static_cast<float>(value[i]);
                }
            }
        const auto a = crumb::attention::plan({.heads = 6, .kv_heads = 2, .head_size = d}, {isa.name});
        crumb::buffer memory(a->scratch_bytes(4));
        std::vector<float> y(p.y.size());
        const crumb::kv_array_view<float> keys{k.data(), tokens, d, tokens * d},
            values{v.data(), tokens, d, tokens * d};
        a->run(p.queries(), crumb::kv_arrays<float>{keys, values, 500}, crumb::matrix(y.data(), 4, p.cols()),
               memory);
        EXPECT_EQ(y, p.y);
    });
}

TEST(KvAttention, PartialResultsMergeToTheWhole) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs)
            for (const std::size_t head : heads_of(codec, 16)) {
                SCOPED_TRACE(std::string(name) + ", heads of " + std::to_string(head));
                run_problem p(options_of(codec, head), 2, 400, 1, isa.name);
                p.run(crumb::kv_mode::fast, isa.name);
                const auto plan = p.plan(crumb::kv_mode::fast, isa.name);
                crumb::buffer memory(plan.scratch_bytes(1)), partials(plan.partial_bytes(1, 4));
                const std::size_t cuts[] = {0, 2, 100, 333, 401};
                std::vector<crumb::kv_error> errors(p.heads);
                for (std::size_t i = 0; i < 4; ++i) {
                    std::vector<crumb::kv_error> of(p.heads);
                    ASSERT_TRUE(plan.partial(p.queries(), *p.cache, 0, {{cuts[i], cuts[i + 1]}, partials, i},
                                             memory, {.errors = of.data()})
                                    .ok());
                    for (std::size_t h = 0; h < p.heads; ++h)
                        errors[h] = {.score = std::max(errors[h].score, of[h].score),
                                     .weight = std::max(errors[h].weight, of[h].weight)};
                }
                plan.merge(partials, 4, p.result());
                ASSERT_NO_FATAL_FAILURE(p.check(0, has_errors(codec) ? &errors : nullptr));
            }
    });
}

// However threads share heads and ranges: the same bits, and those of single rows.
TEST(KvAttention, RangesDoNotDependOnWhoTakesThem) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs)
            for (const std::size_t window : {32, 400}) { // ranges end in codes, or in the window
                SCOPED_TRACE(name);
                crumb::kv_cache_options options = options_of(codec, 16);
                options.window = window;
                options.max_rows = 3;
                run_problem p(options, 2, 772, 3, isa.name);
                const auto plan = p.plan(crumb::kv_mode::fast, isa.name);
                const auto of = crumb::kv_ranges::of(p.position, options, 256);
                ASSERT_EQ(of.count(), 3u);
                crumb::buffer memory(plan.scratch_bytes(3)), partials(plan.partial_bytes(3, 3));
                const auto take = [&](crumb::range rows, crumb::range heads, crumb::range ranges) {
                    const auto done = plan.partials(p.queries(), *p.cache, 0, {of, ranges, partials}, memory,
                                                    {.rows = rows, .kv_heads = heads});
                    ASSERT_TRUE(done.ok()) << done.message();
                };
                std::vector<float> whole;
                for (const std::size_t cut : {0, 1, 2}) {
                    for (const std::size_t row : {2, 0, 1}) {
                        std::fill(partials.as<float>(), partials.as<float>() + partials.size() / 4, NAN);
                        take({row, row + 1}, {0, 1}, {0, 3});
                        if (cut != 0)
                            take({row, row + 1}, {1, 2}, {cut, 3});
                        take({row, row + 1}, {1, 2}, {0, cut == 0 ? 3 : cut});
                        plan.merge(partials, 3, crumb::matrix(p.y.data() + row * p.cols(), 1, p.cols()));
                    }
                    if (whole.empty())
                        whole = p.y;
                    EXPECT_EQ(p.y, whole) << "cut " << cut;
                }
                if (codec.is_uncoded()) {
                    take({0, 3}, {0, 2}, {0, 3});
                    plan.merge(partials, 3, p.result());
                    EXPECT_EQ(p.y, whole);
                }
                // And those of `partial`, which knows nothing of what comes before.
                for (std::size_t i = 0; i < 3; ++i) {
                    const auto done =
                        plan.partial(p.queries(), *p.cache, 0, {of.tokens(i, i + 1), partials, i}, memory,
                                     {.rows = {0, 1}});
                    ASSERT_TRUE(done.ok()) << done.message();
                }
                plan.merge(partials, 3, p.result(), {.rows = {0, 1}});
                EXPECT_TRUE(std::equal(p.y.begin(), p.y.begin() + static_cast<std::ptrdiff_t>(p.cols()),
                                       whole.begin()));
            }
    });
}

TEST(KvRanges, FollowFromThePosition) {
    const auto options = options_of(kv_codec::pq4(), 16);
    for (const std::size_t tokens : {1u, 4099u, 4100u, 6147u, 6148u, 34819u, 36867u, 36868u, 1u << 20}) {
        const auto of = crumb::kv_ranges::of(tokens - 1, options);
        EXPECT_LE(of.count(), crumb::kv_ranges::max_count);
        EXPECT_EQ(of.count() > 1, tokens >= 4100) << tokens;
        std::size_t at = 0;
        for (std::size_t i = 0; i < of.count(); ++i) {
            const crumb::range r = of.tokens(i, i + 1);
            EXPECT_EQ(r.begin, at);
            if (of.count() > 1) {
                EXPECT_GE(r.size(), crumb::kv_ranges::min_tokens);
                EXPECT_LT(r.size(), 2 * of.tokens());
                EXPECT_EQ(of.tokens() % crumb::kv_part_tokens, 0u);
            }
            at = r.end;
        }
        EXPECT_EQ(at, tokens);
    }
    auto spanned = options;
    spanned.span = 5000;
    EXPECT_EQ(crumb::kv_ranges::of(100000, spanned).count(), 1u);
}

// Heads go through the pages in blocks whose states fit into a cache: more heads than that, and a part of one
// head, have to come to the same.
TEST(KvAttention, HeadsTogetherAreHeadsAlone) {
    for (const auto& [name, codec] : codecs) {
        SCOPED_TRACE(name);
        auto options = options_of(codec, 128);
        options.layers = 1;
        options.kv_heads = 23; // more than go together; and more pages than a head goes through at a time
        // Whatever ISA encodes: EncodesAlikeOnEveryIsa.
        run_problem p(options, 4, 600, 1, nullptr);
        for_each_isa([&, &of = codec](const tested_isa& isa) {
            const auto together = p.run(crumb::kv_mode::fast, isa.name);
            const auto plan = p.plan(crumb::kv_mode::fast, isa.name);
            if (crumb::kernel::is_scan(plan.route())) {
                EXPECT_LT(crumb::kernel::kv_scratch(128, of, 4, 23, plan.route()).heads(), std::size_t{23});
            }
            crumb::buffer memory(plan.scratch_bytes(1));
            std::vector<float> y(p.y.size());
            std::vector<crumb::kv_error> alone(p.heads);
            for (std::size_t h = 0; h < 23; ++h)
                ASSERT_TRUE(plan.run(p.queries(), *p.cache, 0, crumb::matrix(y.data(), 1, p.cols()), memory,
                                     {.kv_heads = {h, h + 1}, .errors = alone.data()})
                                .ok());
            EXPECT_EQ(y, p.y);
            for (std::size_t h = 0; h < p.heads; ++h) {
                EXPECT_EQ(alone[h].score, together[h].score);
                EXPECT_EQ(alone[h].weight, together[h].weight);
            }
        });
    }
}

TEST(KvAttention, LeavesOutValuesOfLittleWeight) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs)
            // The wider queries are spread, the more blocks are left out between others.
            for (const float spread : {4.0f, 8.0f, 20.0f}) {
                if (!codec.has_codebooks())
                    continue;
                run_problem p(options_of(codec, 16), 2, 500, 1, isa.name, spread);
                const auto errors = p.run(crumb::kv_mode::fast, isa.name);
                const auto plan = p.plan(crumb::kv_mode::fast, isa.name);
                double most = 0;
                for (std::size_t h = 0; h < 2; ++h)
                    for (std::size_t t = 0; t <= p.position; ++t)
                        for (const double x : p.decoded(0, h, false, t))
                            most = std::max(most, std::fabs(x));
                for (const float epsilon : {0.0f, 1e-4f, 1e-2f, 0.5f, 1.0f}) {
                    SCOPED_TRACE(std::string(name) + ", spread " + std::to_string(spread) + ", epsilon " +
                                 std::to_string(epsilon));
                    crumb::buffer memory(plan.scratch_bytes(1)),
                        more(plan.skip_scratch_bytes(p.cache->coded()));
                    std::vector<float> y(p.y.size());
                    crumb::kv_skip_report skipped[2];
                    ASSERT_TRUE(plan.run_skipping(p.queries(), *p.cache, 0,
                                                  crumb::matrix(y.data(), 1, p.cols()), memory,
                                                  {.epsilon = epsilon, .scratch = more, .reports = skipped})
                                    .ok());
                    std::vector<float> by_parts(p.y.size());
                    for (std::size_t h = 0; h < 2; ++h)
                        ASSERT_TRUE(
                            plan.run_skipping(
                                    p.queries(), *p.cache, 0, crumb::matrix(by_parts.data(), 1, p.cols()),
                                    memory,
                                    {.epsilon = epsilon, .scratch = more, .part = {.kv_heads = {h, h + 1}}})
                                .ok());
                    EXPECT_EQ(by_parts, y);
                    for (std::size_t h = 0; h < 2; ++h) {
                        EXPECT_EQ(skipped[h].blocks, p.cache->coded() / 64);
                        EXPECT_LE(skipped[h].mass, epsilon);
                        EXPECT_LE(skipped[h].skipped, skipped[h].blocks);
                        if (!crumb::kernel::is_scan(plan.route())) {
                            EXPECT_EQ(skipped[h].skipped, 0u);
                            EXPECT_EQ(y, p.y);
                            continue;
                        }
                        EXPECT_GE(skipped[h].skipped, epsilon == 1      ? skipped[h].blocks
                                                      : epsilon == 0.5f ? 1
                                                                        : 0);
                    }
                    for (std::size_t c = 0; c < y.size(); ++c) {
                        const std::size_t h = c / 16 / 2;
                        ASSERT_LE(std::fabs(double(y[c]) - double(p.y[c])),
                                  2 * double(skipped[h].mass) * most + 4 * double(errors[c / 16].weight) +
                                      1e-4 * most)
                            << "element " << c;
                    }
                }
            }
    });
    run_problem p(options_of(kv_codec::q8_0(), 64), 2, 100, 1, nullptr);
    const auto plan = p.plan(crumb::kv_mode::fast, nullptr);
    crumb::buffer memory(plan.scratch_bytes(1)), more(plan.skip_scratch_bytes(100));
    EXPECT_EQ(
        plan.run_skipping(p.queries(), *p.cache, 0, p.result(), memory, {.epsilon = 0.1f, .scratch = more})
            .code(),
        errc::unsupported);
}

TEST(KvAttention, ScratchOfManyHeadsHasItsWholeSize) {
    const std::size_t heads = std::size_t{1} << 20, head_size = 512;
    const auto plan = crumb::kv_attention::plan(
        {.layers = 1, .kv_heads = 1, .head_size = head_size, .max_tokens = 256, .codec = kv_codec::f16()},
        {.heads = heads});
    ASSERT_TRUE(plan) << plan.message();
    EXPECT_GT(plan->scratch_bytes(1), 2 * heads * head_size * sizeof(float));
}

TEST(KvAttention, RefusesAPartialResultBeyondItsMemory) {
    run_problem p(options_of(kv_codec::f16(), 64), 2, 100, 1, nullptr);
    const auto plan = p.plan(crumb::kv_mode::fast, nullptr);
    crumb::buffer memory(plan.partial_bytes(1, 2)), scratch(plan.scratch_bytes(1));
    for (const std::size_t index : {std::size_t{2}, std::numeric_limits<std::size_t>::max()}) {
        const crumb::attention_split split{{0, 10}, memory, index};
        EXPECT_EQ(plan.partial(p.queries(), *p.cache, 0, split, scratch).code(), errc::buffer_too_small);
    }
}

TEST(KvAttention, AnEmptyPlanRunsNothing) {
    const crumb::kv_attention empty;
    for (const std::size_t rows : {1, 17, 300}) {
        EXPECT_STREQ(name_of(empty.route(rows)), "halves");
        EXPECT_EQ(empty.scratch_bytes(rows), 0u);
        EXPECT_GT(empty.pass_rows(rows), 0u);
        EXPECT_EQ(empty.partial_bytes(rows, 3), 0u);
    }
    run_problem p(options_of(kv_codec::f16(), 64), 2, 100, 1, nullptr);
    crumb::buffer memory(1024);
    const auto done = empty.run(p.queries(), *p.cache, 0, p.result(), memory);
    EXPECT_EQ(done.code(), errc::invalid_argument);
    EXPECT_STREQ(done.message(), "kv_attention: the plan is empty");
}

TEST(KvAttention, RefusesQueriesThatAreNotFinite) {
    run_problem p(options_of(kv_codec::kivi(4), 64), 2, 100, 1, nullptr);
    p.q[70] = std::numeric_limits<float>::quiet_NaN();
    const auto plan = p.plan(crumb::kv_mode::fast, nullptr);
    crumb::buffer memory(plan.scratch_bytes(1));
    const auto before = p.y;
    const auto done = plan.run(p.queries(), *p.cache, 0, p.result(), memory);
    EXPECT_EQ(done.code(), errc::not_finite);
    EXPECT_STREQ(done.message(), "kv_attention: row 0, head 1: a query is nan");
    EXPECT_EQ(p.y, before);
    const auto order = plan.partial(p.queries(), *p.cache, 0, {{50, 20}, memory, 0}, memory);
    EXPECT_EQ(order.code(), errc::invalid_argument);
}

// ---- the cache
// ----------------------------------------------------------------------------------------------
TEST(KvCache, EncodesAlikeOnEveryIsa) {
    for (const auto& each : codecs) {
        SCOPED_TRACE(each.first);
        cache_problem first(options_of(each.second, 20, 1), crumb::isa_names().back());
        first.fill(170);
        for_each_isa([&](const tested_isa& isa) {
            cache_problem other(options_of(each.second, 20, 1), isa.name);
            other.fill(170);
            ASSERT_EQ(other.cache->coded(), first.cache->coded());
            const std::size_t parts = first.cache->parts_for(170, first.cache->coded());
            EXPECT_EQ(parts, 1u);
            first.cache->for_each_part(
                parts, [&](std::size_t part, std::size_t layer, std::size_t head, bool keys) {
                    const auto a = first.cache->part(part, layer, head, keys);
                    const auto b = other.cache->part(part, layer, head, keys);
                    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0)
                        << "layer " << layer << ", head " << head << (keys ? ", keys" : ", values");
                });
        });
    }
}

TEST(KvCache, KeepsTheWindowAndTheSinks) {
    auto options = options_of(kv_codec::q8_0(), 32);
    options.sinks = 5;
    options.window = 40;
    cache_problem p(options);
    for (std::size_t n = 1; n <= 400; ++n) {
        p.fill(1);
        const std::size_t coded = p.cache->coded();
        EXPECT_EQ(coded % crumb::kv_block_tokens, 0u);
        // As much as is older than the window, in whole blocks.
        EXPECT_EQ(coded, n < 45 ? 0 : (n - 45) / 64 * 64);
    }
    EXPECT_EQ(p.cache->length(), 400u);
}

TEST(KvCache, RefusesWhatDoesNotFit) {
    auto options = options_of(kv_codec::kivi(4), 32, 2, 2);
    options.max_tokens = 300;
    cache_problem p(options);
    const auto more = p.cache->add_page(p.pages[0]->bytes());
    EXPECT_EQ(more.code(), errc::invalid_argument);
    EXPECT_STREQ(more.message(), "kv_cache: 300 tokens at most need 2 pages, there are 2");
    options.max_tokens = 4; // the sinks
    cache_problem short_one(options);
    EXPECT_TRUE(short_one.cache->add_page(p.pages[0]->bytes())); // is not needed, and not taken
    EXPECT_EQ(short_one.cache->page_count(), 0u);
    p.fill(299);
    const auto before = p.decoded(1, 1, true, 298);
    p.draw(2);
    const auto k = crumb::matrix<const float>(p.k.data(), 2, p.width());
    EXPECT_STREQ(p.cache->write(0, k, k).message(), "kv_cache: 299 tokens and 2 more exceed the 300 allowed");
    EXPECT_EQ(p.cache->write(2, k, k).code(), errc::invalid_argument);
    EXPECT_EQ(p.cache->write(0, crumb::matrix<const float>(p.k.data(), 1, p.width() - 1), k).code(),
              errc::bad_shape);
    p.k[40] = std::numeric_limits<float>::infinity();
    const auto one = crumb::matrix<const float>(p.k.data(), 1, p.width());
    EXPECT_STREQ(p.cache->write(0, one, one).message(), "kv_cache: token 299, kv head 1: a key is inf");
    p.k[40] = 70000;
    EXPECT_EQ(p.cache->write(0, one, one).code(), errc::not_finite);
    EXPECT_EQ(p.cache->length(), 299u);
    EXPECT_EQ(p.decoded(1, 1, true, 298), before);

    cache_problem waiting(options_of(kv_codec::kivi(4), 32));
    for (std::size_t i = 0; i < 4 + waiting.cache->slots(); ++i) {
        waiting.write(1);
        ASSERT_TRUE(waiting.cache->advance(1).ok());
    }
    const auto full =
        waiting.cache->write(0, crumb::matrix<const float>(waiting.k.data(), 1, waiting.width()),
                             crumb::matrix<const float>(waiting.v.data(), 1, waiting.width()));
    EXPECT_STREQ(full.message(), "kv_cache: the window's 128 tokens are full: 128 wait to be encoded");
}

TEST(KvCache, ChecksItsShape) {
    const auto why = [](crumb::kv_cache_options s) {
        const auto bytes = crumb::kv_cache::state_bytes(s);
        return std::string(bytes.ok() ? "" : bytes.message());
    };
    auto options = options_of(kv_codec::f16(), 64);
    EXPECT_EQ(why(options), "");
    options.head_size = 0;
    EXPECT_EQ(why(options), "kv_cache: head_size is 0, it has to be 1 .. 512");
    options = options_of(kv_codec::pq(4, 8, false, true), 64);
    EXPECT_EQ(why(options), "kv_cache: the codec needs codebooks");
    options.head_size = 66;
    EXPECT_EQ(why(options), "kv_cache: head_size 66 is no multiple of the codec's 4 channels");
    options = options_of(kv_codec::pq(3, 8, false, true), 66);
    EXPECT_EQ(why(options), "kv_cache: there is no codec of kind 4 with 8 bits for 3 channels");
    const crumb_test::random_kv_codebooks few(kv_codec::pq(2, 8, true, true), 64, 3, 1);
    options = options_of(kv_codec::pq(2, 8, true, true), 64, 2, 2);
    options.codebooks = few.view(2, 1);
    EXPECT_EQ(why(options), "kv_cache: 3 sets of codebooks do not serve 2 layers of 2 heads");
    options.codebooks = few.view(1, 0);
    EXPECT_EQ(why(options), "");
    for (const std::size_t trials : {0u, 6u}) {
        options.scale_trials = trials;
        EXPECT_EQ(why(options),
                  "kv_cache: scale_trials is " + std::to_string(trials) + ", it has to be 1 .. 5");
    }
    options.scale_trials = 1;
    EXPECT_EQ(why(options), "");
    options.page_tokens = 0;
    EXPECT_EQ(why(options), "kv_cache: pages of 0 tokens; they have a multiple of 256, at most 134217728");
    options.page_tokens = 300;
    EXPECT_EQ(why(options), "kv_cache: pages of 300 tokens; they have a multiple of 256, at most 134217728");
    options.page_tokens = (std::size_t{1} << 27) + 256;
    EXPECT_NE(why(options), "");
    options.page_tokens = 512;
    EXPECT_EQ(why(options), "");
    options.sinks = std::size_t{1} << 40;
    EXPECT_NE(why(options), "");
}

// How many tokens a page has is no business of the numbers.
TEST(KvCache, PagesOfAnyLengthHoldTheSame) {
    for_each_isa([](const tested_isa& isa) {
        for (const auto& [name, codec] : codecs) {
            std::unique_ptr<run_problem> first;
            for (const std::size_t page_tokens : {256, 768, 2048}) {
                SCOPED_TRACE(std::string(name) + ", " + std::to_string(page_tokens));
                auto options = options_of(codec, 16, 2, 2);
                options.page_tokens = page_tokens;
                auto p = std::make_unique<run_problem>(options, 2, 900, 1, isa.name);
                EXPECT_EQ(p->pages.size(), (1200 + page_tokens - 1) / page_tokens);
                p->run(crumb::kv_mode::fast, isa.name, 1);
                if (first == nullptr) {
                    first = std::move(p);
                    continue;
                }
                EXPECT_EQ(p->y, first->y);
                for (const bool keys : {true, false})
                    for (std::size_t t = 0; t < 900; t += 7)
                        ASSERT_EQ(p->decoded(1, 1, keys, t), first->decoded(1, 1, keys, t)) << "token " << t;
            }
        }
    });
}

// Tokens of a part, of heads of any size, whichever are asked for together.
TEST(KvCache, DecodesAnyTokens) {
    for (const auto& [name, codec] : codecs)
        for (const std::size_t size : {16, 20, 72, 128}) {
            cache_problem p(options_of(codec, size, 1));
            p.fill(400);
            if (p.cache->coded() < 256)
                continue; // not coded at all
            const auto view = p.cache->layer(0);
            for_each_isa([&, &label = name](const tested_isa& isa) {
                const auto index = crumb::choose_isa({isa.name});
                ASSERT_TRUE(index.ok()) << index.message();
                const auto& by = crumb::dispatch::functions_at<crumb::dispatch::kv_cache_functions>(*index);
                for (const bool keys : {true, false}) {
                    SCOPED_TRACE(std::string(label) + ", " + std::to_string(size) +
                                 (keys ? " keys" : " values"));
                    std::vector<double> want(256 * size);
                    double largest = 0;
                    for (std::size_t t = 0; t < 256; ++t)
                        p.part(0, 0, keys, 0).decode(t, want.data() + t * size);
                    for (const double x : want)
                        largest = std::max(largest, std::fabs(x));
                    std::vector<float> whole;
                    for (const auto& [begin, end] :
                         {std::pair(0, 256), {64, 128}, {17, 18}, {95, 225}, {255, 256}}) {
                        const std::size_t from = std::size_t(begin), n = std::size_t(end - begin),
                                          stride = size + 3;
                        std::vector<float> rows(n * stride, -7);
                        by.decode({view.page.part(keys), view.tables(0, keys), view.part(0, 0, keys), from,
                                   from + n, rows.data(), stride});
                        if (whole.empty())
                            whole = rows;
                        for (std::size_t t = 0; t < n; ++t)
                            for (std::size_t i = 0; i < stride; ++i) {
                                const float x = rows[t * stride + i];
                                ASSERT_EQ(x, whole[(from + t) * stride + i])
                                    << "token " << from + t << ", " << i;
                                // Three roundings at most, of numbers that are a few times as large at most.
                                if (i < size)
                                    ASSERT_NEAR(x, want[(from + t) * size + i], 3 * 0x1p-24 * 4 * largest);
                                else
                                    ASSERT_EQ(x, -7) << "beyond a row";
                            }
                    }
                }
            });
        }
}

TEST(KvCache, TruncatesAnywhere) {
    for (const auto& [name, codec] : codecs)
        for (const std::size_t length : {0, 4, 68, 101, 299, 350}) {
            SCOPED_TRACE(std::string(name) + " to " + std::to_string(length));
            cache_problem p(options_of(codec, 16, 1));
            p.fill(300);
            std::vector<std::vector<double>> before;
            for (std::size_t t = 0; t < std::min<std::size_t>(length, 300); ++t)
                before.push_back(p.decoded(0, 0, false, t));
            p.cache->truncate(length);
            ASSERT_EQ(p.cache->length(), before.size());
            for (std::size_t t = 0; t < before.size(); ++t) {
                const auto after = p.decoded(0, 0, false, t);
                for (std::size_t i = 0; i < after.size(); ++i)
                    ASSERT_NEAR(after[i], before[t][i], 0x1p-11 * std::fabs(before[t][i]) + 1e-7)
                        << "token " << t;
            }
            p.fill(70);
            EXPECT_EQ(p.cache->length(), before.size() + 70);
        }
}

// Scales are rounded, so that codes of the largest halves may stand for more than a half holds.
TEST(KvCache, ASpanTruncatesWhatItStillHas) {
    for (const auto& [name, codec] : codecs) {
        SCOPED_TRACE(name);
        auto options = options_of(codec, 16, 1);
        options.span = 40;
        options.max_rows = 8;
        cache_problem p(options);
        p.fill(1000, 8);
        EXPECT_FALSE(p.cache->can_truncate(300));
        EXPECT_TRUE(p.cache->can_truncate(990));
        p.cache->truncate(990);
        EXPECT_EQ(p.cache->length(), 990u);
        // What a longer sequence has overwritten stays lost.
        EXPECT_FALSE(p.cache->can_truncate(300));
        p.cache->truncate(300);
        EXPECT_EQ(p.cache->length(), 0u);
        p.fill(200, 8);
        EXPECT_TRUE(p.cache->can_truncate(100));
    }
}

TEST(KvCache, ASpanIsNeitherCopiedNorSavedNorSkipped) {
    auto options = options_of(kv_codec::f16(), 16, 1);
    options.span = 40;
    options.max_rows = 8;
    cache_problem p(options), q(options);
    p.fill(100, 8);
    EXPECT_EQ(q.cache->copy_prefix(*p.cache, 10).code(), errc::unsupported);
    crumb::buffer saved(crumb::snapshot_bytes(*p.cache));
    EXPECT_EQ(crumb::save(*p.cache, saved).code(), errc::unsupported);
    p.draw(9);
    EXPECT_STREQ(p.cache
                     ->write(0, crumb::matrix<const float>(p.k.data(), 9, p.width()),
                             crumb::matrix<const float>(p.v.data(), 9, p.width()))
                     .message(),
                 "kv_cache: 9 tokens at once, max_rows is 8 and the span has no room for more");
    const auto plain = crumb::kv_attention::plan(options_of(kv_codec::f16(), 16, 1), {.heads = 2});
    ASSERT_TRUE(plain.ok());
    std::vector<float> x(32), y(32);
    crumb::buffer memory(plain->scratch_bytes(1));
    EXPECT_EQ(plain
                  ->run(crumb::matrix<const float>(x.data(), 1, 32), *p.cache, 0,
                        crumb::matrix(y.data(), 1, 32), memory)
                  .code(),
              errc::bad_shape);
}

TEST(KvCache, TruncatesToFiniteHalves) {
    for (const auto& [name, codec] : codecs) {
        if (codec.has_codebooks())
            continue;
        SCOPED_TRACE(name);
        cache_problem p(options_of(codec, 16, 1));
        std::vector<float> x(p.width());
        for (std::size_t t = 0; t < 200; ++t) {
            for (std::size_t i = 0; i < x.size(); ++i)
                x[i] = (t + i) % 2 == 0 ? 65504.0f : -65504.0f;
            const auto row = crumb::matrix<const float>(x.data(), 1, x.size());
            ASSERT_TRUE(p.cache->write(0, row, row).ok());
            ASSERT_TRUE(p.cache->advance(1).ok());
            p.cache->encode(p.scratch->bytes());
        }
        p.cache->truncate(90);
        for (const bool keys : {true, false})
            for (std::size_t t = 0; t < 90; ++t)
                for (const double v : p.decoded(0, 0, keys, t))
                    ASSERT_NEAR(std::fabs(v), 65504, 1000) << "token " << t;
    }
}

TEST(KvCache, CopiesAPrefix) {
    for (const auto& [name, codec] : codecs) {
        SCOPED_TRACE(name);
        cache_problem from(options_of(codec, 16, 1, 2)), to(options_of(codec, 16, 1, 2));
        from.fill(500);
        to.fill(30);
        ASSERT_TRUE(to.cache->copy_prefix(*from.cache, 333).ok());
        EXPECT_EQ(to.cache->length(), 333u);
        from.cache->truncate(333);
        for (std::size_t t = 0; t < 333; ++t)
            ASSERT_EQ(to.decoded(1, 0, true, t), from.decoded(1, 0, true, t)) << "token " << t;
        EXPECT_EQ(to.cache->copy_prefix(*from.cache, 400).code(), errc::invalid_argument);
        auto longer = from.options;
        longer.page_tokens = 768;
        cache_problem other(longer), third(from.options);
        other.fill(700);
        ASSERT_TRUE(third.cache->copy_prefix(*other.cache, 600).ok());
        ASSERT_TRUE(other.cache->copy_prefix(*from.cache, 333).ok());
        for (std::size_t t = 0; t < 333; t += 13)
            ASSERT_EQ(other.decoded(1, 0, false, t), from.decoded(1, 0, false, t)) << "token " << t;
    }
    cache_problem a(options_of(kv_codec::f16(), 16)), b(options_of(kv_codec::q8_0(), 16));
    EXPECT_EQ(a.cache->copy_prefix(*b.cache, 0).code(), errc::bad_shape);
}

TEST(KvSnapshot, RestoresWhatWasSaved) {
    for (const auto& [name, codec] : codecs) {
        SCOPED_TRACE(name);
        const auto options = options_of(codec, 16, 2, 2);
        auto longer = options;
        longer.page_tokens = 512;
        cache_problem from(options), to(longer);
        from.fill(330);
        std::vector<std::byte> bytes(crumb::snapshot_bytes(*from.cache));
        ASSERT_TRUE(crumb::save(*from.cache, bytes).ok());
        EXPECT_EQ(*crumb::snapshot_length(bytes), 330u);
        const auto restored = crumb::restore(*to.cache, bytes);
        ASSERT_TRUE(restored.ok()) << restored.message();
        ASSERT_EQ(to.cache->length(), 330u);
        for (std::size_t layer = 0; layer < 2; ++layer)
            for (std::size_t t = 0; t < 330; ++t)
                ASSERT_EQ(to.decoded(layer, 1, true, t), from.decoded(layer, 1, true, t)) << "token " << t;
    }
}

TEST(KvSnapshot, RefusesWhatDoesNotMatch) {
    const kv_codec codec = kv_codec::pq(2, 8, true, true);
    cache_problem from(options_of(codec, 32));
    from.fill(300);
    std::vector<std::byte> bytes(crumb::snapshot_bytes(*from.cache));
    ASSERT_TRUE(crumb::save(*from.cache, bytes).ok());
    EXPECT_EQ(crumb::save(*from.cache, std::span(bytes).first(100)).code(), errc::buffer_too_small);
    const auto why = [&](const crumb::kv_cache_options& s, std::span<const std::byte> saved, auto&& change) {
        cache_problem to(s);
        auto options = to.options;
        change(options);
        crumb::buffer state(*crumb::kv_cache::state_bytes(options));
        auto cache = *crumb::kv_cache::create(options, state.bytes());
        for (std::size_t i = 0; i < cache.pages_for(options.max_tokens); ++i)
            EXPECT_TRUE(cache.add_page(to.pages[i]->bytes()));
        const auto restored = crumb::restore(cache, saved);
        EXPECT_EQ(cache.length(), restored.ok() ? 300u : 0u);
        return std::string(restored.ok() ? "" : restored.message());
    };
    const auto same = [](crumb::kv_cache_options&) {};
    EXPECT_EQ(why(options_of(codec, 16), bytes, same), "kv snapshot: head_size 32, the cache has 16");
    EXPECT_EQ(why(options_of(codec, 32, 1), bytes, same), "kv snapshot: kv_heads 2, the cache has 1");
    EXPECT_EQ(why(options_of(kv_codec::pq(2, 8, false, true), 32), bytes, same),
              "kv snapshot: codec (kind 4, bits 8, dims 2, flags 3), the cache has (4, 8, 2, 2)");
    EXPECT_EQ(why(options_of(codec, 32), bytes, [](auto& s) { s.codebook_id = 18; }),
              "kv snapshot: other codebooks (0000000000000011, not 0000000000000012)");
    EXPECT_EQ(why(options_of(codec, 32), bytes, [](auto& s) { s.model_id = 5; }),
              "kv snapshot: another model wrote it (0000000000000000, not 0000000000000005)");
    EXPECT_EQ(why(options_of(codec, 32), bytes, [](auto& s) { s.sinks = 3; }),
              "kv snapshot: sinks 4, the cache has 3");
    EXPECT_EQ(why(options_of(codec, 32), bytes, [](auto& s) { s.max_tokens = 200; }),
              "kv snapshot: tokens 300, the cache has 200");
    for (const std::size_t size : {0, 5, 127, 128, 5000})
        EXPECT_NE(why(options_of(codec, 32), std::span(bytes).first(size), same), "") << size;
    EXPECT_NE(why(options_of(codec, 32), std::span(bytes).first(bytes.size() - 1), same), "");
    auto version = bytes;
    version[8] = std::byte{1};
    EXPECT_EQ(why(options_of(codec, 32), version, same), "kv snapshot: version 1, this build reads 2 and 3");
    // Version 2 leaves the header out of its hash.
    auto older = bytes;
    crumb::kv_snapshot_header header;
    std::memcpy(&header, older.data(), sizeof header);
    header.version = 2;
    header.content = crumb::kv_hash(std::span<const std::byte>(older).subspan(sizeof header), 0);
    std::memcpy(older.data(), &header, sizeof header);
    EXPECT_EQ(why(options_of(codec, 32), older, same), "");
    for (const std::size_t at : {0ul, 12ul, 30ul, 72ul, 73ul, 80ul, 88ul, 96ul, 104ul, 112ul, 128ul,
                                 bytes.size() / 2, bytes.size() - 1}) {
        auto changed = bytes;
        changed[at] ^= std::byte{0x41};
        EXPECT_NE(why(options_of(codec, 32), changed, same), "") << "byte " << at;
    }
    EXPECT_EQ(why(options_of(codec, 32), bytes, same), "");
}

} // namespace
} // namespace test_kv_cache
