// Weights near the ties between codes, quantized to formats whose rounding a fused multiply-add would move.
#pragma once

#include <crumb/format/iq4_nl.hpp>
#include <crumb/format/iq4_xs.hpp>
#include <crumb/format/mxfp4.hpp>
#include <crumb/format/q1_0.hpp>
#include <crumb/format/q2_0.hpp>
#include <crumb/format/q2_k.hpp>
#include <crumb/format/q3_k.hpp>
#include <crumb/format/q4_0.hpp>
#include <crumb/format/q4_1.hpp>
#include <crumb/format/q4_k.hpp>
#include <crumb/format/q5_0.hpp>
#include <crumb/format/q5_1.hpp>
#include <crumb/format/q5_k.hpp>
#include <crumb/format/q6_k.hpp>
#include <crumb/format/q8_0.hpp>
#include <crumb/format/tq2_0.hpp>
#include <crumb/format/u2.hpp>
#include <crumb/offline/weights/quantize.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

inline std::vector<float> weights_near_ties(std::size_t count) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> size(0.01f, 3.0f);
    std::vector<float> w(count);
    for (std::size_t i = 0; i < count; i += 32) {
        const float d = size(random);
        for (std::size_t j = 0; j < 32; ++j) {
            float x = d * (static_cast<float>(static_cast<int>(random() % 15)) - 7.5f);
            for (int ulps = static_cast<int>(random() % 5) - 2; ulps != 0; ulps -= ulps < 0 ? -1 : 1)
                x = std::nextafter(x, ulps < 0 ? -100.0f : 100.0f);
            w[i + j] = x;
        }
        w[i + random() % 32] = -8 * d;
    }
    return w;
}

/// The bytes of all blocks.
template <class F>
std::vector<unsigned char> quantized_bytes(const std::vector<float>& w) {
    const auto q = crumb::quantize<F>(crumb::matrix(w.data(), w.size() / 256, 256));
    std::vector<unsigned char> bytes(q->blocks.size() * sizeof(typename F::block));
    std::memcpy(bytes.data(), q->blocks.data(), bytes.size());
    return bytes;
}

template <class... F>
struct formats {
    static constexpr const char* names[] = {F::name...};
    static std::vector<std::vector<unsigned char>> quantized(const std::vector<float>& w) {
        return {quantized_bytes<F>(w)...};
    }
};
using rounding_formats =
    formats<crumb::q4_0, crumb::q8_0, crumb::u2, crumb::q4_1, crumb::q5_0, crumb::q5_1, crumb::q2_k,
            crumb::q3_k, crumb::q4_k, crumb::q5_k, crumb::q6_k, crumb::iq4_nl, crumb::iq4_xs, crumb::mxfp4,
            crumb::tq2_0, crumb::q1_0, crumb::q2_0>;
