#include "commands.hpp"
#include "evaluate.hpp"
#include "quantizer.hpp"
#include "report.hpp"

#include <cmath>
#include <limits>

namespace lm {
namespace {

crumb::status check_pruning(const perplexity_options& o) {
    if (o.prune.by == pruning::kind::none)
        return {};
    if (o.weights != weight_type::f32 || o.activations != activation_type::f32)
        return crumb::status::error(crumb::errc::invalid_argument,
                                    "--prune needs --weights f32 --activations f32");
    if (o.prune.needs_inputs() && o.prune_text.empty())
        return crumb::status::error(crumb::errc::invalid_argument,
                                    "--prune %s needs --prune-text to measure inputs on",
                                    o.prune.name().c_str());
    return {};
}

/// The share of feed-forward weights that are left.
crumb::result<double> prune(model& m, const perplexity_options& o) {
    if (!o.prune.needs_inputs())
        return prune(m, o.prune, importances());
    const std::size_t window = std::min<std::size_t>(m.shape().context, 512);
    auto s = session::make(m, team(o.threads), kv_type::f16, window, window);
    if (!s)
        return s.error();
    const auto text = calibration_text(o.prune_text, m, *s, window, 64, 1);
    if (!text)
        return text.error();
    progress_line progress("calibration");
    const auto squares =
        calibration(m, *s, *text, window).mean_squares([&](std::size_t done, std::size_t all) {
            progress(done, all);
        });
    if (!squares)
        return squares.error();
    return prune(m, o.prune, *squares);
}

} // namespace

crumb::status perplexity(const perplexity_options& o) {
    if (const auto s = check_pruning(o); !s)
        return s;
    std::string error;
    const auto file = mapped_file::open(o.text, error);
    if (!file)
        return crumb::status::error(crumb::errc::invalid_argument, "%s", error.c_str());
    // As in generation: whole windows at a time would have the networks as they were before folding.
    common_options options = o;
    options.ffn_by_lists = true;
    // Token by token, the cache is coded as far as it is in generation.
    auto loaded = load(options, o.ctx, o.kv.codec.is_uncoded() ? o.ctx : 1);
    if (!loaded)
        return loaded.error();
    const bool is_pruned = o.prune.by != pruning::kind::none;
    const auto left = is_pruned ? prune(*loaded->weights, o) : crumb::result<double>(1.0);
    if (!left)
        return left.error();
    const model& m = *loaded->weights;
    loaded->run->count_ffn(true);
    auto against = load_against(o.against, m, o, o.ctx, o.ctx);
    if (!against)
        return against.error();
    loaded_model& reference = *against;
    const auto bytes = file->bytes();
    constexpr std::size_t whole = std::numeric_limits<std::size_t>::max();
    const std::size_t most = o.chunks == 0 || o.chunks > whole / o.ctx ? whole : o.chunks * o.ctx;
    const std::vector<std::int32_t> tokens =
        m.vocabulary().encode_first({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, false, most);
    progress_line progress("windows");
    std::optional<schedule_source> schedule;
    if (o.precision.prefill != 0 || o.precision.from_file) {
        auto source = source_of(o.precision, m, o.ctx);
        if (!source)
            return source.error();
        // Where all passes are alike, whole windows are one.
        if (o.precision.is_constant())
            loaded->run->precision(source->prefill);
        else
            schedule = std::move(*source);
    }
    const auto e = evaluate(
        *loaded->run, reference.run ? &*reference.run : nullptr, tokens, o.ctx, o.chunks,
        [&](std::size_t done, std::size_t all) { progress(done, all); }, schedule ? &*schedule : nullptr);
    progress.clear();
    if (!e)
        return e.error();
    const double speed = static_cast<double>(e->fed) / e->seconds;
    const std::string weights = weights_name(m, o.weights);
    const std::string kv = o.kv.name();
    const double bits = schedule                   ? e->bits
                        : o.precision.prefill != 0 ? double(o.precision.prefill)
                        : m.precisions()           ? double(m.precisions()->parent)
                                                   : 0.0;
    const auto activations = activation_names[static_cast<std::size_t>(o.activations)];
    if (o.json) {
        json_object out;
        out.put("model", o.model).put("weights", weights).put("activations", activations).put("kv", kv);
        out.put("tokens", e->tokens)
            .put("nll", e->nll)
            .put("nll_standard_error", e->nll_error)
            .put("ppl", std::exp(e->nll));
        out.put("bits_per_weight", m.bits_per_weight())
            .put("kv_bytes_per_token", loaded->run->kv_bytes_per_token());
        if (m.precisions())
            out.put("precision", o.precision.name()).put("average_bits", bits);
        if (is_pruned)
            out.put("prune", o.prune.name()).put("ffn_parameters_left", *left);
        if (o.kv.skip > 0)
            out.put("kv_left_unread", loaded->run->kv_left_unread());
        put_ffn(out, *loaded->run);
        out.put("tokens_per_second", speed);
        if (reference.run)
            out.put("kl_divergence", e->kl)
                .put("kl_standard_error", e->kl_error)
                .put("top1_agreement", e->agreement);
        print("%s\n", out.text().c_str());
        return {};
    }
    print("weights %s (%.3f bits per weight), activations %s, kv %s (%.0f bytes per token)\n",
          weights.c_str(), m.bits_per_weight(), activations.data(), kv.c_str(),
          loaded->run->kv_bytes_per_token());
    if (m.precisions())
        print("precision       %s, %.3f bits on average\n", o.precision.name().c_str(), bits);
    if (is_pruned)
        print("pruned          %s, %.2f %% of the feed-forward weights are left\n", o.prune.name().c_str(),
              100 * *left);
    print("perplexity      %.4f +- %.4f over %zu tokens (nll %.5f nats)\n", std::exp(e->nll),
          std::exp(e->nll) * e->nll_error, e->tokens, e->nll);
    if (reference.run)
        print("KL divergence   %.6f +- %.6f nats\ntop-1 agreement %.2f %%\n", e->kl, e->kl_error,
              100 * e->agreement);
    if (o.kv.skip > 0)
        print("values unread   %.1f %% of coded blocks\n", 100 * loaded->run->kv_left_unread());
    if (const std::string folded = ffn_line(*loaded->run); !folded.empty())
        print("networks        %s\n", folded.c_str());
    print("speed           %.0f tokens/s\n", speed);
    return {};
}

} // namespace lm
