#include "train/level_choice.hpp"

#include "train/weight_samples.hpp"

#include <crumb/offline/nested/training.hpp>

#include <algorithm>
#include <utility>

namespace lm {

using crumb::status;

status level_choice::make(calibration& calibrated, std::span<const std::int32_t> text, std::size_t window) {
    const status s = o_.chooses_formats() ? choose(calibrated, text, window) : train(calibrated);
    is_made_ = s.ok();
    return s;
}

void level_choice::take(const trained_levels& made) {
    nested_ = made.nested;
    plan_ = made.formats;
    set_codebooks(made.codebooks);
    is_made_ = true;
}

weight_type level_choice::type_of(std::string_view tensor) const {
    if (!o_.chooses_formats())
        return find_role(tensor) ? o_.weights : o_.vocabulary;
    const auto found = plan_.find(tensor);
    return found == plan_.end() ? weight_type::stored : found->second;
}

/// The formats that need codebooks.
std::set<weight_type> types_to_train(const quantization& how) {
    std::set<weight_type> types;
    const auto add = [&](weight_type type) {
        with_leveled_format(type, [&]<class F>(std::type_identity<F>) {
            if (crumb::needs_codebooks<F>)
                types.insert(type);
        });
    };
    if (how.chooses_formats()) {
        std::for_each(std::begin(planned_types), std::end(planned_types), add);
    } else {
        add(how.weights);
        add(how.vocabulary);
    }
    return types;
}

std::map<weight_type, std::vector<std::int8_t>> level_choice::codebooks() const {
    std::map<weight_type, std::vector<std::int8_t>> out;
    for (const weight_type type : types_to_train(o_))
        if (const auto entries = tensors_.codebooks(type); !entries.empty())
            out[type].assign(entries.begin(), entries.end());
    return out;
}

void level_choice::set_codebooks(const std::map<weight_type, std::vector<std::int8_t>>& sets) {
    for (const auto& [type, entries] : sets)
        tensors_.set_codebooks(type, entries);
}

/// Of a stage that is all work of one kind.
progress_function level_choice::stage(const char* name, work_kind kind) {
    return [shown = one_stage(progress_, name), measured = meter_.parts_of(kind)](std::size_t done,
                                                                                  std::size_t all) {
        measured(done, all);
        if (shown)
            shown(done, all);
    };
}

/// Trains the levels of the formats that need such: even ones need no importance either, which costs a
/// pass over the text.
status level_choice::train(calibration& calibrated) {
    nested_ = crumb::nested_levels::uniform(o_.nested.seed, o_.nested.parent);
    const std::set<weight_type> types = types_to_train(o_);
    if (types.empty() && !trains_nested())
        return {};
    const auto importance = calibrated.mean_squares(stage("calibration", work_kind::importance));
    if (!importance)
        return importance.error();
    const progress_function trained_part = one_stage(progress_, "codebooks");
    const auto samples = sample_matrices(m_.file(), *importance, m_.extras());
    if (!samples)
        return samples.error();
    if (trains_nested()) {
        const auto trained = crumb::train_nested(
            *samples, {.seed = o_.nested.seed, .parent = o_.nested.parent, .progress = trained_part});
        if (!trained)
            return trained.error();
        nested_ = trained->levels;
    }
    for (const weight_type type : types) {
        auto trained = train_codebooks(*samples, type, trained_part);
        if (!trained)
            return trained.error();
        tensors_.set_codebooks(type, std::move(*trained));
        meter_.lap(work_kind::codebooks, 0);
    }
    meter_.finish(work_kind::codebooks);
    return {};
}

/// Chooses formats by what they cost, which may have been measured before.
status level_choice::choose(calibration& calibrated, std::span<const std::int32_t> text, std::size_t window) {
    auto kept = kept_curves::open(o_, m_, text, unmeasured_formats(m_, tensors_));
    if (!kept)
        return kept.error();
    measured_formats measured;
    if (kept->found()) {
        measured = *kept->found();
        set_codebooks(measured.codebooks);
        for (const work_kind kind : {work_kind::importance, work_kind::codebooks})
            meter_.finish(kind);
    } else {
        if (const status s = train(calibrated); !s)
            return s;
        // Costs of errors, the first stage, take most of the time.
        const progress_function part = meter_.parts_of(work_kind::formats);
        bool is_first = true;
        const stage_function measured_part = [&](const char* name, std::size_t done, std::size_t all) {
            part(is_first ? 6 * done : 6 * all + done, 7 * all);
            is_first = is_first && done < all;
            if (progress_)
                progress_(name, done, all);
        };
        auto curves = measure_formats(o_, m_, s_, tensors_, text, window, measured_part);
        if (!curves)
            return curves.error();
        measured = {codebooks(), std::move(*curves)};
        if (const status s = kept->keep(measured); !s)
            return s;
    }
    auto plan = plan_formats(o_, m_, measured.curves);
    if (!plan)
        return plan.error();
    plan_ = std::move(*plan);
    meter_.finish(work_kind::formats);
    return {};
}

} // namespace lm
