#include "isa_test.hpp"
#include "linear_problem.hpp"
#include "random_numbers.hpp"

#include <crumb/offline/nested/quantized.hpp>
#include <crumb/offline/weights/quantize.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace test_any_linear {
namespace {

using crumb::any_linear;
using crumb_test::for_each_isa;
using crumb_test::normal_numbers;
using crumb_test::tested_isa;

constexpr std::size_t n = 37, k = 300, m = 5;

/// A product through the erased plan, its input quantized as that says; copied, as everything it refers to is
/// the caller's.
std::vector<float> run(const any_linear& plan, const std::vector<float>& x) {
    const any_linear copy = plan;
    crumb::activations quantized;
    crumb_test::guarded<std::byte> memory(
        copy.reads_activations() ? crumb::activation_bytes(copy.input_plan(), m) : 1);
    const auto in = crumb::matrix<const float>(x.data(), m, k);
    if (copy.reads_activations()) {
        quantized = *crumb::activations::create(memory.span(), copy.input_plan(), m);
        quantized.quantize(in);
    }
    std::vector<float> y(m * n);
    const auto out = crumb::matrix(y.data(), m, n);
    copy.run(in, quantized, out, {.channels = {0, 16}});
    copy.run(in, quantized, out, {.rows = {0, 3}, .channels = {16, n}});
    copy.run(in, quantized, out, {.rows = {3, m}, .channels = {16, n}});
    return y;
}

/// The weights that a plan unpacks, the last tile by itself, are `weight(row, input)`: exactly but for the
/// rounding of a scale.
template <class F>
void expect_unpacks(const any_linear& plan, F weight) {
    constexpr std::size_t tiles = (n + 15) / 16, groups = (k + 31) / 32;
    crumb_test::guarded<std::int8_t> codes(tiles * groups * 512);
    crumb_test::guarded<float> scales(tiles * groups * 16);
    const float most = plan.unpack({0, n - 16}, codes.data(), scales.data());
    const std::size_t before = (tiles - 1) * groups;
    EXPECT_EQ(plan.unpack({n / 16 * 16, n}, codes.data() + before * 512, scales.data() + before * 16), most);
    EXPECT_GT(most, 63);
    EXPECT_LE(most, 128);
    for (std::size_t r = 0; r < n; ++r)
        for (std::size_t i = 0; i < k; ++i) {
            const std::size_t at = r / 16 * groups + i / 32;
            const int code = codes.data()[at * 512 + crumb::byte_codes::byte_of(r % 16, i % 32)];
            const double want = weight(r, i);
            ASSERT_NEAR(double(scales.data()[at * 16 + r % 16]) * code, want, std::fabs(want) * 0x1p-22)
                << r << ", " << i;
            ASSERT_LE(std::abs(code), most);
        }
}

TEST(AnyLinear, EqualsThePlanOfEveryFormat) {
    for_each_isa([](const tested_isa& isa) {
        crumb::format_list::for_each([&]<class F>() {
            const crumb_test::linear_problem<F> p(n, k, m, 1);
            const auto plan = p.plan(isa.name, true);
            const any_linear any = plan;
            EXPECT_EQ(any.n(), n);
            EXPECT_EQ(any.k(), k);
            EXPECT_EQ(any.bytes(), plan.bytes());
            EXPECT_EQ(any.input_plan(), plan.input_plan());
            EXPECT_EQ(run(any, p.x), p.run(isa.name, true)) << F::name;
            EXPECT_EQ(any.constant(n - 1), p.bias[n - 1]);
            SCOPED_TRACE(F::name);
            const auto view = p.stored.view();
            expect_unpacks(any, [&](std::size_t r, std::size_t i) { return view.weight(r, i); });
        });
    });
}

// Formats with records unpack nothing, whose caller has to ask.
TEST(AnyLinear, OpensWhatHasRecords) {
    std::mt19937 random(4);
    normal_numbers<float> normal;
    std::vector<float> w(n * k), x(m * k);
    for (auto* all : {&w, &x})
        for (float& v : *all)
            v = normal(random);
    const auto check = [&]<class F>() {
        SCOPED_TRACE(F::name);
        const auto stored = *crumb::quantize<F>(crumb::matrix<const float>(w.data(), n, k));
        crumb_test::guarded<std::byte> memory(crumb::packed_bytes<F>(n, k));
        const auto packed = *crumb::pack(stored, memory.span());
        for_each_isa([&](const tested_isa& isa) {
            const auto any = any_linear::open(memory.span(), {}, {isa.name});
            ASSERT_TRUE(any) << any.message();
            EXPECT_FALSE(any->can_unpack());
            EXPECT_TRUE(any->reads_activations());
            const auto plan = *crumb::linear<F>::plan(packed, {}, {isa.name});
            EXPECT_EQ(run(*any, x), run(plan, x));
            EXPECT_EQ(any->bytes(), packed.bytes());
        });
    };
    check.operator()<crumb::q4_k>();
    check.operator()<crumb::q5_0>();
    check.operator()<crumb::mxfp4>();
}

// 448 times 6 times that is a float; more is not.
TEST(AnyLinear, RefusesATensorsScaleWhoseWeightsAreNotFinite) {
    std::vector<crumb::nvfp4::block> blocks(16);
    crumb_test::guarded<std::byte> memory(crumb::packed_bytes<crumb::nvfp4>(16, 64));
    auto view = *crumb::storage<crumb::nvfp4>(blocks, 16, 64);
    constexpr float most = std::numeric_limits<float>::max() / (448 * 6);
    for (const float good : {most, -most, 0.0f}) {
        view.tensor_scale = good;
        EXPECT_TRUE(crumb::pack(view, memory.span())) << good;
        EXPECT_TRUE(any_linear::open(memory.span())) << good;
    }
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const float bad : {std::nextafter(most, infinity), -infinity, std::nanf("")}) {
        std::memcpy(memory.data() + offsetof(crumb::packed_header, reserved), &bad, sizeof bad);
        EXPECT_EQ(any_linear::open(memory.span()).error().code(), crumb::errc::not_finite) << bad;
        view.tensor_scale = bad;
        EXPECT_EQ(crumb::pack(view, memory.span()).error().code(), crumb::errc::not_finite) << bad;
    }
}

#if defined(GTEST_HAS_DEATH_TEST)
TEST(AnyLinearDeathTest, UnpacksNothingOfRecords) {
    testing::FLAGS_gtest_death_test_style = "fast";
    const std::vector<float> w(16 * 256);
    const auto stored = *crumb::quantize<crumb::q6_k>(crumb::matrix<const float>(w.data(), 16, 256));
    crumb_test::guarded<std::byte> memory(crumb::packed_bytes<crumb::q6_k>(16, 256));
    const any_linear any = *crumb::linear<crumb::q6_k>::plan(*crumb::pack(stored, memory.span()));
    std::vector<std::int8_t> codes(8 * 512);
    std::vector<float> scales(8 * 16);
    EXPECT_DEATH(any.unpack({0, 16}, codes.data(), scales.data()), "the plan is of a format with records");
    EXPECT_DEATH(any_linear().unpack({0, 16}, codes.data(), scales.data()), "the plan is empty");
}
#endif

TEST(AnyLinear, EqualsNestedPlansAtEveryPrecision) {
    std::mt19937 random(2);
    auto stored = crumb::nested_quantized::zeros(crumb::nested_levels::uniform(2, 4), n, k);
    for (auto& c : stored.codes)
        c = static_cast<std::uint8_t>(random() % 16);
    for (auto& s : stored.scales)
        s = crumb::to_half(0.001f * static_cast<float>(random() % 100));
    crumb_test::guarded<std::byte> memory(crumb::nested_packed_bytes(n, k, 4));
    const auto packed = *crumb::pack(stored, memory.span());
    std::vector<float> x(m * k);
    for (float& v : x)
        v = static_cast<float>(random() % 1000) * 0.01f - 5;
    for_each_isa([&](const tested_isa& isa) {
        const auto plan = *crumb::nested_linear::plan(packed, {}, {isa.name});
        std::vector<float> before;
        for (int bits = 2; bits <= 4; ++bits) {
            const any_linear any(plan, bits);
            EXPECT_EQ(any.bytes(), packed.bytes_at(bits));
            crumb_test::guarded<std::byte> room(crumb::activation_bytes(plan.input_plan(), m));
            auto a = *crumb::activations::create(room.span(), plan.input_plan(), m);
            a.quantize(crumb::matrix<const float>(x.data(), m, k));
            std::vector<float> want(m * n);
            plan.run(bits, a, crumb::matrix(want.data(), m, n));
            EXPECT_EQ(run(any, x), want) << bits;
            EXPECT_NE(want, before);
            before = want;
            expect_unpacks(any, [&](std::size_t r, std::size_t i) { return packed.weight(r, i, bits); });
        }
    });
}

TEST(AnyLinear, EqualsDensePlans) {
    std::mt19937 random(3);
    normal_numbers<float> normal;
    std::vector<float> w(n * k), x(m * k), bias(n);
    for (auto* all : {&w, &x, &bias})
        for (float& v : *all)
            v = normal(random);
    std::vector<crumb::half> halves;
    for (const float v : w)
        halves.push_back(crumb::to_half(v));
    for_each_isa([&](const tested_isa& isa) {
        const auto check = [&](const auto& plan, std::size_t bytes) {
            const any_linear any = plan;
            EXPECT_FALSE(any.reads_activations());
            EXPECT_EQ(any.bytes(), bytes);
            std::vector<float> want(m * n);
            plan.run(crumb::matrix<const float>(x.data(), m, k), crumb::matrix(want.data(), m, n));
            EXPECT_EQ(run(any, x), want);
        };
        check(*crumb::dense_linear<float>::plan(crumb::matrix<const float>(w.data(), n, k), {.bias = bias},
                                                {isa.name}),
              w.size() * sizeof(float));
        check(*crumb::dense_linear<crumb::half>::plan(crumb::matrix<const crumb::half>(halves.data(), n, k),
                                                      {.bias = bias}, {isa.name}),
              w.size() * sizeof(crumb::half));
    });
}

} // namespace
} // namespace test_any_linear
