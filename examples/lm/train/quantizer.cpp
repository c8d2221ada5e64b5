#include "train/quantizer.hpp"

#include "cli/commands.hpp"
#include "cli/report.hpp"

#include <crumb/offline/weights/store.hpp>

#include <random>

namespace lm {

using crumb::result;
using crumb::status;

result<std::vector<std::int32_t>> calibration_text(const std::string& text, const model& m, session& s,
                                                   std::size_t window, std::size_t chunks,
                                                   std::uint64_t seed) {
    std::vector<std::int32_t> tokens;
    if (text.empty()) {
        std::mt19937_64 random(seed);
        for (std::size_t i = 0; i < chunks * window; ++i)
            tokens.push_back(static_cast<std::int32_t>(random() % m.shape().vocabulary));
    } else if (text == "self") {
        progress_line progress("the model writes a text");
        std::size_t done = 0;
        auto written = write_text(s, m.vocabulary().encode(" ", true), chunks * window, 1.0f, 0, seed,
                                  [&](std::int32_t) { progress(++done, chunks * window); });
        if (!written)
            return written.error();
        tokens = std::move(*written);
    } else {
        std::string error;
        const auto file = mapped_file::open(text, error);
        if (!file)
            return status::error(crumb::errc::invalid_argument, "%s", error.c_str());
        const auto bytes = file->bytes();
        tokens = m.vocabulary().encode_first({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                             false, chunks * window);
    }
    if (tokens.size() < window)
        return status::error(crumb::errc::invalid_argument,
                             "the calibration text has %zu tokens, a window takes %zu", tokens.size(),
                             window);
    tokens.resize(std::min(tokens.size(), chunks * window) / window * window);
    return tokens;
}

result<training_set> training_set::read(const gguf& file, const importances& importance,
                                        const codebook_sets& source) {
    training_set set;
    for (const gguf_tensor& t : file.tensors()) {
        const auto role = find_role(t.name);
        if (!role)
            continue;
        auto values = to_floats(t, source);
        if (!values)
            return values.error();
        set.floats.push_back(std::move(*values));
        const matrix_shape shape = shape_of(t);
        set.matrices.push_back({crumb::matrix<const float>(set.floats.back().data(), shape.n, shape.k),
                                importance.at(role->input())});
    }
    return set;
}

result<std::vector<std::int8_t>> train_codebooks(const training_set& set, weight_type type,
                                                 const progress_function& progress) {
    status error;
    std::vector<std::int8_t> entries;
    with_format(type, [&]<class F>(std::type_identity<F>) {
        if constexpr (crumb::needs_codebooks<F>) {
            const auto trained = crumb::train_codebooks(
                set.matrices,
                {.entries = std::size_t{1} << F::codes::bits,
                 .selector_bits = F::codes::selector_bits,
                 .scales = F::scales::block_groups == 1 ? crumb::scale_kind::half : crumb::scale_kind::byte,
                 .progress = progress});
            if (trained)
                entries = crumb::codebooks_of<F>(trained->levels);
            else
                error = trained.error();
        }
    });
    if (!error)
        return error;
    return entries;
}

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
