// Scans of product-quantized codes against sums in integers and doubles.
#include "unit/guarded.hpp"
#include "unit/isa_test.hpp"
#include "unit/random_numbers.hpp"

#include <crumb/dispatch/cache.hpp>
#include <crumb/isa/primitives.hpp>
#include <crumb/kernel/cache/definitions.hpp>
#include <crumb/kernel/cache/pq_kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

namespace test_pq_scan {
namespace {

using namespace crumb;
using namespace crumb::kernel;
using crumb_test::guard;
using crumb_test::guarded;
using crumb_test::normal_numbers;

constexpr std::size_t tokens = kv_part_tokens;

/// What an ISA scans with. Scans are those that plans call, or of an ISA that decodes codes those that it
/// has.
struct scan_functions : pq_scans {
    void (*make_tables)(const pq_table_args&) noexcept;
    void (*expand_query)(const pq_table_args&) noexcept;
    void (*finish)(const pq_finish_args&) noexcept;

    template <class Isa>
    static scan_functions of() {
        using I = dispatch::own_or_base_isa<Isa>;
        pq_scans scans = dispatch::functions_at<dispatch::kv_attention_functions>(isa_index(Isa::name)).scans;
        EXPECT_EQ(scans.score != nullptr, reads_codes<I>);
        if constexpr (!reads_codes<I>)
            scans = {&pq_scores<I>, &pq_add<I>,  &pq_meet<I>,      &pq_expansion_of<I>,
                     &pq_expand<I>, &pq_join<I>, &pq_add_joined<I>};
        return {scans, &pq_make_tables<I>, &pq_expand_query<I>, &pq_finish<I>};
    }
};

/// Calls f(scan_functions) for every ISA that tests run on.
template <class F>
void for_each_isa(F&& f) {
    crumb_test::for_each_isa([&]<class Isa>() { f(scan_functions::of<Isa>()); });
}

struct scan_case {
    kv_codec codec;
    std::size_t head_size;

    std::size_t rows() const { return head_size / codec.dims; }
    std::size_t row_bytes() const { return kv_part_layout(codec, head_size, true).row_bytes(); }
};

void PrintTo(const scan_case& c, std::ostream* out) {
    *out << int{c.codec.dims} << "x" << int{c.codec.bits} << (c.codec.additive ? "a" : "") << "_"
         << c.head_size;
}

std::vector<scan_case> scan_cases() {
    std::vector<scan_case> cases;
    for (const std::uint8_t dims : {std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{4}})
        for (const std::size_t head_size : {4u, 20u, 64u, 80u, 128u, 256u})
            for (const kv_codec& codec :
                 {kv_codec::pq(dims, 4, false, false), kv_codec::pq(dims, 8, true, false),
                  kv_codec::pq(dims, 6, false, false), kv_codec::pq(dims, 8, false, false)})
                cases.push_back({codec, head_size});
    return cases;
}

/// Codes, centroids and their scales, each beside a page that faults.
struct problem {
    scan_case at;
    guarded<std::uint8_t> codes;
    guarded<std::int8_t> entries;
    guarded<float> scales, q;
    std::mt19937 random;

    problem(const scan_case& c, unsigned seed, guard side)
        : at(c), codes(c.rows() * c.row_bytes(), side), entries(c.head_size * c.codec.entries(), side),
          scales(c.head_size, side), q(c.head_size, side), random(seed) {
        for (std::uint8_t& x : codes)
            x = static_cast<std::uint8_t>(random());
        const int most = c.codec.additive ? 63 : 127;
        for (std::int8_t& x : entries)
            x = static_cast<std::int8_t>(std::uniform_int_distribution<int>(-most, most)(random));
        normal_numbers<float> normal;
        for (float& x : scales)
            x = std::abs(normal(random)) * 0.01f;
        for (float& x : q)
            x = normal(random);
    }
    pq_tables tables() { return {entries.data(), scales.data()}; }

    /// Where the code of token t leads to in the table of `width` entries per row: one or two places.
    void places(std::size_t row, std::size_t t, std::size_t* at_entry, int& n) const {
        const std::uint8_t* bytes = const_cast<problem*>(this)->codes.data() + row * at.row_bytes();
        const unsigned code = kv_code(bytes, at.codec.bits, t);
        n = at.codec.additive ? 2 : 1;
        at_entry[0] = at.codec.additive ? code & 15 : code;
        at_entry[1] = 16 + (code >> 4);
    }
    /// Calls f(row, entry) for each looked-up entry of token t.
    template <class F>
    void each_place(std::size_t t, F&& f) const {
        for (std::size_t row = 0; row < at.rows(); ++row) {
            std::size_t e[2];
            int n = 0;
            places(row, t, e, n);
            for (int i = 0; i < n; ++i)
                f(row, e[i]);
        }
    }
    double exact_score(std::size_t t) {
        double sum = 0;
        each_place(t, [&](std::size_t row, std::size_t e) {
            for (std::size_t i = 0; i < at.codec.dims; ++i) {
                const std::size_t c = row * at.codec.dims + i;
                sum += double{q[c]} * double{scales[c]} * entries[c * at.codec.entries() + e];
            }
        });
        return sum;
    }
    std::int64_t table_sum(const pq_query& query, std::size_t t, bool coarse = false) const {
        std::int64_t sum = 0;
        each_place(t, [&](std::size_t row, std::size_t e) {
            const std::size_t at_entry = row * at.codec.entries() + e;
            sum += coarse ? query.high[at_entry] : query.low[at_entry] + 128 * query.high[at_entry];
        });
        return sum;
    }
};

/// A query in memory of its own.
struct made_query {
    pq_query_memory layout;
    guarded<std::byte> memory;
    pq_query query;

    made_query(const scan_case& c)
        : layout(c.codec, c.head_size, false), memory(layout.bytes), query(layout.at(memory.data())) {}

    void make(const scan_functions& isa, problem& p) {
        isa.make_tables({p.at.codec, p.at.head_size, p.q.data(), p.tables(), &query});
    }
};

/// The error bound holds for every token, the entries are in range, and portable makes the same.
void check_tables(const scan_functions& isa, problem& p) {
    made_query made(p.at), same(p.at);
    made.make(isa, p);
    same.make(scan_functions::of<isa::portable>(), p);
    const pq_query &a = made.query, &b = same.query;
    ASSERT_TRUE(std::isfinite(a.error));
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(a.base, b.base);
    EXPECT_EQ(a.error, b.error);
    const std::size_t entries = p.at.codec.entries();
    for (std::size_t i = 0; i < p.at.rows() * entries; ++i) {
        ASSERT_EQ(a.low[i], b.low[i]) << i;
        ASSERT_LE(a.low[i], pq_max);
        ASSERT_EQ(a.high[i], b.high[i]) << i;
        ASSERT_LE(a.high[i], pq_max);
    }
    for (std::size_t t = 0; t < tokens; ++t) {
        const double from_tables = double{a.base} + double{a.step} * static_cast<double>(p.table_sum(a, t));
        ASSERT_LE(std::abs(from_tables - p.exact_score(t)), double{a.error}) << "token " << t;
        const double coarse =
            double{a.coarse_base} + double{a.step} * 128 * static_cast<double>(p.table_sum(a, t, true));
        ASSERT_LE(std::abs(coarse - p.exact_score(t)), double{a.coarse_error}) << "token " << t;
    }
}

class PqScan : public testing::TestWithParam<scan_case> {};

TEST_P(PqScan, TablesKeepTheirBound) {
    for_each_isa([&](const scan_functions& isa) {
        problem p(GetParam(), 1, guard::after);
        check_tables(isa, p);
        problem before(GetParam(), 2, guard::before);
        check_tables(isa, before);
    });
}

TEST_P(PqScan, TablesOfStrangeQueries) {
    for_each_isa([&](const scan_functions& isa) {
        problem p(GetParam(), 3, guard::after);
        const std::size_t n = p.at.head_size;
        const auto with = [&](const char* what, auto&& change) {
            SCOPED_TRACE(what);
            normal_numbers<float> normal;
            for (float& x : p.q)
                x = normal(p.random);
            change();
            check_tables(isa, p);
        };
        with("one huge channel", [&] { p.q[n / 2] = 1e6f; });
        with("two huge channels", [&] {
            p.q[0] = -1e4f;
            p.q[n - 1] = 3e4f;
        });
        with("zeros", [&] { std::fill(p.q.begin(), p.q.end(), 0.0f); });
        with("denormals", [&] { std::fill(p.q.begin(), p.q.end(), 1e-40f); });
        with("small", [&] { std::fill(p.q.begin(), p.q.end(), 1e-24f); });
        with("large", [&] { std::fill(p.q.begin(), p.q.end(), -1e25f); });
        with("one of a kind", [&] {
            std::fill(p.q.begin(), p.q.end(), 0.0f);
            p.q[n - 1] = 0.7f;
        });
        with("growing", [&] {
            for (std::size_t c = 0; c < n; ++c)
                p.q[c] = std::exp(0.2f * static_cast<float>(c % 64));
        });
        with("equal entries", [&] { std::fill(p.entries.begin(), p.entries.end(), std::int8_t{-60}); });
        with("extreme entries", [&] {
            for (std::int8_t& x : p.entries)
                x = p.random() % 2 == 0 ? std::int8_t{-128} : std::int8_t{127};
            std::fill(p.scales.begin(), p.scales.end(), 1.0f);
            std::fill(p.q.begin(), p.q.end(), 2.0f);
        });
        with("scales of zero", [&] { std::fill(p.scales.begin(), p.scales.end(), 0.0f); });
    });
}

TEST_P(PqScan, QueriesThatAreNotFiniteHaveNoBound) {
    for_each_isa([&](const scan_functions& isa) {
        for (const float bad :
             {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
              -std::numeric_limits<float>::infinity(), 3e38f}) {
            problem p(GetParam(), 4, guard::after);
            p.q[p.at.head_size - 1] = bad;
            p.scales[p.at.head_size - 1] = 2;
            made_query made(p.at);
            made.make(isa, p);
            EXPECT_TRUE(std::isinf(made.query.error));
            EXPECT_EQ(made.query.step, 0.0f);
            EXPECT_EQ(made.query.base, 0.0f);
        }
    });
}

/// Scores of some blocks: exact, and nothing else is written.
void check_scores(const scan_functions& isa, problem& p, const std::vector<pq_query>& queries,
                  std::size_t first, std::size_t last) {
    SCOPED_TRACE(testing::Message() << queries.size() << " queries, blocks " << first << " to " << last);
    guarded<float> out(queries.size() * tokens);
    pq_score_args args;
    args.codes = {p.at.codec, p.at.head_size, p.codes.data(), nullptr, first, last};
    args.queries = queries.data();
    args.count = queries.size();
    args.out = out.data();
    isa.score(args);
    for (std::size_t q = 0; q < queries.size(); ++q)
        for (std::size_t t = 0; t < tokens; ++t) {
            const float found = out[q * tokens + t];
            if (t < first * kv_block_tokens || t >= last * kv_block_tokens)
                ASSERT_TRUE(std::isnan(found)) << "token " << t;
            else
                ASSERT_EQ(found, static_cast<float>(p.table_sum(queries[q], t)))
                    << "query " << q << " token " << t;
        }
}

TEST_P(PqScan, ScoresAreExact) {
    for_each_isa([&](const scan_functions& isa) {
        for (const guard side : {guard::after, guard::before}) {
            problem p(GetParam(), 5, side);
            std::vector<std::unique_ptr<made_query>> made;
            std::vector<pq_query> queries;
            for (std::size_t i = 0; i < 7; ++i) {
                normal_numbers<float> normal;
                for (float& x : p.q)
                    x = normal(p.random);
                if (i % 3 == 1)
                    p.q[0] = p.q[p.at.head_size - 1] = 1000;
                made.push_back(std::make_unique<made_query>(p.at));
                made.back()->make(isa, p);
                queries.push_back(made.back()->query);
                queries.back().step = 1;
                queries.back().base = 0;
                if (i == 6) // the largest sums that there are
                    std::fill_n(queries.back().low, p.at.rows() * p.at.codec.entries(),
                                static_cast<std::uint8_t>(pq_max));
            }
            for (const std::size_t n : {1u, 2u, 3u, 4u, 7u})
                check_scores(isa, p, {queries.end() - static_cast<std::ptrdiff_t>(n), queries.end()}, 0, 4);
            for (std::size_t first = 0; first < 4; ++first)
                for (std::size_t last = first; last <= 4; ++last)
                    check_scores(isa, p, {queries.begin(), queries.begin() + 1 + (first + last) % 4}, first,
                                 last);
        }
    });
}

TEST_P(PqScan, ScoresAreScaledAndShifted) {
    for_each_isa([&](const scan_functions& isa) {
        problem p(GetParam(), 6, guard::after);
        made_query made(p.at);
        made.make(isa, p);
        std::vector<float> out(tokens);
        pq_score_args args;
        args.codes = {p.at.codec, p.at.head_size, p.codes.data(), p.codes.data(), 0, 4};
        args.queries = &made.query;
        args.count = 1;
        args.out = out.data();
        isa.score(args);
        for (std::size_t t = 0; t < tokens; ++t)
            ASSERT_LE(std::abs(double{out[t]} - p.exact_score(t)), double{made.query.error}) << "token " << t;
    });
}

/// Sums of values with weights in some blocks: exact.
void check_values(const scan_functions& isa, problem& p, std::size_t planes, std::size_t first,
                  std::size_t last, bool extreme) {
    SCOPED_TRACE(testing::Message() << planes << " planes, blocks " << first << " to " << last);
    constexpr std::size_t lanes = pq_sums;
    const std::size_t n = p.at.head_size, entries = p.at.codec.entries();
    guarded<std::uint8_t> weights(planes * tokens);
    guarded<float> sums(planes * n * lanes);
    std::fill(sums.begin(), sums.end(), 0.0f);
    std::vector<pq_plane> of(planes);
    for (std::size_t i = 0; i < planes; ++i) {
        for (std::size_t t = 0; t < tokens; ++t) {
            const bool inside = t >= first * kv_block_tokens && t < last * kv_block_tokens;
            const unsigned w = extreme ? unsigned{pq_max} : p.random() % (pq_max + 1);
            weights[i * tokens + t] = static_cast<std::uint8_t>(inside ? w : 0);
        }
        of[i] = {weights.data() + i * tokens, i % 2 == 0 ? 1.0f : -2.0f, sums.data() + i * n * lanes};
    }
    pq_add_args args;
    args.codes = {p.at.codec, n, p.codes.data(), nullptr, first, last};
    args.entries = p.entries.data();
    args.planes = of.data();
    args.count = planes;
    for (int times = 1; times <= 2; ++times) {
        isa.add(args);
        for (std::size_t i = 0; i < planes; ++i) {
            std::vector<std::int64_t> expected(n);
            for (std::size_t t = 0; t < tokens; ++t)
                p.each_place(t, [&](std::size_t row, std::size_t e) {
                    for (std::size_t c = row * p.at.codec.dims; c < (row + 1) * p.at.codec.dims; ++c)
                        expected[c] += of[i].weights[t] * p.entries[c * entries + e];
                });
            for (std::size_t c = 0; c < n; ++c) {
                double found = 0;
                for (std::size_t k = 0; k < lanes; ++k)
                    found += double{of[i].sums[c * lanes + k]};
                ASSERT_EQ(found, times * double{of[i].factor} * static_cast<double>(expected[c]))
                    << "plane " << i << " channel " << c;
            }
        }
    }
    guarded<float> out(n);
    std::fill(out.begin(), out.end(), 0.5f);
    isa.finish({sums.data(), n, p.scales.data(), out.data()});
    for (std::size_t c = 0; c < n; ++c) {
        double sum = 0;
        for (std::size_t k = 0; k < lanes; ++k)
            sum += double{sums[c * lanes + k]};
        const double exact = 0.5 + double{p.scales[c]} * sum;
        ASSERT_NEAR(out[c], exact, 1e-5 * (1 + std::abs(exact)));
    }
}

TEST_P(PqScan, SumsOfValuesAreExact) {
    for_each_isa([&](const scan_functions& isa) {
        for (const guard side : {guard::after, guard::before}) {
            problem p(GetParam(), 7, side);
            for (const std::size_t n : {1u, 2u, 4u, 5u, 7u, 8u, 11u})
                check_values(isa, p, n, 0, 4, false);
            for (std::size_t first = 0; first < 4; ++first)
                for (std::size_t last = first; last <= 4; ++last)
                    for (const std::size_t n :
                         {std::size_t{7}, 1 + (first + last) % 3, 1 + (first + last) % 3 * 3})
                        check_values(isa, p, n, first, last, false);
        }
    });
}

TEST_P(PqScan, SumsOfExtremeValuesAreExact) {
    for_each_isa([&](const scan_functions& isa) {
        problem p(GetParam(), 8, guard::after);
        for (const int sign : {-1, 1, 0}) {
            for (std::size_t i = 0; i < p.entries.size(); ++i) {
                const int s = sign != 0 ? sign : p.random() % 2 == 0 ? -1 : 1;
                const bool high = p.at.codec.additive && i % 32 >= 16;
                const int most = p.at.codec.additive ? (high ? 63 : 64) : s < 0 ? 128 : 127;
                p.entries[i] = static_cast<std::int8_t>(s * most);
            }
            check_values(isa, p, 2, 0, 4, true);
        }
    });
}

// ---- codes that are expanded ----

/// Entries as the ISA's kernels for expanded codes read them; `out` has room for just as many.
void make_entries(const scan_functions& isa, problem& p, bool keys, guarded<std::int8_t>& out) {
    if (isa.expansion(p.at.codec).joined)
        isa.join({p.at.codec, p.at.head_size, p.entries.data(), keys, out.data()});
    else
        std::copy(p.entries.begin(), p.entries.end(), out.begin());
}

/// Products of a plane with the entries of token t.
std::int64_t plane_sum(problem& p, const std::uint8_t* plane, std::size_t t) {
    std::int64_t sum = 0;
    p.each_place(t, [&](std::size_t row, std::size_t e) {
        for (std::size_t c = row * p.at.codec.dims; c < (row + 1) * p.at.codec.dims; ++c)
            sum += reinterpret_cast<const std::int8_t*>(plane)[c] * p.entries[c * p.at.codec.entries() + e];
    });
    return sum;
}

TEST_P(PqScan, ExpandedScoresAreExact) {
    for_each_isa([&](const scan_functions& isa) {
        if (isa.expansion(GetParam().codec).from == 0 || GetParam().head_size % 4 != 0)
            return;
        for (const guard side : {guard::after, guard::before}) {
            problem p(GetParam(), 9, side);
            for (std::size_t i = 0; i < p.entries.size(); i += 3)
                p.entries[i] = p.at.codec.additive ? std::int8_t{-63} : std::int8_t{-128};
            guarded<std::int8_t> entries(p.entries.size(), side);
            make_entries(isa, p, true, entries);
            const pq_query_memory layout(p.at.codec, p.at.head_size, true);
            std::vector<std::unique_ptr<guarded<std::byte>>> memory;
            std::vector<pq_query> queries;
            for (std::size_t i = 0; i < 7; ++i) {
                normal_numbers<float> normal;
                for (float& x : p.q)
                    x = i == 5 ? (p.random() % 2 == 0 ? -1.0f : 1.0f) : normal(p.random);
                if (i % 3 == 1)
                    p.q[0] = p.q[p.at.head_size - 1] = 1000;
                memory.push_back(std::make_unique<guarded<std::byte>>(layout.bytes));
                queries.push_back(layout.at(memory.back()->data()));
                pq_query& q = queries.back();
                isa.expand_query({p.at.codec, p.at.head_size, p.q.data(), p.tables(), &q});
                ASSERT_TRUE(std::isfinite(q.error));
                ASSERT_LE(q.error, q.coarse_error);
                for (std::size_t t = 0; t < tokens; ++t) {
                    const auto high = 128 * plane_sum(p, q.high, t), low = plane_sum(p, q.low, t);
                    const double exact = p.exact_score(t), step = double{q.step};
                    ASSERT_LE(std::abs(step * static_cast<double>(high + low) - exact), double{q.error});
                    ASSERT_LE(std::abs(step * static_cast<double>(high) - exact), double{q.coarse_error});
                }
                q.step = 1;
            }
            for (const auto& [count, first, last, planes] : {std::tuple{1, 0, 4, 0u},
                                                             {2, 1, 3, 1u},
                                                             {4, 0, 4, 15u},
                                                             {7, 0, 4, 0u},
                                                             {7, 3, 4, 37u},
                                                             {5, 0, 2, 2u}}) {
                SCOPED_TRACE(testing::Message() << count << " queries, blocks " << first << " to " << last);
                const auto n = static_cast<std::size_t>(count);
                guarded<float> out(n * tokens);
                std::vector<std::uint8_t> of(n);
                for (std::size_t q = 0; q < n; ++q)
                    of[q] = (planes >> q & 1u) != 0 ? 1 : 2;
                pq_score_args args;
                args.codes = {p.at.codec,
                              p.at.head_size,
                              p.codes.data(),
                              nullptr,
                              static_cast<std::size_t>(first),
                              static_cast<std::size_t>(last)};
                args.queries = queries.data();
                args.count = n;
                args.out = out.data();
                args.planes = of.data();
                args.entries = entries.data();
                isa.expand(args);
                for (std::size_t q = 0; q < n; ++q)
                    for (std::size_t t = 0; t < tokens; ++t) {
                        const std::int64_t sum = 128 * plane_sum(p, queries[q].high, t) +
                                                 (of[q] == 1 ? 0 : plane_sum(p, queries[q].low, t));
                        // A register of nibbles holds a neighbouring block, whose scores nobody reads.
                        if (t < args.codes.first_block * kv_block_tokens ||
                            t >= args.codes.last_block * kv_block_tokens)
                            continue;
                        ASSERT_EQ(out[q * tokens + t], static_cast<float>(sum))
                            << "query " << q << " token " << t;
                    }
            }
        }
    });
}

TEST_P(PqScan, SumsOfJoinedValuesAreExact) {
    for_each_isa([&](const scan_functions& isa) {
        if (!isa.expansion(GetParam().codec).joined || GetParam().head_size % 4 != 0)
            return;
        problem p(GetParam(), 10, guard::after);
        for (std::size_t i = 0; i < p.entries.size(); i += 5)
            p.entries[i] = -128;
        guarded<std::int8_t> entries(p.entries.size());
        make_entries(isa, p, false, entries);
        const std::size_t n = p.at.head_size, padded = (n + 15) / 16 * 16;
        for (const std::size_t planes : {1u, 4u, 6u})
            for (const auto& [first, last] : {std::pair<std::size_t, std::size_t>{0, 4}, {1, 3}}) {
                guarded<std::uint8_t> weights(planes * tokens);
                guarded<float> sums(planes * padded);
                std::fill(sums.begin(), sums.end(), 0.0f);
                std::vector<pq_plane> of(planes);
                for (std::size_t i = 0; i < planes; ++i) {
                    for (std::size_t t = 0; t < tokens; ++t) {
                        const bool inside = t >= first * kv_block_tokens && t < last * kv_block_tokens;
                        weights[i * tokens + t] =
                            static_cast<std::uint8_t>(!inside  ? 0
                                                      : i == 0 ? unsigned{pq_max}
                                                               : p.random() % (pq_max + 1));
                    }
                    of[i] = {weights.data() + i * tokens, -2.0f, sums.data() + i * padded};
                }
                pq_add_args args;
                args.codes = {p.at.codec, n, p.codes.data(), nullptr, first, last};
                args.entries = entries.data();
                args.planes = of.data();
                args.count = planes;
                isa.add_joined(args);
                for (std::size_t i = 0; i < planes; ++i) {
                    std::vector<std::int64_t> expected(n);
                    for (std::size_t t = 0; t < tokens; ++t)
                        p.each_place(t, [&](std::size_t row, std::size_t e) {
                            for (std::size_t c = row * p.at.codec.dims; c < (row + 1) * p.at.codec.dims; ++c)
                                expected[c] += of[i].weights[t] * p.entries[c * p.at.codec.entries() + e];
                        });
                    for (std::size_t c = 0; c < n; ++c)
                        ASSERT_EQ(of[i].sums[c], -2.0f * static_cast<float>(expected[c]))
                            << "plane " << i << " channel " << c;
                }
            }
    });
}

INSTANTIATE_TEST_SUITE_P(Codecs, PqScan, testing::ValuesIn(scan_cases()), testing::PrintToStringParamName());

} // namespace
} // namespace test_pq_scan
