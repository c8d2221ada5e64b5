#include "train/stream_pair.hpp"

#include "machine/memory.hpp"

#include <crumb/offline/common/finite.hpp>
#include <crumb/offline/common/weight_functions.hpp>

#include <algorithm>
#include <atomic>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

stream_pair::stream_pair(model& m, session& s, std::size_t tokens, std::size_t window)
    : m_(m), s_(s), tokens_(tokens), window_(window) {
    const auto& d = m.shape();
    widest_ = d.widest_inner();
    for (buffer* stream : {&full_, &quantized_})
        *stream = buffer(tokens * d.width * sizeof(float), buffer::untouched);
    inner_ = buffer(tokens * widest_ * sizeof(float), buffer::untouched);
}

result<stream_pair> stream_pair::make(model& m, session& s, std::span<const std::int32_t> text,
                                      std::size_t window, const tensor_rows& embedding) {
    const auto& d = m.shape();
    const std::size_t tokens = text.size() / window * window;
    const double bytes = double{sizeof(float)} * static_cast<double>(tokens) *
                         static_cast<double>(2 * d.width + d.widest_inner());
    if (const status fits = check_memory(bytes, "the residual streams of the calibration text"); !fits)
        return fits;
    stream_pair out(m, s, tokens, window);
    std::vector<float> exact(d.width), quantized(d.width);
    for (std::size_t w = 0; w < out.windows(); ++w) {
        const auto full = out.rows(out.full_, w, d.width), to = out.rows(out.quantized_, w, d.width);
        if (const status embedded = s.embed(text.subspan(w * window, window), full); !embedded)
            return embedded;
        for (std::size_t r = 0; r < window; ++r) {
            const auto token = static_cast<std::size_t>(text[w * window + r]);
            m.embedding(token, exact.data());
            embedding.read(token, quantized.data());
            for (std::size_t i = 0; i < d.width; ++i)
                to.row(r)[i] = full.row(r)[i] + d.embedding_scale * (quantized[i] - exact[i]);
        }
    }
    return out;
}

namespace {

/// Rows of a product that are summed at a time: they and their inputs stay in a cache.
constexpr std::size_t rows_at_once = 48;

/// Adds a^T b, of rows of the same tokens, of which there are 512 at most; `lower`: its lower triangle, more
/// may be written. The columns of b are a multiple of 16. The sums of these rows are made in floats, each
/// from the first row on, whatever the number of threads.
void add_product(const team& threads, const crumb::dispatch::weight_functions& functions,
                 const crumb::matrix_view<const float>& a, const crumb::matrix_view<const float>& b,
                 bool lower, stream_inputs::sums& to) {
    std::atomic<std::size_t> next = 0;
    threads.run([&](std::size_t, std::size_t) {
        std::vector<float> own(a.rows * rows_at_once), product(rows_at_once * b.cols);
        // Long rows first, so that the threads end together.
        for (std::size_t taken = next++; taken * rows_at_once < a.cols; taken = next++) {
            const std::size_t end = a.cols - taken * rows_at_once;
            const std::size_t first = end - std::min(end, rows_at_once), count = end - first;
            const std::size_t used =
                std::min<std::size_t>(static_cast<std::size_t>(to.cols()), lower ? end : b.cols);
            const std::size_t cols = crumb::round_up(used, std::size_t{16});
            for (std::size_t t = 0; t < a.rows; ++t)
                std::copy_n(a.row(t) + first, count, own.data() + t * count);
            std::fill_n(product.data(), count * cols, 0.0f);
            functions.add_product(
                {own.data(), 1, count, b.data, b.stride, product.data(), cols, count, cols, a.rows});
            for (std::size_t r = 0; r < count; ++r) {
                double* const sums = to.row(static_cast<Eigen::Index>(first + r)).data();
                for (std::size_t i = 0; i < used; ++i)
                    sums[i] += double{product[r * cols + i]};
            }
        }
    });
}

/// a - b.
void subtract(const team& threads, const crumb::matrix_view<const float>& a,
              const crumb::matrix_view<const float>& b, std::vector<float>& to) {
    to.resize(a.rows * a.cols);
    threads.run([&](std::size_t part, std::size_t parts) {
        const crumb::range own = crumb::split(a.rows, parts, part);
        for (std::size_t r = own.begin; r < own.end; ++r)
            for (std::size_t i = 0; i < a.cols; ++i)
                to[r * a.cols + i] = a.row(r)[i] - b.row(r)[i];
    });
}

} // namespace

status stream_pair::add(stream_inputs& to, std::size_t w, const view& full, const view& quantized) {
    if (const status finite = crumb::check_finite(quantized, "sums over inputs: numbers"); !finite)
        return finite;
    const auto functions = crumb::choose_weight_functions({});
    if (!functions)
        return functions.error();
    const std::size_t k = quantized.cols, padded = crumb::round_up(k, std::size_t{16});
    crumb::matrix_view<const float> z = quantized;
    if (padded != k) {
        padded_.assign(window_ * padded, 0.0f);
        for (std::size_t r = 0; r < window_; ++r)
            std::copy_n(quantized.row(r), k, padded_.data() + r * padded);
        z = crumb::matrix<const float>(padded_.data(), window_, padded);
    }
    add_product(s_.threads(), **functions, quantized, z, true, to.h);
    subtract(s_.threads(), full, quantized, difference_);
    add_product(s_.threads(), **functions, crumb::matrix<const float>(difference_.data(), window_, k), z,
                false, to.cross);
    if (to.behind.size() == 0)
        return {};
    const std::size_t width = m_.shape().width;
    subtract(s_.threads(), rows(full_, w, width), rows(quantized_, w, width), difference_);
    add_product(s_.threads(), **functions, crumb::matrix<const float>(difference_.data(), window_, width), z,
                false, to.behind);
    return {};
}

result<stream_inputs> stream_pair::inputs(std::size_t layer, std::size_t reads, const listener& done) {
    const auto& d = m_.shape();
    const bool is_inner = reads % 2 == 1;
    const auto width = static_cast<Eigen::Index>(d.width);
    const auto k = static_cast<Eigen::Index>(d.input_width(reads));
    stream_inputs out{stream_inputs::sums::Zero(k, k), stream_inputs::sums::Zero(k, k), {}};
    // What a norm changes before it is added cannot be fitted so.
    if (is_inner && !d.traits.post_norms)
        out.behind = stream_inputs::sums::Zero(width, k);
    if (const status s = walk(layer, reads, &out, done); !s)
        return s;
    return out;
}

status stream_pair::pass(std::size_t layer, std::size_t reads, const listener& done) {
    return walk(layer, reads, nullptr, done);
}

status stream_pair::walk(std::size_t layer, std::size_t reads, stream_inputs* sums, const listener& done) {
    const auto& d = m_.shape();
    const bool is_attention = reads < 2, is_inner = reads % 2 == 1;
    const std::size_t width = d.input_width(is_attention ? 1 : 3);
    buffer normed(2 * window_ * d.width * sizeof(float), buffer::untouched);
    buffer activated(window_ * width * sizeof(float), buffer::untouched);
    const auto part = [&](pass_part p, std::size_t of, const view& from, const view& to) {
        return s_.run(p, of, from, to);
    };
    const double share = 1 / static_cast<double>(windows());
    for (std::size_t w = 0; w < windows(); ++w) {
        const auto f = rows(full_, w, d.width), q = rows(quantized_, w, d.width);
        const auto kept = inner(w, width), q_inner = rows(activated, 0, width);
        status s;
        const auto then = [&](auto&& step) {
            if (s)
                s = step();
        };
        const auto add_to_sums = [&](const view& full, const view& quantized) {
            done(work_kind::streams, share / 2);
            if (sums == nullptr)
                return;
            then([&] { return add(*sums, w, full, quantized); });
            done(work_kind::sums, share);
        };
        if (is_inner) {
            // The matrices before this have been replaced, the full model's numbers are there.
            then([&] {
                return part(is_attention ? pass_part::attention : pass_part::network, layer, q, q_inner);
            });
            add_to_sums(kept, q_inner);
            then([&] {
                return part(is_attention ? pass_part::add_attention : pass_part::add_network, layer, kept, f);
            });
            std::copy_n(q_inner.data, window_ * width, kept.data);
        } else {
            if (!is_attention)
                then([&] { return part(pass_part::add_attention, layer, inner(w, d.attention_width()), q); });
            else if (layer > 0)
                then([&] { return part(pass_part::add_network, layer - 1, inner(w, d.hidden), q); });
            const auto z = rows(normed, 0, d.width), z_full = rows(normed, 1, d.width);
            const auto norm = is_attention ? pass_part::attention_input : pass_part::network_input;
            then([&] { return part(norm, layer, q, z); });
            then([&] { return part(norm, layer, f, z_full); });
            add_to_sums(z_full, z);
            then([&] {
                return part(is_attention ? pass_part::attention : pass_part::network, layer, f, kept);
            });
        }
        if (!s)
            return s;
        done(work_kind::streams, share / 2);
    }
    return {};
}

} // namespace lm
