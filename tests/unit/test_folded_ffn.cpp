#include "guarded.hpp"
#include "isa_test.hpp"
#include "random_numbers.hpp"

#include <crumb/core/buffer.hpp>
#include <crumb/crumb.hpp>
#include <crumb/offline/weights/quantize.hpp>
#include <crumb/op/ffn/folded_ffn.hpp>
#include <crumb/reference/ffn.hpp>
#include <crumb/reference/float_ops.hpp>
#include <crumb/reference/linear.hpp>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace test_folded_ffn {
namespace {

using crumb::row_codec;
using crumb_test::guarded;
using crumb_test::normal_numbers;
using crumb_test::tested_isa;

constexpr auto soft = [](float u) noexcept { return u > 0 ? u : 0.25f * u; };
double soft_exactly(double u) { return u > 0 ? u : 0.25 * u; }

struct sizes {
    std::size_t inputs, neurons, outputs;
};
/// The network that the neurons are of.
crumb::ffn_shape size_of(const crumb::folded_ffn_parts& p) {
    const crumb::neuron_shape& s = p.neurons.shape();
    return {s.inputs, s.neurons, s.outputs};
}
const sizes shapes[] = {{32, 16, 32},  {64, 48, 96},   {33, 31, 17},  {1, 1, 1},
                        {100, 70, 45}, {256, 300, 64}, {600, 40, 540}};

/// A network with random lines and ranges, its rows in a codec; the folded matrix is random as well.
struct network {
    sizes s;
    crumb::neuron_shape shape;
    std::vector<float> fold, fold_bias, up, bias, down, output_bias;
    guarded<std::byte> neurons;
    crumb::neuron_rows rows;
    std::vector<std::byte> room;
    std::span<std::byte> packed;

    /// `width` scales the ranges: 0 holds nothing, infinity everything.
    network(sizes size, row_codec in, row_codec out, bool residual, unsigned seed, float width = 1)
        : s(size), shape{s.neurons, s.inputs, s.outputs, in, out, residual}, fold(s.outputs * s.inputs),
          fold_bias(s.outputs), up(s.neurons * s.inputs), bias(s.neurons), down(s.neurons * s.outputs),
          output_bias(s.outputs), neurons(crumb::neuron_layout::of(shape)->bytes) {
        std::mt19937 random(seed);
        normal_numbers<float> normal;
        for (auto* all : {&fold, &fold_bias, &up, &bias, &down, &output_bias})
            for (float& v : *all)
                v = normal(random);
        const auto writer = crumb::neuron_writer::create(neurons.span(), shape);
        EXPECT_TRUE(writer) << writer.message();
        for (std::size_t n = 0; n < s.neurons; ++n) {
            const float middle = normal(random), half = std::fabs(normal(random)) * width;
            crumb::neuron_line line;
            line.slope = normal(random);
            line.intercept = normal(random);
            line.bias = residual ? normal(random) : bias[n];
            line.low = middle - half * 4;
            line.high = middle + half * 4;
            writer->line(n, line);
            writer->thresholds(n, line.low, line.high);
            crumb::encode_row(in, up.data() + n * s.inputs, s.inputs, writer->in(n));
            crumb::encode_row(out, down.data() + n * s.outputs, s.outputs, writer->out(n));
        }
        const auto opened = writer->finish();
        EXPECT_TRUE(opened) << opened.message();
        rows = *opened;
        room.resize(crumb::packed_bytes<crumb::q4_0>(s.neurons, s.inputs) + crumb::alignment);
        void* at = room.data();
        std::size_t left = room.size();
        std::align(crumb::alignment, left - crumb::alignment, at, left);
        packed = {static_cast<std::byte*>(at), left};
        const auto q =
            crumb::quantize<crumb::q4_0>(crumb::matrix<const float>(up.data(), s.neurons, s.inputs));
        const auto p = crumb::pack(*q, packed);
        EXPECT_TRUE(p) << p.message();
    }

    crumb::folded_ffn_parts parts(const char* isa) const {
        const auto folded = crumb::dense_linear<float>::plan(
            crumb::matrix<const float>(fold.data(), s.outputs, s.inputs), {.bias = fold_bias}, {isa});
        const auto weights = crumb::packed_view<crumb::q4_0>::open(packed);
        const auto predictor = crumb::linear<crumb::q4_0>::plan(*weights, {.bias = bias}, {isa});
        EXPECT_TRUE(folded && predictor);
        return {.fold = *folded,
                .predictor = *predictor,
                .neurons = rows,
                .activation = soft,
                .output_bias = output_bias};
    }
    crumb::folded_ffn plan(const char* isa, crumb::folded_batches batches = crumb::folded_batches::lists,
                           crumb::activation_function activation = soft) const {
        auto p = parts(isa);
        p.activation = activation;
        const auto f = crumb::folded_ffn::plan(size_of(p), p, {.batches = batches}, {isa});
        EXPECT_TRUE(f) << f.message();
        return *f;
    }
    std::vector<float> random_rows(std::size_t m, unsigned seed = 7) const {
        std::mt19937 random(seed);
        normal_numbers<float> normal;
        std::vector<float> x(m * s.inputs);
        for (float& v : x)
            v = normal(random) / std::sqrt(float(s.inputs));
        return x;
    }
    /// Estimates of m rows; `rounded` gets what the predictor's activations stand for.
    std::vector<float> estimates(const char* isa, const std::vector<float>& x, std::size_t m,
                                 std::vector<float>* rounded = nullptr) const {
        const auto p = parts(isa).predictor;
        std::vector<std::byte> memory(crumb::activation_bytes(p.input_plan(), m) + crumb::alignment);
        void* at = memory.data();
        std::size_t left = memory.size();
        std::align(crumb::alignment, left - crumb::alignment, at, left);
        auto a = crumb::activations::create({static_cast<std::byte*>(at), left}, p.input_plan(), m);
        EXPECT_TRUE(a) << a.message();
        const auto view = crumb::matrix<const float>(x.data(), m, s.inputs);
        a->quantize(view);
        std::vector<float> out(m * s.neurons);
        p.run(view, *a, crumb::matrix(out.data(), m, s.neurons));
        if (rounded != nullptr) {
            const crumb::reference::activation_view q{a->layout(), a->codes(), a->scales(), m};
            for (std::size_t r = 0; r < m; ++r)
                for (std::size_t i = 0; i < s.inputs; ++i)
                    rounded->push_back(static_cast<float>(q.scale(r, i / 32) * q.code(r, i)));
        }
        return out;
    }
};

struct outcome {
    std::vector<float> y;
    crumb::folded_ffn_counters counted;
    std::size_t missed = 0;
};

outcome run(const crumb::folded_ffn& f, const std::vector<float>& x, std::size_t m, std::size_t parts) {
    const auto& s = f.shape();
    guarded<float> in(x.size()), out(m * s.outputs);
    guarded<std::byte> scratch(f.scratch_bytes(m, parts));
    std::vector<crumb::folded_ffn_counters> counters(parts);
    std::fill(in.begin(), in.end(), std::numeric_limits<float>::quiet_NaN());
    std::fill(out.begin(), out.end(), -7.0f);
    const crumb::folded_ffn_batch batch{crumb::matrix<const float>(in.data(), m, s.inputs),
                                        crumb::matrix(out.data(), m, s.outputs), scratch.span(), counters};
    for (std::size_t phase = 0; phase < crumb::folded_ffn::phases; ++phase) {
        if (!f.has_phase(phase, m))
            continue;
        for (std::size_t part = parts; part-- > 0;) {
            if (phase == 0) {
                const crumb::range rows = f.rows_of(m, part, parts);
                std::copy(x.begin() + std::ptrdiff_t(rows.begin * s.inputs),
                          x.begin() + std::ptrdiff_t(rows.end * s.inputs),
                          in.begin() + rows.begin * s.inputs);
            }
            const std::vector<float> before(out.begin(), out.end());
            f.run_phase(phase, batch, part, parts);
            const crumb::range mine = f.outputs_of(part, parts);
            for (std::size_t i = 0; phase + 1 == crumb::folded_ffn::phases && i < out.size(); ++i) {
                const std::size_t c = i % s.outputs;
                const bool is_mine = c >= mine.begin && c < mine.end;
                EXPECT_TRUE(is_mine ||
                            std::bit_cast<std::uint32_t>(out[i]) == std::bit_cast<std::uint32_t>(before[i]))
                    << "output " << c << " is not part " << part << "'s";
            }
        }
    }
    return {{out.begin(), out.end()}, batch.counted(), f.count_missed(batch, parts)};
}

} // namespace

TEST(FoldedFfn, EqualsTheReference) {
    crumb_test::for_each_isa([](const tested_isa& isa) {
        unsigned seed = 1;
        for (const sizes& s : shapes) {
            for (std::size_t c = 0; c < crumb::row_codecs; ++c) {
                const auto codec = static_cast<row_codec>(c);
                const auto other = static_cast<row_codec>((c + 2) % crumb::row_codecs);
                ++seed;
                const network net(s, codec, other, seed % 2 == 0, seed);
                const auto f = net.plan(isa.name);
                constexpr std::size_t m = 3;
                const auto x = net.random_rows(m);
                // A residual is multiplied with the activations that its estimate was made of.
                std::vector<float> rounded;
                const auto estimates = net.estimates(isa.name, x, m, &rounded);
                const outcome got = run(f, x, m, 1);
                std::size_t fixed = 0;
                for (std::size_t r = 0; r < m; ++r) {
                    const float* row = x.data() + r * s.inputs;
                    const auto want = crumb::reference::fixes(
                        net.rows, net.shape.residual ? rounded.data() + r * s.inputs : row,
                        estimates.data() + r * s.neurons, soft_exactly, 1.0, 0x1p-23);
                    fixed += want.count;
                    for (std::size_t c2 = 0; c2 < s.outputs; ++c2) {
                        double linear = double(net.fold_bias[c2]), magnitude = std::fabs(linear);
                        for (std::size_t k = 0; k < s.inputs; ++k) {
                            const double term = double(net.fold[c2 * s.inputs + k]) * double(row[k]);
                            linear += term;
                            magnitude += std::fabs(term);
                        }
                        // The sums of the fixes begin at xC + B.
                        const double bound =
                            want.error[c2] +
                            (double(s.inputs) + 2 + double(want.count)) * 0x1p-23 * magnitude + 1e-30;
                        EXPECT_NEAR(double(got.y[r * s.outputs + c2]), linear + want.value[c2], bound)
                            << crumb::row_codec_names[c] << " " << s.inputs << " " << s.neurons << " row "
                            << r << " output " << c2;
                    }
                }
                EXPECT_EQ(got.counted.fixed, fixed);
                EXPECT_EQ(got.counted.neurons, m * s.neurons);
            }
        }
    });
}

TEST(FoldedFfn, DoesNotDependOnPartsOrRows) {
    crumb_test::for_each_isa([](const tested_isa& isa) {
        for (const auto& [s, out] : {std::pair{sizes{100, 700, 45}, row_codec::q8_0},
                                     std::pair{sizes{64, 530, 96}, row_codec::q4_0}}) {
            const network net(s, row_codec::q4_0, out, true, 5, 0.5f);
            const auto f = net.plan(isa.name);
            constexpr std::size_t m = 9;
            const auto x = net.random_rows(m);
            const outcome all = run(f, x, m, 1);
            EXPECT_GT(all.counted.fixed, 0u);
            EXPECT_LT(all.counted.fixed, all.counted.neurons);
            for (const std::size_t parts : {2, 3, 7, 40}) {
                const outcome split = run(f, x, m, parts);
                EXPECT_EQ(split.y, all.y) << parts << " parts";
                EXPECT_EQ(split.counted.fixed, all.counted.fixed);
                EXPECT_EQ(split.counted.bytes, all.counted.bytes);
                EXPECT_EQ(split.missed, all.missed);
            }
            std::size_t fixed = 0;
            for (std::size_t r = 0; r < m; ++r) {
                const std::vector<float> row(x.begin() + std::ptrdiff_t(r * s.inputs),
                                             x.begin() + std::ptrdiff_t((r + 1) * s.inputs));
                const outcome one = run(f, row, 1, 2);
                fixed += one.counted.fixed;
                for (std::size_t c = 0; c < s.outputs; ++c)
                    EXPECT_EQ(one.y[c], all.y[r * s.outputs + c]) << "row " << r;
            }
            EXPECT_EQ(fixed, all.counted.fixed);
        }
    });
}

// Codes and factors at the ends of their ranges: the largest sums that integers have to hold.
TEST(FoldedFfn, AddsExtremeCodes) {
    constexpr std::size_t outputs = 70, bytes = crumb::row_bytes(row_codec::q4_0, outputs);
    crumb_test::for_each_isa([](const tested_isa& isa) {
        const auto chosen = crumb::choose_isa({isa.name});
        ASSERT_TRUE(chosen);
        const auto& functions = crumb::dispatch::functions_at<crumb::dispatch::ffn_functions>(*chosen);
        const auto adds = functions.of[std::size_t(row_codec::q4_0)].adds;
        for (const std::size_t neurons : {1, 5, 16, 37})
            for (unsigned kind = 0; kind < 4; ++kind) {
                guarded<std::byte> records(neurons * bytes);
                std::vector<std::uint32_t> list(neurons);
                std::vector<float> factors(neurons);
                std::vector<double> want(outputs), magnitude(outputs);
                for (std::size_t n = 0; n < neurons; ++n) {
                    list[n] = static_cast<std::uint32_t>(n);
                    factors[n] = kind < 2 || n % 2 == 0 ? 1.0f : -1.0f;
                    const std::byte codes{
                        static_cast<unsigned char>(kind == 1 || (kind == 3 && n % 2) ? 0 : 255)};
                    for (std::size_t at = 0; at < bytes; ++at)
                        records[n * bytes + at] = codes;
                    for (std::size_t at = 0; at < bytes; at += 18) {
                        const crumb::half scale = crumb::to_half(-1.0f);
                        std::memcpy(&records[n * bytes + at], &scale, sizeof scale);
                    }
                    for (std::size_t c = 0; c < outputs; ++c) {
                        const double term =
                            double(factors[n]) *
                            double(crumb::row_weight(row_codec::q4_0, &records[n * bytes], c));
                        want[c] += term;
                        magnitude[c] += std::fabs(term);
                    }
                }
                guarded<float> y(outputs);
                std::fill(y.begin(), y.end(), 0.0f);
                crumb::kernel::neuron_add_args args;
                args.records = records.begin();
                args.record_bytes = bytes;
                args.list = list.data();
                args.count = neurons;
                args.factors = factors.data();
                args.y = y.begin();
                args.outputs = {0, outputs};
                adds(args);
                // All factors are 127 steps: what is left are roundings of a step and of a few sums.
                for (std::size_t c = 0; c < outputs; ++c)
                    EXPECT_NEAR(double(y[c]), want[c], 4 * 0x1p-23 * magnitude[c])
                        << neurons << " neurons, kind " << kind << ", output " << c;
                factors[neurons / 2] = std::numeric_limits<float>::infinity();
                adds(args);
                for (std::size_t c = 0; c < outputs; ++c)
                    EXPECT_FALSE(std::isfinite(y[c])) << c;
            }
    });
}

// Whatever the lines: where every neuron is fixed, xC + B has to be the sum of the lines.
TEST(FoldedFfn, CoverageZeroIsTheDenseNetwork) {
    crumb_test::for_each_isa([](const tested_isa& isa) {
        for (const sizes& s : shapes) {
            network net(s, row_codec::f32, row_codec::f32, false, 11, 0);
            std::vector<double> magnitude(s.outputs * s.inputs, 0.0);
            for (std::size_t c = 0; c < s.outputs; ++c) {
                double b = double(net.output_bias[c]);
                for (std::size_t n = 0; n < s.neurons; ++n)
                    b += (double(net.rows.line(n).slope) * double(net.bias[n]) +
                          double(net.rows.line(n).intercept)) *
                         double(net.down[n * s.outputs + c]);
                net.fold_bias[c] = static_cast<float>(b);
                for (std::size_t k = 0; k < s.inputs; ++k) {
                    double sum = 0;
                    for (std::size_t n = 0; n < s.neurons; ++n) {
                        const double term = double(net.down[n * s.outputs + c]) *
                                            double(net.rows.line(n).slope) * double(net.up[n * s.inputs + k]);
                        sum += term;
                        magnitude[c * s.inputs + k] += std::fabs(term);
                    }
                    net.fold[c * s.inputs + k] = static_cast<float>(sum);
                }
            }
            const auto x = net.random_rows(1);
            const outcome got = run(net.plan(isa.name), x, 1, 1);
            EXPECT_EQ(got.counted.fixed, s.neurons);
            EXPECT_EQ(got.missed, 0u);
            const auto estimates = net.estimates(isa.name, x, 1);
            const auto fixes =
                crumb::reference::fixes(net.rows, x.data(), estimates.data(), soft_exactly, 1.0, 0x1p-23);
            const auto want = crumb::reference::ffn(net.rows, x.data(), net.output_bias.data(), soft_exactly);
            for (std::size_t c = 0; c < s.outputs; ++c) {
                double folded = std::fabs(double(net.fold_bias[c]));
                for (std::size_t k = 0; k < s.inputs; ++k)
                    folded += magnitude[c * s.inputs + k] * std::fabs(double(x[k]));
                const double bound =
                    fixes.error[c] + (double(s.inputs) + 4 + double(s.neurons)) * 0x1p-23 * folded + 1e-30;
                EXPECT_NEAR(double(got.y[c]), want[c], bound) << "output " << c;
            }
        }
    });
}

TEST(FoldedFfn, CoverageOneIsTheFoldedMatrix) {
    crumb_test::for_each_isa([](const tested_isa& isa) {
        for (const sizes& s : shapes) {
            const network net(s, row_codec::q4_0, row_codec::q4_0, false, 12,
                              std::numeric_limits<float>::infinity());
            const auto x = net.random_rows(5);
            const outcome got = run(net.plan(isa.name), x, 5, 2);
            EXPECT_EQ(got.counted.fixed, 0u);
            std::vector<float> want(5 * s.outputs);
            net.parts(isa.name).fold.run(crumb::matrix<const float>(x.data(), 5, s.inputs), {},
                                         crumb::matrix(want.data(), 5, s.outputs));
            EXPECT_EQ(got.y, want);
        }
    });
}

TEST(FoldedFfn, FixesWhatIsNotANumber) {
    crumb_test::for_each_isa([](const tested_isa& isa) {
        const network net({64, 40, 32}, row_codec::f32, row_codec::f32, false, 13,
                          std::numeric_limits<float>::infinity());
        auto x = net.random_rows(1);
        x[5] = std::numeric_limits<float>::quiet_NaN();
        const outcome got = run(net.plan(isa.name), x, 1, 1);
        EXPECT_EQ(got.counted.fixed, 40u);
        for (const float y : got.y)
            EXPECT_TRUE(std::isnan(y));
    });
}

TEST(FoldedFfn, AppliesEveryActivation) {
    const network net({64, 48, 32}, row_codec::f32, row_codec::f32, false, 14, 0);
    using kind = crumb::activation_function::kind;
    const auto x = net.random_rows(1);
    const char* isa = crumb::float_ops::plan()->isa();
    const auto estimates = net.estimates(isa, x, 1);
    const auto check = [&](crumb::activation_function f, double (*exactly)(double), double slope,
                           double rounding) {
        const outcome got = run(net.plan(isa, crumb::folded_batches::lists, f), x, 1, 1);
        const auto want =
            crumb::reference::fixes(net.rows, x.data(), estimates.data(), exactly, slope, rounding);
        std::vector<float> fold(32);
        net.parts(isa).fold.run(crumb::matrix<const float>(x.data(), 1, 64), {},
                                crumb::matrix(fold.data(), 1, 32));
        for (std::size_t c = 0; c < 32; ++c)
            EXPECT_NEAR(double(got.y[c]), double(fold[c]) + want.value[c],
                        want.error[c] + 48 * 0x1p-23 * std::fabs(double(fold[c])));
    };
    // |u| stays below 8: errors as `float_ops` states them.
    constexpr double eps = 0x1p-24;
    check(kind::relu, [](double u) { return u < 0 ? 0 : u; }, 1, 0);
    check(kind::silu, crumb::reference::silu, 1.1, 16 * eps);
    check(kind::gelu_erf, crumb::reference::gelu_erf, 1.13, 0x1p-16);
    check(kind::gelu_tanh, crumb::reference::gelu_tanh, 1.13, (48 + 24 * 25) * eps);
    check([](float u) noexcept { return u * u; }, [](double u) { return u * u; }, 16, 0x1p-23);
}

// Rows of q8_0 and q4_0 lose nothing on the way to tiles: a product with them is that of `linear`.
TEST(NeuronProducts, InputsEqualLinear) {
    crumb_test::for_each_isa([](const tested_isa& isa) {
        for (const sizes& s : shapes) {
            const network net(s, row_codec::q4_0, row_codec::q4_0, false, 15);
            const auto p = crumb::neuron_products::plan(net.rows, net.output_bias, {}, {isa.name});
            ASSERT_TRUE(p) << p.message();
            for (const std::size_t m : {1, 5, 19}) {
                const auto x = net.random_rows(m);
                guarded<std::byte> a(crumb::activation_bytes(p->input_layout(), m));
                auto q = *crumb::activations::create(a.span(), p->input_layout(), m);
                q.quantize(crumb::matrix<const float>(x.data(), m, s.inputs));
                guarded<std::byte> tiles(p->memory_bytes());
                std::vector<float> u(m * s.neurons);
                const auto view = crumb::matrix(u.data(), m, s.neurons);
                p->inputs(q, view, {32, s.neurons}, tiles.span());
                p->inputs(q, view, {0, 32}, tiles.span());
                EXPECT_EQ(u, net.estimates(isa.name, x, m)) << s.neurons << " neurons, " << m << " rows";
            }
        }
    });
}

/// The largest |scale| of blocks that hold weight i of some rows, times what codes of the range of a byte are
/// counted in. Zero beyond the rows.
double byte_scale(row_codec codec, const crumb::neuron_rows& rows, std::size_t first, std::size_t count,
                  std::size_t i) {
    const double unit = codec == row_codec::q8_0 ? 1 : codec == row_codec::q4_0 ? 16 : 42;
    const std::size_t bytes = crumb::row_bytes(codec, 32);
    double most = 0;
    for (std::size_t n = first; n < std::min(first + count, rows.shape().neurons); ++n) {
        crumb::half scale;
        std::memcpy(&scale, rows.out(n) + i / 32 * bytes, sizeof scale);
        most = std::max(most, std::fabs(double(crumb::to_float(scale))));
    }
    return most * 128 / 127 / unit;
}

TEST(NeuronProducts, OutputsAreWithinTheBoundOfRequantization) {
    crumb_test::for_each_isa([](const tested_isa& isa) {
        std::vector<sizes> all(std::begin(shapes), std::end(shapes));
        all.push_back({32, 1100, 1000}); // several blocks of neurons and of outputs
        for (const sizes& s : all) {
            for (const row_codec codec : {row_codec::q8_0, row_codec::q4_0, row_codec::u2}) {
                const network net(s, row_codec::q8_0, codec, false, 16);
                const auto p = crumb::neuron_products::plan(net.rows, net.output_bias, {}, {isa.name});
                ASSERT_TRUE(p) << p.message();
                constexpr std::size_t m = 3;
                std::vector<float> hidden(m * s.neurons);
                std::mt19937 random(17);
                normal_numbers<float> normal;
                for (float& v : hidden)
                    v = normal(random);
                guarded<std::byte> a(p->hidden_bytes(m));
                std::vector<double> want(m * s.outputs), magnitude(m * s.outputs), bound(m * s.outputs);
                for (std::size_t i = 0; i < want.size(); ++i) {
                    want[i] = double(net.output_bias[i % s.outputs]);
                    magnitude[i] = std::fabs(want[i]);
                }
                for (std::size_t b = 0; b < p->hidden_blocks(); ++b) {
                    const crumb::range neurons = p->neurons_of(b);
                    auto q = p->hidden(b, a.span(), m);
                    q.quantize({hidden.data() + neurons.begin, m, neurons.size(), s.neurons});
                    const crumb::reference::activation_view in{q.layout(), q.codes(), q.scales(), m};
                    for (std::size_t g = 0; g * 32 < neurons.size(); ++g) {
                        const std::size_t first = neurons.begin + g * 32;
                        for (std::size_t c = 0; c < s.outputs; ++c) {
                            const double step = byte_scale(codec, net.rows, first, 32, c);
                            for (std::size_t r = 0; r < m; ++r) {
                                double length = 0;
                                for (std::size_t n = first; n < std::min(first + 32, neurons.end); ++n) {
                                    const double w = double(crumb::row_weight(codec, net.rows.out(n), c));
                                    const double x = in.scale(r, g) * in.code(r, n - neurons.begin);
                                    want[r * s.outputs + c] += w * x;
                                    magnitude[r * s.outputs + c] += std::fabs(w * x);
                                    length += std::fabs(x);
                                }
                                // Codes and factors rounded to nearest; a scale that is a subnormal half.
                                bound[r * s.outputs + c] += length * (step * 0.51 + 128 * 0x1p-25);
                            }
                        }
                    }
                }
                guarded<std::byte> memory(p->memory_bytes());
                guarded<float> y(m * s.outputs);
                const auto view = crumb::matrix(y.data(), m, s.outputs);
                p->outputs(a.span(), view, {32, s.outputs}, memory.span());
                p->outputs(a.span(), view, {0, 32}, memory.span());
                for (std::size_t i = 0; i < want.size(); ++i)
                    EXPECT_NEAR(double(y[i]), want[i],
                                bound[i] + (double(s.neurons) / 32 + 6) * 0x1p-22 * magnitude[i]);
            }
        }
    });
}

TEST(NeuronProducts, InputsAddAPredictorAndItsRest) {
    crumb_test::for_each_isa([](const tested_isa& isa) {
        for (const sizes& s : shapes) {
            for (const row_codec codec : {row_codec::q8_0, row_codec::q4_0, row_codec::u2}) {
                const network net(s, codec, row_codec::q4_0, true, 23);
                const auto parts = net.parts(isa.name);
                const auto p =
                    crumb::neuron_products::plan(net.rows, net.output_bias, parts.predictor, {isa.name});
                ASSERT_TRUE(p) << p.message();
                constexpr std::size_t m = 3;
                const auto x = net.random_rows(m);
                guarded<std::byte> a(crumb::activation_bytes(p->input_layout(), m));
                auto q = *crumb::activations::create(a.span(), p->input_layout(), m);
                q.quantize(crumb::matrix<const float>(x.data(), m, s.inputs));
                const crumb::reference::activation_view in{q.layout(), q.codes(), q.scales(), m};
                guarded<std::byte> memory(p->memory_bytes());
                std::vector<float> u(m * s.neurons);
                const auto view = crumb::matrix(u.data(), m, s.neurons);
                p->inputs(q, view, {32, s.neurons}, memory.span());
                p->inputs(q, view, {0, 32}, memory.span());
                const auto stored = *crumb::quantize<crumb::q4_0>(
                    crumb::matrix<const float>(net.up.data(), s.neurons, s.inputs));
                const crumb::storage_view<crumb::q4_0> predictor = stored;
                const double unit = codec == row_codec::q8_0 ? 1 : codec == row_codec::q4_0 ? 16 : 42;
                const std::size_t bytes = crumb::row_bytes(codec, 32);
                for (std::size_t r = 0; r < m; ++r)
                    for (std::size_t n = 0; n < s.neurons; ++n) {
                        double want = double(net.bias[n]) + double(net.rows.line(n).bias), bound = 0;
                        double magnitude = std::fabs(want);
                        for (std::size_t g = 0; g * 32 < s.inputs; ++g) {
                            crumb::half scale;
                            std::memcpy(&scale, net.rows.in(n) + g * bytes, sizeof scale);
                            const double step =
                                (8 * std::fabs(double(crumb::to_float(predictor.scale(n, g)))) +
                                 128 / unit * std::fabs(double(crumb::to_float(scale)))) /
                                126;
                            for (std::size_t i = g * 32; i < std::min(g * 32 + 32, s.inputs); ++i) {
                                const double w = predictor.weight(n, i) +
                                                 double(crumb::row_weight(codec, net.rows.in(n), i));
                                const double v = in.scale(r, g) * in.code(r, i);
                                want += w * v;
                                magnitude += std::fabs(w * v);
                                bound += std::fabs(v) * (step * 0.52 + 128 * 0x1p-24);
                            }
                        }
                        bound += (double(s.inputs) / 32 + 6) * 0x1p-22 * magnitude;
                        EXPECT_NEAR(double(u[r * s.neurons + n]), want, bound);
                    }
            }
        }
    });
}

TEST(FoldedFfn, DenseBatchesAreTheNetworkBeforeFolding) {
    crumb_test::for_each_isa([](const tested_isa& isa) {
        for (const bool residual : {false, true}) {
            const sizes s{96, 200, 72};
            const network net(s, row_codec::q8_0, row_codec::q8_0, residual, 18);
            constexpr std::size_t m = 11;
            const auto x = net.random_rows(m);
            const auto f = net.plan(isa.name, crumb::folded_batches::dense);
            EXPECT_TRUE(f.is_dense(m));
            const outcome got = run(f, x, m, 1);
            EXPECT_EQ(run(f, x, m, 3).y, got.y);
            EXPECT_EQ(got.counted.fixed, 0u);
            // All neurons fixed, on a folded matrix of zeros and lines of zeros, are the same network.
            network all(s, row_codec::q8_0, row_codec::q8_0, residual, 18, 0);
            std::fill(all.fold.begin(), all.fold.end(), 0.0f);
            all.fold_bias = all.output_bias;
            const auto writer = reinterpret_cast<std::byte*>(all.neurons.data());
            for (std::size_t n = 0; n < s.neurons; ++n) {
                crumb::neuron_line line = all.rows.line(n);
                line.slope = line.intercept = 0;
                std::memcpy(writer + all.rows.layout().records_offset + n * all.rows.layout().record_bytes,
                            &line, sizeof line);
            }
            const outcome want = run(all.plan(isa.name), x, m, 1);
            double error = 0, length = 0;
            for (std::size_t i = 0; i < got.y.size(); ++i) {
                error += std::pow(double(got.y[i]) - double(want.y[i]), 2);
                length += std::pow(double(want.y[i]), 2);
            }
            // Three roundings to 8 bits: of x, of sigma(u), of W2. With a step of the largest / 127 and the
            // largest at most 4 times the root mean square each is 4 / 127 / sqrt(12) = 0.9 %.
            EXPECT_LT(std::sqrt(error / length), 0.02);
            EXPECT_GT(error, 0.0);
        }
    });
}

// With matrices whole batches are what `any_linear` makes of them, to the last bit.
TEST(FoldedFfn, DenseBatchesTakeMatricesWhereThereAre) {
    crumb_test::for_each_isa([](const tested_isa& isa) {
        const sizes s{96, 208, 72};
        const network net(s, row_codec::f32, row_codec::f32, false, 22); // in codecs without products
        constexpr std::size_t m = 9;
        const auto x = net.random_rows(m);
        const auto plan_of = [&](std::size_t n, std::size_t k, const std::vector<float>& w,
                                 const std::vector<float>& bias) {
            return *crumb::dense_linear<float>::plan(crumb::matrix<const float>(w.data(), n, k),
                                                     {.bias = bias}, {isa.name});
        };
        std::vector<float> across(net.down.size()); // outputs x neurons
        for (std::size_t n = 0; n < s.neurons; ++n)
            for (std::size_t c = 0; c < s.outputs; ++c)
                across[c * s.neurons + n] = net.down[n * s.outputs + c];
        guarded<std::byte> packed(crumb::packed_bytes<crumb::q8_0>(s.outputs, s.neurons));
        const auto q =
            *crumb::quantize<crumb::q8_0>(crumb::matrix<const float>(across.data(), s.outputs, s.neurons));
        ASSERT_TRUE(crumb::pack(q, packed.span()));
        const crumb::any_linear quantized = *crumb::linear<crumb::q8_0>::plan(
            *crumb::packed_view<crumb::q8_0>::open(packed.span()), {.bias = net.output_bias}, {isa.name});
        const crumb::any_linear floats = plan_of(s.outputs, s.neurons, across, net.output_bias);
        auto parts = net.parts(isa.name);
        const crumb::any_linear up_of[] = {plan_of(s.neurons, s.inputs, net.up, net.bias), parts.predictor};
        for (const crumb::any_linear& up : up_of)
            for (const crumb::any_linear& down : {quantized, floats}) {
                parts.up = up;
                parts.down = down;
                const auto f = crumb::folded_ffn::plan(size_of(parts), parts,
                                                       {.batches = crumb::folded_batches::dense}, {isa.name});
                ASSERT_TRUE(f) << f.message();
                EXPECT_TRUE(f->is_dense(m));
                const outcome got = run(*f, x, m, 1);
                EXPECT_EQ(run(*f, x, m, 3).y, got.y);
                EXPECT_EQ(got.counted.bytes, up.bytes() + down.bytes());
                const auto multiply = [&](const crumb::any_linear& w, const std::vector<float>& from) {
                    const auto view = crumb::matrix<const float>(from.data(), m, w.k());
                    std::vector<float> to(m * w.n());
                    crumb::activations a;
                    guarded<std::byte> memory(
                        w.reads_activations() ? crumb::activation_bytes(w.input_plan(), m) : 0);
                    if (w.reads_activations()) {
                        a = *crumb::activations::create(memory.span(), w.input_plan(), m);
                        a.quantize(view);
                    }
                    w.run(view, a, crumb::matrix(to.data(), m, w.n()));
                    return to;
                };
                auto u = multiply(up, x);
                for (float& v : u)
                    v = soft(v);
                EXPECT_EQ(got.y, multiply(down, u));
            }
    });
}

TEST(FoldedFfn, ChoosesByCost) {
    const network net({256, 1024, 256}, row_codec::q4_0, row_codec::q4_0, false, 19);
    const auto parts = net.parts(nullptr);
    const auto cheap =
        crumb::folded_ffn::plan(size_of(parts), parts, {.max_rows = 512, .expected_share = 0.0});
    const auto costly =
        crumb::folded_ffn::plan(size_of(parts), parts, {.max_rows = 512, .expected_share = 0.5});
    ASSERT_TRUE(cheap && costly);
    EXPECT_FALSE(cheap->is_dense(512)); // the predictor and the folded matrix are less than the network
    EXPECT_FALSE(costly->is_dense(1));
    EXPECT_TRUE(costly->is_dense(512));
    // Matrices are ready to be multiplied, but a few rows wait for their weights.
    auto ready = parts;
    ready.up = parts.predictor;
    const network across({1024, 256, 16}, row_codec::q4_0, row_codec::q4_0, false, 23);
    ready.down = across.parts(nullptr).predictor;
    const auto with =
        crumb::folded_ffn::plan(size_of(ready), ready, {.max_rows = 512, .expected_share = 0.1});
    ASSERT_TRUE(with) << with.message();
    EXPECT_FALSE(with->is_dense(1));
    EXPECT_TRUE(with->is_dense(8));
    EXPECT_FALSE(crumb::folded_ffn::plan(size_of(parts), parts, {.max_rows = 512, .expected_share = 0.1})
                     ->is_dense(8));
}

TEST(FoldedFfn, RefusesWhatDoesNotFit) {
    const network net({64, 48, 32}, row_codec::f32, row_codec::f32, false, 20);
    const network other({64, 80, 32}, row_codec::f32, row_codec::f32, false, 21);
    auto parts = net.parts(nullptr);
    EXPECT_TRUE(crumb::folded_ffn::plan(size_of(parts), parts));
    for (const crumb::ffn_shape& wrong : {crumb::ffn_shape{32, 48, 32}, {64, 47, 32}, {64, 48, 64}}) {
        const auto plan = crumb::folded_ffn::plan(wrong, parts);
        EXPECT_EQ(plan.error().code(), crumb::errc::bad_shape);
        EXPECT_NE(
            std::string(plan.message()).find("neurons: 48 of 64 inputs and 32 outputs, the network has"),
            std::string::npos)
            << plan.message();
    }
    parts.predictor = other.parts(nullptr).predictor;
    EXPECT_EQ(crumb::folded_ffn::plan(size_of(parts), parts).error().code(), crumb::errc::bad_shape);
    parts = net.parts(nullptr);
    parts.fold = parts.predictor;
    EXPECT_EQ(crumb::folded_ffn::plan(size_of(parts), parts).error().code(), crumb::errc::bad_shape);
    parts = net.parts(nullptr);
    EXPECT_EQ(crumb::folded_ffn::plan(size_of(parts), parts, {.expected_share = 1.5}).error().code(),
              crumb::errc::invalid_argument);
    EXPECT_EQ(crumb::folded_ffn::plan(size_of(parts), parts, {.batches = crumb::folded_batches::dense})
                  .error()
                  .code(),
              crumb::errc::unsupported);
    EXPECT_EQ(crumb::folded_ffn::plan(size_of(parts), parts, {}, {"none"}).error().code(),
              crumb::errc::unsupported);
    // A predictor in floats has no residual that whole batches could add.
    const network residual({64, 48, 32}, row_codec::q4_0, row_codec::q4_0, true, 24);
    EXPECT_EQ(crumb::neuron_products::plan(residual.rows, {}).error().code(), crumb::errc::bad_shape);
    const auto floats =
        *crumb::dense_linear<float>::plan(crumb::matrix<const float>(residual.up.data(), 48, 64), {});
    EXPECT_EQ(crumb::neuron_products::plan(residual.rows, {}, floats).error().code(),
              crumb::errc::unsupported);
    parts.up = parts.predictor; // and nothing that goes down
    EXPECT_EQ(crumb::folded_ffn::plan(size_of(parts), parts).error().code(), crumb::errc::bad_shape);
    parts.down = parts.predictor;
    EXPECT_EQ(crumb::folded_ffn::plan(size_of(parts), parts).error().code(), crumb::errc::bad_shape);
    parts.up = parts.down = {};
    EXPECT_TRUE(crumb::folded_ffn::plan(size_of(parts), parts));
    EXPECT_EQ(crumb::folded_ffn().scratch_bytes(2), 0u);
    parts.output_bias = std::span(net.output_bias).first(3);
    EXPECT_EQ(crumb::folded_ffn::plan(size_of(parts), parts).error().code(), crumb::errc::bad_shape);
}

TEST(NeuronRows, RefusesDamagedBytes) {
    const network net({64, 48, 32}, row_codec::q4_0, row_codec::u2, true, 22);
    const std::size_t bytes = net.rows.layout().bytes;
    guarded<std::byte> copy(bytes);
    const auto reset = [&] {
        std::memcpy(copy.data(), net.rows.records() - net.rows.layout().records_offset, bytes);
    };
    reset();
    EXPECT_TRUE(crumb::neuron_rows::open(copy.span()));
    EXPECT_EQ(crumb::neuron_rows::open(copy.span().first(bytes - 1)).error().code(),
              crumb::errc::buffer_too_small);
    for (const auto& [at, code] : {std::pair{0, crumb::errc::wrong_format},
                                   {4, crumb::errc::wrong_version},
                                   {8, crumb::errc::corrupt},
                                   {15, crumb::errc::bad_shape},
                                   {40, crumb::errc::corrupt},
                                   {42, crumb::errc::corrupt}}) {
        reset();
        copy[static_cast<std::size_t>(at)] ^= std::byte{64};
        EXPECT_EQ(crumb::neuron_rows::open(copy.span()).error().code(), code) << "byte " << at;
    }
    EXPECT_EQ(crumb::neuron_layout::of({0, 1, 1}).error().code(), crumb::errc::bad_shape);
}

#if defined(GTEST_HAS_DEATH_TEST)
TEST(FoldedFfnDeathTest, RefusesScratchMemoryInEveryPhase) {
    testing::FLAGS_gtest_death_test_style = "fast"; // the other one executes this program, which qemu cannot
    const network net({96, 200, 72}, row_codec::q8_0, row_codec::q8_0, true, 25);
    constexpr std::size_t m = 2, parts = 3;
    const auto x = net.random_rows(m);
    for (const auto batches : {crumb::folded_batches::lists, crumb::folded_batches::dense}) {
        const auto f = net.plan(nullptr, batches);
        const std::size_t needed = f.scratch_bytes(m, parts);
        crumb::buffer memory(needed + crumb::alignment);
        std::vector<float> y(m * 72);
        for (const std::size_t phase : {0, 1, 2, 3}) {
            if (phase == 2 && batches == crumb::folded_batches::lists)
                continue; // has nothing to do
            const auto run = [&](std::span<std::byte> scratch) {
                f.run_phase(phase, {crumb::matrix(x.data(), m, 96), crumb::matrix(y.data(), m, 72), scratch},
                            0, parts);
            };
            SCOPED_TRACE(phase);
            EXPECT_DEATH(run(memory.bytes().first(needed - 1)),
                         "scratch has [0-9]+ bytes, [0-9]+ are needed");
            EXPECT_DEATH(run({}), "scratch has 0 bytes");
            EXPECT_DEATH(run(memory.bytes().subspan(1, needed)), "scratch is not aligned to 64 bytes");
        }
    }
}

TEST(FoldedFfnDeathTest, RefusesOtherShapesAndParts) {
    testing::FLAGS_gtest_death_test_style = "fast";
    const network net({96, 200, 72}, row_codec::q8_0, row_codec::q8_0, true, 25);
    const auto f = net.plan(nullptr);
    const auto x = net.random_rows(1);
    std::vector<float> y(72);
    const crumb::buffer scratch(f.scratch_bytes(1));
    const crumb::folded_ffn_batch narrow{crumb::matrix(x.data(), 1, 4), crumb::matrix(y.data(), 1, 72),
                                         scratch};
    EXPECT_DEATH((void)f.count_missed(narrow), "x is 1 x 4, y 1 x 72");
    EXPECT_DEATH(f.run_phase(0, narrow, 0, 1), "x is 1 x 4, y 1 x 72");
    constexpr std::size_t many = std::size_t{1} << 62;
    EXPECT_DEATH((void)f.scratch_bytes(1, many), "4611686018427387904 parts, 1 to 65536 are possible");
    EXPECT_DEATH((void)f.scratch_bytes(1, 0), "0 parts");
}
#endif

} // namespace test_folded_ffn
