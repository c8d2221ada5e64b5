#include "ggml/products.hpp"

#include "ggml/options.hpp"
#include "ggml/weight_buffer.hpp"

namespace crumb_ggml {
namespace {

bool is_multiplied(ggml_type type) noexcept {
    const bool floats = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
    return (floats || format_of(type) != nullptr) && the_options().takes(ggml_type_name(type));
}

/// A matrix of floats that is no weight but an input of the graph, as the rotations before quantized caches.
bool is_input(const ggml_tensor* w) noexcept {
    const ggml_backend_buffer_t buffer = buffer_of(w);
    return w->type == GGML_TYPE_F32 && w->op == GGML_OP_NONE && (w->flags & GGML_TENSOR_FLAG_INPUT) != 0 &&
           w->ne[2] == 1 && w->ne[3] == 1 && (buffer == nullptr || !is_in_weight_buffer(w));
}

/// Rows i1 = 0 .. of a slice of a tensor of floats.
crumb::matrix_view<const float> rows_at(const ggml_tensor* t, std::size_t rows, std::int64_t i2,
                                        std::int64_t i3) noexcept {
    return {row_of<const float>(t, 0, i2, i3), rows, extent(t, 0), t->nb[1] / sizeof(float)};
}

void run_product(const step& s, const worker& w) {
    const auto& p = *static_cast<const product*>(s.data);
    const crumb::range channels = crumb::split(p.y.cols, w.parts, w.part, crumb::tile_channels);
    if (channels.size() == 0)
        return;
    const crumb::linear_part part{.channels = channels};
    if (p.input != nullptr)
        p.plan->run(p.input->quantized, p.y, part);
    else
        p.plan->run(p.x, p.y, part);
}

} // namespace

bool supports_product(const ggml_tensor* op) noexcept {
    const ggml_tensor *w = op->src[0], *x = op->src[1];
    if (!is_multiplied(w->type) || w->view_src != nullptr || !ggml_is_contiguous(w))
        return false;
    const bool is_weight = w->buffer == nullptr ? the_options().own_buffers : is_in_weight_buffer(w);
    if (!is_weight && (!is_input(w) || the_options().products_only))
        return false;
    if (x->type != GGML_TYPE_F32 || x->nb[0] != sizeof(float) || x->nb[1] % sizeof(float) != 0 ||
        (x->ne[1] > 1 && x->nb[1] < x->nb[0] * extent(x, 0)))
        return false;
    if (op->type != GGML_TYPE_F32 || !ggml_is_contiguous(op))
        return false;
    if (op->op == GGML_OP_MUL_MAT)
        return true;
    return is_weight && w->ne[3] == 1 && op->src[2]->type == GGML_TYPE_I32;
}

crumb::status add_product(graph_plan& plan, const ggml_tensor* node) {
    const ggml_tensor *w = node->src[0], *x = node->src[1];
    std::span<const crumb::any_linear> matrices;
    if (is_input(w)) {
        const auto made = crumb::dense_linear<float>::plan(
            crumb::matrix<const float>(data_of<const float>(w), extent(w, 1), extent(w, 0)));
        if (!made)
            return made.error();
        matrices = {&plan.keep(*made), 1};
    } else {
        const auto weights = weight_buffer::of(buffer_of(w)).plans_of(w);
        if (!weights)
            return weights.error();
        matrices = (*weights)->plans;
    }
    // Rows of all slices at once where they meet one matrix and follow each other at equal distances.
    const bool whole = matrices.size() == 1 && (x->ne[2] == 1 || x->nb[2] == x->nb[1] * extent(x, 1)) &&
                       (x->ne[3] == 1 || x->nb[3] == x->nb[2] * extent(x, 2));
    const std::int64_t slices2 = whole ? 1 : x->ne[2], slices3 = whole ? 1 : x->ne[3];
    const std::size_t rows = whole ? static_cast<std::size_t>(ggml_nrows(x)) : extent(x, 1);
    for (std::int64_t i3 = 0; i3 < slices3; ++i3)
        for (std::int64_t i2 = 0; i2 < slices2; ++i2) {
            const std::int64_t of3 = i3 / (x->ne[3] / w->ne[3]), of2 = i2 / (x->ne[2] / w->ne[2]);
            product& p = plan.new_product();
            p.plan = &matrices[static_cast<std::size_t>(of3 * w->ne[2] + of2)];
            p.x = rows_at(x, rows, i2, i3);
            p.y = {row_of<float>(node, 0, i2, i3), rows, extent(node, 0), extent(node, 0)};
            memory_span read = memory_span::of(x);
            if (p.plan->reads_activations()) {
                p.input =
                    &plan.quantize(x, static_cast<std::size_t>(i3 * slices2 + i2), p.plan->input_plan(), p.x);
                read = graph_plan::memory_of(*p.input);
            }
            const auto* y = reinterpret_cast<const std::byte*>(p.y.data);
            plan.add({run_product, node, &p}, {read}, {{y, y + rows * p.y.cols * sizeof(float), 0}});
        }
    return {};
}

} // namespace crumb_ggml
