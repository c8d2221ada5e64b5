#include "train/format_plan.hpp"

#include "train/format_choice.hpp"
#include "train/sensitivity.hpp"

#include <crumb/offline/weights/store.hpp>

#include <algorithm>

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

/// sum a (w - q)^2 / sum a w^2 over some rows.
result<double> error_share(const tensor_rows& rows, weight_type type, std::span<const std::int8_t> tables,
                           std::span<const float> importance) {
    const std::size_t n = std::min(rows.rows(), sampled_rows), k = rows.size();
    std::vector<float> floats(n * k);
    for (std::size_t r = 0; r < n; ++r)
        rows.read(r * rows.rows() / n, floats.data() + r * k);
    const auto w = crumb::matrix<const float>(floats.data(), n, k);
    const auto quantizer = crumb::error_feedback::independent(k, importance, {.sweeps = 0});
    if (!quantizer)
        return quantizer.error();
    status s;
    double error = 0, all = 0;
    with_chosen_format(type, [&]<class F>(std::type_identity<F>) {
        auto q = crumb::leveled_matrix::zeros(crumb::levels_of<F>(tables), n, k);
        s = quantizer->quantize(w, q);
        for (std::size_t r = 0; r < n; ++r)
            for (std::size_t i = 0; i < k; ++i) {
                const double a = importance.empty() ? 1.0 : double{importance[i]};
                const double x = w.row(r)[i], e = x - double{q.weight(r, i)};
                error += a * e * e;
                all += a * x * x;
            }
    });
    if (!s)
        return s;
    return all > 0 ? error / all : 0.0;
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

} // namespace

result<format_plan> plan_formats(const quantization& how, model& m, session& s,
                                 const quantized_tensors& tensors, const importances& importance,
                                 std::span<const std::int32_t> window, const stage_function& progress) {
    const auto measured =
        measure_sensitivities(m, s, window, measured_share, one_stage(progress, "costs of errors"));
    if (!measured)
        return measured.error();
    const std::vector<quantized_matrix> matrices = tensors.matrices();
    const auto named = m.matrices();
    const bool is_tied = m.file().find_tensor("output.weight") == nullptr;
    const progress_function done = one_stage(progress, "errors of formats");
    std::vector<std::vector<format_option>> options;
    std::vector<std::vector<weight_type>> types;
    for (const quantized_matrix& each : matrices) {
        const gguf_tensor& tensor = **m.file().get_tensor(each.tensor);
        const auto rows = tensor_rows::open(tensor, m.extras());
        if (!rows)
            return rows.error();
        double cost = 0;
        std::span<const float> inputs;
        if (const auto found = std::find_if(named.begin(), named.end(),
                                            [&](const named_matrix& n) { return n.name == each.tensor; });
            found != named.end()) {
            cost = measured->matrices[static_cast<std::size_t>(found - named.begin())];
            inputs = importance.at(found->role.input());
        } else if (each.tensor == "output.weight") {
            cost = measured->output;
        } else {
            cost = measured->embedding + (is_tied ? measured->output : 0.0);
        }
        options.push_back({{each.bytes, 0.0}});
        types.push_back({weight_type::stored});
        const matrix_shape shape = shape_of(tensor);
        for (const weight_type type : planned_types) {
            const auto share = error_share(*rows, type, tensors.codebooks(type), inputs);
            if (!share)
                return in_tensor(tensor, share.error());
            std::uint64_t bytes = 0;
            with_chosen_format(
                type, [&]<class F>(std::type_identity<F>) { bytes = written_bytes<F>(shape.n, shape.k); });
            options.back().push_back({bytes, cost / measured_share * *share});
            types.back().push_back(type);
        }
        if (done)
            done(options.size(), matrices.size());
    }
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
        if (const weight_type type = types[i][(*chosen)[i]]; type != weight_type::stored)
            plan.emplace(matrices[i].tensor, type);
    return plan;
}

} // namespace lm
