// Finding schedules of precision.
#include "cli/report.hpp"
#include "eval/study.hpp"
#include "gguf/gguf_writer.hpp"
#include "model/kv_file.hpp"
#include "model/schedule_file.hpp"

#include <crumb/offline/schedule/solver.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace lm {

using crumb::errc;
using crumb::precision_schedule;
using crumb::result;
using crumb::status;

namespace {

/// Quality of a schedule as the solver wants it: more is better.
result<double> quality(study& prompts, const precision_schedule& schedule, bool by_divergence) {
    const auto r = prompts.run(constant_source("", schedule),
                               by_divergence ? study::measure::divergence : study::measure::rouge);
    if (!r)
        return r.error();
    return by_divergence ? -mean_of(r->kl) : mean_of(r->rouge);
}

/// Writes the file of a model with another schedule.
template <class Schedule>
status write_with(const std::string& path, const model& m, const Schedule& schedule) {
    gguf_writer writer(3, crumb::alignment);
    writer.copy(m.file(), schedule_prefix);
    write_schedule(writer, m, schedule);
    return writer.write(path);
}

status calibrate_static(const calibrate_options& o, study_subject& s) {
    study& prompts = *s.prompts;
    const std::size_t length = prompts.steps();
    const auto high = precision_schedule::constant(s.stored, s.stored.parent, s.stored.parent, length);
    const auto reference = quality(prompts, *high, o.study.by_divergence);
    if (!reference)
        return reference.error();
    const crumb::quality_target target{*reference, o.study.epsilon};
    stage_progress progress;
    std::size_t spent = 0;
    const auto measured = [&](const precision_schedule& schedule) {
        ++spent;
        progress("schedules measured", spent, spent + 1);
        return quality(prompts, schedule, o.study.by_divergence);
    };
    const auto phases =
        crumb::allocate_phases(s.stored, target, [&](int prefill, int decode) -> result<double> {
            const auto schedule = precision_schedule::constant(s.stored, prefill, decode, length);
            return schedule ? measured(*schedule) : result<double>(schedule.error());
        });
    if (!phases)
        return phases.error();
    auto solver = crumb::schedule_solver::make(
        {.stored = s.stored, .prefill = s.stored.parent, .length = length, .points = o.study.points},
        measured);
    if (!solver)
        return solver.error();
    const auto solved = solver->solve(target);
    progress.clear();
    if (!solved)
        return solved.error();
    if (const status w = write_with(o.out, *s.nested.weights, solved->schedule); !w)
        return w;
    print("%s: static schedule %d/%s, %.3f bits on average over %zu steps\n", o.out.c_str(),
          solved->schedule.prefill(), phases_text(solved->schedule.phases()).c_str(),
          solved->schedule.average_bits(length), length);
    print("quality %.5f, reference %.5f (%s of %zu prompts); %zu of %zu schedules measured\n",
          solved->quality, *reference, o.study.by_divergence ? "-KL" : "Rouge-L", prompts.prompts(),
          solved->evaluations, solved->space);
    print("phases: %d bits for prompts, %d for decoding%s; %zu of %zu pairs measured\n", phases->prefill,
          phases->decode, phases->held ? "" : " (no pair holds the target)", phases->evaluations,
          phases->space);
    return {};
}

status calibrate_learned(const calibrate_options& o, study_subject& s) {
    study& prompts = *s.prompts;
    const model& m = *s.nested.weights;
    const crumb::schedule_levels levels = s.learned_levels(o.study);
    const auto wanted = switch_labels(prompts, levels, o.study.points);
    if (!wanted)
        return wanted.error();
    auto trained =
        train_on(prompts, m.shape().layers - 1, false, *wanted, m.shape().kv_heads, o.study.points, o.seed);
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
    print("accuracy %.0f %% on trained prompts, %.0f %% on held-out ones\n", 100 * schedule.trained.accuracy,
          100 * schedule.trained.held_out_accuracy);
    return {};
}

} // namespace

status calibrate_schedule(const calibrate_options& o) {
    common_options common;
    common.model = o.model;
    common.kv = o.kv;
    common.threads = o.threads;
    auto s = study_subject::load(common, o.text, o.study);
    if (!s)
        return s.error();
    return o.schedule == "static" ? calibrate_static(o, *s) : calibrate_learned(o, *s);
}

} // namespace lm
