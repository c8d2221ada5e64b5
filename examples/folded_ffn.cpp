// A feed-forward network folded into one matrix: what coverages leave to fix, what is read, how far outputs
// are from the network's, and how long a token takes beside the same network in 4 bits.
#include <crumb/crumb.hpp>
#include <crumb/offline/folding/activation_statistics.hpp>
#include <crumb/offline/folding/coverage.hpp>
#include <crumb/offline/folding/folding.hpp>
#include <crumb/offline/folding/linear_range.hpp>
#include <crumb/offline/weights/quantize.hpp>

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

/// What `result` holds, or the end of the program.
template <class T>
T checked(crumb::result<T> result) {
    if (!result) {
        std::fprintf(stderr, "%s\n", result.message());
        std::exit(1);
    }
    return std::move(*result);
}
void checked(const crumb::status& s) {
    if (!s) {
        std::fprintf(stderr, "%s\n", s.message());
        std::exit(1);
    }
}

/// Memory as the library wants it.
struct memory {
    explicit memory(std::size_t size)
        : bytes(static_cast<std::byte*>(::operator new(size, std::align_val_t{crumb::alignment})), size) {}
    memory(const memory&) = delete;
    memory& operator=(const memory&) = delete;
    ~memory() { ::operator delete(bytes.data(), std::align_val_t{crumb::alignment}); }
    std::span<std::byte> bytes;
};

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
          view(checked(crumb::pack<F>(checked(crumb::quantize<F>(w)), room.bytes))) {}
    memory room;
    crumb::packed_view<F> view;
};

/// A product of floats with planned weights.
void multiply(const crumb::any_linear& w, const crumb::matrix_view<const float>& x, std::vector<float>& y) {
    y.resize(x.rows * w.n());
    memory room(w.reads_activations() ? crumb::activation_bytes(w.input_plan(), x.rows) : 1);
    crumb::activations a;
    if (w.reads_activations()) {
        a = checked(crumb::activations::create(room.bytes, w.input_plan(), x.rows));
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
          up(checked(crumb::linear<crumb::q4_0>::plan(first.view, {.bias = n.bias}))),
          down(checked(crumb::linear<crumb::q4_0>::plan(second.view))),
          ops(checked(crumb::float_ops::plan())) {}
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
    const auto ops = checked(crumb::float_ops::plan());
    // The predictor: W1 in 2 bits. Its estimates are what ranges are ranges of.
    const packed<crumb::u2> estimates(n.first());
    const crumb::any_linear predictor =
        checked(crumb::linear<crumb::u2>::plan(estimates.view, {.bias = n.bias}));
    const crumb::any_linear exact_up = checked(crumb::dense_linear<float>::plan(n.first(), {.bias = n.bias}));
    const crumb::any_linear exact_down = checked(crumb::dense_linear<float>::plan(n.second()));

    // Once, offline: what every neuron sees, and what a line in the place of GELU costs on every range.
    auto statistics = checked(crumb::activation_statistics::make(h, 128));
    std::vector<float> v, u, s;
    for (std::size_t r = 0; r < samples; r += 256) {
        multiply(predictor, n.inputs(r, 256), v);
        multiply(exact_up, n.inputs(r, 256), u);
        s.resize(u.size());
        ops.gelu_tanh(crumb::matrix<const float>(u.data(), 256, h), crumb::matrix(s.data(), 256, h));
        checked(statistics.add(crumb::matrix<const float>(v.data(), 256, h),
                               crumb::matrix<const float>(u.data(), 256, h),
                               crumb::matrix<const float>(s.data(), 256, h)));
    }
    const auto weights = crumb::output_weights(n.second());
    std::vector<std::vector<crumb::linear_range>> ranges;
    std::vector<std::vector<crumb::curve_point>> curves;
    for (std::size_t i = 0; i < h; ++i) {
        ranges.push_back(checked(crumb::search_ranges(statistics, i)));
        curves.push_back(crumb::error_curve(ranges[i], weights[i]));
    }

    // What the network does with inputs that it was not calibrated on.
    const auto x = n.inputs(samples, unseen);
    std::vector<float> exact, y(unseen * d);
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
        const crumb::layer_curves layers[] = {{curves}};
        const auto shared = checked(crumb::share_coverage(layers, {.target = coverage}));
        const crumb::neuron_shape shape{h, d, d, crumb::row_codec::q4_0, crumb::row_codec::q4_0, false};
        memory room(checked(crumb::neuron_layout::of(shape)).bytes);
        const auto writer = checked(crumb::neuron_writer::create(room.bytes, shape));
        std::vector<double> slopes(h), intercepts(h);
        std::vector<float> row(d);
        for (std::size_t i = 0; i < h; ++i) {
            const std::size_t range = curves[i][shared.points[0][i]].range;
            const crumb::linear_range r =
                range == crumb::curve_point::nothing ? crumb::linear_range() : ranges[i][range];
            slopes[i] = r.slope;
            intercepts[i] = r.intercept;
            const auto low = static_cast<float>(r.low), high = static_cast<float>(r.high);
            writer.line(i,
                        {static_cast<float>(r.slope), static_cast<float>(r.intercept), n.bias[i], low, high});
            writer.thresholds(i, low, high);
            crumb::encode_row(shape.in, n.first().row(i), d, writer.in(i));
            for (std::size_t c = 0; c < d; ++c)
                row[c] = n.second().row(c)[i];
            crumb::encode_row(shape.out, row.data(), d, writer.out(i));
        }
        const auto folded = checked(crumb::fold(n.first(), n.bias, n.second(), {}, slopes, intercepts));
        const packed<crumb::q8_0> c(crumb::matrix<const float>(folded.weights.data(), d, d));
        crumb::folded_ffn_parts parts;
        parts.fold = checked(crumb::linear<crumb::q8_0>::plan(c.view, {.bias = folded.bias}));
        parts.predictor = predictor;
        parts.neurons = checked(writer.finish());
        parts.activation = crumb::activation_function::kind::gelu_tanh;
        const auto plan =
            checked(crumb::folded_ffn::plan({d, h, d}, parts, {.batches = crumb::folded_batches::lists}));

        // At run time: four phases, here by one thread; see docs/folding.md for several.
        memory scratch(plan.scratch_bytes(unseen));
        y.resize(unseen * d);
        crumb::folded_ffn_counters counted;
        const crumb::folded_ffn_batch all{
            x, crumb::matrix(y.data(), unseen, d), scratch.bytes, {&counted, 1}};
        plan.run(all);
        const std::size_t missed = plan.count_missed(all);
        const crumb::folded_ffn_batch one{n.inputs(samples, 1), crumb::matrix(y.data() + d, 1, d),
                                          scratch.bytes};
        const double error = distance(y, exact), time = seconds_of([&] { plan.run(one); });
        const double fixed = double(counted.fixed) / double(counted.neurons);
        char name[32];
        std::snprintf(name, sizeof name, "folded, coverage %.2f", coverage);
        std::printf("%-22s %10.2f %10.2f %14.1f %14.2f %12.1f\n", name, 100 * fixed,
                    100 * double(missed) / double(counted.neurons),
                    double(plan.bytes_read(counted.fixed / unseen)) / 1e3, 100 * error, 1e6 * time);
    }
}
