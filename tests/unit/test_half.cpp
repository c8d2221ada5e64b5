#include <crumb/core/half.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace test_half {
namespace {

// Sign, exponent and fraction taken apart with ldexp: nothing shared with the implementation.
double value_of(std::uint16_t bits) {
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    const int exponent = bits >> 10 & 31;
    const int fraction = bits & 1023;
    if (exponent == 31)
        return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                             : sign * std::numeric_limits<double>::infinity();
    return exponent == 0 ? sign * std::ldexp(fraction, -24)
                         : sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(Half, EveryHalfConvertsExactlyAndBack) {
    for (unsigned i = 0; i < 0x10000; ++i) {
        const crumb::half h{static_cast<std::uint16_t>(i)};
        const double expected = value_of(h.bits);
        if (std::isnan(expected)) {
            EXPECT_TRUE(std::isnan(crumb::to_float(h)));
            EXPECT_TRUE(std::isnan(crumb::to_float(crumb::to_half(crumb::to_float(h)))));
            continue;
        }
        ASSERT_EQ(double{crumb::to_float(h)}, expected) << i;
        ASSERT_EQ(crumb::to_half(crumb::to_float(h)), h) << i;
        EXPECT_EQ(crumb::is_finite(h), std::isfinite(expected));
    }
}

TEST(Half, RoundsToNearestTiesToEven) {
    for (unsigned i = 0; i < 0x7c00; ++i) {
        const crumb::half low{static_cast<std::uint16_t>(i)}, high{static_cast<std::uint16_t>(i + 1)};
        const float below = crumb::to_float(low);
        const float above = i + 1 == 0x7c00 ? 65536.0f : crumb::to_float(high);
        const float middle = below + (above - below) / 2;
        ASSERT_EQ(crumb::to_half(middle), i % 2 == 0 ? low : high) << i;
        ASSERT_EQ(crumb::to_half(std::nextafter(middle, 0.0f)), low) << i;
        ASSERT_EQ(crumb::to_half(std::nextafter(middle, 1e30f)), high) << i;
        ASSERT_EQ(crumb::to_half(-middle).bits, crumb::to_half(middle).bits | 0x8000);
    }
    EXPECT_EQ(crumb::to_half(1e30f).bits, 0x7c00);
    EXPECT_EQ(crumb::to_half(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
    EXPECT_EQ(crumb::to_half(std::numeric_limits<float>::denorm_min()).bits, 0);
}

} // namespace
} // namespace test_half
