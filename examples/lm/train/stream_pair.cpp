#include "train/stream_pair.hpp"

#include "machine/memory.hpp"

#include <crumb/offline/common/weight_functions.hpp>

#include <algorithm>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

stream_pair::stream_pair(model& m, session& s, std::size_t tokens, std::size_t window)
    : m_(m), s_(s), tokens_(tokens), window_(window) {
    const auto& d = m.shape();
    const std::size_t inner = std::max(d.attention_width(), d.hidden);
    for (buffer* stream : {&full_, &quantized_})
        *stream = buffer(tokens * d.width * sizeof(float), buffer::untouched);
    for (buffer* each : {&full_inner_, &quantized_inner_})
        *each = buffer(tokens * inner * sizeof(float), buffer::untouched);
}

result<stream_pair> stream_pair::make(model& m, session& s, std::span<const std::int32_t> text,
                                      std::size_t window, const tensor_rows& embedding) {
    const auto& d = m.shape();
    const std::size_t tokens = text.size() / window * window;
    const double bytes = 2.0 * sizeof(float) * static_cast<double>(tokens) *
                         static_cast<double>(d.width + std::max(d.attention_width(), d.hidden));
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

/// Adds a^T b, of rows of the same tokens. The columns of b are a multiple of 16. `product` has room for it.
void add_product(const team& threads, const crumb::dispatch::weight_functions& functions,
                 const crumb::matrix_view<const float>& a, const crumb::matrix_view<const float>& b,
                 std::vector<float>& product, stream_inputs::sums& to) {
    product.assign(a.cols * b.cols, 0.0f);
    threads.run([&](std::size_t part, std::size_t parts) {
        const crumb::range own = crumb::split(a.cols, parts, part);
        functions.add_product({a.data + own.begin, 1, a.stride, b.data, b.stride,
                               product.data() + own.begin * b.cols, b.cols, own.size(), b.cols, a.rows});
        for (std::size_t r = own.begin; r < own.end; ++r)
            for (Eigen::Index i = 0; i < to.cols(); ++i)
                to(static_cast<Eigen::Index>(r), i) +=
                    double{product[r * b.cols + static_cast<std::size_t>(i)]};
    });
}

/// a - b.
void subtract(const crumb::matrix_view<const float>& a, const crumb::matrix_view<const float>& b,
              std::vector<float>& to) {
    to.resize(a.rows * a.cols);
    for (std::size_t r = 0; r < a.rows; ++r)
        for (std::size_t i = 0; i < a.cols; ++i)
            to[r * a.cols + i] = a.row(r)[i] - b.row(r)[i];
}

} // namespace

status stream_pair::add(stream_inputs& to, std::size_t w, const view& full, const view& quantized,
                        bool is_behind) {
    std::vector<status> each_part(s_.threads().size());
    s_.threads().run(
        [&](std::size_t part, std::size_t parts) { each_part[part] = to.h.add(quantized, part, parts); });
    for (const status& s : each_part)
        if (!s)
            return s;
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
    subtract(full, quantized, difference_);
    add_product(s_.threads(), **functions, crumb::matrix<const float>(difference_.data(), window_, k), z,
                product_, to.cross);
    if (!is_behind)
        return {};
    const std::size_t width = m_.shape().width;
    subtract(rows(full_, w, width), rows(quantized_, w, width), difference_);
    add_product(s_.threads(), **functions, crumb::matrix<const float>(difference_.data(), window_, width), z,
                product_, to.behind);
    return {};
}

result<stream_inputs> stream_pair::inputs(std::size_t layer, std::size_t reads,
                                          const progress_function& progress) {
    const auto& d = m_.shape();
    const bool is_attention = reads < 2, is_inner = reads % 2 == 1;
    const std::size_t inner = is_attention ? d.attention_width() : d.hidden;
    const std::size_t k = is_inner ? inner : d.width;
    // What a norm changes before it is added cannot be fitted so.
    const bool is_behind = is_inner && !d.traits.post_norms;
    const auto size = static_cast<Eigen::Index>(k);
    stream_inputs out{crumb::second_moments<double>(k), stream_inputs::sums::Zero(size, size), {}};
    if (is_behind)
        out.behind = stream_inputs::sums::Zero(static_cast<Eigen::Index>(d.width), size);
    buffer normed(2 * window_ * d.width * sizeof(float), buffer::untouched);
    const auto part = [&](pass_part p, std::size_t of, const view& from, const view& to) {
        return s_.run(p, of, from, to);
    };
    for (std::size_t w = 0; w < windows(); ++w) {
        const auto f = rows(full_, w, d.width), q = rows(quantized_, w, d.width);
        const auto f_inner = rows(full_inner_, w, inner), q_inner = rows(quantized_inner_, w, inner);
        status s;
        const auto then = [&](auto&& step) {
            if (s)
                s = step();
        };
        if (is_inner) {
            // The matrices before this have been replaced, the full model's numbers are there.
            then([&] {
                return part(is_attention ? pass_part::attention : pass_part::network, layer, q, q_inner);
            });
            then([&] { return add(out, w, f_inner, q_inner, is_behind); });
            then([&] {
                return part(is_attention ? pass_part::add_attention : pass_part::add_network, layer, f_inner,
                            f);
            });
        } else {
            if (!is_attention)
                then([&] {
                    return part(pass_part::add_attention, layer,
                                rows(quantized_inner_, w, d.attention_width()), q);
                });
            else if (layer > 0)
                then([&] {
                    return part(pass_part::add_network, layer - 1, rows(quantized_inner_, w, d.hidden), q);
                });
            const auto z = rows(normed, 0, d.width), z_full = rows(normed, 1, d.width);
            const auto norm = is_attention ? pass_part::attention_input : pass_part::network_input;
            then([&] { return part(norm, layer, q, z); });
            then([&] { return part(norm, layer, f, z_full); });
            then([&] { return add(out, w, z_full, z, false); });
            then([&] {
                return part(is_attention ? pass_part::attention : pass_part::network, layer, f, f_inner);
            });
        }
        if (!s)
            return s;
        if (progress)
            progress(w + 1, windows());
    }
    return out;
}

} // namespace lm
