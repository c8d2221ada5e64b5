#include "session.hpp"

#include <unistd.h>

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

/// Bytes of memory that this machine has.
double machine_memory() {
    return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

} // namespace

struct session::state {
    state(const model& model_, team threads_) : m(model_), threads(threads_) {}

    const model& m;
    team threads;
    kv_type kv = kv_type::f16;
    std::size_t context = 0, batch = 0, length = 0;
    std::optional<crumb::float_ops> ops;
    std::optional<crumb::attention> attend;
    buffer rope_memory;
    crumb::rope_table rope;
    buffer keys, values; ///< per layer and kv head: context x head size
    std::vector<buffer> scratch;
    buffer copies;
    std::vector<float> hidden, x, q, k, v, attended, added, up, gate, logits;

    std::size_t kv_width() const { return m.shape().kv_heads * m.shape().head_size; }

    template <class T>
    T* cache(const buffer& b, std::size_t layer) const {
        return b.as<T>() + layer * context * kv_width();
    }
    template <class T>
    crumb::cache_view<T> view(const buffer& b, std::size_t layer, std::size_t tokens) const {
        return {cache<T>(b, layer), tokens, m.shape().head_size, context * m.shape().head_size};
    }

    /// Keys or values of rows [part) to the cache.
    void keep(const buffer& to, std::size_t layer, const matrix_view<float>& from, range part) const {
        const std::size_t size = m.shape().head_size;
        for (std::size_t r = part.begin; r < part.end; ++r) {
            for (std::size_t h = 0; h < m.shape().kv_heads; ++h) {
                const std::size_t at = (h * context + length + r) * size;
                const std::span<const float> head(from.row(r) + h * size, size);
                if (kv == kv_type::f16)
                    ops->to_half(head, cache<crumb::half>(to, layer) + at);
                else
                    std::copy(head.begin(), head.end(), cache<float>(to, layer) + at);
            }
        }
    }

    void norm(const matrix_view<const float>& from, const std::vector<float>& w,
              const std::vector<float>& bias, const matrix_view<float>& to, range rows) const {
        if (m.shape().arch == architecture::llama)
            ops->rms_norm(from, w, m.shape().norm_epsilon, to, rows);
        else
            ops->layer_norm(from, w, bias, m.shape().norm_epsilon, to, rows);
    }

    void forward(std::span<const std::int32_t> tokens, std::size_t wanted, std::size_t part,
                 std::size_t parts);
    void attention_block(const model_layer& l, std::size_t layer, std::size_t rows, std::size_t part,
                         std::size_t parts);
    void ffn_block(const model_layer& l, std::size_t rows, std::size_t part, std::size_t parts);
};

// Every thread runs this with its part. Rows are a thread's own in norms and quantization, channels in
// products; a barrier stands wherever the one meets the other.
void session::state::forward(std::span<const std::int32_t> tokens, std::size_t wanted, std::size_t part,
                             std::size_t parts) {
    const auto& d = m.shape();
    const std::size_t rows = tokens.size();
    const range own = crumb::split(rows, parts, part);
    const auto h = crumb::matrix(hidden.data(), rows, d.width);
    for (std::size_t r = own.begin; r < own.end; ++r) {
        const float* embedding = m.embedding(static_cast<std::size_t>(tokens[r]));
        std::copy_n(embedding, d.width, h.row(r));
        if (const float* position = m.position(length + r); position != nullptr)
            for (std::size_t i = 0; i < d.width; ++i)
                h.row(r)[i] += position[i];
    }
    for (std::size_t i = 0; i < d.layers; ++i) {
        attention_block(m.layers()[i], i, rows, part, parts);
        ffn_block(m.layers()[i], rows, part, parts);
    }
    threads.barrier();
    if (wanted == 0)
        return;
    const auto last = crumb::matrix<const float>(h.row(rows - wanted), wanted, d.width);
    const auto normed = crumb::matrix(x.data(), wanted, d.width);
    const range mine = crumb::split(wanted, parts, part);
    norm(last, m.output_norm(), m.output_norm_bias(), normed, mine);
    matrix_input input(normed, copies.bytes());
    m.output().prepare(input, mine);
    threads.barrier();
    m.output().run(input, crumb::matrix(logits.data(), wanted, d.vocabulary),
                   crumb::split(d.vocabulary, parts, part, crumb::tile_channels));
}

void session::state::attention_block(const model_layer& l, std::size_t layer, std::size_t rows,
                                     std::size_t part, std::size_t parts) {
    const auto& d = m.shape();
    const std::size_t step = crumb::tile_channels;
    const range own = crumb::split(rows, parts, part);
    const bool is_llama = d.arch == architecture::llama;
    const auto h = crumb::matrix(hidden.data(), rows, d.width);
    const auto normed = crumb::matrix(x.data(), rows, d.width);
    norm(h, l.attention_norm, l.attention_norm_bias, normed, own);
    matrix_input input(normed, copies.bytes());
    if (is_llama)
        for (const matrix* w : {&l.q, &l.k, &l.v})
            w->prepare(input, own);
    else
        l.qkv.prepare(input, own);
    threads.barrier();

    // gpt2's matrix yields queries, keys and values side by side.
    const std::size_t q_stride = is_llama ? d.width : 3 * d.width;
    const auto queries = crumb::matrix(q.data(), rows, d.width, q_stride);
    const auto key = is_llama ? crumb::matrix(k.data(), rows, kv_width())
                              : crumb::matrix(q.data() + d.width, rows, d.width, q_stride);
    const auto value = is_llama ? crumb::matrix(v.data(), rows, kv_width())
                                : crumb::matrix(q.data() + 2 * d.width, rows, d.width, q_stride);
    if (is_llama) {
        l.q.run(input, queries, crumb::split(d.width, parts, part, step));
        l.k.run(input, key, crumb::split(kv_width(), parts, part, step));
        l.v.run(input, value, crumb::split(kv_width(), parts, part, step));
    } else {
        l.qkv.run(input, crumb::matrix(q.data(), rows, 3 * d.width),
                  crumb::split(3 * d.width, parts, part, step));
    }
    threads.barrier();
    if (is_llama) {
        ops->rope(queries, d.head_size, rope, length, own);
        ops->rope(key, d.head_size, rope, length, own);
    }
    keep(keys, layer, key, own);
    keep(values, layer, value, own);
    threads.barrier();

    const auto out = crumb::matrix(attended.data(), rows, d.width);
    crumb::attention_part share;
    if (d.kv_heads % parts == 0 || rows == 1)
        share.kv_heads = crumb::split(d.kv_heads, parts, part);
    else
        share.rows = own;
    if (kv == kv_type::f16)
        attend->run(queries, view<crumb::half>(keys, layer, length + rows),
                    view<crumb::half>(values, layer, length + rows), length, out, scratch[part].bytes(),
                    share);
    else
        attend->run(queries, view<float>(keys, layer, length + rows),
                    view<float>(values, layer, length + rows), length, out, scratch[part].bytes(), share);
    threads.barrier();
    matrix_input back(out, copies.bytes());
    l.output.prepare(back, own);
    threads.barrier();
    const auto sum = crumb::matrix(added.data(), rows, d.width);
    l.output.run(back, sum, crumb::split(d.width, parts, part, step));
    threads.barrier();
    ops->add(h, sum, h, own);
}

void session::state::ffn_block(const model_layer& l, std::size_t rows, std::size_t part, std::size_t parts) {
    const auto& d = m.shape();
    const range own = crumb::split(rows, parts, part);
    const bool is_llama = d.arch == architecture::llama;
    const auto h = crumb::matrix(hidden.data(), rows, d.width);
    const auto normed = crumb::matrix(x.data(), rows, d.width);
    norm(h, l.ffn_norm, l.ffn_norm_bias, normed, own);
    matrix_input input(normed, copies.bytes());
    l.up.prepare(input, own);
    if (is_llama)
        l.gate.prepare(input, own);
    threads.barrier();
    const range channels = crumb::split(d.hidden, parts, part, crumb::tile_channels);
    const auto inner = crumb::matrix(up.data(), rows, d.hidden);
    l.up.run(input, inner, channels);
    if (is_llama) {
        const auto gates = crumb::matrix(gate.data(), rows, d.hidden);
        l.gate.run(input, gates, channels);
        ops->silu_gated(columns(gates, channels), columns(inner, channels), columns(inner, channels));
    } else {
        ops->gelu_tanh(columns(inner, channels), columns(inner, channels));
    }
    threads.barrier();
    matrix_input back(inner, copies.bytes());
    l.down.prepare(back, own);
    threads.barrier();
    const auto sum = crumb::matrix(added.data(), rows, d.width);
    l.down.run(back, sum, crumb::split(d.width, parts, part, crumb::tile_channels));
    threads.barrier();
    ops->add(h, sum, h, own);
}

session::session(std::unique_ptr<state> s) : state_(std::move(s)) {}
session::session(session&&) noexcept = default;
session& session::operator=(session&&) noexcept = default;
session::~session() = default;

result<session> session::make(const model& m, team threads, kv_type kv, std::size_t context,
                              std::size_t batch) {
    const auto& d = m.shape();
    if (context == 0 || context > d.context)
        return status::error(errc::invalid_argument, "a context of %zu tokens: the model allows 1 to %zu",
                             context, d.context);
    // The system would promise more memory than there is, and kill the program that uses it.
    const double token_bytes =
        2.0 * static_cast<double>(d.layers * d.kv_heads * d.head_size) *
            static_cast<double>(kv == kv_type::f16 ? sizeof(crumb::half) : sizeof(float)) +
        static_cast<double>(d.rope_dims * sizeof(float));
    if (token_bytes * static_cast<double>(context) > machine_memory())
        return status::error(errc::invalid_argument,
                             "a context of %zu tokens needs %.0f MB of memory, this machine has %.0f MB",
                             context, token_bytes * static_cast<double>(context) / 1e6,
                             machine_memory() / 1e6);
    auto s = std::make_unique<state>(m, threads);
    s->kv = kv;
    s->context = context;
    s->batch = batch = std::max<std::size_t>(1, std::min(batch, context));
    const auto ops = crumb::float_ops::plan();
    if (!ops)
        return ops.error();
    s->ops.emplace(*ops);
    const auto attend =
        crumb::attention::plan({.heads = d.heads, .kv_heads = d.kv_heads, .head_size = d.head_size});
    if (!attend)
        return attend.error();
    s->attend.emplace(*attend);
    if (d.arch == architecture::llama) {
        s->rope_memory = buffer(crumb::rope_table_bytes(context, d.rope_dims));
        const auto table = crumb::rope_table::create(s->rope_memory.bytes(), context,
                                                     {.dims = d.rope_dims, .base = double{d.rope_base}});
        if (!table)
            return table.error();
        s->rope = *table;
    }
    const std::size_t cached =
        d.layers * context * s->kv_width() * (kv == kv_type::f16 ? sizeof(crumb::half) : sizeof(float));
    s->keys = buffer(cached);
    s->values = buffer(cached);
    for (std::size_t t = 0; t < threads.size(); ++t)
        s->scratch.emplace_back(attend->scratch_bytes(batch));
    // The largest layout that any ISA asks for: sums included, widest input.
    const std::size_t widest = std::max({d.width, d.hidden});
    const crumb::activation_layout most{widest, 16, 1};
    s->copies = buffer(matrix_input::most_copies * crumb::round_up(most.bytes(batch), crumb::alignment));
    for (auto* v : {&s->hidden, &s->x, &s->attended, &s->added})
        v->resize(batch * d.width);
    s->q.resize(batch * d.width * (d.arch == architecture::gpt2 ? 3 : 1));
    s->k.resize(batch * s->kv_width());
    s->v.resize(batch * s->kv_width());
    s->up.resize(batch * d.hidden);
    s->gate.resize(batch * d.hidden);
    return session(std::move(s));
}

void session::reset() noexcept { state_->length = 0; }
std::size_t session::length() const noexcept { return state_->length; }
std::size_t session::context() const noexcept { return state_->context; }

std::span<const float> session::feed(std::span<const std::int32_t> tokens, std::size_t wanted) {
    state& s = *state_;
    const std::size_t vocabulary = s.m.shape().vocabulary;
    s.logits.resize(std::max(s.logits.size(), wanted * vocabulary));
    const std::span<float> all(s.logits.data(), wanted * vocabulary);
    std::vector<float> collected;
    std::size_t left = tokens.size();
    while (left > 0) {
        const auto batch = tokens.subspan(tokens.size() - left, std::min(left, s.batch));
        left -= batch.size();
        const std::size_t rows = wanted > left ? std::min(wanted - left, batch.size()) : 0;
        s.threads.run([&](std::size_t part, std::size_t parts) { s.forward(batch, rows, part, parts); });
        s.length += batch.size();
        if (rows < wanted)
            collected.insert(collected.end(), s.logits.begin(),
                             s.logits.begin() + static_cast<std::ptrdiff_t>(rows * vocabulary));
    }
    if (!collected.empty())
        std::copy(collected.begin(), collected.end(), s.logits.begin());
    return all;
}

std::size_t session::kv_bytes_per_token() const noexcept {
    return 2 * state_->m.shape().layers * state_->kv_width() *
           (state_->kv == kv_type::f16 ? sizeof(crumb::half) : sizeof(float));
}

} // namespace lm
