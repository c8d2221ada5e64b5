#include "lab/sparse.hpp"

#include "cli/report.hpp"
#include "model/input_text.hpp"
#include "train/quantizer.hpp"

#include <crumb/offline/nested/training.hpp>

#include <algorithm>
#include <numeric>

namespace lm::lab {

using crumb::result;
using crumb::status;

namespace {

/// The weights, with 0 for what is kept.
std::vector<float> without(const crumb::matrix_view<const float>& w, const std::vector<std::uint8_t>& kept) {
    std::vector<float> rest(w.rows * w.cols);
    for (std::size_t r = 0; r < w.rows; ++r)
        for (std::size_t i = 0; i < w.cols; ++i)
            rest[r * w.cols + i] = kept[r * w.cols + i] != 0 ? 0.0f : w.row(r)[i];
    return rest;
}

/// The weights, with the one before for what is kept: many zeros would draw a level.
std::vector<float> filled(const crumb::matrix_view<const float>& w, const std::vector<std::uint8_t>& kept) {
    std::vector<float> rest = without(w, kept);
    for (std::size_t i = 1; i < rest.size(); ++i)
        if (kept[i] != 0)
            rest[i] = rest[i - 1];
    return rest;
}

crumb::matrix_view<const double> view_of(const crumb::second_moments<double>::matrix_type& h) {
    return crumb::matrix<const double>(h.data(), static_cast<std::size_t>(h.rows()),
                                       static_cast<std::size_t>(h.cols()));
}

} // namespace

std::vector<std::uint8_t> find_outliers(const crumb::matrix_view<const float>& w,
                                        std::span<const float> importance, double share) {
    std::vector<float> score;
    for (std::size_t r = 0; r < w.rows; ++r)
        for (std::size_t i = 0; i < w.cols; ++i)
            score.push_back(importance[i] * w.row(r)[i] * w.row(r)[i]);
    std::vector<std::size_t> order(score.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto count =
        std::min(static_cast<std::size_t>(share * static_cast<double>(order.size())), order.size());
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                     [&](std::size_t a, std::size_t b) { return score[a] > score[b]; });
    std::vector<std::uint8_t> kept(order.size());
    for (std::size_t i = 0; i < count; ++i)
        kept[order[i]] = 1;
    return kept;
}

result<sparse_feedback> sparse_feedback::make(crumb::second_moments<double>::matrix_type h,
                                              std::vector<float> mean,
                                              const crumb::nested_feedback_options& options) {
    sparse_feedback f;
    f.h_ = std::move(h);
    const double each = f.h_.diagonal().mean();
    const double unit = each > 0 ? each : 1.0;
    f.h_.diagonal().array() += nested_damping * unit;
    f.min_ = 1e-6 * unit;
    f.mean_ = std::move(mean);
    f.options_ = options;
    auto whole = crumb::feedback_system::make(view_of(f.h_), 0);
    if (!whole)
        return whole.error();
    if (f.mean_.size() != whole->k())
        return status::error(crumb::errc::bad_shape, "%zu means of %zu inputs", f.mean_.size(), whole->k());
    f.whole_.emplace(std::move(*whole));
    return f;
}

status sparse_feedback::quantize(const crumb::matrix_view<const float>& rest, decomposed_matrix& out,
                                 std::size_t row) const {
    const std::uint8_t* kept = out.kept.data() + row * rest.cols;
    if (std::none_of(kept, kept + rest.cols, [](std::uint8_t x) { return x != 0; }))
        return crumb::nested_feedback(*whole_, options_).quantize(rest, out.dense, {row, row + 1});
    auto h = h_;
    for (std::size_t i = 0; i < rest.cols; ++i)
        if (kept[i] != 0) {
            const auto at = static_cast<Eigen::Index>(i);
            h.row(at).setZero();
            h.col(at).setZero();
            h(at, at) = min_;
        }
    const auto system = crumb::feedback_system::make(view_of(h), 0);
    if (!system)
        return system.error();
    return crumb::nested_feedback(*system, options_).quantize(rest, out.dense, {row, row + 1});
}

result<decomposed_matrix> sparse_feedback::decompose(const crumb::matrix_view<const float>& w,
                                                     std::vector<std::uint8_t> kept,
                                                     const crumb::nested_levels& levels,
                                                     const team& threads) const {
    if (w.cols != whole_->k() || kept.size() != w.rows * w.cols)
        return status::error(crumb::errc::bad_shape, "%zu x %zu weights of %zu inputs, %zu kept or not",
                             w.rows, w.cols, whole_->k(), kept.size());
    decomposed_matrix out{crumb::nested_quantized::zeros(levels, w.rows, w.cols), std::move(kept)};
    const std::vector<float> rest = without(w, out.kept);
    std::vector<status> each_part(threads.size());
    threads.run([&](std::size_t part, std::size_t parts) {
        const crumb::range rows = crumb::split(w.rows, parts, part);
        for (std::size_t r = rows.begin; r < rows.end && each_part[part]; ++r)
            each_part[part] = quantize(crumb::matrix<const float>(rest.data(), w.rows, w.cols), out, r);
    });
    for (const status& s : each_part)
        if (!s)
            return s;
    if (const status s = crumb::correct_means(w, mean_, out.dense, out.kept); !s)
        return s;
    return out;
}

std::vector<float> expand(const decomposed_matrix& m, const crumb::matrix_view<const float>& w, int bits) {
    const crumb::nested_storage_view dense = m.dense;
    std::vector<float> out(w.rows * w.cols);
    for (std::size_t r = 0; r < w.rows; ++r)
        for (std::size_t i = 0; i < w.cols; ++i) {
            const std::size_t at = r * w.cols + i;
            out[at] = m.kept[at] != 0 ? w.row(r)[i] : static_cast<float>(dense.weight(r, i, bits));
        }
    return out;
}

result<decomposer> decomposer::make(const model& full, const std::string& text, std::size_t chunks,
                                    std::size_t threads) {
    decomposer d(full, threads);
    const std::size_t window = std::min<std::size_t>(full.shape().context, 512);
    auto s = session::make(full, d.threads_, kv_type::f16, window, window);
    if (!s)
        return s.error();
    stage_progress progress;
    const stage_function stages = std::ref(progress);
    const auto tokens = calibration_text(text, full, *s, window, chunks, 1, stages);
    if (!tokens)
        return tokens.error();
    calibration calibrated(full, *s, *tokens, window);
    auto moments = calibrated.moments({0, full.layers().size()}, one_stage(stages, "calibration"));
    if (!moments)
        return moments.error();
    d.moments_ = std::move(*moments);
    for (const auto& each : d.moments_)
        d.importance_.push_back(each.importance());
    return d;
}

result<std::vector<decomposed_matrix>> decomposer::run(crumb::precision_range stored, double share) const {
    const auto matrices = full_.matrices();
    std::vector<std::vector<std::uint8_t>> kept;
    std::vector<std::vector<float>> rests;
    std::vector<crumb::training_matrix> training;
    for (const named_matrix& each : matrices) {
        const auto floats = to_floats(**full_.file().get_tensor(each.name), full_.extras());
        if (!floats)
            return floats.error();
        const auto w = crumb::matrix<const float>(floats->data(), each.m->n(), each.m->k());
        const std::vector<float>& importance = importance_[each.role.input()];
        kept.push_back(find_outliers(w, importance, share));
        rests.push_back(filled(w, kept.back()));
        training.push_back({crumb::matrix<const float>(rests.back().data(), w.rows, w.cols), importance});
    }
    const auto trained = crumb::train_nested(training, {.seed = stored.seed, .parent = stored.parent});
    if (!trained)
        return trained.error();
    std::vector<decomposed_matrix> out;
    std::optional<sparse_feedback> feedback;
    std::size_t input = ~std::size_t{0};
    progress_line progress("matrices");
    for (const named_matrix& each : matrices) {
        if (each.role.input() != input) {
            input = each.role.input();
            auto made = sparse_feedback::make(moments_[input].centered(), moments_[input].mean());
            if (!made)
                return made.error();
            feedback.emplace(std::move(*made));
        }
        const auto floats = to_floats(**full_.file().get_tensor(each.name), full_.extras());
        const auto w = crumb::matrix<const float>(floats->data(), each.m->n(), each.m->k());
        auto parts = feedback->decompose(w, std::move(kept[out.size()]), trained->levels, threads_);
        if (!parts)
            return status::error(parts.error().code(), "tensor %s: %s", each.name.c_str(), parts.message());
        out.push_back(std::move(*parts));
        progress(out.size(), matrices.size());
    }
    return out;
}

status decomposer::put(const std::vector<decomposed_matrix>& parts, int bits, model& to) const {
    const auto matrices = to.matrices();
    if (matrices.size() != parts.size())
        return status::error(crumb::errc::bad_shape, "%zu matrices, the sparse model has %zu",
                             matrices.size(), parts.size());
    for (std::size_t m = 0; m < parts.size(); ++m) {
        const auto floats = to_floats(**full_.file().get_tensor(matrices[m].name), full_.extras());
        if (!floats)
            return floats.error();
        const auto& dense = parts[m].dense;
        const auto w = crumb::matrix<const float>(floats->data(), dense.n, dense.k);
        std::vector<float> corrections;
        for (std::size_t r = 0; r < dense.n; ++r)
            corrections.push_back(crumb::to_float(
                dense.corrections[static_cast<std::size_t>(bits - crumb::min_nested_bits) * dense.n + r]));
        if (const status s = to.replace(matrices[m], bits, expand(parts[m], w, bits), corrections); !s)
            return s;
    }
    return {};
}

} // namespace lm::lab
