#include "model/session.hpp"

#include "machine/memory.hpp"
#include "model/ffn_file.hpp"
#include "model/first_failure.hpp"

#include <crumb/op/cache/kv_attention.hpp>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <numeric>

namespace lm {

using crumb::errc;
using crumb::matrix_view;
using crumb::range;
using crumb::result;
using crumb::status;

namespace {

/// A view of some columns of a matrix.
matrix_view<float> columns(const matrix_view<float>& m, range part) {
    return {m.data + part.begin, m.rows, part.size(), m.stride};
}

/// Tokens that the cache takes memory for at a time: long pages are read faster than short ones.
constexpr std::size_t page_tokens = 16384;

/// The column of the first number of a row that is NaN or infinite; part.end if there is none.
std::size_t first_not_finite(const float* row, range part) {
    std::size_t i = part.begin;
    while (i < part.end && std::fabs(row[i]) <= std::numeric_limits<float>::max())
        ++i;
    return i;
}

} // namespace

struct session::state {
    state(const model& model_, team threads_) : m(model_), threads(std::move(threads_)) {}

    /// What a thread has for itself.
    struct worker {
        buffer scratch; ///< of attention
        buffer copies;  ///< quantized copies of one row
        std::vector<float> row;
        stopwatch watch;
        buffer weights; ///< of all coded tokens, if values may be left unread
        std::vector<crumb::kv_skip_report> reports;
        std::size_t blocks = 0, unread = 0;
    };
    /// A thread's part of a forward pass.
    struct share {
        worker& own;
        std::size_t part, parts;
        std::size_t rows;
        range mine; ///< of the rows
        range split(std::size_t channels) const {
            return crumb::split(channels, parts, part, crumb::tile_channels);
        }
        void take(std::size_t all_rows) {
            rows = all_rows;
            mine = crumb::split(rows, parts, part);
        }
    };

    /// Queries, keys and values of all rows.
    struct projections {
        matrix_view<float> q, k, v;
    };

    const model& m;
    team threads;
    kv_type kv;
    std::size_t context = 0, batch = 0, length = 0;
    int bits = 0; ///< of nested matrices
    pace one_row, many_rows, encoding;
    std::optional<crumb::float_ops> ops;
    std::optional<crumb::kv_cache> cache;
    std::optional<crumb::kv_attention> attend;
    first_failure failure;
    buffer rope_memory;
    crumb::rope_table rope;
    buffer cache_state;
    std::size_t capacity = 0;  ///< tokens that there is memory for
    std::vector<buffer> pages; ///< of the cache
    std::vector<worker> workers;
    buffer copies;
    buffer ffn_scratch; ///< of folded networks
    std::vector<crumb::folded_ffn_counters> ffn_counters;
    bool ffn_counted = false, ffn_misses = false;
    ffn_counts ffn;
    std::function<void(const matrix&, const matrix_view<const float>&)> observer;
    std::function<void(std::size_t, const matrix_view<const float>&, const matrix_view<const float>&)>
        cache_observer;
    std::vector<float> hidden, x, q, k, v, attended, added, up, gate, logits;

    std::size_t kv_width() const { return m.shape().kv_heads * m.shape().head_size; }
    bool is_llama() const { return m.shape().arch == architecture::llama; }
    matrix_view<float> residual(std::size_t rows) {
        return crumb::matrix(hidden.data(), rows, m.shape().width);
    }

    /// Reports the first number of some columns that is not finite. `tensor` has made it, row 0 is token
    /// `first`.
    void require_finite(pass_place at, const char* tensor, const matrix_view<const float>& of, range part,
                        std::size_t first) {
        for (at.row = 0; at.row < of.rows; ++at.row) {
            const float* row = of.row(at.row);
            if (at.column = first_not_finite(row, part); at.column >= part.end)
                continue;
            const bool in_layer =
                at.at != pass_place::stage::embedding && at.at != pass_place::stage::vocabulary;
            const std::string layer = in_layer ? "blk." + std::to_string(at.layer) + "." : std::string();
            return failure.report(
                at, status::error(errc::not_finite, "tensor %s%s: channel %zu of token %zu is %g",
                                  layer.c_str(), tensor, at.column, first + at.row, double{row[at.column]}));
        }
    }
    /// Keys and values of kv heads [heads) of all rows to the cache.
    void keep(std::size_t layer, const projections& of, range heads) {
        if (const status s = cache->write(layer, of.k, of.v, heads); !s)
            failure.report({layer, pass_place::stage::keys, 0, heads.begin},
                           status::error(s.code(),
                                         is_llama() ? "tensors blk.%zu.attn_k.weight and attn_v.weight: %s"
                                                    : "tensor blk.%zu.attn_qkv.weight: %s",
                                         layer, s.message()));
    }
    /// Encodes what is older than the window.
    void encode() {
        if (const auto e = cache->begin_encoding()) {
            threads.step(encoding, e.items, [&](std::size_t part, std::size_t parts) {
                cache->encode(e, workers[part].scratch.bytes(), crumb::split(e.items, parts, part));
            });
            cache->end_encoding(e);
        }
    }

    /// Makes room for `tokens` tokens: pages of the cache, rotations, weights of all coded tokens.
    status grow(std::size_t tokens);

    /// Whatever has been derived from `parts`, `part` and `mine` is out of date behind this.
    void wait(share& s) const {
        if (const std::size_t parts = threads.barrier(s.part); parts != s.parts) {
            s.parts = parts;
            s.take(s.rows);
        }
        s.own.watch.lap(section::waiting);
    }

    void norm(const matrix_view<const float>& from, const std::vector<float>& w,
              const std::vector<float>& bias, const matrix_view<float>& to, range rows) const {
        if (is_llama())
            ops->rms_norm(from, w, m.shape().norm_epsilon, to, rows);
        else
            ops->layer_norm(from, w, bias, m.shape().norm_epsilon, to, rows);
    }
    matrix_input prepared(share& s, const matrix_view<const float>& from,
                          std::initializer_list<const matrix*> readers);
    matrix_input prepared(share& s, const matrix_view<const float>& from, const std::vector<float>& w,
                          const std::vector<float>& bias, std::initializer_list<const matrix*> readers);
    void add(share& s, const matrix& w, const matrix_input& from, section kind, const pass_place& at,
             const char* tensor);

    void embed(std::span<const std::int32_t> tokens, range rows);
    void forward(std::span<const std::int32_t> tokens, std::size_t wanted, std::size_t part,
                 std::size_t parts);
    void attention_block(const model_layer& l, std::size_t layer, share& s);
    void project(const model_layer& l, std::size_t layer, const matrix_input& input, share& s,
                 const projections& to, range heads, range kv_heads);
    void ffn_block(const model_layer& l, std::size_t layer, share& s);
    void folded_block(const model_layer& l, std::size_t layer, share& s);
};

/// The residual stream of some of the tokens as it starts.
void session::state::embed(std::span<const std::int32_t> tokens, range rows) {
    const std::size_t width = m.shape().width;
    const auto h = residual(tokens.size());
    for (std::size_t r = rows.begin; r < rows.end; ++r) {
        m.embedding(static_cast<std::size_t>(tokens[r]), h.row(r));
        if (const float* position = m.position(length + r); position != nullptr)
            for (std::size_t i = 0; i < width; ++i)
                h.row(r)[i] += position[i];
        require_finite({}, is_llama() ? "token_embd.weight" : "position_embd.weight",
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
        attention_block(m.layers()[i], i, s);
        ffn_block(m.layers()[i], i, s);
    }
    if (wanted == 0)
        return;
    const auto last = crumb::matrix<const float>(h.row(s.rows - wanted), wanted, d.width);
    s.take(wanted);
    const auto input = prepared(s, last, m.output_norm(), m.output_norm_bias(), {&m.output()});
    const auto all = crumb::matrix(logits.data(), wanted, d.vocabulary);
    m.output().run(input, all, s.split(d.vocabulary), bits);
    require_finite({d.layers, pass_place::stage::vocabulary}, m.output_tensor(), all, s.split(d.vocabulary),
                   length + tokens.size() - wanted);
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
    if (observer && s.part == 0)
        observer(**readers.begin(), from);
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

/// Adds a product to the residual stream: this thread's channels of all rows.
void session::state::add(share& s, const matrix& w, const matrix_input& from, section kind,
                         const pass_place& at, const char* tensor) {
    const range channels = s.split(w.n());
    const auto h = residual(s.rows);
    const auto sum = crumb::matrix(added.data(), s.rows, w.n());
    w.run(from, sum, channels, bits);
    ops->add(columns(h, channels), columns(sum, channels), columns(h, channels));
    require_finite(at, tensor, h, channels, length);
    s.own.watch.lap(kind);
    wait(s);
}

/// Queries of some heads and keys and values of others: turned by their positions, and into the cache.
void session::state::project(const model_layer& l, std::size_t layer, const matrix_input& input, share& s,
                             const projections& to, range heads, range kv_heads) {
    const auto& d = m.shape();
    const range q_channels = {heads.begin * d.head_size, heads.end * d.head_size};
    const range kv_channels = {kv_heads.begin * d.head_size, kv_heads.end * d.head_size};
    if (is_llama()) {
        l.q.run(input, to.q, q_channels, bits);
        l.k.run(input, to.k, kv_channels, bits);
        l.v.run(input, to.v, kv_channels, bits);
    } else {
        const auto all = crumb::matrix(q.data(), s.rows, 3 * d.width);
        for (std::size_t i = 0; i < 3; ++i)
            l.qkv.run(input, all, {i * d.width + q_channels.begin, i * d.width + q_channels.end}, bits);
    }
    s.own.watch.lap(section::qkv);
    if (is_llama()) {
        ops->rope(columns(to.q, q_channels), d.head_size, rope, length);
        ops->rope(columns(to.k, kv_channels), d.head_size, rope, length);
    }
    require_finite({layer, pass_place::stage::queries}, is_llama() ? "attn_q.weight" : "attn_qkv.weight",
                   to.q, q_channels, length);
    keep(layer, to, kv_heads);
    if (cache_observer && threads.size() == 1)
        cache_observer(layer, to.k, to.v);
    s.own.watch.lap(section::floats);
}

void session::state::attention_block(const model_layer& l, std::size_t layer, share& s) {
    const auto& d = m.shape();
    const auto h = residual(s.rows);
    const auto input = is_llama()
                           ? prepared(s, h, l.attention_norm, l.attention_norm_bias, {&l.q, &l.k, &l.v})
                           : prepared(s, h, l.attention_norm, l.attention_norm_bias, {&l.qkv});
    projections to;
    if (is_llama()) {
        to = {crumb::matrix(q.data(), s.rows, d.width), crumb::matrix(k.data(), s.rows, kv_width()),
              crumb::matrix(v.data(), s.rows, kv_width())};
    } else {
        // gpt2's matrix yields queries, keys and values side by side.
        for (std::size_t i = 0; i < 3; ++i)
            (i == 0   ? to.q
             : i == 1 ? to.k
                      : to.v) = crumb::matrix(q.data() + i * d.width, s.rows, d.width, 3 * d.width);
    }
    // Attention over heads that a thread has projected itself needs nobody else's results.
    const auto heads_of = [&] { return crumb::split(d.kv_heads, s.parts, s.part); };
    crumb::kv_attention_part part = {.kv_heads = heads_of()};
    const std::size_t group = d.heads / d.kv_heads;
    const std::size_t most = (d.kv_heads + s.parts - 1) / s.parts;
    if (most * s.parts * 8 <= d.kv_heads * 9) {
        project(l, layer, input, s, to, {part.kv_heads.begin * group, part.kv_heads.end * group},
                part.kv_heads);
    } else {
        project(l, layer, input, s, to, crumb::split(d.heads, s.parts, s.part), part.kv_heads);
        wait(s);
        part = s.rows > 1 ? crumb::kv_attention_part{.rows = s.mine}
                          : crumb::kv_attention_part{.kv_heads = heads_of()};
    }
    const auto out = crumb::matrix(attended.data(), s.rows, d.width);
    status attended_to;
    if (kv.skip > 0 && s.rows == 1) {
        std::vector<crumb::kv_skip_report>& reports = s.own.reports;
        attended_to = attend->run_skipping(
            to.q, *cache, layer, out, s.own.scratch,
            {.epsilon = kv.skip, .scratch = s.own.weights, .reports = reports.data(), .part = part});
        for (std::size_t head = part.kv_heads.begin; head < part.kv_heads.end; ++head) {
            s.own.blocks += reports[head].blocks;
            s.own.unread += reports[head].skipped;
        }
    } else {
        attended_to = attend->run(to.q, *cache, layer, out, s.own.scratch, part);
    }
    if (!attended_to)
        failure.report({layer, pass_place::stage::attention, part.rows.begin, part.kv_heads.begin},
                       attended_to);
    s.own.watch.lap(section::attention);
    wait(s);
    add(s, l.output, prepared(s, out, {&l.output}), section::output, {layer, pass_place::stage::output},
        "attn_output.weight");
}

void session::state::ffn_block(const model_layer& l, std::size_t layer, share& s) {
    if (l.folded)
        return folded_block(l, layer, s);
    const auto& d = m.shape();
    const auto h = residual(s.rows);
    const auto input = is_llama() ? prepared(s, h, l.ffn_norm, l.ffn_norm_bias, {&l.up, &l.gate})
                                  : prepared(s, h, l.ffn_norm, l.ffn_norm_bias, {&l.up});
    const range channels = s.split(d.hidden);
    const auto inner = crumb::matrix(up.data(), s.rows, d.hidden);
    const auto part = columns(inner, channels);
    l.up.run(input, inner, channels, bits);
    if (is_llama()) {
        const auto gates = crumb::matrix(gate.data(), s.rows, d.hidden);
        l.gate.run(input, gates, channels, bits);
        ops->silu_gated(columns(gates, channels), part, part);
    } else {
        ops->gelu_tanh(part, part);
    }
    require_finite({layer, pass_place::stage::up}, is_llama() ? "ffn_up.weight, gated" : "ffn_up.weight",
                   inner, channels, length);
    s.own.watch.lap(section::up);
    wait(s);
    add(s, l.down, prepared(s, inner, {&l.down}), section::down, {layer, pass_place::stage::down},
        "ffn_down.weight");
}

void session::state::folded_block(const model_layer& l, std::size_t layer, share& s) {
    const std::size_t width = m.shape().width;
    const auto h = residual(s.rows);
    const auto from = crumb::matrix(x.data(), s.rows, width), to = crumb::matrix(added.data(), s.rows, width);
    norm(h, l.ffn_norm, l.ffn_norm_bias, from, s.mine);
    s.own.watch.lap(section::floats);
    wait(s);
    const crumb::folded_ffn& network = l.folded->plan();
    crumb::folded_ffn_batch all{from, to, ffn_scratch.bytes()};
    // What a phase leaves to the next one depends on the number of parts, even if one thread computes them
    // all.
    const std::size_t parts = s.parts;
    if (ffn_counted)
        all.counters = std::span(ffn_counters).first(parts);
    for (std::size_t phase = 0; phase < crumb::folded_ffn::phases; ++phase) {
        for (std::size_t part = s.part; part < parts; part += s.parts)
            network.run_phase(phase, all, part, parts);
        s.own.watch.lap(phase < 2 ? section::up : section::down);
        wait(s);
    }
    if (ffn_counted && s.part == 0) {
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
    const range channels = s.split(width);
    ops->add(columns(h, channels), columns(to, channels), columns(h, channels));
    require_finite({layer, pass_place::stage::down}, "ffn, folded", h, channels, length);
    s.own.watch.lap(section::floats);
    wait(s);
}

session::session(std::unique_ptr<state> s) : state_(std::move(s)) {}
session::session(session&&) noexcept = default;
session& session::operator=(session&&) noexcept = default;
session::~session() = default;

result<session> session::make(const model& m, team threads, const kv_type& kv, std::size_t context,
                              std::size_t batch, const crumb::pq_codebooks& codebooks) {
    const auto& d = m.shape();
    if (context == 0 || context > d.context)
        return status::error(errc::invalid_argument, "a context of %zu tokens: the model allows 1 to %zu",
                             context, d.context);
    auto s = std::make_unique<state>(m, std::move(threads));
    s->kv = kv;
    s->bits = m.precisions() ? m.precisions()->parent : 0;
    s->context = context;
    constexpr std::size_t largest_batch = std::size_t{1} << 16;
    s->batch = batch = std::max<std::size_t>(1, std::min({batch, context, largest_batch}));
    const crumb::kv_cache_options shape{
        .layers = d.layers,
        .kv_heads = d.kv_heads,
        .head_size = d.head_size,
        .max_tokens = context,
        .max_rows = batch,
        .page_tokens = crumb::round_up(std::min(context, page_tokens), crumb::kv_part_tokens),
        .codec = kv.codec,
        .sinks = kv.sinks,
        .window = kv.window,
        .codebooks = codebooks};
    const auto state_bytes = crumb::kv_cache::state_bytes(shape);
    if (!state_bytes)
        return state_bytes.error();
    s->cache_state = buffer(*state_bytes);
    const auto cache = crumb::kv_cache::create(shape, s->cache_state.bytes());
    if (!cache)
        return cache.error();
    s->cache.emplace(*cache);
    const auto ops = crumb::float_ops::plan();
    if (!ops)
        return ops.error();
    s->ops.emplace(*ops);
    const auto attend = crumb::kv_attention::plan(
        shape, {.heads = d.heads, .mode = kv.exact ? crumb::kv_mode::exact : crumb::kv_mode::fast});
    if (!attend)
        return attend.error();
    if (kv.skip > 0 && !crumb::kv_attention::can_skip(shape.codec, d.head_size, d.heads / d.kv_heads))
        return status::error(
            errc::unsupported,
            "--kv %s: values cannot be left unread in heads of %zu channels that serve %zu query "
            "heads each",
            kv.name().c_str(), d.head_size, d.heads / d.kv_heads);
    s->attend.emplace(*attend);
    std::vector<crumb::activation_plan> inputs = m.output().input_plans();
    for (const named_matrix& each : m.matrices())
        for (const crumb::activation_plan& plan : each.m->input_plans())
            inputs.push_back(plan);
    const auto copies = [&](std::size_t rows) {
        return matrix_input::max_copies *
               crumb::round_up(crumb::activation_bytes(inputs, rows), crumb::alignment);
    };
    // Rows of a batch: eight of the model's width, two of the network's, copies, and keys and values.
    const double batch_bytes = 4.0 * static_cast<double>(batch) *
                                   static_cast<double>(8 * d.width + 2 * d.hidden + 2 * s->kv_width()) +
                               static_cast<double>(copies(batch));
    if (const status fits = check_memory(batch_bytes, "a batch of the model's tokens"); !fits)
        return fits;
    s->copies = buffer(copies(batch));
    s->workers.resize(s->threads.size());
    for (state::worker& w : s->workers) {
        w.scratch = buffer(std::max(attend->scratch_bytes(batch), cache->encode_scratch_bytes()));
        if (kv.skip > 0) {
            w.reports.resize(d.kv_heads);
        }
        w.copies = buffer(copies(1));
        w.row.resize(d.width);
    }
    for (auto* v : {&s->hidden, &s->x, &s->attended, &s->added})
        v->resize(batch * d.width);
    s->q.resize(batch * d.width * (d.arch == architecture::gpt2 ? 3 : 1));
    s->k.resize(batch * s->kv_width());
    s->v.resize(batch * s->kv_width());
    s->up.resize(batch * d.hidden);
    s->gate.resize(batch * d.hidden);
    // Which batches are computed how changes with their rows.
    std::size_t max_scratch = 0;
    for (const model_layer& l : m.layers())
        for (std::size_t rows = 1; l.folded && rows <= batch; ++rows)
            max_scratch = std::max(max_scratch, l.folded->plan().scratch_bytes(rows, s->threads.size()));
    s->ffn_scratch = buffer(max_scratch);
    s->ffn_counters.resize(s->threads.size());
    if (const status grown = s->grow(std::min(context, page_tokens)); !grown)
        return grown;
    return session(std::move(s));
}

status session::fits(std::size_t tokens) const {
    const state& s = *state_;
    const auto& d = s.m.shape();
    const double pages = static_cast<double>(s.cache->pages_for(tokens));
    const double bytes = pages * static_cast<double>(s.cache->page_bytes()) +
                         static_cast<double>(tokens) * static_cast<double>(d.rope_dims * sizeof(float));
    const double taken = static_cast<double>(s.pages.size()) * static_cast<double>(s.cache->page_bytes());
    char what[64];
    std::snprintf(what, sizeof what, "a context of %zu tokens", tokens);
    return check_memory(bytes - taken, what);
}

status session::state::grow(std::size_t tokens) {
    const auto& d = m.shape();
    while (cache->page_count() < cache->pages_for(tokens)) {
        const double bytes = static_cast<double>(cache->page_bytes());
        char what[64];
        std::snprintf(what, sizeof what, "a cache of %zu tokens", tokens);
        if (const status fits = check_memory(bytes, what); !fits)
            return fits;
        pages.emplace_back(cache->page_bytes(), buffer::untouched);
        if (const status s = cache->add_page(pages.back().bytes()); !s)
            return s;
    }
    if (tokens <= capacity)
        return {};
    const std::size_t more = std::min(context, std::max(tokens, 2 * capacity));
    if (d.arch == architecture::llama) {
        buffer memory(crumb::rope_table_bytes(more, d.rope_dims));
        const auto table = crumb::rope_table::create(memory.bytes(), more,
                                                     {.dims = d.rope_dims, .base = double{d.rope_base}});
        if (!table)
            return table.error();
        rope = *table;
        rope_memory = std::move(memory);
    }
    if (kv.skip > 0)
        for (worker& w : workers)
            w.weights = buffer(attend->skip_scratch_bytes(more));
    capacity = more;
    return {};
}

void session::reset() noexcept { rewind(0); }
void session::rewind(std::size_t length) noexcept {
    state_->cache->truncate(length);
    state_->length = state_->cache->length();
}
void session::count_ffn(bool missed) noexcept {
    state_->ffn_counted = true;
    state_->ffn_misses = missed;
    state_->ffn = {};
}
ffn_counts session::ffn() const noexcept {
    ffn_counts c = state_->ffn;
    c.tokens /= std::max<std::size_t>(state_->m.shape().layers, 1);
    return c;
}
void session::precision(int bits) noexcept { state_->bits = bits; }
std::size_t session::length() const noexcept { return state_->length; }
std::size_t session::context() const noexcept { return state_->context; }
const team& session::threads() const noexcept { return state_->threads; }
const model& session::of() const noexcept { return state_->m; }
const crumb::kv_cache& session::cache() const noexcept { return *state_->cache; }

void session::observe(std::function<void(const matrix&, const matrix_view<const float>&)> f) {
    state_->observer = std::move(f);
}

void session::profile(bool on) noexcept {
    for (state::worker& w : state_->workers) {
        w.watch.enable(on);
        w.watch.clear();
    }
}
section_times session::times() const noexcept {
    // While the first thread works alone, the others' clocks stand still.
    const auto sum = [](const section_times& t) { return std::accumulate(t.begin(), t.end(), 0.0); };
    const double whole = sum(state_->workers.front().watch.times());
    section_times mean = {};
    for (const state::worker& w : state_->workers) {
        section_times t = w.watch.times();
        t[static_cast<std::size_t>(section::waiting)] += std::max(0.0, whole - sum(t));
        for (std::size_t i = 0; i < sections; ++i)
            mean[i] += t[i] / static_cast<double>(state_->workers.size());
    }
    return mean;
}

result<std::span<const float>> session::feed(std::span<const std::int32_t> tokens, std::size_t wanted) {
    state& s = *state_;
    const std::size_t vocabulary = s.m.shape().vocabulary;
    if (tokens.size() > s.context - s.length)
        return status::error(errc::invalid_argument, "%zu tokens behind %zu others, the context has %zu",
                             tokens.size(), s.length, s.context);
    if (wanted > tokens.size())
        return status::error(errc::invalid_argument, "logits behind %zu tokens are wanted, %zu are fed",
                             wanted, tokens.size());
    for (const std::int32_t token : tokens)
        if (token < 0 || static_cast<std::size_t>(token) >= vocabulary)
            return status::error(errc::invalid_argument, "token %d, the vocabulary has %zu", token,
                                 vocabulary);
    if (const status grown = s.grow(s.length + tokens.size()); !grown)
        return grown;
    if (wanted * vocabulary > s.logits.size()) {
        if (const status fits =
                check_memory(static_cast<double>(wanted * vocabulary * sizeof(float)), "the output");
            !fits)
            return fits;
        s.logits.resize(wanted * vocabulary);
    }
    const std::span<float> all(s.logits.data(), wanted * vocabulary);
    std::vector<float> collected;
    std::size_t left = tokens.size();
    s.failure.clear();
    while (left > 0) {
        const auto batch = tokens.subspan(tokens.size() - left, std::min(left, s.batch));
        left -= batch.size();
        const std::size_t rows = wanted > left ? std::min(wanted - left, batch.size()) : 0;
        // That takes less time than a barrier.
        if (batch.size() == 1)
            s.embed(batch, {0, 1});
        s.threads.step(batch.size() == 1 ? s.one_row : s.many_rows, batch.size(),
                       [&](std::size_t part, std::size_t parts) { s.forward(batch, rows, part, parts); });
        if (!s.failure.error()) {
            s.cache->truncate(s.length);
            return s.failure.error();
        }
        if (const status advanced = s.cache->advance(batch.size()); !advanced)
            return advanced;
        s.length += batch.size();
        s.encode();
        if (rows < wanted)
            collected.insert(collected.end(), s.logits.begin(),
                             s.logits.begin() + static_cast<std::ptrdiff_t>(rows * vocabulary));
    }
    if (!collected.empty())
        std::copy(collected.begin(), collected.end(), s.logits.begin());
    return std::span<const float>(all);
}

double session::kv_left_unread() const noexcept {
    std::size_t blocks = 0, unread = 0;
    for (const state::worker& w : state_->workers) {
        blocks += w.blocks;
        unread += w.unread;
    }
    return blocks == 0 ? 0 : static_cast<double>(unread) / static_cast<double>(blocks);
}

double session::kv_bytes_per_token() const noexcept { return state_->cache->bytes_per_token(); }

void session::observe_cache(
    std::function<void(std::size_t, const matrix_view<const float>&, const matrix_view<const float>&)> f) {
    state_->cache_observer = std::move(f);
}

} // namespace lm
