#include "guarded.hpp"
#include "isa_test.hpp"
#include "random_numbers.hpp"

#include <crumb/offline/nested/quantized.hpp>
#include <crumb/op/linear/nested_linear.hpp>
#include <crumb/reference/linear.hpp>
#include <crumb/reference/nested.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace test_nested_linear {
namespace {

using crumb::range;
using crumb_test::for_each_isa;
using crumb_test::guarded;
using crumb_test::normal_numbers;
using crumb_test::tested_isa;

/// Calls f.operator()<Bits>() for every precision of the levels.
template <class F>
void for_each_precision(const crumb::nested_levels& l, F&& f) {
    if (l.has(2))
        f.template operator()<2>();
    if (l.has(3))
        f.template operator()<3>();
    if (l.has(4))
        f.template operator()<4>();
}

crumb::nested_levels random_levels(int seed, int parent, std::mt19937& random) {
    crumb::nested_levels l;
    l.seed = seed;
    l.parent = parent;
    for (int p = 2; p <= 4; ++p) {
        std::vector<int> all;
        for (int v = -127; v < 127; ++v)
            all.push_back(v);
        std::shuffle(all.begin(), all.end(), random);
        all.resize(std::size_t{1} << p);
        // The extremes of a byte are levels like any other.
        all[0] = -128;
        all[1] = 127;
        std::sort(all.begin(), all.end());
        for (std::size_t i = 0; i < all.size(); ++i)
            l.table(p)[i] = static_cast<std::int8_t>(all[i]);
    }
    return l;
}

struct problem {
    std::size_t n, k, m;
    crumb::nested_quantized stored;
    std::vector<float> x, bias;
    std::unique_ptr<guarded<std::byte>> memory;
    crumb::nested_view packed;

    problem(std::size_t n_, std::size_t k_, std::size_t m_, unsigned seed, int lowest = 2, int highest = 4)
        : n(n_), k(k_), m(m_), x(m * k), bias(n) {
        std::mt19937 random(seed);
        normal_numbers<float> normal;
        stored = crumb::nested_quantized::zeros(random_levels(lowest, highest, random), n, k);
        for (auto& c : stored.codes)
            c = static_cast<std::uint8_t>(random() % (1u << highest));
        for (auto& s : stored.scales)
            s = crumb::to_half(0.05f * normal(random));
        for (auto& c : stored.corrections)
            c = crumb::to_half(normal(random));
        for (auto& v : x)
            v = normal(random) * std::exp(normal(random));
        for (auto& v : bias)
            v = normal(random);
        pack();
    }
    void pack() {
        memory = std::make_unique<guarded<std::byte>>(crumb::nested_packed_bytes(n, k, stored.levels.parent));
        const auto p = crumb::pack(stored, memory->span());
        ASSERT_TRUE(p) << p.message();
        packed = *p;
    }
    double correction(std::size_t row, int bits) const {
        return double(crumb::to_float(crumb::nested_storage_view(stored).correction(row, bits)));
    }
    crumb::nested_linear plan(const char* isa, bool with_bias = false,
                              crumb::linear_mode mode = crumb::linear_mode::exact) const {
        const auto p = crumb::nested_linear::plan(
            packed,
            {.bias = with_bias ? std::span<const float>(bias) : std::span<const float>(), .mode = mode},
            {isa});
        EXPECT_TRUE(p) << p.message();
        EXPECT_STREQ(p->isa(), isa);
        return *p;
    }
    struct input {
        std::unique_ptr<guarded<std::byte>> memory;
        crumb::activations rows;
        crumb::reference::activation_view view() const {
            return {rows.layout(), rows.codes(), rows.scales(), rows.rows()};
        }
    };
    input quantize(const crumb::nested_linear& plan) const {
        const auto layout = plan.input_plan();
        input q{std::make_unique<guarded<std::byte>>(crumb::activation_bytes(layout, m)), {}};
        auto a = crumb::activations::create(q.memory->span(), layout, m);
        EXPECT_TRUE(a) << a.message();
        a->quantize(crumb::matrix<const float>(x.data(), m, k));
        q.rows = *a;
        return q;
    }
    std::vector<float> run(int bits, const char* isa, bool with_bias = false) const {
        const auto p = plan(isa, with_bias);
        const auto a = quantize(p);
        guarded<float> y(m * n);
        p.run(bits, a.rows, crumb::matrix(y.data(), m, n));
        return {y.begin(), y.end()};
    }
};

/// Single precision may differ from the exact result for the quantized operands by its roundings: one per
/// group in the sum, one in the product of the scales, one each for factor, correction and bias.
template <int Bits>
void check(const problem& p, const tested_isa& isa, bool with_bias) {
    const auto plan = p.plan(isa.name, with_bias);
    const auto a = p.quantize(plan);
    guarded<float> y(p.m * p.n);
    plan.run(Bits, a.rows, crumb::matrix(y.data(), p.m, p.n));
    const auto stored = crumb::reference::flat_nested<Bits>(p.stored);
    const double eps = std::ldexp(1.0, -24) * (isa.fuses ? 1 : 2);
    for (std::size_t r = 0; r < p.m; ++r) {
        for (std::size_t c = 0; c < p.n; ++c) {
            const auto exact = crumb::reference::linear(stored.view(), c, a.view(), r);
            const double corrected = exact.value + p.correction(c, Bits);
            const double b = with_bias ? double{p.bias[c]} : 0.0;
            const double bound = (double((p.k + 31) / 32) + 2.0) * eps * exact.magnitude +
                                 eps * (std::fabs(corrected) + std::fabs(corrected + b));
            ASSERT_NEAR(double{y[r * p.n + c]}, corrected + b, bound)
                << Bits << " bits, " << isa.name << " n " << p.n << " k " << p.k << " m " << p.m << " row "
                << r << " channel " << c;
        }
    }
}

TEST(NestedLevels, UniformOnesAreTheMiddlesOfWhatTheyStandFor) {
    const auto l = crumb::nested_levels::uniform(2, 4);
    EXPECT_TRUE(crumb::check_levels(l));
    for (int q = 0; q < 16; ++q) {
        EXPECT_EQ(l.table(4)[std::size_t(q)], 2 * q - 15);
        EXPECT_EQ(2 * l.table(3)[std::size_t(q / 2)],
                  l.table(4)[std::size_t(q / 2 * 2)] + l.table(4)[std::size_t(q / 2 * 2 + 1)]);
        EXPECT_EQ(2 * l.table(2)[std::size_t(q / 4)],
                  l.table(3)[std::size_t(q / 4 * 2)] + l.table(3)[std::size_t(q / 4 * 2 + 1)]);
    }
}

TEST(NestedLevels, AreChecked) {
    auto l = crumb::nested_levels::uniform(2, 4);
    l.table(3)[5] = l.table(3)[4];
    EXPECT_STREQ(crumb::check_levels(l).message(), "nested weights: the levels of 3 bits do not ascend at 5");
    // Of precisions that are not stored nobody looks at the levels.
    l.seed = 4;
    EXPECT_TRUE(crumb::check_levels(l));
    EXPECT_EQ(crumb::check_levels(crumb::nested_levels::uniform(1, 4)).code(), crumb::errc::invalid_argument);
    EXPECT_EQ(crumb::check_levels(crumb::nested_levels::uniform(2, 5)).code(), crumb::errc::invalid_argument);
    EXPECT_EQ(crumb::check_levels(crumb::nested_levels::uniform(4, 3)).code(), crumb::errc::invalid_argument);
}

TEST(NestedPacked, IsExactlyReversible) {
    for (const auto& [lowest, highest] : {std::pair{2, 2}, {2, 3}, {2, 4}, {3, 4}, {3, 3}, {4, 4}}) {
        for (std::size_t n : {0, 1, 16, 17, 40}) {
            for (std::size_t k : {0, 1, 31, 32, 33, 100}) {
                const problem p(n, k, 1, unsigned(n + 100 * k), lowest, highest);
                EXPECT_EQ(p.packed.levels(), p.stored.levels);
                for (std::size_t r = 0; r < n; ++r) {
                    for (int bits = 2; bits <= highest; ++bits)
                        ASSERT_EQ(p.packed.corrections(bits)[r].bits,
                                  crumb::nested_storage_view(p.stored).correction(r, bits).bits);
                    for (std::size_t g = 0; g < p.stored.groups(); ++g)
                        ASSERT_EQ(p.packed.scale(r, g).bits, p.stored.scales[r * p.stored.groups() + g].bits);
                    for (std::size_t i = 0; i < k; ++i) {
                        ASSERT_EQ(p.packed.code(r, i), p.stored.codes[r * k + i]) << highest << ' ' << i;
                        for (int bits = lowest; bits <= highest; ++bits)
                            ASSERT_EQ(p.packed.weight(r, i, bits),
                                      crumb::nested_storage_view(p.stored).weight(r, i, bits));
                    }
                }
            }
        }
    }
}

TEST(NestedPacked, APrecisionIsAPrefixOfTheBytes) {
    const problem p(64, 256, 1, 3);
    const double weights = 64 * 256, fixed = 128 + 3 * 2 * 64; // header, levels and corrections
    EXPECT_EQ(double(p.packed.bytes_at(2)), weights * 2.5 / 8 + fixed);
    EXPECT_EQ(double(p.packed.bytes_at(3)), weights * 3.5 / 8 + fixed);
    EXPECT_EQ(double(p.packed.bytes_at(4)), weights * 4.5 / 8 + fixed);
    EXPECT_EQ(p.packed.bytes(), p.packed.bytes_at(4));
    // What lies behind the prefix changes nothing.
    for_each_isa([&](const tested_isa& isa) {
        for (int bits = 2; bits < 4; ++bits) {
            const auto before = p.run(bits, isa.name);
            problem other(64, 256, 1, 3);
            for (std::size_t i = p.packed.bytes_at(bits); i < p.packed.bytes(); ++i)
                (*other.memory)[i] ^= std::byte{0xff};
            EXPECT_EQ(other.run(bits, isa.name), before) << isa.name << ' ' << bits;
            EXPECT_NE(other.run(4, isa.name), p.run(4, isa.name)) << isa.name;
        }
    });
}

TEST(NestedPacked, RefusesBytesThatAreNotNestedWeights) {
    problem p(17, 40, 1, 4);
    auto& bytes = *p.memory;
    const auto error_with = [&](std::size_t at, std::byte value) {
        const std::byte before = bytes[at];
        bytes[at] = value;
        const auto v = crumb::nested_view::open(bytes.span());
        bytes[at] = before;
        return v ? std::string("none") : std::string(v.message());
    };
    EXPECT_EQ(error_with(0, std::byte{'X'}), "packed weights: the tag CRMB is missing");
    EXPECT_EQ(error_with(4, std::byte{9}), "packed weights: layout version 9, this build reads 1");
    EXPECT_EQ(error_with(8, std::byte{'N'}), "packed weights: format Nested, expected nested");
    EXPECT_NE(error_with(24, std::byte{99}).find("bytes by shape"), std::string::npos); // n
    EXPECT_EQ(error_with(48, std::byte{1}),
              "nested weights of 1 to 4 bits: 2 to 4 are possible"); // the seed
    EXPECT_EQ(error_with(49, std::byte{7}), "nested weights of 2 to 7 bits: 2 to 4 are possible");
    EXPECT_EQ(error_with(65, std::byte{0x80}), "nested weights: the levels of 2 bits do not ascend at 1");
    EXPECT_EQ(crumb::nested_view::open(bytes.span().first(bytes.size() - 1)).error().code(),
              crumb::errc::buffer_too_small);
    EXPECT_EQ(crumb::nested_view::open(bytes.span().first(100)).error().code(),
              crumb::errc::buffer_too_small);
    EXPECT_EQ(crumb::nested_view::open(bytes.span().subspan(1)).error().code(), crumb::errc::misaligned);
    EXPECT_TRUE(crumb::nested_view::open(bytes.span()));
}

TEST(NestedPacked, RefusesWhatCannotBePacked) {
    problem p(5, 40, 1, 5, 2, 3);
    const auto error = [&] {
        const auto v = crumb::pack(p.stored, p.memory->span());
        return v ? std::string("none") : std::string(v.message());
    };
    EXPECT_EQ(error(), "none");
    p.stored.codes[2 * 40 + 7] = 8;
    EXPECT_EQ(error(), "nested weights: code (2, 7) is 8, of 3 bits");
    p.stored.codes[2 * 40 + 7] = 7;
    p.stored.scales[3 * 2 + 1] = {0x7c00};
    EXPECT_EQ(error(), "nested weights: scale of row 3, group 1 is not finite");
    p.stored.scales[3 * 2 + 1] = {0};
    p.stored.corrections[5 + 2] = {0x7e00};
    EXPECT_EQ(error(), "nested weights: correction of row 2 at 3 bits is not finite");
    p.stored.corrections[5 + 2] = {0};
    p.stored.levels.table(2)[3] = -128;
    EXPECT_EQ(error(), "nested weights: the levels of 2 bits do not ascend at 3");
    EXPECT_EQ(crumb::nested_packed_bytes(16, 32, 5), 0u);
    EXPECT_EQ(crumb::nested_packed_bytes(std::size_t{1} << 50, 32, 4), 0u);
    crumb::nested_storage_view huge = p.stored;
    huge.levels = crumb::nested_levels::uniform(2, 3);
    huge.n = std::size_t{1} << 50;
    EXPECT_EQ(crumb::pack(huge, p.memory->span()).error().code(), crumb::errc::bad_shape);
}

TEST(NestedLinear, MatchesTheReferenceOnEveryIsaShapeAndPrecision) {
    for (std::size_t n : {1, 15, 16, 17, 50}) {
        for (std::size_t k : {1, 31, 32, 33, 64, 200}) {
            for (std::size_t m : {1, 2, 3, 4, 7, 8, 9, 16, 17, 33}) {
                if (n * k > 3000 && m % 3 == 1 && m > 4)
                    continue;
                const problem p(n, k, m, unsigned(n + k * 100 + m * 10000));
                for_each_isa([&](const tested_isa& isa) {
                    for_each_precision(p.stored.levels, [&]<int Bits>() {
                        check<Bits>(p, isa, false);
                        check<Bits>(p, isa, true);
                    });
                });
            }
        }
    }
}

TEST(NestedLinear, ServesOtherSeedsAndParents) {
    for (const auto& range_of : {std::pair{2, 2}, {2, 3}, {3, 3}, {3, 4}, {4, 4}}) {
        const int lowest = range_of.first, highest = range_of.second;
        const problem p(33, 100, 5, 6, lowest, highest);
        for_each_isa([&](const tested_isa& isa) {
            EXPECT_EQ(p.plan(isa.name).seed(), lowest);
            EXPECT_EQ(p.plan(isa.name).parent(), highest);
            for_each_precision(p.stored.levels, [&]<int Bits>() { check<Bits>(p, isa, true); });
        });
    }
}

TEST(NestedLinear, LargeShape) {
    const problem p(100, 4096, 19, 1);
    for_each_isa([&](const tested_isa& isa) {
        for_each_precision(p.stored.levels, [&]<int Bits>() { check<Bits>(p, isa, false); });
    });
}

// The largest integer sums that there are, and scales at the ends of a half's range.
TEST(NestedLinear, ExtremeLevelsAndScalesAreExact) {
    for (const float sign : {-1.0f, 1.0f}) {
        for (const unsigned bits_of_scale : {0u, 1u, 0x3c00u, 0x7bffu, 0x8001u}) {
            const crumb::half scale{static_cast<std::uint16_t>(bits_of_scale)};
            problem p(18, 64, 3, 2);
            std::fill(p.stored.scales.begin(), p.stored.scales.end(), scale);
            std::fill(p.stored.corrections.begin(), p.stored.corrections.end(), crumb::half{});
            std::fill(p.x.begin(), p.x.end(), sign * 127.0f);
            for (const bool highest : {false, true}) {
                std::fill(p.stored.codes.begin(), p.stored.codes.end(),
                          static_cast<std::uint8_t>(highest ? 15 : 0));
                p.pack();
                const double level = highest ? 127 : -128;
                const double exact = double(crumb::to_float(scale)) * level * sign * 127.0 * 64;
                for_each_isa([&](const tested_isa& isa) {
                    for (int bits = 2; bits <= 4; ++bits)
                        for (float y : p.run(bits, isa.name))
                            ASSERT_EQ(double{y}, double{static_cast<float>(exact)})
                                << isa.name << ' ' << bits;
                });
            }
        }
    }
}

TEST(NestedLinear, ResultsDoNotDependOnRowsSplitOrIsa) {
    const problem all(45, 300, 37, 3);
    for (int bits = 2; bits <= 4; ++bits) {
        std::vector<float> first;
        for_each_isa([&](const tested_isa& isa) {
            const auto whole = all.run(bits, isa.name);
            if (isa.fuses) {
                if (first.empty())
                    first = whole;
                ASSERT_EQ(std::memcmp(whole.data(), first.data(), whole.size() * sizeof(float)), 0)
                    << isa.name;
            }
            for (std::size_t r : {0, 1, 16, 36}) {
                problem one(45, 300, 1, 3);
                one.stored = all.stored;
                one.pack();
                std::copy_n(all.x.begin() + std::ptrdiff_t(r * 300), 300, one.x.begin());
                const auto y = one.run(bits, isa.name);
                ASSERT_EQ(std::memcmp(y.data(), whole.data() + r * 45, 45 * sizeof(float)), 0)
                    << isa.name << ' ' << r;
            }
            const auto plan = all.plan(isa.name);
            const auto a = all.quantize(plan);
            std::mt19937 random(4);
            for (int i = 0; i < 30; ++i) {
                const std::size_t stride = 45 + random() % 5;
                std::vector<float> y(37 * stride, -7.0f);
                const range rows = crumb_test::part_of(37, random(), random()),
                            channels = crumb_test::part_of(45, random(), random());
                plan.run(bits, a.rows, crumb::matrix(y.data(), 37, 45, stride),
                         {.rows = rows, .channels = channels});
                for (std::size_t r = 0; r < 37; ++r) {
                    for (std::size_t c = 0; c < stride; ++c) {
                        const bool inside = r >= rows.begin && r < rows.end && c >= channels.begin &&
                                            c < channels.end && c < 45;
                        ASSERT_EQ(y[r * stride + c], inside ? whole[r * 45 + c] : -7.0f)
                            << isa.name << ' ' << r << ' ' << c;
                    }
                }
            }
        });
    }
}

TEST(NestedLinear, PanelsMatchTheirReference) {
    for (const auto& size : {std::array<std::size_t, 3>{33, 700, 21}, {16, 512, 8}, {50, 33, 3}}) {
        const std::size_t n = size[0], k = size[1], m = size[2];
        const problem p(n, k, m, unsigned(n));
        for_each_isa([&](const tested_isa& isa) {
            if (isa.panel_row_block == 0) {
                const auto refused =
                    crumb::nested_linear::plan(p.packed, {.mode = crumb::linear_mode::panels}, {isa.name});
                ASSERT_FALSE(refused);
                EXPECT_EQ(std::string(refused.message()),
                          std::string("no int8 panels for nested weights on ") + isa.name);
            } else {
                const auto plan = p.plan(isa.name, true, crumb::linear_mode::panels);
                const auto a = p.quantize(plan);
                for_each_precision(p.stored.levels, [&]<int Bits>() {
                    guarded<float> y(m * n);
                    plan.run(Bits, a.rows, crumb::matrix(y.data(), m, n));
                    const auto stored = crumb::reference::flat_nested<Bits>(p.stored);
                    const double eps = std::ldexp(1.0, -24);
                    const double spans = double((k + crumb::panel_inputs - 1) / crumb::panel_inputs);
                    for (std::size_t r = 0; r < m; ++r) {
                        for (std::size_t c = 0; c < n; ++c) {
                            const auto exact = crumb::reference::panel_linear(stored.view(), c, a.view(), r);
                            const double corrected = exact.value + p.correction(c, Bits);
                            const double y_exact = corrected + double{p.bias[c]};
                            ASSERT_NEAR(double{y[r * n + c]}, y_exact,
                                        (spans + 2) * eps * exact.magnitude +
                                            eps * (std::fabs(corrected) + std::fabs(y_exact)))
                                << Bits << ' ' << isa.name << ' ' << r << ' ' << c;
                        }
                    }
                });
            }
        });
    }
}

TEST(NestedLinear, PlanRefusesWhatItCannotServe) {
    const problem p(20, 96, 1, 8);
    EXPECT_STREQ(
        crumb::nested_linear::plan(p.packed, {.bias = std::span<const float>(p.bias).first(19)}).message(),
        "bias has 19 values, the weights have 20 output channels");
    const std::vector<std::int8_t> entries(16);
    EXPECT_STREQ(crumb::nested_linear::plan(p.packed, {.codebooks = entries}).message(),
                 "nested weights bring their levels, got 16 entries");
    EXPECT_FALSE(crumb::nested_linear::plan(p.packed, {}, {"abacus"}));
    EXPECT_EQ(crumb::nested_linear::plan(p.packed, {.mode = crumb::linear_mode::absorbed}).error().code(),
              crumb::errc::unsupported);
}

TEST(NestedLinear, EmptyShapesAndNotFiniteActivations) {
    for (const auto& size :
         {std::array<std::size_t, 3>{0, 64, 3}, {16, 0, 2}, {48, 0, 33}, {16, 64, 0}, {0, 0, 0}}) {
        const std::size_t n = size[0], k = size[1], m = size[2];
        const problem p(n, k, m, 1);
        for_each_isa([&](const tested_isa& isa) { EXPECT_EQ(p.run(3, isa.name).size(), m * n); });
    }
    problem p(20, 96, 5, 7);
    p.x[2 * 96 + 70] = std::numeric_limits<float>::quiet_NaN();
    for_each_isa([&](const tested_isa& isa) {
        for (int bits = 2; bits <= 4; ++bits) {
            const auto y = p.run(bits, isa.name);
            for (std::size_t i = 0; i < y.size(); ++i)
                ASSERT_EQ(std::isnan(y[i]), i / 20 == 2) << isa.name;
        }
    });
}

} // namespace
} // namespace test_nested_linear
