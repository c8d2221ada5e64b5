#include "train/format_curves.hpp"

#include "train/sensitivity.hpp"

#include <crumb/offline/weights/store.hpp>

#include <algorithm>
#include <cmath>

namespace lm {

using crumb::result;
using crumb::status;

namespace {

/// The share of a matrix's energy that errors have when their cost is measured: that of 3 bits, between the
/// formats.
constexpr double measured_share = 0.02;
/// Rows of a matrix that show how well a format fits it.
constexpr std::size_t sampled_rows = 32;
/// Windows on which the costs of errors are measured.
constexpr std::size_t measured_windows = 2;
/// Tokens of the sums over inputs, per input of the widest matrix: enough for what is compared.
constexpr std::size_t measured_inputs = 2;

/// The costs of errors, the mean of some windows from all over the text. Whole ones: what attention is worth
/// shows in long contexts.
result<sensitivities> mean_sensitivities(model& m, session& s, std::span<const std::int32_t> text,
                                         std::size_t window, const progress_function& progress) {
    const std::size_t all = text.size() / window, count = std::min(all, measured_windows);
    sensitivities mean;
    for (std::size_t i = 0; i < count; ++i) {
        const auto one = measure_sensitivities(m, s, text.subspan(all * i / count * window, window),
                                               measured_share, [&](std::size_t done, std::size_t of) {
                                                   if (progress)
                                                       progress(i * of + done, count * of);
                                               });
        if (!one)
            return one.error();
        mean.matrices.resize(one->matrices.size());
        const double share = 1 / static_cast<double>(count);
        for (std::size_t k = 0; k < mean.matrices.size(); ++k)
            mean.matrices[k] += share * one->matrices[k];
        mean.embedding += share * one->embedding;
        mean.output += share * one->output;
    }
    // A few windows tell little of what a matrix is worth on others, where attention looks elsewhere: half of
    // the way, in logarithms, to what a weight costs on average.
    const auto named = m.matrices();
    double sum = 0, weights = 0;
    for (std::size_t k = 0; k < named.size(); ++k) {
        sum += mean.matrices[k];
        weights += static_cast<double>(named[k].m->n() * named[k].m->k());
    }
    for (std::size_t k = 0; k < named.size(); ++k)
        mean.matrices[k] = std::sqrt(mean.matrices[k] * sum / weights *
                                     static_cast<double>(named[k].m->n() * named[k].m->k()));
    return mean;
}

/// (w - q) H (w - q)^T / sum H_ii w_i^2 over some rows: what errors that are as small as feedback makes them
/// do, in units of what independent ones of the same energy as the weights would.
result<double> error_share(const tensor_rows& rows, weight_type type, std::span<const std::int8_t> tables,
                           const crumb::error_feedback& quantizer) {
    const std::size_t n = std::min(rows.rows(), sampled_rows), k = rows.size();
    std::vector<float> floats(n * k);
    for (std::size_t r = 0; r < n; ++r)
        rows.read(r * rows.rows() / n, floats.data() + r * k);
    const auto w = crumb::matrix<const float>(floats.data(), n, k);
    const crumb::feedback_system& system = quantizer.system();
    const auto energy = [&](std::size_t position) {
        const auto i = static_cast<Eigen::Index>(position);
        return double{system.has_feedback() ? system.h()(i, i) : system.weight()[position]};
    };
    status s;
    double error = 0, all = 0;
    with_chosen_format(type, [&]<class F>(std::type_identity<F>) {
        auto q = crumb::leveled_matrix::zeros(crumb::levels_of<F>(tables), n, k);
        s = quantizer.quantize(w, q);
        for (std::size_t r = 0; s && r < n; ++r) {
            error += quantizer.error(w.row(r), q, r);
            for (std::size_t i = 0; i < system.size(); ++i)
                if (const std::size_t column = system.column(i); column < k)
                    all += energy(i) * double{w.row(r)[column]} * double{w.row(r)[column]};
        }
    });
    if (!s)
        return s;
    return all > 0 ? std::max(error, 0.0) / all : 0.0;
}

/// Measures a curve. `cost`: of errors of `measured_share`. Adds to what it has.
status measure(format_curve& curve, const model& m, const quantized_tensors& tensors, double cost,
               const crumb::error_feedback& quantizer) {
    const gguf_tensor& tensor = **m.file().get_tensor(curve.tensor);
    const auto rows = tensor_rows::open(tensor, m.extras());
    if (!rows)
        return rows.error();
    for (std::size_t i = 0; i < curve.types.size(); ++i) {
        if (curve.types[i] == weight_type::stored)
            continue;
        const auto share = error_share(*rows, curve.types[i], tensors.codebooks(curve.types[i]), quantizer);
        if (!share)
            return in_tensor(tensor, share.error());
        curve.options[i].loss += cost / measured_share * *share;
    }
    return {};
}

/// All of them.
status measure_all(const quantization& how, const model& m, session& s, const quantized_tensors& tensors,
                   std::vector<format_curve>& curves, const sensitivities& measured,
                   std::span<const std::int32_t> text, std::size_t window, const progress_function& done) {
    std::size_t finished = 0;
    const auto add = [&](std::string_view tensor, double cost, const crumb::error_feedback& quantizer) {
        const auto curve = std::find_if(curves.begin(), curves.end(),
                                        [&](const format_curve& each) { return each.tensor == tensor; });
        const status made = measure(*curve, m, tensors, cost, quantizer);
        if (made && done)
            done(++finished, curves.size());
        return made;
    };
    calibration inputs(m, s, text, window);
    const auto named = m.matrices();
    for (std::size_t layer = 0, i = 0; layer < m.layers().size(); ++layer) {
        const auto moments = inputs.moments({layer, layer + 1});
        if (!moments)
            return moments.error();
        while (i < named.size() && named[i].role.layer == layer) {
            const auto group = same_inputs(std::span(named).subspan(i));
            const auto h = (*moments)[group[0].role.reads].matrix();
            const std::size_t k = group[0].m->k();
            const auto quantizer = crumb::error_feedback::make(crumb::matrix<const double>(h.data(), k, k),
                                                               {.sweeps = how.sweeps});
            if (!quantizer)
                return quantizer.error();
            for (const named_matrix& each : group)
                if (const status added = add(each.name, measured.matrices[i++], *quantizer); !added)
                    return added;
        }
    }
    // An embedding is read row by row; the output matrix has feedback where there is a text for it.
    const auto h = inputs.output_moments(inputs.windows());
    if (!h)
        return h.error();
    const auto sums = h->matrix();
    const std::size_t width = m.shape().width;
    const auto fed = crumb::error_feedback::make(crumb::matrix<const double>(sums.data(), width, width),
                                                 {.damping = vocabulary_damping, .sweeps = how.sweeps});
    const auto rounded = crumb::error_feedback::independent(width, {});
    if (!fed || !rounded)
        return fed ? rounded.error() : fed.error();
    // The losses of a matrix that is both are added.
    if (const status added = add(m.output_tensor(), measured.output, how.towards ? *fed : *rounded); !added)
        return added;
    return add("token_embd.weight", measured.embedding, *rounded);
}

} // namespace

std::vector<format_curve> unmeasured_formats(const model& m, const quantized_tensors& tensors) {
    std::vector<format_curve> out;
    for (const quantized_matrix& each : tensors.matrices()) {
        format_curve curve{each.tensor, {weight_type::stored}, {{each.bytes, 0.0}}};
        const matrix_shape shape = shape_of(**m.file().get_tensor(each.tensor));
        for (const weight_type type : planned_types)
            with_chosen_format(type, [&]<class F>(std::type_identity<F>) {
                curve.types.push_back(type);
                curve.options.push_back({written_bytes<F>(shape.n, shape.k), 0.0});
            });
        out.push_back(std::move(curve));
    }
    return out;
}

result<std::vector<format_curve>> measure_formats(const quantization& how, model& m, session& s,
                                                  const quantized_tensors& tensors,
                                                  std::span<const std::int32_t> text, std::size_t window,
                                                  const stage_function& progress) {
    const auto measured = mean_sensitivities(m, s, text, window, one_stage(progress, "costs of errors"));
    if (!measured)
        return measured.error();
    const std::size_t windows =
        std::min(text.size() / window, (measured_inputs * m.shape().widest_input() + window - 1) / window);
    std::vector<format_curve> curves = unmeasured_formats(m, tensors);
    const status made = measure_all(how, m, s, tensors, curves, *measured, text.first(windows * window),
                                    window, one_stage(progress, "errors of formats"));
    if (!made)
        return made;
    return curves;
}

} // namespace lm
