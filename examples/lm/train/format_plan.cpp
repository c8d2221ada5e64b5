#include "train/format_plan.hpp"

#include "train/format_choice.hpp"
#include "train/sensitivity.hpp"

#include <crumb/offline/weights/store.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

namespace lm {

using crumb::errc;
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

/// The formats that a matrix may take.
struct choice {
    std::vector<format_option> options;
    std::vector<weight_type> types;
};

/// `cost`: of errors of `measured_share`.
result<choice> options_of(const quantized_matrix& each, const gguf_tensor& tensor, const model& m,
                          const quantized_tensors& tensors, double cost,
                          const crumb::error_feedback& quantizer) {
    const auto rows = tensor_rows::open(tensor, m.extras());
    if (!rows)
        return rows.error();
    choice out{{{each.bytes, 0.0}}, {weight_type::stored}};
    const matrix_shape shape = shape_of(tensor);
    for (const weight_type type : planned_types) {
        const auto share = error_share(*rows, type, tensors.codebooks(type), quantizer);
        if (!share)
            return in_tensor(tensor, share.error());
        std::uint64_t bytes = 0;
        with_chosen_format(
            type, [&]<class F>(std::type_identity<F>) { bytes = written_bytes<F>(shape.n, shape.k); });
        out.options.push_back({bytes, cost / measured_share * *share});
        out.types.push_back(type);
    }
    return out;
}

/// Bytes of a file besides the matrices' own, at most: tensors begin at multiples of the alignment.
result<std::uint64_t> other_bytes(const model& m, std::span<const quantized_matrix> matrices) {
    gguf_writer writer(3, crumb::alignment);
    for (const gguf_value& value : m.file().values())
        writer.set(value);
    for (const gguf_tensor& t : m.file().tensors())
        if (std::none_of(matrices.begin(), matrices.end(),
                         [&](const quantized_matrix& each) { return each.tensor == t.name; }))
            writer.add_tensor(t);
    const auto bytes = writer.bytes();
    if (!bytes)
        return bytes.error();
    std::uint64_t sum = bytes->size();
    // An entry has name, rank, two dimensions, type and offset; a key of tables its name, type, count and
    // entries.
    for (const quantized_matrix& each : matrices)
        sum += each.tensor.size() + 8 + 4 + 16 + 4 + 8 + crumb::alignment;
    for (const weight_type type : planned_types)
        sum += matrix_extras::codebook_key(name_of(type)).size() + 8 + 4 + 4 + 8 + 16;
    return sum + crumb::alignment;
}

/// Those of all matrices, in the order of `matrices`.
result<std::vector<choice>> all_options(const quantization& how, const model& m, session& s,
                                        const quantized_tensors& tensors,
                                        std::span<const quantized_matrix> matrices,
                                        const sensitivities& measured, std::span<const std::int32_t> text,
                                        std::size_t window, const progress_function& done) {
    const auto named = m.matrices();
    std::vector<choice> out(matrices.size());
    std::size_t finished = 0;
    const auto add = [&](std::size_t i, double cost, const crumb::error_feedback& quantizer) -> status {
        auto made =
            options_of(matrices[i], **m.file().get_tensor(matrices[i].tensor), m, tensors, cost, quantizer);
        if (!made)
            return made.error();
        out[i] = std::move(*made);
        if (done)
            done(++finished, matrices.size());
        return {};
    };
    const auto index_of = [&](std::string_view tensor) {
        return static_cast<std::size_t>(
            std::find_if(matrices.begin(), matrices.end(),
                         [&](const quantized_matrix& each) { return each.tensor == tensor; }) -
            matrices.begin());
    };
    calibration inputs(m, s, text, window);
    for (std::size_t layer = 0; layer < m.layers().size(); ++layer) {
        const auto moments = inputs.moments({layer, layer + 1});
        if (!moments)
            return moments.error();
        std::optional<crumb::error_feedback> quantizer;
        std::size_t reads = matrix_role::inputs;
        for (std::size_t i = 0; i < named.size(); ++i) {
            if (named[i].role.layer != layer)
                continue;
            if (named[i].role.reads != reads) {
                reads = named[i].role.reads;
                const auto h = (*moments)[reads].matrix();
                auto made = crumb::error_feedback::make(
                    crumb::matrix<const double>(h.data(), named[i].m->k(), named[i].m->k()),
                    {.sweeps = how.sweeps});
                if (!made)
                    return made.error();
                quantizer.emplace(std::move(*made));
            }
            if (const status added = add(index_of(named[i].name), measured.matrices[i], *quantizer); !added)
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
    const std::size_t embedding = index_of("token_embd.weight"), output = index_of(m.output_tensor());
    if (const status added = add(output, measured.output, how.towards ? *fed : *rounded); !added)
        return added;
    if (embedding == output) {
        const choice as_output = out[output];
        if (const status added = add(embedding, measured.embedding, *rounded); !added)
            return added;
        for (std::size_t i = 0; i < as_output.options.size(); ++i)
            out[embedding].options[i].loss += as_output.options[i].loss;
    } else if (const status added = add(embedding, measured.embedding, *rounded); !added) {
        return added;
    }
    return out;
}

} // namespace

result<format_plan> plan_formats(const quantization& how, model& m, session& s,
                                 const quantized_tensors& tensors, std::span<const std::int32_t> text,
                                 std::size_t window, const stage_function& progress) {
    const auto measured = mean_sensitivities(m, s, text, window, one_stage(progress, "costs of errors"));
    if (!measured)
        return measured.error();
    const auto& d = m.shape();
    const std::size_t widest = std::max({d.attention_width(), d.width, d.hidden});
    const std::size_t windows =
        std::min(text.size() / window, (measured_inputs * widest + window - 1) / window);
    const std::vector<quantized_matrix> matrices = tensors.matrices();
    const auto choices = all_options(how, m, s, tensors, matrices, *measured, text.first(windows * window),
                                     window, one_stage(progress, "errors of formats"));
    if (!choices)
        return choices.error();
    std::vector<std::vector<format_option>> options;
    for (const choice& each : *choices)
        options.push_back(each.options);
    std::uint64_t weights = 0, others = 0;
    for (const quantized_matrix& each : matrices)
        weights += each.weights;
    if (how.size) {
        const auto rest = other_bytes(m, matrices);
        if (!rest)
            return rest.error();
        others = *rest;
    }
    const double wanted =
        how.size ? static_cast<double>(*how.size) : *how.bits * static_cast<double>(weights) / 8;
    std::uint64_t least = 0;
    for (const auto& each : options)
        least +=
            std::min_element(each.begin(), each.end(), [](const format_option& a, const format_option& b) {
                return a.bytes < b.bytes;
            })->bytes;
    if (wanted < static_cast<double>(least + others)) {
        if (how.size)
            return status::error(errc::invalid_argument,
                                 "no choice of formats makes a file of %.2f MB: %.2f MB is the "
                                 "smallest that can be written",
                                 wanted / 1e6, static_cast<double>(least + others) / 1e6);
        return status::error(errc::invalid_argument,
                             "no choice of formats has %.3f bits per weight: %.3f is the smallest", *how.bits,
                             8 * static_cast<double>(least) / static_cast<double>(weights));
    }
    const auto chosen = choose_formats(options, static_cast<std::uint64_t>(wanted) - others);
    if (!chosen)
        return chosen.error();
    format_plan plan;
    for (std::size_t i = 0; i < matrices.size(); ++i)
        if (const weight_type type = (*choices)[i].types[(*chosen)[i]]; type != weight_type::stored)
            plan.emplace(matrices[i].tensor, type);
    return plan;
}

} // namespace lm
