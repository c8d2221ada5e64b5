// One weight matrix in all formats: bits per weight, how far the outputs move, and how long one row takes.
#include <crumb/crumb.hpp>
#include <crumb/offline/common/second_moments.hpp>
#include <crumb/offline/weights/codebook.hpp>
#include <crumb/offline/weights/quantize.hpp>
#include <crumb/offline/weights/store.hpp>
#include <crumb/util.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <vector>

namespace {

constexpr std::size_t n = 256, k = 1024, samples = 2048; // output channels, inputs, rows to calibrate on

struct problem {
    std::vector<float> w, x; ///< n x k weights; samples x k inputs
    problem() : w(n * k), x(samples * k) {
        std::mt19937_64 random(1);
        std::normal_distribution<float> normal;
        std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
        // Weights with the tails that trained ones have; inputs of different sizes that vary together.
        for (float& v : w)
            v = 0.02f * std::log(1.0f - uniform(random)) * (uniform(random) < 0.5f ? 1.0f : -1.0f);
        std::vector<float> size(k);
        for (float& v : size)
            v = std::exp(0.8f * normal(random));
        for (std::size_t r = 0; r < samples; ++r) {
            float common = normal(random);
            for (std::size_t i = 0; i < k; ++i) {
                if (i % 16 == 0)
                    common = normal(random);
                x[r * k + i] = size[i] * (0.7f * common + 0.7f * normal(random));
            }
        }
    }
};

template <class F>
std::vector<std::int8_t> tables_for(const problem& p, std::span<const float> importance) {
    if constexpr (crumb::needs_codebooks<F>) {
        using codes = typename F::codes;
        const crumb::training_matrix all[] = {{crumb::matrix<const float>(p.w.data(), n, k), importance}};
        const auto trained = crumb::or_exit(crumb::train_codebooks(
            all, {.entries = std::size_t{1} << codes::bits, .selector_bits = codes::selector_bits}));
        return crumb::codebooks_of<F>(trained.levels);
    } else {
        return {};
    }
}

/// |x (w - q)|^2 / |x w|^2 over the samples, in percent; q has a function `weight(row, i)`.
template <class Weights>
double output_error(const problem& p, const crumb::second_moments<double>::matrix_type& h, const Weights& q) {
    using rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    rows w(n, k), e(n, k);
    for (std::size_t r = 0; r < n; ++r) {
        for (std::size_t i = 0; i < k; ++i) {
            const auto row = static_cast<Eigen::Index>(r), column = static_cast<Eigen::Index>(i);
            w(row, column) = double{p.w[r * k + i]};
            e(row, column) = w(row, column) - double{q.weight(r, i)};
        }
    }
    return 100 * (e * h).cwiseProduct(e).sum() / (w * h).cwiseProduct(w).sum();
}

/// Microseconds of one row of activations times the packed weights, the quantization of the row included.
template <class F>
double microseconds(const problem& p, const crumb::quantized<F>& stored) {
    const crumb::buffer memory(crumb::packed_bytes<F>(n, k));
    const auto packed = crumb::or_exit(crumb::pack(stored, memory));
    const auto plan = crumb::or_exit(crumb::linear<F>::plan(packed, {.codebooks = stored.codebooks}));
    const crumb::buffer row(crumb::activation_bytes(plan.input_plan(), 1));
    auto a = crumb::or_exit(crumb::activations::create(row, plan.input_plan(), 1));
    std::vector<float> y(n);
    double best = 1e9;
    for (int i = 0; i < 200; ++i) {
        const auto start = std::chrono::steady_clock::now();
        a.quantize(crumb::matrix<const float>(p.x.data(), 1, k));
        plan.run(a, crumb::matrix(y.data(), 1, n));
        const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
        best = std::fmin(best, time.count());
    }
    return best;
}

} // namespace

int main() {
    const problem p;
    const auto w = crumb::matrix<const float>(p.w.data(), n, k);
    crumb::second_moments<double> moments(k);
    if (const auto s = moments.add(crumb::matrix<const float>(p.x.data(), samples, k)); !s)
        return std::fprintf(stderr, "%s\n", s.message()), 1;
    const auto h = moments.matrix();
    const auto importance = moments.importance();
    const auto alone = crumb::or_exit(crumb::error_feedback::independent(k, importance));
    const auto feedback =
        crumb::or_exit(crumb::error_feedback::make(crumb::matrix<const double>(h.data(), k, k)));

    std::printf("%zu x %zu weights, %zu samples of their inputs\n\n", n, k, samples);
    std::printf("%-8s %12s %22s %18s %14s\n", "format", "bits/weight", "output error, weighted",
                "with feedback", "one row");
    std::printf("%-8s %12s %22s %18s %14s\n", "", "", "%", "%", "us");
    crumb::format_list::for_each([&]<class F>() {
        const auto levels = crumb::levels_of<F>(tables_for<F>(p, importance));
        double error[2];
        auto q = crumb::leveled_matrix::zeros(levels, n, k);
        int i = 0;
        for (const auto* quantizer : {&alone, &feedback}) {
            if (const auto s = quantizer->quantize(w, q); !s) {
                std::fprintf(stderr, "%s\n", s.message());
                std::exit(1);
            }
            error[i++] = output_error(p, h, q);
        }
        std::printf("%-8s %12.3f %22.4f %18.4f %14.2f\n", F::name, crumb::bits_per_weight<F>, error[0],
                    error[1], microseconds<F>(p, crumb::store<F>(q)));
        std::fflush(stdout);
    });
    // Those of other programs are rounded to, as these programs do it.
    crumb::record_format_list::for_each([&]<class F>() {
        if constexpr (crumb::rounding_format<F>) {
            const auto q = crumb::or_exit(crumb::quantize<F>(w));
            std::printf("%-8s %12.3f %22.4f %18s %14.2f\n", F::name, crumb::bits_per_weight<F>,
                        output_error(p, h, q.view()), "-", microseconds<F>(p, q));
            std::fflush(stdout);
        }
    });
}
