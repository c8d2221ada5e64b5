#include "format_test.hpp"
#include "guarded.hpp"
#include "isa_test.hpp"
#include "random_numbers.hpp"
#include "random_weights.hpp"

#include <crumb/crumb.hpp>
#include <crumb/offline/weights/quantize.hpp>
#include <crumb/reference/linear.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace test_panels {
namespace {

using crumb::range;
using crumb_test::for_each_isa;
using crumb_test::guarded;
using crumb_test::normal_numbers;
using crumb_test::tested_isa;

template <class F>
struct Panels {
    /// Weights whose scales differ by three powers of ten between groups and channels.
    void make(std::size_t n_, std::size_t k_, std::size_t m_) {
        n = n_, k = k_, m = m_;
        normal_numbers<float> normal;
        stored = crumb_test::random_weights<F>(n, k, random, 2.7);
        pack();
        x.resize(m * k);
        for (auto& v : x)
            v = normal(random);
        bias.resize(n);
        for (auto& v : bias)
            v = normal(random);
    }
    void pack() {
        weights = std::make_unique<guarded<std::byte>>(crumb::packed_bytes<F>(n, k));
        const auto p = crumb::pack(stored.view(), weights->span());
        ASSERT_TRUE(p) << p.message();
        packed = *p;
    }
    crumb::result<crumb::linear<F>> plan(const char* isa, bool with_bias = false) const {
        return crumb::linear<F>::plan(
            packed,
            {.bias = with_bias ? std::span<const float>(bias) : std::span<const float>(),
             .mode = crumb::linear_mode::panels,
             .codebooks = stored.codebooks},
            {isa});
    }
    void check(const tested_isa& isa, bool with_bias) {
        const auto p = plan(isa.name, with_bias);
        ASSERT_TRUE(p) << p.message();
        guarded<std::byte> memory(crumb::activation_bytes(p->input_plan(), m));
        auto a = *crumb::activations::create(memory.span(), p->input_plan(), m);
        a.quantize(crumb::matrix<const float>(x.data(), m, k));
        guarded<float> y(m * n);
        p->run(a, crumb::matrix(y.data(), m, n));
        const crumb::reference::activation_view input{a.layout(), a.codes(), a.scales(), m};
        const double eps = std::ldexp(1.0, -24);
        const double spans = double((k + crumb::panel_inputs - 1) / crumb::panel_inputs);
        for (std::size_t r = 0; r < m; ++r) {
            for (std::size_t c = 0; c < n; ++c) {
                const auto exact = crumb::reference::panel_linear(stored.view(), c, input, r);
                const double b = with_bias ? double{bias[c]} : 0.0;
                // As in the exact mode, with a span of 512 inputs in the place of a group.
                const double bound = (spans + 2) * eps * exact.magnitude + eps * std::fabs(exact.value + b);
                ASSERT_NEAR(double{y[r * n + c]}, exact.value + b, bound)
                    << F::name << ' ' << isa.name << " n " << n << " k " << k << " m " << m << " row " << r
                    << " channel " << c;
            }
        }
    }

    std::mt19937 random{3};
    std::size_t n = 0, k = 0, m = 0;
    crumb_test::stored_weights<F> stored;
    std::vector<float> x, bias;
    std::unique_ptr<guarded<std::byte>> weights;
    crumb::packed_view<F> packed;
};
using formats = crumb_test::types_of<crumb::format_list, crumb::variant_list>;
FORMAT_TEST_SUITE(Panels, formats);

FORMAT_TEST(Panels, MatchTheReference) {
    for (std::size_t channels : {1, 16, 31, 50, 96}) {
        for (std::size_t inputs : {1, 33, 512, 545, 1056}) {
            for (std::size_t rows : {1, 2, 7, 8, 13, 29}) {
                this->make(channels, inputs, rows);
                for_each_isa([&](const tested_isa& isa) {
                    if (isa.panel_row_block != 0)
                        this->check(isa, (channels + rows) % 2 == 0);
                });
            }
        }
    }
    // No inputs: the bias.
    this->make(48, 0, 33);
    for_each_isa([&](const tested_isa& isa) {
        if (isa.panel_row_block != 0)
            this->check(isa, true);
    });
    // More rows than totals are kept for at once.
    this->make(17, 70, 300);
    for_each_isa([&](const tested_isa& isa) {
        if (isa.panel_row_block != 0)
            this->check(isa, true);
    });
}

FORMAT_TEST(Panels, RequantizedWeightsStayWithinTheStatedDistance) {
    this->make(32, 1024, 3);
    const auto weights_view = this->stored.view();
    const std::vector<std::int8_t> codes(3 * 1024, 1);
    const std::vector<float> scales(3 * 2, 1.0f);
    const crumb::reference::activation_view ones{
        {.k = 1024, .group = crumb::panel_inputs}, codes.data(), scales.data(), 3};
    for (std::size_t c = 0; c < this->n; ++c) {
        double most = 0;
        for (std::size_t g = 0; g < 32; ++g)
            most = std::fmax(most, double{std::fabs(crumb::to_float(weights_view.scale(c, g)))});
        const double distance = most * (1 << TypeParam::codes::panel_shift) / 127;
        const auto p = crumb::reference::panel_linear(weights_view, c, ones, 0);
        ASSERT_LE(p.requantized, 1024 * distance * (1 + 1e-6));
        ASSERT_GT(p.requantized, 0);
    }
}

FORMAT_TEST(Panels, ExtremeCodesAndScales) {
    this->make(16, 512, 8);
    using scale = typename TypeParam::scales::value;
    constexpr bool halves = std::is_same_v<scale, crumb::half>;
    int low[32], high[32];
    for (int i = 0; i < 32; ++i) {
        low[i] = TypeParam::codes::minimum;
        high[i] = TypeParam::codes::maximum;
    }
    std::vector<scale> scales;
    if constexpr (halves)
        scales = {{0x7bff}, {0xfbff}, {0x0001}, {0x0000}, {0x3c00}};
    else
        scales = {{140, 127}, {140, -128}, {140, 1}, {140, 0}, {140, 8}};
    std::size_t i = 0;
    for (auto& block : this->stored.blocks)
        for (std::size_t g = 0; g < TypeParam::scales::block_groups; ++g, ++i)
            TypeParam::set(block, scales[i % 5], i % 2 != 0 ? low : high, g);
    this->pack();
    for (std::size_t j = 0; j < this->x.size(); ++j)
        this->x[j] = j / 512 % 2 != 0 ? 1.0f : -1.0f;
    for_each_isa([&](const tested_isa& isa) {
        if (isa.panel_row_block != 0)
            this->check(isa, false);
    });
    // All scales zero.
    for (auto& block : this->stored.blocks)
        for (std::size_t g = 0; g < TypeParam::scales::block_groups; ++g)
            TypeParam::set(block, scale{}, low, g);
    this->pack();
    for_each_isa([&](const tested_isa& isa) {
        if (isa.panel_row_block != 0)
            this->check(isa, false);
    });
}

FORMAT_TEST(Panels, ResultsDoNotDependOnRowsOrSplit) {
    this->make(75, 600, 21);
    for_each_isa([&](const tested_isa& isa) {
        if (isa.panel_row_block != 0) {
            const auto p = *this->plan(isa.name, true);
            std::vector<std::byte> buffer(crumb::activation_bytes(p.input_plan(), 21) + 64);
            const auto aligned = reinterpret_cast<std::byte*>(
                crumb::round_up(reinterpret_cast<std::uintptr_t>(buffer.data()), crumb::alignment));
            const auto bytes = crumb::activation_bytes(p.input_plan(), 21);
            auto a = *crumb::activations::create({aligned, bytes}, p.input_plan(), 21);
            a.quantize(crumb::matrix<const float>(this->x.data(), 21, 600));
            std::vector<float> whole(21 * 75), parts(21 * 75, -1.0f);
            p.run(a, crumb::matrix(whole.data(), 21, 75));
            for (const range rows : {range{0, 5}, range{5, 17}, range{17, 21}})
                for (const range channels : {range{0, 3}, range{3, 40}, range{40, 75}})
                    p.run(a, crumb::matrix(parts.data(), 21, 75), {rows, channels});
            ASSERT_EQ(whole, parts) << isa.name;
            for (std::size_t r = 0; r < 21; ++r) {
                auto one = *crumb::activations::create({aligned, bytes}, p.input_plan(), 1);
                one.quantize(crumb::matrix<const float>(this->x.data() + r * 600, 1, 600));
                std::vector<float> y(75);
                p.run(one, crumb::matrix(y.data(), 1, 75));
                ASSERT_EQ(std::memcmp(y.data(), whole.data() + r * 75, 75 * sizeof(float)), 0) << isa.name;
            }
        }
    });
}

FORMAT_TEST(Panels, NotFiniteActivationsGiveNotFiniteOutputs) {
    this->make(16, 1024, 2);
    this->x[1024 + 600] = std::numeric_limits<float>::infinity();
    for_each_isa([&](const tested_isa& isa) {
        if (isa.panel_row_block != 0) {
            const auto p = *this->plan(isa.name);
            guarded<std::byte> memory(crumb::activation_bytes(p.input_plan(), 2));
            auto a = *crumb::activations::create(memory.span(), p.input_plan(), 2);
            a.quantize(crumb::matrix<const float>(this->x.data(), 2, 1024));
            std::vector<float> y(32);
            p.run(a, crumb::matrix(y.data(), 2, 16));
            for (std::size_t i = 0; i < 32; ++i)
                ASSERT_EQ(std::isfinite(y[i]), i < 16);
        }
    });
}

FORMAT_TEST(Panels, PlansWithoutThemAreRefused) {
    this->make(16, 32, 1);
    for_each_isa([&](const tested_isa& isa) {
        const auto p = this->plan(isa.name);
        if (isa.panel_row_block != 0) {
            ASSERT_TRUE(p);
            EXPECT_EQ(p->input_plan().layout.group, crumb::panel_inputs);
        } else {
            ASSERT_FALSE(p);
            EXPECT_EQ(p.error().code(), crumb::errc::unsupported);
            EXPECT_NE(std::strstr(p.message(), isa.name), nullptr);
        }
    });
}

} // namespace
} // namespace test_panels
