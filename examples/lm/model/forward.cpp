#include "model/session_state.hpp"

#include <cmath>
#include <limits>

namespace lm {

namespace {

/// The column of the first number of a row that is NaN or infinite; part.end if there is none.
std::size_t first_not_finite(const float* row, range part) {
    std::size_t i = part.begin;
    while (i < part.end && std::fabs(row[i]) <= std::numeric_limits<float>::max())
        ++i;
    return i;
}

} // namespace

void session::state::require_finite(pass_place at, const char* tensor, const matrix_view<const float>& of,
                                    range part, std::size_t first) {
    for (at.row = 0; at.row < of.rows; ++at.row) {
        const float* row = of.row(at.row);
        if (at.column = first_not_finite(row, part); at.column >= part.end)
            continue;
        const bool in_layer = at.at != pass_place::stage::embedding && at.at != pass_place::stage::vocabulary;
        const std::string layer = in_layer ? "blk." + std::to_string(at.layer) + "." : std::string();
        return failure.report(at, status::error(crumb::errc::not_finite,
                                                "tensor %s%s: channel %zu of token %zu is %g", layer.c_str(),
                                                tensor, at.column, first + at.row, double{row[at.column]}));
    }
}

void session::state::norm(const matrix_view<const float>& from, const std::vector<float>& w,
                          const std::vector<float>& bias, const matrix_view<float>& to, range rows) const {
    if (traits().norms == norm_type::rms)
        ops->rms_norm(from, w, m.shape().norm_epsilon, to, rows);
    else
        ops->layer_norm(from, w, bias, m.shape().norm_epsilon, to, rows);
}

/// The residual stream of some of the tokens as it starts.
void session::state::embed(std::span<const std::int32_t> tokens, range rows) {
    const std::size_t width = m.shape().width;
    const auto h = residual(tokens.size());
    for (std::size_t r = rows.begin; r < rows.end; ++r) {
        m.embedding(static_cast<std::size_t>(tokens[r]), h.row(r));
        if (const float scale = m.shape().embedding_scale; scale != 1)
            for (std::size_t i = 0; i < width; ++i)
                h.row(r)[i] *= scale;
        if (const float* position = m.position(length + r); position != nullptr)
            for (std::size_t i = 0; i < width; ++i)
                h.row(r)[i] += position[i];
        require_finite({}, traits().learned_positions ? "position_embd.weight" : "token_embd.weight",
                       crumb::matrix<const float>(h.row(r), 1, width), {0, width}, length + r);
    }
}

// Every thread runs this with its part; a single token has been embedded before. Rows are a thread's own in
// norms and quantization, channels in products; a barrier stands wherever the one meets the other. Of a
// single row every thread makes its own normed and quantized copy, which takes less time than handing one
// over.
void session::state::forward(std::span<const std::int32_t> tokens, std::size_t wanted, std::size_t part,
                             std::size_t parts) {
    const auto& d = m.shape();
    share s{workers[part], part, parts, 0, {}};
    s.take(tokens.size());
    s.own.watch.start();
    const auto h = residual(s.rows);
    if (s.rows > 1) {
        embed(tokens, s.mine);
        s.own.watch.lap(section::floats);
        wait(s);
    }
    for (std::size_t i = 0; i < d.layers; ++i) {
        const model_layer& l = m.layers()[i];
        add_attended(l, i, attention(l, i, s), s);
        if (l.folded)
            folded_block(l, i, s);
        else
            add_activated(l, i, network(l, i, s), s);
    }
    if (wanted == 0)
        return;
    const auto last = crumb::matrix<const float>(h.row(s.rows - wanted), wanted, d.width);
    s.take(wanted);
    write_logits(output_input(s, last), crumb::matrix(logits.data(), wanted, d.vocabulary), s,
                 length + tokens.size() - wanted);
}

/// What the output matrix reads of some rows of the residual stream.
matrix_input session::state::output_input(share& s, const matrix_view<const float>& from) {
    const matrix& basis = m.output_basis();
    if (basis.n() == 0)
        return prepared(s, from, m.output_norm(), m.output_norm_bias(), {&m.output()});
    const auto to = crumb::matrix(added.data(), s.rows, basis.n());
    basis.run(prepared(s, from, m.output_norm(), m.output_norm_bias(), {&basis}), to, s.split(basis.n()),
              bits);
    wait(s);
    return prepared(s, to, {&m.output()});
}

/// Logits of rows, of which the first one is token `first`: this thread's channels.
void session::state::write_logits(const matrix_input& from, const matrix_view<float>& to, share& s,
                                  std::size_t first) {
    const auto& d = m.shape();
    const range channels = s.split(d.vocabulary);
    m.output().run(from, to, channels, bits);
    for (std::size_t r = 0; d.logit_cap != 0 && r < to.rows; ++r)
        for (std::size_t i = channels.begin; i < channels.end; ++i)
            to.row(r)[i] = d.logit_cap * std::tanh(to.row(r)[i] / d.logit_cap);
    require_finite({d.layers, pass_place::stage::vocabulary}, m.output_tensor(), to, channels, first);
    s.own.watch.lap(section::vocabulary);
}

/// `from` as its readers want it.
matrix_input session::state::prepared(share& s, const matrix_view<const float>& from,
                                      std::initializer_list<const matrix*> readers) {
    matrix_input input(from, s.rows == 1 ? s.own.copies.bytes() : copies.bytes());
    for (const matrix* w : readers)
        w->prepare(input, s.rows == 1 ? range{0, 1} : s.mine);
    s.own.watch.lap(section::quantization);
    if (s.rows > 1)
        wait(s);
    // The others stop at the next barrier before anybody overwrites the input.
    if (observer)
        observer(**readers.begin(), from, s.part, s.parts);
    return input;
}

/// The same with a norm in between.
matrix_input session::state::prepared(share& s, const matrix_view<const float>& from,
                                      const std::vector<float>& w, const std::vector<float>& bias,
                                      std::initializer_list<const matrix*> readers) {
    const auto to = crumb::matrix(s.rows == 1 ? s.own.row.data() : x.data(), s.rows, from.cols);
    norm(from, w, bias, to, s.rows == 1 ? range{0, 1} : s.mine);
    s.own.watch.lap(section::floats);
    return prepared(s, to, readers);
}

/// Adds a product, normed if `post_norm` is not empty, to the residual stream: this thread's channels of all
/// rows, or its rows.
void session::state::add(share& s, const matrix& w, const matrix_input& from,
                         const std::vector<float>& post_norm, section kind, const pass_place& at,
                         const char* tensor) {
    const auto h = residual(s.rows);
    const auto sum = crumb::matrix(added.data(), s.rows, w.n());
    const range channels = s.split(w.n());
    w.run(from, sum, channels, bits);
    if (post_norm.empty()) {
        ops->add(columns(h, channels), columns(sum, channels), columns(h, channels));
        require_finite(at, tensor, h, channels, length);
        s.own.watch.lap(kind);
        return wait(s);
    }
    s.own.watch.lap(kind);
    wait(s);
    ops->rms_norm(sum, post_norm, m.shape().norm_epsilon, sum, s.mine);
    ops->add(h, sum, h, s.mine);
    s.own.watch.lap(section::floats);
    wait(s);
    require_finite(at, tensor, h, s.split(w.n()), length);
}

} // namespace lm
