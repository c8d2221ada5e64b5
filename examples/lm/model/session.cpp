#include "machine/memory.hpp"
#include "model/ffn_file.hpp"
#include "model/session_state.hpp"

#include <algorithm>
#include <numeric>

namespace lm {

using crumb::errc;
using crumb::result;

namespace {

/// Tokens that there are rotations for at first.
constexpr std::size_t first_capacity = 2048;

} // namespace

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
    auto caches = layer_caches::make(d, kv, context, batch, codebooks);
    if (!caches)
        return caches.error();
    s->caches.emplace(std::move(*caches));
    s->encoder.emplace(*s->caches);
    for (std::size_t i = 0; codebooks.are_turned() && i < d.layers * d.kv_heads; ++i)
        for (const bool keys : {true, false})
            for (const bool back : {false, true}) {
                const auto plan = crumb::dense_linear<float>::plan(crumb::matrix(
                    codebooks.turn(i / d.kv_heads, i % d.kv_heads, keys, back), d.head_size, d.head_size));
                if (!plan)
                    return plan.error();
                s->turns.push_back(*plan);
            }
    const auto ops = crumb::float_ops::plan();
    if (!ops)
        return ops.error();
    s->ops.emplace(*ops);
    if (kv.skip > 0 && !crumb::kv_attention::can_skip(kv.codec, d.head_size, d.heads / d.kv_heads))
        return status::error(
            errc::unsupported,
            "--kv %s: values cannot be left unread in heads of %zu channels that serve %zu query "
            "heads each",
            kv.name().c_str(), d.head_size, d.heads / d.kv_heads);
    std::vector<crumb::activation_plan> inputs = m.output().input_plans();
    for (const named_matrix& each : m.matrices())
        for (const crumb::activation_plan& plan : each.m->input_plans())
            inputs.push_back(plan);
    const auto copies = [&](std::size_t rows) {
        return matrix_input::max_copies *
               crumb::round_up(crumb::activation_bytes(inputs, rows), crumb::alignment);
    };
    const std::size_t qkv = d.attention_width() + 2 * d.kv_width();
    const std::size_t ups = d.traits.gate == gate_type::fused ? 2 * d.hidden : d.hidden;
    // Rows of a batch: the residual stream, what is normed and what is added; queries, keys and values; what
    // is attended; the network; copies.
    const double batch_bytes =
        4.0 * static_cast<double>(batch) *
            static_cast<double>(3 * d.width + 2 * qkv + d.attention_width() + ups + d.hidden) +
        static_cast<double>(copies(batch));
    if (const status fits = check_memory(batch_bytes, "a batch of the model's tokens"); !fits)
        return fits;
    s->copies = buffer(copies(batch), buffer::untouched);
    s->workers.resize(s->threads.size());
    std::size_t scratch = 0;
    for (const layer_group& g : s->caches->groups())
        scratch = std::max({scratch, g.attend->scratch_bytes(batch), g.cache->encode_scratch_bytes()});
    for (state::worker& w : s->workers) {
        w.scratch = buffer(scratch);
        if (kv.skip > 0)
            w.reports.resize(d.kv_heads);
        w.errors.resize(d.heads);
        w.copies = buffer(copies(1));
        w.row.resize(d.width);
        w.unturned.resize(s->turns.empty() ? 0 : std::min<std::size_t>(batch, 16) * d.head_size);
    }
    for (auto* v : {&s->hidden, &s->x, &s->added})
        v->resize(batch * d.width);
    s->attended.resize(batch * d.attention_width());
    s->q.resize(batch * qkv);
    s->k.resize(batch * d.kv_width());
    s->v.resize(batch * d.kv_width());
    s->up.resize(batch * ups);
    s->gate.resize(batch * d.hidden);
    // Which batches are computed how changes with their rows.
    std::size_t max_scratch = 0;
    for (const model_layer& l : m.layers())
        for (std::size_t rows = 1; l.folded && rows <= batch; ++rows)
            max_scratch = std::max(max_scratch, l.folded->plan().scratch_bytes(rows, s->threads.size()));
    s->ffn_scratch = buffer(max_scratch);
    s->ffn_counters.resize(s->threads.size());
    if (const status grown = s->grow(std::min(context, first_capacity)); !grown)
        return grown;
    return session(std::move(s));
}

status session::fits(std::size_t tokens) const {
    const state& s = *state_;
    double bytes = s.caches->missing_bytes(tokens);
    for (const rope_shape& rope : s.m.shape().ropes)
        bytes += static_cast<double>(tokens) * static_cast<double>(rope.dims * sizeof(float));
    char what[64];
    std::snprintf(what, sizeof what, "a context of %zu tokens", tokens);
    return check_memory(bytes, what);
}

status session::state::grow(std::size_t tokens) {
    const auto& d = m.shape();
    if (const status grown = caches->grow(tokens); !grown)
        return grown;
    if (partials.size() == 0 && tokens >= 2 * shortest_range) {
        const crumb::kv_attention& plan = *caches->groups().front().attend;
        partials = buffer(plan.partial_bytes(1, crumb::kv_ranges::max_count));
        for (worker& w : workers)
            w.partials = buffer(plan.partial_bytes(rows_with_partials(), crumb::kv_ranges::max_count));
    }
    if (tokens <= capacity)
        return {};
    const std::size_t more = std::min(context, std::max(tokens, 2 * capacity));
    rope_memory.resize(d.ropes.size());
    ropes.resize(d.ropes.size());
    for (std::size_t i = 0; i < d.ropes.size(); ++i) {
        buffer memory(crumb::rope_table_bytes(more, d.ropes[i].dims));
        const auto table = crumb::rope_table::create(memory.bytes(), more, d.ropes[i].options(context));
        if (!table)
            return table.error();
        ropes[i] = *table;
        rope_memory[i] = std::move(memory);
    }
    for (const layer_group& g : caches->groups())
        if (kv.skip > 0 && g.is_whole())
            for (worker& w : workers)
                w.weights = buffer(g.attend->skip_scratch_bytes(more));
    capacity = more;
    return {};
}

void session::reset() noexcept { rewind(0); }
void session::rewind(std::size_t length) noexcept {
    // Also where nothing is forgotten: parts of layers that ran alone have written tokens that were not kept.
    state_->encoder->drop();
    state_->length = state_->caches->truncate(length);
}
void session::trace_encoding(std::function<void(const encoded_block&)> f) {
    state_->encoder->trace(std::move(f));
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
void session::shortest_range(std::size_t tokens) noexcept { state_->shortest_range = tokens; }
void session::precision(int bits) noexcept { state_->bits = bits; }
std::size_t session::length() const noexcept { return state_->length; }
std::size_t session::context() const noexcept { return state_->context; }
const team& session::threads() const noexcept { return state_->threads; }
const model& session::of() const noexcept { return state_->m; }
session::cached_layer session::cached(std::size_t layer) const noexcept {
    return {*state_->caches->group_of(layer).cache, state_->caches->index_of(layer)};
}
double session::kv_bytes() const noexcept { return state_->caches->bytes(); }

void session::observe(
    std::function<void(const matrix&, const matrix_view<const float>&, std::size_t, std::size_t)> f) {
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
            s.encoder->drop();
            s.length = s.caches->truncate(s.length);
            return s.failure.error();
        }
        if (const status advanced = s.caches->advance(batch.size()); !advanced)
            return advanced;
        s.length += batch.size();
        s.workers.front().watch.start();
        s.encoder->advance(s.length, s.threads,
                           [&](std::size_t part) { return s.workers[part].scratch.bytes(); });
        s.workers.front().watch.lap(section::encoding);
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

void session::count_planes() noexcept {
    state_->planes_counted = !state_->kv.codec.is_uncoded();
    for (state::worker& w : state_->workers)
        w.planes = {};
}
kv_plane_counts session::planes() const noexcept {
    kv_plane_counts all;
    for (const state::worker& w : state_->workers) {
        all.heads += w.planes.heads;
        all.scores += w.planes.scores;
        all.weights += w.planes.weights;
    }
    return all;
}

double session::kv_bytes_per_token() const noexcept {
    double bytes = 0;
    for (const layer_group& g : state_->caches->groups())
        bytes += g.cache->bytes_per_token();
    return bytes;
}

void session::observe_cache(std::function<void(const attention_inputs&)> f) {
    state_->cache_observer = std::move(f);
}

} // namespace lm
