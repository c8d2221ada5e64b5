#include "train/quantizer.hpp"

#include "model/input_text.hpp"
#include "train/group_targets.hpp"
#include "train/input_factors.hpp"
#include "train/kept_work.hpp"
#include "train/level_choice.hpp"
#include "train/matrix_quantizer.hpp"
#include "train/quantizing_costs.hpp"
#include "train/residual_streams.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lm {

using crumb::result;
using crumb::status;

namespace {

/// Windows of text for that matrix, at most: a few thousand tokens are many for one.
constexpr std::size_t vocabulary_windows = 16;

/// Everything that quantizing one model needs.
class converter {
  public:
    converter(const quantization& how, model& m, session& s, const stage_function& progress,
              work_meter& meter)
        : o_(how), m_(m), s_(s), progress_(progress), meter_(meter), tensors_(m),
          quantizer_(s.threads(), tensors_), levels_(how, m, s, tensors_, progress, meter) {}

    /// Puts keys and tensors into `writer`, which refers to this object.
    status run(gguf_writer& writer) {
        for (const gguf_tensor& t : m_.file().tensors())
            if (const auto packed = find_packed(t); packed && packed->type == weight_type::nested)
                return status::error(crumb::errc::unsupported,
                                     "the weights are nested, with corrections that no other format keeps: "
                                     "quantize the model that they were made from");
        status s = o_.chooses_formats() || o_.is_nested() || is_leveled(o_.weights) ? calibrate() : round();
        if (s && !is_calibrated_)
            s = convert_vocabulary(nullptr);
        if (!s)
            return s;
        const status collected = tensors_.collect(writer);
        // These options never make a file: nothing to go on with.
        if (!collected && !o_.partial.empty())
            if (const status removed = partial_file::remove(o_.partial); !removed)
                return removed;
        return collected;
    }
    std::vector<quantized_matrix> matrices() const { return tensors_.matrices(); }

  private:
    bool goes_towards() const noexcept { return o_.towards.has_value(); }

    /// Whether there is still something to be made of a matrix.
    bool is_pending(const named_matrix& each) const {
        const bool is_unknown = o_.chooses_formats() && !levels_.is_made();
        return (is_unknown || levels_.type_of(each.name) != weight_type::stored) &&
               tensors_.find(each.name) == nullptr;
    }
    bool is_any_pending(std::span<const named_matrix> matrices) const {
        return std::any_of(matrices.begin(), matrices.end(),
                           [&](const named_matrix& each) { return is_pending(each); });
    }

    /// What is left to do with a text of so many tokens.
    void plan_work(std::size_t tokens) {
        costs_.emplace(m_, o_, tokens);
        work_costs all = levels_.is_made() ? work_costs{} : costs_->preparation(levels_.to_train());
        const auto add = [&](work_kind kind, double cost) { all[static_cast<std::size_t>(kind)] += cost; };
        const auto matrices = m_.matrices();
        double streams = 0;
        for (std::size_t i = 0; i < matrices.size();) {
            const auto group = same_inputs(std::span(matrices).subspan(i));
            i += group.size();
            streams += costs_->streams(group[0].role);
            if (!is_any_pending(group))
                continue;
            add(work_kind::factors, costs_->factors(group[0].role));
            if (goes_towards()) {
                add(work_kind::streams, std::exchange(streams, 0.0));
                add(work_kind::sums, costs_->sums(group[0].role));
            }
            for (const named_matrix& each : group)
                if (is_pending(each))
                    add(work_kind::weights, costs_->weights(each.m->n(), each.m->k(), goes_towards()));
        }
        if (!goes_towards() && is_any_pending(matrices))
            add(work_kind::streams, costs_->pass(static_cast<double>(tokens)));
        if (o_.chooses_formats() ||
            (o_.vocabulary != weight_type::stored && o_.vocabulary != weight_type::q8_0))
            add(work_kind::vocabulary, costs_->vocabulary());
        meter_.plan(all);
    }

    status calibrate() {
        // Before there is work to keep.
        if (o_.chooses_formats())
            if (const status s = check_budget(o_, m_, unmeasured_formats(m_, tensors_)); !s)
                return s;
        const std::size_t window = std::min<std::size_t>(m_.shape().context, 512);
        plan_work(o_.chunks * window);
        const auto text = read_text(window);
        if (!text)
            return text.error();
        meter_.finish(work_kind::text);
        calibration calibrated(m_, s_, *text, window);
        if (kept_.levels())
            levels_.take(*kept_.levels());
        plan_work(text->size());
        if (!levels_.is_made()) {
            if (const status s = levels_.make(calibrated, *text, window); !s)
                return s;
            if (const status s = kept_.keep(levels_.trained()); !s)
                return s;
            plan_work(text->size());
        }
        if (goes_towards()) {
            is_calibrated_ = true;
            if (const status s = convert_vocabulary(&calibrated); !s)
                return s;
            calibrated.forget();
            return convert_towards(*text, window);
        }
        const std::size_t layers = m_.layers().size();
        for (std::size_t layer = 0; layer < layers; ++layer) {
            if (!is_any_pending(of_layers(m_.matrices(), {layer, layer + 1})))
                continue;
            const double pass = costs_->pass(static_cast<double>(text->size())) /
                                static_cast<double>(calibrated.windows() * layers);
            const auto moments = calibrated.moments(
                {layer, layer + 1},
                [&, shown = one_stage(progress_, "inputs of layer " + std::to_string(layer + 1))](
                    std::size_t done, std::size_t all) {
                    meter_.lap(work_kind::streams, pass);
                    if (shown)
                        shown(done, all);
                });
            if (!moments)
                return moments.error();
            if (const status s = convert(layer, *moments); !s)
                return s;
        }
        return {};
    }

    /// Whether so many tokens show what the widest matrix reads.
    status suffices(std::size_t tokens) const {
        const std::size_t widest = m_.shape().widest_input();
        if (o_.calibrate.empty() || tokens >= widest)
            return {};
        return status::error(
            crumb::errc::invalid_argument,
            "%zu tokens to calibrate on: the widest matrix reads %zu numbers, so many tokens are "
            "needed at least",
            tokens, widest);
    }
    /// What is calibrated on, which opens the partial file: not before it is known to suffice.
    result<std::vector<std::int32_t>> read_text(std::size_t window) {
        const auto make = [&] {
            auto text = calibration_text(o_.calibrate, m_, s_, window, o_.chunks, o_.seed,
                                         [&](const char* name, std::size_t done, std::size_t all) {
                                             meter_.parts_of(work_kind::text)(done, all);
                                             if (progress_)
                                                 progress_(name, done, all);
                                         });
            const status s = text ? suffices(text->size()) : status();
            return s ? std::move(text) : result<std::vector<std::int32_t>>(s);
        };
        const auto open = [&](std::span<const std::int32_t> text) {
            auto kept = kept_work::open(o_, m_, text, tensors_);
            if (kept)
                kept_ = std::move(*kept);
            return kept.error();
        };
        if (o_.calibrate != "self") {
            auto text = make();
            const status s = text ? open(*text) : status();
            return s ? std::move(text) : result<std::vector<std::int32_t>>(s);
        }
        // The model writes for a long time.
        if (const status s = open({}); !s)
            return s;
        if (kept_.text())
            return *kept_.text();
        const auto all = m_.matrices();
        if (const status s = m_.bring(all); !s)
            return s;
        auto text = make();
        m_.leave(all);
        const status s = text ? kept_.keep(*text) : status();
        return s ? std::move(text) : result<std::vector<std::int32_t>>(s);
    }

    /// All matrices to a format that rounds by itself, which needs no text.
    status round() {
        const progress_function progress = one_stage(progress_, "matrices");
        const auto matrices = m_.matrices();
        for (const named_matrix& each : matrices) {
            const auto floats = to_floats(**m_.file().get_tensor(each.name), m_.extras());
            if (!floats)
                return floats.error();
            const auto w = crumb::matrix<const float>(floats->data(), each.m->n(), each.m->k());
            status s = status::error(crumb::errc::unsupported, "%s is not made of other weights",
                                     name_of(o_.weights).data());
            with_format(o_.weights, [&]<class F>(std::type_identity<F>) {
                if constexpr (crumb::rounding_format<F>)
                    s = quantizer_.round<F>(each.name, w);
            });
            if (!s)
                return status::error(s.code(), "tensor %s: %s", each.name.c_str(), s.message());
            if (progress)
                progress(tensors_.size(), matrices.size());
        }
        meter_.finish(work_kind::weights);
        return {};
    }
    status convert(std::size_t layer, const std::vector<crumb::second_moments<double>>& moments) {
        const progress_function progress = one_stage(progress_, "matrices");
        const auto matrices = m_.matrices();
        std::optional<crumb::error_feedback> flat;
        std::optional<crumb::feedback_system> system;
        std::size_t input = ~std::size_t{0};
        std::vector<float> mean;
        for (const named_matrix& each : matrices) {
            if (each.role.layer != layer || !is_pending(each))
                continue;
            if (each.role.input() != input) {
                input = each.role.input();
                const auto& inputs = moments[each.role.reads];
                mean = inputs.mean();
                const auto h = o_.is_nested() ? inputs.centered() : inputs.matrix();
                if (const status s =
                        o_.is_nested()
                            ? assign(system, crumb::feedback_system::make(view(h), nested_damping))
                            : assign(flat, crumb::error_feedback::make(view(h), {.sweeps = o_.sweeps}));
                    !s)
                    return s;
                meter_.lap(work_kind::factors, costs_->factors(each.role));
            }
            const auto floats = to_floats(**m_.file().get_tensor(each.name), m_.extras());
            if (!floats)
                return floats.error();
            const auto w = crumb::matrix<const float>(floats->data(), each.m->n(), each.m->k());
            status s = o_.is_nested()
                           ? quantizer_.convert(each.name, levels_.nested(), w,
                                                crumb::nested_feedback(*system, {.sweeps = o_.sweeps}), mean)
                           : quantizer_.convert(each.name, levels_.type_of(each.name), w, *flat);
            if (!s)
                return status::error(s.code(), "tensor %s: %s", each.name.c_str(), s.message());
            if (s = kept_.keep(each.name); !s)
                return s;
            meter_.lap(work_kind::weights, costs_->weights(w.rows, w.cols, false));
            if (progress)
                progress(tensors_.size(), matrices.size());
        }
        return {};
    }
    /// Layer after layer on what the matrices read in the model that is quantized so far.
    status convert_towards(std::span<const std::int32_t> text, std::size_t window) {
        const auto embedding = tensors_.rows("token_embd.weight");
        if (!embedding)
            return embedding.error();
        const auto& levels = levels_.nested();
        const std::size_t count =
            o_.is_nested() ? static_cast<std::size_t>(levels.parent - levels.seed + 1) : 1;
        auto streams = residual_streams::make(m_, s_, text, window, *embedding, count);
        if (!streams)
            return streams.error();
        const progress_function progress = one_stage(progress_, "matrices");
        const auto matrices = m_.matrices();
        std::span<const named_matrix> before;
        for (std::size_t i = 0; i < matrices.size() && is_any_pending(std::span(matrices).subspan(i));) {
            const auto group = same_inputs(std::span(matrices).subspan(i));
            const matrix_role role = group[0].role;
            const bool is_done = !is_any_pending(group);
            if (const status brought = m_.bring(group); !brought)
                return brought;
            const auto timed = [&](work_kind kind, double share) {
                const double all = kind == work_kind::sums ? costs_->sums(role) : costs_->streams(role);
                meter_.lap(kind, share * all / static_cast<double>(count));
            };
            group_targets targets(group.size());
            std::optional<result<stream_inputs>> inputs;
            status s;
            for (std::size_t of = 0; of < count && s; ++of) {
                s = replace(before, of);
                if (s && is_done)
                    s = streams->pass(role.layer, role.reads, of, timed);
                else if (s)
                    s = inputs.emplace(streams->inputs(role.layer, role.reads, of, timed)).error();
                if (s && !is_done && o_.is_nested()) {
                    s = add_targets(group, levels.seed + static_cast<int>(of), **inputs, targets);
                    inputs.reset();
                }
            }
            // The quantized models have gone through these.
            m_.leave(std::exchange(before, group));
            if (s && !is_done)
                s = o_.is_nested() ? convert_group(group, targets) : convert_group(group, **inputs);
            if (!s)
                return s;
            i += group.size();
            if (progress)
                progress(i, matrices.size());
        }
        return replace(before, count - 1);
    }
    /// What reads the same numbers. The model's own weights are shifted where they are: all of the text has
    /// gone through them, and they become the quantized ones.
    status convert_group(std::span<const named_matrix> group, stream_inputs& inputs) {
        const auto factors = input_factors::make(s_.threads(), view(inputs.h), {.sweeps = o_.sweeps});
        if (!factors)
            return factors.error();
        inputs.h.resize(0, 0);
        meter_.lap(work_kind::factors, costs_->factors(group[0].role));
        for (const named_matrix& each : group) {
            if (!is_pending(each))
                continue;
            const auto w = own_weights(each);
            status s = w ? shift(factors->shifted, inputs, *w) : w.error();
            if (s)
                s = quantizer_.convert(each.name, levels_.type_of(each.name), *w, factors->feedback);
            if (!s)
                return status::error(s.code(), "tensor %s: %s", each.name.c_str(), s.message());
            if (s = kept_.keep(each.name); !s)
                return s;
            meter_.lap(work_kind::weights, costs_->weights(w->rows, w->cols, true));
        }
        return {};
    }
    /// Brings weights towards the full model with all threads.
    status shift(const crumb::shifted_weights& by, const stream_inputs& inputs,
                 const crumb::matrix_view<float>& w) {
        return quantizer_.in_parts(w.rows, [&](crumb::range rows) {
            return by.shift(w, view(inputs.cross), view(inputs.behind), *o_.towards, rows);
        });
    }
    /// Of sums over one input: one per precision, and that of all.
    double nested_factors() const { return levels_.nested().parent - levels_.nested().seed + 2; }
    /// Adds what nested weights that read the same numbers are to be at one precision.
    status add_targets(std::span<const named_matrix> group, int bits, stream_inputs& inputs,
                       group_targets& to) {
        if (const status s = to.begin(bits, inputs); !s)
            return s;
        meter_.lap(work_kind::factors, costs_->factors(group[0].role) / nested_factors());
        for (std::size_t i = 0; i < group.size(); ++i) {
            if (!is_pending(group[i]))
                continue;
            auto floats = to_floats(**m_.file().get_tensor(group[i].name), m_.extras());
            if (!floats)
                return floats.error();
            if (const status s = to.add(s_.threads(), i, std::move(*floats), *o_.towards); !s)
                return status::error(s.code(), "tensor %s: %s", group[i].name.c_str(), s.message());
        }
        return {};
    }
    status convert_group(std::span<const named_matrix> group, const group_targets& targets) {
        const auto system = crumb::feedback_system::make(view(targets.h()), nested_damping);
        if (!system)
            return system.error();
        meter_.lap(work_kind::factors, costs_->factors(group[0].role) / nested_factors());
        const crumb::nested_feedback feedback(*system, {.sweeps = o_.sweeps});
        for (std::size_t i = 0; i < group.size(); ++i) {
            const named_matrix& each = group[i];
            if (!is_pending(each))
                continue;
            status s = quantizer_.convert(each.name, levels_.nested(), targets.weights(i, each.m->k()),
                                          feedback, targets.means(i));
            if (!s)
                return status::error(s.code(), "tensor %s: %s", each.name.c_str(), s.message());
            if (s = kept_.keep(each.name); !s)
                return s;
            meter_.lap(work_kind::weights, costs_->weights(each.m->n(), each.m->k(), true));
        }
        return {};
    }
    /// The weights that the model runs with.
    result<crumb::matrix_view<float>> own_weights(const named_matrix& each) {
        const std::span<float> own = m_.floats(each);
        const std::size_t n = each.m->n(), k = each.m->k();
        if (own.size() != n * k)
            return status::error(crumb::errc::unsupported, "the model's own weights are not floats");
        return crumb::matrix(own.data(), n, k);
    }
    /// Runs the model with what matrices have become from now on, nested ones at precision `of`, from 0 on.
    status replace(std::span<const named_matrix> group, std::size_t of) {
        for (const named_matrix& each : group)
            if (tensors_.find(each.name) != nullptr)
                if (const status s = o_.is_nested() ? replace_nested(each, of) : replace(each); !s)
                    return s;
        return {};
    }
    status replace_nested(const named_matrix& each, std::size_t of) {
        const auto view =
            crumb::nested_view::open(tensors_.find(each.name)->bytes(), each.m->n(), each.m->k());
        if (!view)
            return view.error();
        const int bits = view->levels().seed + static_cast<int>(of);
        std::vector<float> corrections(view->n());
        for (std::size_t r = 0; r < view->n(); ++r)
            corrections[r] = crumb::to_float(view->corrections(bits)[r]);
        const auto to = own_weights(each);
        if (!to)
            return to.error();
        s_.threads().run([&](std::size_t part, std::size_t parts) {
            const crumb::range own = crumb::split(view->n(), parts, part);
            for (std::size_t r = own.begin; r < own.end; ++r)
                for (std::size_t c = 0; c < view->k(); ++c)
                    to->row(r)[c] = static_cast<float>(view->weight(r, c, bits));
        });
        return m_.correct(each, corrections);
    }
    status replace(const named_matrix& each) {
        const auto to = own_weights(each);
        if (!to)
            return to.error();
        const auto rows = tensors_.rows(each.name);
        if (!rows)
            return rows.error();
        if (rows->rows() != to->rows || rows->size() != to->cols)
            return status::error(crumb::errc::bad_shape, "tensor %s: %zu x %zu, the model's own is %zu x %zu",
                                 each.name.c_str(), rows->rows(), rows->size(), to->rows, to->cols);
        s_.threads().run([&](std::size_t part, std::size_t parts) {
            const crumb::range own = crumb::split(rows->rows(), parts, part);
            for (std::size_t r = own.begin; r < own.end; ++r)
                rows->read(r, to->row(r));
        });
        return {};
    }
    template <class T>
    static status assign(std::optional<T>& to, crumb::result<T>&& made) {
        if (!made)
            return made.error();
        to.emplace(std::move(*made));
        return {};
    }
    /// Embedding and output matrix, unless they stay as they are: to 8 bits by rounding, to less with error
    /// feedback on what the output matrix reads in the full model, if there is a text.
    status convert_vocabulary(calibration* text) {
        std::optional<crumb::error_feedback> feedback;
        for (const char* name : {"token_embd.weight", "output.weight"}) {
            const gguf_tensor* t = m_.file().find_tensor(name);
            if (t == nullptr || levels_.type_of(name) == weight_type::stored ||
                tensors_.find(name) != nullptr)
                continue;
            const matrix_shape shape = shape_of(*t);
            const bool is_rounded = levels_.type_of(name) == weight_type::q8_0;
            if (is_rounded && shape.k % crumb::group_size != 0)
                continue;
            const auto floats = to_floats(*t, m_.extras());
            if (!floats)
                return floats.error();
            const auto w = crumb::matrix<const float>(floats->data(), shape.n, shape.k);
            status s;
            if (is_rounded) {
                s = quantizer_.round<crumb::q8_0>(name, w);
            } else {
                const bool is_output = name == std::string_view(m_.output_tensor()) && text != nullptr;
                s = is_output ? assign(feedback, output_feedback(*text))
                              : assign(feedback, crumb::error_feedback::independent(shape.k, {}));
                if (s)
                    s = quantizer_.convert(name, levels_.type_of(name), w, *feedback);
            }
            if (!s)
                return status::error(s.code(), "tensor %s: %s", name, s.message());
            if (s = kept_.keep(name); !s)
                return s;
        }
        meter_.finish(work_kind::vocabulary);
        return {};
    }
    /// Error feedback on what the output matrix reads in the full model.
    result<crumb::error_feedback> output_feedback(calibration& text) {
        const auto moments =
            text.output_moments(vocabulary_windows, one_stage(progress_, "inputs of the vocabulary"));
        if (!moments)
            return moments.error();
        const auto h = moments->matrix();
        return crumb::error_feedback::make(view(h), {.damping = vocabulary_damping, .sweeps = o_.sweeps});
    }

    const quantization& o_;
    model& m_;
    session& s_;
    const stage_function& progress_;
    work_meter& meter_;
    std::optional<quantizing_costs> costs_;
    quantized_tensors tensors_;
    matrix_quantizer quantizer_;
    level_choice levels_;
    kept_work kept_;
    bool is_calibrated_ = false; ///< the vocabulary has been converted
};

} // namespace

result<quantized_model> quantize_model(const quantization& how, model& m, session& s,
                                       const stage_function& progress, work_meter* meter) {
    work_meter unseen;
    const auto c = std::make_shared<converter>(how, m, s, progress, meter != nullptr ? *meter : unseen);
    quantized_model out{c, gguf_writer(3, crumb::alignment), {}};
    if (const status error = c->run(out.file); !error)
        return error;
    out.matrices = c->matrices();
    return out;
}

result<buffer> quantized_file(const quantization& how, model& m, session& s, const stage_function& progress) {
    const auto made = quantize_model(how, m, s, progress);
    if (!made)
        return made.error();
    const auto bytes = made->file.bytes();
    if (!bytes)
        return bytes.error();
    buffer out(bytes->size());
    std::memcpy(out.bytes().data(), bytes->data(), bytes->size());
    return out;
}

} // namespace lm
