// Matrices of floats as tensors of formats.
#pragma once

#include "machine/team.hpp"
#include "train/quantized_tensors.hpp"

#include <crumb/offline/common/weight_functions.hpp>
#include <crumb/offline/nested/feedback.hpp>
#include <crumb/offline/weights/store.hpp>

#include <algorithm>
#include <atomic>
#include <vector>

namespace lm {

/// Quantizes matrices with all threads and keeps what becomes of them.
class matrix_quantizer {
  public:
    matrix_quantizer(const team& threads, quantized_tensors& to) : threads_(threads), to_(to) {}

    /// f(rows) for all of n rows, in equal parts of at most `product_rows`, as many for each thread; threads
    /// take them as they come, so that what else runs on a core does not hold up the others. An error of one
    /// of them.
    template <class F>
    crumb::status in_parts(std::size_t n, const F& f) const {
        const std::size_t parts =
            crumb::round_up((n + crumb::product_rows - 1) / crumb::product_rows, threads_.size());
        std::vector<crumb::status> each_thread(threads_.size());
        std::atomic<std::size_t> next = 0;
        threads_.run([&](std::size_t thread, std::size_t) {
            crumb::status& s = each_thread[thread];
            for (std::size_t part = next++; s && part < parts; part = next++)
                if (const crumb::range rows = crumb::split(n, parts, part); rows.size() != 0)
                    s = f(rows);
        });
        for (const crumb::status& s : each_thread)
            if (!s)
                return s;
        return {};
    }

    /// To a format that rounds by itself.
    template <class F>
    crumb::status round(const std::string& tensor, const crumb::matrix_view<const float>& w) {
        const std::size_t blocks = (w.cols + crumb::block_inputs<F> - 1) / crumb::block_inputs<F>;
        crumb::quantized<F> q;
        q.n = w.rows;
        q.k = w.cols;
        q.blocks.resize(w.rows * blocks);
        const crumb::status s = in_parts(w.rows, [&](crumb::range rows) {
            const auto mine =
                crumb::quantize<F>(crumb::matrix<const float>(w.row(rows.begin), rows.size(), w.cols));
            if (mine)
                std::copy(mine->blocks.begin(), mine->blocks.end(),
                          q.blocks.begin() + static_cast<std::ptrdiff_t>(rows.begin * blocks));
            return mine.error();
        });
        return s ? keep(tensor, q) : s;
    }

    /// With error feedback, to a type of `with_chosen_format`; nothing else is done for others.
    crumb::status convert(const std::string& tensor, weight_type type,
                          const crumb::matrix_view<const float>& w, const crumb::error_feedback& feedback) {
        crumb::status s;
        with_chosen_format(type, [&]<class F>(std::type_identity<F>) {
            auto q = crumb::leveled_matrix::zeros(crumb::levels_of<F>(to_.codebooks(type)), w.rows, w.cols);
            s = rows(feedback, w, q);
            if (s)
                s = keep(tensor, crumb::store<F>(q));
        });
        return s;
    }
    /// To nested weights, corrected for the mean input.
    crumb::status convert(const std::string& tensor, const crumb::nested_levels& levels,
                          const crumb::matrix_view<const float>& w, const crumb::nested_feedback& feedback,
                          std::span<const float> mean) {
        auto q = crumb::nested_quantized::zeros(levels, w.rows, w.cols);
        if (const crumb::status s = rows(feedback, w, q); !s)
            return s;
        if (const crumb::status s = crumb::correct_means(w, mean, q); !s)
            return s;
        return keep(tensor, q);
    }

    /// The same with targets and means for every precision. `w`: of all precisions that are stored.
    crumb::status convert(const std::string& tensor, const crumb::nested_levels& levels,
                          const crumb::nested_targets& w, const crumb::nested_feedback& feedback,
                          const std::array<crumb::nested_means, crumb::nested_precisions>& means) {
        const auto& highest = w[crumb::nested_search::slot(levels.parent)];
        auto q = crumb::nested_quantized::zeros(levels, highest.rows, highest.cols);
        if (const crumb::status s = rows(feedback, w, q); !s)
            return s;
        if (const crumb::status s = crumb::correct_means(means, q); !s)
            return s;
        return keep(tensor, q);
    }

  private:
    template <class Quantizer, class Weights, class Quantized>
    crumb::status rows(const Quantizer& quantizer, const Weights& w, Quantized& q) const {
        return in_parts(q.n, [&](crumb::range rows) { return quantizer.quantize(w, q, rows); });
    }
    template <class Quantized>
    crumb::status keep(const std::string& tensor, const Quantized& q) {
        auto out = written(q);
        if (out)
            to_.keep(tensor, std::move(*out));
        return out.error();
    }

    const team& threads_;
    quantized_tensors& to_;
};

} // namespace lm
