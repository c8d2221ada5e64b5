#include "machine/machine.hpp"

#include "machine/ceilings.hpp"
#include "machine/seconds.hpp"

#include <crumb/dispatch/isa.hpp>

#include <atomic>
#include <chrono>
#include <string_view>
#include <vector>

namespace lm {
namespace {

/// Keeps results of loops whose only purpose is the time that they take.
std::atomic<int> sink;

using read_function = int (*)(const std::byte*, std::size_t) noexcept;
struct mac_loop {
    int (*run)(std::size_t) noexcept = nullptr;
    double macs = 0;
};

/// What is best differs from machine to machine.
template <class Isa>
std::vector<read_function> readers() {
    using reader = crumb::ceilings::reader<Isa>;
    return {&reader::template read<1>, &reader::template read<1, 2048, 3>, &reader::template read<4>,
            &reader::template read<4, 1024, 3>, &reader::template read<4, 1024, 0>};
}

template <class Isa, class Codes>
mac_loop peak() {
    using loop = crumb::ceilings::mac_peak<Isa, Codes>;
    return {&loop::run, loop::macs};
}

template <class F>
double seconds_of(F&& f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    return seconds_since(start);
}

} // namespace

machine::machine(team threads, std::size_t bytes, std::size_t isa, bool nibbles)
    : threads_(std::move(threads)), isa_(isa), nibbles_(nibbles) {
    const std::size_t mib = std::size_t{1} << 20;
    memory_ = buffer(crumb::round_up(std::clamp(bytes, 256 * mib, 2048 * mib), 4096 * threads_.size()));
}

void machine::measure() {
    std::vector<read_function> variants;
    mac_loop macs;
    crumb::isa_list::for_each([&]<class Isa>() {
        if (std::string_view(Isa::name) != crumb::isa_names()[isa_])
            return;
        variants = readers<Isa>();
        macs = nibbles_ ? peak<Isa, crumb::nibble_codes>() : peak<Isa, crumb::byte_codes>();
    });
    const std::size_t part_bytes = memory_.bytes().size() / threads_.size() / 4096 * 4096;
    const auto try_reader = [&](std::size_t variant) {
        const double seconds = seconds_of([&] {
            threads_.run([&](std::size_t part, std::size_t) {
                sink = variants[variant](memory_.bytes().data() + part * part_bytes, part_bytes);
            });
        });
        const double rate = static_cast<double>(part_bytes * threads_.size()) / seconds;
        if (rate > bytes_per_second_) {
            bytes_per_second_ = rate;
            reader_ = variant;
        }
    };
    if (bytes_per_second_ == 0)
        for (std::size_t variant = 0; variant < variants.size(); ++variant)
            try_reader(variant);
    for (int pass = 0; pass < 4; ++pass)
        try_reader(reader_);
    for (int pass = 0; pass < 10; ++pass) {
        constexpr std::size_t rounds = 20000;
        const double seconds =
            seconds_of([&] { threads_.run([&](std::size_t, std::size_t) { sink = macs.run(rounds); }); });
        const double all = macs.macs * static_cast<double>(rounds * threads_.size());
        macs_per_second_ = std::max(macs_per_second_, all / seconds);
    }
}

} // namespace lm
