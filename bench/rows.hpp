// What the rows of crumb-bench share.
#pragma once

#include "machine/ceilings.hpp"
#include "measure.hpp"
#include "memory.hpp"

#include <crumb/dispatch/isa.hpp>
#include <crumb/format/list.hpp>
#include <crumb/kernel/linear/definitions.hpp>

#include <string>
#include <type_traits>

namespace crumb::bench {

/// Where the weights of a row come from.
struct memory_level {
    const char* name;
    std::size_t n, k;  ///< shape of the product
    std::size_t bytes; ///< working set to rotate over; 0: one copy of the weights
};
inline memory_level dram() { return {"dram", 4096, 4096, dram_working_set()}; }
inline memory_level l2() { return {"l2", 1024, 1024, 0}; }

/// Bytes per second that one thread can read at this moment.
double read_bandwidth(const memory_level& level);

/// Name of the row with the multiply-accumulate peak of an ISA for a bit layout.
template <class Isa, class Codes>
std::string peak_row() {
    const bool own = !std::is_same_v<Codes, byte_codes> &&
                     ceilings::mac_peak<Isa, Codes>::macs != ceilings::mac_peak<Isa, byte_codes>::macs;
    return std::string("ceiling/mac/") + Isa::name + (own ? "/4bit" : "");
}

/// Some ten microseconds of multiply-accumulates in registers; how many they are.
template <class Isa, class Codes>
double run_mac_peak() {
    constexpr std::size_t rounds = 4000;
    benchmark::DoNotOptimize(ceilings::mac_peak<Isa, Codes>::run(rounds));
    return static_cast<double>(rounds) * ceilings::mac_peak<Isa, Codes>::macs;
}

/// Multiply-accumulates per second of an ISA for a bit layout at this moment.
template <class Isa, class Codes>
double mac_rate() {
    double macs = 0;
    const double seconds = quick_sample(0, [&] { macs = run_mac_peak<Isa, Codes>(); });
    return macs / seconds;
}

/// Name of the row with what whole groups of an exact product can reach at best.
template <class Isa, class Codes>
std::string mix_row() {
    return std::string("ceiling/mix/") + Isa::name + (std::is_same_v<Codes, byte_codes> ? "" : "/4bit");
}

/// The product that blocks of rows use for a bit layout.
template <class Isa, class Codes>
using block_product = typename kernel::product_for_rows<typename kernel::product_of<Isa, Codes>::type>::type;

/// As `mac_rate`, of whole groups from registers.
template <class Isa, class Codes>
double mix_rate() {
    constexpr std::size_t rounds = 4000;
    const double seconds = quick_sample(0, [] {
        benchmark::DoNotOptimize(ceilings::group_mix<Isa>::template run<block_product<Isa, Codes>>(rounds));
    });
    return static_cast<double>(rounds) * ceilings::group_mix<Isa>::macs / seconds;
}

/// Whether an ISA has a row of whole groups: where there is one vector unit to bind them, on x86.
template <class Isa>
inline constexpr bool has_mix = CRUMB_BUILDS_X86 && !std::is_same_v<Isa, isa::portable>;

/// `ceiling/...`: the read bandwidth of each level and the multiply-accumulate peak of each ISA.
void register_ceilings();
/// `plain/...`, `linear/...`, `panels/...` and `absorbed/...`: products by format, ISA and shape.
void register_linear();
/// `dense/...`: products with float, fp16 and bf16 weights by type, ISA and shape.
void register_dense();
/// `nested/...`: products with nested weights by precision, ISA and shape; `layers/...`: shapes of layers.
void register_nested();
/// `attention/...`: decode steps by codec, ISA and size of the cache.
void register_attention();
/// `prompts/...`: attention of a chunk of rows by int8 products, beside floats.
void register_prompts();
/// `encode/...`: keys and values becoming codes, by codec and ISA.
void register_encode();
/// `ffn/...`: folded feed-forward networks beside the dense ones.
void register_ffn();

} // namespace crumb::bench
