// Folded networks with bounds on their estimates: nothing outside its range is left unfixed.
#include "guarded.hpp"
#include "isa_test.hpp"
#include "random_numbers.hpp"

#include <crumb/offline/folding/predictor_margin.hpp>
#include <crumb/offline/weights/quantize.hpp>
#include <crumb/op/ffn/folded_ffn.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace test_sound_ffn {
namespace {

using crumb_test::guarded;
using crumb_test::normal_numbers;
using crumb_test::tested_isa;

constexpr std::size_t inputs = 200, neurons = 90, outputs = 32;

/// A predictor of 8 bits with its bounds, and neurons whose thresholds a test sets.
struct network {
    std::vector<float> up, bias, fold, kept;
    guarded<std::byte> packed, rows;
    crumb::bound_matrix bounds;
    crumb::neuron_writer writer;
    crumb::packed_view<crumb::q8_0> view;

    network()
        : up(neurons * inputs), bias(neurons), fold(outputs * inputs), kept(neurons * inputs),
          packed(crumb::packed_bytes<crumb::q8_0>(neurons, inputs)),
          rows(crumb::neuron_layout::of({neurons, inputs, outputs})->bytes) {
        std::mt19937 random(3);
        normal_numbers<float> normal;
        for (auto* all : {&up, &bias, &fold})
            for (float& v : *all)
                v = normal(random);
        const auto w = crumb::matrix<const float>(up.data(), neurons, inputs);
        const auto q = crumb::quantize<crumb::q8_0>(w);
        const crumb::storage_view<crumb::q8_0> stored = *q;
        view = *crumb::pack(stored, packed.span());
        for (std::size_t n = 0; n < neurons; ++n)
            for (std::size_t i = 0; i < inputs; ++i)
                kept[n * inputs + i] = static_cast<float>(stored.weight(n, i));
        bounds = *crumb::sound_bounds(w, crumb::matrix<const float>(kept.data(), neurons, inputs));
        writer = *crumb::neuron_writer::create(rows.span(), {neurons, inputs, outputs});
    }
    /// What a neuron's input is, the sum of 201 doubles.
    double input(std::size_t n, const std::vector<float>& x) const {
        double u = double(bias[n]);
        for (std::size_t i = 0; i < inputs; ++i)
            u += double(up[n * inputs + i]) * double(x[i]);
        return u;
    }
    std::size_t fixed(const char* isa, const std::vector<float>& x, bool sound) const {
        const auto fold_plan = crumb::dense_linear<float>::plan(
            crumb::matrix<const float>(fold.data(), outputs, inputs), {}, {isa});
        const auto predictor = crumb::linear<crumb::q8_0>::plan(view, {.bias = bias}, {isa});
        crumb::folded_ffn_parts parts{
            .fold = *fold_plan, .predictor = *predictor, .neurons = *writer.finish(), .activation = {}};
        if (sound)
            parts.bounds = *crumb::dense_linear<crumb::half>::plan(bounds.view(), {}, {isa});
        const auto plan = crumb::folded_ffn::plan({inputs, neurons, outputs}, parts,
                                                  {.batches = crumb::folded_batches::lists}, {isa});
        EXPECT_TRUE(plan) << plan.message();
        std::vector<float> y(outputs);
        guarded<std::byte> scratch(plan->scratch_bytes(1));
        crumb::folded_ffn_counters counted;
        const crumb::folded_ffn_batch batch{crumb::matrix<const float>(x.data(), 1, inputs),
                                            crumb::matrix(y.data(), 1, outputs),
                                            scratch.span(),
                                            {&counted, 1}};
        plan->run(batch);
        return counted.fixed;
    }
};

/// Random inputs, and those along the errors of a neuron's weights, by sign and by size.
std::vector<std::vector<float>> rows_of_inputs(const network& net) {
    std::mt19937 random(4);
    normal_numbers<float> normal;
    std::vector<std::vector<float>> all;
    for (int i = 0; i < 20; ++i) {
        all.emplace_back(inputs);
        for (float& v : all.back())
            v = normal(random) * std::exp(2 * normal(random));
    }
    for (std::size_t n = 0; n < neurons; n += 9)
        for (const bool by_sign : {true, false}) {
            all.emplace_back(inputs);
            for (std::size_t i = 0; i < inputs; ++i) {
                const float e = net.up[n * inputs + i] - net.kept[n * inputs + i];
                all.back()[i] = by_sign ? std::copysign(1.0f + 0.004f * normal(random), e) : e * 1000;
            }
        }
    return all;
}

} // namespace

// Every neuron's range ends at its input, so that all of them are outside by as little as floats can say.
TEST(SoundFfn, FixesWhateverIsOutside) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    crumb_test::for_each_isa([](const tested_isa& isa) {
        const network net;
        std::size_t missed_without = 0;
        for (const auto& x : rows_of_inputs(net)) {
            for (const bool below : {true, false}) {
                for (std::size_t n = 0; n < neurons; ++n) {
                    const double u = net.input(n, x);
                    float end = static_cast<float>(u);
                    // The double's own error is less than the step of floats that is taken here.
                    end = std::nextafter(end, below ? infinity : -infinity);
                    end = std::nextafter(end, below ? infinity : -infinity);
                    net.writer.thresholds(n, below ? end : -infinity, below ? infinity : end);
                }
                EXPECT_EQ(net.fixed(isa.name, x, true), neurons);
                missed_without += neurons - net.fixed(isa.name, x, false);
            }
        }
        EXPECT_GT(missed_without, neurons); // of 80 times as many: the estimates alone do miss
    });
}

TEST(SoundFfn, LeavesWhatIsFarInside) {
    crumb_test::for_each_isa([](const tested_isa& isa) {
        const network net;
        for (const auto& x : rows_of_inputs(net)) {
            double length = 0;
            for (const float v : x)
                length += double(v) * double(v);
            // Rounding moves products by less than 3 % of |w| |x|, and |w| is below 20.
            for (std::size_t n = 0; n < neurons; ++n) {
                const double u = net.input(n, x), margin = 0.6 * std::sqrt(length) + 1e-3;
                net.writer.thresholds(n, static_cast<float>(u - margin), static_cast<float>(u + margin));
            }
            EXPECT_EQ(net.fixed(isa.name, x, true), 0u);
        }
    });
}

} // namespace test_sound_ffn
