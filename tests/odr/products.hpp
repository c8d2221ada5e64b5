// A matrix product that both translation units compile, each with its own flags.
#pragma once

#include <crumb/crumb.hpp>
#include <crumb/offline/weights/quantize.hpp>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace {

template <class F>
std::vector<float> product(const char* isa) {
    const std::size_t n = 50, k = 200, m = 11;
    std::vector<float> w(n * k), x(m * k), y(m * n);
    for (std::size_t i = 0; i < w.size(); ++i)
        w[i] = static_cast<float>(static_cast<int>(i * 7919 % 1001) - 500) / 333.0f;
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>(static_cast<int>(i * 104729 % 997) - 498) / 100.0f;
    const auto aligned = [](std::size_t bytes) {
        return std::unique_ptr<std::byte, decltype(&std::free)>(
            static_cast<std::byte*>(std::aligned_alloc(64, crumb::round_up(bytes, 64))), &std::free);
    };
    const auto stored = crumb::quantize<F>(crumb::matrix<const float>(w.data(), n, k));
    const std::size_t size = crumb::packed_bytes<F>(n, k);
    const auto packed_memory = aligned(size);
    const auto packed = crumb::pack(*stored, {packed_memory.get(), size});
    const auto plan = crumb::linear<F>::plan(*packed, {}, {isa});
    const auto layout = plan->input_plan();
    const std::size_t bytes = crumb::activation_bytes(layout, m);
    const auto memory = aligned(bytes);
    auto a = crumb::activations::create({memory.get(), bytes}, layout, m);
    a->quantize(crumb::matrix<const float>(x.data(), m, k));
    plan->run(*a, crumb::matrix(y.data(), m, n));
    return y;
}

} // namespace
