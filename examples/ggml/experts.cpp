// MUL_MAT_ID: every row has its own choice of matrices.
#include "ggml/products.hpp"
#include "ggml/weight_buffer.hpp"

#include <algorithm>
#include <cstring>

namespace crumb_ggml {
namespace {

std::int32_t expert_of(const ggml_tensor* ids, std::size_t row) noexcept {
    const std::size_t used = extent(ids, 0);
    const auto* at =
        static_cast<const std::byte*>(ids->data) + row / used * ids->nb[1] + row % used * ids->nb[0];
    std::int32_t id;
    std::memcpy(&id, at, sizeof id);
    return id;
}
const float* input_of(const ggml_tensor* x, const ggml_tensor* ids, std::size_t row) noexcept {
    const std::size_t used = extent(ids, 0);
    return row_of<const float>(x, static_cast<std::int64_t>(row % used) % x->ne[1],
                               static_cast<std::int64_t>(row / used), 0);
}

/// Sorts the rows by expert.
void run_sort(const step& s, const worker& w) {
    if (w.part != 0)
        return;
    const auto& r = *static_cast<const expert_rows*>(s.data);
    std::fill(r.first.begin(), r.first.end(), 0);
    for (std::size_t i = 0; i < r.count; ++i)
        ++r.first[static_cast<std::size_t>(expert_of(r.ids, i)) + 1];
    std::size_t bytes = 0;
    for (std::size_t e = 0; e < r.experts; ++e) {
        r.place[e] = bytes;
        if (r.first[e + 1] != 0 && r.layout.quantize != nullptr)
            bytes += crumb::round_up(crumb::activation_bytes(r.layout, r.first[e + 1]), crumb::alignment);
        r.first[e + 1] += r.first[e];
    }
    // Filled from the beginning of each expert's rows, which moves it to that of the next.
    for (std::size_t i = 0; i < r.count; ++i)
        r.order[r.first[static_cast<std::size_t>(expert_of(r.ids, i))]++] = static_cast<std::int32_t>(i);
    for (std::size_t e = r.experts; e > 0; --e)
        r.first[e] = r.first[e - 1];
    r.first[0] = 0;
}

crumb::activations quantized_of(const expert_rows& r, std::size_t expert) noexcept {
    const std::size_t rows = r.first[expert + 1] - r.first[expert];
    const std::span<std::byte> memory(r.quantized + r.place[expert], crumb::activation_bytes(r.layout, rows));
    const auto a = crumb::activations::attach(memory, r.layout, rows);
    GGML_ASSERT(a && "workspace of experts");
    return *a;
}

/// Copies this thread's sorted rows, and quantizes them.
void run_collect(const step& s, const worker& w) {
    const auto& r = *static_cast<const expert_rows*>(s.data);
    const crumb::range mine = crumb::split(r.count, w.parts, w.part);
    for (std::size_t i = mine.begin; i < mine.end; ++i)
        std::memcpy(r.x + i * r.k, input_of(r.input, r.ids, static_cast<std::size_t>(r.order[i])),
                    r.k * sizeof(float));
    if (r.layout.quantize == nullptr)
        return;
    for (std::size_t e = 0; e < r.experts; ++e) {
        const std::size_t begin = std::max(mine.begin, r.first[e]), end = std::min(mine.end, r.first[e + 1]);
        if (begin >= end)
            continue;
        auto to = quantized_of(r, e);
        to.quantize(crumb::matrix<const float>(r.x + r.first[e] * r.k, r.first[e + 1] - r.first[e], r.k),
                    {begin - r.first[e], end - r.first[e]});
    }
}

void run_experts(const step& s, const worker& w) {
    const auto& p = *static_cast<const expert_product*>(s.data);
    const expert_rows& r = *p.rows;
    const ggml_tensor* y = s.node;
    const std::size_t n = p.weights->n, used = extent(r.ids, 0);
    const crumb::range channels = crumb::split(n, w.parts, w.part, crumb::tile_channels);
    if (channels.size() == 0)
        return;
    for (std::size_t e = 0; e < r.experts; ++e) {
        const std::size_t first = r.first[e], rows = r.first[e + 1] - first;
        if (rows == 0)
            continue;
        const auto result = [&](std::size_t i) {
            const auto row = static_cast<std::size_t>(r.order[first + i]);
            return row_of<float>(y, static_cast<std::int64_t>(row % used),
                                 static_cast<std::int64_t>(row / used), 0);
        };
        const auto to = crumb::matrix<float>(rows == 1 ? result(0) : r.y + first * n, rows, n);
        const crumb::any_linear& plan = p.weights->plans[e];
        if (plan.reads_activations())
            plan.run(quantized_of(r, e), to, {.channels = channels});
        else
            plan.run(crumb::matrix<const float>(r.x + first * r.k, rows, r.k), to, {.channels = channels});
        for (std::size_t i = 0; rows > 1 && i < rows; ++i)
            std::memcpy(result(i) + channels.begin, to.row(i) + channels.begin,
                        channels.size() * sizeof(float));
    }
}

} // namespace

std::size_t place_rows(expert_rows& r, std::byte* memory) noexcept {
    std::size_t bytes = 0;
    const auto take = [&](std::size_t size) {
        const std::size_t at = bytes;
        bytes += crumb::round_up(size, crumb::alignment);
        return memory + at;
    };
    r.first = {reinterpret_cast<std::size_t*>(take((r.experts + 1) * sizeof(std::size_t))), r.experts + 1};
    r.place = {reinterpret_cast<std::size_t*>(take(r.experts * sizeof(std::size_t))), r.experts};
    r.order = {reinterpret_cast<std::int32_t*>(take(r.count * sizeof(std::int32_t))), r.count};
    r.x = reinterpret_cast<float*>(take(r.count * r.k * sizeof(float)));
    r.y = reinterpret_cast<float*>(take(r.count * r.outputs * sizeof(float)));
    // Rounding up costs each expert's rows less than one row more.
    r.quantized = take(r.layout.quantize == nullptr
                           ? 0
                           : std::min(r.experts, r.count) * crumb::activation_bytes(r.layout, 1) +
                                 crumb::activation_bytes(r.layout, r.count));
    return bytes;
}

crumb::status add_expert_product(graph_plan& plan, const ggml_tensor* node) {
    const ggml_tensor *w = node->src[0], *x = node->src[1], *ids = node->src[2];
    const auto weights = weight_buffer::of(buffer_of(w)).plans_of(w);
    if (!weights)
        return weights.error();
    const crumb::any_linear& any = (*weights)->plans.front();
    const crumb::activation_plan layout =
        any.reads_activations() ? any.input_plan() : crumb::activation_plan{};
    expert_rows wanted;
    wanted.input = x;
    wanted.ids = ids;
    wanted.layout = layout;
    wanted.k = (*weights)->k;
    wanted.experts = (*weights)->matrices;
    wanted.count = extent(ids, 0) * extent(ids, 1);
    wanted.outputs = (*weights)->n;
    bool is_new = false;
    expert_rows& r = plan.experts_for(wanted, is_new);
    const memory_span workspace = graph_plan::workspace();
    if (is_new) {
        plan.add({run_sort, node, &r}, {memory_span::of(ids)}, {workspace});
        plan.add({run_collect, node, &r}, {memory_span::of(x), workspace}, {workspace});
    }
    expert_product& p = plan.new_expert_product();
    p = {*weights, &r};
    plan.add({run_experts, node, &p}, {workspace}, {memory_span::of(node), workspace});
    return {};
}

} // namespace crumb_ggml
