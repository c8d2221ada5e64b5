#include "ggml/rows.hpp"

#include "ggml/options.hpp"
#include "ggml/rope.hpp"
#include "ggml/weight_buffer.hpp"

#include <crumb/core/half.hpp>

#include <cstring>

namespace crumb_ggml {
namespace {

/// Indices of a row.
struct row_index {
    std::int64_t i1, i2, i3;
};

/// Calls f(index) for this thread's rows of a tensor.
template <class F>
void for_my_rows(const ggml_tensor* t, const worker& w, F&& f) {
    const crumb::range mine = crumb::split(static_cast<std::size_t>(ggml_nrows(t)), w.parts, w.part);
    for (std::size_t r = mine.begin; r < mine.end; ++r) {
        const auto i = static_cast<std::int64_t>(r);
        f(row_index{i % t->ne[1], i / t->ne[1] % t->ne[2], i / (t->ne[1] * t->ne[2])});
    }
}

template <class T>
T* row_at(const ggml_tensor* t, const row_index& i) noexcept {
    return row_of<T>(t, i.i1, i.i2, i.i3);
}
/// The row that is broadcast to `i`.
template <class T>
T* shared_row_at(const ggml_tensor* t, const row_index& i) noexcept {
    return row_of<T>(t, i.i1 % t->ne[1], i.i2 % t->ne[2], i.i3 % t->ne[3]);
}

std::size_t columns(const ggml_tensor* t) noexcept { return static_cast<std::size_t>(t->ne[0]); }

crumb::matrix_view<const float> one_row(const float* x, std::size_t n) noexcept {
    return crumb::matrix<const float>(x, 1, n);
}
crumb::matrix_view<float> one_row(float* y, std::size_t n) noexcept { return crumb::matrix<float>(y, 1, n); }

// ---- floats to floats

template <bool Product>
void run_binary(const step& s, const worker& w) {
    const ggml_tensor *y = s.node, *a = y->src[0], *b = y->src[1];
    for_my_rows(y, w, [&](const row_index& i) {
        const float* from = row_at<const float>(a, i);
        const float* other = shared_row_at<const float>(b, i);
        float* to = row_at<float>(y, i);
        const std::size_t n = columns(y), step_b = b->ne[0] == 1 ? 0 : 1;
        if (step_b == 0)
            for (std::size_t c = 0; c < n; ++c)
                to[c] = Product ? from[c] * *other : from[c] + *other;
        else
            for (std::size_t c = 0; c < n; ++c)
                to[c] = Product ? from[c] * other[c] : from[c] + other[c];
    });
}

void run_norm(const step& s, const worker& w) {
    const ggml_tensor *y = s.node, *x = y->src[0];
    const std::size_t n = columns(y);
    float* ones = reinterpret_cast<float*>(w.scratch.data());
    std::fill_n(ones, n, 1.0f);
    const std::span<const float> weight(ones, n);
    for_my_rows(y, w, [&](const row_index& i) {
        const auto from = one_row(row_at<const float>(x, i), n);
        const auto to = one_row(row_at<float>(y, i), n);
        if (y->op == GGML_OP_RMS_NORM)
            w.floats->rms_norm(from, weight, parameter(y, 0), to);
        else
            w.floats->layer_norm(from, weight, {}, parameter(y, 0), to);
    });
}

void run_scale(const step& s, const worker& w) {
    const ggml_tensor *y = s.node, *x = y->src[0];
    const float scale = parameter(y, 0), bias = parameter(y, 1);
    for_my_rows(y, w, [&](const row_index& i) {
        const float* from = row_at<const float>(x, i);
        float* to = row_at<float>(y, i);
        for (std::size_t c = 0; c < columns(y); ++c)
            to[c] = from[c] * scale + bias;
    });
}

void run_unary(const step& s, const worker& w) {
    const ggml_tensor *y = s.node, *x = y->src[0];
    const std::size_t n = columns(y);
    for_my_rows(y, w, [&](const row_index& i) {
        const auto from = one_row(row_at<const float>(x, i), n);
        const auto to = one_row(row_at<float>(y, i), n);
        switch (ggml_get_unary_op(y)) {
        case GGML_UNARY_OP_SILU:
            w.floats->silu(from, to);
            break;
        case GGML_UNARY_OP_GELU:
            w.floats->gelu_tanh(from, to);
            break;
        case GGML_UNARY_OP_GELU_ERF:
            w.floats->gelu_erf(from, to);
            break;
        default: // RELU
            for (std::size_t c = 0; c < n; ++c)
                to.data[c] = from.data[c] > 0 ? from.data[c] : 0.0f;
        }
    });
}

void run_gated(const step& s, const worker& w) {
    const ggml_tensor *y = s.node, *a = y->src[0], *b = y->src[1];
    const std::size_t n = columns(y);
    const bool swapped = y->op_params[1] != 0;
    for_my_rows(y, w, [&](const row_index& i) {
        const float* gate = row_at<const float>(a, i);
        const float* up = b != nullptr ? row_at<const float>(b, i) : gate + (swapped ? 0 : n);
        if (b == nullptr && swapped)
            gate += n;
        const auto g = one_row(gate, n), u = one_row(up, n);
        const auto to = one_row(row_at<float>(y, i), n);
        switch (ggml_get_glu_op(y)) {
        case GGML_GLU_OP_SWIGLU:
            w.floats->silu_gated(g, u, to);
            break;
        case GGML_GLU_OP_GEGLU:
            w.floats->gelu_tanh_gated(g, u, to);
            break;
        case GGML_GLU_OP_GEGLU_ERF:
            w.floats->gelu_erf_gated(g, u, to);
            break;
        default: // REGLU
            for (std::size_t c = 0; c < n; ++c)
                to.data[c] = gate[c] > 0 ? gate[c] * up[c] : 0.0f;
        }
    });
}

// ---- copies of rows

/// Writes a row of floats in another type.
void store_row(const worker& w, const float* from, ggml_type type, void* to, std::size_t n) noexcept {
    if (type == GGML_TYPE_F32)
        std::memcpy(to, from, n * sizeof(float));
    else if (type == GGML_TYPE_F16)
        w.floats->to_half({from, n}, static_cast<crumb::half*>(to));
    else
        ggml_get_type_traits(type)->from_float_ref(from, to, static_cast<std::int64_t>(n));
}
void load_row(const worker& w, ggml_type type, const void* from, float* to, std::size_t n) noexcept {
    if (type == GGML_TYPE_F32)
        std::memcpy(to, from, n * sizeof(float));
    else if (type == GGML_TYPE_F16)
        w.floats->to_float({static_cast<const crumb::half*>(from), n}, to);
    else
        ggml_get_type_traits(type)->to_float(from, to, static_cast<std::int64_t>(n));
}

void run_get_rows(const step& s, const worker& w) {
    const ggml_tensor *y = s.node, *table = y->src[0], *ids = y->src[1];
    for_my_rows(y, w, [&](const row_index& i) {
        const std::int32_t id = row_of<const std::int32_t>(ids, i.i2, i.i3, 0)[i.i1];
        GGML_ASSERT(id >= 0 && id < table->ne[1]);
        load_row(w, table->type, row_of<const std::byte>(table, id, i.i2, i.i3), row_at<float>(y, i),
                 columns(y));
    });
}

void run_set_rows(const step& s, const worker& w) {
    const ggml_tensor *y = s.node, *x = y->src[0], *ids = y->src[1];
    for_my_rows(x, w, [&](const row_index& i) {
        const std::byte* at = static_cast<const std::byte*>(ids->data) +
                              static_cast<std::size_t>(i.i1) * ids->nb[0] +
                              static_cast<std::size_t>(i.i2 % ids->ne[1]) * ids->nb[1] +
                              static_cast<std::size_t>(i.i3 % ids->ne[2]) * ids->nb[2];
        std::int64_t id = 0;
        if (ids->type == GGML_TYPE_I64) {
            std::memcpy(&id, at, sizeof id);
        } else {
            std::int32_t narrow;
            std::memcpy(&narrow, at, sizeof narrow);
            id = narrow;
        }
        GGML_ASSERT(id >= 0 && id < y->ne[1]);
        store_row(w, row_at<const float>(x, i), y->type, row_of<std::byte>(y, id, i.i2, i.i3), columns(x));
    });
}

// ---- what is supported

bool has_float_rows(const ggml_tensor* t) noexcept {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float);
}

/// Whether bytes of a tensor are where ggml has them: not packed.
bool is_plain(const ggml_tensor* t) noexcept {
    return the_options().own_buffers ? format_of(t->type) == nullptr : !is_in_weight_buffer(t);
}

bool is_binary(const ggml_tensor* op) noexcept {
    const ggml_tensor *a = op->src[0], *b = op->src[1];
    return has_float_rows(op) && has_float_rows(a) && has_float_rows(b) && ggml_are_same_shape(a, op) &&
           (b->ne[0] == op->ne[0] || b->ne[0] == 1);
}

bool is_stored(ggml_type type) noexcept {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 ||
           type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0;
}

bool is_unary(const ggml_tensor* op) noexcept {
    switch (ggml_get_unary_op(op)) {
    case GGML_UNARY_OP_SILU:
    case GGML_UNARY_OP_GELU:
    case GGML_UNARY_OP_GELU_ERF:
    case GGML_UNARY_OP_RELU:
        return true;
    default:
        return false;
    }
}

bool is_gated(const ggml_tensor* op) noexcept {
    switch (ggml_get_glu_op(op)) {
    case GGML_GLU_OP_SWIGLU:
    case GGML_GLU_OP_GEGLU:
    case GGML_GLU_OP_GEGLU_ERF:
    case GGML_GLU_OP_REGLU:
        return op->src[1] == nullptr || has_float_rows(op->src[1]);
    default:
        return false;
    }
}

bool supports_operands(const ggml_tensor* op) noexcept {
    const bool floats = has_float_rows(op) && op->src[0] != nullptr && has_float_rows(op->src[0]);
    switch (op->op) {
    case GGML_OP_ADD:
    case GGML_OP_MUL:
        return is_binary(op);
    case GGML_OP_NORM:
    case GGML_OP_RMS_NORM:
    case GGML_OP_SCALE:
        return floats;
    case GGML_OP_UNARY:
        return floats && is_unary(op);
    case GGML_OP_GLU:
        return floats && is_gated(op);
    case GGML_OP_ROPE:
        return floats && supports_rope(op);
    case GGML_OP_GET_ROWS:
        return has_float_rows(op) && op->src[1]->type == GGML_TYPE_I32 &&
               op->src[1]->nb[0] == sizeof(std::int32_t) &&
               op->src[0]->nb[0] == ggml_type_size(op->src[0]->type) &&
               (op->src[0]->type == GGML_TYPE_F32 || op->src[0]->type == GGML_TYPE_F16 ||
                ggml_get_type_traits(op->src[0]->type)->to_float != nullptr);
    case GGML_OP_SET_ROWS:
        return is_stored(op->type) && has_float_rows(op->src[0]) && op->nb[0] == ggml_type_size(op->type) &&
               (op->src[1]->type == GGML_TYPE_I64 || op->src[1]->type == GGML_TYPE_I32);
    default:
        return false;
    }
}

void (*function_of(const ggml_tensor* op))(const step&, const worker&) {
    switch (op->op) {
    case GGML_OP_ADD:
        return run_binary<false>;
    case GGML_OP_MUL:
        return run_binary<true>;
    case GGML_OP_NORM:
    case GGML_OP_RMS_NORM:
        return run_norm;
    case GGML_OP_SCALE:
        return run_scale;
    case GGML_OP_UNARY:
        return run_unary;
    case GGML_OP_GLU:
        return run_gated;
    case GGML_OP_GET_ROWS:
        return run_get_rows;
    case GGML_OP_SET_ROWS:
        return run_set_rows;
    default:
        return nullptr;
    }
}

} // namespace

bool supports_rows(const ggml_tensor* op) noexcept {
    if (!supports_operands(op) || !is_plain(op))
        return false;
    for (const ggml_tensor* from : op->src)
        if (from != nullptr && !is_plain(from))
            return false;
    return true;
}

crumb::status add_rows(graph_plan& plan, const ggml_tensor* node) {
    if (node->op == GGML_OP_ROPE) {
        add_rope(plan, node);
        return {};
    }
    const auto run = function_of(node);
    if (run == nullptr)
        return crumb::status::error(crumb::errc::unsupported, "%s: there is no %s here", node->name,
                                    ggml_op_name(node->op));
    if (node->op == GGML_OP_NORM || node->op == GGML_OP_RMS_NORM)
        plan.need_scratch(columns(node) * sizeof(float));
    const auto rows =
        static_cast<std::size_t>(ggml_nrows(node->op == GGML_OP_SET_ROWS ? node->src[0] : node));
    // Rows of operands that are rows of the result belong to one thread.
    const auto read = [&](const ggml_tensor* from) {
        if (from == nullptr)
            return memory_span{};
        const bool by_rows = node->op != GGML_OP_GET_ROWS && ggml_are_same_shape(from, node);
        const bool set = node->op == GGML_OP_SET_ROWS && from == node->src[0];
        return memory_span::of(from, by_rows || set ? rows : 0);
    };
    const bool scattered = node->op == GGML_OP_SET_ROWS;
    plan.add({run, node}, {read(node->src[0]), read(node->src[1])},
             {memory_span::of(node, scattered ? 0 : rows)});
    return {};
}

} // namespace crumb_ggml
