#include "cli/model_report.hpp"

#include <cmath>

namespace lm {

void put_ffn(json_object& out, const session& s) {
    double dense = 0;
    ffn_type type = ffn_type::dense;
    for (const model_layer& l : s.of().layers()) {
        dense += static_cast<double>(l.up.stored_bytes() + l.down.stored_bytes() + l.gate.stored_bytes());
        if (l.folded != nullptr)
            type = l.up.n() == 0 ? ffn_type::tardis : ffn_type::both;
    }
    out.put("ffn", ffn_names[static_cast<std::size_t>(type)]);
    if (type == ffn_type::dense) {
        out.put("ffn_bytes_per_token", dense);
        return;
    }
    const ffn_counts c = s.ffn();
    out.put("ffn_bytes_per_token", c.bytes / static_cast<double>(c.tokens));
    out.put("fixed", static_cast<double>(c.fixed) / static_cast<double>(c.neurons));
    if (c.missed)
        out.put("missed", static_cast<double>(*c.missed) / static_cast<double>(c.neurons));
}

std::string ffn_line(const session& s) {
    const ffn_counts c = s.ffn();
    if (c.neurons == 0)
        return {};
    char text[160];
    const double all = static_cast<double>(c.neurons) / 100;
    int size =
        std::snprintf(text, sizeof text, "%.1f KB per token, %.2f %% of the neurons fixed",
                      c.bytes / static_cast<double>(c.tokens) / 1e3, static_cast<double>(c.fixed) / all);
    if (c.missed)
        size += std::snprintf(text + size, sizeof text - static_cast<std::size_t>(size), ", %.3f %% missed",
                              static_cast<double>(*c.missed) / all);
    return {text, static_cast<std::size_t>(size)};
}

void put_likelihood(json_object& out, const evaluation& e) {
    out.put("tokens", e.tokens)
        .put("nll", e.nll)
        .put("nll_standard_error", e.nll_error)
        .put("ppl", std::exp(e.nll));
}

void put_divergence(json_object& out, const evaluation& e) {
    out.put("kl_divergence", e.kl).put("kl_standard_error", e.kl_error).put("top1_agreement", e.agreement);
}

void print_evaluation(const evaluation& e, bool has_reference) {
    print("perplexity      %.4f ± %.4f over %zu tokens (nll %.5f nats)\n", std::exp(e.nll),
          std::exp(e.nll) * e.nll_error, e.tokens, e.nll);
    if (has_reference)
        print("KL divergence   %.6f ± %.6f nats\ntop-1 agreement %.2f %%\n", e.kl, e.kl_error,
              100 * e.agreement);
}

std::string weights_name(const model& m, weight_type type) {
    return type == weight_type::stored ? m.stored_type() : std::string(name_of(type));
}

} // namespace lm
