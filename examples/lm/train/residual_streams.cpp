#include "train/residual_streams.hpp"

#include "machine/memory.hpp"

#include <crumb/offline/common/finite.hpp>
#include <crumb/offline/common/weight_functions.hpp>

#include <algorithm>
#include <atomic>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

void stream_inputs::center() {
    const auto n = static_cast<double>(tokens);
    const auto subtract = [&](sums& from, const std::vector<double>& means) {
        for (Eigen::Index i = 0; i < from.rows(); ++i)
            for (Eigen::Index j = 0; j < from.cols(); ++j)
                from(i, j) -= crumb::rounded(crumb::rounded(n * means[static_cast<std::size_t>(i)]) *
                                             input[static_cast<std::size_t>(j)]);
    };
    subtract(h, input);
    subtract(cross, gap);
    subtract(behind, lack);
}

residual_streams::residual_streams(model& m, session& s, std::size_t tokens, std::size_t window,
                                   std::size_t count)
    : m_(m), s_(s), tokens_(tokens), window_(window) {
    const auto& d = m.shape();
    widest_ = d.widest_inner();
    full_ = buffer(tokens * d.width * sizeof(float), buffer::untouched);
    for (std::size_t i = 0; i < count; ++i) {
        quantized_.emplace_back(tokens * d.width * sizeof(float), buffer::untouched);
        inner_.emplace_back(tokens * widest_ * sizeof(float), buffer::untouched);
    }
}

result<residual_streams> residual_streams::make(model& m, session& s, std::span<const std::int32_t> text,
                                                std::size_t window, const tensor_rows& embedding,
                                                std::size_t count) {
    const auto& d = m.shape();
    const std::size_t tokens = text.size() / window * window;
    const double bytes = double{sizeof(float)} * static_cast<double>(tokens) *
                         static_cast<double>((1 + count) * d.width + count * d.widest_inner());
    if (const status fits = check_memory(bytes, "the residual streams of the calibration text"); !fits)
        return fits;
    residual_streams out(m, s, tokens, window, count);
    std::vector<float> exact(d.width), quantized(d.width);
    for (std::size_t w = 0; w < out.windows(); ++w) {
        const auto full = out.rows(out.full_, w, d.width), first = out.rows(out.quantized_[0], w, d.width);
        if (const status embedded = s.embed(text.subspan(w * window, window), full); !embedded)
            return embedded;
        for (std::size_t r = 0; r < window; ++r) {
            const auto token = static_cast<std::size_t>(text[w * window + r]);
            m.embedding(token, exact.data());
            embedding.read(token, quantized.data());
            for (std::size_t i = 0; i < d.width; ++i)
                first.row(r)[i] = full.row(r)[i] + d.embedding_scale * (quantized[i] - exact[i]);
        }
        for (std::size_t i = 1; i < count; ++i)
            std::copy_n(first.data, window * d.width, out.rows(out.quantized_[i], w, d.width).data);
    }
    return out;
}

namespace {

/// Columns of a product that are summed at a time: they and the inputs of its rows stay in a cache.
constexpr std::size_t columns_at_once = 512;

/// Adds a^T b, of rows of the same tokens, of which there are 512 at most; `lower`: its lower triangle, more
/// may be written. The columns of b are a multiple of 16. The sums of these rows are made in floats, each
/// from the first row on, whatever the number of threads.
void add_product(const team& threads, const crumb::dispatch::weight_functions& functions,
                 const crumb::matrix_view<const float>& a, const crumb::matrix_view<const float>& b,
                 bool lower, stream_inputs::sums& to) {
    std::atomic<std::size_t> next = 0;
    threads.run([&](std::size_t, std::size_t) {
        std::vector<float> own(a.rows * crumb::product_rows), product(crumb::product_rows * columns_at_once);
        // Long rows first, so that the threads end together.
        for (std::size_t taken = next++; taken * crumb::product_rows < a.cols; taken = next++) {
            const std::size_t end = a.cols - taken * crumb::product_rows;
            const std::size_t first = end - std::min(end, crumb::product_rows), count = end - first;
            const std::size_t used =
                std::min<std::size_t>(static_cast<std::size_t>(to.cols()), lower ? end : b.cols);
            for (std::size_t t = 0; t < a.rows; ++t)
                std::copy_n(a.row(t) + first, count, own.data() + t * count);
            for (std::size_t c = 0; c < used; c += columns_at_once) {
                const std::size_t wanted = std::min(columns_at_once, used - c);
                const std::size_t cols = crumb::round_up(wanted, std::size_t{16});
                std::fill_n(product.data(), count * cols, 0.0f);
                functions.add_product(
                    {own.data(), 1, count, b.data + c, b.stride, product.data(), cols, count, cols, a.rows});
                for (std::size_t r = 0; r < count; ++r) {
                    double* const sums = to.row(static_cast<Eigen::Index>(first + r)).data() + c;
                    for (std::size_t i = 0; i < wanted; ++i)
                        sums[i] += double{product[r * cols + i]};
                }
            }
        }
    });
}

/// Adds the sum of the rows of x, divided by `tokens`.
void add_mean(const team& threads, const crumb::matrix_view<const float>& x, std::size_t tokens,
              std::vector<double>& to) {
    threads.run([&](std::size_t part, std::size_t parts) {
        const crumb::range own = crumb::split(x.cols, parts, part);
        std::vector<double> sum(own.size());
        for (std::size_t r = 0; r < x.rows; ++r)
            for (std::size_t i = 0; i < own.size(); ++i)
                sum[i] += double{x.row(r)[own.begin + i]};
        for (std::size_t i = 0; i < own.size(); ++i)
            to[own.begin + i] += sum[i] / static_cast<double>(tokens);
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

status residual_streams::add(stream_inputs& to, std::size_t of, std::size_t w, const view& full,
                             const view& quantized) {
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
    const auto difference = [&](std::size_t cols) {
        return crumb::matrix<const float>(difference_.data(), window_, cols);
    };
    add_mean(s_.threads(), quantized, tokens_, to.input);
    add_product(s_.threads(), **functions, quantized, z, true, to.h);
    subtract(s_.threads(), full, quantized, difference_);
    add_mean(s_.threads(), difference(k), tokens_, to.gap);
    add_product(s_.threads(), **functions, difference(k), z, false, to.cross);
    if (to.behind.size() == 0)
        return {};
    const std::size_t width = m_.shape().width;
    subtract(s_.threads(), rows(full_, w, width), rows(quantized_[of], w, width), difference_);
    add_mean(s_.threads(), difference(width), tokens_, to.lack);
    add_product(s_.threads(), **functions, difference(width), z, false, to.behind);
    return {};
}

result<stream_inputs> residual_streams::inputs(std::size_t layer, std::size_t reads, std::size_t of,
                                               const listener& done) {
    const auto& d = m_.shape();
    const bool is_inner = reads % 2 == 1;
    const auto width = static_cast<Eigen::Index>(d.width);
    const auto k = static_cast<Eigen::Index>(d.input_width(reads));
    stream_inputs out;
    out.tokens = tokens_;
    out.h = out.cross = stream_inputs::sums::Zero(k, k);
    out.input.resize(d.input_width(reads));
    out.gap.resize(d.input_width(reads));
    // What a norm changes before it is added cannot be fitted so.
    if (is_inner && !d.traits.post_norms) {
        out.behind = stream_inputs::sums::Zero(width, k);
        out.lack.resize(d.width);
    }
    if (const status s = walk(layer, reads, of, &out, done); !s)
        return s;
    return out;
}

status residual_streams::pass(std::size_t layer, std::size_t reads, std::size_t of, const listener& done) {
    return walk(layer, reads, of, nullptr, done);
}

status residual_streams::walk(std::size_t layer, std::size_t reads, std::size_t of, stream_inputs* sums,
                              const listener& done) {
    const auto& d = m_.shape();
    const bool is_attention = reads < 2, is_inner = reads % 2 == 1;
    const std::size_t width = d.input_width(is_attention ? 1 : 3), last = count() - 1;
    buffer normed(2 * window_ * d.width * sizeof(float), buffer::untouched);
    buffer activated(window_ * width * sizeof(float), buffer::untouched);
    const auto part = [&](pass_part p, std::size_t at, const view& from, const view& to) {
        return s_.run(p, at, from, to);
    };
    const double share = 1 / static_cast<double>(windows());
    for (std::size_t w = 0; w < windows(); ++w) {
        const auto f = rows(full_, w, d.width), q = rows(quantized_[of], w, d.width);
        const auto kept = inner(last, w, width), q_inner = rows(activated, 0, width);
        status s;
        const auto then = [&](auto&& step) {
            if (s)
                s = step();
        };
        const auto add_to_sums = [&](const view& full, const view& quantized) {
            done(work_kind::streams, share / 2);
            if (sums == nullptr)
                return;
            then([&] { return add(*sums, of, w, full, quantized); });
            done(work_kind::sums, share);
        };
        if (is_inner) {
            // The matrices before this have been replaced, the full model's numbers are there.
            then([&] {
                return part(is_attention ? pass_part::attention : pass_part::network, layer, q, q_inner);
            });
            add_to_sums(kept, q_inner);
            if (of == last)
                then([&] {
                    return part(is_attention ? pass_part::add_attention : pass_part::add_network, layer, kept,
                                f);
                });
            std::copy_n(q_inner.data, window_ * width, inner(of, w, width).data);
        } else {
            if (!is_attention)
                then([&] {
                    return part(pass_part::add_attention, layer, inner(of, w, d.attention_width()), q);
                });
            else if (layer > 0)
                then([&] { return part(pass_part::add_network, layer - 1, inner(of, w, d.hidden), q); });
            const auto z = rows(normed, 0, d.width), z_full = rows(normed, 1, d.width);
            const auto norm = is_attention ? pass_part::attention_input : pass_part::network_input;
            then([&] { return part(norm, layer, q, z); });
            then([&] { return part(norm, layer, f, z_full); });
            add_to_sums(z_full, z);
            if (of == last)
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
