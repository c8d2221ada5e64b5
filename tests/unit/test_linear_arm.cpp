// What only ISAs with their own micro-kernels have: absorbed products, assembly, pairs of rows.
#include "format_test.hpp"
#include "guarded.hpp"
#include "isa_test.hpp"
#include "linear_problem.hpp"
#include "random_numbers.hpp"

#include <crumb/crumb.hpp>
#include <crumb/kernel/linear/definitions.hpp>
#include <crumb/offline/nested/quantized.hpp>
#include <crumb/reference/linear.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

// Declared where there is none as well.
namespace crumb::inline CRUMB_ABI::kernel {
template <class Isa>
struct panel_product;
} // namespace crumb::inline CRUMB_ABI::kernel

namespace test_linear_arm {
namespace {

using crumb::range;
using crumb_test::for_each_isa;
using crumb_test::guarded;
using crumb_test::normal_numbers;
template <class F>
using problem = crumb_test::linear_problem<F>;

/// What kernels take, with the tables that it points to.
template <class F>
struct arguments : crumb::kernel::linear_args {
    decltype(crumb::lookup_tables<F>({})) tables;

    arguments(const problem<F>& p, const crumb::activations& a, float* out)
        : tables(crumb::lookup_tables<F>(p.stored.codebooks)) {
        const crumb::packed_view<F>& w = p.packed;
        if constexpr (crumb::packed_layout<F>::has_exponents) {
            multipliers = w.scales();
            exponents = w.exponents();
        } else {
            scales = w.scales();
        }
        codebooks = tables.data();
        codes = w.codes();
        groups = w.groups();
        n = w.n();
        x_codes = a.codes();
        x_scales = a.scales();
        x_starts = a.starts();
        x_shifts = a.shifts();
        x_rows = a.rows();
        y = out;
        y_stride = w.n();
        rows = {0, a.rows()};
        channels = {0, w.n()};
    }
    arguments(const arguments&) = delete;
    arguments& operator=(const arguments&) = delete;
};

using absorbing = crumb::q4_0_absorbing;
[[maybe_unused]] constexpr auto absorbed = crumb::linear_mode::absorbed;
template <class I>
constexpr bool absorbs = crumb::kernel::absorbed_product<I, absorbing::codes>::available;

TEST(Absorbed, MatchesTheReferenceOnEveryShape) {
    for (std::size_t n : {1, 15, 16, 17, 40}) {
        for (std::size_t k : {1, 15, 16, 17, 31, 32, 33, 64, 127, 128, 160, 300}) {
            for (std::size_t m : {1, 3}) {
                const problem<absorbing> p(n, k, m, unsigned(n + 100 * k + 7 * m));
                for_each_isa([&]<class I>() {
                    if constexpr (absorbs<I>) {
                        const auto plan = p.plan(I::name, m == 3, absorbed);
                        const auto a = p.quantize(plan);
                        guarded<float> y(m * n);
                        plan.run(a.rows, crumb::matrix(y.data(), m, n));
                        const crumb::reference::activation_view view{a.rows.layout(), a.rows.codes(),
                                                                     a.rows.scales(), m};
                        const auto stored = p.stored.view();
                        for (std::size_t i = 0; i < m * n; ++i) {
                            const auto exact = crumb::reference::linear(stored, i % n, view, i / n);
                            const double b = m == 3 ? double{p.bias[i % n]} : 0.0;
                            const double eps = std::ldexp(1.0, -24);
                            // Roundings are those of sums whose terms 16 c_h y and c_l y may cancel.
                            const double bound = (double((k + 31) / 32) + 2.0) * eps * 2 * exact.magnitude +
                                                 eps * std::fabs(exact.value + b);
                            ASSERT_NEAR(double{y[i]}, exact.value + b, bound)
                                << I::name << " n " << n << " k " << k << " m " << m << " element " << i;
                        }
                    }
                });
            }
        }
    }
}

// An input is off by at most half a step, whose size follows from the input: the documented error.
TEST(Absorbed, ErrorIsHalfAStepPerInput) {
    const std::size_t n = 24, k = 512, m = 4;
    const problem<absorbing> p(n, k, m, 5);
    for_each_isa([&]<class I>() {
        if constexpr (absorbs<I>) {
            const auto y = p.run(I::name, false, absorbed);
            for (std::size_t r = 0; r < m; ++r) {
                for (std::size_t c = 0; c < n; ++c) {
                    double exact = 0, quantization = 0, magnitude = 0;
                    for (std::size_t g = 0; g < k; g += 32) {
                        const float* x = p.x.data() + r * k + g;
                        double largest = 0, weights = 0, most = 0;
                        for (std::size_t i = 0; i < 16; ++i) {
                            largest = std::fmax(largest, std::fabs(double{x[16 + i]}));
                            largest = std::fmax(largest, std::fabs(double{x[i]} - double{x[16 + i]} / 16));
                        }
                        for (std::size_t i = 0; i < 32; ++i) {
                            exact += p.stored.view().weight(c, g + i) * double{x[i]};
                            weights += std::fabs(p.stored.view().weight(c, g + i));
                            most = std::fmax(most, std::fabs(double{x[i]}));
                        }
                        ASSERT_LE(largest, 17.0 / 16.0 * most * 1.000001);
                        const double step = largest / 127 * (1 + std::ldexp(1.0, -15));
                        quantization += weights * step * (0.5 + 512 * std::ldexp(1.0, -24));
                        magnitude += weights * most * 2;
                    }
                    const double rounding = (double(k) / 32 + 2) * std::ldexp(1.0, -24) * magnitude;
                    ASSERT_NEAR(double{y[r * n + c]}, exact, quantization + rounding) << I::name;
                }
            }
        }
    });
}

TEST(Absorbed, ExtremeCodesAreExact) {
    for (const int code : {-8, -1, 0, 7}) {
        for (const auto& [low, high] : {std::pair{127.0f, 127.0f},
                                        {-127.0f, 127.0f},
                                        {127.0f, -127.0f},
                                        {-127.0f, -127.0f},
                                        {0.0f, 127.0f}}) {
            problem<absorbing> p(18, 160, 2, 2);
            p.fill(code, crumb::half{0x3c00});
            for (std::size_t i = 0; i < p.x.size(); ++i)
                p.x[i] = i % 32 < 16 ? low : high;
            for_each_isa([&]<class I>() {
                if constexpr (absorbs<I>) {
                    const auto plan = p.plan(I::name, false, absorbed);
                    const auto a = p.quantize(plan);
                    const crumb::reference::activation_view view{a.rows.layout(), a.rows.codes(),
                                                                 a.rows.scales(), p.m};
                    double sum = 0;
                    for (std::size_t i = 0; i < 160; ++i) {
                        ASSERT_LE(std::abs(view.code(0, i)), 127);
                        sum += code * view.value(0, i) * view.scale(0, i / 32);
                    }
                    for (float y : p.run(I::name, false, absorbed))
                        ASSERT_NEAR(double{y}, sum, std::fabs(sum) * std::ldexp(1.0, -21)) << I::name << code;
                }
            });
        }
    }
}

TEST(Absorbed, ResultsDependNeitherOnTheIsaNorOnAssemblyNorOnTheSplit) {
    const problem<absorbing> p(45, 300, 5, 3);
    std::vector<float> first;
    for_each_isa([&]<class I>() {
        if constexpr (absorbs<I>) {
            const auto whole = p.run(I::name, false, absorbed);
            if (first.empty())
                first = whole;
            EXPECT_EQ(whole, first) << I::name;
            const auto plan = p.plan(I::name, false, absorbed);
            const auto a = p.quantize(plan);
            std::vector<float> intrinsics(whole.size());
            using tile = crumb::kernel::absorbed_tile<I, absorbing>;
            crumb::kernel::absorbed_run<I, absorbing, tile>::run(arguments(p, a.rows, intrinsics.data()));
            EXPECT_EQ(whole, intrinsics) << I::name;
            for (int i = 0; i < 40; ++i) {
                std::vector<float> y(5 * 45, -7.0f);
                const range rows = crumb_test::part_of(5, std::size_t(i) * 3, std::size_t(i) % 7);
                const range channels = crumb_test::part_of(45, std::size_t(i) * 5, std::size_t(i) * 11);
                plan.run(a.rows, crumb::matrix(y.data(), 5, 45), {.rows = rows, .channels = channels});
                const range r = rows.within(5), c = channels.within(45);
                for (std::size_t j = 0; j < y.size(); ++j) {
                    const bool inside =
                        j / 45 >= r.begin && j / 45 < r.end && j % 45 >= c.begin && j % 45 < c.end;
                    ASSERT_EQ(y[j], inside ? whole[j] : -7.0f) << I::name << ' ' << i << ' ' << j;
                }
            }
        }
    });
}

TEST(Absorbed, NotFiniteRowsAreNotANumberAndTinyOnesAreZero) {
    for (const std::size_t at : {0, 16, 70, 95}) {
        for (const float bad :
             {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
              -std::numeric_limits<float>::infinity(), 2e33f}) {
            problem<absorbing> p(20, 96, 3, 7);
            p.x[96 + at] = bad;
            std::fill_n(p.x.begin() + 2 * 96, 96, 1e-37f);
            for_each_isa([&]<class I>() {
                if constexpr (absorbs<I>) {
                    const auto y = p.run(I::name, false, absorbed);
                    for (std::size_t i = 0; i < y.size(); ++i)
                        ASSERT_TRUE(i / 20 == 0   ? std::isfinite(y[i])
                                    : i / 20 == 1 ? std::isnan(y[i])
                                                  : y[i] == 0)
                            << I::name << ' ' << bad;
                }
            });
        }
    }
}

TEST(Absorbed, PlansRefuseWhatHasNoSuchProducts) {
    const problem<crumb::q4_0> exact(16, 32, 1, 1);
    const problem<absorbing> p(16, 32, 1, 1);
    for_each_isa([&]<class I>() {
        const auto other = crumb::linear<crumb::q4_0>::plan(exact.packed, {.mode = absorbed}, {I::name});
        ASSERT_FALSE(other);
        EXPECT_EQ(other.error().code(), crumb::errc::unsupported);
        EXPECT_EQ(other.message(),
                  std::string("no absorbed products for weights in format q4_0 on ") + I::name);
        const auto plan = crumb::linear<absorbing>::plan(p.packed, {.mode = absorbed}, {I::name});
        EXPECT_EQ(plan.ok(), absorbs<I>) << I::name;
    });
}

// ---- pairs of bits ----------------------------------------------------------------------------------------

template <class I>
constexpr bool absorbs_pairs = crumb::kernel::absorbed_product<I, crumb::u2::codes>::available;

TEST(AbsorbedPairs, MatchTheReferenceTheAssemblyAndTheStatedError) {
    for (std::size_t n : {1, 16, 17, 40}) {
        for (std::size_t k : {32, 64, 128, 160, 352}) {
            for (std::size_t m : {1, 3}) {
                const problem<crumb::u2> p(n, k, m, unsigned(n + 100 * k + 7 * m));
                for_each_isa([&]<class I>() {
                    if constexpr (absorbs_pairs<I>) {
                        const auto plan =
                            crumb::linear<crumb::u2>::plan(p.packed, {.mode = absorbed}, {I::name});
                        ASSERT_TRUE(plan) << plan.message();
                        const auto a = p.quantize(*plan);
                        guarded<float> y(m * n);
                        plan->run(a.rows, crumb::matrix(y.data(), m, n));
                        const crumb::reference::activation_view view{a.rows.layout(), a.rows.codes(),
                                                                     a.rows.scales(), m};
                        const auto stored = p.stored.view();
                        for (std::size_t i = 0; i < m * n; ++i) {
                            const auto exact = crumb::reference::linear(stored, i % n, view, i / n);
                            const double bound =
                                (double(k / 32) + 2.0) * std::ldexp(1.0, -24) * 2 * exact.magnitude;
                            ASSERT_NEAR(double{y[i]}, exact.value, bound)
                                << I::name << " n " << n << " k " << k << " m " << m << " element " << i;
                        }
                        for (std::size_t r = 0; r < m; ++r) {
                            for (std::size_t g = 0; g < k; g += 32) {
                                const double step = view.scale(r, g / 32);
                                double most = 0;
                                int moved = 0;
                                for (std::size_t i = g; i < g + 32; ++i) {
                                    const double x = double{p.x[r * k + i]};
                                    const double off = std::fabs(view.value(r, i) * step - x) / step;
                                    most = std::fmax(most, std::fabs(x));
                                    moved += off > 0.50001;
                                    ASSERT_LE(off, i % 32 >= 16 && i % 8 < 4 ? 1.50001 : 0.50001) << i;
                                }
                                ASSERT_LE(moved, 1);
                                ASSERT_LE(step, 1.4376 * most / 127);
                            }
                        }
                        std::vector<float> intrinsics(m * n);
                        using tile = crumb::kernel::absorbed_tile<I, crumb::u2>;
                        crumb::kernel::absorbed_run<I, crumb::u2, tile>::run(
                            arguments(p, a.rows, intrinsics.data()));
                        ASSERT_TRUE(std::equal(intrinsics.begin(), intrinsics.end(), y.begin())) << I::name;
                    }
                });
            }
        }
    }
}

TEST(AbsorbedPairs, ExtremesAndWhatIsRefused) {
    for_each_isa([&]<class I>() {
        const problem<crumb::u2> ragged(16, 40, 1, 1);
        const auto refused = crumb::linear<crumb::u2>::plan(ragged.packed, {.mode = absorbed}, {I::name});
        EXPECT_FALSE(refused);
        if constexpr (absorbs_pairs<I>) {
            problem<crumb::u2> p(20, 160, 4, 2);
            for (std::size_t i = 0; i < 160; ++i) {
                p.x[i] = i % 3 == 0 ? -127.0f : 127.0f;
                p.x[160 + i] = i % 32 >= 16 && i % 8 < 4 ? 127.0f : -127.0f;
                p.x[320 + i] = 1e-37f;
            }
            p.x[480 + 70] = std::numeric_limits<float>::infinity();
            const auto plan = crumb::linear<crumb::u2>::plan(p.packed, {.mode = absorbed}, {I::name});
            ASSERT_TRUE(plan) << plan.message();
            const auto a = p.quantize(*plan);
            std::vector<float> y(4 * 20);
            plan->run(a.rows, crumb::matrix(y.data(), 4, 20));
            const crumb::reference::activation_view view{a.rows.layout(), a.rows.codes(), a.rows.scales(), 4};
            for (std::size_t i = 0; i < 40; ++i) {
                const auto exact = crumb::reference::linear(p.stored.view(), i % 20, view, i / 20);
                ASSERT_NEAR(double{y[i]}, exact.value, 14 * std::ldexp(1.0, -24) * exact.magnitude);
            }
            for (std::size_t i = 40; i < 60; ++i)
                ASSERT_EQ(y[i], 0.0f);
            for (std::size_t i = 60; i < 80; ++i)
                ASSERT_TRUE(std::isnan(y[i]));
        }
    });
}

TEST(Absorbed, PackingKeepsTheBlocks) {
    const problem<absorbing> p(17, 70, 1, 4);
    for (std::size_t r = 0; r < 17; ++r)
        for (std::size_t g = 0; g < 3; ++g)
            for (std::size_t i = 0; i < 32; ++i)
                ASSERT_EQ(absorbing::code(crumb::unpack(p.packed, r, g), i),
                          g * 32 + i < 70 ? absorbing::code(p.stored.blocks[r * 3 + g], i) : 0);
}

template <class F>
struct OwnTiles {};
using formats = crumb_test::types_of<crumb::format_list, crumb::variant_list>;
FORMAT_TEST_SUITE(OwnTiles, formats);

[[maybe_unused]] constexpr crumb::half one_third(crumb::half*) { return {0x3555}; }
[[maybe_unused]] constexpr crumb::block_scale one_third(crumb::block_scale*) { return {119, 85}; }

FORMAT_TEST(OwnTiles, AssemblyAgreesWithIntrinsicsBitForBit) {
    using F = TypeParam;
    for (std::size_t k : {32, 96, 128, 160, 420, 512}) {
        for (std::size_t m : {1, 8, 16, 24, 31}) {
            // Their blocks have no assembly, and take long to compile.
            constexpr bool indices = crumb::indexed_codes<typename F::codes>;
            if (indices && m != 1)
                continue;
            problem<F> p(37, k, m, unsigned(k + m));
            constexpr bool any_entry = crumb::needs_codebooks<F>;
            for (const int code :
                 {1000, any_entry ? -128 : F::codes::minimum, any_entry ? 127 : F::codes::maximum}) {
                if (code != 1000) {
                    p.fill(code, one_third(static_cast<typename F::scales::value*>(nullptr)));
                    for (std::size_t i = 0; i < p.x.size(); ++i)
                        p.x[i] = i % 3 == 0 ? -1.0f : 1.0f;
                }
                for_each_isa([&]<class I>() {
                    if constexpr (crumb::kernel::has_own_tiles<I>) {
                        const auto plan =
                            crumb::linear<F>::plan(p.packed, {.codebooks = p.stored.codebooks}, {I::name});
                        const auto a = p.quantize(*plan);
                        std::vector<float> y(m * 37), intrinsics(m * 37);
                        using run = crumb::kernel::linear_run<I, F>;
                        using other =
                            crumb::kernel::linear_run<I, F, typename I::template intrinsics_tile<F>>;
                        if (m == 1) {
                            run::gemv(arguments(p, a.rows, y.data()));
                            other::gemv(arguments(p, a.rows, intrinsics.data()));
                        } else if constexpr (!indices) {
                            run::gemm(arguments(p, a.rows, y.data()));
                            other::gemm(arguments(p, a.rows, intrinsics.data()));
                        }
                        ASSERT_EQ(std::memcmp(y.data(), intrinsics.data(), y.size() * sizeof(float)), 0)
                            << I::name << " k " << k << " m " << m << " codes " << code;
                    }
                });
            }
        }
    }
}

template <class P>
void expect_nested_assembly_agrees(std::size_t k, unsigned seed) {
    const std::size_t n = 37, groups = (k + 31) / 32;
    std::mt19937 random(seed);
    normal_numbers<float> normal;
    crumb::nested_levels levels;
    for (int bits = 2; bits <= 4; ++bits)
        for (int q = 0; q < 1 << bits; ++q)
            levels.table(bits)[std::size_t(q)] = static_cast<std::int8_t>(
                q * 255 / ((1 << bits) - 1) - 128 + (q % ((1 << bits) - 1) == 0 ? 0 : int(random() % 5)));
    auto stored = crumb::nested_quantized::zeros(levels, n, k);
    for (auto& c : stored.codes)
        c = static_cast<std::uint8_t>(random() % 16);
    for (auto& s : stored.scales)
        s = crumb::to_half(normal(random));
    guarded<std::byte> memory(crumb::nested_packed_bytes(n, k, 4));
    const auto packed = crumb::pack(stored, memory.span());
    ASSERT_TRUE(packed) << packed.message();
    std::vector<float> x(k);
    for (auto& v : x)
        v = normal(random);
    // Random codes, then the largest sums that there are.
    for (const bool extreme : {false, true}) {
        if (extreme) {
            std::fill(stored.codes.begin(), stored.codes.end(), std::uint8_t{0});
            std::fill(x.begin(), x.end(), 127.0f);
            ASSERT_TRUE(crumb::pack(stored, memory.span()));
        }
        for_each_isa([&]<class I>() {
            if constexpr (crumb::kernel::has_own_tiles<I>) {
                const auto layout = crumb::nested_linear::plan(*packed, {}, {I::name})->input_plan();
                guarded<std::byte> codes(crumb::activation_bytes(layout, 1));
                auto a = *crumb::activations::create(codes.span(), layout, 1);
                a.quantize(crumb::matrix(std::as_const(x).data(), 1, k));
                const auto tables = crumb::nested_lookup_tables<P>(levels);
                std::vector<float> y(n), intrinsics(n);
                crumb::kernel::linear_args args;
                args.scales = packed->scales();
                args.codes = packed->plane(0);
                args.planes[0] = packed->plane(1);
                args.planes[1] = packed->plane(2);
                args.codebooks = tables.data();
                args.groups = groups;
                args.n = n;
                args.x_codes = a.codes();
                args.x_scales = a.scales();
                args.x_rows = 1;
                args.y_stride = n;
                args.rows = {0, 1};
                args.channels = {0, n};
                args.y = y.data();
                crumb::kernel::linear_run<I, P>::gemv(args);
                args.y = intrinsics.data();
                crumb::kernel::linear_run<I, P, typename I::template intrinsics_tile<P>>::gemv(args);
                ASSERT_EQ(std::memcmp(y.data(), intrinsics.data(), n * sizeof(float)), 0)
                    << P::name << ' ' << I::name << " k " << k << (extreme ? " extreme" : "");
                ASSERT_NE(y[0], 0.0f);
            }
        });
    }
}

TEST(NestedTiles, AssemblyAgreesWithIntrinsicsBitForBit) {
    for (const std::size_t k : {32, 96, 128, 160, 420, 512}) {
        crumb::precision_list::for_each(
            [&]<class P>() { expect_nested_assembly_agrees<P>(k, unsigned(k) + P::codes::bits); });
    }
}

FORMAT_TEST(OwnTiles, FormatsOfAllLayoutsAgreeWithTheReference) {
    using F = TypeParam;
    const problem<F> p(19, 100, 13, 9);
    for_each_isa([&]<class I>() {
        const auto plan = crumb::linear<F>::plan(p.packed, {.codebooks = p.stored.codebooks}, {I::name});
        const auto a = p.quantize(*plan);
        guarded<float> y(13 * 19);
        plan->run(a.rows, crumb::matrix(y.data(), 13, 19));
        const crumb::reference::activation_view view{a.rows.layout(), a.rows.codes(), a.rows.scales(), 13};
        for (std::size_t i = 0; i < 13 * 19; ++i) {
            const auto exact = crumb::reference::linear(p.stored.view(), i % 19, view, i / 19);
            ASSERT_NEAR(double{y[i]}, exact.value, 14 * std::ldexp(1.0, -24) * exact.magnitude) << I::name;
        }
    });
}

TEST(Panel, IsExactUpToItsRoundings) {
    for_each_isa([&]<class I>() {
        if constexpr (requires { crumb::kernel::panel_product<I>::add; }) {
            std::mt19937 random(12);
            for (const std::size_t inputs : {0, 32, 64, 96, 512}) {
                for (const bool extreme : {false, true}) {
                    guarded<std::int8_t> w(8 * inputs), x(8 * inputs);
                    guarded<float> w_scales(8), x_scales(8), y(64);
                    for (auto& v : w)
                        v = extreme ? std::int8_t{-128} : static_cast<std::int8_t>(random());
                    for (auto& v : x)
                        v = static_cast<std::int8_t>(extreme ? 127 : int(random() % 255) - 127);
                    for (std::size_t i = 0; i < 8; ++i) {
                        w_scales[i] = 0.01f * static_cast<float>(random() % 100);
                        x_scales[i] = 0.01f * static_cast<float>(random() % 100);
                    }
                    std::fill(y.begin(), y.end(), 0.3f);
                    const crumb::kernel::panel_args args{w.data(), w_scales.data(), x.data(), x_scales.data(),
                                                         inputs};
                    crumb::kernel::panel_product<I>::add(args, y.data());
                    std::vector<float> other(64, 0.3f);
                    crumb::kernel::panel_product<I>::add_intrinsics(args, other.data());
                    for (std::size_t r = 0; r < 8; ++r) {
                        for (std::size_t c = 0; c < 8; ++c) {
                            const auto at = crumb::position_in_block(crumb::activation_order::pairs, r, 8);
                            std::int32_t sum = 0;
                            for (std::size_t k = 0; k < inputs; ++k)
                                sum += x[at.code + k / 32 * at.group_stride + k % 32 / 8 * at.chunk_stride +
                                         k % 8] *
                                       w[k / 8 * 64 + 8 * c + k % 8];
                            const float scaled = static_cast<float>(sum) * x_scales[r];
                            const std::size_t i = r / 2 * 16 + c / 2 * 4 + r % 2 * 2 + c % 2;
                            ASSERT_EQ(y[i], std::fma(scaled, w_scales[c], 0.3f));
                            ASSERT_EQ(y[i], other[i]);
                        }
                    }
                }
            }
        }
    });
}

TEST(ActivationOrder, PairsLieTogetherAndScalesTwice) {
    const auto of = [](crumb::activation_order order, std::size_t i, std::size_t height) {
        return crumb::position_in_block(order, i, height);
    };
    using enum crumb::activation_order;
    EXPECT_EQ(of(chunks, 3, 8).code, 24u);
    EXPECT_EQ(of(chunks, 3, 8).chunk_stride, 64u);
    EXPECT_EQ(of(pairs, 3, 8).code, 72u);
    EXPECT_EQ(of(pairs, 3, 8).chunk_stride, 16u);
    EXPECT_EQ(of(pairs, 3, 8).scale, 3u);
    EXPECT_EQ(of(twin_pairs, 3, 8).scale, 6u);
    EXPECT_EQ(of(twin_pairs, 3, 8).scale_stride, 16u);
    EXPECT_EQ(of(twin_pairs, 4, 5).code, 128u);
    EXPECT_EQ(of(twin_pairs, 4, 5).chunk_stride, 8u);
    for (const auto order : {chunks, pairs, twin_pairs}) {
        EXPECT_EQ(of(order, 0, 1).chunk_stride, 8u);
        EXPECT_EQ(of(order, 0, 1).scale_stride, 1u);
        // Every byte and every scale of a group has one owner.
        for (std::size_t height = 1; height <= 16; ++height) {
            std::vector<int> bytes(height * 32), scales(height * 2);
            for (std::size_t i = 0; i < height; ++i) {
                const auto p = of(order, i, height);
                for (std::size_t j = 0; j < 32; ++j)
                    ++bytes.at(p.code + j / 8 * p.chunk_stride + j % 8);
                for (std::size_t j = 0; j < p.scale_copies; ++j)
                    ++scales.at(p.scale + j);
            }
            EXPECT_EQ(bytes, std::vector<int>(height * 32, 1));
            EXPECT_LE(*std::max_element(scales.begin(), scales.end()), 1);
        }
    }
}

} // namespace
} // namespace test_linear_arm
