// Rows of matrix products: crumb's, and the plain baseline's.
#include "plain.hpp"
#include "problem.hpp"
#include "product_rows.hpp"

#include <crumb/op/linear/linear.hpp>

#include <barrier>
#include <functional>
#include <memory>
#include <thread>

namespace crumb::bench {
namespace {

constexpr std::size_t max_rows = 512;
constexpr std::size_t row_counts[] = {1, 2, 4, 8, 16, 32, 128, max_rows};
constexpr std::size_t panel_row_counts[] = {32, 64, 128, 256, max_rows};
constexpr std::size_t team_row_counts[] = {128, max_rows};

/// Weights and activations that the rows of one format and memory level share. One is alive at a time.
template <weight_format F>
struct fixture {
    explicit fixture(const memory_level& at)
        : level(at), stored(random_weights<F>(at.n, at.k)), x(random_floats(max_rows * at.k, 2)),
          y(max_rows * at.n * sizeof(float)) {}

    const copies& packed() {
        if (!packed_) {
            packed_ = std::make_unique<copies>(packed_bytes<F>(level.n, level.k), level.bytes);
            (void)pack(stored, {packed_->at(0), packed_->stride}).value();
            packed_->fill();
        }
        return *packed_;
    }
    const copies& blocks() {
        if (!blocks_) {
            blocks_ = std::make_unique<copies>(stored.blocks.size() * sizeof(typename F::block), level.bytes);
            std::memcpy(blocks_->at(0), stored.blocks.data(),
                        stored.blocks.size() * sizeof(typename F::block));
            blocks_->fill();
        }
        return *blocks_;
    }
    matrix_view<const float> input(std::size_t m) const { return matrix(x.data(), m, level.k); }
    matrix_view<float> output(std::size_t m, std::size_t n) const {
        return matrix(reinterpret_cast<float*>(y.data()), m, n);
    }

    memory_level level;
    quantized<F> stored;
    std::vector<float> x;
    buffer y;

  private:
    std::unique_ptr<copies> packed_, blocks_;
};

struct fixture_slot {
    std::string name;
    std::shared_ptr<void> fixture;
};
fixture_slot& current_fixture() {
    static fixture_slot slot;
    return slot;
}

/// The fixture of a format and level; it replaces the one before, as each takes hundreds of megabytes.
template <weight_format F>
fixture<F>& fixture_of(const memory_level& level) {
    fixture_slot& slot = current_fixture();
    const std::string name = std::string(F::name) + level.name;
    if (slot.name != name) {
        slot.fixture.reset();
        slot.fixture = std::make_shared<fixture<F>>(level);
        slot.name = name;
    }
    return *static_cast<fixture<F>*>(slot.fixture.get());
}

template <weight_format F>
result<linear<F>> plan_for(const std::byte* packed, std::size_t bytes, const quantized<F>& stored,
                           std::size_t m, const char* isa, linear_mode mode = linear_mode::exact) {
    const auto view = packed_view<F>::open({packed, bytes});
    if (!view)
        return view.error();
    return linear<F>::plan(*view, {.max_rows = m, .mode = mode, .codebooks = stored.codebooks}, {isa});
}

/// crumb's product as a user calls it: float rows in, quantized on the way, float rows out.
template <weight_format F>
struct linear_task {
    linear_task(fixture<F>& f, const char* isa, std::size_t rows, linear_mode mode = linear_mode::exact,
                std::size_t threads_ = 1)
        : y(f.output(rows, f.level.n)), x(f.input(rows)), threads(threads_) {
        const copies& packed = f.packed();
        for (std::size_t i = 0; i < packed.count; ++i) {
            auto plan = plan_for<F>(packed.at(i), packed.stride, f.stored, rows, isa, mode);
            if (!plan) {
                error = plan.message();
                return;
            }
            plans.push_back(*plan);
        }
        if (std::strcmp(plans[0].isa(), isa) != 0) {
            error = std::string("the plan fell back to ") + plans[0].isa();
            return;
        }
        const auto layout = plans[0].input_plan();
        codes = buffer(activation_bytes(layout, rows));
        quantized_x = *activations::create({codes.data(), codes.size()}, layout, rows);
        weight_bytes = packed_bytes<F>(f.level.n, f.level.k);
        working_set = packed.memory.size();
        run();
        error = mode == linear_mode::absorbed ? check_absorbed<F>(f.stored.view(), quantized_x, y)
                                              : check_product<F>(f.stored.view(), x, y, layout.layout.group);
    }
    void run() {
        if (threads == 1) {
            quantized_x.quantize(x);
            plans[next].run(quantized_x, y);
        } else {
            // Rows of activations are a thread's own, then channels are.
            std::barrier<> all(static_cast<std::ptrdiff_t>(threads));
            std::vector<std::jthread> team;
            for (std::size_t t = 0; t < threads; ++t)
                team.emplace_back([&, t] {
                    quantized_x.quantize(x, split(x.rows, threads, t));
                    all.arrive_and_wait();
                    plans[next].run(quantized_x, y,
                                    {.channels = split(y.cols, threads, t, linear<F>::channel_step())});
                });
        }
        next = next + 1 == plans.size() ? 0 : next + 1;
    }
    double macs() const { return double(y.rows) * double(y.cols) * double(x.cols); }

    std::string error;
    std::vector<linear<F>> plans;
    buffer codes;
    activations quantized_x;
    matrix_view<float> y;
    matrix_view<const float> x;
    std::size_t threads, next = 0, weight_bytes = 0, working_set = 0;
};

/// The plain product on activations that are already quantized. With several rows it takes a slice of the
/// channels at a time: every channel is computed on its own, so the time per multiply-accumulate does not
/// depend on n.
template <weight_format F, class Isa>
struct plain_task {
    plain_task(fixture<F>& f, std::size_t rows)
        : n(slice(f.level, rows)), channels(f.level.n), groups(f.stored.blocks.size() / channels),
          blocks(f.blocks()), y(f.output(rows, n)), x(f.input(rows)),
          weight_bytes(n * groups * sizeof(typename F::block)) {
        const auto plan = plan_for<F>(f.packed().at(0), f.packed().stride, f.stored, rows, Isa::name);
        const std::size_t bytes = activation_bytes(plan->input_plan(), 1);
        codes = buffer(bytes * rows);
        for (std::size_t r = 0; r < rows; ++r) {
            auto a = *activations::create({codes.data() + r * bytes, bytes}, plan->input_plan(), 1);
            a.quantize(matrix(x.row(r), 1, x.cols));
            quantized_x.push_back({a.codes(), a.scales()});
        }
        run();
        const std::span<const typename F::block> all = f.stored.blocks;
        error = check_product<F>(*storage<F>(all.first(n * groups), n, f.level.k), x, y);
    }
    static std::size_t slice(const memory_level& level, std::size_t rows) {
        return std::max<std::size_t>(64, level.n / rows);
    }
    void run() {
        const auto* w = reinterpret_cast<const typename F::block*>(blocks.at(copy)) + first * groups;
        plain<Isa>::product(w, n, groups, quantized_x.data(), y.rows, y.data, y.stride);
        first += n;
        if (first + n > channels) {
            first = 0;
            copy = copy + 1 == blocks.count ? 0 : copy + 1;
        }
    }
    double macs() const { return double(y.rows) * double(y.cols) * double(x.cols); }

    std::string error;
    std::size_t n, channels, groups;
    const copies& blocks;
    matrix_view<float> y;
    matrix_view<const float> x;
    std::size_t weight_bytes;
    buffer codes;
    std::vector<plain_row> quantized_x;
    std::size_t first = 0, copy = 0;
};

std::string row_name(const char* kind, const char* format, const char* isa, std::size_t m, std::size_t n,
                     const memory_level& level) {
    return std::string(kind) + "/" + format + "/" + isa + "/m:" + std::to_string(m) +
           "/n:" + std::to_string(n) + "/k:" + std::to_string(level.k) + "/" + level.name;
}

template <weight_format F, class Isa>
std::string plain_name(std::size_t m, const memory_level& level) {
    return row_name("plain", F::name, Isa::name, m, plain_task<F, Isa>::slice(level, m), level);
}

/// Multiply-accumulates per second of the plain baseline; from its row, or measured now.
template <weight_format F, class Isa>
double plain_rate(std::size_t m, const memory_level& level) {
    return this_run().rate(plain_name<F, Isa>(m, level), [&] {
        plain_task<F, Isa> task(fixture_of<F>(level), m);
        return task.macs() / quick_sample(0.1, [&] { task.run(); });
    });
}

template <weight_format F, class Isa>
void plain_row_of(benchmark::State& state, std::size_t m, const memory_level& level) {
    if (!isa_supported(isa_index(Isa::name)))
        return skip(state, std::string("this CPU lacks ") + Isa::name);
    plain_task<F, Isa> task(fixture_of<F>(level), m);
    if (!task.error.empty())
        return fail(state, task.error);
    const double macs =
        time_product(state, {[&] { task.run(); }, task.macs(), task.weight_bytes, task.blocks.memory.size()},
                     ceilings_of<peak_codes<F, linear_mode::exact>, Isa, linear_mode::exact>(), level);
    this_run().record(plain_name<F, Isa>(m, level), macs);
}

/// What rows of `linear_row` differ in by ISA.
struct row_of_isa {
    const char* isa;
    linear_mode mode;
    product_ceilings ceilings;
    double (*plain)(std::size_t m, const memory_level& level) = nullptr; ///< rate of the baseline, or null
};
template <weight_format F, class Isa, linear_mode Mode>
constexpr row_of_isa row_of() {
    row_of_isa row{Isa::name, Mode, ceilings_of<peak_codes<F, Mode>, Isa, Mode>()};
    if constexpr (has_plain<F, Isa>)
        row.plain = plain_rate<F, Isa>;
    return row;
}

template <weight_format F>
void linear_row(const row_of_isa& row, benchmark::State& state, std::size_t m, const memory_level& level) {
    if (!isa_supported(isa_index(row.isa)))
        return skip(state, std::string("this CPU lacks ") + row.isa);
    linear_task<F> task(fixture_of<F>(level), row.isa, m, row.mode);
    if (!task.error.empty())
        return fail(state, task.error);
    const double macs = time_product(
        state, {[&] { task.run(); }, task.macs(), task.weight_bytes, task.working_set}, row.ceilings, level);
    if (row.plain != nullptr)
        state.counters["vs_plain"] = macs / row.plain(m, level);
}

/// Two threads, each with its half of the channels, on the clock beside one thread with all of them.
template <weight_format F>
void team_row(const char* isa, benchmark::State& state, std::size_t m, const memory_level& level) {
    if (!isa_supported(isa_index(isa)))
        return skip(state, std::string("this CPU lacks ") + isa);
    if (std::thread::hardware_concurrency() < 2)
        return skip(state, "one CPU");
    linear_task<F> one(fixture_of<F>(level), isa, m),
        two(fixture_of<F>(level), isa, m, linear_mode::exact, 2);
    if (!one.error.empty() || !two.error.empty())
        return fail(state, one.error + two.error);
    std::vector<double> seconds, ratios;
    for (auto _ : state) {
        const double single = elapsed_seconds_of([&] { one.run(); });
        const double both = elapsed_seconds_of([&] { two.run(); });
        seconds.push_back(both);
        ratios.push_back(single / both);
        state.SetIterationTime(both);
    }
    state.counters["mac_per_second"] = two.macs() / median(seconds);
    state.counters["bytes_per_second"] = static_cast<double>(two.weight_bytes) / median(seconds);
    state.counters["vs_one_thread"] = median(ratios);
}

/// One row of activations, as absorbed products take one after the other.
template <weight_format F>
void register_absorbed(const memory_level& level) {
    isa_list::for_each([&]<class Isa>() {
        if constexpr (kernel::absorbed_product<Isa, typename F::codes>::available)
            add(row_name("absorbed", F::name, Isa::name, 1, level.n, level),
                std::bind_front(linear_row<F>, row_of<F, Isa, linear_mode::absorbed>()), 1, level);
    });
}

/// The ISAs' rows in a mode, of those that have it.
template <weight_format F, linear_mode Mode>
std::vector<row_of_isa> rows_of_isas() {
    std::vector<row_of_isa> rows;
    isa_list::for_each([&]<class Isa>() {
        if constexpr (Mode != linear_mode::panels || Isa::panel_row_block != 0)
            rows.push_back(row_of<F, Isa, Mode>());
    });
    return rows;
}

template <weight_format F>
void register_format(const memory_level& level) {
    const auto has_row = [&](std::size_t m) { return m <= 16 || level.bytes != 0; };
    isa_list::for_each([&]<class Isa>() {
        if constexpr (has_plain<F, Isa>)
            for (const std::size_t m : row_counts)
                if (has_row(m))
                    add(plain_name<F, Isa>(m, level), plain_row_of<F, Isa>, m, level)->MinTime(0.1);
    });
    const auto exact = rows_of_isas<F, linear_mode::exact>();
    for (const row_of_isa& row : exact)
        for (const std::size_t m : row_counts)
            if (has_row(m))
                add(row_name("linear", F::name, row.isa, m, level.n, level),
                    std::bind_front(linear_row<F>, row), m, level);
    if (level.bytes == 0)
        return;
    for (const row_of_isa& row : exact)
        if (std::strcmp(row.isa, isa::portable::name) != 0)
            for (const std::size_t m : team_row_counts)
                add(row_name("linear", F::name, row.isa, m, level.n, level) + "/threads:2",
                    std::bind_front(team_row<F>, row.isa), m, level)
                    ->MinTime(1.0);
    if constexpr (!has_records<F>)
        for (const row_of_isa& row : rows_of_isas<F, linear_mode::panels>())
            for (const std::size_t m : panel_row_counts)
                add(row_name("panels", F::name, row.isa, m, level.n, level),
                    std::bind_front(linear_row<F>, row), m, level);
}

} // namespace

void register_linear() {
    format_list::for_each([]<class F>() {
        register_format<F>(dram());
        register_format<F>(l2());
        register_absorbed<F>(dram());
        register_absorbed<F>(l2());
    });
    record_format_list::for_each([]<class F>() {
        register_format<F>(dram());
        register_format<F>(l2());
    });
    variant_list::for_each([]<class F>() {
        register_absorbed<F>(dram());
        register_absorbed<F>(l2());
    });
}

} // namespace crumb::bench
