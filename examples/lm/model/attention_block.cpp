#include "model/session_state.hpp"

#include <algorithm>

namespace lm {

/// RMSNorm of every head in some channels of all rows, in place.
void session::state::norm_heads(const matrix_view<float>& of, range channels,
                                const std::vector<float>& w) const {
    const std::size_t size = m.shape().head_size;
    for (std::size_t r = 0; r < of.rows && !w.empty(); ++r) {
        const auto heads = crumb::matrix(of.row(r) + channels.begin, channels.size() / size, size);
        ops->rms_norm(heads, w, m.shape().norm_epsilon, heads);
    }
}

void session::state::turn(std::size_t layer, turned what, const matrix_view<float>& of, range rows,
                          range heads, worker& own) const {
    if (turns.empty())
        return;
    const auto& d = m.shape();
    const bool is_query = what == turned::queries || what == turned::outputs;
    const std::size_t group = is_query ? d.heads / d.kv_heads : 1, size = d.head_size;
    const std::size_t most = own.unturned.size() / size;
    for (std::size_t h = heads.begin; h < heads.end; ++h) {
        const auto& by = turns[4 * (layer * d.kv_heads + h / group) + static_cast<std::size_t>(what)];
        for (std::size_t r = rows.begin; r < rows.end; r += most) {
            const std::size_t n = std::min(most, rows.end - r);
            const matrix_view<float> part = {of.row(r) + h * size, n, size, of.stride};
            for (std::size_t i = 0; i < n; ++i)
                std::copy_n(part.row(i), size, own.unturned.data() + i * size);
            by.run(crumb::matrix<const float>(own.unturned.data(), n, size), part);
        }
    }
}
/// Queries of some heads and keys and values of others: turned by their positions, and into the cache.
void session::state::project(const model_layer& l, std::size_t layer, const matrix_input& input, share& s,
                             const projections& to, range heads, range kv_heads) {
    const auto& d = m.shape();
    const range q_channels = {heads.begin * d.head_size, heads.end * d.head_size};
    const range kv_channels = {kv_heads.begin * d.head_size, kv_heads.end * d.head_size};
    const bool is_fused = l.qkv.n() != 0;
    if (is_fused) {
        const auto all = crumb::matrix(q.data(), s.rows, l.qkv.n());
        const std::size_t keys = d.attention_width(), values = keys + d.kv_width();
        l.qkv.run(input, all, q_channels, bits);
        for (const std::size_t first : {keys, values})
            l.qkv.run(input, all, {first + kv_channels.begin, first + kv_channels.end}, bits);
    } else {
        l.q.run(input, to.q, q_channels, bits);
        l.k.run(input, to.k, kv_channels, bits);
        l.v.run(input, to.v, kv_channels, bits);
    }
    s.own.watch.lap(section::qkv);
    norm_heads(to.q, q_channels, l.query_norm);
    norm_heads(to.k, kv_channels, l.key_norm);
    if (const auto& rope = d.each_layer[layer].rope) {
        ops->rope(columns(to.q, q_channels), d.head_size, ropes[*rope], length);
        ops->rope(columns(to.k, kv_channels), d.head_size, ropes[*rope], length);
    }
    require_finite({layer, pass_place::stage::queries}, is_fused ? "attn_qkv.weight" : "attn_q.weight", to.q,
                   q_channels, length);
    if (cache_observer && threads.size() == 1)
        cache_observer({layer, to.q, to.k, to.v});
    const range rows = {0, s.rows};
    turn(layer, turned::queries, to.q, rows, heads, s.own);
    turn(layer, turned::keys, to.k, rows, kv_heads, s.own);
    turn(layer, turned::values, to.v, rows, kv_heads, s.own);
    keep(layer, to, kv_heads);
    s.own.watch.lap(section::floats);
}

/// Keys and values of kv heads [heads) of all rows to the cache.
void session::state::keep(std::size_t layer, const projections& of, range heads) {
    const bool is_fused = m.layers()[layer].qkv.n() != 0;
    crumb::kv_cache& cache = *caches->group_of(layer).cache;
    if (const status s = cache.write(caches->index_of(layer), of.k, of.v, heads); !s)
        failure.report({layer, pass_place::stage::keys, 0, heads.begin},
                       status::error(s.code(),
                                     is_fused ? "tensor blk.%zu.attn_qkv.weight: %s"
                                              : "tensors blk.%zu.attn_k.weight and attn_v.weight: %s",
                                     layer, s.message()));
}

/// Where they go: one matrix for all three, or three.
session::state::projections session::state::projections_of(const model_layer& l, std::size_t rows) {
    const std::size_t queries = m.shape().attention_width(), keys = m.shape().kv_width();
    if (l.qkv.n() == 0)
        return {crumb::matrix(q.data(), rows, queries), crumb::matrix(k.data(), rows, keys),
                crumb::matrix(v.data(), rows, keys)};
    const std::size_t all = queries + 2 * keys;
    return {crumb::matrix(q.data(), rows, queries, all), crumb::matrix(q.data() + queries, rows, keys, all),
            crumb::matrix(q.data() + queries + keys, rows, keys, all)};
}

/// Attention over a layer's cache.
status session::state::attend(std::size_t layer, const projections& of, const matrix_view<float>& out,
                              share& s, const crumb::kv_attention_part& part) {
    const layer_group& group = caches->group_of(layer);
    const std::size_t index = caches->index_of(layer);
    const bool is_skipping = kv.skip > 0 && s.rows == 1 && group.is_whole();
    if (!is_skipping && ranges_of(layer, s.rows - 1).count() > 1)
        return attend_ranges(layer, of, out, s, part);
    crumb::kv_attention_part own = part;
    const bool is_counted = planes_counted && s.rows == 1 && group.cache->coded() > 0;
    if (is_counted)
        own.errors = s.own.errors.data();
    status done;
    if (is_skipping)
        done = group.attend->run_skipping(
            of.q, *group.cache, index, out, s.own.scratch,
            {.epsilon = kv.skip, .scratch = s.own.weights, .reports = s.own.reports.data(), .part = own});
    else
        done = group.attend->run(of.q, *group.cache, index, out, s.own.scratch, own);
    if (!done)
        return done;
    const range heads = part.kv_heads.within(m.shape().kv_heads);
    if (is_skipping)
        for (std::size_t head = heads.begin; head < heads.end; ++head) {
            s.own.blocks += s.own.reports[head].blocks;
            s.own.unread += s.own.reports[head].skipped;
        }
    if (is_counted) {
        const std::size_t each = m.shape().heads / m.shape().kv_heads;
        for (std::size_t head = heads.begin * each; head < heads.end * each; ++head) {
            ++s.own.planes.heads;
            s.own.planes.scores += s.own.errors[head].second_scores;
            s.own.planes.weights += s.own.errors[head].second_weights;
        }
    }
    return done;
}

status session::state::attend_ranges(std::size_t layer, const projections& of, const matrix_view<float>& out,
                                     share& s, const crumb::kv_attention_part& part) {
    const layer_group& group = caches->group_of(layer);
    const crumb::kv_attention& plan = *group.attend;
    const range rows = part.rows.within(s.rows);
    const std::size_t most = rows_with_partials();
    for (std::size_t r = rows.begin, end = r; r < rows.end; r = end) {
        const crumb::kv_ranges ranges = ranges_of(layer, r);
        for (end = r + 1; end < rows.end && end - r < most && ranges_of(layer, end).goes_with(ranges);)
            ++end;
        const std::span<std::byte> memory = s.rows == 1 ? partials.bytes() : s.own.partials.bytes();
        if (const status done =
                plan.partials(of.q, *group.cache, caches->index_of(layer), {.of = ranges, .partials = memory},
                              s.own.scratch, {.rows = {r, end}, .kv_heads = part.kv_heads});
            !done)
            return done;
        plan.merge(memory, ranges.count(), crumb::matrix(out.row(r), end - r, out.cols, out.stride),
                   {.kv_heads = part.kv_heads});
    }
    return {};
}

// Ranges of all heads lie one behind another, and every thread takes an equal part of them, by their tokens.
status session::state::attend_shared(std::size_t layer, const projections& of, share& s,
                                     const crumb::kv_ranges& ranges) {
    const layer_group& group = caches->group_of(layer);
    const std::size_t heads = m.shape().kv_heads, count = ranges.count();
    const std::size_t all = heads * (length + 1);
    const auto owner = [&](std::size_t head, std::size_t i) {
        const range tokens = ranges.tokens(i, i + 1);
        return (head * (length + 1) + (tokens.begin + tokens.end) / 2) * s.parts / all;
    };
    for (std::size_t head = 0; head < heads; ++head) {
        std::size_t first = 0;
        while (first < count && owner(head, first) < s.part)
            ++first;
        std::size_t last = first;
        while (last < count && owner(head, last) == s.part)
            ++last;
        if (first == last)
            continue;
        if (const status done = group.attend->partials(of.q, *group.cache, caches->index_of(layer),
                                                       {ranges, {first, last}, partials.bytes()},
                                                       s.own.scratch, {.kv_heads = {head, head + 1}});
            !done)
            return done;
    }
    return {};
}

/// What `attn_output` reads, from the residual stream.
matrix_view<float> session::state::attention(const model_layer& l, std::size_t layer, share& s) {
    const auto& d = m.shape();
    const auto h = residual(s.rows);
    const auto input = l.qkv.n() != 0
                           ? prepared(s, h, l.attention_norm, l.attention_norm_bias, {&l.qkv})
                           : prepared(s, h, l.attention_norm, l.attention_norm_bias, {&l.q, &l.k, &l.v});
    const projections to = projections_of(l, s.rows);
    const auto out = crumb::matrix(attended.data(), s.rows, d.attention_width());
    // Attention over heads that a thread has projected itself needs nobody else's results.
    const auto heads_of = [&] { return crumb::split(d.kv_heads, s.parts, s.part); };
    const auto report = [&](const crumb::kv_attention_part& part, const status& done) {
        if (!done)
            failure.report({layer, pass_place::stage::attention, part.rows.begin, part.kv_heads.begin}, done);
    };
    crumb::kv_attention_part part = {.kv_heads = heads_of()};
    const std::size_t group = d.heads / d.kv_heads;
    const std::size_t most = (d.kv_heads + s.parts - 1) / s.parts;
    if (most * s.parts * 8 <= d.kv_heads * 9) {
        project(l, layer, input, s, to, {part.kv_heads.begin * group, part.kv_heads.end * group},
                part.kv_heads);
        report(part, attend(layer, to, out, s, part));
    } else {
        project(l, layer, input, s, to, crumb::split(d.heads, s.parts, s.part), part.kv_heads);
        wait(s);
        const crumb::kv_ranges ranges = ranges_of(layer, 0);
        if (s.rows == 1 && kv.skip == 0 && ranges.count() > 1 && s.parts > 1) {
            report({}, attend_shared(layer, to, s, ranges));
            s.own.watch.lap(section::attention);
            wait(s);
            part = {.kv_heads = heads_of()};
            caches->group_of(layer).attend->merge(partials.bytes(), ranges.count(), out,
                                                  {.kv_heads = part.kv_heads});
        } else {
            part = s.rows > 1 ? crumb::kv_attention_part{.rows = s.mine}
                              : crumb::kv_attention_part{.kv_heads = heads_of()};
            report(part, attend(layer, to, out, s, part));
        }
    }
    const range kv_heads = part.kv_heads.within(d.kv_heads);
    turn(layer, turned::outputs, out, part.rows.within(s.rows),
         {kv_heads.begin * group, kv_heads.end * group}, s.own);
    s.own.watch.lap(section::attention);
    wait(s);
    return out;
}

void session::state::add_attended(const model_layer& l, std::size_t layer, const matrix_view<float>& from,
                                  share& s) {
    add(s, l.output, prepared(s, from, {&l.output}), l.attention_post_norm, section::output,
        {layer, pass_place::stage::output}, "attn_output.weight");
}

} // namespace lm
