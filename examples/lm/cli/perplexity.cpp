#include "cli/commands.hpp"
#include "cli/model_report.hpp"
#include "cli/open_model.hpp"
#include "cli/report.hpp"
#include "eval/evaluate.hpp"
#include "gguf/mapped_file.hpp"
#include "gguf/shown_text.hpp"
#include "model/input_text.hpp"

namespace lm {

crumb::status perplexity(const perplexity_options& o) {
    std::string error;
    const auto file = mapped_file::open(o.text, error);
    if (!file)
        return crumb::status::error(crumb::errc::invalid_argument, "%s", error.c_str());
    // As in generation: whole windows at a time would have the networks as they were before folding.
    common_options options = o;
    options.ffn_by_lists = true;
    // Token by token, the cache is coded as far as it is in generation.
    auto loaded = open_model(options, o.ctx, o.kv.codec.is_uncoded() ? o.ctx : 1);
    if (!loaded)
        return loaded.error();
    const model& m = *loaded->weights;
    loaded->run->count_ffn(true);
    loaded->run->count_planes();
    auto against = open_against(o.against, m, o, o.ctx, o.ctx);
    if (!against)
        return against.error();
    loaded_model& reference = *against;
    const std::vector<std::int32_t> tokens = read_windows(*file, m, o.ctx, o.chunks);
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
        return crumb::status::error(e.error().code(), "--text %s, --ctx %zu: %s", shown_path(o.text).c_str(),
                                    o.ctx, e.message());
    const double speed = static_cast<double>(e->fed) / e->seconds;
    const std::string weights = weights_name(m, o.weights);
    const std::string kv = o.kv.name();
    const double bits = schedule                   ? e->bits
                        : o.precision.prefill != 0 ? double(o.precision.prefill)
                        : m.precisions()           ? double(m.precisions()->parent)
                                                   : 0.0;
    const kv_plane_counts planes = loaded->run->planes();
    const double heads = static_cast<double>(planes.heads);
    const auto activations = activation_names[static_cast<std::size_t>(o.activations)];
    if (o.json) {
        json_object out;
        out.put("model", o.model).put("weights", weights).put("activations", activations).put("kv", kv);
        put_likelihood(out, *e);
        out.put("bits_per_weight", m.bits_per_weight())
            .put("kv_bytes_per_token", loaded->run->kv_bytes_per_token());
        if (m.precisions())
            out.put("precision", o.precision.name()).put("average_bits", bits);
        if (o.kv.skip > 0)
            out.put("kv_left_unread", loaded->run->kv_left_unread());
        if (planes.heads != 0)
            out.put("kv_second_scores", planes.scores / heads)
                .put("kv_second_weights", planes.weights / heads);
        put_ffn(out, *loaded->run);
        out.put("tokens_per_second", speed);
        if (reference.run)
            put_divergence(out, *e);
        print("%s\n", out.text().c_str());
        return {};
    }
    print("weights %s (%.3f bits per weight), activations %s, kv %s (%.0f bytes per token)\n",
          weights.c_str(), m.bits_per_weight(), activations.data(), kv.c_str(),
          loaded->run->kv_bytes_per_token());
    if (m.precisions())
        print("precision       %s, %.3f bits on average\n", o.precision.name().c_str(), bits);
    print_evaluation(*e, reference.run.has_value());
    if (o.kv.skip > 0)
        print("values unread   %.1f %% of coded blocks\n", 100 * loaded->run->kv_left_unread());
    if (planes.heads != 0)
        print("second planes   %.1f %% of scores, %.1f %% of weights\n", 100 * planes.scores / heads,
              100 * planes.weights / heads);
    if (const std::string folded = ffn_line(*loaded->run); !folded.empty())
        print("networks        %s\n", folded.c_str());
    print("speed           %.0f tokens/s\n", speed);
    return {};
}

} // namespace lm
