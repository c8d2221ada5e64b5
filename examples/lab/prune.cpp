// How well a model predicts a text when weights of its feed-forward networks are 0.
#include "cli/model_report.hpp"
#include "cli/open_model.hpp"
#include "cli/report.hpp"
#include "gguf/mapped_file.hpp"
#include "lab/commands.hpp"
#include "model/input_text.hpp"
#include "train/calibration.hpp"

#include <functional>

namespace lm::lab {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

/// The share of feed-forward weights that are left.
result<double> prune_model(model& m, const prune_options& o) {
    if (!o.how.needs_inputs())
        return prune(m, o.how, importances());
    const std::size_t window = std::min<std::size_t>(m.shape().context, 512);
    auto s = session::make(m, team(o.threads), kv_type::f16, window, window);
    if (!s)
        return s.error();
    stage_progress progress;
    const stage_function stages = std::ref(progress);
    const auto text = calibration_text(o.calibrate, m, *s, window, 64, 1, stages);
    if (!text)
        return text.error();
    const auto squares = calibration(m, *s, *text, window).mean_squares(one_stage(stages, "calibration"));
    if (!squares)
        return squares.error();
    return prune(m, o.how, *squares);
}

} // namespace

status prune(const prune_options& o) {
    if (o.how.needs_inputs() && o.calibrate.empty())
        return status::error(errc::invalid_argument, "--by %s needs --calibrate to measure inputs on",
                             o.how.name().c_str());
    std::string error;
    const auto file = mapped_file::open(o.text, error);
    if (!file)
        return status::error(errc::invalid_argument, "%s", error.c_str());
    load_options floats;
    floats.model = o.model;
    floats.weights = weight_type::f32;
    floats.activations = activation_type::f32;
    floats.threads = o.threads;
    auto loaded = open_model(floats, o.ctx, o.ctx);
    if (!loaded)
        return loaded.error();
    model& m = *loaded->weights;
    const auto left = prune_model(m, o);
    if (!left)
        return left.error();
    auto against = open_against(o.against, m, floats, o.ctx, o.ctx);
    if (!against)
        return against.error();
    auto& reference = against->run;
    progress_line progress("windows");
    const auto e =
        evaluate(*loaded->run, reference ? &*reference : nullptr, read_windows(*file, m, o.ctx, o.chunks),
                 o.ctx, o.chunks, [&](std::size_t done, std::size_t all) { progress(done, all); });
    progress.clear();
    if (!e)
        return e.error();
    if (o.json) {
        json_object out;
        out.put("model", o.model).put("prune", o.how.name()).put("ffn_parameters_left", *left);
        put_likelihood(out, *e);
        if (reference)
            put_divergence(out, *e);
        print("%s\n", out.text().c_str());
        return {};
    }
    print("pruned          %s, %.2f %% of the feed-forward weights are left\n", o.how.name().c_str(),
          100 * *left);
    print_evaluation(*e, reference.has_value());
    return {};
}

} // namespace lm::lab
