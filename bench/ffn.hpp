// Feed-forward networks of random weights, folded and not, in copies that no cache holds.
#pragma once

#include "problem.hpp"
#include "product_rows.hpp"

#include <crumb/op/ffn/folded_ffn.hpp>
#include <crumb/reference/ffn.hpp>
#include <crumb/reference/float_ops.hpp>

#include <numeric>
#include <random>

namespace crumb::bench {

/// As many outputs as inputs.
struct ffn_shape {
    std::size_t inputs, neurons;
    bool in_memory; ///< weights rotate over more than the caches hold; else they are one copy
    std::string name() const { return "d:" + std::to_string(inputs) + "/h:" + std::to_string(neurons); }
    double macs(std::size_t rows) const { return 2.0 * double(rows) * double(inputs) * double(neurons); }
};

/// Copies for a network of which a call reads `bytes`.
inline std::size_t copies_of(const ffn_shape& s, std::size_t bytes) {
    return s.in_memory ? (dram_working_set() + bytes - 1) / bytes : 1;
}

/// Equal copies of random weights.
template <weight_format F>
struct product_weights {
    product_weights(std::size_t n, std::size_t k, std::size_t count)
        : stored(random_weights<F>(n, k)), packed(packed_bytes<F>(n, k), packed_bytes<F>(n, k) * count) {
        (void)pack(stored, {packed.at(0), packed.stride}).value();
        packed.fill();
    }
    linear<F> plan(std::size_t copy, const char* isa) const {
        const auto view = packed_view<F>::open({packed.at(copy), packed.stride});
        return linear<F>::plan(*view, {.codebooks = stored.codebooks}, {isa}).value();
    }
    std::string check(const matrix_view<const float>& x, const matrix_view<float>& y) const {
        return check_product<F>(stored, x, y);
    }
    quantized<F> stored;
    copies packed;
};

/// Quantizes rows and multiplies them.
struct quantized_product {
    void run(const any_linear& w, const matrix_view<const float>& x, const matrix_view<float>& y) {
        const auto layout = w.input_plan();
        if (const std::size_t bytes = activation_bytes(layout, x.rows); codes.size() != bytes)
            codes = buffer(bytes);
        auto a = *activations::create({codes.data(), codes.size()}, layout, x.rows);
        a.quantize(x);
        w.run(x, a, y);
    }
    buffer codes;
};

/// Scales rows so that the root mean square of their products with `w` is 1: sums of random codes are far
/// from where activations bend, and there they are slower.
inline void balance(const any_linear& w, std::span<float> rows) {
    const std::size_t m = rows.size() / w.k();
    std::vector<float> u(m * w.n());
    quantized_product().run(w, matrix<const float>(rows.data(), m, w.k()), matrix(u.data(), m, w.n()));
    double squares = 0;
    for (const float v : u)
        squares += double(v) * double(v);
    for (float& v : rows)
        v /= static_cast<float>(std::sqrt(squares / double(u.size())));
}

/// y = gelu(x W1^T) W2^T in Q4_0.
struct dense_ffn {
    dense_ffn(const ffn_shape& s) : dense_ffn(s, copies_of(s, bytes(s))) {}
    dense_ffn(const ffn_shape& s, std::size_t count)
        : shape(s), up(s.neurons, s.inputs, count), down(s.inputs, s.neurons, count) {}
    static std::size_t bytes(const ffn_shape& s) {
        return packed_bytes<q4_0>(s.neurons, s.inputs) + packed_bytes<q4_0>(s.inputs, s.neurons);
    }
    std::size_t count() const { return up.packed.count; }
    ffn_shape shape;
    product_weights<q4_0> up, down;
};

/// The same network for rows of one ISA, one copy after the other.
struct dense_task {
    dense_task(const dense_ffn& f, const matrix_view<const float>& rows, const char* isa)
        : x(rows), hidden_memory(rows.rows * f.shape.neurons), out(rows.rows * f.shape.inputs),
          hidden(matrix(hidden_memory.data(), rows.rows, f.shape.neurons)),
          y(matrix(out.data(), rows.rows, f.shape.inputs)), ops(float_ops::plan({isa}).value()) {
        for (std::size_t i = 0; i < f.count(); ++i) {
            up.push_back(f.up.plan(i, isa));
            down.push_back(f.down.plan(i, isa));
        }
        first.run(up[0], x, hidden);
        error = f.up.check(x, hidden);
        run();
        if (error.empty())
            error = f.down.check(hidden, y);
    }
    void run() {
        first.run(up[next], x, hidden);
        ops.gelu_tanh(hidden, hidden);
        second.run(down[next], hidden, y);
        next = next + 1 == up.size() ? 0 : next + 1;
    }
    matrix_view<const float> x;
    std::vector<float> hidden_memory, out;
    matrix_view<float> hidden, y;
    float_ops ops;
    std::vector<any_linear> up, down;
    quantized_product first, second;
    std::size_t next = 0;
    std::string error;
};

/// A folded network: matrix in Q4_0, predictor in `P`, neurons' inputs in a codec (`u2`: the residual of the
/// predictor) and their outputs in Q4_0.
template <weight_format P>
struct folded_network {
    folded_network(const ffn_shape& s, row_codec in)
        : shape(s), rows{s.neurons, s.inputs, s.inputs, in, row_codec::q4_0, in == row_codec::u2},
          count(copies_of(s, packed_bytes<q4_0>(s.inputs, s.inputs) + packed_bytes<P>(s.neurons, s.inputs) +
                                 dense_ffn::bytes(s))),
          fold(s.inputs, s.inputs, count), predictor(s.neurons, s.inputs, count),
          neurons(neuron_layout::of(rows)->bytes, neuron_layout::of(rows)->bytes * count), order(s.neurons) {
        const auto writer = neuron_writer::create({neurons.at(0), neurons.stride}, rows).value();
        for (std::size_t n = 0; n < s.neurons; ++n) {
            const auto w = random_floats(2 * s.inputs + 3, n);
            writer.line(n, {.slope = w[0], .intercept = w[1], .bias = rows.residual ? 0 : w[2]});
            encode_row(in, w.data() + 3, s.inputs, writer.in(n));
            encode_row(row_codec::q4_0, w.data() + 3 + s.inputs, s.inputs, writer.out(n));
        }
        neurons.fill();
        std::iota(order.begin(), order.end(), 0u);
    }
    neuron_rows open(std::size_t copy) const {
        return neuron_rows::open({neurons.at(copy), neurons.stride}).value();
    }
    float* low(std::size_t copy) const {
        return reinterpret_cast<float*>(neurons.at(copy) +
                                        (reinterpret_cast<const std::byte*>(open(0).low()) - neurons.at(0)));
    }
    float* high(std::size_t copy) const { return low(copy) + open(copy).layout().padded; }

    /// Makes exactly `fixed` random neurons leave their ranges, whatever the rows are.
    void draw(std::size_t copy, std::size_t fixed) {
        constexpr float infinity = std::numeric_limits<float>::infinity();
        float* const from = low(copy);
        std::fill_n(from, shape.neurons, -infinity);
        std::fill_n(high(copy), shape.neurons, infinity);
        for (std::size_t i = 0; i < fixed; ++i) {
            const std::size_t at = std::uniform_int_distribution<std::size_t>(i, shape.neurons - 1)(engine);
            std::swap(order[i], order[at]);
            from[order[i]] = infinity;
        }
    }
    /// Makes every neuron leave its range in about a share of the rows with these estimates.
    void calibrate(const matrix_view<float>& estimates, double share) {
        std::vector<float> of(estimates.rows);
        for (std::size_t n = 0; n < shape.neurons; ++n) {
            for (std::size_t r = 0; r < of.size(); ++r)
                of[r] = estimates.row(r)[n];
            const auto at = static_cast<std::ptrdiff_t>(
                std::min(share * double(of.size()) + std::uniform_real_distribution<>()(engine),
                         double(of.size() - 1)));
            std::nth_element(of.begin(), of.begin() + at, of.end());
            for (std::size_t i = 0; i < count; ++i) {
                low(i)[n] = of[static_cast<std::size_t>(at)];
                high(i)[n] = std::numeric_limits<float>::infinity();
            }
        }
    }

    ffn_shape shape;
    neuron_shape rows;
    std::size_t count;
    product_weights<q4_0> fold;
    product_weights<P> predictor;
    copies neurons;
    std::vector<std::uint32_t> order;
    std::mt19937 engine{1};
};

/// Such a network for rows of one ISA, one copy after the other. `matrices`: what whole batches are
/// multiplied with instead of the neurons, or null.
template <weight_format P>
struct folded_task {
    folded_task(folded_network<P>& network, const matrix_view<const float>& rows, const char* isa,
                folded_batches batches = folded_batches::automatic, const dense_ffn* matrices = nullptr)
        : f(network), inputs(rows.data, rows.data + rows.rows * rows.cols), out(inputs.size()),
          x(matrix<const float>(inputs.data(), rows.rows, rows.cols)),
          y(matrix(out.data(), rows.rows, rows.cols)), estimates_memory(rows.rows * f.shape.neurons),
          estimates(matrix(estimates_memory.data(), rows.rows, f.shape.neurons)) {
        for (std::size_t i = 0; i < f.count; ++i) {
            folded_ffn_parts parts{.fold = f.fold.plan(i, isa),
                                   .predictor = f.predictor.plan(i, isa),
                                   .neurons = f.open(i),
                                   .activation = activation_function::kind::gelu_tanh};
            if (matrices != nullptr) {
                parts.up = matrices->up.plan(i % matrices->count(), isa);
                parts.down = matrices->down.plan(i % matrices->count(), isa);
            }
            plans.push_back(folded_ffn::plan({x.cols, f.shape.neurons, x.cols}, parts,
                                             {.max_rows = x.rows, .batches = batches}, {isa})
                                .value());
        }
        scratch = buffer(plans[0].scratch_bytes(x.rows));
        balance(f.predictor.plan(0, isa), inputs);
        predict(isa);
        error = f.predictor.check(x, estimates);
    }
    void predict(const char* isa) {
        quantized_product product;
        const any_linear plan = f.predictor.plan(0, isa);
        product.run(plan, x, estimates);
        // A residual is multiplied with what the predictor's activations are rounded to.
        const auto layout = plan.input_plan();
        buffer memory(activation_bytes(layout, x.rows));
        auto codes = activations::create({memory.data(), memory.size()}, layout, x.rows).value();
        codes.quantize(x);
        const reference::activation_view view{codes.layout(), codes.codes(), codes.scales(), x.rows};
        read = inputs;
        for (std::size_t r = 0; f.rows.residual && r < x.rows; ++r)
            for (std::size_t i = 0; i < x.cols; ++i)
                read[r * x.cols + i] = static_cast<float>(view.scale(r, i / group_size) * view.code(r, i));
    }
    folded_ffn_batch batch() { return {x, y, {scratch.data(), scratch.size()}, {&counted, 1}}; }
    std::size_t run() {
        const std::size_t copy = next;
        plans[copy].run(batch());
        next = next + 1 == plans.size() ? 0 : next + 1;
        return copy;
    }
    /// Compares the first, middle and last row with double precision.
    std::string check(const char* isa) {
        const std::size_t copy = run();
        const auto gelu = [](double u) { return reference::gelu_tanh(u); };
        // Estimates have a root mean square of 1, so |u| is below 8: see `float_ops::gelu_tanh`.
        constexpr double slope = 1.13, rounding = (48 + 24 * 25) * 0x1p-24;
        const bool dense = plans[copy].is_dense(x.rows);
        std::vector<float> folded_memory(out.size());
        const auto folded = matrix(folded_memory.data(), x.rows, x.cols);
        if (!dense) {
            quantized_product product;
            product.run(f.fold.plan(0, isa), x, folded);
            if (error.empty())
                error = f.fold.check(x, folded);
        }
        const neuron_rows rows = f.open(copy);
        for (const std::size_t r : {std::size_t{0}, x.rows / 2, x.rows - 1}) {
            if (dense) {
                if (const double off = dense_error(rows, r); !(off < 0.02) && error.empty())
                    error = "wrong result: row " + std::to_string(r) + " is off by " + std::to_string(off);
                continue;
            }
            const auto want =
                reference::fixes(rows, read.data() + r * x.cols, estimates.row(r), gelu, slope, rounding);
            for (std::size_t c = 0; c < y.cols; ++c) {
                const double base = double(folded.row(r)[c]), got = double(y.row(r)[c]);
                const double bound = want.error[c] + double(want.count) * 0x1p-23 * std::fabs(base);
                if (!(std::fabs(got - (base + want.value[c])) <= bound) && error.empty())
                    error = "wrong result: row " + std::to_string(r) + ", output " + std::to_string(c) +
                            " is " + std::to_string(got) + ", expected " +
                            std::to_string(base + want.value[c]);
            }
        }
        return error;
    }

    folded_network<P>& f;
    std::vector<float> inputs, out, read; ///< `read`: what neurons are multiplied with
    matrix_view<const float> x;
    matrix_view<float> y;
    std::vector<float> estimates_memory;
    matrix_view<float> estimates;
    std::vector<folded_ffn> plans;
    buffer scratch;
    folded_ffn_counters counted; ///< of the last call
    std::size_t next = 0;
    std::string error;

  private:
    /// Root mean square of a row's error, relative, computed as the network before folding. Three roundings
    /// to 8 bits, of x, of sigma(u) and of W2, make up to 0.9 % each.
    double dense_error(const neuron_rows& rows, std::size_t r) const {
        std::vector<double> want(y.cols);
        for (std::size_t n = 0; n < f.shape.neurons; ++n) {
            const double base = f.rows.residual ? double(estimates.row(r)[n]) : double(rows.line(n).bias);
            const double s = reference::gelu_tanh(
                base + reference::multiply(f.rows.in, rows.in(n), x.row(r), f.shape.inputs).value);
            for (std::size_t c = 0; c < y.cols; ++c)
                want[c] += s * double(row_weight(f.rows.out, rows.out(n), c));
        }
        double error_squares = 0, squares = 0;
        for (std::size_t c = 0; c < y.cols; ++c) {
            error_squares += std::pow(double(y.row(r)[c]) - want[c], 2);
            squares += want[c] * want[c];
        }
        return std::sqrt(error_squares / squares);
    }
};

} // namespace crumb::bench
