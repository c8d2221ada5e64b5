#include "cli/commands.hpp"
#include "cli/open_model.hpp"
#include "cli/report.hpp"
#include "eval/entropy.hpp"
#include "gguf/gguf_writer.hpp"
#include "gguf/output_file.hpp"
#include "model/ffn_file.hpp"
#include "model/kv_file.hpp"
#include "train/ffn_training.hpp"
#include "train/kv_training.hpp"
#include "train/study_subject.hpp"

#include <functional>

namespace lm {

using crumb::errc;
using crumb::status;

namespace {

status calibrate_kv(const calibrate_options& o) {
    if (!o.kv.codec.has_codebooks())
        return status::error(errc::invalid_argument, "--kv %s has no codebooks to calibrate",
                             o.kv.name().c_str());
    load_options full;
    full.model = o.model;
    full.weights = weight_type::stored;
    full.activations = activation_type::f32;
    full.threads = o.threads;
    auto loaded = open_model(full, 0, 512);
    if (!loaded)
        return loaded.error();
    const model& m = *loaded->weights;
    kv_training how;
    how.text = o.text;
    how.chunks = o.chunks;
    how.sinks = o.kv.sinks;
    how.sharing = o.sharing;
    how.errors = o.errors;
    how.seed = o.seed;
    how.threads = loaded->run->threads().size();
    stage_progress progress;
    const auto samples = collect_samples(m, how, std::ref(progress));
    if (!samples)
        return samples.error();
    const auto books = train_codebooks(*samples, o.kv.codec, how, std::ref(progress));
    progress.clear();
    if (!books)
        return books.error();
    if (!o.entropy.empty())
        if (const status s = write_entropies(o.entropy, *samples, *books); !s)
            return s;
    gguf_writer writer(3, crumb::alignment);
    writer.copy(m.file(), codebooks_prefix(o.kv.codec));
    write_codebooks(writer, m, *books);
    if (const status s = writer.write(o.out); !s)
        return s;
    const model_shape& d = m.shape();
    print("%s: codebooks of %s for %zu layers of %zu heads, %.2f MB, identity %016llx\n", o.out.c_str(),
          codec_name(o.kv.codec).c_str(), d.layers, d.kv_heads, static_cast<double>(books->bytes()) / 1e6,
          static_cast<unsigned long long>(books->identity()));
    return {};
}

status calibrate_ffn(const calibrate_options& o) {
    load_options full;
    full.model = o.model;
    full.weights = weight_type::f32;
    full.activations = activation_type::f32;
    full.threads = 1; // what it reads is worked on by all while it waits
    auto loaded = open_model(full, 0, 512);
    if (!loaded)
        return loaded.error();
    const model& m = *loaded->weights;
    ffn_training how;
    how.recipe = *o.ffn;
    how.text = o.text;
    how.chunks = o.chunks;
    how.seed = o.seed;
    how.threads = o.threads;
    how.csv = o.distributions;
    stage_progress progress;
    const auto ffns = fold_ffns(m, *loaded->run, how, std::ref(progress));
    progress.clear();
    if (!ffns)
        return ffns.error();
    gguf_writer writer(3, crumb::alignment);
    writer.copy(m.file(), ffn_prefix);
    write_ffns(writer, m, *ffns);
    if (const status s = writer.write(o.out); !s)
        return s;
    double fixed = 0;
    for (const stored_ffn& f : ffns->layers)
        fixed += double{f.fixed} / static_cast<double>(ffns->layers.size());
    print("%s: %zu folded networks, %s\n", o.out.c_str(), ffns->layers.size(), how.recipe.name().c_str());
    print("%.2f %% of the neurons fixed on the calibration text, %.3f of the parameters read (as halves)\n",
          100 * fixed, how.recipe.left(m.shape().width, m.shape().hidden, fixed));
    return {};
}

/// Writes the file of a model with another schedule.
template <class Schedule>
status write_with(const std::string& path, const model& m, const Schedule& schedule) {
    gguf_writer writer(3, crumb::alignment);
    writer.copy(m.file(), schedule_prefix);
    write_schedule(writer, m, schedule);
    return writer.write(path);
}

status calibrate_static(const calibrate_options& o, study_subject& s, stage_progress& progress) {
    const auto solved = find_static_schedule(*s.prompts, s.stored, o.study, std::ref(progress));
    progress.clear();
    if (!solved)
        return solved.error();
    const crumb::solved_schedule& found = solved->found;
    const crumb::phase_allocation& phases = solved->phases;
    if (const status w = write_with(o.out, *s.nested.weights, found.schedule); !w)
        return w;
    print("%s: static schedule %d/%s, %.3f bits on average over %zu steps\n", o.out.c_str(),
          found.schedule.prefill(), phases_text(found.schedule.phases()).c_str(),
          found.schedule.average_bits(found.schedule.length()), found.schedule.length());
    print("quality %.5f, reference %.5f (%s of %zu prompts); %zu of %zu schedules measured\n", found.quality,
          solved->reference, o.study.by_divergence ? "-KL" : "Rouge-L", s.prompts->prompts(),
          found.evaluations, found.space);
    print("phases: %d bits for prompts, %d for decoding%s; %zu of %zu pairs measured\n", phases.prefill,
          phases.decode, phases.held ? "" : " (no pair holds the target)", phases.evaluations, phases.space);
    return {};
}

status calibrate_learned(const calibrate_options& o, study_subject& s, stage_progress& progress) {
    study& prompts = *s.prompts;
    const model& m = *s.nested.weights;
    const crumb::schedule_levels levels = s.learned_levels(o.study);
    const auto wanted = switch_labels(prompts, levels, o.study.points);
    if (!wanted)
        return wanted.error();
    const auto features = cache_features(prompts, m.shape().layers - 1);
    progress.clear();
    if (!features)
        return features.error();
    auto trained = train_on(*features, *wanted, m.shape().kv_heads, o.study.points, o.seed);
    if (!trained)
        return trained.error();
    const stored_schedule schedule{levels, std::move(*trained)};
    if (const status w = write_with(o.out, m, schedule); !w)
        return w;
    const std::vector<std::size_t> counts = counts_of(*wanted, o.study.points);
    print("%s: learned schedule of %zu points from %d to %d bits, trained on %zu prompts\n", o.out.c_str(),
          o.study.points, levels.high, levels.low, wanted->size());
    print("labels:");
    for (std::size_t i = 0; i < counts.size(); ++i)
        print(" %zu x step %zu%s", counts[i], crumb::grid_step(i, o.study.points, levels.length),
              i + 1 < counts.size() ? "," : "\n");
    print("accuracy %.0f %% on trained prompts, %.0f %% on held-out ones, where the most frequent label is "
          "right in %.0f %%\n",
          100 * schedule.trained.accuracy, 100 * schedule.trained.held_out_accuracy,
          100 * schedule.trained.held_out_majority);
    if (schedule.trained.held_out_accuracy <= schedule.trained.held_out_majority)
        print("no more often than the most frequent label: a static schedule serves as well\n");
    return {};
}

status calibrate_schedule(const calibrate_options& o) {
    load_options run;
    run.model = o.model;
    run.kv = o.kv;
    run.threads = o.threads;
    stage_progress progress;
    auto s = study_subject::load(run, o.text, o.study, terminal_events(progress));
    if (!s)
        return s.error();
    return o.schedule == "static" ? calibrate_static(o, *s, progress) : calibrate_learned(o, *s, progress);
}

} // namespace

status calibrate(const calibrate_options& o) {
    if (const status s = check_outputs({o.out, o.entropy, o.distributions}); !s)
        return s;
    if (!o.schedule.empty())
        return calibrate_schedule(o);
    return o.ffn ? calibrate_ffn(o) : calibrate_kv(o);
}

} // namespace lm
