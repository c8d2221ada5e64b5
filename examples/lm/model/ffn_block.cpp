#include "model/ffn_file.hpp"
#include "model/session_state.hpp"

namespace lm {

/// What `ffn_down` reads, from the residual stream.
matrix_view<float> session::state::network(const model_layer& l, std::size_t layer, share& s) {
    const auto& d = m.shape();
    const auto h = residual(s.rows);
    const gate_type gate_of = d.traits.gate;
    const auto input = gate_of == gate_type::separate
                           ? prepared(s, h, l.ffn_norm, l.ffn_norm_bias, {&l.up, &l.gate})
                           : prepared(s, h, l.ffn_norm, l.ffn_norm_bias, {&l.up});
    const range channels = s.split(d.hidden);
    auto ups = crumb::matrix(up.data(), s.rows, d.hidden), inner = ups;
    auto gates = crumb::matrix(gate.data(), s.rows, d.hidden);
    if (gate_of == gate_type::fused) {
        const auto both = crumb::matrix(up.data(), s.rows, 2 * d.hidden);
        l.up.run(input, both, channels, bits);
        l.up.run(input, both, {d.hidden + channels.begin, d.hidden + channels.end}, bits);
        inner = gates;
        gates = columns(both, {0, d.hidden});
        ups = columns(both, {d.hidden, 2 * d.hidden});
    } else {
        l.up.run(input, ups, channels, bits);
        if (gate_of == gate_type::separate)
            l.gate.run(input, gates, channels, bits);
    }
    activate(columns(gates, channels), columns(ups, channels), columns(inner, channels));
    require_finite({layer, pass_place::stage::up},
                   gate_of == gate_type::none ? "ffn_up.weight" : "ffn_up.weight, gated", inner, channels,
                   length);
    s.own.watch.lap(section::up);
    wait(s);
    return inner;
}

void session::state::add_activated(const model_layer& l, std::size_t layer, const matrix_view<float>& from,
                                   share& s) {
    add(s, l.down, prepared(s, from, {&l.down}), l.ffn_post_norm, section::down,
        {layer, pass_place::stage::down}, "ffn_down.weight");
}

/// What goes into `ffn_down`; without a gate, `gates` is not read.
void session::state::activate(const matrix_view<float>& gates, const matrix_view<float>& ups,
                              const matrix_view<float>& inner) const {
    const bool is_silu = traits().activation == activation_function::silu;
    if (traits().gate != gate_type::none)
        return is_silu ? ops->silu_gated(gates, ups, inner) : ops->gelu_tanh_gated(gates, ups, inner);
    return is_silu ? ops->silu(ups, inner) : ops->gelu_tanh(ups, inner);
}

void session::state::folded_block(const model_layer& l, std::size_t layer, share& s) {
    const std::size_t width = m.shape().width;
    const auto h = residual(s.rows);
    const auto from = crumb::matrix(x.data(), s.rows, width), to = crumb::matrix(added.data(), s.rows, width);
    const crumb::folded_ffn& network = l.folded->plan();
    crumb::folded_ffn_batch all{from, to, ffn_scratch.bytes()};
    // What a phase leaves to the next one depends on the number of parts, even if one thread computes them
    // all.
    const std::size_t parts = s.parts, last = crumb::folded_ffn::phases - 1;
    if (ffn_counted)
        all.counters = std::span(ffn_counters).first(parts);
    for (std::size_t phase = 0; phase <= last; ++phase) {
        if (!network.has_phase(phase, s.rows))
            continue;
        for (std::size_t part = s.part; part < parts; part += s.parts) {
            if (phase == 0) {
                norm(h, l.ffn_norm, l.ffn_norm_bias, from, network.rows_of(s.rows, part, parts));
                s.own.watch.lap(section::floats);
            }
            network.run_phase(phase, all, part, parts);
            if (phase == last) {
                const range channels = network.outputs_of(part, parts);
                ops->add(columns(h, channels), columns(to, channels), columns(h, channels));
                require_finite({layer, pass_place::stage::down}, "ffn, folded", h, channels, length);
            }
        }
        s.own.watch.lap(phase < 2 ? section::up : section::down);
        wait(s);
    }
    if (!ffn_counted)
        return;
    if (s.part == 0) {
        const crumb::folded_ffn_counters counted = all.counted();
        ffn.tokens += s.rows;
        ffn.neurons += counted.neurons;
        ffn.fixed += counted.fixed;
        if (ffn_misses)
            ffn.missed = ffn.missed.value_or(0) + network.count_missed(all, parts);
        ffn.bytes += static_cast<double>(s.rows) * static_cast<double>(network.bytes_read(0)) +
                     static_cast<double>(counted.fixed) *
                         static_cast<double>(network.bytes_read(1) - network.bytes_read(0));
    }
    if (ffn_misses) // they are counted by what others write to next
        wait(s);
}

} // namespace lm
