#include "ggml/rope.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace crumb_ggml {
namespace {

/// The parameters of ggml's operation, by their places in it.
struct rope_parameters {
    int dims, mode, original_context, offset;
    float base, scale, extrapolation, attention, beta_fast, beta_slow;

    static rope_parameters of(const ggml_tensor* op) noexcept {
        const auto number = [&](std::size_t i) {
            float value;
            std::memcpy(&value, op->op_params + i, sizeof value);
            return value;
        };
        return {op->op_params[1], op->op_params[2], op->op_params[4], op->op_params[15], number(5),
                number(6),        number(7),        number(8),        number(9),         number(10)};
    }
};

/// The dimension whose wave turns `turns` times in the original context.
float dimension_of(const rope_parameters& p, float turns) noexcept {
    constexpr float two_pi = 6.28318530717958647692f;
    return static_cast<float>(p.dims) * std::log(static_cast<float>(p.original_context) / (turns * two_pi)) /
           (2 * std::log(p.base));
}

// The sequence of float operations is that of ggml's CPU backend, so that texts agree.
void run_angles(const step& s, const worker& w) {
    const auto& angles = *static_cast<const rope_angles*>(s.data);
    const ggml_tensor* op = angles.of;
    const rope_parameters p = rope_parameters::of(op);
    const auto* positions = data_of<const std::int32_t>(op->src[1]);
    const auto* factors = op->src[2] != nullptr ? data_of<const float>(op->src[2]) : nullptr;
    const float ratio = std::pow(p.base, -2.0f / static_cast<float>(p.dims));
    const float low = std::max(0.0f, std::floor(dimension_of(p, p.beta_fast)));
    const float high = std::min(static_cast<float>(p.dims - 1), std::ceil(dimension_of(p, p.beta_slow)));
    const float magnitude =
        p.extrapolation != 0 ? p.attention * (1.0f + 0.1f * std::log(1.0f / p.scale)) : p.attention;
    const crumb::range mine = crumb::split(static_cast<std::size_t>(op->src[1]->ne[0]), w.parts, w.part);
    for (std::size_t i = mine.begin; i < mine.end; ++i) {
        float* cosines = angles.row(i);
        float theta = static_cast<float>(positions[i]);
        for (std::size_t pair = 0; pair < angles.pairs; ++pair, theta *= ratio) {
            const float full = factors != nullptr ? theta / factors[pair] : theta;
            float angle = p.scale * full;
            if (p.extrapolation != 0) {
                const float ramp = (static_cast<float>(pair) - low) / std::max(0.001f, high - low);
                const float mix = (1 - std::min(1.0f, std::max(0.0f, ramp))) * p.extrapolation;
                angle = angle * (1 - mix) + full * mix;
            }
            cosines[pair] = std::cos(angle) * magnitude;
            cosines[angles.pairs + pair] = std::sin(angle) * magnitude;
        }
    }
}

template <bool Neighbours>
void rotate(const float* x, float* y, const float* cosines, std::size_t pairs) noexcept {
    const float* sines = cosines + pairs;
    for (std::size_t i = 0; i < pairs; ++i) {
        const std::size_t a = Neighbours ? 2 * i : i, b = Neighbours ? a + 1 : i + pairs;
        const float xa = x[a], xb = x[b];
        y[a] = xa * cosines[i] - xb * sines[i];
        y[b] = xa * sines[i] + xb * cosines[i];
    }
}

void run_rope(const step& s, const worker& w) {
    const ggml_tensor *y = s.node, *x = y->src[0];
    const auto& angles = *static_cast<const rope_angles*>(s.data);
    const bool neighbours = rope_parameters::of(y).mode == GGML_ROPE_TYPE_NORMAL;
    const crumb::range mine = crumb::split(static_cast<std::size_t>(ggml_nrows(y)), w.parts, w.part);
    for (std::size_t r = mine.begin; r < mine.end; ++r) {
        const auto i = static_cast<std::int64_t>(r);
        const std::int64_t i1 = i % y->ne[1], i2 = i / y->ne[1] % y->ne[2], i3 = i / (y->ne[1] * y->ne[2]);
        const float* from = row_of<const float>(x, i1, i2, i3);
        float* to = row_of<float>(y, i1, i2, i3);
        const float* turn = angles.row(static_cast<std::size_t>(i2));
        if (neighbours)
            rotate<true>(from, to, turn, angles.pairs);
        else
            rotate<false>(from, to, turn, angles.pairs);
        const std::size_t rotated = 2 * angles.pairs, all = static_cast<std::size_t>(y->ne[0]);
        if (from != to && rotated < all)
            std::memcpy(to + rotated, from + rotated, (all - rotated) * sizeof(float));
    }
}

} // namespace

bool supports_rope(const ggml_tensor* op) noexcept {
    const rope_parameters p = rope_parameters::of(op);
    return (p.mode == GGML_ROPE_TYPE_NORMAL || p.mode == GGML_ROPE_TYPE_NEOX) && p.offset == 0 &&
           p.dims > 0 && p.dims % 2 == 0 && p.dims <= op->ne[0] && op->src[1]->type == GGML_TYPE_I32 &&
           op->src[1]->ne[0] == op->ne[2] && ggml_is_contiguous(op->src[1]) &&
           (op->src[2] == nullptr || op->src[2]->type == GGML_TYPE_F32);
}

void add_rope(graph_plan& plan, const ggml_tensor* node) {
    rope_angles& angles = plan.angles_of(node);
    const auto table_span = [&] {
        return memory_span{angles.table.data(), angles.table.data() + angles.table.size(), 0};
    };
    if (angles.table.size() == 0) {
        angles.pairs = static_cast<std::size_t>(rope_parameters::of(node).dims) / 2;
        angles.table =
            crumb::buffer(static_cast<std::size_t>(node->src[1]->ne[0]) * 2 * angles.pairs * sizeof(float),
                          crumb::buffer::untouched);
        plan.add({run_angles, node, &angles},
                 {memory_span::of(node->src[1]),
                  node->src[2] != nullptr ? memory_span::of(node->src[2]) : memory_span{}},
                 {table_span()});
    }
    const auto rows = static_cast<std::size_t>(ggml_nrows(node));
    plan.add({run_rope, node, &angles}, {memory_span::of(node->src[0], rows), table_span()},
             {memory_span::of(node, rows)});
}

} // namespace crumb_ggml
