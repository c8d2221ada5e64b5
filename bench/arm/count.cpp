// crumb-arm-count: a product repeated, for count.py to count its instructions under an emulator.
#include "plain.hpp"
#include "problem.hpp"

#include <crumb/format/list.hpp>
#include <crumb/format/q4_0_absorbing.hpp>
#include <crumb/op/linear/linear.hpp>
#include <crumb/op/linear/nested_linear.hpp>
#include <crumb/reference/linear.hpp>
#include <crumb/reference/nested.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace crumb::bench {
namespace {

constexpr std::size_t n = 256, k = 4096;

struct request {
    std::string_view isa; ///< a name of isa_names, or "plain"
    std::size_t m;
    int repetitions;
    bool only_activations; ///< repeat the quantization of activations instead of the product
    linear_mode mode;
};

struct free_buffer {
    void operator()(void* p) const noexcept { std::free(p); }
};
using aligned = std::unique_ptr<std::byte, free_buffer>;
aligned allocate(std::size_t bytes) {
    return aligned(static_cast<std::byte*>(std::aligned_alloc(alignment, round_up(bytes, alignment))));
}

int report(const std::string& error) {
    if (!error.empty())
        std::fprintf(stderr, "crumb-arm-count: %s\n", error.c_str());
    return error.empty() ? 0 : 1;
}

template <weight_format F, class Isa>
int run_plain(const quantized<F>& w, const linear<F>& plan, const std::vector<float>& x, const request& r) {
    if constexpr (has_plain<F, Isa>) {
        const std::size_t bytes = activation_bytes(plan.input_plan(), 1);
        const aligned memory = allocate(bytes * r.m);
        std::vector<plain_row> rows;
        for (std::size_t i = 0; i < r.m; ++i) {
            auto a = *activations::create({memory.get() + i * bytes, bytes}, plan.input_plan(), 1);
            a.quantize(matrix(x.data() + i * k, 1, k));
            rows.push_back({a.codes(), a.scales()});
        }
        std::vector<float> y(r.m * n);
        for (int i = 0; i < r.repetitions; ++i)
            plain<Isa>::product(w.blocks.data(), n, k / crumb::group_size, rows.data(), r.m, y.data(), n);
        return report(check_product<F>(w, matrix(x.data(), r.m, k), matrix(y.data(), r.m, n)));
    } else {
        return report(std::string("no plain baseline for ") + F::name);
    }
}

/// Repeats what `r` asks for; product(activations, y) is one product, check(activations, x, y) looks at it.
int repeat(const activation_plan& layout, const std::vector<float>& x, const request& r, const auto& product,
           const auto& check) {
    const aligned memory = allocate(activation_bytes(layout, r.m));
    auto a = *activations::create({memory.get(), activation_bytes(layout, r.m)}, layout, r.m);
    std::vector<float> y(r.m * n);
    const auto input = matrix(x.data(), r.m, k);
    const auto output = matrix(y.data(), r.m, n);
    for (int i = 0; i < (r.only_activations ? r.repetitions : 1); ++i)
        a.quantize(input);
    for (int i = 0; i < (r.only_activations ? 1 : r.repetitions); ++i)
        product(a, output);
    return report(check(a, input, y));
}

template <weight_format F>
int run_linear(const quantized<F>& w, const linear<F>& plan, const std::vector<float>& x, const request& r) {
    return repeat(
        plan.input_plan(), x, r, [&](const activations& a, const auto& y) { plan.run(a, y); },
        [&](const activations& a, const auto& input, std::vector<float>& y) {
            if (r.mode == linear_mode::absorbed)
                return check_absorbed<F>(w, a, matrix<const float>(y.data(), r.m, n));
            return check_product<F>(w, input, matrix(y.data(), r.m, n), a.layout().group);
        });
}

template <weight_format F>
int run(const request& r) {
    const quantized<F> w = random_weights<F>(n, k);
    const aligned memory = allocate(packed_bytes<F>(n, k));
    const auto packed = pack(w, {memory.get(), packed_bytes<F>(n, k)});
    const bool plain_isa = r.isa == "plain";
    const auto plan = linear<F>::plan(*packed, {.mode = r.mode, .codebooks = w.codebooks},
                                      {plain_isa ? nullptr : r.isa.data()});
    if (!plan)
        return report(plan.message());
    if (!plain_isa && r.isa != plan->isa())
        return report(std::string("the plan fell back to ") + plan->isa());
    const std::vector<float> x = random_floats(r.m * k, 2);
    if (!plain_isa)
        return run_linear<F>(w, *plan, x, r);
    int status = 1;
    isa_list::for_each([&]<class Isa>() {
        if (std::string_view(plan->isa()) == Isa::name)
            status = run_plain<F, Isa>(w, *plan, x, r);
    });
    return status;
}

template <int Bits>
int run_nested(bool uniform, const request& r) {
    const nested_quantized w = random_nested(uniform, n, k);
    const std::size_t bytes = nested_packed_bytes(n, k, w.levels.parent);
    const aligned memory = allocate(bytes);
    const auto packed = pack(w, {memory.get(), bytes});
    const auto plan = nested_linear::plan(*packed, {.mode = r.mode}, {r.isa.data()});
    if (!plan)
        return report(plan.message());
    if (r.isa != plan->isa())
        return report(std::string("the plan fell back to ") + plan->isa());
    const reference::flat_nested<Bits> flat(w);
    return repeat(
        plan->input_plan(), random_floats(r.m * k, 2), r,
        [&](const activations& a, const auto& y) { plan->run(Bits, a, y); },
        [&](const activations& a, const auto& input, std::vector<float>& y) {
            return check_product<reference::nested_block<Bits>>(flat.view(), input, matrix(y.data(), r.m, n),
                                                                a.layout().group);
        });
}
/// `weights` is <uniform|codebook>:<bits>; 2 if it is not.
int nested(std::string_view weights, const request& r) {
    int status = 2;
    for (const bool uniform : {true, false})
        precision_list::for_each([&]<class P>() {
            if (weights == std::string(uniform ? "uniform:" : "codebook:") + std::to_string(P::codes::bits))
                status = run_nested<P::codes::bits>(uniform, r);
        });
    return status;
}

} // namespace
} // namespace crumb::bench

int main(int argc, char** argv) {
    using namespace crumb;
    if (argc == 2 && std::string_view(argv[1]) == "exact") {
        const auto name = []<class F>() {
            if constexpr (has_indexed_codes<F> || has_records<F>)
                std::puts(F::name);
        };
        format_list::for_each(name);
        record_format_list::for_each(name);
        return 0;
    }
    bench::request r{};
    if (argc == 5) {
        r.isa = argv[2];
        r.m = std::strtoul(argv[3], nullptr, 10);
        r.repetitions = std::atoi(argv[4]);
    }
    std::string_view format = argc == 5 ? argv[1] : "";
    const auto has_prefix = [&](std::string_view prefix) {
        const bool has = format.starts_with(prefix);
        if (has)
            format.remove_prefix(prefix.size());
        return has;
    };
    r.only_activations = has_prefix("activations:");
    if (has_prefix("absorbed:"))
        r.mode = linear_mode::absorbed;
    else if (has_prefix("panels:"))
        r.mode = linear_mode::panels;
    int status = 2;
    if (r.m >= 1 && r.m <= 4096 && r.repetitions >= 1) {
        if (has_prefix("nested:"))
            status = bench::nested(format, r);
        else if (r.mode == linear_mode::absorbed && format == q4_0::name)
            status = bench::run<q4_0_absorbing>(r);
        else if (r.mode != linear_mode::absorbed || format == u2::name) {
            const auto run = [&]<class F>() {
                if (format == F::name)
                    status = bench::run<F>(r);
            };
            format_list::for_each(run);
            record_format_list::for_each(run);
        }
    }
    if (status == 2)
        std::fputs("usage: crumb-arm-count [activations:][absorbed:|panels:]<weights> <isa|plain> <m> "
                   "<repetitions>\n"
                   "  weights: a format, or nested:<uniform|codebook>:<bits>\n"
                   "or: crumb-arm-count exact    the formats without a plain baseline\n",
                   stderr);
    return status;
}
