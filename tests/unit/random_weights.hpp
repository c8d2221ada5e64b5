// Stored weights of any format for tests: random codes and scales, and codebooks for the formats that need
// them.
#pragma once

#include "random_numbers.hpp"

#include <crumb/format/packed.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace crumb_test {

/// Weights in storage format with their table set, the extreme entries among its values.
template <class F>
struct stored_weights {
    std::size_t n = 0, k = 0;
    std::vector<typename F::block> blocks;
    std::vector<std::int8_t> codebooks;

    crumb::storage_view<F> view() const { return *crumb::storage<F>(blocks, n, k, codebooks); }
    std::size_t row_blocks() const { return (k + crumb::block_inputs<F> - 1) / crumb::block_inputs<F>; }
};

/// A scale of magnitude about `x`: its low bits, which select codebooks, are random.
inline crumb::half random_scale(double x, std::mt19937& random, crumb::half*) {
    const crumb::half h = crumb::to_half(static_cast<float>(x));
    return {static_cast<std::uint16_t>((h.bits & ~3u) | (random() & 3u))};
}
inline crumb::block_scale random_scale(double, std::mt19937& random, crumb::block_scale*) {
    return {120, static_cast<std::int8_t>(random())};
}

template <class F>
std::vector<std::int8_t> random_codebooks(std::mt19937& random) {
    std::vector<std::int8_t> codebooks(crumb::needs_codebooks<F> ? crumb::codebook_entries<F> : 0);
    for (auto& entry : codebooks)
        entry = static_cast<std::int8_t>(random());
    for (std::size_t i = 0; i + 1 < codebooks.size(); i += 7) {
        codebooks[i] = -128;
        codebooks[i + 1] = 127;
    }
    return codebooks;
}

/// n x k weights of random codes; scales are normal numbers times `spread`^(another).
template <class F>
stored_weights<F> random_weights(std::size_t n, std::size_t k, std::mt19937& random, double spread = 1) {
    stored_weights<F> w{n, k, {}, random_codebooks<F>(random)};
    w.blocks.resize(n * w.row_blocks());
    normal_numbers<double> normal;
    for (auto& block : w.blocks) {
        for (std::size_t g = 0; g < F::scales::block_groups; ++g) {
            int code[crumb::group_size];
            for (int& c : code)
                c = static_cast<int>(random() % unsigned(F::codes::maximum - F::codes::minimum + 1)) +
                    F::codes::minimum;
            const double scale = 0.1 * normal(random) * std::pow(spread, normal(random));
            F::set(block, random_scale(scale, random, static_cast<typename F::scales::value*>(nullptr)), code,
                   g);
        }
    }
    return w;
}

/// Gives every group the same scale and all codes the same value; codebooks hold nothing but that value.
template <class F>
void fill(stored_weights<F>& w, int value, typename F::scales::value scale) {
    std::fill(w.codebooks.begin(), w.codebooks.end(), static_cast<std::int8_t>(value));
    int code[crumb::group_size];
    std::fill_n(code, crumb::group_size, crumb::codebook_entries<F> == 0 ? value : F::codes::maximum);
    for (auto& block : w.blocks)
        for (std::size_t g = 0; g < F::scales::block_groups; ++g)
            F::set(block, scale, code, g);
}

} // namespace crumb_test
