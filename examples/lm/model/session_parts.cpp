#include "model/session_state.hpp"

#include <algorithm>

namespace lm {

using crumb::errc;

namespace {

void copy(const matrix_view<const float>& from, const matrix_view<float>& to, range rows) {
    for (std::size_t r = rows.begin; r < rows.end; ++r)
        std::copy_n(from.row(r), from.cols, to.row(r));
}

} // namespace

status session::embed(std::span<const std::int32_t> tokens, const matrix_view<float>& to) {
    state& s = *state_;
    if (tokens.empty() || tokens.size() > s.batch || to.rows != tokens.size() || to.cols != s.m.shape().width)
        return status::error(errc::bad_shape, "%zu tokens as %zu rows of %zu, a batch has %zu", tokens.size(),
                             to.rows, to.cols, s.batch);
    for (const std::int32_t token : tokens)
        if (token < 0 || static_cast<std::size_t>(token) >= s.m.shape().vocabulary)
            return status::error(errc::invalid_argument, "token %d, the vocabulary has %zu", token,
                                 s.m.shape().vocabulary);
    reset();
    s.failure.clear();
    s.embed(tokens, {0, tokens.size()});
    copy(s.residual(tokens.size()), to, {0, to.rows});
    return s.failure.error();
}

status session::run(pass_part part, std::size_t layer, const matrix_view<const float>& from,
                    const matrix_view<float>& to) {
    state& s = *state_;
    const auto& d = s.m.shape();
    const bool is_last = part == pass_part::output_input || part == pass_part::output;
    if (from.rows == 0 || from.rows > s.batch || from.rows != to.rows || (!is_last && layer >= d.layers))
        return status::error(errc::bad_shape, "layer %zu for %zu rows into %zu, a batch has %zu", layer,
                             from.rows, to.rows, s.batch);
    const std::size_t reads = part == pass_part::add_attention ? d.attention_width()
                              : part == pass_part::add_network ? d.hidden
                                                               : d.width;
    const std::size_t writes = part == pass_part::attention ? d.attention_width()
                               : part == pass_part::network ? d.hidden
                               : part == pass_part::output  ? d.vocabulary
                                                            : d.width;
    if (from.cols != reads || to.cols != writes)
        return status::error(errc::bad_shape, "layer %zu from %zu to %zu channels, %zu and %zu are needed",
                             layer, from.cols, to.cols, reads, writes);
    if (!is_last && s.m.layers()[layer].folded)
        return status::error(errc::unsupported, "layer %zu: its network is folded", layer);
    reset();
    if (const status grown = s.grow(from.rows); !grown)
        return grown;
    s.failure.clear();
    s.threads.step(s.many_rows, from.rows,
                   [&](std::size_t index, std::size_t parts) { s.run(part, layer, from, to, index, parts); });
    return s.failure.error();
}

void session::state::run(pass_part part, std::size_t layer, const matrix_view<const float>& from,
                         const matrix_view<float>& to, std::size_t index, std::size_t parts) {
    share s{workers[index], index, parts, 0, {}};
    s.take(from.rows);
    s.own.watch.start();
    if (part == pass_part::output_input) {
        const matrix_input input = output_input(s, from);
        return copy(input.x(), to, s.mine);
    }
    if (part == pass_part::output)
        return write_logits(prepared(s, from, {&m.output()}), to, s, 0);
    const model_layer& l = m.layers()[layer];
    const auto h = residual(s.rows);
    switch (part) {
    case pass_part::attention_input:
        return norm(from, l.attention_norm, l.attention_norm_bias, to, s.mine);
    case pass_part::network_input:
        return norm(from, l.ffn_norm, l.ffn_norm_bias, to, s.mine);
    case pass_part::attention:
    case pass_part::network: {
        copy(from, h, s.mine);
        wait(s);
        const auto out = part == pass_part::attention ? attention(l, layer, s) : network(l, layer, s);
        return copy(out, to, s.mine);
    }
    default:
        break;
    }
    const bool is_attention = part == pass_part::add_attention;
    const auto read = is_attention ? crumb::matrix(attended.data(), s.rows, from.cols)
                                   : crumb::matrix(up.data(), s.rows, from.cols);
    copy(from, read, s.mine);
    copy(to, h, s.mine);
    wait(s);
    if (is_attention)
        add_attended(l, layer, read, s);
    else
        add_activated(l, layer, read, s);
    copy(h, to, s.mine);
}

} // namespace lm
