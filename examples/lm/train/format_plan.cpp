#include "train/format_plan.hpp"

#include <algorithm>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

/// Bytes of a file besides the matrices' own, at most: tensors begin at multiples of the alignment.
result<std::uint64_t> other_bytes(const model& m, std::span<const format_curve> matrices) {
    gguf_writer writer(3, crumb::alignment);
    for (const gguf_value& value : m.file().values())
        writer.set(value);
    for (const gguf_tensor& t : m.file().tensors())
        if (std::none_of(matrices.begin(), matrices.end(),
                         [&](const format_curve& each) { return each.tensor == t.name; }))
            writer.add_tensor(t);
    const auto bytes = writer.bytes();
    if (!bytes)
        return bytes.error();
    std::uint64_t sum = bytes->size();
    // An entry has name, rank, two dimensions, type and offset; a key of tables its name, type, count and
    // entries.
    for (const format_curve& each : matrices)
        sum += each.tensor.size() + 8 + 4 + 16 + 4 + 8 + crumb::alignment;
    for (const weight_type type : planned_types)
        sum += matrix_extras::codebook_key(name_of(type)).size() + 8 + 4 + 4 + 8 + 16;
    return sum + crumb::alignment;
}

/// What is to be kept, and what of it is not the matrices' own.
struct budget {
    double wanted = 0; ///< bytes
    std::uint64_t others = 0, weights = 0;
};

result<budget> budget_of(const quantization& how, const model& m, std::span<const format_curve> curves) {
    budget out;
    for (const format_curve& each : curves) {
        const matrix_shape shape = shape_of(**m.file().get_tensor(each.tensor));
        out.weights += shape.n * shape.k;
    }
    if (!how.size) {
        out.wanted = *how.bits * static_cast<double>(out.weights) / 8;
        return out;
    }
    const auto rest = other_bytes(m, curves);
    if (!rest)
        return rest.error();
    out.others = *rest;
    out.wanted = static_cast<double>(*how.size);
    return out;
}

/// Whether a choice keeps it.
status check(const budget& b, const quantization& how, std::span<const format_curve> curves) {
    std::uint64_t least = 0;
    for (const format_curve& each : curves)
        least +=
            std::min_element(each.options.begin(), each.options.end(),
                             [](const format_option& x, const format_option& y) { return x.bytes < y.bytes; })
                ->bytes;
    if (b.wanted >= static_cast<double>(least + b.others))
        return {};
    if (how.size)
        return status::error(errc::invalid_argument,
                             "no choice of formats makes a file of %.0f bytes: %.2f MB is the smallest that "
                             "can be written",
                             b.wanted, static_cast<double>(least + b.others) / 1e6);
    return status::error(errc::invalid_argument,
                         "no choice of formats has %.3f bits per weight: %.3f is the smallest", *how.bits,
                         8 * static_cast<double>(least) / static_cast<double>(b.weights));
}

} // namespace

status check_budget(const quantization& how, const model& m, std::span<const format_curve> curves) {
    const auto b = budget_of(how, m, curves);
    return b ? check(*b, how, curves) : b.error();
}

result<format_plan> plan_formats(const quantization& how, const model& m,
                                 std::span<const format_curve> curves) {
    const auto b = budget_of(how, m, curves);
    if (!b)
        return b.error();
    if (const status s = check(*b, how, curves); !s)
        return s;
    std::vector<std::vector<format_option>> options;
    for (const format_curve& each : curves)
        options.push_back(each.options);
    const auto chosen = choose_formats(options, static_cast<std::uint64_t>(b->wanted) - b->others);
    if (!chosen)
        return chosen.error();
    format_plan plan;
    for (std::size_t i = 0; i < curves.size(); ++i)
        if (const weight_type type = curves[i].types[(*chosen)[i]]; type != weight_type::stored)
            plan.emplace(curves[i].tensor, type);
    return plan;
}

} // namespace lm
