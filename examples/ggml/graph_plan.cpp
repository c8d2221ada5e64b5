#include "ggml/graph_plan.hpp"

#include "ggml/attention.hpp"
#include "ggml/products.hpp"
#include "ggml/replaced_weights.hpp"
#include "ggml/rows.hpp"

#include <algorithm>
#include <cstring>

namespace crumb_ggml {
namespace {

void run_quantize(const step& s, const worker& w) {
    const auto& in = *static_cast<const quantized_input*>(s.data);
    crumb::activations to = in.quantized;
    const crumb::range mine = crumb::split(in.x.rows, w.parts, w.part);
    if (mine.size() != 0)
        to.quantize(in.x, mine);
}

/// Whether two rotary embeddings turn by the same angles.
bool same_angles(const ggml_tensor* a, const ggml_tensor* b) noexcept {
    return a->src[1] == b->src[1] && a->src[2] == b->src[2] &&
           std::memcmp(a->op_params, b->op_params, sizeof a->op_params) == 0;
}

} // namespace

void graph_plan::add(const step& s, std::initializer_list<memory_span> reads,
                     std::initializer_list<memory_span> writes) {
    const auto collide = [](const auto& mine, const std::vector<memory_span>& others) {
        return std::any_of(mine.begin(), mine.end(), [&](const memory_span& m) {
            return std::any_of(others.begin(), others.end(),
                               [&](const memory_span& other) { return m.collides(other); });
        });
    };
    steps_.push_back(s);
    if (collide(reads, writes_) || collide(writes, writes_) || collide(writes, reads_)) {
        steps_.back().waits = true;
        reads_.clear();
        writes_.clear();
    }
    reads_.insert(reads_.end(), reads);
    writes_.insert(writes_.end(), writes);
}

const quantized_input& graph_plan::quantize(const ggml_tensor* source, std::size_t slice,
                                            const crumb::activation_plan& layout,
                                            const crumb::matrix_view<const float>& x) {
    rows_ = std::max(rows_, x.rows);
    for (const buffer_use& use : buffers_)
        if (use.holds != nullptr && use.holds->source == source && use.holds->slice == slice &&
            use.holds->layout == layout)
            return *use.holds;
    quantized_input& in = inputs_.emplace_back();
    in.source = source;
    in.slice = slice;
    in.layout = layout;
    in.x = x;
    in.place = next_place_;
    next_place_ = (next_place_ + 1) % places;
    buffer_use& use = buffers_[in.place];
    use.bytes = std::max(use.bytes, crumb::activation_bytes(layout, x.rows));
    use.holds = &in;
    // Its rows are the source's where these lie one after the other.
    const memory_span read =
        memory_span::of(source, x.rows == static_cast<std::size_t>(ggml_nrows(source)) ? x.rows : 0);
    add({run_quantize, source, &in}, {read}, {memory_of(in)});
    return in;
}

rope_angles& graph_plan::angles_of(const ggml_tensor* rope) {
    for (rope_angles& a : angles_)
        if (same_angles(a.of, rope))
            return a;
    rope_angles& a = angles_.emplace_back();
    a.of = rope;
    return a;
}

visible_tokens& graph_plan::visible_in(const ggml_tensor* mask) {
    for (visible_tokens& v : visible_)
        if (v.mask == mask)
            return v;
    visible_tokens& v = visible_.emplace_back();
    v.mask = mask;
    return v;
}

expert_rows& graph_plan::experts_for(const expert_rows& wanted, bool& is_new) {
    is_new = experts_.empty() || experts_.back().input != wanted.input || experts_.back().ids != wanted.ids ||
             experts_.back().experts != wanted.experts || !(experts_.back().layout == wanted.layout);
    if (is_new)
        experts_.push_back(wanted);
    expert_rows& r = experts_.back();
    r.outputs = std::max(r.outputs, wanted.outputs);
    return r;
}

crumb::status graph_plan::add_node(const ggml_tensor* node) {
    switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return {};
    case GGML_OP_MUL_MAT:
        return add_product(*this, node);
    case GGML_OP_MUL_MAT_ID:
        return add_expert_product(*this, node);
    case GGML_OP_FLASH_ATTN_EXT:
        return add_attention(*this, node);
    default:
        return add_rows(*this, node);
    }
}

crumb::status graph_plan::check_weights(std::span<ggml_tensor* const> nodes) {
    for (const ggml_tensor* node : nodes)
        for (const ggml_tensor* from : node->src)
            if (from != nullptr && from->op == GGML_OP_NONE && from->data != nullptr)
                if (const auto s = check_floats(from); !s)
                    return s;
    return {};
}

crumb::status graph_plan::fill(std::span<ggml_tensor* const> nodes, std::size_t threads) {
    if (has_replacements() && !has_checked_)
        if (const auto s = check_weights(nodes); !s)
            return s;
    has_checked_ = true;
    steps_.clear();
    reads_.clear();
    writes_.clear();
    inputs_.clear();
    products_.clear();
    plans_.clear();
    angles_.clear();
    visible_.clear();
    experts_.clear();
    expert_products_.clear();
    rows_ = 1;
    for (buffer_use& use : buffers_) {
        use.holds = nullptr;
        use.bytes = 0;
    }
    for (const ggml_tensor* node : nodes)
        if ((node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0 && !ggml_is_empty(node))
            if (const auto s = add_node(node); !s)
                return s;
    for (buffer_use& use : buffers_)
        if (use.memory.size() < use.bytes)
            use.memory = crumb::buffer(use.bytes, crumb::buffer::untouched);
    for (quantized_input& in : inputs_) {
        const auto a = crumb::activations::create(buffers_[in.place].memory.bytes(), in.layout, in.x.rows);
        if (!a)
            return a.error();
        in.quantized = *a;
    }
    std::size_t workspace_bytes = 0;
    for (expert_rows& r : experts_)
        workspace_bytes = std::max(workspace_bytes, place_rows(r, nullptr));
    if (workspace_.size() < workspace_bytes)
        workspace_ = crumb::buffer(workspace_bytes, crumb::buffer::untouched);
    for (expert_rows& r : experts_)
        place_rows(r, workspace_.data());
    scratch_bytes_ = crumb::round_up(scratch_bytes_, crumb::alignment);
    if (scratch_.size() < scratch_bytes_ * threads)
        scratch_ = crumb::buffer(scratch_bytes_ * threads, crumb::buffer::untouched);
    return {};
}

} // namespace crumb_ggml
