// What the rows of matrix products share.
#pragma once

#include "rows.hpp"

#include <crumb/op/linear/linear.hpp>

#include <cstring>
#include <functional>

namespace crumb::bench {

/// Equal copies of weights, one after another on huge pages.
struct copies {
    copies(std::size_t one, std::size_t working_set)
        : stride(round_up(one, alignment)),
          count(std::max<std::size_t>(1, (working_set + stride - 1) / stride)), memory(stride * count) {}
    void fill() {
        for (std::size_t i = 1; i < count; ++i)
            std::memcpy(at(i), at(0), stride);
    }
    std::byte* at(std::size_t i) const noexcept { return memory.data() + i * stride; }
    std::size_t stride, count;
    buffer memory;
};

/// The bit layout whose multiply-accumulate peak a product is compared with: panels multiply bytes, whatever
/// they were made of, and so do codebooks.
template <class F, linear_mode Mode>
using peak_codes =
    std::conditional_t<Mode == linear_mode::exact && !indexed_codes<typename F::codes> && !has_records<F>,
                       typename F::codes, byte_codes>;

/// What a product is compared with beside the read bandwidth: multiply-accumulates per second, measured again
/// at every call.
struct product_ceilings {
    double (*peak)() = nullptr; ///< of the ISA for a bit layout
    double (*mix)() = nullptr;  ///< of whole groups, or null
};
/// `Codes`: see `peak_codes`.
template <class Codes, class Isa, linear_mode Mode>
constexpr product_ceilings ceilings_of() {
    product_ceilings c{mac_rate<Isa, Codes>, nullptr};
    if constexpr (Mode == linear_mode::exact && has_mix<Isa>)
        c.mix = mix_rate<Isa, Codes>;
    return c;
}

/// A product to time.
struct timed_product {
    std::function<void()> run;
    double macs = 0;
    std::size_t weight_bytes = 0, working_set = 0;
};

/// Times a product whose result has been checked and fills the counters. The ceilings are measured again
/// every few milliseconds: on shared machines and warm boards they drift within a row. The fractions are
/// medians of what neighbouring measurements give.
inline double time_product(benchmark::State& state, const timed_product& product,
                           const product_ceilings& ceilings, const memory_level& level) {
    std::vector<double> of_read, of_peak, of_mix;
    const auto bytes = static_cast<double>(product.weight_bytes);
    const double seconds = sample(state, level.bytes != 0 ? 1 : 16, product.run, [&](double s) {
        of_read.push_back(bytes / s / read_bandwidth(level));
        of_peak.push_back(product.macs / s / ceilings.peak());
        if (ceilings.mix != nullptr)
            of_mix.push_back(product.macs / s / ceilings.mix());
    });
    const double macs = product.macs / seconds;
    state.counters["bytes_per_second"] = bytes / seconds;
    state.counters["mac_per_second"] = macs;
    state.counters["working_set_bytes"] = static_cast<double>(product.working_set);
    if (of_read.empty())
        return macs;
    state.counters["of_read_bandwidth"] = median(of_read);
    state.counters["of_mac_peak"] = median(of_peak);
    if (!of_mix.empty())
        state.counters["of_mix"] = median(of_mix);
    return macs;
}

inline benchmark::internal::Benchmark*
add(const std::string& name, std::function<void(benchmark::State&, std::size_t, const memory_level&)> f,
    std::size_t m, const memory_level& level) {
    return benchmark::RegisterBenchmark(
               name.c_str(), [f = std::move(f), m, level](benchmark::State& state) { f(state, m, level); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
}

} // namespace crumb::bench
