#include "guarded.hpp"
#include "isa_test.hpp"

#include <crumb/dispatch/float_ops.hpp>
#include <crumb/kernel/float/definitions.hpp>
#include <crumb/reference/float_ops.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace test_math {
namespace {

namespace function = crumb::kernel::function;
namespace reference = crumb::reference;
using crumb_test::for_each_isa;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class Function, class Isa>
void apply(const std::vector<float>& x, std::vector<float>& y) {
    y.resize(x.size());
    crumb::kernel::apply<Function, crumb::dispatch::own_or_base_isa<Isa>>(
        {crumb::matrix(x.data(), 1, x.size()), {}, crumb::matrix(y.data(), 1, y.size()), {0, 1}});
}

template <class Function, class Isa>
float apply(float x) {
    std::vector<float> y;
    apply<Function, Isa>(std::vector<float>{x}, y);
    return y[0];
}

/// The distance of neighbouring floats at y.
double ulp(double y) {
    const double magnitude = std::fabs(y);
    if (!(magnitude >= 0x1p-126))
        return 0x1p-149;
    return std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

/// Every 4999th float, and all within 1000 of the places where something changes.
std::vector<float> samples() {
    std::vector<float> x;
    for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4999)
        x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    for (const float place : {0.0f, 0x1p-126f, 0.5f, 0.625f, 0.8f, 1.0f, 1.13137085f, 4.0f, 5.65685425f,
                              87.33654f, 88.72284f, 88.8f, 103.97208f, 104.0f, 200.0f, 3.402823466e38f}) {
        const std::int64_t center = std::bit_cast<std::int32_t>(place);
        for (std::int64_t d = -1000; d <= 1000; ++d) {
            if (center + d < 0)
                continue;
            x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(center + d)));
            x.push_back(-x.back());
        }
    }
    return x;
}

/// Compares with `exact` on all samples: |error| <= bound(x, exact(x)); NaN gives NaN.
template <class Function, class Exact, class Bound>
void check(Exact exact, Bound bound) {
    const std::vector<float> x = samples();
    for_each_isa([&]<class Isa>() {
        std::vector<float> y;
        apply<Function, Isa>(x, y);
        int failures = 0;
        double worst = 0;
        for (std::size_t i = 0; i < x.size() && failures < 5; ++i) {
            const double want = exact(static_cast<double>(x[i]));
            if (std::isnan(x[i]) ? std::isnan(y[i]) : std::isinf(y[i]) && std::fabs(want) >= 0x1.ffffffp127)
                continue;
            const double error = std::fabs(y[i] - want);
            if (!(error <= bound(static_cast<double>(x[i]), want))) {
                ++failures;
                ADD_FAILURE() << "x = " << x[i] << " gives " << y[i] << ", not " << want << ": "
                              << error / ulp(want) << " ulp";
            }
            worst = std::fmax(worst, std::isfinite(error) ? error / ulp(want) : 0);
        }
        testing::Test::RecordProperty(Isa::name, std::to_string(worst));
    });
}

TEST(math, exp) {
    check<function::exp>([](double x) { return std::exp(x); }, [](double, double y) { return 1.1 * ulp(y); });
    for_each_isa([]<class Isa>() {
        EXPECT_EQ((apply<function::exp, Isa>(0.0f)), 1.0f);
        EXPECT_EQ((apply<function::exp, Isa>(-infinity)), 0.0f);
        EXPECT_EQ((apply<function::exp, Isa>(-1e30f)), 0.0f);
        EXPECT_EQ((apply<function::exp, Isa>(infinity)), infinity);
        EXPECT_EQ((apply<function::exp, Isa>(1e30f)), infinity);
        EXPECT_TRUE(std::isnan(apply<function::exp, Isa>(nan)));
        EXPECT_TRUE(std::isnan(apply<function::exp, Isa>(-nan)));
    });
}

TEST(math, tanh) {
    check<function::tanh>([](double x) { return std::tanh(x); }, [](double, double y) { return 2 * ulp(y); });
    for_each_isa([]<class Isa>() {
        EXPECT_EQ((apply<function::tanh, Isa>(infinity)), 1.0f);
        EXPECT_EQ((apply<function::tanh, Isa>(-infinity)), -1.0f);
        EXPECT_TRUE(std::signbit(apply<function::tanh, Isa>(-0.0f)));
    });
}

TEST(math, erf) {
    check<function::erf>([](double x) { return std::erf(x); }, [](double, double y) { return 2 * ulp(y); });
    for_each_isa([]<class Isa>() {
        EXPECT_EQ((apply<function::erf, Isa>(infinity)), 1.0f);
        EXPECT_EQ((apply<function::erf, Isa>(-infinity)), -1.0f);
    });
}

TEST(math, logistic) {
    check<function::logistic>(reference::logistic,
                              [](double, double y) { return y < 0x1p-125 ? y : 3 * ulp(y); });
    for_each_isa([]<class Isa>() {
        EXPECT_EQ((apply<function::logistic, Isa>(infinity)), 1.0f);
        EXPECT_EQ((apply<function::logistic, Isa>(-infinity)), 0.0f);
    });
}

TEST(math, silu) {
    check<function::silu>(reference::silu, [](double x, double y) {
        return reference::logistic(x) < 0x1p-125 ? std::fabs(y) : 4 * ulp(y) + 0x1p-142;
    });
    for_each_isa([]<class Isa>() {
        EXPECT_EQ((apply<function::silu, Isa>(infinity)), infinity);
        EXPECT_EQ((apply<function::silu, Isa>(-infinity)), 0.0f);
    });
}

TEST(math, gelu_tanh) {
    check<function::gelu_tanh>(reference::gelu_tanh, [](double x, double y) {
        const double u = reference::gelu_argument(std::fmin(std::fabs(x), 200.0));
        if (x < 0 && reference::logistic(-2 * u) < 0x1p-124) // u is rounded as well
            return std::fabs(y);
        return (12 + 6 * std::fabs(u)) * ulp(y) + 0x1p-142;
    });
    for_each_isa([]<class Isa>() {
        EXPECT_EQ((apply<function::gelu_tanh, Isa>(infinity)), infinity);
        EXPECT_EQ((apply<function::gelu_tanh, Isa>(-infinity)), 0.0f);
    });
}

TEST(math, gelu_erf) {
    check<function::gelu_erf>(reference::gelu_erf, [](double x, double y) {
        const double absolute = 0x1p-23 * std::fabs(x) + 0x1p-149;
        return x > -5.6 ? std::fmin(absolute, 7e-6 * std::fabs(y) + 0x1p-148) : absolute;
    });
    for_each_isa([]<class Isa>() {
        EXPECT_EQ((apply<function::gelu_erf, Isa>(infinity)), infinity);
        EXPECT_EQ((apply<function::gelu_erf, Isa>(-infinity)), 0.0f);
    });
}

// Every length, next to a page that faults; elements must not depend on their place in the row.
TEST(math, ragged_rows) {
    for_each_isa([]<class Isa>() {
        for (std::size_t n = 0; n <= 70; ++n) {
            for (const auto side : {crumb_test::guard::after, crumb_test::guard::before}) {
                crumb_test::guarded<float> x(2 * n, side), up(2 * n, side), y(2 * n, side), z(2 * n, side);
                for (std::size_t i = 0; i < 2 * n; ++i) {
                    x[i] = static_cast<float>(i) / 7 - 4;
                    up[i] = 2;
                }
                const auto view = crumb::matrix(x.data(), 2, n);
                const crumb::kernel::elementwise_args args{
                    view, crumb::matrix(up.data(), 2, n), crumb::matrix(y.data(), 2, n), {0, 2}};
                crumb::kernel::apply<function::tanh, crumb::dispatch::own_or_base_isa<Isa>>(args);
                crumb::kernel::elementwise_args gated = args;
                gated.y = crumb::matrix(z.data(), 2, n);
                crumb::kernel::apply_gated<function::tanh, crumb::dispatch::own_or_base_isa<Isa>>(gated);
                for (std::size_t i = 0; i < 2 * n; ++i) {
                    ASSERT_EQ(y[i], (apply<function::tanh, Isa>(x[i]))) << n << ", " << i;
                    ASSERT_EQ(z[i], 2 * y[i]);
                }
            }
        }
    });
}

} // namespace
} // namespace test_math
