// Stored weights of any format for tests: random codes and scales, and codebooks for the formats that need
// them.
#pragma once

#include "random_numbers.hpp"

#include <crumb/format/packed.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

namespace crumb_test {

/// Weights in storage format with their table set, the extreme entries among its values.
template <class F>
struct stored_weights {
    std::size_t n = 0, k = 0;
    std::vector<typename F::block> blocks;
    std::vector<std::int8_t> codebooks;

    crumb::storage_view<F> view() const {
        auto v = *crumb::storage<F>(blocks, n, k, codebooks);
        if constexpr (crumb::has_tensor_scale<F>)
            v.tensor_scale = 0.375f;
        return v;
    }
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

inline crumb::half_multiple random_scale(double x, std::mt19937& random, crumb::half_multiple*) {
    return {random_scale(x, random, static_cast<crumb::half*>(nullptr)), static_cast<std::int8_t>(random())};
}
inline crumb::e8m0 random_scale(double, std::mt19937& random, crumb::e8m0*) {
    return {static_cast<std::uint8_t>(110 + random() % 20)};
}
inline crumb::ue4m3 random_scale(double, std::mt19937& random, crumb::ue4m3*) {
    return {static_cast<std::uint8_t>(random() % 0x7f)};
}

/// The smallest and the largest code of a format that is not one of its table, else 0 and the number of
/// entries.
template <class F>
constexpr std::pair<int, int> code_range() {
    if constexpr (!crumb::has_records<F>)
        return {F::codes::minimum, F::codes::maximum};
    else if constexpr (crumb::has_table<F>)
        return {0, 15};
    else
        return {-crumb::code_offset_of<F>,
                F::codes::maximum * crumb::code_step_of<F> - crumb::code_offset_of<F>};
}
template <class F>
int random_code(std::mt19937& random) {
    constexpr auto range = code_range<F>();
    constexpr int step = crumb::code_step_of<F>;
    return static_cast<int>(random() % unsigned((range.second - range.first) / step + 1)) * step +
           range.first;
}

/// Writes a group of a block, with a minimum where the format has them. Of integers the bits that the block
/// holds.
template <class F>
void set_group(typename F::block& block, typename F::scales::value scale, const int* code, std::size_t g) {
    if constexpr (!crumb::has_minima<F>) {
        F::set(block, scale, code, g);
    } else if constexpr (std::is_same_v<decltype(scale), crumb::half>) {
        F::set(block, scale, crumb::half{static_cast<std::uint16_t>(scale.bits ^ 0x8000u)}, code, g);
    } else {
        const crumb::half_multiple minimum{scale.unit, static_cast<std::int8_t>(-(scale.multiplier & 15))};
        F::set(block, {scale.unit, static_cast<std::int8_t>(scale.multiplier & 15)}, minimum, code, g);
    }
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
            int code[F::scales::group];
            for (int& c : code)
                c = random_code<F>(random);
            const double scale = 0.1 * normal(random) * std::pow(spread, normal(random));
            set_group<F>(block, random_scale(scale, random, static_cast<typename F::scales::value*>(nullptr)),
                         code, g);
        }
    }
    return w;
}

/// Gives every group the same scale and all codes the same value; codebooks hold nothing but that value.
template <class F>
void fill(stored_weights<F>& w, int value, typename F::scales::value scale) {
    std::fill(w.codebooks.begin(), w.codebooks.end(), static_cast<std::int8_t>(value));
    int code[F::scales::group];
    std::fill_n(code, F::scales::group, crumb::codebook_entries<F> == 0 ? value : F::codes::maximum);
    for (auto& block : w.blocks)
        for (std::size_t g = 0; g < F::scales::block_groups; ++g)
            set_group<F>(block, scale, code, g);
}

} // namespace crumb_test
