// Products whose results the weights bound.
#pragma once

#include "fuzz.hpp"

#include <crumb/crumb.hpp>

namespace lm::fuzz {

/// More weights than that are only opened, so that executions stay short.
inline constexpr std::size_t max_weights = std::size_t{1} << 15;

/// One product with `rows` rows of inputs within -1 .. 1.
struct one_product {
    std::vector<float> x;
    std::vector<float> y; ///< rows x n

    explicit one_product(const crumb::any_linear& plan, std::size_t rows = 1) {
        run(plan.n(), plan.k(), rows, plan.reads_activations() ? plan.input_plan() : crumb::activation_plan(),
            [&](const auto& in, const crumb::activations& quantized, const auto& out) {
                plan.run(in, quantized, out);
            });
    }
    template <crumb::weight_format F>
    explicit one_product(const crumb::linear<F>& plan, std::size_t rows = 1) {
        run(plan.n(), plan.k(), rows, plan.input_plan(),
            [&](const auto&, const crumb::activations& quantized, const auto& out) {
                plan.run(quantized, out);
            });
    }
    one_product(const crumb::nested_linear& plan, int bits, std::size_t rows = 1) {
        run(plan.n(), plan.k(), rows, plan.input_plan(),
            [&](const auto&, const crumb::activations& quantized, const auto& out) {
                plan.run(bits, quantized, out);
            });
    }

  private:
    template <class F>
    void run(std::size_t n, std::size_t k, std::size_t rows, const crumb::activation_plan& layout,
             F&& multiply) {
        x = inputs(rows * k);
        const auto in = crumb::matrix<const float>(x.data(), rows, k);
        const std::vector<std::byte> nothing(
            layout.quantize == nullptr ? 0 : crumb::activation_bytes(layout, rows));
        const exact_copy memory(nothing);
        crumb::activations quantized;
        if (layout.quantize != nullptr) {
            quantized = crumb::activations::create(memory.bytes(), layout, rows).value();
            quantized.quantize(in);
        }
        y.resize(n * rows);
        multiply(in, quantized, crumb::matrix(y.data(), rows, n));
    }
};

/// Results are finite and no larger than the weights' magnitudes allow, wherever these are far from what
/// floats end at; rows of a batch are what they are alone. `weights`: their magnitudes, or those of the terms
/// that they are sums of. `constants`: what is added to each output.
template <class Plan>
void check_products(const Plan& plan, std::span<const double> weights, std::span<const float> constants) {
    const one_product one(plan), three(plan, 3);
    const std::size_t n = plan.n(), k = plan.k();
    for (std::size_t c = 0; c < n; ++c) {
        double most = std::fabs(double(constants[c]));
        for (std::size_t i = 0; i < k; ++i)
            most += std::fabs(weights[c * k + i]);
        if (most < 1e37)
            check(std::fabs(double(one.y[c])) <= 1.001 * most + 1e-30,
                  "a product is larger than its weights allow");
        check(same_results(std::span(one.y).subspan(c, 1), std::span(three.y).subspan(c, 1)),
              "a row of a batch is not what it is alone");
    }
}

/// The same product from both.
template <class Plan>
void check_equal(const crumb::any_linear& any, const Plan& plan) {
    check(same_results(one_product(any, 2).y, one_product(plan, 2).y), "any_linear is another product");
}

/// Unpacked to bytes and scales, they are the weights.
inline void check_unpacked(const crumb::any_linear& plan, std::span<const double> weights) {
    const std::size_t n = plan.n(), k = plan.k();
    const std::size_t channels = crumb::round_up(n, crumb::tile_channels);
    const std::size_t groups = (k + crumb::group_size - 1) / crumb::group_size;
    std::vector<std::int8_t> codes(channels * groups * crumb::group_size);
    std::vector<float> scales(channels * groups);
    const float most = plan.unpack({0, n}, codes.data(), scales.data());
    for (std::size_t c = 0; c < n; ++c)
        for (std::size_t i = 0; i < k; ++i) {
            const std::size_t unit = c / crumb::tile_channels * groups + i / crumb::group_size;
            const std::size_t channel = c % crumb::tile_channels;
            const int code = codes[unit * crumb::byte_codes::bytes +
                                   crumb::byte_codes::byte_of(channel, i % crumb::group_size)];
            const double weight = double(scales[unit * crumb::tile_channels + channel]) * code;
            if (std::fabs(weights[c * k + i]) < 1e37)
                check(std::fabs(weight - weights[c * k + i]) <= 1e-6 * std::fabs(weight) + 1e-36,
                      "an unpacked weight is another");
            check(std::fabs(static_cast<float>(code)) <= most, "an unpacked code is larger than said");
        }
}

} // namespace lm::fuzz
