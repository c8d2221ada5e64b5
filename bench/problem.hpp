// Random weights and activations, and what their product must be.
#pragma once

#include <crumb/offline/nested/quantized.hpp>
#include <crumb/offline/weights/quantize.hpp>
#include <crumb/op/linear/activations.hpp>
#include <crumb/reference/linear.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace crumb::bench {

/// `count` numbers between -1 and 1, the same on every machine.
inline std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
    std::vector<float> x(count);
    for (float& value : x) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        value = static_cast<float>(static_cast<std::int32_t>(seed >> 32)) * 0x1p-31f;
    }
    return x;
}

/// A block of a format with records: random codes, scales around 1 or, of integers, up to their largest.
template <weight_format F>
void randomize(typename F::block& block, std::uint64_t& seed) {
    const auto below = [&](int limit) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        return static_cast<int>((seed >> 33) % static_cast<unsigned>(limit));
    };
    constexpr int least = has_table<F> ? 0 : -code_offset_of<F>;
    using value = typename F::scales::value;
    const half unit = to_half(0.5f + 0.01f * float(below(100)));
    for (std::size_t g = 0; g < F::scales::block_groups; ++g) {
        int code[F::scales::group];
        for (int& c : code)
            c = below(1 << std::bit_width(unsigned(F::codes::maximum))) % (F::codes::maximum + 1) *
                    code_step_of<F> +
                least;
        value scale{};
        if constexpr (std::same_as<value, half>)
            scale = unit;
        else if constexpr (std::same_as<value, half_multiple>)
            scale = {unit, static_cast<std::int8_t>(below(16))};
        else
            scale.bits = static_cast<std::uint8_t>(100 + below(27));
        if constexpr (has_minima<F>) {
            if constexpr (std::same_as<value, half>)
                F::set(block, scale, to_half(0.01f * float(below(100)) - 0.5f), code, g);
            else
                F::set(block, scale, value{unit, static_cast<std::int8_t>(-below(16))}, code, g);
        } else {
            F::set(block, scale, code, g);
        }
    }
}

/// n x k weights in storage format; of codebook formats the indices, scales and codebooks are random, these
/// as large as training makes them.
template <weight_format F>
quantized<F> random_weights(std::size_t n, std::size_t k) {
    if constexpr (has_records<F>) {
        quantized<F> q;
        q.n = n;
        q.k = k;
        q.blocks.resize(n * ((k + block_inputs<F> - 1) / block_inputs<F>));
        std::uint64_t seed = 1;
        for (auto& block : q.blocks)
            randomize<F>(block, seed);
        return q;
    } else if constexpr (rounding_format<F>) {
        const std::vector<float> w = random_floats(n * k, 1);
        return *quantize<F>(matrix(w.data(), n, k));
    } else {
        const std::size_t blocks = n * ((k + block_inputs<F> - 1) / block_inputs<F>);
        const std::size_t entries = needs_codebooks<F> ? codebook_entries<F> : 0;
        const std::vector<float> random = random_floats(entries + blocks * block_inputs<F>, 1);
        std::size_t next = 0;
        const auto below = [&](float limit) { return std::fabs(random[next++]) * limit; };
        quantized<F> q;
        q.n = n;
        q.k = k;
        for (std::size_t i = 0; i < entries; ++i)
            q.codebooks.push_back(
                static_cast<std::int8_t>(random[next++] * (F::codes::maximum < 4 ? 31.0f : 127.0f)));
        q.blocks.resize(blocks);
        for (auto& block : q.blocks) {
            for (std::size_t g = 0; g < F::scales::block_groups; ++g) {
                int code[group_size];
                typename F::scales::value scale;
                if constexpr (std::is_same_v<decltype(scale), half>)
                    scale = to_half(1.0f + random[next]);
                else
                    scale = {127, static_cast<std::int8_t>(random[next] * 127.0f)};
                for (int& c : code)
                    c = static_cast<int>(below(static_cast<float>(F::codes::maximum) + 0.99f));
                F::set(block, scale, code, g);
            }
        }
        return q;
    }
}

/// n x k nested weights of 2 to 4 bits with random codes and scales. Levels that are not uniform are about
/// those of normal weights.
inline nested_quantized random_nested(bool uniform, std::size_t n, std::size_t k) {
    nested_levels levels = nested_levels::uniform(min_nested_bits, max_nested_bits);
    for (int p = min_nested_bits; p <= max_nested_bits && !uniform; ++p) {
        const auto t = levels.table(p);
        for (std::size_t i = 0; i < t.size(); ++i) {
            const double x = (2.0 * double(i) + 1.0) / double(t.size()) - 1.0;
            t[i] = static_cast<std::int8_t>(x * (60.0 + 67.0 * x * x));
        }
    }
    nested_quantized q = nested_quantized::zeros(levels, n, k);
    const std::vector<float> random = random_floats(n * k, 1);
    for (std::size_t i = 0; i < random.size(); ++i)
        q.codes[i] = static_cast<std::uint8_t>(8.0f + 7.99f * random[i]);
    for (std::size_t i = 0; i < q.scales.size(); ++i)
        q.scales[i] = to_half(1.0f + random[i]);
    return q;
}

/// Compares y = x W^T (y as produced from dynamically quantized activations) with the reference in double
/// precision, which gets activations quantized here, for a few channels of the first, middle and last row.
/// `group` is that of the activations; if it is `panel_inputs`, the reference requantizes the weights as
/// panels do. Empty if every |error| is at most 2 (groups + 3) eps sum |w x|, else what is wrong.
template <weight_format F>
std::string check_product(const storage_view<F>& w, const matrix_view<const float>& x,
                          const matrix_view<float>& y, std::size_t group = group_size) {
    const activation_layout layout{.k = w.k, .group = group};
    std::vector<std::int8_t> codes(layout.k_padded());
    std::vector<float> scales(layout.groups());
    const reference::activation_view quantized_x{layout, codes.data(), scales.data(), 1};
    for (const std::size_t r : {std::size_t{0}, x.rows / 2, x.rows - 1}) {
        for (std::size_t g = 0; g < layout.groups(); ++g) {
            const std::size_t end = std::min((g + 1) * group, w.k);
            float most = 0;
            for (std::size_t i = g * group; i < end; ++i)
                most = std::max(most, std::fabs(x.row(r)[i]));
            scales[g] = most < smallest_activation ? 0.0f : activation_scale(most);
            for (std::size_t i = g * group; i < end; ++i)
                codes[i] = static_cast<std::int8_t>(
                    scales[g] == 0.0f ? 0.0f : std::nearbyint(x.row(r)[i] * (1.0f / scales[g])));
        }
        for (const std::size_t c : {std::size_t{0}, std::size_t{1}, y.cols / 3, y.cols / 2 + 3, y.cols - 1}) {
            reference::product exact;
            if (group != panel_inputs)
                exact = reference::linear(w, c, quantized_x, 0);
            else if constexpr (!has_records<F>)
                exact = reference::panel_linear(w, c, quantized_x, 0);
            const double bound =
                2.0 * static_cast<double>(reference::roundings<F>(w.k) + 1) * 0x1p-24 * exact.magnitude;
            const double got = static_cast<double>(y.row(r)[c]);
            if (!(std::fabs(got - exact.value) <= bound))
                return "wrong result: row " + std::to_string(r) + ", channel " + std::to_string(c) + " is " +
                       std::to_string(got) + ", expected " + std::to_string(exact.value);
        }
    }
    return {};
}

/// Compares every hundredth channel of an absorbed product with the reference in double precision, for the
/// activations as they were quantized: their codes are not those of other products. Empty if every |error| is
/// at most (groups + 2) eps sum |w x|, else what is wrong.
template <weight_format F>
std::string check_absorbed(const storage_view<F>& w, const activations& a,
                           const matrix_view<const float>& y) {
    const reference::activation_view x{a.layout(), a.codes(), a.scales(), a.rows()};
    for (std::size_t r = 0; r < y.rows; ++r)
        for (std::size_t c = 0; c < y.cols; c += 100) {
            const reference::product exact = reference::linear(w, c, x, r);
            const double bound = static_cast<double>(w.groups() + 2) * 0x1p-24 * exact.magnitude;
            if (!(std::fabs(static_cast<double>(y.row(r)[c]) - exact.value) <= bound))
                return "wrong result: row " + std::to_string(r) + ", channel " + std::to_string(c) + " is " +
                       std::to_string(y.row(r)[c]) + ", expected " + std::to_string(exact.value);
        }
    return {};
}

} // namespace crumb::bench
