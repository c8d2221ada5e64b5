#include "train/calibration.hpp"

#include "machine/memory.hpp"

#include <algorithm>

namespace lm {

using crumb::result;
using crumb::status;

template <class Step>
status calibration::observe(std::size_t count, const function& f, Step&& step) {
    const auto matrices = m_.matrices();
    std::vector<status> each_part(s_.threads().size());
    if (f)
        s_.observe([&](const matrix& reader, const crumb::matrix_view<const float>& x, std::size_t part,
                       std::size_t parts) {
            for (const named_matrix& each : matrices)
                if (each.m == &reader && each_part[part])
                    each_part[part] = f(each.role.input(), x, part, parts);
        });
    status error;
    for (std::size_t w = 0; w < count && error; ++w) {
        error = step(w);
        for (const status& s : each_part)
            if (!s && error)
                error = s;
    }
    s_.observe({});
    return error;
}

status calibration::watch(const function& f, const progress_function& progress) {
    return observe(windows(), f, [&](std::size_t w) {
        s_.reset();
        const status fed = s_.feed(text_.subspan(w * window_, window_), 0).error();
        if (progress)
            progress(w + 1, windows());
        return fed;
    });
}

crumb::matrix_view<float> calibration::stream(std::size_t w) const {
    const std::size_t width = m_.shape().width;
    return crumb::matrix(stream_.as<float>() + w * window_ * width, window_, width);
}

status calibration::embed(std::size_t count) {
    forget();
    const double bytes =
        double{sizeof(float)} * static_cast<double>(count * window_) * static_cast<double>(m_.shape().width);
    if (const status fits = check_memory(bytes, "the residual stream of the calibration text"); !fits)
        return fits;
    stream_ = buffer(count * window_ * m_.shape().width * sizeof(float), buffer::untouched);
    count_ = count;
    for (std::size_t w = 0; w < count; ++w)
        if (const status s = s_.embed(text_.subspan(w * window_, window_), stream(w)); !s)
            return s;
    passed_ = 0;
    return {};
}

status calibration::run_layer(std::size_t layer, std::size_t w) {
    const auto& d = m_.shape();
    inner_.resize(window_ * d.widest_inner());
    const auto attended = crumb::matrix(inner_.data(), window_, d.attention_width());
    const auto activated = crumb::matrix(inner_.data(), window_, d.hidden);
    status s = s_.run(pass_part::attention, layer, stream(w), attended);
    if (s)
        s = s_.run(pass_part::add_attention, layer, attended, stream(w));
    if (s)
        s = s_.run(pass_part::network, layer, stream(w), activated);
    if (s)
        s = s_.run(pass_part::add_network, layer, activated, stream(w));
    return s;
}

status calibration::walk(std::size_t count, crumb::range layers, const function& f,
                         const progress_function& progress) {
    if (!passed_ || *passed_ > layers.begin || count_ < count)
        if (const status s = embed(count); !s)
            return s;
    const auto matrices = m_.matrices();
    const std::size_t all = (layers.end - *passed_) * count;
    std::size_t done = 0;
    while (*passed_ < layers.end) {
        const std::size_t layer = *passed_;
        const auto own = of_layers(matrices, {layer, layer + 1});
        if (const status s = m_.bring(own); !s)
            return s;
        const status s = observe(count, layer < layers.begin ? function() : f, [&](std::size_t w) {
            const status ran = run_layer(layer, w);
            if (progress)
                progress(++done, all);
            return ran;
        });
        m_.leave(own);
        if (!s) {
            forget();
            return s;
        }
        ++*passed_;
    }
    return {};
}

result<crumb::second_moments<double>> calibration::output_moments(std::size_t most,
                                                                  const progress_function& progress) {
    const std::size_t count = std::min(windows(), most), layers = m_.layers().size();
    if (const status s = walk(count, {layers, layers}, {}, progress); !s)
        return s;
    crumb::second_moments<double> moments(m_.output().k());
    inner_.resize(window_ * m_.shape().width);
    const auto x = crumb::matrix(inner_.data(), window_, m_.shape().width);
    std::vector<status> each_part(s_.threads().size());
    for (std::size_t w = 0; w < count; ++w) {
        if (const status s = s_.run(pass_part::output_input, 0, stream(w), x); !s)
            return s;
        s_.threads().run(
            [&](std::size_t part, std::size_t parts) { each_part[part] = moments.add(x, part, parts); });
        if (!each_part[0])
            return each_part[0]; // all say the same
    }
    return moments;
}

result<importances> calibration::mean_squares(const progress_function& progress) {
    std::vector<std::vector<double>> sums(m_.layers().size() * matrix_role::inputs);
    for (const named_matrix& each : m_.matrices())
        sums[each.role.input()].resize(each.m->k());
    const status s = walk(
        windows(), {0, m_.layers().size()},
        [&](std::size_t input, const crumb::matrix_view<const float>& x, std::size_t part,
            std::size_t parts) {
            const crumb::range own = crumb::split(x.cols, parts, part);
            for (std::size_t r = 0; r < x.rows; ++r)
                for (std::size_t i = own.begin; i < own.end; ++i)
                    sums[input][i] += double{x.row(r)[i]} * double{x.row(r)[i]};
            return status();
        },
        progress);
    if (!s)
        return s;
    importances means(sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i)
        for (const double sum : sums[i])
            means[i].push_back(static_cast<float>(sum / static_cast<double>(windows() * window_)));
    return means;
}

result<std::vector<crumb::second_moments<double>>> calibration::moments(crumb::range layers,
                                                                        const progress_function& progress) {
    const std::size_t first = layers.begin * matrix_role::inputs;
    const auto matrices = m_.matrices();
    std::vector<crumb::second_moments<double>> sums;
    for (std::size_t input = first; input < layers.end * matrix_role::inputs; ++input)
        for (const named_matrix& each : matrices)
            if (each.role.input() == input) {
                sums.emplace_back(each.m->k());
                break;
            }
    const status s = walk(
        windows(), layers,
        [&](std::size_t input, const crumb::matrix_view<const float>& x, std::size_t part,
            std::size_t parts) {
            return input >= first && input - first < sums.size() ? sums[input - first].add(x, part, parts)
                                                                 : status();
        },
        progress);
    if (!s)
        return s;
    return sums;
}

} // namespace lm
