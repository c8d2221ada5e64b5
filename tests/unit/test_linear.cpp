#include "format_test.hpp"
#include "guarded.hpp"
#include "isa_test.hpp"
#include "linear_problem.hpp"
#include "random_numbers.hpp"

#include <crumb/crumb.hpp>
#include <crumb/kernel/linear/definitions.hpp>
#include <crumb/offline/weights/quantize.hpp>
#include <crumb/reference/linear.hpp>

#include <five_bits.hpp> // the format that docs/add-a-format.md adds

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace test_linear {
namespace {

using crumb::range;
using crumb_test::for_each_isa;
using crumb_test::guarded;
using crumb_test::normal_numbers;
using crumb_test::tested_isa;

template <class F>
using problem = crumb_test::linear_problem<F>;

/// Runs, without a bias and with one, and compares with the exact result for the quantized operands: single
/// precision may differ by its roundings, one per group in the sum, one in the product of the scales, one
/// each for factor and bias.
template <class F>
void check(const problem<F>& p, const tested_isa& isa) {
    const std::size_t n = p.n, k = p.k, m = p.m;
    const auto plain = p.plan(isa.name, false), biased = p.plan(isa.name, true);
    const auto a = p.quantize(plain);
    guarded<float> y(m * n), y_biased(m * n);
    plain.run(a.rows, crumb::matrix(y.data(), m, n));
    biased.run(a.rows, crumb::matrix(y_biased.data(), m, n));
    const crumb::reference::activation_view input{a.rows.layout(), a.rows.codes(), a.rows.scales(), m};
    const double eps = std::ldexp(1.0, -24) * (isa.fuses ? 1 : 2);
    for (std::size_t r = 0; r < m; ++r) {
        for (std::size_t i = 0; i < n; ++i) {
            const auto exact = crumb::reference::linear(p.stored.view(), i, input, r);
            const double in_sum = double(crumb::reference::roundings<F>(k)) * eps * exact.magnitude;
            for (const bool with_bias : {false, true}) {
                const double want = exact.value + (with_bias ? double{p.bias[i]} : 0.0);
                ASSERT_NEAR(double{(with_bias ? y_biased : y)[r * n + i]}, want,
                            in_sum + eps * std::fabs(want))
                    << F::name << ' ' << isa.name << " n " << n << " k " << k << " m " << m << " row " << r
                    << " channel " << i << (with_bias ? ", with bias" : "");
            }
        }
    }
}

template <class F>
struct Linear {};
using formats = crumb_test::types_of<crumb::format_list, crumb::record_format_list, crumb::variant_list,
                                     crumb::type_list<mine::five_bits>>;
FORMAT_TEST_SUITE(Linear, formats);

FORMAT_TEST(Linear, MatchesTheReferenceOnEveryIsaAndShape) {
    for (std::size_t n : {1, 4, 15, 16, 17, 50}) {
        for (std::size_t k : {1, 31, 32, 33, 64, 200}) {
            for (std::size_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24, 31, 33}) {
                if (n * k > 3000 && m % 3 == 1 && m > 4)
                    continue;
                const problem<TypeParam> p(n, k, m, unsigned(n + k * 100 + m * 10000));
                for_each_isa([&](const tested_isa& isa) { check(p, isa); });
            }
        }
    }
}

FORMAT_TEST(Linear, LargeShape) {
    const problem<TypeParam> p(100, 4096, 19, 1);
    for_each_isa([&](const tested_isa& isa) { check(p, isa); });
}

FORMAT_TEST(Linear, EmptyShapesDoNothing) {
    for (const auto& [n, k, m] :
         {std::array<std::size_t, 3>{0, 64, 3}, {16, 0, 2}, {48, 0, 33}, {16, 64, 0}, {0, 0, 0}}) {
        const problem<TypeParam> p(n, k, m, 1);
        const bool without_inputs = k == 0;
        for_each_isa([&](const tested_isa& isa) {
            for (float y : p.run(isa.name, true))
                EXPECT_TRUE(without_inputs && std::isfinite(y));
            if (without_inputs)
                check(p, isa);
        });
    }
}

// Codes at the ends of their range with activations at theirs: the largest integer sums there are.
template <class Scales>
std::vector<typename Scales::value> extreme_scales() {
    using value = typename Scales::value;
    if constexpr (std::is_same_v<value, crumb::half>)
        return {{0}, {1}, {0x3c00}, {0x7bff}, {0x8001}};
    else if constexpr (std::is_same_v<value, crumb::block_scale>)
        return {{0, 5}, {1, 1}, {127, 0}, {127, -128}, {200, 127}, {240, 1}, {240, -128}};
    else if constexpr (std::is_same_v<value, crumb::half_multiple>)
        return {{{0}, 5}, {{1}, 1}, {{0x3c00}, 0}, {{0x7bff}, -128}, {{0xfbff}, 127}, {{0x7bff}, 63}};
    else if constexpr (std::is_same_v<value, crumb::e8m0>)
        return {{0}, {1}, {127}, {252}};
    else
        return {{0}, {1}, {0x7e}};
}
FORMAT_TEST(Linear, ExtremeCodesAndScalesAreExact) {
    constexpr bool indexed = crumb::codebook_entries<TypeParam> != 0;
    // One sum alone is not rounded: of formats with records, minima are another.
    constexpr bool exactly = !crumb::has_records<TypeParam>;
    constexpr auto range = crumb_test::code_range<TypeParam>();
    for (const int value : {indexed ? -128 : range.first, indexed ? 127 : range.second}) {
        for (const float sign : {-1.0f, 1.0f}) {
            for (const auto scale : extreme_scales<typename TypeParam::scales>()) {
                problem<TypeParam> p(18, 64, 3, 2);
                p.fill(value, scale);
                // The largest scales would leave the range of float.
                const float x = std::fabs(crumb::to_float(scale)) > 1e30f ? 1e-7f : 127.0f;
                std::fill(p.x.begin(), p.x.end(), sign * x);
                const auto a = p.quantize(p.plan("portable"));
                const crumb::reference::activation_view input{a.rows.layout(), a.rows.codes(),
                                                              a.rows.scales(), 3};
                const auto product = crumb::reference::linear(p.stored.view(), 0, input, 0);
                const double exact = product.value;
                const double bound =
                    exactly
                        ? std::ldexp(std::fabs(exact), -22)
                        : std::ldexp(double(crumb::reference::roundings<TypeParam>(64)) * product.magnitude,
                                     -23);
                for_each_isa([&](const tested_isa& isa) {
                    for (float y : p.run(isa.name)) {
                        if (exactly && x == 127.0f)
                            ASSERT_EQ(double{y}, double{static_cast<float>(exact)})
                                << isa.name << ' ' << value << ' ' << crumb::to_float(scale);
                        else
                            ASSERT_NEAR(double{y}, exact, bound)
                                << isa.name << ' ' << value << ' ' << crumb::to_float(scale);
                    }
                });
            }
        }
    }
}

// One output is one sequence of roundings: neither the number of rows nor the split into parts changes a bit.
FORMAT_TEST(Linear, ResultsDoNotDependOnRowsOrSplit) {
    const problem<TypeParam> all(45, 300, 37, 3);
    for_each_isa([&](const tested_isa& isa) {
        const auto whole = all.run(isa.name);
        for (std::size_t r : {0, 1, 8, 16, 36}) {
            problem<TypeParam> one(45, 300, 1, 3);
            one.stored = all.stored;
            one.pack();
            std::copy_n(all.x.begin() + std::ptrdiff_t(r * 300), 300, one.x.begin());
            const auto y = one.run(isa.name);
            ASSERT_EQ(std::memcmp(y.data(), whole.data() + r * 45, 45 * sizeof(float)), 0)
                << isa.name << ' ' << r;
        }
        const auto plan =
            crumb::linear<TypeParam>::plan(all.packed, {.codebooks = all.stored.codebooks}, {isa.name});
        const auto a = all.quantize(*plan);
        std::mt19937 random(4);
        for (int i = 0; i < 60; ++i) {
            const std::size_t stride = 45 + random() % 5;
            std::vector<float> y(37 * stride, -7.0f);
            range rows = crumb_test::part_of(37, random(), random()),
                  channels = crumb_test::part_of(45, random(), random());
            plan->run(a.rows, crumb::matrix(y.data(), 37, 45, stride), {.rows = rows, .channels = channels});
            for (std::size_t r = 0; r < 37; ++r) {
                for (std::size_t c = 0; c < stride; ++c) {
                    const bool inside =
                        r >= rows.begin && r < rows.end && c >= channels.begin && c < channels.end && c < 45;
                    ASSERT_EQ(y[r * stride + c], inside ? whole[r * 45 + c] : -7.0f)
                        << isa.name << ' ' << r << ' ' << c;
                }
            }
        }
    });
}

FORMAT_TEST(Linear, IsasWithFusedMultiplyAddAgreeBitForBit) {
    const problem<TypeParam> p(33, 256, 11, 5);
    std::vector<float> first;
    for_each_isa([&](const tested_isa& isa) {
        if (!isa.fuses)
            return;
        const auto y = p.run(isa.name);
        if (first.empty())
            first = y;
        ASSERT_EQ(std::memcmp(y.data(), first.data(), y.size() * sizeof(float)), 0) << isa.name;
    });
}

/// Half of every scale of a block; selectors, which are its low bits, stay.
template <class Block>
void halve(Block& b) {
    if constexpr (requires { b.exponent; })
        b.exponent = static_cast<std::uint8_t>(b.exponent - 1);
    else
        b.d.bits = static_cast<std::uint16_t>(b.d.bits - 0x400);
}
template <class F>
struct Codebooks {};
FORMAT_TEST_SUITE(Codebooks, crumb_test::trained_formats);

// ISAs may multiply entries of 6 bits in another way than others: twice the entries and half the scales are
// the same weights, sums and roundings.
FORMAT_TEST(Codebooks, NarrowEntriesGiveTheBitsOfOthers) {
    for (const auto& [n, k, m] :
         {std::array<std::size_t, 3>{1, 31, 1}, {50, 200, 1}, {33, 256, 2}, {45, 300, 5}, {100, 1024, 19}}) {
        problem<TypeParam> narrow(n, k, m, unsigned(n + k * 100 + m));
        for (std::size_t i = 0; i < narrow.stored.codebooks.size(); ++i)
            narrow.stored.codebooks[i] = i % 7 == 0   ? std::int8_t(-32)
                                         : i % 7 == 1 ? std::int8_t(31)
                                                      : std::int8_t(int(i) * 37 % 64 - 32);
        for (auto& b : narrow.stored.blocks)
            if constexpr (requires { b.d; }) // one whose half is a normal number
                b.d.bits = static_cast<std::uint16_t>((b.d.bits & 0x83ffu) | 0x2c00u);
        for (std::size_t i = 0; i < std::min<std::size_t>(k, 32); ++i)
            narrow.x[i] = i % 2 != 0 ? 3.0f : -3.0f; // codes of 127, so that the largest sums there are
        narrow.pack();
        problem<TypeParam> wide = problem<TypeParam>(n, k, m, 1);
        wide.x = narrow.x;
        wide.stored = narrow.stored;
        for (auto& entry : wide.stored.codebooks)
            entry = static_cast<std::int8_t>(2 * entry);
        for (auto& b : wide.stored.blocks)
            halve(b);
        wide.pack();
        for_each_isa([&](const tested_isa& isa) {
            check(narrow, isa);
            const auto a = narrow.run(isa.name), b = wide.run(isa.name);
            ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
                << isa.name << " n " << n << " k " << k << " m " << m;
        });
    }
}

FORMAT_TEST(Codebooks, NarrowExtremesAreExact) {
    for (const int value : {-32, 31})
        for (const float sign : {-1.0f, 1.0f}) {
            problem<TypeParam> p(18, 64, 3, 2);
            p.fill(value, extreme_scales<typename TypeParam::scales>()[2]);
            std::fill(p.x.begin(), p.x.end(), sign * 127.0f);
            for_each_isa([&](const tested_isa& isa) {
                const auto a = p.quantize(p.plan(isa.name));
                const crumb::reference::activation_view input{a.rows.layout(), a.rows.codes(),
                                                              a.rows.scales(), 3};
                const double exact = crumb::reference::linear(p.stored.view(), 0, input, 0).value;
                for (float y : p.run(isa.name))
                    ASSERT_EQ(double{y}, exact) << isa.name << ' ' << value;
            });
        }
}

FORMAT_TEST(Linear, ThreadsMayShareAPlan) {
    const problem<TypeParam> p(160, 128, 20, 6);
    for_each_isa([&](const tested_isa& isa) {
        const auto whole = p.run(isa.name);
        const auto plan =
            crumb::linear<TypeParam>::plan(p.packed, {.codebooks = p.stored.codebooks}, {isa.name});
        const auto a = p.quantize(*plan);
        std::vector<float> y(whole.size());
        std::vector<std::thread> threads;
        for (std::size_t t = 0; t < 4; ++t)
            threads.emplace_back([&, t] {
                plan->run(a.rows, crumb::matrix(y.data(), 20, 160),
                          {.channels = crumb::split(160, 4, t, plan->channel_step())});
            });
        for (auto& t : threads)
            t.join();
        EXPECT_EQ(y, whole) << isa.name;
    });
}

FORMAT_TEST(Linear, NotFiniteActivationsGiveNotFiniteOutputs) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
        problem<TypeParam> p(20, 96, 5, 7);
        p.x[2 * 96 + 70] = bad;
        for_each_isa([&](const tested_isa& isa) {
            const auto y = p.run(isa.name);
            for (std::size_t i = 0; i < y.size(); ++i)
                ASSERT_EQ(std::isnan(y[i]), i / 20 == 2) << isa.name << ' ' << bad;
        });
    }
}

FORMAT_TEST(Linear, PlanRefusesABiasOfAnotherSize) {
    const problem<TypeParam> p(20, 96, 1, 8);
    const auto plan =
        crumb::linear<TypeParam>::plan(p.packed, {.bias = std::span<const float>(p.bias).first(19)});
    ASSERT_FALSE(plan);
    EXPECT_STREQ(plan.message(), "bias has 19 values, the weights have 20 output channels");
}

FORMAT_TEST(Linear, PlanRefusesCodebooksOfAnotherSize) {
    const problem<TypeParam> p(20, 96, 1, 8);
    const std::vector<std::int8_t> entries(15);
    const auto plan = crumb::linear<TypeParam>::plan(p.packed, {.codebooks = entries});
    ASSERT_FALSE(plan);
    const std::size_t wanted = crumb::needs_codebooks<TypeParam> ? crumb::codebook_entries<TypeParam> : 0;
    EXPECT_EQ(std::string(plan.message()), std::string("format ") + TypeParam::name + " takes " +
                                               std::to_string(wanted) + " codebook entries, got 15");
}

TEST(Activations, AreQuantizedAlikeOnEveryIsa) {
    std::mt19937 random(11);
    normal_numbers<float> normal;
    for (std::size_t m : {1, 2, 7, 8, 11, 16, 19}) {
        for (std::size_t k : {1, 32, 50, 96}) {
            std::vector<float> x(m * k);
            for (auto& v : x)
                v = normal(random) * std::exp(normal(random) * 4);
            for (std::size_t i = 0; i < x.size(); i += 13)
                x[i] = i % 2 != 0 ? 0.0f : 1e-38f;
            for_each_isa([&]<class I>() {
                const crumb::activation_plan plan{
                    {.k = k, .row_block = I::row_block, .offset = 8, .order = crumb::kernel::order_of<I>},
                    &crumb::kernel::quantize_activations<crumb::dispatch::own_or_base_isa<I>>};
                guarded<std::byte> memory(crumb::activation_bytes(plan, m));
                auto a = crumb::activations::create(memory.span(), plan, m);
                // Row by row, as different threads would.
                for (std::size_t r = m; r-- > 0;)
                    a->quantize(crumb::matrix<const float>(x.data(), m, k), {r, r + 1});
                const auto groups = plan.layout.groups();
                const crumb::reference::activation_view view{plan.layout, a->codes(), a->scales(), m};
                for (std::size_t r = 0; r < m; ++r) {
                    const auto at = crumb::block_of(r, m, I::row_block);
                    for (std::size_t g = 0; g < groups; ++g) {
                        float amax = 0;
                        for (std::size_t i = g * 32; i < std::min(k, g * 32 + 32); ++i)
                            amax = std::fmax(amax, std::fabs(x[r * k + i]));
                        const float scale =
                            amax < crumb::smallest_activation ? 0.0f : crumb::activation_scale(amax);
                        ASSERT_EQ(view.scale(r, g), double{scale});
                        ASSERT_GE(scale * 127.0f * 1.000001f, scale == 0 ? 0.0f : amax);
                        int sum = 0;
                        for (std::size_t i = 0; i < 32; ++i) {
                            const float value = g * 32 + i < k ? x[r * k + g * 32 + i] : 0.0f;
                            const int expected =
                                scale == 0 ? 0 : static_cast<int>(std::nearbyint(value * (1.0f / scale)));
                            ASSERT_EQ(view.code(r, g * 32 + i), expected)
                                << I::name << " m " << m << " k " << k << " row " << r << " input "
                                << g * 32 + i;
                            sum += expected;
                        }
                        const std::size_t unit = at.first * groups + g * at.height + (r - at.first);
                        ASSERT_EQ(a->starts()[unit], crumb::activation_origin_bits - 8 * sum);
                        // The shift is exact, so that origin cancels.
                        ASSERT_EQ(double{a->shifts()[unit]},
                                  -double{crumb::activation_origin} * double{scale});
                    }
                }
            });
        }
    }
}

TEST(Activations, ABufferForSeveralPlansServesEachOfThem) {
    constexpr auto quantize = &crumb::kernel::quantize_activations<crumb::isa::portable>;
    const crumb::activation_plan small{{.k = 256}, quantize}, large{{.k = 320, .offset = 1}, quantize},
        middle{{.k = 288, .row_block = 16}, quantize};
    const crumb::activation_plan plans[] = {small, large, middle};
    for (std::size_t rows = 1; rows <= 40; ++rows) {
        guarded<std::byte> memory(crumb::activation_bytes(plans, rows));
        EXPECT_EQ(memory.span().size(), crumb::activation_bytes(large, rows));
        EXPECT_EQ(memory.span().size(), crumb::activation_bytes({large, middle}, rows));
        EXPECT_EQ(memory.span().size(), crumb::activation_bytes({middle, small, large}, rows));
        for (const crumb::activation_plan& plan : plans)
            for (std::size_t fewer = 1; fewer <= rows; ++fewer)
                EXPECT_TRUE(crumb::activations::create(memory.span(), plan, fewer).ok())
                    << "k = " << plan.layout.k << ", " << fewer << " of " << rows << " rows";
    }
    EXPECT_EQ(crumb::activation_bytes(std::span<const crumb::activation_plan>(), 3), 0u);
}

TEST(Activations, RefuseBadBuffers) {
    const crumb::activation_plan plan{{.k = 64}, &crumb::kernel::quantize_activations<crumb::isa::portable>};
    guarded<std::byte> memory(crumb::activation_bytes(plan, 3));
    EXPECT_EQ(
        crumb::activations::create(memory.span().first(memory.span().size() - 1), plan, 3).error().code(),
        crumb::errc::buffer_too_small);
    EXPECT_EQ(crumb::activations::create(memory.span().subspan(1), plan, 1).error().code(),
              crumb::errc::misaligned);
    EXPECT_EQ(crumb::activations::create(memory.span(), {}, 1).error().code(), crumb::errc::invalid_argument);
    EXPECT_EQ(crumb::activations::create(memory.span(), plan, ~std::size_t{0}).error().code(),
              crumb::errc::bad_shape);
}

#if GTEST_HAS_DEATH_TEST && CRUMB_DEBUG_CHECKS
TEST(LinearDeathTest, DebugBuildsNameTheViolatedPrecondition) {
    const problem<crumb::q4_0> p(16, 32, 2, 1);
    const auto plan = crumb::linear<crumb::q4_0>::plan(p.packed);
    const auto a = p.quantize(*plan);
    std::vector<float> y(64);
    EXPECT_DEATH(plan->run(a.rows, crumb::matrix(y.data(), 2, 15)), "y is 2 x 15, the product is 2 x 16");
    EXPECT_DEATH(crumb::linear<crumb::q4_0>{}.run(a.rows, crumb::matrix(y.data(), 2, 16)),
                 "the plan is empty");
}
#endif

TEST(Dense, MatchesTheReference) {
    std::mt19937 random(17);
    normal_numbers<float> normal;
    for (std::size_t n : {0, 1, 2, 5}) {
        for (std::size_t k : {0, 1, 7, 16, 33, 200, 2061}) {
            for (std::size_t m : {1, 3, 4, 9, 35}) {
                guarded<float> w(n * k), x(m * k);
                guarded<crumb::half> h(n * k);
                guarded<crumb::bf16> b(n * k);
                for (std::size_t i = 0; i < n * k; ++i) {
                    // Multiples of 1/64 below 4: all three types have them.
                    w.data()[i] = static_cast<float>(static_cast<int>(random() % 511) - 255) / 64.0f;
                    h.data()[i] = crumb::to_half(w.data()[i]);
                    b.data()[i].bits =
                        static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(w.data()[i]) >> 16);
                }
                for (std::size_t i = 0; i < m * k; ++i)
                    x.data()[i] = normal(random);
                for_each_isa([&]<class I>() {
                    const auto f = crumb::dense_linear<float>::plan(
                        crumb::matrix<const float>(w.data(), n, k), {}, {I::name});
                    const auto g = crumb::dense_linear<crumb::half>::plan(
                        crumb::matrix<const crumb::half>(h.data(), n, k), {}, {I::name});
                    const auto e = crumb::dense_linear<crumb::bf16>::plan(
                        crumb::matrix<const crumb::bf16>(b.data(), n, k), {}, {I::name});
                    ASSERT_TRUE(f && g && e);
                    std::vector<float> y(m * n), z(m * n), u(m * n);
                    e->run(crumb::matrix<const float>(x.data(), m, k), crumb::matrix(u.data(), m, n));
                    f->run(crumb::matrix<const float>(x.data(), m, k), crumb::matrix(y.data(), m, n));
                    g->run(crumb::matrix<const float>(x.data(), m, k), crumb::matrix(z.data(), m, n));
                    for (std::size_t i = 0; i < m * n; ++i) {
                        double exact = 0, magnitude = 0;
                        for (std::size_t j = 0; j < k; ++j) {
                            const double term =
                                double{w.data()[i % n * k + j]} * double{x.data()[i / n * k + j]};
                            exact += term;
                            magnitude += std::fabs(term);
                        }
                        const double steps =
                            2.0 * (std::min(double(k), 1024.0) / I::lanes + 1) + I::lanes + double(k / 1024);
                        ASSERT_NEAR(double{y[i]}, exact, steps * std::ldexp(1.0, -24) * magnitude) << I::name;
                        ASSERT_EQ(y[i], z[i]) << I::name;
                        ASSERT_EQ(y[i], u[i]) << I::name;
                    }
                });
            }
        }
    }
}

/// Rows and parts of a product against row by row; `ranges` are of rows, channels go from 5 to n - 1.
template <class T>
void check_rows_and_parts(std::size_t n, std::size_t k, std::size_t m, const std::vector<range>& ranges) {
    std::mt19937 random(23);
    normal_numbers<float> normal;
    guarded<T> w(n * k);
    guarded<float> x(m * k);
    std::vector<float> bias(n);
    for (std::size_t i = 0; i < n * k; ++i)
        if constexpr (std::is_same_v<T, float>)
            w.data()[i] = normal(random);
        else
            w.data()[i] = crumb::to_half(normal(random));
    for (std::size_t i = 0; i < m * k; ++i)
        x.data()[i] = normal(random);
    for (float& b : bias)
        b = normal(random);
    const auto weights = crumb::matrix<const T>(w.data(), n, k);
    const auto inputs = crumb::matrix<const float>(x.data(), m, k);
    for_each_isa([&]<class I>() {
        const auto plan = crumb::dense_linear<T>::plan(weights, {.bias = bias}, {I::name});
        ASSERT_TRUE(plan);
        std::vector<float> single(m * n), all(m * n), parts(m * n);
        for (std::size_t r = 0; r < m; ++r)
            plan->run(crumb::matrix<const float>(x.data() + r * k, 1, k),
                      crumb::matrix(single.data() + r * n, 1, n));
        plan->run(inputs, crumb::matrix(all.data(), m, n));
        ASSERT_EQ(std::memcmp(single.data(), all.data(), m * n * sizeof(float)), 0) << I::name;
        const auto y = crumb::matrix(parts.data(), m, n);
        const auto expect_rows = [&](range rows, const char* way) {
            for (std::size_t r = 0; r < m; ++r)
                for (std::size_t c = 0; c < n; ++c)
                    ASSERT_EQ(parts[r * n + c], r >= rows.begin && r < rows.end && c >= 5 && c < n - 1
                                                    ? single[r * n + c]
                                                    : -1.0f)
                        << I::name << ", row " << r << ", channel " << c << ", " << way;
            std::fill(parts.begin(), parts.end(), -1.0f);
        };
        std::fill(parts.begin(), parts.end(), -1.0f);
        for (const range rows : ranges) {
            plan->run(inputs, y, {.rows = rows, .channels = {5, n - 1}});
            expect_rows(rows, "as planned");
            // The ways of this CPU and of others.
            for (const bool converts : {false, true}) {
                crumb::kernel::dense<T, crumb::dispatch::own_or_base_isa<I>>(
                    {weights, inputs, y, bias.data(), rows, {5, n - 1}, converts});
                expect_rows(rows, converts ? "converted once" : "converted on the way");
            }
        }
    });
}

// More rows than share weights, more channels than wait for them, inputs beyond a sum, ranges that begin
// anywhere: the same bits as row by row.
TEST(Dense, RowsAndPartsChangeNoBit) {
    const std::vector<range> many{{3, 134}, {4, 21}, {7, 11}, {40, 73}};
    const std::vector<range> few{{0, 35}, {1, 9}, {2, 22}, {29, 35}};
    check_rows_and_parts<crumb::half>(19, 2061, 135, many);
    check_rows_and_parts<float>(19, 1100, 135, many);
    check_rows_and_parts<crumb::half>(219, 1061, 35, few);
    check_rows_and_parts<float>(111, 1061, 35, few);
}

} // namespace
} // namespace test_linear
