#include "train/ffn_training.hpp"

#include "model/input_text.hpp"
#include "train/calibration.hpp"
#include "train/ffn_distributions.hpp"
#include "train/weight_samples.hpp"

#include <crumb/offline/folding/activation_statistics.hpp>
#include <crumb/offline/folding/coverage.hpp>
#include <crumb/offline/folding/folding.hpp>
#include <crumb/offline/folding/linear_range.hpp>
#include <crumb/offline/folding/predictor_margin.hpp>
#include <crumb/offline/weights/store.hpp>

#include <atomic>
#include <cstring>

namespace lm {

using crumb::errc;
using crumb::matrix_view;
using crumb::result;
using crumb::row_codec;
using crumb::status;

namespace {

constexpr std::size_t bins = 128;      ///< of the estimates of a neuron
constexpr std::size_t width_input = 2; ///< `matrix_role::reads` of networks

/// A network before folding, and what is made of it.
struct network {
    std::vector<float> up, down, bias; ///< bias: of the neurons
    std::vector<double> weight;        ///< of their errors
    std::vector<float> mean;           ///< input
    std::optional<crumb::error_feedback> feedback;
    std::vector<float> estimated_up; ///< the predictor's weights
    std::optional<crumb::any_linear> predictor;
    std::optional<crumb::activation_statistics> statistics;
    std::optional<crumb::predictor_errors> errors;        ///< for a share of misses
    std::vector<std::vector<crumb::linear_range>> ranges; ///< of which a point of the curve is one
    std::vector<crumb::linear_range> chosen;
    std::optional<crumb::fold_refit> refit;
    crumb::folded_layer<float> folded;
    std::vector<crumb::tested_range> tested;
    double fixed = 0;
};

class folder {
  public:
    folder(const model& m, session& s, const ffn_training& how, const stage_function& progress)
        : m_(m), s_(s), how_(how), progress_(progress), d_(m.shape()), networks_(d_.layers),
          workers_(how.threads) {}

    /// Reads the text, and finds what networks of any size need.
    status prepare() {
        if (d_.traits.gate != gate_type::none)
            return status::error(
                errc::unsupported,
                "gated networks do not fold: silu(x G) * (x U) is a product of two functions of "
                "x, and a line for the one leaves a product of x with x");
        out_.recipe = how_.recipe;
        out_.layers.resize(d_.layers);
        const std::size_t window = std::min<std::size_t>(d_.context, 512);
        auto text = calibration_text(how_.text, m_, s_, window, how_.chunks, how_.seed, progress_);
        if (!text)
            return text.error();
        if (text->size() < 8 * window)
            return status::error(errc::invalid_argument,
                                 "%zu tokens are too few to fold networks on, %zu are the least",
                                 text->size(), 8 * window);
        tokens_ = std::move(*text);
        text_.emplace(m_, s_, tokens_, window);
        return in_turn({&folder::read, &folder::make_predictors, &folder::collect, &folder::measure});
    }
    /// Networks of so many parameters, which are the next ones' as well.
    result<stored_ffns*> fold(double parameters) {
        out_.recipe.parameters = parameters;
        if (const status ok = in_turn({&folder::choose, &folder::fold_networks, &folder::store}); !ok)
            return ok;
        return &out_;
    }

  private:
    using part_function = std::function<status(std::size_t layer, const matrix_view<const float>& x)>;

    status in_turn(std::initializer_list<status (folder::*)()> steps) {
        for (const auto step : steps)
            if (const status ok = (this->*step)(); !ok)
                return ok;
        return {};
    }

    matrix_view<const float> up(const network& n) const {
        return crumb::matrix(n.up.data(), d_.hidden, d_.width);
    }
    matrix_view<const float> down(const network& n) const {
        return crumb::matrix(n.down.data(), d_.width, d_.hidden);
    }
    /// Calls f(layer) for all layers with all threads.
    template <class F>
    status for_each_layer(const char* stage, F&& f) {
        std::vector<status> each(d_.layers);
        std::atomic<std::size_t> next{0}, done{0};
        workers_.run([&](std::size_t part, std::size_t) {
            for (std::size_t l = next++; l < d_.layers; l = next++) {
                each[l] = f(l);
                ++done;
                if (part == 0 && progress_)
                    progress_(stage, done, d_.layers);
            }
        });
        for (std::size_t l = 0; l < d_.layers; ++l)
            if (!each[l])
                return status::error(each[l].code(), "layer %zu: %s", l, each[l].message());
        return {};
    }
    /// Calls f with what the networks read.
    status watch(const char* stage, const part_function& f) {
        return text_->watch(
            [&](std::size_t input, const matrix_view<const float>& x, std::size_t part, std::size_t) {
                return part == 0 && input % matrix_role::inputs == width_input
                           ? f(input / matrix_role::inputs, x)
                           : status();
            },
            [&](std::size_t done, std::size_t all) {
                if (progress_)
                    progress_(stage, done, all);
            });
    }

    status read() {
        for (std::size_t l = 0; l < d_.layers; ++l) {
            network& n = networks_[l];
            for (const auto& [name, to] : {std::pair{"ffn_up", &n.up}, {"ffn_down", &n.down}}) {
                const std::string tensor = "blk." + std::to_string(l) + "." + name + ".weight";
                auto floats = to_floats(**m_.file().get_tensor(tensor), m_.extras());
                if (!floats)
                    return floats.error();
                *to = std::move(*floats);
            }
            n.bias = m_.layers()[l].up_bias;
            n.weight = crumb::output_weights(down(n));
        }
        std::vector<crumb::second_moments<double>> moments(d_.layers,
                                                           crumb::second_moments<double>(d_.width));
        if (const status ok =
                watch("inputs", [&](std::size_t l, const auto& x) { return moments[l].add(x); });
            !ok)
            return ok;
        for (std::size_t l = 0; l < d_.layers; ++l) {
            network& n = networks_[l];
            n.mean = moments[l].mean();
            const auto h = moments[l].centered();
            auto made = crumb::error_feedback::make(crumb::matrix<const double>(h.data(), d_.width, d_.width),
                                                    {.length_power = 0});
            if (!made)
                return made.error();
            n.feedback.emplace(std::move(*made));
        }
        return {};
    }

    /// Quantizes `w` by error feedback, packs it, and says what it then is.
    template <class F>
    status quantize(const network& n, const matrix_view<const float>& w,
                    std::span<const std::int8_t> codebooks, buffer& packed, std::size_t& bytes,
                    std::vector<float>& rounded) const {
        auto q = crumb::leveled_matrix::zeros(crumb::levels_of<F>(codebooks), w.rows, w.cols);
        if (const status ok = n.feedback->quantize(w, q); !ok)
            return ok;
        const auto stored = crumb::store<F>(q);
        bytes = crumb::packed_bytes<F>(w.rows, w.cols);
        packed = buffer(bytes);
        const crumb::storage_view<F> view = stored;
        const auto made = crumb::pack(view, packed.bytes());
        if (!made)
            return made.error();
        rounded.resize(w.rows * w.cols);
        for (std::size_t r = 0; r < w.rows; ++r)
            for (std::size_t i = 0; i < w.cols; ++i)
                rounded[r * w.cols + i] = static_cast<float>(view.weight(r, i));
        return {};
    }
    /// What rounding takes from a product with the mean input.
    void correct(const network& n, const matrix_view<const float>& w, const std::vector<float>& rounded,
                 std::vector<float>& bias) const {
        for (std::size_t r = 0; r < w.rows; ++r) {
            double sum = 0;
            for (std::size_t i = 0; i < w.cols; ++i)
                sum += (double{w.row(r)[i]} - double{rounded[r * w.cols + i]}) * double{n.mean[i]};
            bias[r] += static_cast<float>(sum);
        }
    }
    /// A table set of the format for matrices, or nothing.
    status train(weight_type type, const std::vector<crumb::training_matrix>& matrices,
                 std::vector<std::int8_t>& entries) const {
        const crumb::training_options options;
        const auto samples = crumb::sample_groups(matrices, options.max_groups, options.seed);
        if (!samples)
            return samples.error();
        auto trained = train_codebooks(*samples, type);
        if (!trained)
            return trained.error();
        entries = std::move(*trained);
        return {};
    }

    status make_predictors() {
        std::vector<crumb::training_matrix> all;
        std::vector<std::vector<float>> importance(d_.layers, std::vector<float>(d_.width, 1.0f));
        for (std::size_t l = 0; l < d_.layers; ++l)
            all.push_back({up(networks_[l]), importance[l]});
        if (const status ok = train(out_.recipe.predictor, all, out_.predictor_codebooks); !ok)
            return ok;
        return for_each_layer("predictors", [&](std::size_t l) {
            network& n = networks_[l];
            stored_ffn& out = out_.layers[l];
            out.predictor_bias = n.bias;
            status ok;
            with_leveled_format(out_.recipe.predictor, [&]<class F>(std::type_identity<F>) {
                ok = quantize<F>(n, up(n), out_.predictor_codebooks, out.predictor, out.predictor_bytes,
                                 n.estimated_up);
                if (!ok)
                    return;
                // A bound holds for what is computed: no correction.
                if (!out_.recipe.sound)
                    correct(n, up(n), n.estimated_up, out.predictor_bias);
                const auto plan = crumb::linear<F>::plan(
                    *crumb::packed_view<F>::open(out.predictor.bytes().first(out.predictor_bytes)),
                    {.bias = out.predictor_bias, .codebooks = out_.predictor_codebooks});
                if (plan)
                    n.predictor = *plan;
                else
                    ok = plan.error();
            });
            return ok;
        });
    }

    /// What neurons see of a batch: estimates, inputs, outputs.
    struct seen {
        std::vector<float> v, u, s;
    };
    seen look(const network& n, const matrix_view<const float>& x) const {
        seen all;
        for (auto* each : {&all.v, &all.u, &all.s})
            each->resize(x.rows * d_.hidden);
        const auto layout = n.predictor->input_plan();
        const buffer memory(crumb::activation_bytes(layout, x.rows));
        auto quantized = *crumb::activations::create(memory.bytes(), layout, x.rows);
        quantized.quantize(x);
        const auto exact = *crumb::dense_linear<float>::plan(up(n), {.bias = n.bias});
        const auto view = [&](std::vector<float>& to) { return crumb::matrix(to.data(), x.rows, d_.hidden); };
        workers_.run([&](std::size_t part, std::size_t parts) {
            const crumb::linear_part mine{.channels =
                                              crumb::split(d_.hidden, parts, part, crumb::tile_channels)};
            n.predictor->run(x, quantized, view(all.v), mine);
            exact.run(x, view(all.u), mine);
        });
        ops_.gelu_tanh(view(all.u), view(all.s));
        return all;
    }

    status collect() {
        for (network& n : networks_) {
            auto statistics = crumb::activation_statistics::make(d_.hidden, bins);
            if (!statistics)
                return statistics.error();
            n.statistics.emplace(std::move(*statistics));
            if (out_.recipe.miss < 0)
                continue;
            auto errors = crumb::predictor_errors::make(d_.hidden);
            if (!errors)
                return errors.error();
            n.errors.emplace(std::move(*errors));
        }
        std::vector<layer_inputs> inputs;
        for (std::size_t l = 0; !how_.csv.empty() && l < d_.layers; ++l)
            inputs.push_back({*crumb::activation_statistics::make(d_.hidden), networks_[l].weight});
        const status seen_all = watch("neurons", [&](std::size_t l, const matrix_view<const float>& x) {
            network& n = networks_[l];
            seen all = look(n, x);
            const auto view = [&](const std::vector<float>& v) {
                return crumb::matrix<const float>(v.data(), x.rows, d_.hidden);
            };
            if (!inputs.empty())
                if (const status ok = inputs[l].inputs.add(view(all.u), view(all.u), view(all.s)); !ok)
                    return ok;
            const bool by_inputs = out_.recipe.miss >= 0 || out_.recipe.sound;
            if (const status ok =
                    n.statistics->add(view(by_inputs ? all.u : all.v), view(all.u), view(all.s));
                !ok)
                return ok;
            return out_.recipe.miss >= 0 ? n.errors->add(view(all.v), view(all.u)) : status();
        });
        return seen_all && !inputs.empty() ? write_distributions(how_.csv, inputs) : seen_all;
    }

    status measure() {
        curves_.resize(d_.layers);
        return for_each_layer("ranges", [&](std::size_t l) {
            network& n = networks_[l];
            n.ranges.resize(d_.hidden);
            curves_[l].resize(d_.hidden);
            for (std::size_t i = 0; i < d_.hidden; ++i) {
                auto ranges = out_.recipe.greedy ? crumb::search_ranges(*n.statistics, i)
                                                 : crumb::best_ranges(*n.statistics, i);
                if (!ranges)
                    return ranges.error();
                curves_[l][i] = crumb::error_curve(*ranges, n.weight[i]);
                for (crumb::curve_point& p : curves_[l][i])
                    if (p.range != crumb::curve_point::nothing) {
                        n.ranges[i].push_back((*ranges)[p.range]);
                        p.range = n.ranges[i].size() - 1;
                    }
            }
            return status();
        });
    }

    status choose() {
        std::vector<crumb::layer_curves> curves;
        for (const auto& each : curves_)
            curves.push_back({each});
        const double target = out_.recipe.target(d_.width, d_.hidden);
        const auto shared = out_.recipe.uniform ? crumb::uniform_coverage(curves, target)
                                                : crumb::share_coverage(curves, {.target = target});
        if (!shared)
            return shared.error();
        for (std::size_t l = 0; l < d_.layers; ++l) {
            network& n = networks_[l];
            n.chosen.resize(d_.hidden);
            n.tested.resize(d_.hidden);
            for (std::size_t i = 0; i < d_.hidden; ++i) {
                const crumb::curve_point& p = curves_[l][i][shared->points[l][i]];
                n.chosen[i] =
                    p.range != crumb::curve_point::nothing ? n.ranges[i][p.range] : crumb::linear_range();
                const crumb::linear_range& r = n.chosen[i];
                n.tested[i] = out_.recipe.miss >= 0 ? n.errors->thresholds(i, r, out_.recipe.miss)
                                                    : crumb::tested_range{static_cast<float>(r.low),
                                                                          static_cast<float>(r.high)};
            }
        }
        return {};
    }

    status fold_networks() {
        for (std::size_t l = 0; l < d_.layers; ++l) {
            network& n = networks_[l];
            std::vector<double> slopes, intercepts;
            for (const crumb::linear_range& r : n.chosen) {
                slopes.push_back(r.slope);
                intercepts.push_back(r.intercept);
            }
            auto folded = crumb::fold(up(n), n.bias, down(n), m_.layers()[l].down_bias, slopes, intercepts);
            if (!folded)
                return folded.error();
            n.folded = std::move(*folded);
            n.refit.emplace(d_.width, d_.width);
        }
        std::vector<std::size_t> rows(d_.layers), fixed(d_.layers);
        const status seen_all = watch("residuals", [&](std::size_t l, const matrix_view<const float>& x) {
            network& n = networks_[l];
            seen all = look(n, x);
            for (std::size_t r = 0; r < x.rows; ++r)
                for (std::size_t i = 0; i < d_.hidden; ++i) {
                    const std::size_t at = r * d_.hidden + i;
                    const crumb::linear_range& line = n.chosen[i];
                    const bool is_inside =
                        double{all.v[at]} >= n.tested[i].low && double{all.v[at]} < n.tested[i].high;
                    fixed[l] += !is_inside;
                    all.s[at] = is_inside
                                    ? static_cast<float>(double{all.s[at]} -
                                                         (line.slope * double{all.u[at]} + line.intercept))
                                    : 0.0f;
                }
            rows[l] += x.rows;
            std::vector<float> residual(x.rows * d_.width);
            const auto to = crumb::matrix(residual.data(), x.rows, d_.width);
            const auto plan = *crumb::dense_linear<float>::plan(down(n));
            workers_.run([&](std::size_t part, std::size_t parts) {
                plan.run(crumb::matrix<const float>(all.s.data(), x.rows, d_.hidden), to,
                         {.channels = crumb::split(d_.width, parts, part, crumb::tile_channels)});
            });
            return n.refit->add(x, to);
        });
        if (!seen_all)
            return seen_all;
        for (std::size_t l = 0; l < d_.layers; ++l) {
            network& n = networks_[l];
            n.fixed = static_cast<double>(fixed[l]) / static_cast<double>(rows[l] * d_.hidden);
            if (!out_.recipe.refit)
                continue;
            const auto change = n.refit->solve();
            if (!change)
                return change.error();
            n.folded.add(*change);
        }
        return {};
    }

    /// Rows in a codec by error feedback, or rounded to nearest; `put` gets every row's bytes.
    template <class Put>
    status store_rows(const network* n, row_codec codec, const matrix_view<const float>& w, Put&& put) const {
        return crumb::with_row_codec(codec, [&]<row_codec C>() -> status {
            const std::size_t bytes = crumb::row_bytes(C, w.cols);
            std::vector<std::byte> row(bytes);
            if constexpr (C == row_codec::f32 || C == row_codec::f16) {
                for (std::size_t r = 0; r < w.rows; ++r) {
                    crumb::encode_row(C, w.row(r), w.cols, row.data());
                    put(r, row);
                }
            } else {
                using F = typename crumb::row_block<C>::format;
                auto q = crumb::leveled_matrix::zeros(crumb::levels_of<F>(), w.rows, w.cols);
                if (n != nullptr) {
                    if (const status ok = n->feedback->quantize(w, q); !ok)
                        return ok;
                } else {
                    const auto plain = crumb::error_feedback::independent(w.cols, {}, {.length_power = 0});
                    if (!plain)
                        return plain.error();
                    if (const status ok = plain->quantize(w, q); !ok)
                        return ok;
                }
                const auto stored = crumb::store<F>(q);
                const std::size_t blocks = bytes / sizeof(typename F::block);
                for (std::size_t r = 0; r < w.rows; ++r) {
                    std::memcpy(row.data(), stored.blocks.data() + r * blocks, bytes);
                    put(r, row);
                }
            }
            return {};
        });
    }

    status store() {
        const ffn_recipe& recipe = out_.recipe;
        std::vector<crumb::training_matrix> all;
        std::vector<std::vector<float>> importance(d_.layers, std::vector<float>(d_.width, 1.0f));
        for (std::size_t l = 0; l < d_.layers; ++l)
            all.push_back({crumb::matrix<const float>(networks_[l].folded.weights.data(), d_.width, d_.width),
                           importance[l]});
        if (const status ok = train(recipe.fold, all, out_.fold_codebooks); !ok)
            return ok;
        return for_each_layer("layers", [&](std::size_t l) {
            network& n = networks_[l];
            stored_ffn& out = out_.layers[l];
            out.fixed = static_cast<float>(n.fixed);
            out.fold_bias = n.folded.bias;
            const auto c = crumb::matrix<const float>(n.folded.weights.data(), d_.width, d_.width);
            status ok;
            if (recipe.fold == weight_type::f32)
                out.fold_floats = n.folded.weights;
            else
                with_leveled_format(recipe.fold, [&]<class F>(std::type_identity<F>) {
                    std::vector<float> rounded;
                    ok = quantize<F>(n, c, out_.fold_codebooks, out.fold, out.fold_bytes, rounded);
                    if (ok)
                        correct(n, c, rounded, out.fold_bias);
                });
            if (!ok)
                return ok;
            return store_neurons(n, out);
        });
    }

    status store_neurons(const network& n, stored_ffn& out) const {
        const ffn_recipe& recipe = out_.recipe;
        const crumb::neuron_shape shape{d_.hidden,  d_.width,
                                        d_.width,   recipe.residual ? *recipe.residual : recipe.in,
                                        recipe.out, recipe.residual.has_value()};
        const auto layout = crumb::neuron_layout::of(shape);
        if (!layout)
            return layout.error();
        out.neuron_bytes = layout->bytes;
        out.neurons = buffer(layout->bytes);
        const auto writer = crumb::neuron_writer::create(out.neurons.bytes(), shape);
        if (!writer)
            return writer.error();
        std::vector<float> in = n.up, transposed(n.down.size());
        if (recipe.residual)
            for (std::size_t i = 0; i < in.size(); ++i)
                in[i] -= n.estimated_up[i];
        for (std::size_t c = 0; c < d_.width; ++c)
            for (std::size_t i = 0; i < d_.hidden; ++i)
                transposed[i * d_.width + c] = n.down[c * d_.hidden + i];
        if (const status ok =
                store_rows(&n, shape.in, crumb::matrix<const float>(in.data(), d_.hidden, d_.width),
                           [&](std::size_t i, const std::vector<std::byte>& row) {
                               std::copy(row.begin(), row.end(), writer->in(i));
                           });
            !ok)
            return ok;
        if (const status ok = store_rows(nullptr, shape.out,
                                         crumb::matrix<const float>(transposed.data(), d_.hidden, d_.width),
                                         [&](std::size_t i, const std::vector<std::byte>& row) {
                                             std::copy(row.begin(), row.end(), writer->out(i));
                                         });
            !ok)
            return ok;
        for (std::size_t i = 0; i < d_.hidden; ++i) {
            const crumb::linear_range& r = n.chosen[i];
            crumb::neuron_line line;
            line.slope = static_cast<float>(r.slope);
            line.intercept = static_cast<float>(r.intercept);
            line.low = static_cast<float>(r.low);
            line.high = static_cast<float>(r.high);
            // An estimate has its own correction for the mean input, which its residual makes superfluous.
            line.bias = recipe.residual ? n.bias[i] - out.predictor_bias[i] : n.bias[i];
            writer->line(i, line);
            writer->thresholds(i, static_cast<float>(n.tested[i].low), static_cast<float>(n.tested[i].high));
        }
        if (recipe.sound) {
            auto bounds = crumb::sound_bounds(
                up(n), crumb::matrix<const float>(n.estimated_up.data(), d_.hidden, d_.width));
            if (!bounds)
                return bounds.error();
            out.bounds = std::move(bounds->values);
        }
        return {};
    }

    const model& m_;
    session& s_;
    const ffn_training& how_;
    const stage_function& progress_;
    const model_shape& d_;
    crumb::float_ops ops_ = *crumb::float_ops::plan();
    std::vector<std::int32_t> tokens_;
    std::optional<calibration> text_;
    std::vector<network> networks_;
    std::vector<std::vector<std::vector<crumb::curve_point>>> curves_; ///< by layer and neuron
    stored_ffns out_;
    team workers_;
};

} // namespace

result<stored_ffns> fold_ffns(const model& m, session& s, const ffn_training& how,
                              const stage_function& progress) {
    folder networks(m, s, how, progress);
    if (const status ok = networks.prepare(); !ok)
        return ok;
    auto made = networks.fold(how.recipe.parameters);
    if (!made)
        return made.error();
    return std::move(**made);
}

status fold_ffns(const model& m, session& s, const ffn_training& how, std::span<const double> parameters,
                 const std::function<status(const stored_ffns&)>& each, const stage_function& progress) {
    folder networks(m, s, how, progress);
    if (const status ok = networks.prepare(); !ok)
        return ok;
    for (const double all : parameters) {
        const auto made = networks.fold(all);
        if (!made)
            return made.error();
        if (const status ok = each(**made); !ok)
            return ok;
    }
    return {};
}

} // namespace lm
