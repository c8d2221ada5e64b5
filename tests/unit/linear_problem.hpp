// A product of random packed weights and random activations, for the tests of `crumb::linear`.
#pragma once

#include "guarded.hpp"
#include "random_numbers.hpp"
#include "random_weights.hpp"

#include <crumb/crumb.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <span>
#include <vector>

namespace crumb_test {

/// Quantized rows with their memory.
struct quantized_input {
    std::unique_ptr<guarded<std::byte>> memory;
    crumb::activations rows;
};

/// What a product has whose format does not matter.
struct linear_inputs {
    std::size_t n, k, m;
    std::vector<float> x, bias;

    linear_inputs(std::size_t n_, std::size_t k_, std::size_t m_, std::mt19937& random)
        : n(n_), k(k_), m(m_), x(m * k), bias(n) {
        normal_numbers<float> normal;
        for (auto& v : x)
            v = normal(random) * std::exp(normal(random));
        for (auto& v : bias)
            v = normal(random);
    }
    quantized_input quantize(const crumb::activation_plan& layout) const {
        quantized_input q{std::make_unique<guarded<std::byte>>(crumb::activation_bytes(layout, m)), {}};
        auto a = crumb::activations::create(q.memory->span(), layout, m);
        EXPECT_TRUE(a) << a.message();
        guarded<float> input(x.size());
        std::copy(x.begin(), x.end(), input.begin());
        a->quantize(crumb::matrix<const float>(input.data(), m, k));
        q.rows = *a;
        return q;
    }
};

/// Memory for the objects of one product; every buffer ends or begins at a page that must not be touched.
template <class F>
struct linear_problem : linear_inputs {
    stored_weights<F> stored;
    guarded<std::byte> weights;
    crumb::packed_view<F> packed;

    linear_problem(std::size_t rows, std::size_t inputs, std::size_t tokens, unsigned seed)
        : linear_problem(rows, inputs, tokens, std::mt19937(seed)) {}
    linear_problem(std::size_t rows, std::size_t inputs, std::size_t tokens, std::mt19937 random)
        : linear_inputs(rows, inputs, tokens, random), stored(random_weights<F>(n, k, random)),
          weights(crumb::packed_bytes<F>(n, k)) {
        pack();
    }
    /// After a change of `stored`.
    void pack() {
        const auto p = crumb::pack(stored.view(), weights.span());
        ASSERT_TRUE(p) << p.message();
        packed = *p;
    }
    /// All codes, or all entries of the codebooks, the same.
    void fill(int code, typename F::scales::value scale) {
        crumb_test::fill(stored, code, scale);
        pack();
    }

    crumb::linear<F> plan(const char* isa, bool with_bias = false,
                          crumb::linear_mode mode = crumb::linear_mode::exact) const {
        const auto p = crumb::linear<F>::plan(
            packed,
            {.bias = with_bias ? std::span<const float>(bias) : std::span<const float>(),
             .mode = mode,
             .codebooks = stored.codebooks},
            {isa});
        EXPECT_TRUE(p) << p.message();
        EXPECT_STREQ(p->isa(), isa);
        return *p;
    }
    using linear_inputs::quantize;
    quantized_input quantize(const crumb::linear<F>& plan) const { return quantize(plan.input_plan()); }
    std::vector<float> run(const char* isa, bool with_bias = false,
                           crumb::linear_mode mode = crumb::linear_mode::exact) const {
        const auto p = plan(isa, with_bias, mode);
        const auto a = quantize(p);
        guarded<float> y(m * n);
        p.run(a.rows, crumb::matrix(y.data(), m, n));
        return {y.begin(), y.end()};
    }
};

} // namespace crumb_test
