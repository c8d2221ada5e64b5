#include "train/calibration.hpp"

#include <algorithm>

namespace lm {

using crumb::result;
using crumb::status;

status calibration::feed(std::size_t count, std::size_t wanted, const observer& f,
                         const progress_function& progress) {
    status error;
    std::vector<status> each_part(s_.threads().size());
    s_.observe([&](const matrix& reader, const crumb::matrix_view<const float>& x, std::size_t part,
                   std::size_t parts) {
        if (each_part[part])
            each_part[part] = f(reader, x, part, parts);
    });
    for (std::size_t w = 0; w < count && error; ++w) {
        s_.reset();
        if (const auto fed = s_.feed(text_.subspan(w * window_, window_), wanted); !fed)
            error = fed.error();
        for (const status& s : each_part)
            if (!s && error)
                error = s;
        if (progress)
            progress(w + 1, count);
    }
    s_.observe({});
    return error;
}

status calibration::watch(const function& f, const progress_function& progress) {
    const auto matrices = m_.matrices();
    return feed(
        windows(), 0,
        [&](const matrix& reader, const crumb::matrix_view<const float>& x, std::size_t part,
            std::size_t parts) {
            status s;
            for (const named_matrix& each : matrices)
                if (each.m == &reader && s)
                    s = f(each.role.input(), x, part, parts);
            return s;
        },
        progress);
}

result<crumb::second_moments<double>> calibration::output_moments(std::size_t most,
                                                                  const progress_function& progress) {
    crumb::second_moments<double> moments(m_.output().k());
    const status s = feed(
        std::min(windows(), most), window_,
        [&](const matrix& reader, const crumb::matrix_view<const float>& x, std::size_t part,
            std::size_t parts) { return &reader == &m_.output() ? moments.add(x, part, parts) : status(); },
        progress);
    if (!s)
        return s;
    return moments;
}

result<importances> calibration::mean_squares(const progress_function& progress) {
    std::vector<std::vector<double>> sums(m_.layers().size() * matrix_role::inputs);
    for (const named_matrix& each : m_.matrices())
        sums[each.role.input()].resize(each.m->k());
    const status s = watch(
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
    const status s = watch(
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
