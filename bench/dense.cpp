// Rows of products with float, fp16 and bf16 weights.
#include "problem.hpp"
#include "product_rows.hpp"

#include <crumb/op/linear/dense_linear.hpp>

#include <algorithm>
#include <cmath>

namespace crumb::bench {
namespace {

constexpr std::size_t row_counts[] = {1, 2, 4, 8, 32, 128};

template <class T>
T as(float x) noexcept {
    if constexpr (std::is_same_v<T, float>)
        return x;
    else if constexpr (std::is_same_v<T, half>)
        return to_half(x);
    else
        return T{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16)};
}

/// One product over copies of its weights; `error` says what is wrong with its result.
template <class T, class Isa>
struct dense_task {
    dense_task(std::size_t m, const memory_level& level)
        : weight_bytes(level.n * level.k * sizeof(T)), weights(weight_bytes, level.bytes),
          x(m * level.k * sizeof(float)), out(m * level.n * sizeof(float)),
          inputs(matrix<const float>(x.as<float>(), m, level.k)), y(matrix(out.as<float>(), m, level.n)) {
        const std::vector<float> activations = random_floats(m * level.k, 2);
        std::copy(activations.begin(), activations.end(), x.as<float>());
        const std::vector<float> numbers = random_floats(level.n * level.k, 3);
        auto* first = reinterpret_cast<T*>(weights.at(0));
        for (std::size_t i = 0; i < numbers.size(); ++i)
            first[i] = as<T>(numbers[i]);
        weights.fill();
        for (std::size_t i = 0; i < weights.count; ++i) {
            const auto plan = dense_linear<T>::plan(
                matrix<const T>(reinterpret_cast<const T*>(weights.at(i)), level.n, level.k), {},
                {Isa::name});
            if (!plan) {
                error = plan.message();
                return;
            }
            plans.push_back(*plan);
        }
        run();
        check(first);
    }
    void run() {
        plans[next].run(inputs, y);
        next = next + 1 == plans.size() ? 0 : next + 1;
    }
    double macs() const { return double(y.rows) * double(y.cols) * double(inputs.cols); }

    std::size_t weight_bytes;
    copies weights;
    buffer x, out; // rows begin at cache lines, as those of an engine do
    matrix_view<const float> inputs;
    matrix_view<float> y;
    std::vector<dense_linear<T>> plans;
    std::size_t next = 0;
    std::string error;

  private:
    /// Some outputs against double precision, within the bound of `kernel::dense`.
    void check(const T* w) {
        const std::size_t k = inputs.cols;
        for (std::size_t r = 0; r < y.rows; ++r)
            for (std::size_t c = r % 7; c < y.cols; c += 61) {
                double exact = 0, magnitude = 0;
                for (std::size_t i = 0; i < k; ++i) {
                    const double term = double{to_float(w[c * k + i])} * double{inputs.row(r)[i]};
                    exact += term;
                    magnitude += std::fabs(term);
                }
                const double steps = 2.0 * (double(k) / Isa::lanes + 1) + Isa::lanes;
                if (!(std::fabs(double{y.row(r)[c]} - exact) <= steps * std::ldexp(magnitude, -24)))
                    error = "wrong result: row " + std::to_string(r) + ", channel " + std::to_string(c);
            }
    }
    static float to_float(float x) noexcept { return x; }
    static float to_float(half x) noexcept { return crumb::to_float(x); }
    static float to_float(bf16 x) noexcept { return crumb::to_float(x); }
};

template <class T, class Isa>
void dense_row_of(benchmark::State& state, std::size_t m, const memory_level& level) {
    if (!isa_supported(isa_index(Isa::name)))
        return skip(state, std::string("this CPU lacks ") + Isa::name);
    dense_task<T, Isa> task(m, level);
    if (!task.error.empty())
        return fail(state, task.error);
    std::vector<double> of_read, of_peak;
    const auto bytes = static_cast<double>(task.weight_bytes);
    const double seconds = sample(
        state, level.bytes != 0 ? 1 : 16, [&] { task.run(); },
        [&](double s) {
            constexpr std::size_t rounds = 4000;
            const double peak = rounds * ceilings::float_peak<Isa>::macs / quick_sample(0, [&] {
                                    benchmark::DoNotOptimize(ceilings::float_peak<Isa>::run(rounds));
                                });
            of_read.push_back(bytes / s / read_bandwidth(level));
            of_peak.push_back(task.macs() / s / peak);
        });
    state.counters["mac_per_second"] = task.macs() / seconds;
    state.counters["bytes_per_second"] = bytes / seconds;
    state.counters["working_set_bytes"] = static_cast<double>(task.weights.memory.size());
    if (!of_read.empty()) {
        state.counters["of_read_bandwidth"] = median(of_read);
        state.counters["of_mac_peak"] = median(of_peak);
    }
}

template <class T>
void register_type(const char* name) {
    for (const memory_level& level : {dram(), l2()})
        isa_list::for_each([&]<class Isa>() {
            for (const std::size_t m : row_counts)
                add(std::string("dense/") + name + "/" + Isa::name + "/m:" + std::to_string(m) +
                        "/n:" + std::to_string(level.n) + "/k:" + std::to_string(level.k) + "/" + level.name,
                    dense_row_of<T, Isa>, m, level);
        });
}

} // namespace

void register_dense() {
    register_type<float>("f32");
    register_type<half>("f16");
    register_type<bf16>("bf16");
}

} // namespace crumb::bench
