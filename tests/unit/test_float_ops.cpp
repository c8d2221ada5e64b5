#include "guarded.hpp"
#include "isa_test.hpp"
#include "random_numbers.hpp"

#include <crumb/op/float_ops.hpp>
#include <crumb/reference/float_ops.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace test_float_ops {
namespace {

namespace reference = crumb::reference;
using crumb_test::for_each_isa;
using crumb_test::guard;
using crumb_test::guarded;
using crumb_test::normal_numbers;
using crumb_test::tested_isa;

// The documented bounds are for one rounding per multiply-add; twice that holds for ISAs without FMA too.
constexpr double eps = 2 * 0x1p-24;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Calls f(ops, side) for every ISA and both kinds of guards.
template <class F>
void for_each_ops(F f) {
    for_each_isa([&](const tested_isa& isa) {
        const auto ops = crumb::float_ops::plan({isa.name});
        ASSERT_TRUE(ops) << ops.message();
        ASSERT_STREQ(ops->isa(), isa.name);
        f(*ops, guard::after);
        f(*ops, guard::before);
    });
}

class random_floats {
  public:
    explicit random_floats(unsigned seed) : engine_(seed) {}
    float operator()(float spread = 1, float center = 0) {
        return center + spread * static_cast<float>(normal_(engine_));
    }
    template <class T>
    void fill(T& to, float spread = 1, float center = 0) {
        for (auto& x : to)
            x = (*this)(spread, center);
    }

  private:
    std::mt19937 engine_;
    normal_numbers<double> normal_;
};

std::vector<std::size_t> widths() {
    std::vector<std::size_t> n;
    for (std::size_t i = 1; i <= 70; ++i)
        n.push_back(i);
    n.insert(n.end(), {127, 128, 129, 512, 1000, 4096});
    return n;
}

TEST(float_ops, plan) {
    const auto bad = crumb::float_ops::plan({"abacus"});
    ASSERT_FALSE(bad);
    EXPECT_NE(std::string(bad.message()).find("abacus"), std::string::npos);
}

TEST(float_ops, rms_norm) {
    for_each_ops([](const crumb::float_ops& ops, guard side) {
        random_floats random(1);
        for (const std::size_t n : widths()) {
            for (const float size : {1.0f, 1e-6f, 1e15f}) {
                guarded<float> x(n, side), w(n, side), y(n, side);
                random.fill(x, size, size);
                random.fill(w);
                std::vector<double> want(n);
                reference::rms_norm(x.data(), w.data(), n, double(1e-5f), want.data());
                ops.rms_norm(crumb::matrix(x.data(), 1, n), w.span(), 1e-5f, crumb::matrix(y.data(), 1, n));
                for (std::size_t i = 0; i < n; ++i)
                    ASSERT_LE(std::fabs(y[i] - want[i]), (double(n) / 16 + 14) * eps * std::fabs(want[i]))
                        << n;
            }
        }
    });
}

TEST(float_ops, layer_norm) {
    for_each_ops([](const crumb::float_ops& ops, guard side) {
        random_floats random(2);
        for (const std::size_t n : widths()) {
            for (const float center : {0.0f, 1.0f, 1000.0f}) {
                for (const bool biased : {false, true}) {
                    guarded<float> x(n, side), w(n, side), bias(n, side), y(n, side);
                    random.fill(x, 1, center);
                    random.fill(w);
                    random.fill(bias);
                    std::vector<double> want(n);
                    const float epsilon = 1e-5f;
                    reference::layer_norm(x.data(), w.data(), biased ? bias.data() : nullptr, n,
                                          double(epsilon), want.data());
                    ops.layer_norm(crumb::matrix(x.data(), 1, n), w.span(),
                                   biased ? bias.span() : std::span<const float>{}, epsilon,
                                   crumb::matrix(y.data(), 1, n));
                    const auto m = reference::moments_of(x.data(), n);
                    double most = 0;
                    for (const float v : x)
                        most = std::max(most, std::fabs(double(v)));
                    for (std::size_t i = 0; i < n; ++i) {
                        const double size = std::fabs(double(w[i])) *
                                                (std::fabs(double(x[i]) - m.mean) + most) /
                                                std::sqrt(m.variance + double(epsilon)) +
                                            std::fabs(want[i]);
                        ASSERT_LE(std::fabs(y[i] - want[i]), (double(n) / 8 + 24) * eps * size)
                            << n << ' ' << center;
                    }
                }
            }
        }
    });
}

TEST(float_ops, softmax) {
    for_each_ops([](const crumb::float_ops& ops, guard side) {
        random_floats random(3);
        for (const std::size_t n : widths()) {
            for (const float scale : {1.0f, 0.125f, -2.0f, 30.0f}) {
                guarded<float> x(n, side), y(n, side);
                random.fill(x, 3, -5);
                for (const std::size_t valid : {n, n / 2, std::size_t{1}}) {
                    std::vector<double> want(n);
                    reference::softmax(x.data(), n, valid, double(scale), want.data());
                    ops.softmax(crumb::matrix(x.data(), 1, n), crumb::matrix(y.data(), 1, n),
                                {.scale = scale, .valid = valid});
                    double most = 0;
                    for (const float v : x)
                        most = std::max(most, std::fabs(double(scale) * double(v)));
                    for (std::size_t i = 0; i < n; ++i) {
                        // Columns that take no part: exactly 0.
                        const double size = i < valid ? (double(n) / 4 + 16 + 4 * most) * eps : 0;
                        const double bound = size * want[i] + (i < valid ? 0x1p-149 : 0);
                        ASSERT_LE(std::fabs(y[i] - want[i]), bound) << n << ' ' << scale;
                    }
                }
            }
        }
    });
}

TEST(float_ops, softmax_causal_and_special_values) {
    for_each_ops([](const crumb::float_ops& ops, guard side) {
        guarded<float> x(7 * 5, side);
        for (float& v : x)
            v = 2;
        ops.softmax(crumb::matrix(x.data(), 7, 5), crumb::matrix(x.data(), 7, 5),
                    {.valid = 1, .valid_step = 1});
        for (std::size_t r = 0; r < 7; ++r) {
            const std::size_t valid = std::min<std::size_t>(r + 1, 5);
            for (std::size_t c = 0; c < 5; ++c)
                EXPECT_NEAR(x[5 * r + c], c < valid ? 1.0 / double(valid) : 0.0, 4 * eps);
        }
        for (const std::size_t n : {1, 5, 16, 40, 67}) {
            const auto run = [&](float special, std::size_t at) {
                std::vector<float> row(n, 1.0f);
                row[at] = special;
                ops.softmax(crumb::matrix(row.data(), 1, n), crumb::matrix(row.data(), 1, n));
                return row;
            };
            for (std::size_t at = 0; at < n; ++at) {
                for (const float y : run(nan, at))
                    ASSERT_TRUE(std::isnan(y));
                for (const float y : run(infinity, at))
                    ASSERT_TRUE(std::isnan(y) || n > 1);
                const auto masked = run(-infinity, at);
                ASSERT_TRUE(n == 1 ? std::isnan(masked[at]) : masked[at] == 0.0f);
                const auto huge = run(3e38f, at);
                ASSERT_EQ(huge[at], 1.0f);
            }
            std::vector<float> none(n, 1.0f);
            ops.softmax(crumb::matrix(none.data(), 1, n), crumb::matrix(none.data(), 1, n), {.valid = 0});
            for (const float y : none)
                ASSERT_EQ(y, 0.0f);
        }
    });
}

TEST(float_ops, nan_and_infinity_in_norms) {
    for_each_ops([](const crumb::float_ops& ops, guard) {
        for (const std::size_t n : {1, 3, 16, 33, 130}) {
            for (const float special : {nan, infinity, -infinity}) {
                std::vector<float> x(n, 1.0f), w(n, 1.0f), y(n);
                x[n / 2] = special;
                ops.layer_norm(crumb::matrix(x.data(), 1, n), w, {}, 1e-5f, crumb::matrix(y.data(), 1, n));
                for (const float v : y)
                    ASSERT_TRUE(std::isnan(v));
                ops.rms_norm(crumb::matrix(x.data(), 1, n), w, 1e-5f, crumb::matrix(y.data(), 1, n));
                ASSERT_TRUE(std::isnan(y[n / 2]));
            }
        }
    });
}

// Accuracy is tested in test_math.cpp; here: the right function, shapes, strides, ranges of rows, in place.
TEST(float_ops, elementwise) {
    using plain = void (crumb::float_ops::*)(const crumb::matrix_view<const float>&,
                                             const crumb::matrix_view<float>&, crumb::range) const noexcept;
    using gated = void (crumb::float_ops::*)(const crumb::matrix_view<const float>&,
                                             const crumb::matrix_view<const float>&,
                                             const crumb::matrix_view<float>&, crumb::range) const noexcept;
    struct kind {
        plain run;
        gated run_gated;
        double (*exact)(double);
    };
    const kind kinds[] = {
        {&crumb::float_ops::silu, &crumb::float_ops::silu_gated, reference::silu},
        {&crumb::float_ops::gelu_tanh, &crumb::float_ops::gelu_tanh_gated, reference::gelu_tanh},
        {&crumb::float_ops::gelu_erf, &crumb::float_ops::gelu_erf_gated, reference::gelu_erf},
        {nullptr, &crumb::float_ops::add, nullptr},
    };
    for_each_ops([&](const crumb::float_ops& ops, guard side) {
        random_floats random(4);
        for (std::size_t n = 1; n <= 70; ++n) {
            for (const kind& k : kinds) {
                const std::size_t rows = 3, stride = n + 2;
                guarded<float> x((rows - 1) * stride + n, side), up(rows * n, side), y(rows * n, side);
                random.fill(x, 2);
                random.fill(up);
                std::fill(y.begin(), y.end(), 77.0f);
                const auto xs = crumb::matrix(x.data(), rows, n, stride);
                const auto ups = crumb::matrix(up.data(), rows, n);
                const auto ys = crumb::matrix(y.data(), rows, n);
                const auto want = [&](std::size_t r, std::size_t c, bool with_up) {
                    const double v = double(xs.row(r)[c]), u = double(ups.row(r)[c]);
                    return k.exact == nullptr ? v + u : k.exact(v) * (with_up ? u : 1);
                };
                const double bound = 64 * eps;
                (ops.*k.run_gated)(xs, ups, ys, {1, 2});
                for (std::size_t c = 0; c < n; ++c) {
                    ASSERT_EQ(ys.row(0)[c], 77.0f);
                    ASSERT_NEAR(ys.row(1)[c], want(1, c, true), bound * (std::fabs(want(1, c, true)) + 1));
                    ASSERT_EQ(ys.row(2)[c], 77.0f);
                }
                if (k.run != nullptr) {
                    (ops.*k.run)(xs, ys, {});
                    const std::vector<float> first(y.begin(), y.end());
                    (ops.*k.run)(xs, xs, {});
                    for (std::size_t i = 0; i < rows * n; ++i)
                        ASSERT_EQ(xs.row(i / n)[i % n], first[i]);
                }
            }
        }
    });
}

TEST(float_ops, halves) {
    for_each_ops([](const crumb::float_ops& ops, guard side) {
        random_floats random(5);
        for (std::size_t n = 0; n <= 70; ++n) {
            guarded<float> x(n, side), z(n, side);
            guarded<crumb::half> y(n, side);
            random.fill(x, 100);
            ops.to_half(x.span(), y.data());
            ops.to_float(y.span(), z.data());
            for (std::size_t i = 0; i < n; ++i) {
                ASSERT_EQ(y[i], crumb::to_half(x[i]));
                ASSERT_EQ(z[i], crumb::to_float(y[i]));
            }
        }
        std::vector<crumb::half> all(65536), back(65536);
        std::vector<float> floats(65536);
        for (std::size_t i = 0; i < all.size(); ++i)
            all[i].bits = static_cast<std::uint16_t>(i);
        ops.to_float(all, floats.data());
        ops.to_half(floats, back.data());
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (std::isnan(crumb::to_float(all[i]))) {
                ASSERT_TRUE(std::isnan(floats[i]) && std::isnan(crumb::to_float(back[i])));
            } else {
                ASSERT_EQ(floats[i], crumb::to_float(all[i]));
                ASSERT_EQ(back[i], all[i]);
            }
        }
    });
}

TEST(float_ops, rope) {
    for_each_ops([](const crumb::float_ops& ops, guard side) {
        random_floats random(6);
        for (std::size_t dims = 2; dims <= 70; dims += 2) {
            for (const auto pairing : {crumb::rope_pairing::interleaved, crumb::rope_pairing::half_split}) {
                const std::size_t head_size = dims + dims % 3, heads = 2, rows = 3, position = 5;
                const std::size_t positions = position + rows;
                guarded<std::byte> memory(crumb::rope_table_bytes(positions, dims), guard::after);
                const auto table = crumb::rope_table::create(
                    memory.span(), positions, {.dims = dims, .base = 500000, .pairing = pairing});
                ASSERT_TRUE(table) << table.message();
                guarded<float> x(rows * heads * head_size, side);
                random.fill(x);
                const std::vector<float> before(x.begin(), x.end());
                const auto view = crumb::matrix(x.data(), rows, heads * head_size);
                ops.rope(view, head_size, *table, position, {1, 3});
                ops.rope(view, head_size, *table, position, {0, 1});
                for (std::size_t r = 0; r < rows; ++r) {
                    for (std::size_t h = 0; h < heads; ++h) {
                        const std::size_t at = (r * heads + h) * head_size;
                        std::vector<double> want(head_size);
                        reference::rope({before.data() + at, head_size}, dims, 500000, position + r,
                                        pairing == crumb::rope_pairing::interleaved, want.data());
                        for (std::size_t i = 0; i < head_size; ++i) {
                            if (i >= dims) {
                                ASSERT_EQ(x[at + i], before[at + i]);
                                continue;
                            }
                            const std::size_t half = dims / 2;
                            const std::size_t other = pairing == crumb::rope_pairing::interleaved ? i ^ 1
                                                      : i < half                                  ? i + half
                                                                                                  : i - half;
                            const double size =
                                std::fabs(double(before[at + i])) + std::fabs(double(before[at + other]));
                            ASSERT_LE(std::fabs(x[at + i] - want[i]), 3 * eps * size);
                        }
                    }
                }
            }
        }
    });
}

TEST(float_ops, rope_table) {
    alignas(64) std::byte memory[4096];
    const float factors[] = {1, 2};
    const auto table = crumb::rope_table::create(memory, 8, {.dims = 4, .scale = 0.5, .factors = factors});
    ASSERT_TRUE(table) << table.message();
    for (std::size_t p = 0; p < 8; ++p) {
        EXPECT_EQ(table->data()[4 * p], static_cast<float>(std::cos(0.5 * double(p))));
        EXPECT_EQ(table->data()[4 * p + 3], static_cast<float>(std::sin(0.5 * 0.01 / 2 * double(p))));
    }
    const auto error = [&](std::span<std::byte> buffer, std::size_t positions,
                           const crumb::rope_options& options) {
        const auto t = crumb::rope_table::create(buffer, positions, options);
        return t ? crumb::errc::ok : t.error().code();
    };
    EXPECT_EQ(error(memory, 8, {.dims = 0}), crumb::errc::bad_shape);
    EXPECT_EQ(error(memory, 8, {.dims = 5}), crumb::errc::bad_shape);
    EXPECT_EQ(error(memory, 8, {.dims = 8, .factors = factors}), crumb::errc::bad_shape);
    EXPECT_EQ(error(memory, 8, {.dims = 4, .base = -1}), crumb::errc::invalid_argument);
    EXPECT_EQ(error(memory, 8, {.dims = 4, .scale = double(nan)}), crumb::errc::invalid_argument);
    EXPECT_EQ(error(std::span(memory).first(64), 8, {.dims = 4}), crumb::errc::buffer_too_small);
    EXPECT_EQ(error(std::span(memory).subspan(4), 8, {.dims = 4}), crumb::errc::misaligned);
    EXPECT_EQ(error(memory, std::size_t{1} << 62, {.dims = 8}), crumb::errc::bad_shape);
    EXPECT_EQ(crumb::rope_table_bytes(std::size_t{1} << 62, 8), 0u);
}

TEST(float_ops, empty_matrices) {
    for_each_ops([](const crumb::float_ops& ops, guard) {
        const crumb::matrix_view<float> none;
        ops.rms_norm(none, {}, 1e-5f, none);
        ops.layer_norm(none, {}, {}, 1e-5f, none);
        ops.softmax(none, none);
        ops.silu_gated(none, none, none);
        ops.add(none, none, none);
        ops.to_half({}, nullptr);
    });
}

} // namespace
} // namespace test_float_ops
