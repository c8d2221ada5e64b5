// Rows that show what this machine can do.
#include "rows.hpp"

namespace crumb::bench {
namespace {

using read_function = int (*)(const std::byte*, std::size_t) noexcept;

/// The ways to read that compete for the ceiling.
struct read_variant {
    const char* name;
    read_function read;
};

/// Those of the best ISA of this CPU.
std::vector<read_variant> read_variants() {
    std::vector<read_variant> variants;
    isa_list::for_each([&]<class Isa>() {
        if (variants.empty() && isa_supported(isa_index(Isa::name)))
            variants = {
                {"one stream", &ceilings::reader<Isa>::template read<1>},
                {"one stream, prefetch", &ceilings::reader<Isa>::template read<1, 2048, 3>},
                {"one stream, non-temporal prefetch", &ceilings::reader<Isa>::template read<1, 1024, 0>},
                {"four streams", &ceilings::reader<Isa>::template read<4>},
                {"four streams, prefetch", &ceilings::reader<Isa>::template read<4, 1024, 3>},
                {"four streams, non-temporal prefetch", &ceilings::reader<Isa>::template read<4, 1024, 0>}};
    });
    return variants;
}

std::string bandwidth_row(const memory_level& level) {
    return std::string("ceiling/read_bandwidth/") + level.name;
}

/// Half of the second-level cache, or all of the working set in parts of a fraction of a millisecond, read in
/// the best way.
struct read_task {
    explicit read_task(const memory_level& level)
        : memory(level.bytes != 0 ? level.bytes / 4096 * 4096
                                  : cache_bytes(2, std::size_t{1} << 20) / 2 / 4096 * 4096),
          part(level.bytes != 0 ? std::size_t{4} << 20 : memory.size()) {
        double least = 0;
        for (const auto& variant : read_variants()) {
            const double seconds = quick_sample(0.1, [&] { run(variant); });
            if (least == 0 || seconds < least) {
                least = seconds;
                best = variant;
            }
        }
    }
    void run(const read_variant& variant) {
        if (at + part > memory.size())
            at = 0;
        benchmark::DoNotOptimize(variant.read(memory.data() + at, part));
        at += part;
    }
    buffer memory;
    std::size_t part;
    std::size_t at = 0;
    read_variant best{};
};

read_task& read_task_of(const memory_level& level) {
    static std::map<std::string, read_task> tasks;
    return tasks.try_emplace(level.name, level).first->second;
}

void bandwidth(benchmark::State& state, const memory_level& level) {
    read_task& task = read_task_of(level);
    const double seconds = sample(state, level.bytes != 0 ? 1 : 16, [&] { task.run(task.best); });
    state.SetLabel(task.best.name);
    state.counters["bytes_per_second"] = static_cast<double>(task.part) / seconds;
    state.counters["working_set_bytes"] = static_cast<double>(task.memory.size());
}

template <class Isa, class Codes>
void peak(benchmark::State& state) {
    if (!isa_supported(isa_index(Isa::name)))
        return skip(state, std::string("this CPU lacks ") + Isa::name);
    double macs = 0;
    const double seconds = sample(state, 1, [&] { macs = run_mac_peak<Isa, Codes>(); });
    state.counters["mac_per_second"] = macs / seconds;
}

template <class Isa, class Codes>
void mix(benchmark::State& state) {
    if (!isa_supported(isa_index(Isa::name)))
        return skip(state, std::string("this CPU lacks ") + Isa::name);
    constexpr std::size_t rounds = 4000;
    std::vector<double> of_peak;
    const double macs = static_cast<double>(rounds) * ceilings::group_mix<Isa>::macs;
    const double seconds = sample(
        state, 16,
        [] {
            benchmark::DoNotOptimize(
                ceilings::group_mix<Isa>::template run<block_product<Isa, Codes>>(rounds));
        },
        [&](double s) { of_peak.push_back(macs / s / mac_rate<Isa, Codes>()); });
    state.counters["mac_per_second"] = macs / seconds;
    state.counters["of_mac_peak"] = of_peak.empty() ? 0 : median(of_peak);
}

} // namespace

double read_bandwidth(const memory_level& level) {
    read_task& task = read_task_of(level);
    return static_cast<double>(task.part) / quick_sample(0, [&] { task.run(task.best); });
}

void register_ceilings() {
    for (const memory_level& level : {dram(), l2()})
        benchmark::RegisterBenchmark(bandwidth_row(level).c_str(), [level](benchmark::State& state) {
            bandwidth(state, level);
        })->UseManualTime();
    isa_list::for_each([]<class Isa>() {
        const auto add = []<class Codes>(std::type_identity<Codes>) {
            benchmark::RegisterBenchmark(peak_row<Isa, Codes>().c_str(), peak<Isa, Codes>)
                ->UseManualTime()
                ->Unit(benchmark::kMicrosecond);
        };
        add(std::type_identity<byte_codes>{});
        if (peak_row<Isa, nibble_codes>() != peak_row<Isa, byte_codes>())
            add(std::type_identity<nibble_codes>{});
        if constexpr (has_mix<Isa>) {
            const auto add_mix = []<class Codes>(std::type_identity<Codes>) {
                benchmark::RegisterBenchmark(mix_row<Isa, Codes>().c_str(), mix<Isa, Codes>)
                    ->UseManualTime()
                    ->Unit(benchmark::kMicrosecond);
            };
            add_mix(std::type_identity<byte_codes>{});
            add_mix(std::type_identity<nibble_codes>{});
        }
    });
}

} // namespace crumb::bench
