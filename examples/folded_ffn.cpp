// A feed-forward network folded into one matrix: what coverages leave to fix, what is read, how far outputs
// are from the network's, and how long a token takes beside the same network in 4 bits.
#include <crumb/crumb.hpp>
#include <crumb/offline/folding/fold_network.hpp>
#include <crumb/offline/weights/quantize.hpp>
#include <crumb/util.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t d = 512, h = 2048;           // inputs and outputs, neurons
constexpr std::size_t samples = 2048, unseen = 64; // rows of inputs to calibrate on, and to compare on

/// y = W2^T gelu(W1 x + b1), and rows of inputs.
struct network {
    std::vector<float> up, bias, down, x; ///< h x d, h, d x h; rows of inputs, the unseen ones last
    network() : up(h * d), bias(h), down(d * h), x((samples + unseen) * d) {
        std::mt19937_64 random(1);
        std::normal_distribution<float> normal;
        // Most inputs of most neurons lie where GELU is nearly linear, as in trained networks.
        std::vector<float> size(h);
        for (std::size_t n = 0; n < h; ++n) {
            size[n] = 0.3f * std::exp(0.8f * normal(random));
            bias[n] = -1.5f * size[n] + 0.3f * normal(random);
        }
        for (std::size_t i = 0; i < up.size(); ++i)
            up[i] = normal(random) * size[i / d] / std::sqrt(float(d));
        for (float& w : down)
            w = normal(random) / std::sqrt(float(h));
        for (float& v : x)
            v = normal(random);
    }
    crumb::matrix_view<const float> inputs(std::size_t first, std::size_t rows) const {
        return crumb::matrix(x.data() + first * d, rows, d);
    }
    crumb::matrix_view<const float> first() const { return crumb::matrix(up.data(), h, d); }
    crumb::matrix_view<const float> second() const { return crumb::matrix(down.data(), d, h); }
};

/// Weights in a format, packed.
template <class F>
struct packed {
    explicit packed(const crumb::matrix_view<const float>& w)
        : room(crumb::packed_bytes<F>(w.rows, w.cols)),
          view(crumb::or_exit(crumb::pack(crumb::or_exit(crumb::quantize<F>(w)), room))) {}
    crumb::buffer room;
    crumb::packed_view<F> view;
};

/// A product of floats with planned weights.
void multiply(const crumb::any_linear& w, const crumb::matrix_view<const float>& x, std::vector<float>& y) {
    y.resize(x.rows * w.n());
    crumb::buffer room(w.reads_activations() ? crumb::activation_bytes(w.input_plan(), x.rows) : 1);
    crumb::activations a;
    if (w.reads_activations()) {
        a = crumb::or_exit(crumb::activations::create(room, w.input_plan(), x.rows));
        a.quantize(x);
    }
    w.run(x, a, crumb::matrix(y.data(), x.rows, w.n()));
}

double seconds_of(auto&& f) {
    double best = 1;
    for (int i = 0; i < 50; ++i) {
        const auto start = std::chrono::steady_clock::now();
        f();
        best =
            std::fmin(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

/// The network as it was, in 4 bits: bytes and time of a token.
struct dense_network {
    explicit dense_network(const network& n)
        : first(n.first()), second(n.second()),
          up(crumb::or_exit(crumb::linear<crumb::q4_0>::plan(first.view, {.bias = n.bias}))),
          down(crumb::or_exit(crumb::linear<crumb::q4_0>::plan(second.view))),
          ops(crumb::or_exit(crumb::float_ops::plan())) {}
    void run(const crumb::matrix_view<const float>& x, std::vector<float>& y) {
        multiply(up, x, hidden);
        const auto u = crumb::matrix(hidden.data(), x.rows, h);
        ops.gelu_tanh(u, u);
        multiply(down, u, y);
    }
    packed<crumb::q4_0> first, second;
    crumb::any_linear up, down;
    crumb::float_ops ops;
    std::vector<float> hidden;
};

/// Distance of outputs from the network's, as a share of their length.
double distance(const std::vector<float>& y, const std::vector<float>& exact) {
    double error = 0, length = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
        error += std::pow(double{y[i]} - double{exact[i]}, 2);
        length += std::pow(double{exact[i]}, 2);
    }
    return std::sqrt(error / length);
}

} // namespace

int main() {
    const network n;
    const auto ops = crumb::or_exit(crumb::float_ops::plan());
    const crumb::any_linear exact_up =
        crumb::or_exit(crumb::dense_linear<float>::plan(n.first(), {.bias = n.bias}));
    const crumb::any_linear exact_down = crumb::or_exit(crumb::dense_linear<float>::plan(n.second()));

    // What the network does with inputs that it was not calibrated on.
    const auto x = n.inputs(samples, unseen);
    std::vector<float> u, exact, y(unseen * d);
    multiply(exact_up, x, u);
    ops.gelu_tanh(crumb::matrix<const float>(u.data(), unseen, h), crumb::matrix(u.data(), unseen, h));
    multiply(exact_down, crumb::matrix<const float>(u.data(), unseen, h), exact);

    std::printf("a network of %zu inputs and %zu neurons; one token, one thread\n\n", d, h);
    std::printf("%-22s %10s %10s %14s %14s %12s\n", "", "fixed", "missed", "bytes read", "output error",
                "time");
    std::printf("%-22s %10s %10s %14s %14s %12s\n", "", "%", "%", "KB", "%", "us");
    dense_network dense(n);
    dense.run(x, y);
    const double dense_error = distance(y, exact);
    const double dense_time = seconds_of([&] { dense.run(n.inputs(samples, 1), y); });
    std::printf("%-22s %10s %10s %14.1f %14.2f %12.1f\n", "dense, 4 bits", "", "",
                double(dense.up.bytes() + dense.down.bytes()) / 1e3, 100 * dense_error, 1e6 * dense_time);

    for (const double coverage : {0.8, 0.9, 0.95, 1.0}) {
        // Once, offline: a line in the place of GELU for every neuron, and the network folded with them.
        const auto folded = crumb::or_exit(crumb::fold_network(
            {.up = n.first(), .up_bias = n.bias, .down = n.second()}, n.inputs(0, samples),
            {.coverage = coverage, .in = crumb::row_codec::q4_0, .out = crumb::row_codec::q4_0}));

        // At run time, here by one thread; `run(batch, pool)` takes several.
        const auto plan = crumb::or_exit(folded.plan({.batches = crumb::folded_batches::lists}));
        crumb::buffer scratch(plan.scratch_bytes(unseen));
        y.resize(unseen * d);
        crumb::folded_ffn_counters counted;
        const crumb::folded_ffn_batch all{x, crumb::matrix(y.data(), unseen, d), scratch, {&counted, 1}};
        plan.run(all);
        const std::size_t missed = plan.count_missed(all);
        const crumb::folded_ffn_batch one{n.inputs(samples, 1), crumb::matrix(y.data() + d, 1, d), scratch};
        const double error = distance(y, exact), time = seconds_of([&] { plan.run(one); });
        const double fixed = double(counted.fixed) / double(counted.neurons);
        char name[32];
        std::snprintf(name, sizeof name, "folded, coverage %.2f", coverage);
        std::printf("%-22s %10.2f %10.2f %14.1f %14.2f %12.1f\n", name, 100 * fixed,
                    100 * double(missed) / double(counted.neurons),
                    double(plan.bytes_read(counted.fixed / unseen)) / 1e3, 100 * error, 1e6 * time);
    }
}
