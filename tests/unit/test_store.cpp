// Quantizing whole matrices into the formats that do not round by themselves.
#include "format_test.hpp"
#include "guarded.hpp"

#include <crumb/format/list.hpp>
#include <crumb/offline/weights/error_feedback.hpp>
#include <crumb/offline/weights/store.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace test_store {
namespace {

/// Four level tables at most, ascending, no two alike.
template <class F>
std::vector<std::int8_t> spread_tables() {
    crumb::level_set s = crumb::levels_of<F>(std::vector<std::int8_t>(crumb::codebook_entries<F>));
    for (std::size_t t = 0; t < s.tables(); ++t) {
        for (std::size_t i = 0; i < s.entries; ++i) {
            const double x = 2.0 * static_cast<double>(i) / static_cast<double>(s.entries - 1) - 1;
            const double bent = std::copysign(std::pow(std::fabs(x), 1 + 0.3 * static_cast<double>(t)), x);
            s.levels[t * s.entries + i] =
                static_cast<std::int8_t>(std::lrint(120 * bent + 3 * static_cast<double>(t) - 5));
        }
    }
    return crumb::codebooks_of<F>(s);
}

/// Weights of different magnitudes, one group all zeros.
struct problem {
    std::size_t n = 6, k = 300;
    std::vector<float> w, importance;

    problem() : w(n * k), importance(k) {
        std::mt19937 random(21);
        std::normal_distribution<float> normal;
        for (std::size_t i = 0; i < w.size(); ++i)
            w[i] = 0.02f * normal(random) * std::exp(0.3f * static_cast<float>(i / 32 % 5));
        std::fill_n(w.begin() + static_cast<std::ptrdiff_t>(2 * k + 64), 32, 0.0f);
        for (float& a : importance)
            a = std::exp(2 * normal(random));
        importance[5] = 0;
    }
    crumb::matrix_view<const float> view() const { return crumb::matrix<const float>(w.data(), n, k); }
};

/// What counts for the columns: importance scaled to mean 1 and damped by the documented share.
std::vector<double> column_weights(const std::vector<float>& importance, std::size_t k) {
    double mean = 0;
    for (const float a : importance)
        mean += double{a} / static_cast<double>(k);
    std::vector<double> out(k, 1.0);
    for (std::size_t i = 0; mean > 0 && i < k; ++i)
        out[i] = double{importance[i]} / mean + crumb::feedback_options().damping;
    return out;
}

/// The least weighted squared error of a group at a scale and table, each weight to whichever level is
/// nearest: every level is tried.
double min_error(const double* target, const double* weight, std::size_t size, double d,
                 std::span<const std::int8_t> table) {
    double sum = 0;
    for (std::size_t i = 0; i < size; ++i) {
        double least = std::numeric_limits<double>::infinity();
        for (const std::int8_t level : table)
            least = std::min(least, std::pow(target[i] - d * static_cast<double>(level), 2));
        sum += weight[i] * least;
    }
    return sum;
}

/// The least of that over the tables and all scales that a block of exponent `exponent` (formats with byte
/// scales) or a half (the others; those around the largest weight) can have.
template <class F>
double min_error(const double* target, const double* weight, std::size_t size, const crumb::level_set& s,
                 [[maybe_unused]] int exponent) {
    double least = std::numeric_limits<double>::infinity(), most = 0;
    for (std::size_t i = 0; i < size; ++i)
        most = std::max(most, std::fabs(target[i]));
    const unsigned mask = (1u << s.selector_bits) - 1u;
    const auto attempt = [&](unsigned selector, double d) {
        least = std::min(least, min_error(target, weight, size, d, s.table(selector)));
    };
    if constexpr (F::scales::block_groups != 1) {
        for (int b = -127; b <= 127; ++b)
            attempt(static_cast<unsigned>(b) & mask, std::ldexp(double(b), exponent));
    } else {
        for (unsigned bits = 0; bits < 0x7c00; ++bits) {
            const double d = double{crumb::to_float(crumb::half{static_cast<std::uint16_t>(bits)})};
            if (bits == (bits & mask) || (d * 127 > 0.05 * most && d * 127 < 2 * most)) {
                attempt(bits & mask, d);
                attempt(bits & mask, -d);
            }
        }
    }
    return least;
}

template <class F>
struct Store {};
FORMAT_TEST_SUITE(Store, crumb_test::trained_formats);

FORMAT_TEST(Store, NoOtherCodesOrScalesAreBetterByTheStatedError) {
    using F = TypeParam;
    const problem p;
    const auto tables = spread_tables<F>();
    const auto levels = crumb::levels_of<F>(tables);
    for (const bool is_weighted : {false, true}) {
        const std::vector<float> importance = is_weighted ? p.importance : std::vector<float>();
        const auto q = crumb::quantize<F>(p.view(), tables, importance);
        ASSERT_TRUE(q.ok()) << q.message();
        ASSERT_EQ(q->codebooks, tables);
        const crumb::storage_view<F> stored = *q;
        ASSERT_EQ(stored.n, p.n);
        ASSERT_EQ(stored.k, p.k);

        // The length that a row lost without correction is what its target is stretched by.
        const auto plain = crumb::error_feedback::independent(p.k, importance, {.length_power = 0});
        ASSERT_TRUE(plain.ok()) << plain.message();
        auto first = crumb::leveled_matrix::zeros(levels, p.n, p.k);
        ASSERT_TRUE(plain->quantize(p.view(), first).ok());
        const auto weight = column_weights(importance, p.k);
        double chosen_sum = 0, min_sum = 0;
        for (std::size_t r = 0; r < p.n; ++r) {
            double ww = 0, wq = 0;
            for (std::size_t i = 0; i < p.k; ++i) {
                const double w = double{p.w[r * p.k + i]};
                ww += weight[i] * w * w;
                wq += weight[i] * w * double{first.weight(r, i)};
            }
            std::vector<double> target(p.k);
            for (std::size_t i = 0; i < p.k; ++i)
                target[i] = double{p.w[r * p.k + i]} * ww / wq;
            for (std::size_t g = 0; g < stored.groups(); ++g) {
                const std::size_t at = g * crumb::group_size, size = std::min(crumb::group_size, p.k - at);
                const auto scale = stored.scale(r, g);
                const unsigned selector = F::selector(stored.block(r, g), g % F::scales::block_groups);
                double chosen = 0;
                for (std::size_t i = at; i < at + size; ++i)
                    chosen += weight[i] * std::pow(target[i] - double{stored.weight(r, i)}, 2);
                // Single precision decides between levels that are as good as equally near.
                ASSERT_LE(chosen, min_error(target.data() + at, weight.data() + at, size,
                                            double{crumb::to_float(scale)}, levels.table(selector)) *
                                      (1 + 1e-4))
                    << F::name << " row " << r << " group " << g;
                int exponent = 0;
                if constexpr (F::scales::block_groups != 1)
                    exponent = int{scale.exponent} - 127;
                const double least =
                    min_error<F>(target.data() + at, weight.data() + at, size, levels, exponent);
                chosen_sum += chosen;
                min_sum += least;
            }
        }
        // Scales are searched for, not all tried: single groups may miss the best one, together they lose
        // little.
        EXPECT_LT(chosen_sum, 1.03 * min_sum) << F::name;
    }
}

FORMAT_TEST(Store, PackedWeightsAreThoseThatWereStored) {
    using F = TypeParam;
    const problem p;
    const auto q = crumb::quantize<F>(p.view(), spread_tables<F>(), p.importance);
    ASSERT_TRUE(q.ok()) << q.message();
    const crumb::storage_view<F> stored = *q;
    crumb_test::guarded<std::byte> memory(crumb::packed_bytes<F>(p.n, p.k));
    const auto packed = crumb::pack(stored, memory.span());
    ASSERT_TRUE(packed.ok()) << packed.message();
    for (std::size_t r = 0; r < p.n; ++r) {
        for (std::size_t i = 0; i < p.k; ++i) {
            const auto block = crumb::unpack(*packed, r, i / crumb::block_inputs<F>);
            const auto one = *crumb::storage<F>({&block, 1}, 1, crumb::block_inputs<F>, q->codebooks);
            ASSERT_EQ(one.weight(0, i % crumb::block_inputs<F>), stored.weight(r, i)) << r << ' ' << i;
        }
    }
}

template <class F>
bool same_blocks(const crumb::result<crumb::quantized<F>>& a, const crumb::result<crumb::quantized<F>>& b) {
    return a.ok() && b.ok() && a->blocks.size() == b->blocks.size() &&
           std::memcmp(a->blocks.data(), b->blocks.data(), a->blocks.size() * sizeof a->blocks[0]) == 0;
}

FORMAT_TEST(Store, ImportanceIsRelative) {
    using F = TypeParam;
    const problem p;
    const auto tables = spread_tables<F>();
    const auto q = crumb::quantize<F>(p.view(), tables, p.importance);
    const auto even = crumb::quantize<F>(p.view(), tables);
    EXPECT_FALSE(same_blocks(q, even));
    std::vector<float> scaled = p.importance;
    for (float& a : scaled)
        a *= 4096;
    EXPECT_TRUE(same_blocks(q, crumb::quantize<F>(p.view(), tables, scaled)));
    // Nothing counts more than anything else.
    for (const float all : {0.0f, -0.0f, 1.0f, 0.25f})
        EXPECT_TRUE(same_blocks(even, crumb::quantize<F>(p.view(), tables, std::vector<float>(p.k, all))))
            << all;
    const auto weight = column_weights(p.importance, p.k);
    const auto error = [&](const crumb::storage_view<F>& v) {
        double sum = 0;
        for (std::size_t i = 0; i < p.w.size(); ++i)
            sum += weight[i % p.k] * std::pow(double{p.w[i]} - double{v.weight(i / p.k, i % p.k)}, 2);
        return sum;
    };
    EXPECT_LT(error(*q), 0.9 * error(*even));
}

FORMAT_TEST(Store, RefusesWhatDoesNotFit) {
    using F = TypeParam;
    problem p;
    auto tables = spread_tables<F>();
    const auto code = [&](std::span<const std::int8_t> t, std::span<const float> importance = {}) {
        const auto q = crumb::quantize<F>(p.view(), t, importance);
        return q.ok() ? crumb::errc::ok : q.error().code();
    };
    using enum crumb::errc;
    EXPECT_EQ(code(tables), ok);
    EXPECT_EQ(code({}), invalid_argument);
    EXPECT_EQ(code(std::span(tables).first(tables.size() - 1)), invalid_argument);
    EXPECT_STREQ(crumb::quantize<F>(p.view(), {}).message(),
                 (std::string("format ") + F::name + " takes " + std::to_string(tables.size()) +
                  " codebook entries, got 0")
                     .c_str());
    for (const std::size_t size : {std::size_t{1}, p.k - 1, p.k + 1, p.w.size()})
        EXPECT_EQ(code(tables, std::vector<float>(size, 1.0f)), bad_shape) << size;
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -1.0f, -1e-30f}) {
        auto importance = p.importance;
        importance[p.k - 1] = bad;
        EXPECT_EQ(code(tables, importance), not_finite) << bad;
    }
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 65536.0f}) {
        const float good = std::exchange(p.w[p.k + 3], bad);
        EXPECT_EQ(code(tables), not_finite) << bad;
        p.w[p.k + 3] = good;
    }
    std::reverse(tables.begin(), tables.end());
    EXPECT_EQ(code(tables), invalid_argument);
}

TEST(StoreRounding, FormatsThatRoundByThemselvesDoJustThat) {
    const problem p;
    const auto q = crumb::quantize<crumb::q4_0>(p.view(), {}, p.importance);
    EXPECT_TRUE(same_blocks(q, crumb::quantize<crumb::q4_0>(p.view())));
}

} // namespace
} // namespace test_store
