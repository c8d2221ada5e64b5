// Schedules of precision beside their controls.
#include "cli/open_model.hpp"
#include "cli/report.hpp"
#include "gguf/output_file.hpp"
#include "lab/bootstrap.hpp"
#include "lab/commands.hpp"
#include "lab/controls.hpp"
#include "lab/features.hpp"
#include "lab/sparse.hpp"
#include "model/schedule_file.hpp"
#include "train/study_subject.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>

namespace lm::lab {

using crumb::precision_schedule;
using crumb::result;
using crumb::status;

namespace {

/// Whether a name has one of the parts, with | between them, in it.
bool is_wanted(std::string_view name, std::string_view parts) {
    for (bool more = true; more;) {
        const auto end = parts.find('|');
        if (name.find(parts.substr(0, end)) != name.npos)
            return true;
        more = end != parts.npos;
        parts.remove_prefix(more ? end + 1 : parts.size());
    }
    return false;
}

/// Everything that is compared, in the order of the table.
result<std::vector<schedule_source>> sources(const study_subject& s, std::size_t points, std::uint64_t seed) {
    std::vector<schedule_source> out;
    const crumb::precision_range& stored = s.stored;
    const std::size_t length = s.prompts->steps();
    const auto bits = [](int b) { return std::to_string(b); };
    status failed;
    const auto add = [&](std::string name, const result<precision_schedule>& schedule) {
        if (schedule)
            out.push_back(constant_source(std::move(name), *schedule));
        else
            failed = schedule.error();
    };
    const auto add_control = [&](std::string name, int prefill, const result<step_precision>& steps) {
        if (steps)
            out.push_back(
                {std::move(name), prefill, [steps = *steps](const session&, std::size_t) { return steps; }});
        else
            failed = steps.error();
    };
    for (int p = stored.parent; p >= stored.seed; --p)
        add("uniform " + bits(p), precision_schedule::constant(stored, p, p, length));
    for (int high = stored.parent; high > stored.seed; --high)
        for (int low = high - 1; low >= stored.seed; --low) {
            const crumb::schedule_levels l{stored, high, high, low, length};
            const std::string pair = bits(high) + " to " + bits(low);
            for (std::size_t i = 0; i + 1 < points; ++i) {
                const std::size_t step = crumb::grid_step(i, points, length);
                add(pair + (i == 0 ? ", prompt only" : ", first " + std::to_string(step)),
                    precision_schedule::high_then_low(l, step));
            }
            add_control(pair + ", alternating", high, alternating(l));
            constexpr std::string_view thirds[] = {"first", "middle", "last"};
            for (std::size_t i = 0; i < 3; ++i)
                add_control(pair + ", low in the " + std::string(thirds[i]) + " third", high,
                            low_within(l, {length * i / 3, length * (i + 1) / 3}));
            out.push_back({pair + ", random", high,
                           [l, points, seed](const session&, std::size_t number) -> result<step_precision> {
                               auto draw = random_schedules::make(l, points, seed + 7919 * number);
                               if (!draw)
                                   return draw.error();
                               return steps_of(draw->next());
                           }});
            const auto high_always = precision_schedule::constant(stored, high, high, length);
            for (const double threshold : {0.1, 0.3, 0.6}) {
                const auto sure = certainty_scheduler::make(
                    *high_always, {.bits = low, .lower_at = threshold, .raise_at = threshold}, stored);
                if (!sure)
                    return sure.error();
                add_control(pair + ", sure to " + bits(static_cast<int>(100 * threshold)) + " %", high,
                            sure->steps());
            }
        }
    if (!failed)
        return failed;
    auto own = read_schedule(*s.nested.weights);
    if (!own)
        return own.error();
    if (*own) {
        (*own)->name = "the file's (" + (*own)->name + ")";
        out.push_back(std::move(**own));
    }
    return out;
}

/// Dense-and-sparse decompositions (SqueezeLLM): low precision for all weights, and full precision for a few,
/// 16 bits and an index of 16 each, at the average bits of schedules with a third and two thirds of the steps
/// in high precision. Codes are of one precision, or serve all that are stored. Multiplied as floats.
status dense_and_sparse(const schedules_options& o, const study_subject& s,
                        const std::function<status(const study_result&)>& show) {
    const std::size_t length = s.prompts->steps();
    std::optional<decomposer> source;
    const auto measure = [&](const std::vector<decomposed_matrix>& parts, int low, double more,
                             const std::string& name) -> status {
        auto sparse = model::load(o.model, {weight_type::stored, activation_type::f32});
        if (!sparse)
            return sparse.error();
        if (const status done = source->put(parts, low, *sparse); !done)
            return done;
        auto prompts = s.prompts->with(*sparse);
        if (!prompts)
            return prompts.error();
        const auto schedule = precision_schedule::constant(s.stored, low, low, length);
        auto r = prompts->run(constant_source(name, *schedule), study::measure::both, name);
        if (!r)
            return r.error();
        r->bits = low + more;
        return show(*r);
    };
    for (const bool nested : {false, true})
        for (int thirds = 1; thirds <= 2 * (s.stored.parent - s.stored.seed); ++thirds) {
            if (thirds % 3 == 0)
                continue; // as many bits as a uniform precision
            const double more = thirds / 3.0;
            result<std::vector<decomposed_matrix>> parts = std::vector<decomposed_matrix>();
            // Not more than two thirds of what the highest precision has more.
            for (int low = s.stored.parent - (thirds + 1) / 2; low >= s.stored.seed; --low) {
                char name[64];
                std::snprintf(name, sizeof name, "%d bits and %.1f %% sparse%s", low, 100 * more / 32,
                              nested ? ", nested" : "");
                if (!is_wanted(name, o.only))
                    continue;
                if (!source) {
                    auto made = decomposer::make(*s.full.weights, o.calibrate, 64, o.threads);
                    if (!made)
                        return made.error();
                    source.emplace(std::move(*made));
                }
                if (!nested || parts->empty())
                    parts = source->run(nested ? s.stored : crumb::precision_range{low, low}, more / 32);
                if (!parts)
                    return parts.error();
                if (const status done = measure(*parts, low, more, name); !done)
                    return done;
            }
        }
    return {};
}

/// What a learned scheduler can read, and how well it does (PMPD, figure 7).
status compare_features(const schedules_options& o, study_subject& s, stage_progress& progress) {
    const model_shape& d = s.nested.weights->shape();
    const crumb::schedule_levels levels = s.learned_levels(o.study);
    const auto labels = switch_labels(*s.prompts, levels, o.study.points);
    if (!labels)
        return labels.error();
    progress.clear();
    const std::vector<std::size_t> counts = counts_of(*labels, o.study.points);
    print("%zu prompts; the most frequent label is that of %.0f %%\n%-26s %10s %10s %15s\n", labels->size(),
          100.0 * static_cast<double>(*std::max_element(counts.begin(), counts.end())) /
              static_cast<double>(labels->size()),
          "features", "trained", "held out", "most frequent");
    for (const bool activations : {false, true})
        for (std::size_t layer = 0; layer < d.layers; ++layer) {
            const auto features =
                activations ? activation_features(*s.prompts, layer) : cache_features(*s.prompts, layer);
            if (!features)
                return features.error();
            const auto trained = train_on(*features, *labels, d.kv_heads, o.study.points, o.seed);
            if (!trained)
                return trained.error();
            progress.clear();
            print("%-17s layer %2zu %8.0f %% %8.0f %% %13.0f %%\n",
                  activations ? "activations" : "keys and values", layer + 1, 100 * trained->accuracy,
                  100 * trained->held_out_accuracy, 100 * trained->held_out_majority);
            if (const status p = printed(); !p)
                return p;
        }
    return {};
}

status write_csv(const std::string& path, const std::vector<study_result>& results) {
    auto file = output_file::create(path);
    if (!file)
        return file.error();
    file->write("schedule,bits,rouge,kl,position,kl_at\n");
    for (const study_result& r : results)
        for (std::size_t i = 0; i < r.kl_at.size(); ++i)
            file->print("\"%s\",%.4f,%.6f,%.8f,%zu,%.8f\n", r.name.c_str(), r.bits, mean_of(r.rouge),
                        mean_of(r.kl), i, r.kl_at[i]);
    return file->commit();
}

} // namespace

status schedules(const schedules_options& o) {
    if (const status s = check_outputs({o.csv}); !s)
        return s;
    stage_progress progress;
    auto s = study_subject::load(o, o.text, o.study, terminal_events(progress));
    if (!s)
        return s.error();
    if (o.features)
        return compare_features(o, *s, progress);
    const auto all = sources(*s, o.study.points, o.seed);
    if (!all)
        return all.error();
    progress.clear();
    if (!o.json)
        print("%zu prompts of %zu tokens, %zu steps; Rouge-L of full precision %.4f\n"
              "%-34s %6s  %7s  %-20s %9s\n",
              s->prompts->prompts(), o.study.prompt, s->prompts->steps(), mean_of(s->prompts->full_rouge()),
              "schedule", "bits", "Rouge-L", "less high (95 %)", "KL, nats");
    std::vector<study_result> results;
    const auto show = [&](const study_result& now) -> status {
        progress.clear();
        results.push_back(now);
        const interval less = bootstrap(now.rouge, results.front().rouge, o.seed);
        if (o.json) {
            json_object out;
            out.put("schedule", now.name)
                .put("average_bits", now.bits)
                .put("rouge_l", mean_of(now.rouge))
                .put("rouge_l_less_high_low", less.low)
                .put("rouge_l_less_high_high", less.high)
                .put("kl_divergence", mean_of(now.kl));
            print("%s\n", out.text().c_str());
        } else {
            print("%-34s %6.3f  %7.4f  %+.4f to %+.4f   %9.6f\n", now.name.c_str(), now.bits,
                  mean_of(now.rouge), less.low, less.high, mean_of(now.kl));
        }
        return printed();
    };
    for (const schedule_source& source : *all) {
        if (!results.empty() && !is_wanted(source.name, o.only))
            continue;
        const auto r = s->prompts->run(source, study::measure::both, source.name);
        if (!r)
            return status::error(r.error().code(), "%s: %s", source.name.c_str(), r.message());
        if (const status shown = show(*r); !shown)
            return shown;
    }
    if (s->full.weights != nullptr && !o.calibrate.empty())
        if (const status done = dense_and_sparse(o, *s, show); !done)
            return done;
    return o.csv.empty() ? status() : write_csv(o.csv, results);
}

} // namespace lm::lab
