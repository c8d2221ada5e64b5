// Rows of products with nested weights at every precision.
#include "problem.hpp"
#include "product_rows.hpp"

#include <crumb/op/linear/dense_linear.hpp>
#include <crumb/op/linear/nested_linear.hpp>
#include <crumb/reference/nested.hpp>

#include <memory>

namespace crumb::bench {
namespace {

constexpr std::size_t row_counts[] = {1, 8, 128};

/// Shapes of layers, output by input channels: attention and feed-forward of a model of 1.4 and one of 7
/// billion weights.
constexpr struct {
    std::size_t n, k;
} layer_shapes[] = {{2048, 2048}, {5632, 2048}, {2048, 5632}, {4096, 4096}, {11008, 4096}, {4096, 11008}};

/// Weights that the rows of one shape and memory level share. One is alive at a time.
struct fixture {
    fixture(bool uniform, const memory_level& at)
        : level(at), stored(random_nested(uniform, at.n, at.k)), x(random_floats(row_counts[2] * at.k, 2)),
          y(row_counts[2] * at.n * sizeof(float)) {
        packed = std::make_unique<copies>(nested_packed_bytes(at.n, at.k, stored.levels.parent), at.bytes);
        (void)pack(stored, {packed->at(0), packed->stride}).value();
        packed->fill();
    }
    static fixture& of(bool uniform, const memory_level& level) {
        static std::unique_ptr<fixture> now;
        static std::string name;
        const std::string wanted = std::string(uniform ? "uniform" : "codebook") + level.name +
                                   std::to_string(level.n) + "x" + std::to_string(level.k);
        if (name != wanted) {
            now.reset();
            now = std::make_unique<fixture>(uniform, level);
            name = wanted;
        }
        return *now;
    }

    memory_level level;
    nested_quantized stored;
    std::vector<float> x;
    buffer y;
    std::unique_ptr<copies> packed;
};

/// Float rows in, quantized on the way, float rows out.
struct task {
    task(fixture& f, int bits_, std::size_t rows, const char* isa)
        : bits(bits_), y(matrix(reinterpret_cast<float*>(f.y.data()), rows, f.level.n)),
          x(matrix<const float>(f.x.data(), rows, f.level.k)), working_set(f.packed->memory.size()) {
        for (std::size_t i = 0; i < f.packed->count; ++i) {
            const auto view = nested_view::open({f.packed->at(i), f.packed->stride});
            const auto plan = nested_linear::plan(*view, {.max_rows = rows}, {isa});
            if (!plan || std::strcmp(plan->isa(), isa) != 0) {
                error = plan ? std::string("the plan fell back to ") + plan->isa() : plan.message();
                return;
            }
            weight_bytes = view->bytes_at(bits);
            plans.push_back(*plan);
        }
        const auto layout = plans[0].input_plan();
        codes = buffer(activation_bytes(layout, rows));
        quantized_x = *activations::create({codes.data(), codes.size()}, layout, rows);
        run();
        error = bits == 2 ? check<2>(f.stored) : bits == 3 ? check<3>(f.stored) : check<4>(f.stored);
    }
    template <int Bits>
    std::string check(const nested_quantized& w) const {
        const reference::flat_nested<Bits> flat(w);
        return check_product<reference::nested_block<Bits>>(flat.view(), x, y);
    }
    void run() {
        quantized_x.quantize(x);
        plans[next].run(bits, quantized_x, y);
        next = next + 1 == plans.size() ? 0 : next + 1;
    }
    double macs() const { return double(y.rows) * double(y.cols) * double(x.cols); }

    int bits;
    std::string error;
    std::vector<nested_linear> plans;
    buffer codes;
    activations quantized_x;
    matrix_view<float> y;
    matrix_view<const float> x;
    std::size_t next = 0, weight_bytes = 0, working_set = 0;
};

std::string row_name(const char* kind, bool uniform, int bits, const char* isa, std::size_t m,
                     const memory_level& level) {
    return std::string(kind) + (uniform ? "/uniform" : "/codebook") + "/bits:" + std::to_string(bits) + "/" +
           isa + "/m:" + std::to_string(m) + "/n:" + std::to_string(level.n) +
           "/k:" + std::to_string(level.k) + "/" + level.name;
}

template <class Isa>
void nested_row(benchmark::State& state, bool uniform, int bits, std::size_t m, const memory_level& level) {
    if (!isa_supported(isa_index(Isa::name)))
        return skip(state, std::string("this CPU lacks ") + Isa::name);
    task t(fixture::of(uniform, level), bits, m, Isa::name);
    if (!t.error.empty())
        return fail(state, t.error);
    (void)time_product(state, {[&] { t.run(); }, t.macs(), t.weight_bytes, t.working_set},
                       ceilings_of<byte_codes, Isa, linear_mode::exact>(), level);
}

/// A layer at a precision beside the same layer at 4 bits and in halves, sample by sample.
void layer_row(benchmark::State& state, int bits, const memory_level& level) {
    const std::size_t isa = *choose_isa({nullptr});
    fixture& f = fixture::of(false, level);
    task low(f, bits, 1, isa_names()[isa]), high(f, max_nested_bits, 1, isa_names()[isa]);
    if (!low.error.empty() || !high.error.empty())
        return fail(state, low.error + high.error);
    // Not the copy that has just been read.
    high.next = high.plans.size() / 2;
    static std::unique_ptr<copies> halves;
    static std::size_t halves_of = 0;
    if (halves_of != level.n * level.k) {
        halves.reset();
        halves = std::make_unique<copies>(level.n * level.k * sizeof(half), level.bytes);
        auto* w = reinterpret_cast<half*>(halves->at(0));
        const auto random = random_floats(level.n * level.k, 3);
        for (std::size_t i = 0; i < random.size(); ++i)
            w[i] = to_half(random[i]);
        halves->fill();
        halves_of = level.n * level.k;
    }
    std::vector<dense_linear<half>> dense;
    for (std::size_t i = 0; i < halves->count; ++i)
        dense.push_back(*dense_linear<half>::plan(
            matrix(reinterpret_cast<const half*>(halves->at(i)), level.n, level.k)));
    std::vector<double> seconds, of_half, of_high;
    std::size_t next = 0;
    for (auto _ : state) {
        const double a = elapsed_seconds_of([&] { low.run(); });
        const double b = elapsed_seconds_of([&] { high.run(); });
        const double c = elapsed_seconds_of([&] { dense[next].run(low.x, low.y); });
        next = next + 1 == dense.size() ? 0 : next + 1;
        seconds.push_back(a);
        of_high.push_back(b / a);
        of_half.push_back(c / a);
        state.SetIterationTime(a);
    }
    state.counters["bytes_per_second"] = static_cast<double>(low.weight_bytes) / median(seconds);
    state.counters["vs_f16"] = median(of_half);
    state.counters["vs_parent"] = median(of_high);
}

} // namespace

void register_nested() {
    for (const bool uniform : {true, false})
        for (const memory_level& level : {dram(), l2()})
            for (int bits = min_nested_bits; bits <= max_nested_bits; ++bits)
                isa_list::for_each([&]<class Isa>() {
                    for (const std::size_t m : row_counts)
                        if (m <= 16 || level.bytes != 0)
                            benchmark::RegisterBenchmark(
                                row_name("nested", uniform, bits, Isa::name, m, level).c_str(),
                                [=](benchmark::State& state) {
                                    nested_row<Isa>(state, uniform, bits, m, level);
                                })
                                ->UseManualTime()
                                ->Unit(benchmark::kMicrosecond);
                });
    for (const auto& shape : layer_shapes)
        for (int bits = min_nested_bits; bits <= max_nested_bits; ++bits) {
            const memory_level level{"dram", shape.n, shape.k, dram_working_set()};
            benchmark::RegisterBenchmark(
                ("layers/" + row_name("nested", false, bits, "chosen", 1, level)).c_str(),
                [=](benchmark::State& state) { layer_row(state, bits, level); })
                ->UseManualTime()
                ->Unit(benchmark::kMicrosecond)
                ->MinTime(0.5);
        }
}

} // namespace crumb::bench
