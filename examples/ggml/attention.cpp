#include "ggml/attention.hpp"

#include "ggml/options.hpp"
#include "ggml/weight_buffer.hpp"

#include <crumb/attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace crumb_ggml {
namespace {

using kind = visible_tokens::kind_of_row;

/// Whether a cache has blocks, which are read as floats.
bool is_quantized(const ggml_tensor* cache) noexcept {
    return cache->type == GGML_TYPE_Q8_0 || cache->type == GGML_TYPE_Q4_0;
}

constexpr std::uint16_t hidden = 0xfc00; // -infinity
bool is_zero(std::uint16_t bits) noexcept { return (bits & 0x7fff) == 0; }

visible_tokens::row read_mask(const std::uint16_t* mask, std::size_t tokens) noexcept {
    std::size_t begin = 0, end = tokens;
    while (begin < end && mask[begin] == hidden)
        ++begin;
    while (end > begin && mask[end - 1] == hidden)
        --end;
    if (begin == end)
        return {0, 0, kind::nothing};
    std::size_t zeros = 0, others = 0;
    for (std::size_t t = begin; t < end; ++t) {
        zeros += is_zero(mask[t]);
        others += mask[t] == hidden;
    }
    return {begin, end,
            zeros == end - begin            ? kind::stretch
            : zeros + others == end - begin ? kind::some
                                            : kind::weighed};
}

void run_mask(const step& s, const worker& w) {
    auto& visible = *static_cast<visible_tokens*>(s.data);
    const ggml_tensor* mask = visible.mask;
    const crumb::range mine = crumb::split(visible.rows.size(), w.parts, w.part);
    const std::size_t of_one = extent(mask, 1);
    for (std::size_t r = mine.begin; r < mine.end; ++r)
        visible.rows[r] = read_mask(row_of<const std::uint16_t>(mask, static_cast<std::int64_t>(r % of_one),
                                                                0, static_cast<std::int64_t>(r / of_one)),
                                    extent(mask, 0));
}

/// What the steps of one operation share.
struct attention_call {
    const ggml_tensor *q, *k, *v, *mask, *y;
    const crumb::attention& plan;
    const visible_tokens& visible;

    std::size_t heads() const noexcept { return extent(q, 2); }
    std::size_t kv_heads() const noexcept { return extent(k, 2); }
    std::size_t head_size() const noexcept { return extent(q, 0); }
    crumb::matrix_view<const float> queries(std::size_t row, std::size_t rows, std::size_t sequence) const {
        return {
            row_of<const float>(q, static_cast<std::int64_t>(row), 0, static_cast<std::int64_t>(sequence)),
            rows, heads() * head_size(), q->nb[1] / sizeof(float)};
    }
    crumb::matrix_view<float> results(std::size_t row, std::size_t rows, std::size_t sequence) const {
        const std::size_t width = heads() * head_size();
        return {row_of<float>(y, 0, static_cast<std::int64_t>(row), static_cast<std::int64_t>(sequence)),
                rows, width, width};
    }
    static crumb::kv_array_view<crumb::half> tokens(const ggml_tensor* t, crumb::range of,
                                                    std::size_t sequence) {
        return {row_of<const crumb::half>(t, static_cast<std::int64_t>(of.begin), 0,
                                          static_cast<std::int64_t>(sequence)),
                of.size(), t->nb[1] / sizeof(crumb::half), t->nb[2] / sizeof(crumb::half)};
    }
};

/// A token of a cache: as floats, or as it lies.
void read_token(const ggml_tensor* cache, std::size_t token, std::size_t kv_head, std::size_t sequence,
                const worker& w, float* out) {
    const auto* row =
        row_of<const std::byte>(cache, static_cast<std::int64_t>(token), static_cast<std::int64_t>(kv_head),
                                static_cast<std::int64_t>(sequence));
    if (cache->type == GGML_TYPE_F16)
        w.floats->to_float({reinterpret_cast<const crumb::half*>(row), extent(cache, 0)}, out);
    else
        ggml_get_type_traits(cache->type)->to_float(row, out, cache->ne[0]);
}
void read_token(const ggml_tensor* cache, std::size_t token, std::size_t kv_head, std::size_t sequence,
                const worker&, crumb::half* out) {
    std::memcpy(out,
                row_of<const std::byte>(cache, static_cast<std::int64_t>(token),
                                        static_cast<std::int64_t>(kv_head),
                                        static_cast<std::int64_t>(sequence)),
                extent(cache, 0) * sizeof(crumb::half));
}

/// Attention of rows over copies of the tokens that they see, side by side for one kv head: keys, then
/// values. Several rows see a stretch, each one more token than the one before.
template <class T>
void attend_copies(const attention_call& c, const visible_tokens::row& r, std::size_t row, std::size_t rows,
                   std::size_t kv_head, std::size_t sequence, const worker& w) {
    const auto* mask = row_of<const std::uint16_t>(c.mask, static_cast<std::int64_t>(row), 0,
                                                   static_cast<std::int64_t>(sequence) % c.mask->ne[3]);
    const std::size_t d = c.head_size(), used = c.plan.scratch_bytes(rows);
    auto* keys = reinterpret_cast<T*>(w.scratch.data() + used);
    auto* values = keys + extent(c.k, 1) * d;
    std::size_t count = 0;
    for (std::size_t t = r.begin; t < r.end + rows - 1; ++t)
        if (r.kind == kind::stretch || is_zero(mask[t])) {
            read_token(c.k, t, kv_head, sequence, w, keys + count * d);
            read_token(c.v, t, kv_head, sequence, w, values + count * d);
            ++count;
        }
    // The head is the only one, whatever its number.
    const crumb::kv_arrays<T> kv{{keys, count, d, 0}, {values, count, d, 0}, count - rows};
    c.plan.run(c.queries(row, rows, sequence), kv, c.results(row, rows, sequence), w.scratch.first(used),
               {.kv_heads = {kv_head, kv_head + 1}});
}

/// A mask with other numbers: float by float.
void attend_weighed(const attention_call& c, const visible_tokens::row& r, std::size_t row,
                    std::size_t kv_head, std::size_t sequence, const worker& w) {
    const auto* mask = row_of<const crumb::half>(c.mask, static_cast<std::int64_t>(row), 0,
                                                 static_cast<std::int64_t>(sequence) % c.mask->ne[3]);
    const std::size_t d = c.head_size(), group = c.heads() / c.kv_heads();
    float* weights = reinterpret_cast<float*>(w.scratch.data());
    float* floats = weights + crumb::round_up(extent(c.k, 1), 16);
    for (std::size_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        const float* q = c.queries(row, 1, sequence).data + h * (c.q->nb[2] / sizeof(float));
        float* y = c.results(row, 1, sequence).data + h * d;
        float most = -std::numeric_limits<float>::infinity();
        for (std::size_t t = r.begin; t < r.end; ++t) {
            read_token(c.k, t, kv_head, sequence, w, floats);
            float sum = 0;
            for (std::size_t i = 0; i < d; ++i)
                sum += q[i] * floats[i];
            weights[t] = sum * c.plan.shape().scale + crumb::to_float(mask[t]);
            most = std::max(most, weights[t]);
        }
        std::fill_n(y, d, 0.0f);
        float total = 0;
        for (std::size_t t = r.begin; t < r.end; ++t) {
            const float weight = std::exp(weights[t] - most);
            total += weight;
            read_token(c.v, t, kv_head, sequence, w, floats);
            for (std::size_t i = 0; i < d; ++i)
                y[i] += weight * floats[i];
        }
        for (std::size_t i = 0; i < d; ++i)
            y[i] /= total;
    }
}

/// Rows from `row` on whose tokens begin at the same one and end each one later: a causal batch.
std::size_t batch_at(const std::vector<visible_tokens::row>& rows, std::size_t row,
                     std::size_t end) noexcept {
    std::size_t next = row + 1;
    // Short enough that threads get equal shares of the triangle.
    const std::size_t limit = std::min(end, row + 64);
    while (rows[row].kind == kind::stretch && next < limit && rows[next].kind == kind::stretch &&
           rows[next].begin == rows[row].begin && rows[next].end == rows[next - 1].end + 1)
        ++next;
    return next - row;
}

void attend(const attention_call& c, std::size_t row, std::size_t rows, std::size_t kv_head,
            std::size_t sequence, const worker& w) {
    const std::size_t of_one = extent(c.mask, 1);
    const visible_tokens::row& r = c.visible.rows[sequence % extent(c.mask, 3) * of_one + row];
    const auto y = c.results(row, rows, sequence);
    const std::size_t d = c.head_size(), group = c.heads() / c.kv_heads();
    if (r.kind == kind::nothing) {
        std::fill_n(y.data + kv_head * group * d, group * d, 0.0f);
    } else if (r.kind == kind::weighed) {
        attend_weighed(c, r, row, kv_head, sequence, w);
    } else if (is_quantized(c.k) || is_quantized(c.v)) {
        attend_copies<float>(c, r, row, rows, kv_head, sequence, w);
    } else if (r.kind == kind::stretch) {
        const crumb::range seen{r.begin, r.end + rows - 1};
        const crumb::kv_arrays<crumb::half> kv{c.tokens(c.k, seen, sequence), c.tokens(c.v, seen, sequence),
                                               r.end - r.begin - 1};
        c.plan.run(c.queries(row, rows, sequence), kv, y, w.scratch, {.kv_heads = {kv_head, kv_head + 1}});
    } else {
        attend_copies<crumb::half>(c, r, row, rows, kv_head, sequence, w);
    }
}

void run_attention(const step& s, const worker& w) {
    const ggml_tensor* y = s.node;
    const auto& visible = *static_cast<const visible_tokens*>(s.data);
    const ggml_tensor* q = y->src[0];
    const auto plan = crumb::attention::plan({.heads = extent(q, 2),
                                              .kv_heads = extent(y->src[1], 2),
                                              .head_size = extent(q, 0),
                                              .scale = parameter(y, 0)});
    const attention_call c{q, y->src[1], y->src[2], y->src[3], y, *plan, visible};
    std::size_t item = 0;
    for (std::size_t sequence = 0; sequence < extent(q, 3); ++sequence) {
        const std::size_t first = sequence % extent(c.mask, 3) * extent(c.mask, 1);
        for (std::size_t row = 0; row < extent(q, 1);) {
            const std::size_t rows = batch_at(visible.rows, first + row, first + extent(q, 1));
            for (std::size_t head = 0; head < c.kv_heads(); ++head, ++item)
                if (item % w.parts == w.part)
                    attend(c, row, rows, head, sequence, w);
            row += rows;
        }
    }
}

bool is_cache(const ggml_tensor* t) noexcept {
    if (is_quantized(t))
        return t->nb[0] == ggml_type_size(t->type) && t->ne[0] % ggml_blck_size(t->type) == 0;
    return t->type == GGML_TYPE_F16 && t->nb[0] == sizeof(crumb::half) &&
           t->nb[1] % sizeof(crumb::half) == 0 && t->nb[2] % sizeof(crumb::half) == 0;
}

} // namespace

bool supports_attention(const ggml_tensor* op) noexcept {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
    if (mask == nullptr || op->src[4] != nullptr || mask->type != GGML_TYPE_F16 || mask->ne[2] != 1 ||
        mask->ne[0] != k->ne[1] || mask->ne[1] < q->ne[1] || !ggml_is_contiguous(mask))
        return false;
    if (!is_cache(k) || !is_cache(v) || k->ne[0] != v->ne[0] || k->ne[2] != v->ne[2])
        return false;
    if (q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) || q->nb[2] != q->nb[0] * extent(q, 0) ||
        q->nb[1] < q->nb[2] * extent(q, 2) || q->nb[1] % sizeof(float) != 0 || op->type != GGML_TYPE_F32 ||
        !ggml_is_contiguous(op))
        return false;
    if (k->ne[2] == 0 || q->ne[2] % k->ne[2] != 0 || q->ne[3] != k->ne[3])
        return false;
    const float scale = parameter(op, 0), bias = parameter(op, 1), soft_cap = parameter(op, 2);
    if (bias != 0 || soft_cap != 0 || scale <= 0)
        return false;
    return crumb::attention::plan(
               {.heads = extent(q, 2), .kv_heads = extent(k, 2), .head_size = extent(q, 0), .scale = scale})
        .ok();
}

crumb::status add_attention(graph_plan& plan, const ggml_tensor* node) {
    const ggml_tensor *q = node->src[0], *k = node->src[1], *mask = node->src[3];
    visible_tokens& visible = plan.visible_in(mask);
    const auto seen = [&] {
        const auto* rows = reinterpret_cast<const std::byte*>(visible.rows.data());
        return memory_span{rows, rows + visible.rows.size() * sizeof(visible_tokens::row), 0};
    };
    if (visible.rows.empty()) {
        visible.rows.resize(extent(mask, 1) * extent(mask, 3));
        plan.add({run_mask, node, &visible}, {memory_span::of(mask)}, {seen()});
    }
    const auto a = crumb::attention::plan({.heads = extent(q, 2),
                                           .kv_heads = extent(k, 2),
                                           .head_size = extent(q, 0),
                                           .scale = parameter(node, 0)});
    const bool as_floats = is_quantized(k) || is_quantized(node->src[2]);
    const std::size_t copies =
        2 * extent(k, 1) * extent(k, 0) * (as_floats ? sizeof(float) : sizeof(crumb::half));
    const std::size_t floats = (crumb::round_up(extent(k, 1), 16) + extent(k, 0)) * sizeof(float);
    plan.need_scratch(std::max(a->scratch_bytes(64) + copies, floats));
    plan.add({run_attention, node, &visible},
             {memory_span::of(q), memory_span::of(k), memory_span::of(node->src[2]), seen()},
             {memory_span::of(node)});
    return {};
}

} // namespace crumb_ggml
