#include "matrix.hpp"

#include <crumb/offline/quantize.hpp>

#include <cmath>
#include <cstring>

namespace lm {
namespace {

template <class F>
crumb::storage_view<F> blocks_of(const gguf_tensor& tensor, std::size_t n, std::size_t k) {
    return crumb::storage<F>(reinterpret_cast<const typename F::block*>(tensor.data.data()), n, k);
}

/// Row after row, without what pads ragged rows.
template <class F>
void decode(const crumb::storage_view<F>& w, float* out) {
    for (std::size_t r = 0; r < w.n; ++r) {
        for (std::size_t i = 0; i < w.k; ++i) {
            const auto& block = w.block(r, i / F::group);
            *out++ = crumb::to_float(F::scale(block)) * static_cast<float>(F::code(block, i % F::group));
        }
    }
}

bool is_supported(ggml_type type) {
    return type == ggml_type::f32 || type == ggml_type::f16 || type == ggml_type::q8_0 ||
           type == ggml_type::q4_0;
}

crumb::status in_tensor(const gguf_tensor& tensor, const crumb::status& error) {
    return crumb::status::error(error.code(), "tensor %.*s: %s",
                                static_cast<int>(std::min<std::size_t>(tensor.name.size(), 64)),
                                tensor.name.data(), error.message());
}

crumb::status check_finite(const gguf_tensor& tensor, std::span<const float> values) {
    for (std::size_t i = 0; i < values.size(); ++i)
        if (!std::isfinite(values[i]))
            return in_tensor(tensor,
                             crumb::status::error(crumb::errc::not_finite, "element %zu is not finite", i));
    return {};
}

} // namespace

crumb::result<std::vector<float>> to_floats(const gguf_tensor& tensor) {
    // Of an unknown type the reader does not know the size: its dimensions may be beyond any memory.
    std::vector<float> out;
    if (is_supported(tensor.type))
        out.resize(tensor.elements());
    switch (tensor.type) {
    case ggml_type::f32:
        std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
        break;
    case ggml_type::f16:
        for (std::size_t i = 0; i < out.size(); ++i) {
            crumb::half h;
            std::memcpy(&h, tensor.data.data() + i * sizeof h, sizeof h);
            out[i] = crumb::to_float(h);
        }
        break;
    case ggml_type::q8_0:
        decode(blocks_of<crumb::q8_0>(tensor, out.size() / tensor.dims[0], tensor.dims[0]), out.data());
        break;
    case ggml_type::q4_0:
        decode(blocks_of<crumb::q4_0>(tensor, out.size() / tensor.dims[0], tensor.dims[0]), out.data());
        break;
    default:
        return in_tensor(tensor, crumb::status::error(crumb::errc::unsupported,
                                                      "%s%s is not supported (F32, F16, Q8_0, Q4_0 are)",
                                                      find_ggml_type(tensor.type) != nullptr ? "type " : "",
                                                      ggml_type_name(tensor.type).c_str()));
    }
    if (const auto s = check_finite(tensor, out); !s)
        return s;
    return out;
}

void matrix_input::quantize(const crumb::activation_plan& plan, crumb::range rows) {
    for (std::size_t i = 0; i < used_; ++i)
        if (copies_[i].layout() == plan.layout)
            return;
    const std::size_t bytes = crumb::activation_bytes(plan, x_.rows);
    copies_.at(used_) = *crumb::activations::create(memory_.first(bytes), plan, x_.rows);
    memory_ = memory_.subspan(crumb::round_up(bytes, crumb::alignment));
    copies_[used_++].quantize(x_, rows);
}

const crumb::activations& matrix_input::copy(const crumb::activation_plan& plan) const {
    std::size_t i = 0;
    while (copies_.at(i).layout() != plan.layout)
        ++i;
    return copies_[i];
}

template <class T>
crumb::status matrix::plan_dense(std::span<const float> bias) {
    const auto plan =
        crumb::dense_linear<T>::plan(crumb::matrix<const T>(memory_.as<T>(), n_, k_), {.bias = bias});
    if (!plan)
        return plan.error();
    plan_ = *plan;
    return {};
}

template <class F>
crumb::status matrix::plan_quantized(const gguf_tensor& tensor, activation_type activations,
                                     std::span<const float> bias) {
    constexpr ggml_type own = std::is_same_v<F, crumb::q8_0> ? ggml_type::q8_0 : ggml_type::q4_0;
    crumb::storage_view<F> view;
    crumb::quantized<F> owned;
    if (tensor.type == own) {
        view = blocks_of<F>(tensor, n_, k_);
    } else {
        const auto floats = to_floats(tensor);
        if (!floats)
            return floats.error();
        auto q = crumb::quantize<F>(crumb::matrix<const float>(floats->data(), n_, k_));
        if (!q)
            return in_tensor(tensor, q.error());
        owned = std::move(*q);
        view = owned;
    }
    stored_bytes_ = n_ * view.groups() * sizeof(typename F::block);
    if (activations == activation_type::f32) {
        memory_ = buffer(n_ * k_ * sizeof(float));
        decode(view, memory_.as<float>());
        if (const auto s = check_finite(tensor, {memory_.as<float>(), n_ * k_}); !s)
            return s;
        return plan_dense<float>(bias);
    }
    memory_ = buffer(crumb::packed_bytes<F>(n_, k_));
    const auto packed = crumb::pack(view, memory_.bytes());
    if (!packed)
        return in_tensor(tensor, packed.error());
    const auto plan = crumb::linear<F>::plan(*packed, {.bias = bias});
    if (!plan)
        return plan.error();
    quantized_plans<F> plans{*plan, {}};
    if (activations == activation_type::panels) {
        const auto panels =
            crumb::linear<F>::plan(*packed, {.bias = bias, .mode = crumb::linear_mode::panels});
        if (!panels)
            return in_tensor(tensor, panels.error());
        plans.panels = *panels;
    }
    plan_ = plans;
    return {};
}

crumb::result<matrix> matrix::make(const gguf_tensor& tensor, std::size_t n, std::size_t k, weight_type type,
                                   activation_type activations, std::span<const float> bias) {
    if (tensor.dims[0] != k || tensor.dims[1] != n || tensor.rank > 2)
        return in_tensor(tensor, crumb::status::error(crumb::errc::bad_shape,
                                                      "shape is %llu x %llu, %zu x %zu is needed",
                                                      static_cast<unsigned long long>(tensor.dims[0]),
                                                      static_cast<unsigned long long>(tensor.dims[1]), k, n));
    matrix m;
    m.n_ = n;
    m.k_ = k;
    if (type == weight_type::stored && tensor.type == ggml_type::q8_0)
        type = weight_type::q8_0;
    if (type == weight_type::stored && tensor.type == ggml_type::q4_0)
        type = weight_type::q4_0;
    crumb::status s;
    if (type == weight_type::q8_0) {
        s = m.plan_quantized<crumb::q8_0>(tensor, activations, bias);
    } else if (type == weight_type::q4_0) {
        s = m.plan_quantized<crumb::q4_0>(tensor, activations, bias);
    } else {
        const auto floats = to_floats(tensor);
        if (!floats)
            return floats.error();
        const bool is_half = type == weight_type::stored && tensor.type == ggml_type::f16;
        m.stored_bytes_ = n * k * (is_half ? sizeof(crumb::half) : sizeof(float));
        m.memory_ = buffer(m.stored_bytes_);
        if (is_half) {
            std::memcpy(m.memory_.bytes().data(), tensor.data.data(), m.stored_bytes_);
            s = m.plan_dense<crumb::half>(bias);
        } else {
            std::memcpy(m.memory_.bytes().data(), floats->data(), m.stored_bytes_);
            s = m.plan_dense<float>(bias);
        }
    }
    if (!s)
        return s;
    return m;
}

void matrix::prepare(matrix_input& input, crumb::range rows) const {
    std::visit(
        [&](const auto& plan) {
            if constexpr (requires { plan.exact; })
                input.quantize(plan.for_rows(input.x().rows).activation_layout(), rows);
        },
        plan_);
}

void matrix::run(const matrix_input& input, const crumb::matrix_view<float>& y, crumb::range channels) const {
    std::visit(
        [&](const auto& plan) {
            if constexpr (requires { plan.exact; }) {
                const auto& chosen = plan.for_rows(y.rows);
                chosen.run(input.copy(chosen.activation_layout()), y, {.channels = channels});
            } else {
                plan.run(input.x(), y, {.channels = channels});
            }
        },
        plan_);
}

} // namespace lm
