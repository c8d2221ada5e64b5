#include "train/calibration.hpp"

namespace lm {

using crumb::result;
using crumb::status;

status calibration::watch(
    const std::function<status(std::size_t input, const crumb::matrix_view<const float>& x)>& f,
    const progress_function& progress) {
    status error;
    const auto matrices = m_.matrices();
    s_.observe([&](const matrix& reader, const crumb::matrix_view<const float>& x) {
        for (const named_matrix& each : matrices) {
            if (each.m != &reader || !error)
                continue;
            if (const status s = f(each.role.input(), x); !s)
                error = s;
        }
    });
    for (std::size_t w = 0; w < windows() && error; ++w) {
        s_.reset();
        if (const auto fed = s_.feed(text_.subspan(w * window_, window_), 0); !fed && error)
            error = fed.error();
        if (progress)
            progress(w + 1, windows());
    }
    s_.observe({});
    return error;
}

result<importances> calibration::mean_squares(const progress_function& progress) {
    importances sums(m_.layers().size() * matrix_role::inputs);
    const status s = watch(
        [&](std::size_t input, const crumb::matrix_view<const float>& x) {
            auto& sum = sums[input];
            sum.resize(x.cols);
            const float share = 1.0f / static_cast<float>(windows() * window_);
            for (std::size_t r = 0; r < x.rows; ++r)
                for (std::size_t i = 0; i < x.cols; ++i)
                    sum[i] += share * x.row(r)[i] * x.row(r)[i];
            return status();
        },
        progress);
    if (!s)
        return s;
    return sums;
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
        [&](std::size_t input, const crumb::matrix_view<const float>& x) {
            return input >= first && input - first < sums.size() ? sums[input - first].add(x) : status();
        },
        progress);
    if (!s)
        return s;
    return sums;
}

} // namespace lm
