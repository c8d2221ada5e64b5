// Training of codebooks, the search for scales, and error feedback.
#include <crumb/offline/common/second_moments.hpp>
#include <crumb/offline/weights/codebook.hpp>
#include <crumb/offline/weights/column_order.hpp>
#include <crumb/offline/weights/error_feedback.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace test_codebook_training {
namespace {

using crumb::level_set;
using crumb::leveled_matrix;
using crumb::scale_kind;

enum class shape { gauss, laplace };

std::vector<float> random_weights(std::size_t count, unsigned seed, shape s = shape::gauss) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> gauss;
    std::exponential_distribution<float> exponential;
    std::vector<float> w(count);
    for (float& x : w) {
        x = s == shape::gauss ? gauss(engine) : exponential(engine) * (engine() % 2 == 0 ? 1.0f : -1.0f);
        x *= 0.02f;
    }
    return w;
}

/// Rows of inputs that have much in common, as activations do.
std::vector<float> random_inputs(std::size_t rows, std::size_t k, unsigned seed) {
    const auto noise = random_weights(rows * k, seed), common = random_weights(rows * 4, seed + 1),
               direction = random_weights(4 * k, seed + 2);
    std::vector<float> x(rows * k);
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t i = 0; i < k; ++i) {
            x[r * k + i] = noise[r * k + i] * 20;
            for (std::size_t c = 0; c < 4; ++c)
                x[r * k + i] += common[r * 4 + c] * direction[c * k + i] * 1500;
        }
    return x;
}

crumb::second_moments<> moments(const std::vector<float>& x, std::size_t k) {
    crumb::second_moments m(k);
    EXPECT_TRUE(m.add(crumb::matrix(x.data(), x.size() / k, k)).ok());
    return m;
}

level_set trained(const std::vector<float>& w, std::size_t n, std::size_t k, crumb::training_options o = {}) {
    const crumb::training_matrix m{crumb::matrix(w.data(), n, k), {}};
    const auto r = crumb::train_codebooks({&m, 1}, o);
    EXPECT_TRUE(r.ok()) << r.message();
    return r->levels;
}

leveled_matrix quantized(const crumb::error_feedback& f, const level_set& levels, const std::vector<float>& w,
                         std::size_t n) {
    auto q = leveled_matrix::zeros(levels, n, f.k());
    const auto s = f.quantize(crumb::matrix(w.data(), n, f.k()), q);
    EXPECT_TRUE(s.ok()) << s.message();
    return q;
}

leveled_matrix rounded(const level_set& levels, const std::vector<float>& w, std::size_t n, std::size_t k) {
    return quantized(*crumb::error_feedback::independent(k, {}, {.length_power = 0}), levels, w, n);
}

double squared_error(const std::vector<float>& w, const leveled_matrix& q) {
    double sum = 0;
    for (std::size_t r = 0; r < q.n; ++r)
        for (std::size_t i = 0; i < q.k; ++i)
            sum += std::pow(double{w[r * q.k + i]} - double{q.weight(r, i)}, 2);
    return sum;
}

/// What every result has to keep: scales whose low bits select, exact exponents, indices in range.
void expect_valid(const leveled_matrix& q) {
    for (const std::uint8_t i : q.index)
        ASSERT_LT(i, q.levels.entries);
    for (std::size_t r = 0; r < q.n; ++r) {
        for (std::size_t g = 0; g < q.groups(); ++g) {
            ASSERT_TRUE(std::isfinite(q.d(r, g)));
            ASSERT_LT(q.selector(r, g), q.levels.tables());
            if (q.levels.scales == scale_kind::byte) {
                ASSERT_GT(static_cast<std::int8_t>(q.scale[r * q.groups() + g]), -128);
            }
        }
    }
}

void expect_int8_tables(const level_set& s) {
    ASSERT_TRUE(crumb::check_levels(s).ok());
    for (std::size_t t = 0; t < s.tables(); ++t)
        EXPECT_EQ(std::max(std::abs(int{s.table(t).front()}), std::abs(int{s.table(t).back()})),
                  s.entries <= 4 ? 31 : 127)
            << t;
}

constexpr std::size_t entry_counts[] = {4, 8, 16};

// ---- scales ---------------------------------------------------------------------------------------------

TEST(LevelSet, HalfScalesCarryTheSelector) {
    for (const float d : {0.0f, 1e-7f, 0.0123f, -0.5f, -3.75f, 1000.0f, 65504.0f, -1e9f}) {
        for (unsigned s = 0; s < 4; ++s) {
            const auto q = crumb::nearest_half_scale(d, s, 2);
            EXPECT_EQ(q.bits & 3u, s);
            EXPECT_EQ(crumb::to_float(crumb::half{q.bits}), q.d);
            EXPECT_TRUE(std::isfinite(q.d));
            // No half of the same selector is nearer.
            for (const int step : {-4, 4}) {
                const crumb::half other{static_cast<std::uint16_t>(q.bits + step)};
                if ((other.bits & 0x8000u) == (q.bits & 0x8000u) && crumb::is_finite(other)) {
                    EXPECT_GE(std::fabs(crumb::to_float(other) - d), std::fabs(q.d - d)) << d;
                }
            }
        }
    }
}

TEST(LevelSet, ByteScalesCarryTheSelector) {
    const auto& functions =
        crumb::dispatch::functions_at<crumb::dispatch::weight_functions>(crumb::isa_index("portable"));
    for (unsigned bits = 0; bits <= 2; ++bits) {
        level_set levels;
        levels.entries = 4;
        levels.selector_bits = bits;
        levels.scales = crumb::scale_kind::byte;
        for (std::size_t i = 0; i < levels.entries * levels.tables(); ++i)
            levels.levels[i] = static_cast<std::int8_t>(2 * static_cast<int>(i % levels.entries) - 3);
        const crumb::group_search search(levels, functions);
        const crumb::group_search::block_grid grid(-9);
        for (unsigned s = 0; s < (1u << bits); ++s) {
            for (float b = -140; b <= 140; b += 0.37f) {
                const auto q = search.snap(std::ldexp(b, -9), s, grid);
                const int stored = static_cast<std::int8_t>(q.bits);
                EXPECT_EQ(static_cast<unsigned>(stored) & ((1u << bits) - 1u), s);
                EXPECT_LE(std::abs(stored), 127);
                EXPECT_EQ(q.d, std::ldexp(static_cast<float>(stored), -9));
                if (std::fabs(b) < 120) {
                    EXPECT_LE(std::fabs(static_cast<float>(stored) - b),
                              std::ldexp(0.5f, static_cast<int>(bits)));
                }
            }
        }
    }
}

// ---- training -------------------------------------------------------------------------------------------

TEST(Codebook, TablesAreInt8AndErrorsFall) {
    for (const std::size_t entries : entry_counts) {
        for (unsigned bits = 0; bits <= 2; ++bits) {
            const auto w = random_weights(64 * 256, 1, shape::laplace);
            const crumb::training_matrix m{crumb::matrix(w.data(), 64, 256), {}};
            std::size_t calls = 0;
            crumb::training_options o{.entries = entries, .selector_bits = bits};
            o.progress = [&](std::size_t done, std::size_t all) {
                EXPECT_LE(done, all);
                ++calls;
            };
            const auto r = crumb::train_codebooks({&m, 1}, o);
            ASSERT_TRUE(r.ok()) << r.message();
            EXPECT_EQ(r->levels.entries, entries);
            EXPECT_EQ(r->levels.tables(), std::size_t{1} << bits);
            expect_int8_tables(r->levels);
            EXPECT_GT(calls, 0u);
            ASSERT_GT(r->errors.size(), 1u);
            for (std::size_t i = 1; i < r->errors.size(); ++i)
                EXPECT_LT(r->errors[i], r->errors[i - 1]);
        }
    }
}

TEST(Codebook, SameSeedSameTables) {
    const auto w = random_weights(256 * 256, 2);
    crumb::training_options o;
    o.max_groups = 500;
    EXPECT_EQ(trained(w, 256, 256, o), trained(w, 256, 256, o));
    const auto first = trained(w, 256, 256, o);
    o.seed = 2;
    EXPECT_NE(first, trained(w, 256, 256, o));
}

TEST(Codebook, BeatsUniformLevelsOnLaplacianWeights) {
    const auto w = random_weights(64 * 256, 3, shape::laplace);
    const double uniform = squared_error(w, rounded(crumb::uniform_levels(-3, 2, 4), w, 64, 256));
    const double one = squared_error(w, rounded(trained(w, 64, 256, {.selector_bits = 0}), w, 64, 256));
    const double four = squared_error(w, rounded(trained(w, 64, 256), w, 64, 256));
    EXPECT_LT(one, 0.9 * uniform);
    EXPECT_LT(four, 0.9 * one);
}

/// Tables that groups are drawn from: sums of cubes are positive, as training orients groups.
constexpr std::int8_t planted_tables[4][4] = {
    {-40, 10, 60, 127}, {-110, -20, 30, 127}, {-20, -5, 8, 127}, {-90, -80, 70, 127}};

/// Groups in turn of the four tables, of scales of either sign: every level equally often, in random order,
/// with noise of `deviation` of the scale times 127.
std::vector<float> planted_weights(std::size_t groups, float deviation, unsigned seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> gauss;
    std::vector<float> w;
    for (std::size_t g = 0; g < groups; ++g) {
        std::array<std::size_t, 32> index;
        for (std::size_t i = 0; i < index.size(); ++i)
            index[i] = i % 4;
        std::shuffle(index.begin(), index.end(), engine);
        const float d = std::exp(gauss(engine)) * 1e-4f * (engine() % 2 == 0 ? 1.0f : -1.0f);
        for (const std::size_t i : index)
            w.push_back(d * (planted_tables[g % 4][i] + 127 * deviation * gauss(engine)));
    }
    return w;
}

// Groups of one shape are one cluster, before any table is fitted to its groups by their errors.
TEST(Codebook, PhaseOneFindsPlantedShapes) {
    constexpr std::size_t groups = 256;
    for (const unsigned seed : {1u, 2u, 3u, 4u}) {
        const auto w = planted_weights(groups, 0.01f, seed);
        const level_set s = trained(w, groups, 32, {.max_rounds = 0, .seed = seed});
        const auto q = rounded(s, w, groups, 32);
        std::array<unsigned, 4> selector;
        for (std::size_t t = 0; t < 4; ++t)
            selector[t] = q.selector(t, 0);
        for (std::size_t g = 0; g < groups; ++g)
            ASSERT_EQ(q.selector(g, 0), selector[g % 4]) << "group " << g << ", seed " << seed;
        std::sort(selector.begin(), selector.end());
        EXPECT_EQ(selector, (std::array<unsigned, 4>{0, 1, 2, 3})) << "seed " << seed;
    }
}

// Levels that lie on the grid of signed bytes are found to half a step of the grid of tables.
TEST(Codebook, FindsPlantedTables) {
    constexpr std::size_t groups = 512;
    level_set planted;
    planted.entries = 4;
    planted.selector_bits = 2;
    planted.scales = scale_kind::half;
    for (std::size_t t = 0; t < 4; ++t)
        std::copy(planted_tables[t], planted_tables[t] + 4,
                  planted.levels.begin() + static_cast<std::ptrdiff_t>(4 * t));
    for (const unsigned seed : {1u, 2u, 3u}) {
        const auto w = planted_weights(groups, 0.02f, seed);
        double all = 0;
        for (const float x : w)
            all += double{x} * double{x};
        const double best = squared_error(w, rounded(planted, w, groups, 32));
        for (const int largest : {31, 127}) {
            const level_set s = trained(w, groups, 32, {.largest = largest, .seed = seed});
            EXPECT_LE(squared_error(w, rounded(s, w, groups, 32)), best + all / (4.0 * largest * largest))
                << "seed " << seed << ", largest " << largest;
        }
    }
}

TEST(Codebook, ImportantColumnsCountMore) {
    auto w = random_weights(128 * 64, 4);
    for (std::size_t r = 0; r < 128; ++r) // half of the columns have two values only
        for (std::size_t i = 0; i < 64; i += 2)
            w[r * 64 + i] = w[r * 64 + i] > 0 ? 0.04f : -0.01f;
    std::vector<float> importance(64, 1e-4f);
    for (std::size_t i = 0; i < 64; i += 2)
        importance[i] = 1;
    const crumb::training_matrix m{crumb::matrix(w.data(), 128, 64), importance};
    const auto r = crumb::train_codebooks({&m, 1}, {.selector_bits = 0});
    ASSERT_TRUE(r.ok());
    EXPECT_LT(r->errors.back(), 1e-3);
}

TEST(Codebook, RefusesWhatItCannotTrainOn) {
    auto w = random_weights(4 * 64, 5);
    const crumb::training_matrix m{crumb::matrix(w.data(), 4, 64), {}};
    EXPECT_EQ(crumb::train_codebooks({&m, 1}, {.entries = 1}).error().code(), crumb::errc::invalid_argument);
    EXPECT_EQ(crumb::train_codebooks({&m, 1}, {.entries = 17}).error().code(), crumb::errc::invalid_argument);
    for (const int largest : {-31, 1, 128})
        EXPECT_EQ(crumb::train_codebooks({&m, 1}, {.largest = largest}).error().code(),
                  crumb::errc::invalid_argument)
            << largest;
    const std::vector<float> importance(63, 1.0f);
    const crumb::training_matrix narrow{m.w, importance};
    EXPECT_EQ(crumb::train_codebooks({&narrow, 1}).error().code(), crumb::errc::bad_shape);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        w[77] = bad;
        EXPECT_EQ(crumb::train_codebooks({&m, 1}).error().code(), crumb::errc::not_finite);
    }
}

TEST(Codebook, SamplesOfOneMatrixAfterAnotherAreThoseOfAll) {
    const auto a = random_weights(128 * 64, 5), b = random_weights(64 * 96, 6);
    const crumb::training_matrix all[] = {{crumb::matrix(a.data(), 128, 64), {}},
                                          {crumb::matrix(b.data(), 64, 96), {}}};
    const std::size_t groups = 128 * 2 + 64 * 3;
    for (const std::size_t max : {groups / 3, groups}) {
        crumb::group_sampler sampler(groups, max, 1);
        for (const auto& m : all)
            ASSERT_TRUE(sampler.add(m).ok());
        EXPECT_EQ(sampler.add(all[0]).code(), crumb::errc::invalid_argument) << "none were left";
        const auto samples = std::move(sampler).finish();
        EXPECT_EQ(samples.groups.size(), max);
        const auto one = crumb::train_codebooks(samples),
                   together = crumb::train_codebooks(all, {.max_groups = max});
        ASSERT_TRUE(one.ok() && together.ok());
        EXPECT_EQ(one->levels.levels, together->levels.levels);
        EXPECT_EQ(one->errors, together->errors);
    }
}

TEST(Codebook, DegenerateMatrices) {
    for (const std::size_t entries : entry_counts) {
        const crumb::training_options o{.entries = entries, .selector_bits = 1};
        expect_int8_tables(trained(std::vector<float>(8 * 96), 8, 96, o)); // zeros
        expect_int8_tables(trained(std::vector<float>(8 * 96, 0.25f), 8, 96, o));
        expect_int8_tables(trained(random_weights(32, 6), 1, 32, o)); // one group
        expect_int8_tables(trained(random_weights(3 * 5, 7), 3, 5, o));
        const auto none = crumb::train_codebooks({}, o);
        ASSERT_TRUE(none.ok());
        expect_int8_tables(none->levels);
    }
}

// ---- the order of columns -------------------------------------------------------------------------------

TEST(ColumnOrder, KeepsGroupsAndBlocksTogether) {
    for (const std::size_t k : {1u, 31u, 32u, 33u, 256u, 300u, 512u, 530u}) {
        std::vector<double> energy(k);
        for (std::size_t i = 0; i < k; ++i)
            energy[i] = static_cast<double>(i * 7919 % 101); // ties among them
        const auto by_energy = crumb::column_order::by_energy(energy),
                   plain = crumb::column_order::ascending(k);
        for (const auto* order : {&by_energy, &plain}) {
            ASSERT_EQ(order->k, k);
            ASSERT_EQ(order->at.size(), (k + 31) / 32 * 32);
            ASSERT_EQ(order->group_at.size(), (k + 31) / 32);
            std::vector<int> seen(k);
            for (std::size_t i = 0; i < order->at.size(); ++i) {
                const std::size_t column = order->at[i];
                if (column == k)
                    continue;
                ++seen.at(column);
                EXPECT_EQ(column / 32, order->group_at[i / 32]);
            }
            EXPECT_EQ(seen, std::vector<int>(k, 1));
            std::size_t position = 0;
            for (const auto& part : order->parts) {
                EXPECT_EQ(part.first, position);
                for (std::size_t g = 0; g < part.groups; ++g)
                    EXPECT_EQ(order->group_at[position / 32 + g] / 8, part.block);
                position += part.groups * 32;
            }
            EXPECT_EQ(position, order->at.size());
        }
        for (std::size_t i = 0; i < k; ++i)
            EXPECT_EQ(plain.at[i], i);
        const auto mean = [&](std::size_t first, std::size_t size) {
            double sum = 0;
            for (std::size_t i = first; i < std::min(k, first + size); ++i)
                sum += energy[i];
            return sum / static_cast<double>(std::min(k, first + size) - first);
        };
        const auto& o = by_energy;
        for (std::size_t p = 1; p < o.parts.size(); ++p)
            EXPECT_GE(mean(o.parts[p - 1].block * 256, 256), mean(o.parts[p].block * 256, 256));
        for (const auto& part : o.parts)
            for (std::size_t g = part.first / 32 + 1; g < part.first / 32 + part.groups; ++g)
                EXPECT_GE(mean(o.group_at[g - 1] * 32, 32), mean(o.group_at[g] * 32, 32));
        for (std::size_t i = 1; i < o.at.size(); ++i) {
            if (i % 32 == 0 || o.at[i] == k)
                continue;
            const double before = energy[o.at[i - 1]], here = energy[o.at[i]];
            EXPECT_TRUE(before > here || (before == here && o.at[i - 1] < o.at[i]));
        }
    }
}

// ---- quantization ---------------------------------------------------------------------------------------

TEST(ErrorFeedback, ZeroAndConstantGroups) {
    for (const scale_kind kind : {scale_kind::half, scale_kind::byte}) {
        level_set s = trained(random_weights(16 * 256, 8), 16, 256);
        s.scales = kind;
        std::vector<float> w(4 * 320);
        EXPECT_EQ(squared_error(w, rounded(s, w, 4, 320)), 0.0);
        for (std::size_t i = 0; i < w.size(); ++i) // constants of either sign, a group of zeros among them
            w[i] = i / 32 % 3 == 0 ? 0.0f : i / 32 % 3 == 1 ? 0.03f : -0.02f;
        const auto q = rounded(s, w, 4, 320);
        expect_valid(q);
        for (std::size_t i = 0; i < w.size(); ++i)
            EXPECT_NEAR(q.weight(i / 320, i % 320), w[i], 0.02 * std::fabs(w[i]));
    }
}

TEST(ErrorFeedback, AnyWidth) {
    for (const std::size_t k : {1u, 31u, 32u, 33u, 100u, 256u, 300u, 520u}) {
        const auto w = random_weights(5 * k, 9);
        const auto h = moments(random_inputs(600, k, 10), k).matrix();
        const auto f = crumb::error_feedback::make(crumb::matrix(h.data(), k, k));
        ASSERT_TRUE(f.ok()) << f.message();
        for (const scale_kind kind : {scale_kind::half, scale_kind::byte}) {
            level_set s = trained(w, 5, k, {.selector_bits = 1});
            s.scales = kind;
            const auto q = quantized(*f, s, w, 5);
            expect_valid(q);
            EXPECT_EQ(q.exponent.size(), kind == scale_kind::byte ? 5 * ((k + 255) / 256) : 0);
            EXPECT_LT(squared_error(w, q), squared_error(w, leveled_matrix::zeros(s, 5, k)));
        }
    }
}

TEST(ErrorFeedback, BeatsRoundingInEveryFormat) {
    constexpr std::size_t n = 24, k = 288;
    const auto w = random_weights(n * k, 11, shape::laplace);
    const auto h = moments(random_inputs(2000, k, 12), k).matrix();
    std::vector<level_set> sets = {crumb::uniform_levels(-8, 1, 16), crumb::uniform_levels(-127, 1, 255),
                                   crumb::uniform_levels(-3, 2, 4), trained(w, n, k)};
    sets.push_back(sets.back());
    sets.back().scales = scale_kind::byte;
    sets.push_back(trained(w, n, k, {.entries = 8, .selector_bits = 1, .scales = scale_kind::byte}));
    for (const level_set& s : sets) {
        const auto total = [&](const leveled_matrix& q, const crumb::error_feedback& f) {
            double sum = 0;
            for (std::size_t r = 0; r < n; ++r)
                sum += f.error(w.data() + r * k, q, r);
            return sum;
        };
        const auto make = [&](crumb::feedback_options o) {
            return *crumb::error_feedback::make(crumb::matrix(h.data(), k, k), o);
        };
        const auto plain = make({.sweeps = 0, .length_power = 0});
        const double feedback = total(quantized(plain, s, w, n), plain);
        EXPECT_LT(feedback, 0.8 * total(rounded(s, w, n, k), plain)) << s.entries;
        // Every sweep helps or changes nothing.
        const double swept = total(quantized(make({.sweeps = 1, .length_power = 0}), s, w, n), plain);
        EXPECT_LE(swept, feedback * 1.0001) << s.entries;
        EXPECT_LE(total(quantized(make({.sweeps = 3, .length_power = 0}), s, w, n), plain), swept * 1.0001);
    }
}

// Channels of large inputs, as models have them, get the exacter weights: their errors weigh the squares of
// the inputs.
TEST(ErrorFeedback, OutlierChannelsComeFirst) {
    constexpr std::size_t n = 24, k = 288, outliers[] = {5, 131, 132, 287};
    const auto w = random_weights(n * k, 13);
    auto x = random_inputs(2000, k, 14);
    for (std::size_t r = 0; r < x.size(); r += k)
        for (const std::size_t c : outliers)
            x[r + c] *= 50;
    const auto h = moments(x, k).matrix();
    for (const level_set& s : {crumb::uniform_levels(-8, 1, 16), trained(w, n, k)}) {
        const auto f = *crumb::error_feedback::make(crumb::matrix(h.data(), k, k), {.length_power = 0});
        const auto q = quantized(f, s, w, n), even = rounded(s, w, n, k);
        double of_outliers = 0, of_all = squared_error(w, q), with = 0, without = 0;
        for (std::size_t r = 0; r < n; ++r) {
            with += f.error(w.data() + r * k, q, r);
            without += f.error(w.data() + r * k, even, r);
            for (const std::size_t c : outliers)
                of_outliers += std::pow(double{w[r * k + c]} - double{q.weight(r, c)}, 2);
        }
        EXPECT_LT(with, without) << s.entries;
        EXPECT_LT(of_outliers / std::size(outliers), of_all / k) << s.entries;
    }
}

TEST(ErrorFeedback, RangesOfRowsDoNotMatter) {
    constexpr std::size_t n = 70, k = 96;
    const auto w = random_weights(n * k, 13);
    const auto h = moments(random_inputs(500, k, 14), k).matrix();
    const auto f = crumb::error_feedback::make(crumb::matrix(h.data(), k, k));
    ASSERT_TRUE(f.ok());
    const level_set s = trained(w, n, k);
    const auto all = quantized(*f, s, w, n);
    auto parts = leveled_matrix::zeros(s, n, k);
    for (std::size_t p = 0; p < 3; ++p)
        ASSERT_TRUE(f->quantize(crumb::matrix(w.data(), n, k), parts, crumb::split(n, 3, p)).ok());
    EXPECT_EQ(all.index, parts.index);
    EXPECT_EQ(all.scale, parts.scale);
}

TEST(ErrorFeedback, GivesTheLengthBack) {
    constexpr std::size_t n = 32, k = 256;
    const auto w = random_weights(n * k, 15);
    const level_set s = trained(w, n, k);
    const auto projection = [&](double power) { // <w, q> / <w, w>
        const auto q =
            quantized(*crumb::error_feedback::independent(k, {}, {.length_power = power}), s, w, n);
        double ww = 0, wq = 0;
        for (std::size_t i = 0; i < w.size(); ++i) {
            ww += double{w[i]} * double{w[i]};
            wq += double{w[i]} * double{q.weight(i / k, i % k)};
        }
        return wq / ww;
    };
    EXPECT_LT(projection(0), 0.97);
    EXPECT_NEAR(projection(1), 1.0, 0.01);
}

TEST(ErrorFeedback, RefusesBadInput) {
    constexpr std::size_t k = 64;
    auto h = moments(random_inputs(300, k, 16), k).matrix();
    const level_set s = crumb::uniform_levels(-8, 1, 16);
    auto f = crumb::error_feedback::make(crumb::matrix(h.data(), k, k));
    ASSERT_TRUE(f.ok());
    auto w = random_weights(4 * k, 17);
    auto q = leveled_matrix::zeros(s, 4, k);
    EXPECT_EQ(f->quantize(crumb::matrix(w.data(), 2, 2 * k), q).code(), crumb::errc::bad_shape);
    level_set twice = s;
    twice.levels[3] = twice.levels[2];
    auto wrong = leveled_matrix::zeros(twice, 4, k);
    EXPECT_EQ(f->quantize(crumb::matrix(w.data(), 4, k), wrong).code(), crumb::errc::invalid_argument);
    w[100] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(f->quantize(crumb::matrix(w.data(), 4, k), q).code(), crumb::errc::not_finite);
    EXPECT_EQ(crumb::error_feedback::make(crumb::matrix(h.data(), k, k / 2, k)).error().code(),
              crumb::errc::bad_shape);
    h(3, 3) = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(crumb::error_feedback::make(crumb::matrix(h.data(), k, k)).error().code(),
              crumb::errc::not_finite);
    h(3, 3) = 0;
    h(3, 2) = h(2, 3) = 1e9; // not positive definite
    EXPECT_EQ(crumb::error_feedback::make(crumb::matrix(h.data(), k, k)).error().code(),
              crumb::errc::invalid_argument);
    const std::vector<float> negative(k, -1.0f);
    EXPECT_EQ(crumb::error_feedback::independent(k, negative).error().code(), crumb::errc::not_finite);
}

TEST(ErrorFeedback, SilentInputs) { // H of zeros, and columns that never fire
    constexpr std::size_t k = 64;
    const auto w = random_weights(4 * k, 18);
    Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> h =
        moments(random_inputs(300, k, 19), k).matrix();
    h.row(7).setZero();
    h.col(7).setZero();
    for (int zeros = 0; zeros < 2; ++zeros) {
        const auto f = crumb::error_feedback::make(crumb::matrix<const double>(h.data(), k, k));
        ASSERT_TRUE(f.ok()) << f.message();
        const auto q = quantized(*f, crumb::uniform_levels(-8, 1, 16), w, 4);
        expect_valid(q);
        EXPECT_LT(squared_error(w, q), 0.05 * squared_error(w, leveled_matrix::zeros(q.levels, 4, k)));
        h.setZero();
    }
}

// ---- second moments -------------------------------------------------------------------------------------

TEST(SecondMoments, AreSumsOfProducts) {
    constexpr std::size_t k = 37, rows = 700;
    const auto x = random_inputs(rows, k, 20);
    crumb::second_moments m(k);
    ASSERT_TRUE(m.add(crumb::matrix(x.data(), 650, k)).ok());
    ASSERT_TRUE(m.add(crumb::matrix(x.data() + 650 * k, 50, k)).ok());
    EXPECT_EQ(m.rows(), rows);
    const auto h = m.matrix();
    for (std::size_t i = 0; i < k; ++i) {
        for (std::size_t j = 0; j < k; ++j) {
            double sum = 0, magnitude = 0;
            for (std::size_t r = 0; r < rows; ++r) {
                sum += double{x[r * k + i]} * double{x[r * k + j]};
                magnitude += std::fabs(double{x[r * k + i]} * double{x[r * k + j]});
            }
            // A product and up to 512 additions in floats.
            EXPECT_NEAR(h(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(j)), sum,
                        514 * 0x1p-24 * magnitude);
            if (i == j) {
                EXPECT_NEAR(m.importance()[i], sum / rows, 1e-5 * sum / rows);
            }
        }
    }
    const float bad[k] = {std::numeric_limits<float>::quiet_NaN()};
    EXPECT_EQ(m.add(crumb::matrix(bad, 1, k)).code(), crumb::errc::not_finite);
    EXPECT_EQ(m.add(crumb::matrix(x.data(), 2, k - 1)).code(), crumb::errc::bad_shape);
    EXPECT_EQ(m.rows(), rows);
}

} // namespace
} // namespace test_codebook_training
