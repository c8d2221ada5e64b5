// Kernels of quantizers: the same bits on every ISA, for any split of the work and under all compiler flags.
#include "isa_test.hpp"

#include <crumb/offline/common/second_moments.hpp>
#include <crumb/offline/nested/feedback.hpp>
#include <crumb/offline/nested/training.hpp>
#include <crumb/offline/weights/cholesky.hpp>
#include <crumb/offline/weights/codebook.hpp>
#include <crumb/offline/weights/error_feedback.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace test_weight_kernels {
namespace {

using crumb::rounded;

/// Numbers within -1 .. 1 that no library's distribution makes.
class numbers {
  public:
    explicit numbers(std::uint64_t seed) : random_(seed) {}
    float next() { return static_cast<float>(random_.next() >> 40) * 0x1p-23f - 1.0f; }
    std::vector<float> floats(std::size_t n, float factor = 1) {
        std::vector<float> out(n);
        for (float& x : out)
            x = next() * factor;
        return out;
    }

  private:
    crumb::splitmix64 random_;
};

const crumb::dispatch::weight_functions& functions_of(const char* isa) {
    return **crumb::choose_weight_functions({isa});
}

/// Products of any shape are sums in the order of the depth, each product rounded.
TEST(WeightKernels, ProductsHaveOneOrder) {
    struct shape {
        std::size_t m, n, k;
        bool transposed; ///< A is stored by columns
    };
    for (const shape s : {shape{1, 16, 1, false},
                          {7, 48, 33, true},
                          {13, 112, 600, false},
                          {98, 80, 257, true},
                          {0, 32, 5, true}}) {
        numbers r(1);
        const auto a = r.floats(s.m * s.k + 1), b = r.floats(s.k * s.n), c = r.floats(s.m * s.n + 1);
        const std::size_t a_row = s.transposed ? 1 : s.k, a_depth = s.transposed ? s.m : 1;
        std::vector<float> wanted = c;
        std::vector<double> wanted_doubles(c.begin(), c.end());
        for (std::size_t i = 0; i < s.m; ++i)
            for (std::size_t j = 0; j < s.n; ++j)
                for (std::size_t k = 0; k < s.k; ++k) {
                    const float x = a[i * a_row + k * a_depth], y = b[k * s.n + j];
                    float product = x * y;
                    CRUMB_ROUND_PRODUCT(product);
                    wanted[i * s.n + j] += product;
                    wanted_doubles[i * s.n + j] -= double{x} * double{y}; // exact products
                }
        const std::vector<double> a2(a.begin(), a.end()), b2(b.begin(), b.end());
        crumb_test::for_each_isa([&](const crumb_test::tested_isa& isa) {
            auto got = c;
            functions_of(isa.name).add_product(
                {a.data(), a_row, a_depth, b.data(), s.n, got.data(), s.n, s.m, s.n, s.k});
            EXPECT_EQ(got, wanted);
            std::vector<double> doubles(c.begin(), c.end());
            functions_of(isa.name).subtract_product(
                {a2.data(), a_row, a_depth, b2.data(), s.n, doubles.data(), s.n, s.m, s.n, s.k});
            EXPECT_EQ(doubles, wanted_doubles);
        });
    }
}

TEST(WeightKernels, CholeskyFactorsAndInverses) {
    constexpr std::size_t n = 96;
    numbers r(2);
    const auto x = r.floats(2 * n * n);
    std::vector<double> a(n * n, 0.0);
    double trace = 0;
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j)
            for (std::size_t k = 0; k < 2 * n; ++k) {
                a[i * n + j] += double{x[k * n + i]} * double{x[k * n + j]};
                trace += i == j ? double{x[k * n + i]} * double{x[k * n + j]} : 0.0;
            }
    std::vector<double> first;
    crumb_test::for_each_isa([&](const crumb_test::tested_isa& isa) {
        auto u = a;
        ASSERT_TRUE(crumb::factor_cholesky(functions_of(isa.name), u.data(), n));
        for (std::size_t i = 0; i < n; ++i)
            std::fill_n(u.data() + i * n, i, 0.0);
        if (first.empty())
            first = u;
        EXPECT_EQ(u, first);
        // |A - U^T U| <= (n + 1) eps |U^T| |U|, and the entries of |U^T| |U| are below the trace of A.
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = 0; j < n; ++j) {
                double sum = 0;
                for (std::size_t k = 0; k < n; ++k)
                    sum += u[k * n + i] * u[k * n + j];
                ASSERT_NEAR(sum, a[i * n + j], 2 * (n + 1) * 0x1p-53 * trace);
            }
    });
    a[5 * n + 5] = -1;
    EXPECT_FALSE(crumb::factor_cholesky(functions_of("portable"), a.data(), n));
}

std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t hash = 0xcbf29ce484222325u) {
    for (const std::byte b : bytes)
        hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
    return hash;
}
template <class T>
std::uint64_t hash_of(const std::vector<T>& x, std::uint64_t hash) {
    return hash_of(std::as_bytes(std::span(x)), hash);
}

struct leveled_format {
    std::size_t entries;
    unsigned selector_bits;
    crumb::scale_kind scales;
    std::uint64_t hash;
};

/// What moments, codebooks and error feedback make of the same numbers, in `parts` shares; a hash per format.
std::vector<std::uint64_t> quantized_hashes(const char* isa, std::size_t parts,
                                            std::span<const leveled_format> formats) {
    constexpr std::size_t k = 272, n = 5, rows = 520; // blocks, groups and tiles that end early
    numbers r(3);
    const auto w = r.floats(n * k, 0.1f), common = r.floats(4 * k), x = r.floats(rows * k, 0.5f);
    std::vector<float> inputs = x;
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < k; ++j)
            inputs[i * k + j] += common[i % 4 * k + j];
    const crumb::context on{isa};
    crumb::second_moments<double> moments(k);
    for (std::size_t part = 0; part < parts; ++part)
        EXPECT_TRUE(moments.add(crumb::matrix<const float>(inputs.data(), rows, k), part, parts, on));
    const auto h = moments.matrix();
    const auto weights = crumb::matrix<const float>(w.data(), n, k);
    const auto feedback =
        crumb::error_feedback::make(crumb::matrix<const double>(h.data(), k, k), {.sweeps = 2}, on);
    EXPECT_TRUE(feedback);
    const crumb::training_matrix all[] = {{weights, {}}};
    std::vector<std::uint64_t> hashes;
    for (const leveled_format& f : formats) {
        const auto trained = crumb::train_codebooks(
            all,
            {.entries = f.entries, .selector_bits = f.selector_bits, .scales = f.scales, .max_rounds = 3},
            on);
        EXPECT_TRUE(trained);
        auto q = crumb::leveled_matrix::zeros(trained->levels, n, k);
        for (std::size_t part = 0; part < parts; ++part)
            EXPECT_TRUE(feedback->quantize(weights, q, crumb::split(n, parts, part)));
        std::uint64_t hash = hash_of(std::as_bytes(std::span(trained->levels.levels)));
        hash = hash_of(q.index, hash);
        hash = hash_of(q.exponent, hash);
        hashes.push_back(hash_of(q.scale, hash));
    }
    // Nested weights, after all formats.
    const auto levels = crumb::nested_levels::uniform(2, 4);
    auto q = crumb::nested_quantized::zeros(levels, n, k);
    const crumb::nested_feedback nested(feedback->system(), {.sweeps = 2, .descent = {.hot = 4, .cold = 2}});
    for (std::size_t part = 0; part < parts; ++part)
        EXPECT_TRUE(nested.quantize(weights, q, crumb::split(n, parts, part)));
    hashes.push_back(hash_of(q.scales, hash_of(std::as_bytes(std::span(q.codes)))));
    return hashes;
}

/// The hashes are those of every ISA of x86 and Arm.
TEST(WeightKernels, EveryIsaAndSplitQuantizesToTheSameBytes) {
    const leveled_format formats[] = {{16, 0, crumb::scale_kind::byte, 0x89fdc5244e2f301au},
                                      {8, 1, crumb::scale_kind::byte, 0xf4fa0dab5faa046u},
                                      {4, 2, crumb::scale_kind::byte, 0xb25f657504d0f111u},
                                      {4, 2, crumb::scale_kind::half, 0xe58ae9306a7cd206u}};
    std::size_t parts = 0; // another split on every ISA
    crumb_test::for_each_isa([&](const crumb_test::tested_isa& isa) {
        const auto hashes = quantized_hashes(isa.name, ++parts, formats);
        for (std::size_t i = 0; i < std::size(formats); ++i)
            EXPECT_EQ(hashes[i], formats[i].hash) << "0x" << std::hex << hashes[i];
        EXPECT_EQ(hashes.back(), 0x075b55567c819d35u) << "nested 0x" << std::hex << hashes.back();
    });
}

/// One step of a group's scales for all precisions, against sums in doubles.
TEST(WeightKernels, FitsNestedScales) {
    constexpr std::size_t inputs = 32, count = 5, lanes = crumb::kernel::search_lanes;
    numbers r(5);
    const auto w = r.floats(inputs), sums = r.floats(crumb::kernel::nested_codes, 100);
    std::vector<float> a = r.floats(inputs), squares;
    for (float& x : a)
        x = std::fabs(x) + 0.01f;
    for (const float s : sums)
        squares.push_back(s * s / 3);
    const std::vector<float> zeros(inputs);
    const float starts[count] = {0.01f, -0.01f, 0.003f, -1e-4f, 2.0f};
    crumb_test::for_each_isa([&](const crumb_test::tested_isa& isa) {
        const auto& functions = functions_of(isa.name);
        for (const std::size_t codes : {std::size_t{4}, std::size_t{8}, std::size_t{16}}) {
            alignas(64) float d[lanes], loss[lanes];
            std::fill_n(d, lanes, 1.0f);
            std::copy_n(starts, count, d);
            functions.fit_nested({sums.data(), squares.data(), codes, w.data(), a.data(), count, d, loss, 1});
            for (std::size_t n = 0; n < count; ++n) {
                double sum = 0, square = 0, size = 0;
                for (std::size_t i = 0; i < inputs; ++i) {
                    const double x = 2 * double{w[i]} / double{starts[n]};
                    std::size_t best = 0;
                    for (std::size_t c = 1; c < codes; ++c)
                        if (double{squares[c]} - x * double{sums[c]} <
                            double{squares[best]} - x * double{sums[best]})
                            best = c;
                    sum += double{a[i]} * double{w[i]} * double{sums[best]};
                    size += std::fabs(double{a[i]} * double{w[i]} * double{sums[best]});
                    square += double{a[i]} * double{squares[best]};
                }
                // Two roundings of a term, one of each of 31 sums; squares have one sign.
                const double off = 33 * 0x1p-24 * size, grown = 34 * 0x1p-24;
                EXPECT_NEAR(double{d[n]}, sum / square, 2 * (off + grown * std::fabs(sum)) / square);
                EXPECT_NEAR(double{loss[n]}, -sum * sum / square,
                            4 * std::fabs(sum) * (off + grown * std::fabs(sum)) / square);
            }
            // A group of zeros keeps its scales.
            std::copy_n(starts, count, d);
            functions.fit_nested(
                {sums.data(), squares.data(), codes, zeros.data(), a.data(), count, d, loss, 3});
            for (std::size_t n = 0; n < count; ++n) {
                EXPECT_EQ(d[n], starts[n]);
                EXPECT_EQ(loss[n], 0.0f);
            }
        }
    });
}

/// Tables, and the errors that training ends by, are those of every ISA of x86 and Arm.
TEST(WeightKernels, EveryIsaTrainsTheSameTables) {
    constexpr std::size_t n = 24, k = 80;
    numbers r(7);
    const auto w = r.floats(n * k, 0.1f), a = r.floats(k);
    std::vector<float> importance;
    for (const float x : a)
        importance.push_back(x * x);
    const crumb::training_matrix all[] = {{crumb::matrix<const float>(w.data(), n, k), importance}};
    crumb_test::for_each_isa([&](const crumb_test::tested_isa& isa) {
        const auto nested = crumb::train_nested(all, {}, {isa.name});
        ASSERT_TRUE(nested);
        std::uint64_t hash =
            hash_of(nested->errors, hash_of(std::as_bytes(std::span(nested->levels.levels))));
        for (const unsigned selector_bits : {0u, 1u, 2u}) {
            const auto trained = crumb::train_codebooks(
                all, {.entries = std::size_t{16} >> selector_bits, .selector_bits = selector_bits},
                {isa.name});
            ASSERT_TRUE(trained);
            hash = hash_of(trained->errors, hash_of(std::as_bytes(std::span(trained->levels.levels)), hash));
        }
        EXPECT_EQ(hash, 0xc9138c415852cf77u) << "0x" << std::hex << hash;
    });
}

} // namespace
} // namespace test_weight_kernels
