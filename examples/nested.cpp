// One stored copy of a weight matrix at 2, 3 and 4 bits: what each precision reads, how long it takes and how
// far its outputs are from those of the floats. Then decoding, in the precision that a schedule says.
#include <crumb/crumb.hpp>
#include <crumb/offline/common/second_moments.hpp>
#include <crumb/offline/nested/feedback.hpp>
#include <crumb/offline/nested/training.hpp>
#include <crumb/util.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t n = 128, k = 1024;                // output channels, inputs
constexpr std::size_t samples = 2048, unseen = 64;      // rows of inputs to calibrate on, and to compare on
constexpr std::size_t matrices = 512;                   // equal ones, more than the first caches hold
constexpr std::size_t steps = 96, three = 24, two = 48; // decoding, and when 3 and 2 bits begin

struct problem {
    std::vector<float> w, x, y; ///< n x k weights; rows of inputs, the unseen ones last; the latter's outputs
    problem() : w(n * k), x((samples + unseen) * k), y(unseen * n) {
        std::mt19937_64 random(1);
        std::normal_distribution<float> normal;
        std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
        // Weights with the tails that trained ones have; inputs of different sizes and means that vary
        // together.
        for (float& v : w)
            v = 0.02f * std::log(1.0f - uniform(random)) * (uniform(random) < 0.5f ? 1.0f : -1.0f);
        std::vector<float> size(k), mean(k);
        for (std::size_t i = 0; i < k; ++i) {
            size[i] = std::exp(0.8f * normal(random));
            mean[i] = 0.5f * normal(random);
        }
        for (std::size_t r = 0; r < samples + unseen; ++r) {
            float common = 0;
            for (std::size_t i = 0; i < k; ++i) {
                if (i % 16 == 0)
                    common = normal(random);
                x[r * k + i] = size[i] * (mean[i] + 0.7f * common + 0.7f * normal(random));
            }
        }
        for (std::size_t r = 0; r < unseen; ++r)
            for (std::size_t c = 0; c < n; ++c)
                for (std::size_t i = 0; i < k; ++i)
                    y[r * n + c] += w[c * k + i] * x[(samples + r) * k + i];
    }
    crumb::matrix_view<const float> weights() const { return crumb::matrix<const float>(w.data(), n, k); }
    crumb::matrix_view<const float> inputs(std::size_t first, std::size_t count) const {
        return crumb::matrix(x.data() + first * k, count, k);
    }
};

/// Codes for all precisions, once: errors are fed back among inputs that vary together, and the outputs are
/// corrected for the mean input.
crumb::nested_quantized quantize(const problem& p, const crumb::second_moments<double>& moments,
                                 const crumb::nested_levels& levels) {
    const auto h = moments.centered();
    const auto system =
        crumb::or_exit(crumb::feedback_system::make(crumb::matrix<const double>(h.data(), k, k)));
    auto q = crumb::nested_quantized::zeros(levels, n, k);
    crumb::or_exit(crumb::nested_feedback(system).quantize(p.weights(), q));
    crumb::or_exit(crumb::correct_means(p.weights(), moments.mean(), q));
    return q;
}

/// The matrices of a model, all of one shape and equal, and a row of activations.
class model {
  public:
    explicit model(const crumb::nested_quantized& q)
        : stride_(crumb::nested_packed_bytes(n, k, q.levels.parent)), packed_(stride_ * matrices),
          view_(crumb::or_exit(crumb::pack(q, packed_))), plans_(plans()),
          row_(crumb::activation_bytes(plans_[0].input_plan(), 1)),
          a_(crumb::or_exit(crumb::activations::create(row_, plans_[0].input_plan(), 1))), y_(n) {}

    const crumb::nested_view& view() const noexcept { return view_; }
    std::size_t bytes_at(int bits) const noexcept { return matrices * view_.bytes_at(bits); }

    /// A row through one matrix, floats in and out.
    const std::vector<float>& product(int bits, const crumb::matrix_view<const float>& x, std::size_t i) {
        a_.quantize(x); // the same for all precisions
        plans_[i].run(bits, a_, crumb::matrix(y_.data(), 1, n));
        return y_;
    }
    /// Seconds of a row through all of them.
    double pass(int bits, const crumb::matrix_view<const float>& x) {
        const auto start = std::chrono::steady_clock::now();
        for (std::size_t i = 0; i < matrices; ++i)
            product(bits, x, i);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    /// |x (w - q)|^2 / |x w|^2 over the inputs that were not calibrated on, at a precision.
    double error(int bits, const problem& p) {
        double error = 0, norm = 0;
        for (std::size_t r = 0; r < unseen; ++r) {
            const auto& y = product(bits, p.inputs(samples + r, 1), 0);
            for (std::size_t c = 0; c < n; ++c) {
                const double exact = double{p.y[r * n + c]}, off = double{y[c]} - exact;
                error += off * off;
                norm += exact * exact;
            }
        }
        return error / norm;
    }

  private:
    std::vector<crumb::nested_linear> plans() const {
        std::vector<crumb::nested_linear> out;
        for (std::size_t i = 0; i < matrices; ++i) {
            const auto one = packed_.bytes().subspan(i * stride_, stride_);
            if (i != 0) // the first is packed already
                std::memcpy(one.data(), packed_.data(), stride_);
            out.push_back(
                crumb::or_exit(crumb::nested_linear::plan(crumb::or_exit(crumb::nested_view::open(one)))));
        }
        return out;
    }

    std::size_t stride_;
    crumb::buffer packed_;
    crumb::nested_view view_;
    std::vector<crumb::nested_linear> plans_;
    crumb::buffer row_;
    crumb::activations a_;
    std::vector<float> y_;
};

void show_precisions(const problem& p, model& trained, model& even) {
    std::printf("%zu x %zu weights in %zu bytes for all precisions; one row through %zu such matrices\n\n", n,
                k, trained.view().bytes(), matrices);
    std::printf("%-6s %12s %14s %16s %24s %12s\n", "bits", "bytes read", "bits/weight", "one product",
                "output error, codebook", "uniform");
    std::printf("%-6s %12s %14s %16s %24s %12s\n", "", "", "", "us", "%", "%");
    for (int bits = trained.view().levels().seed; bits <= trained.view().levels().parent; ++bits) {
        double best = 1;
        for (int i = 0; i < 20; ++i)
            best = std::fmin(best, trained.pass(bits, p.inputs(samples, 1)));
        const std::size_t bytes = trained.view().bytes_at(bits);
        std::printf("%-6d %12zu %14.3f %16.2f %24.4f %12.4f\n", bits, bytes,
                    8 * double(bytes) / double(n * k), 1e6 * best / double(matrices),
                    100 * trained.error(bits, p), 100 * even.error(bits, p));
    }
}

/// Decoding steps in the precision that a scheduler says.
void decode(const char* name, const problem& p, model& m, const crumb::precision_schedule& schedule) {
    crumb::precision_scheduler scheduler(schedule);
    double bytes = 0, best = 1e9;
    for (int run = 0; run < 5; ++run) {
        scheduler.begin();
        double seconds = 0;
        bytes = 0;
        for (std::size_t step = 0; step < steps; ++step) {
            const int bits = scheduler.next(step);
            seconds += m.pass(bits, p.inputs(samples + step % unseen, 1));
            bytes += double(m.bytes_at(bits));
        }
        best = std::fmin(best, seconds);
    }
    std::printf("%-24s %14.3f %16.1f %16.3f\n", name, scheduler.average_bits(), bytes / 1e6,
                1e3 * best / double(steps));
}

} // namespace

int main() {
    const problem p;
    crumb::second_moments<double> moments(k);
    crumb::or_exit(moments.add(p.inputs(0, samples)));
    // Once, offline: levels of all precisions, for a whole model if there is one.
    const auto importance = moments.importance();
    const crumb::training_matrix all[] = {{p.weights(), importance}};
    const auto levels = crumb::or_exit(crumb::train_nested(all)).levels;
    model trained(quantize(p, moments, levels));
    model even(quantize(p, moments, crumb::nested_levels::uniform(2, 4)));
    show_precisions(p, trained, even);

    // The prompt would be read with 4 bits; decoding begins with them.
    const crumb::precision_range stored = {2, 4};
    const crumb::precision_phase phases[] = {{0, 4}, {three, 3}, {two, 2}};
    const auto falling = crumb::or_exit(crumb::precision_schedule::make(stored, 4, phases, steps));
    const auto constant = crumb::or_exit(crumb::precision_schedule::constant(stored, 4, 4, steps));
    std::printf("\n%zu decoding steps; 3 bits from step %zu, 2 from step %zu\n\n", steps, three, two);
    std::printf("%-24s %14s %16s %16s\n", "schedule", "average bits", "bytes read", "a step");
    std::printf("%-24s %14s %16s %16s\n", "", "", "MB", "ms");
    decode("4 bits throughout", p, trained, constant);
    decode("4, then 3, then 2 bits", p, trained, falling);
}
