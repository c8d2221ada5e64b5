// Products of a format on every ISA of the build, compared with the reference: for programs beside the tests.
#pragma once

#include <crumb/linear.hpp>
#include <crumb/reference/linear.hpp>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace outside {

/// Zeros, aligned to `crumb::alignment`.
class buffer {
  public:
    explicit buffer(std::size_t bytes) : storage_(bytes + crumb::alignment), bytes_(bytes) {}
    std::span<std::byte> span() {
        void* p = storage_.data();
        std::size_t space = storage_.size();
        return {static_cast<std::byte*>(std::align(crumb::alignment, bytes_, p, space)), bytes_};
    }

  private:
    std::vector<std::byte> storage_;
    std::size_t bytes_;
};

/// Multiplies weights that `F` rounds by `rows` rows on every ISA that this CPU has; says what is wrong.
/// `isas`: how many were tried.
template <class F>
bool products_agree(std::size_t n, std::size_t k, std::size_t rows, std::size_t& isas) {
    const std::size_t groups = (k + crumb::group_size - 1) / crumb::group_size;
    std::vector<typename F::block> blocks(n * groups);
    std::vector<float> x(rows * k);
    for (std::size_t b = 0; b < blocks.size(); ++b) {
        float w[crumb::group_size];
        for (std::size_t i = 0; i < crumb::group_size; ++i)
            w[i] = std::sin(static_cast<float>(b * 37 + i * i));
        F::encode(w, blocks[b]);
    }
    for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = std::cos(static_cast<float>(i * 3 % 101));
    const auto stored = *crumb::storage<F>(blocks, n, k);
    buffer weights(crumb::packed_bytes<F>(n, k));
    const auto packed = crumb::pack(stored, weights.span());
    if (!packed)
        return std::printf("%s\n", packed.message()), false;
    isas = 0;
    for (std::size_t i = 0; i < crumb::isa_names().size(); ++i) {
        const char* isa = crumb::isa_names()[i];
        if (!crumb::isa_supported(i))
            continue;
        ++isas;
        const auto plan = crumb::linear<F>::plan(*packed, {}, {isa});
        if (!plan || std::strcmp(plan->isa(), isa) != 0)
            return std::printf("%s: %s\n", isa, plan ? plan->isa() : plan.message()), false;
        const auto layout = plan->input_plan();
        buffer scratch(crumb::activation_bytes(layout, rows));
        auto a = *crumb::activations::create(scratch.span(), layout, rows);
        a.quantize(crumb::matrix<const float>(x.data(), rows, k));
        std::vector<float> y(rows * n);
        plan->run(a, crumb::matrix(y.data(), rows, n));
        const crumb::reference::activation_view input{a.layout(), a.codes(), a.scales(), rows};
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t c = 0; c < n; ++c) {
                const auto exact = crumb::reference::linear(stored, c, input, r);
                const double bound = (static_cast<double>(groups) + 2) * 0x1p-23 * exact.magnitude;
                if (!(std::fabs(double{y[r * n + c]} - exact.value) <= bound))
                    return std::printf("%s in %s: row %zu, channel %zu is %g, not %g\n", F::name, isa, r, c,
                                       double{y[r * n + c]}, exact.value),
                           false;
            }
        std::printf("%s on %s: well\n", F::name, isa);
    }
    return true;
}

} // namespace outside
