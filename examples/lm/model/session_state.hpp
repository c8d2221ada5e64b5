// What a session has, and a forward pass over it.
#pragma once

#include "model/cache_encoder.hpp"
#include "model/first_failure.hpp"
#include "model/layer_caches.hpp"
#include "model/session.hpp"

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace lm {

using crumb::columns;
using crumb::matrix_view;
using crumb::range;
using crumb::status;

struct session::state {
    state(const model& model_, team threads_) : m(model_), threads(std::move(threads_)) {}

    /// What a thread has for itself.
    struct worker {
        buffer scratch;  ///< of attention
        buffer partials; ///< of some rows of a batch, over ranges of tokens
        buffer copies;   ///< quantized copies of one row
        std::vector<float> row;
        std::vector<float> unturned; ///< some rows of a head
        stopwatch watch;
        buffer weights; ///< of all coded tokens, if values may be left unread
        std::vector<crumb::kv_skip_report> reports;
        std::size_t blocks = 0, unread = 0;
        std::vector<crumb::kv_error> errors; ///< of a row's heads, while planes are counted
        kv_plane_counts planes;
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

    /// Floats of all rows of a batch: memory that the system gives when longer batches come.
    struct batch_floats {
        buffer memory;
        float* data() const noexcept { return memory.as<float>(); }
        void resize(std::size_t count) { memory = buffer(count * sizeof(float), buffer::untouched); }
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
    std::size_t shortest_range = crumb::kv_ranges::min_tokens;
    pace one_row, many_rows;
    std::optional<crumb::float_ops> ops;
    std::optional<layer_caches> caches;
    /// What codebooks turn keys, queries, values and outputs with, of every layer and kv head; or empty.
    std::vector<crumb::dense_linear<float>> turns;
    first_failure failure;
    std::vector<buffer> rope_memory;
    std::vector<crumb::rope_table> ropes; ///< of `model_shape::ropes`
    std::size_t capacity = 0;             ///< tokens that there are rotations for
    std::vector<worker> workers;
    std::optional<cache_encoder> encoder; ///< with scratch memory of the workers
    buffer copies;
    buffer partials;    ///< of one row, over ranges of tokens, by threads that share heads
    buffer ffn_scratch; ///< of folded networks
    std::vector<crumb::folded_ffn_counters> ffn_counters;
    bool ffn_counted = false, ffn_misses = false, planes_counted = false;
    ffn_counts ffn;
    std::function<void(const matrix&, const matrix_view<const float>&, std::size_t, std::size_t)> observer;
    std::function<void(const session::attention_inputs&)> cache_observer;
    batch_floats hidden, x, q, k, v, attended, added, up, gate;
    std::vector<float> logits;

    const architecture_traits& traits() const { return m.shape().traits; }
    matrix_view<float> residual(std::size_t rows) {
        return crumb::matrix(hidden.data(), rows, m.shape().width);
    }

    /// The ranges of tokens that a row of the batch sees in a layer.
    crumb::kv_ranges ranges_of(std::size_t layer, std::size_t row) const {
        return crumb::kv_ranges::of(length + row, caches->group_of(layer).cache->options(), shortest_range);
    }
    /// Rows of a batch that attend to ranges of tokens together: as many as share a pass, if their partial
    /// results take no more than 32 MB.
    std::size_t rows_with_partials() const {
        std::size_t most = 1;
        for (const layer_group& g : caches->groups())
            most = std::max(most, g.attend->pass_rows(batch));
        const std::size_t each =
            caches->groups().front().attend->partial_bytes(1, crumb::kv_ranges::max_count);
        return std::min(most, std::max(std::size_t{32 << 20} / each, std::size_t{1}));
    }
    /// Reports the first number of some columns that is not finite. `tensor` has made it, row 0 is token
    /// `first`.
    void require_finite(pass_place at, const char* tensor, const matrix_view<const float>& of, range part,
                        std::size_t first);
    enum class turned { keys, queries, values, outputs };
    /// Multiplies some rows of some heads with the codebooks' matrices, if they have some.
    void turn(std::size_t layer, turned what, const matrix_view<float>& of, range rows, range heads,
              worker& own) const;
    /// Keys and values of kv heads [heads) of all rows to the cache.
    void keep(std::size_t layer, const projections& of, range heads);

    /// Makes room for `tokens` tokens: pages of the cache, rotations, weights of all coded tokens.
    status grow(std::size_t tokens);

    /// Whatever has been derived from `parts`, `part` and `mine` is out of date behind this.
    void wait(share& s) {
        auto idle = [&]() noexcept {
            if (encoder->encode_one(s.own.scratch.bytes()))
                s.own.watch.lap(section::encoding);
        };
        if (const std::size_t parts = threads.barrier(s.part, idle); parts != s.parts) {
            s.parts = parts;
            s.take(s.rows);
        }
        s.own.watch.lap(section::waiting);
    }

    void norm(const matrix_view<const float>& from, const std::vector<float>& w,
              const std::vector<float>& bias, const matrix_view<float>& to, range rows) const;
    void norm_heads(const matrix_view<float>& of, range channels, const std::vector<float>& w) const;
    matrix_input prepared(share& s, const matrix_view<const float>& from,
                          std::initializer_list<const matrix*> readers);
    matrix_input prepared(share& s, const matrix_view<const float>& from, const std::vector<float>& w,
                          const std::vector<float>& bias, std::initializer_list<const matrix*> readers);
    void add(share& s, const matrix& w, const matrix_input& from, const std::vector<float>& post_norm,
             section kind, const pass_place& at, const char* tensor);

    void embed(std::span<const std::int32_t> tokens, range rows);
    void forward(std::span<const std::int32_t> tokens, std::size_t wanted, std::size_t part,
                 std::size_t parts);
    matrix_input output_input(share& s, const matrix_view<const float>& from);
    void write_logits(const matrix_input& from, const matrix_view<float>& to, share& s, std::size_t first);
    projections projections_of(const model_layer& l, std::size_t rows);
    status attend(std::size_t layer, const projections& of, const matrix_view<float>& out, share& s,
                  const crumb::kv_attention_part& part);
    /// Attention of some rows and kv heads that have ranges of tokens: one thread takes all of them.
    status attend_ranges(std::size_t layer, const projections& of, const matrix_view<float>& out, share& s,
                         const crumb::kv_attention_part& part);
    /// This thread's ranges of heads that threads share, into `partials`.
    status attend_shared(std::size_t layer, const projections& of, share& s, const crumb::kv_ranges& ranges);
    matrix_view<float> attention(const model_layer& l, std::size_t layer, share& s);
    void add_attended(const model_layer& l, std::size_t layer, const matrix_view<float>& from, share& s);
    void project(const model_layer& l, std::size_t layer, const matrix_input& input, share& s,
                 const projections& to, range heads, range kv_heads);
    matrix_view<float> network(const model_layer& l, std::size_t layer, share& s);
    void add_activated(const model_layer& l, std::size_t layer, const matrix_view<float>& from, share& s);
    void activate(const matrix_view<float>& gates, const matrix_view<float>& ups,
                  const matrix_view<float>& inner) const;
    void run(pass_part part, std::size_t layer, const matrix_view<const float>& from,
             const matrix_view<float>& to, std::size_t index, std::size_t parts);
    void folded_block(const model_layer& l, std::size_t layer, share& s);
};

} // namespace lm
