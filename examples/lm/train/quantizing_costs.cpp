#include "train/quantizing_costs.hpp"

namespace lm {

namespace {

/// A multiplication and a sum that are not fused, of floats and of doubles.
constexpr double unfused = 2, unfused_double = 4;
/// A weight of a pass, with its share of attention, of norms and of decoding.
constexpr double passed = 2.4;
/// Choosing the scale and the codes of a group once, per weight.
constexpr double search = 6000;
/// The same of nested weights.
constexpr double nested_search = 12000;
/// How often all scales of a nested matrix are fitted, each time by a product with H at every precision.
constexpr double nested_fits = 30;
/// A token that the model writes reads all weights, which a batch of tokens shares.
constexpr double alone = 12;
/// Training one set of codebooks.
constexpr double codebooks = 80;
/// Errors of all matrices by themselves, measured on so many tokens.
constexpr double measured_tokens = 1024;

constexpr double billion = 1e9;

double number(std::size_t i) noexcept { return static_cast<double>(i); }

} // namespace

quantizing_costs::quantizing_costs(const model& m, const quantization& how, std::size_t tokens)
    : shape_(m.shape()), how_(how), tokens_(number(tokens)) {
    for (const named_matrix& each : m.matrices())
        if (each.role.layer == 0) {
            reads_[each.role.reads] += number(each.m->n() * each.m->k());
            layer_weights_ += number(each.m->n() * each.m->k());
        }
}

double quantizing_costs::precisions() const noexcept {
    return how_.is_nested() ? how_.nested.parent - how_.nested.seed + 1 : 1;
}

double quantizing_costs::quantized_streams() const noexcept { return how_.towards ? precisions() : 1; }

bool quantizing_costs::is_behind(matrix_role role) const noexcept {
    return role.reads % 2 == 1 && !shape_.traits.post_norms;
}

double quantizing_costs::streams(matrix_role role) const noexcept {
    const double before = role.reads > 0   ? reads_[role.reads - 1]
                          : role.layer > 0 ? reads_[matrix_role::inputs - 1]
                                           : 0.0;
    const double passes = (1 + quantized_streams()) / 2;
    return passed * tokens_ * passes * (before + reads_[role.reads]) / billion;
}

double quantizing_costs::sums(matrix_role role) const noexcept {
    const double k = number(shape_.input_width(role.reads));
    const double behind = is_behind(role) ? number(shape_.width) * k : 0.0;
    return quantized_streams() * unfused * tokens_ * (1.5 * k * k + behind) / billion;
}

double quantizing_costs::factors(matrix_role role) const noexcept {
    const double k = number(shape_.input_width(role.reads));
    return (1 + quantized_streams()) * unfused_double * k * k * k / 6 / billion;
}

double quantizing_costs::weights(std::size_t n, std::size_t k, bool moves) const noexcept {
    const double count = number(n * k), sweeps = number(how_.sweeps);
    const double fits = how_.is_nested() ? nested_fits : 0.0;
    const double products =
        precisions() * (unfused * (1.5 + sweeps + fits) + (moves ? 2 * unfused_double : 0.0));
    const double searches = (how_.is_nested() ? nested_search : search) * (1 + sweeps);
    return count * (number(k) * products + searches) / billion;
}

double quantizing_costs::pass(double tokens) const noexcept {
    return passed * tokens * layer_weights_ * number(shape_.layers) / billion;
}

work_costs quantizing_costs::preparation(std::size_t types) const noexcept {
    work_costs out = {};
    const auto of = [&](work_kind kind) -> double& { return out[static_cast<std::size_t>(kind)]; };
    if (how_.calibrate == "self")
        of(work_kind::text) = alone * pass(tokens_);
    if (types != 0)
        of(work_kind::importance) = pass(tokens_);
    of(work_kind::codebooks) = codebooks * number(types);
    if (how_.chooses_formats())
        of(work_kind::formats) = pass(measured_tokens) / 2 * number(shape_.layers) * 7;
    return out;
}

double quantizing_costs::vocabulary() const noexcept {
    return weights(shape_.vocabulary, shape_.width, false);
}

} // namespace lm
