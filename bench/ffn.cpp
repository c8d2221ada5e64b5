// Rows of feed-forward networks: folded ones beside the network before folding in Q4_0.
#include "ffn.hpp"

#include <memory>

namespace crumb::bench {
namespace {

constexpr ffn_shape decode_shapes[] = {{4096, 16384, true}, {2048, 8192, true}, {1024, 4096, false}};
constexpr ffn_shape batch_shape = {2048, 8192, true};
constexpr std::size_t batch_rows[] = {2, 8, 32, 128, 512};
constexpr int fixed_percents[] = {0, 2, 10, 30};
constexpr int batch_percent = 10;

/// What is alive: one folded network and one dense one.
template <class Network, class... Args>
Network& network_of(const std::string& name, const Args&... args) {
    struct slot {
        std::string name;
        std::shared_ptr<void> network;
    };
    static std::map<bool, slot> slots;
    slot& s = slots[std::is_same_v<Network, dense_ffn>];
    if (s.name != name) {
        s.network.reset();
        s.network = std::make_shared<Network>(args...);
        s.name = name;
    }
    return *static_cast<Network*>(s.network.get());
}
dense_ffn& dense_of(const ffn_shape& s) { return network_of<dense_ffn>(s.name(), s); }

template <weight_format P>
std::string formats_name(row_codec in) {
    return std::string("q4_0+") + P::name + "+" + row_codec_names[static_cast<std::size_t>(in)] + ".q4_0";
}
template <weight_format P>
folded_network<P>& folded_of(const ffn_shape& s, row_codec in) {
    return network_of<folded_network<P>>(formats_name<P>(in) + s.name(), s, in);
}

double f16_bytes(const ffn_shape& s) { return s.macs(1) * sizeof(half); }

/// Fractions of the read bandwidth are medians of what neighbouring measurements give.
struct bandwidth_counters {
    bandwidth_counters(const ffn_shape& s) : shape(s) {}
    void add(double bytes, double seconds) {
        if (!shape.in_memory)
            return;
        const double rate = read_bandwidth(dram());
        of_read.push_back(bytes / seconds / rate);
        of_f16.push_back(f16_bytes(shape) / rate / seconds);
    }
    void show(benchmark::State& state, bool one_row) {
        if (of_read.empty())
            return;
        state.counters["of_read_bandwidth"] = median(of_read);
        if (one_row)
            state.counters["vs_f16"] = median(of_f16);
    }
    ffn_shape shape;
    std::vector<double> of_read, of_f16;
};

void dense_row(benchmark::State& state, const char* isa, const ffn_shape& s, std::size_t m) {
    auto x = random_floats(m * s.inputs, 2);
    balance(dense_of(s).up.plan(0, isa), x);
    dense_task task(dense_of(s), matrix<const float>(x.data(), m, s.inputs), isa);
    if (!task.error.empty())
        return fail(state, task.error);
    const auto bytes = static_cast<double>(dense_ffn::bytes(s));
    std::vector<double> all;
    bandwidth_counters bandwidth(s);
    for (auto _ : state) {
        all.push_back(seconds_of([&] { task.run(); }));
        state.SetIterationTime(all.back());
        bandwidth.add(bytes, all.back());
    }
    const double seconds = median(all);
    state.counters["bytes_per_second"] = bytes / seconds;
    state.counters["mac_per_second"] = s.macs(m) / seconds;
    bandwidth.show(state, m == 1);
}

/// One row of activations; other neurons are fixed in every call. By turns with the dense network.
template <weight_format P>
void folded_row(benchmark::State& state, const char* isa, const ffn_shape& s, row_codec in, int percent) {
    const auto random = random_floats(s.inputs, 2);
    const auto x = matrix<const float>(random.data(), 1, s.inputs);
    auto& network = folded_of<P>(s, in);
    const std::size_t fixed = s.neurons * static_cast<std::size_t>(percent) / 100;
    for (std::size_t i = 0; i < network.count; ++i)
        network.draw(i, fixed);
    folded_task<P> task(network, x, isa);
    dense_task dense(dense_of(s), task.x, isa);
    if (const std::string error = task.check(isa) + dense.error; !error.empty())
        return fail(state, error);
    std::vector<double> all, vs_dense, rates;
    bandwidth_counters bandwidth(s);
    for (auto _ : state) {
        std::size_t copy = 0;
        const double seconds = seconds_of([&] { copy = task.run(); });
        state.SetIterationTime(seconds);
        if (task.counted.fixed != fixed)
            return fail(state,
                        std::to_string(task.counted.fixed) + " neurons fixed, not " + std::to_string(fixed));
        // For the next time that this copy comes: until then the thresholds have left the caches.
        network.draw(copy, fixed);
        const double before_folding = seconds_of([&] { dense.run(); });
        all.push_back(seconds);
        rates.push_back(double(task.counted.bytes) / seconds);
        vs_dense.push_back(before_folding / seconds);
        bandwidth.add(double(task.counted.bytes), seconds);
    }
    state.counters["bytes_per_second"] = median(rates);
    state.counters["vs_dense"] = median(vs_dense);
    state.counters["fixed"] = double(fixed) / double(s.neurons);
    bandwidth.show(state, true);
}

struct batch_kind {
    const char* name;
    folded_batches batches;
    bool matrices; ///< the dense network's are there as well
};
constexpr batch_kind batch_kinds[] = {{"lists", folded_batches::lists, false},
                                      {"dense", folded_batches::dense, false},
                                      {"automatic", folded_batches::automatic, false},
                                      {"automatic+matrices", folded_batches::automatic, true}};

/// Batches, by turns with the dense network and, by lists, with one that fixes nothing. `fix` and `repack`
/// are what `folded_ffn_costs` has, as these times give it; with a residual, half of its `unpack` as well.
template <weight_format P>
void batch_row(benchmark::State& state, const char* isa, row_codec in, const batch_kind& kind,
               std::size_t m) {
    const ffn_shape s = batch_shape;
    const auto random = random_floats(m * s.inputs, 2);
    const auto x = matrix<const float>(random.data(), m, s.inputs);
    auto& network = folded_of<P>(s, in);
    folded_task<P> task(network, x, isa, kind.batches, kind.matrices ? &dense_of(s) : nullptr);
    dense_task dense(dense_of(s), task.x, isa);
    network.calibrate(task.estimates, batch_percent / 100.0);
    const bool by_matrices = kind.matrices && task.plans[0].is_dense(m);
    if (const std::string error = (by_matrices ? task.error : task.check(isa)) + dense.error; !error.empty())
        return fail(state, error);
    (void)task.run();
    const folded_ffn_counters counted = task.counted;
    if (by_matrices && task.out != dense.out)
        return fail(state, "wrong result: not that of the dense network");
    const double share = double(counted.fixed) / double(counted.neurons);
    const bool lists = !task.plans[0].is_dense(m);
    const double half = double(s.neurons) * double(s.inputs) * double(m);
    std::vector<double> all, vs_dense, fix, repack;
    for (auto _ : state) {
        const double seconds = seconds_of([&] { (void)task.run(); });
        const double before_folding = seconds_of([&] { dense.run(); });
        const double of_mac = before_folding / s.macs(m);
        state.SetIterationTime(seconds);
        all.push_back(seconds);
        vs_dense.push_back(before_folding / seconds);
        const double products = double(m) * double(s.inputs) * double(s.inputs) + half;
        fix.push_back((seconds / of_mac - products) / (share * s.macs(m)));
        repack.push_back((seconds / of_mac - s.macs(m)) / s.macs(1));
    }
    state.counters["mac_per_second"] = s.macs(m) / median(all);
    state.counters["vs_dense"] = median(vs_dense);
    if (lists) {
        state.counters["fixed"] = share;
        state.counters["fix"] = median(fix);
    } else if (!by_matrices) {
        state.counters["repack"] = median(repack);
    }
}

template <class F>
void add_row(const std::string& name, std::size_t isa, F run) {
    benchmark::RegisterBenchmark(name.c_str(),
                                 [=](benchmark::State& state) {
                                     if (!isa_supported(isa))
                                         return skip(state,
                                                     std::string("this CPU lacks ") + isa_names()[isa]);
                                     run(state, isa_names()[isa]);
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
}

template <weight_format P>
void add_folded(const ffn_shape& s, row_codec in) {
    for (std::size_t isa = 0; isa < isa_names().size(); ++isa)
        for (const int percent : fixed_percents)
            add_row("ffn/folded/" + formats_name<P>(in) + "/" + isa_names()[isa] + "/" + s.name() +
                        "/fixed:" + std::to_string(percent),
                    isa, [=](benchmark::State& state, const char* name) {
                        folded_row<P>(state, name, s, in, percent);
                    });
}

template <weight_format P>
void add_batches(row_codec in) {
    for (std::size_t isa = 0; isa < isa_names().size(); ++isa)
        for (const std::size_t m : batch_rows)
            for (const batch_kind& kind : batch_kinds)
                add_row("ffn/folded/" + formats_name<P>(in) + "/" + isa_names()[isa] + "/" +
                            batch_shape.name() + "/fixed:" + std::to_string(batch_percent) +
                            "/m:" + std::to_string(m) + "/" + kind.name,
                        isa, [=](benchmark::State& state, const char* name) {
                            batch_row<P>(state, name, in, kind, m);
                        });
}

} // namespace

void register_ffn() {
    const auto add_dense = [](const ffn_shape& s, std::size_t m) {
        for (std::size_t isa = 0; isa < isa_names().size(); ++isa)
            add_row(std::string("ffn/dense/q4_0/") + isa_names()[isa] + "/" + s.name() +
                        (m == 1 ? "" : "/m:" + std::to_string(m)),
                    isa, [=](benchmark::State& state, const char* name) { dense_row(state, name, s, m); });
    };
    for (const ffn_shape& s : decode_shapes) {
        add_dense(s, 1);
        add_folded<cb2s>(s, row_codec::u2);
        if (s.inputs != decode_shapes[0].inputs)
            continue;
        add_folded<cb2s>(s, row_codec::q4_0);
        add_folded<cb2>(s, row_codec::u2);
        add_folded<u2>(s, row_codec::u2);
    }
    for (const std::size_t m : batch_rows)
        add_dense(batch_shape, m);
    add_batches<cb2s>(row_codec::u2);
    add_batches<cb2s>(row_codec::q4_0);
}

} // namespace crumb::bench
