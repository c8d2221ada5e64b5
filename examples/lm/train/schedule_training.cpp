#include "train/schedule_training.hpp"

#include <crumb/offline/schedule/training.hpp>

namespace lm {

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

void append(const crumb::matrix_view<const float>& x, std::vector<float>& to) {
    for (std::size_t r = 0; r < x.rows; ++r)
        to.insert(to.end(), x.row(r), x.row(r) + x.cols);
}

} // namespace

result<static_schedule> find_static_schedule(study& prompts, const crumb::precision_range& stored,
                                             const schedule_options& how, const stage_function& progress) {
    const std::size_t length = prompts.steps();
    const auto high = precision_schedule::constant(stored, stored.parent, stored.parent, length);
    const auto reference = quality(prompts, *high, how.by_divergence);
    if (!reference)
        return reference.error();
    const crumb::quality_target target{*reference, how.epsilon};
    std::size_t spent = 0;
    const auto measured = [&](const precision_schedule& schedule) {
        ++spent;
        if (progress)
            progress("schedules measured", spent, spent + 1);
        return quality(prompts, schedule, how.by_divergence);
    };
    const auto phases = crumb::allocate_phases(
        stored, target,
        [&](int prefill, int decode) -> result<double> {
            const auto schedule = precision_schedule::constant(stored, prefill, decode, length);
            return schedule ? measured(*schedule) : result<double>(schedule.error());
        },
        how.monotone);
    if (!phases)
        return phases.error();
    std::vector<int> precisions;
    for (int bits = phases->prefill; bits >= stored.seed; --bits)
        precisions.push_back(bits);
    auto solver = crumb::schedule_solver::make({.stored = stored,
                                                .precisions = std::move(precisions),
                                                .prefill = phases->prefill,
                                                .length = length,
                                                .points = how.points},
                                               measured);
    if (!solver)
        return solver.error();
    const auto solved = solver->solve(target, how.monotone);
    if (!solved)
        return solved.error();
    return static_schedule{*solved, *phases, *reference};
}

std::vector<std::size_t> counts_of(const std::vector<std::size_t>& labels, std::size_t points) {
    std::vector<std::size_t> counts(points);
    for (const std::size_t label : labels)
        ++counts[label];
    return counts;
}

result<std::vector<std::size_t>> switch_labels(study& prompts, const crumb::schedule_levels& levels,
                                               std::size_t points) {
    std::vector<std::vector<double>> rouge;
    for (std::size_t i = 0; i < points; ++i) {
        const auto schedule =
            crumb::precision_schedule::high_then_low(levels, crumb::grid_step(i, points, levels.length));
        if (!schedule)
            return schedule.error();
        const auto r = prompts.run(constant_source("", *schedule), study::measure::rouge,
                                   "point " + std::to_string(i + 1) + " of " + std::to_string(points));
        if (!r)
            return r.error();
        rouge.push_back(r->rouge);
    }
    std::vector<std::size_t> out;
    for (std::size_t p = 0; p < prompts.prompts(); ++p) {
        std::vector<double> scores;
        for (const auto& each : rouge)
            scores.push_back(each[p]);
        const auto label = crumb::switch_label(scores, prompts.full_rouge()[p]);
        if (!label)
            return label.error();
        out.push_back(*label);
    }
    return out;
}

void prompt_features::add(const crumb::matrix_view<const float>& k) {
    append(k, keys);
    rows += k.rows;
    width = k.cols;
}

void prompt_features::add(const crumb::matrix_view<const float>& k,
                          const crumb::matrix_view<const float>& v) {
    add(k);
    append(v, values);
}

result<std::vector<prompt_features>> cache_features(study& prompts, std::size_t layer) {
    std::vector<prompt_features> out(prompts.prompts());
    const status done = prompts.for_each_prompt(
        "features", [&](session& s, std::span<const std::int32_t> prompt, std::size_t i) -> status {
            s.observe_cache([&](const session::attention_inputs& in) {
                if (in.layer == layer)
                    out[i].add(in.keys, in.values);
            });
            s.reset();
            s.precision(s.of().precisions()->parent);
            const auto fed = s.feed(prompt, 0);
            s.observe_cache({});
            return fed.error();
        });
    if (!done)
        return done;
    return out;
}

result<crumb::trained_schedule> train_on(const std::vector<prompt_features>& features,
                                         const std::vector<std::size_t>& labels, std::size_t heads,
                                         std::size_t points, std::uint64_t seed) {
    std::vector<crumb::schedule_sample> samples;
    for (std::size_t i = 0; i < labels.size(); ++i) {
        const prompt_features& f = features[i];
        const auto keys = crumb::matrix<const float>(f.keys.data(), f.rows, f.width);
        samples.push_back(
            {keys, f.values.empty() ? keys : crumb::matrix<const float>(f.values.data(), f.rows, f.width),
             labels[i]});
    }
    const std::size_t width = samples.empty() ? 0 : samples[0].keys.cols;
    return crumb::train_schedule(samples, heads, width / heads, points,
                                 {.l2 = 1e-3, .held_out = 0.2, .seed = seed});
}

} // namespace lm
