#include "model/matrix.hpp"

#include <crumb/offline/weights/quantize.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace lm {
namespace {

template <class F>
crumb::storage_view<F> blocks_of(const gguf_tensor& tensor, std::size_t n, std::size_t k) {
    const auto* blocks = reinterpret_cast<const typename F::block*>(tensor.data.data());
    return *crumb::storage<F>({blocks, tensor.data.size() / sizeof *blocks}, n, k);
}

/// Row after row, without what pads ragged rows.
template <class F>
void decode(const crumb::storage_view<F>& w, float* out) {
    for (std::size_t r = 0; r < w.n; ++r)
        for (std::size_t i = 0; i < w.k; ++i)
            *out++ = static_cast<float>(w.weight(r, i));
}
template <class F>
void decode(const crumb::packed_view<F>& w, std::span<const std::int8_t> codebooks, float* out) {
    for (std::size_t r = 0; r < w.n(); ++r) {
        for (std::size_t b = 0; b < w.blocks(); ++b) {
            const auto block = crumb::unpack(w, r, b);
            const std::size_t first = b * crumb::block_inputs<F>;
            const std::size_t size = std::min(w.k() - first, crumb::block_inputs<F>);
            decode(*crumb::storage<F>({&block, 1}, 1, size, codebooks), out);
            out += size;
        }
    }
}

void decode(const crumb::nested_view& w, int bits, float* out) {
    for (std::size_t r = 0; r < w.n(); ++r)
        for (std::size_t i = 0; i < w.k(); ++i)
            *out++ = static_cast<float>(w.weight(r, i, bits));
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

crumb::result<std::span<const std::int8_t>> codebooks_for(weight_type type, const codebook_sets& sets) {
    std::span<const std::int8_t> found;
    crumb::status s;
    with_format(type, [&]<class F>(std::type_identity<F>) {
        if constexpr (crumb::needs_codebooks<F>) {
            found = sets.find(F::name);
            if (found.size() != crumb::codebook_entries<F>)
                s = crumb::status::error(crumb::errc::corrupt, "key %s: %zu entries, %zu are needed",
                                         codebook_sets::key(F::name).c_str(), found.size(),
                                         crumb::codebook_entries<F>);
        }
    });
    if (!s)
        return s;
    return found;
}

} // namespace

crumb::result<codebook_sets> codebook_sets::read(const gguf& file) {
    codebook_sets sets;
    crumb::status error;
    [&]<class... F>(crumb::type_list<F...>) {
        const auto one = [&](std::string_view format) {
            if (!error || file.find(key(format)) == nullptr)
                return;
            const auto values = file.get_i32s(key(format));
            if (!values) {
                error = values.error();
                return;
            }
            std::vector<std::int8_t> entries;
            for (const std::int32_t v : *values) {
                if (v < -128 || v > 127)
                    error = crumb::status::error(crumb::errc::corrupt, "key %s holds %d, not a signed byte",
                                                 key(format).c_str(), v);
                entries.push_back(static_cast<std::int8_t>(v));
            }
            sets.set(format, std::move(entries));
        };
        (one(F::name), ...);
    }(crumb::format_list{});
    if (!error)
        return error;
    return sets;
}

std::optional<packed_shape> find_packed(const gguf_tensor& tensor) noexcept {
    crumb::packed_header header;
    const crumb::packed_header expected;
    if (tensor.type != ggml_type::i8 || tensor.rank != 1 || tensor.data.size() < sizeof header)
        return {};
    std::memcpy(&header, tensor.data.data(), sizeof header);
    if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0)
        return {};
    for (std::size_t i = 2; i < weight_names.size(); ++i)
        if (std::string_view(header.format, strnlen(header.format, sizeof header.format)) == weight_names[i])
            return packed_shape{static_cast<weight_type>(i), header.n, header.k};
    return {};
}

matrix_shape shape_of(const gguf_tensor& tensor) noexcept {
    if (const auto packed = find_packed(tensor))
        return {packed->n, packed->k};
    return {tensor.dims[1], tensor.dims[0]};
}

crumb::result<std::vector<float>> to_floats(const gguf_tensor& tensor, const codebook_sets& codebooks) {
    // Of an unknown type the reader does not know the size: its dimensions may be beyond any memory.
    std::vector<float> out;
    if (is_supported(tensor.type))
        out.resize(tensor.elements());
    if (const auto packed = find_packed(tensor)) {
        const auto tables = codebooks_for(packed->type, codebooks);
        crumb::status s = tables ? crumb::status() : tables.error();
        if (packed->type == weight_type::nested) {
            const auto view = crumb::nested_view::open(tensor.data);
            if (!view)
                return in_tensor(tensor, view.error());
            out.resize(view->n() * view->k());
            decode(*view, view->levels().parent, out.data());
        }
        with_format(packed->type, [&]<class F>(std::type_identity<F>) {
            const auto view = crumb::packed_view<F>::open(tensor.data);
            if (!view)
                s = view.error();
            if (!s)
                return;
            out.resize(view->n() * view->k());
            decode(*view, *tables, out.data());
        });
        if (!s)
            return in_tensor(tensor, s);
        if (s = check_finite(tensor, out); !s)
            return s;
        return out;
    }
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
    copies_.at(used_) = *crumb::activations::attach(memory_.first(bytes), plan, x_.rows);
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
crumb::status matrix::plan_packed(const crumb::packed_view<F>& packed, activation_type activations,
                                  std::span<const float> bias, std::span<const std::int8_t> codebooks) {
    const auto plan = crumb::linear<F>::plan(packed, {.bias = bias, .codebooks = codebooks});
    if (!plan)
        return plan.error();
    quantized_plans<F> plans{*plan, {}};
    if (activations == activation_type::panels) {
        const auto panels = crumb::linear<F>::plan(
            packed, {.bias = bias, .mode = crumb::linear_mode::panels, .codebooks = codebooks});
        if (!panels)
            return panels.error();
        plans.panels = *panels;
    }
    plan_ = plans;
    return {};
}

template <class F>
crumb::status matrix::plan_blocks(const gguf_tensor& tensor, activation_type activations,
                                  std::span<const float> bias, const codebook_sets& codebooks) {
    constexpr bool in_files = std::is_same_v<F, crumb::q8_0> || std::is_same_v<F, crumb::q4_0>;
    constexpr ggml_type own = std::is_same_v<F, crumb::q8_0> ? ggml_type::q8_0 : ggml_type::q4_0;
    crumb::storage_view<F> view;
    crumb::quantized<F> owned;
    if (in_files && tensor.type == own) {
        view = blocks_of<F>(tensor, n_, k_);
    } else {
        const auto floats = to_floats(tensor, codebooks);
        if (!floats)
            return floats.error();
        auto q = crumb::quantize<F>(crumb::matrix<const float>(floats->data(), n_, k_));
        if (!q)
            return in_tensor(tensor, q.error());
        owned = std::move(*q);
        view = owned;
    }
    stored_bytes_ = n_ * view.stride * sizeof(typename F::block);
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
    const auto s = plan_packed(*packed, activations, bias, view.codebooks);
    return s ? s : in_tensor(tensor, s);
}

crumb::status matrix::plan_nested(const gguf_tensor& tensor, activation_type activations,
                                  std::span<const float> bias) {
    const auto view = crumb::nested_view::open(tensor.data);
    if (!view)
        return in_tensor(tensor, view.error());
    const crumb::precision_range stored{view->levels().seed, view->levels().parent};
    precisions_ = stored;
    stored_bytes_ = tensor.data.size();
    if (activations == activation_type::f32) {
        const auto count = static_cast<std::size_t>(stored.parent - stored.seed + 1);
        memory_ = buffer(count * n_ * (k_ + 1) * sizeof(float));
        nested_floats plans;
        bias_.assign(n_, 0.0f);
        std::copy(bias.begin(), bias.end(), bias_.begin());
        for (std::size_t i = 0; i < count; ++i) {
            const int bits = stored.seed + static_cast<int>(i);
            float* w = memory_.as<float>() + i * n_ * (k_ + 1);
            decode(*view, bits, w);
            const std::span<float> corrected(w + n_ * k_, n_);
            for (std::size_t r = 0; r < n_; ++r)
                corrected[r] = crumb::to_float(view->corrections(bits)[r]) + bias_[r];
            const auto plan =
                crumb::dense_linear<float>::plan(crumb::matrix<const float>(w, n_, k_), {.bias = corrected});
            if (!plan)
                return in_tensor(tensor, plan.error());
            plans.at.push_back(*plan);
        }
        const auto s = check_finite(tensor, {memory_.as<float>(), count * n_ * (k_ + 1)});
        plan_ = std::move(plans);
        return s;
    }
    const auto plan = crumb::nested_linear::plan(*view, {.bias = bias});
    if (!plan)
        return in_tensor(tensor, plan.error());
    nested_plans plans{*plan, {}};
    if (activations == activation_type::panels) {
        const auto panels =
            crumb::nested_linear::plan(*view, {.bias = bias, .mode = crumb::linear_mode::panels});
        if (!panels)
            return in_tensor(tensor, panels.error());
        plans.panels = *panels;
    }
    plan_ = plans;
    return {};
}

crumb::status matrix::plan_floats(const gguf_tensor& tensor, std::span<const float> bias,
                                  const codebook_sets& codebooks) {
    const auto floats = to_floats(tensor, codebooks);
    if (!floats)
        return floats.error();
    memory_ = buffer(n_ * k_ * sizeof(float));
    std::memcpy(memory_.bytes().data(), floats->data(), n_ * k_ * sizeof(float));
    return plan_dense<float>(bias);
}

crumb::result<matrix> matrix::make(const gguf_tensor& tensor, std::size_t n, std::size_t k, weight_type type,
                                   activation_type activations, std::span<const float> bias,
                                   const codebook_sets& codebooks) {
    const auto packed = find_packed(tensor);
    const matrix_shape shape = shape_of(tensor);
    if (shape != matrix_shape{n, k} || tensor.rank > 2)
        return in_tensor(tensor, crumb::status::error(crumb::errc::bad_shape,
                                                      "shape is %llu x %llu, %zu x %zu is needed",
                                                      static_cast<unsigned long long>(shape.k),
                                                      static_cast<unsigned long long>(shape.n), k, n));
    matrix m;
    m.n_ = n;
    m.k_ = k;
    const bool as_stored = type == weight_type::stored;
    // Expanded, nested weights have their corrections beside them.
    if (packed && packed->type == weight_type::nested && !as_stored) {
        const auto view = crumb::nested_view::open(tensor.data);
        if (!view)
            return in_tensor(tensor, view.error());
        m.bias_.assign(n, 0.0f);
        std::copy(bias.begin(), bias.end(), m.bias_.begin());
        for (std::size_t r = 0; r < n; ++r)
            m.bias_[r] += crumb::to_float(view->corrections(view->levels().parent)[r]);
        bias = m.bias_;
    }
    if (as_stored && tensor.type == ggml_type::q8_0)
        type = weight_type::q8_0;
    if (as_stored && tensor.type == ggml_type::q4_0)
        type = weight_type::q4_0;
    crumb::status s;
    if (as_stored && packed && packed->type == weight_type::nested) {
        s = m.plan_nested(tensor, activations, bias);
    } else if (as_stored && packed) {
        const auto tables = codebooks_for(packed->type, codebooks);
        if (!tables)
            return in_tensor(tensor, tables.error());
        m.stored_bytes_ = tensor.data.size();
        if (activations == activation_type::f32)
            s = m.plan_floats(tensor, bias, codebooks);
        else
            with_format(packed->type, [&]<class F>(std::type_identity<F>) {
                const auto view = crumb::packed_view<F>::open(tensor.data);
                s = view ? m.plan_packed(*view, activations, bias, *tables) : view.error();
                if (!s)
                    s = in_tensor(tensor, s);
            });
    } else if (type == weight_type::nested) {
        return in_tensor(tensor, crumb::status::error(crumb::errc::unsupported,
                                                      "nested weights are made by quantizing a whole model"));
    } else if (type >= weight_type::q8_0) {
        with_format(type, [&]<class F>(std::type_identity<F>) {
            if constexpr (crumb::rounding_format<F>)
                s = m.plan_blocks<F>(tensor, activations, bias, codebooks);
            else
                s = in_tensor(tensor,
                              crumb::status::error(crumb::errc::unsupported,
                                                   "%s is made by quantizing a whole model", F::name));
        });
    } else if (as_stored && tensor.type == ggml_type::f16) {
        // Looks at every number.
        const auto floats = to_floats(tensor);
        if (!floats)
            return floats.error();
        m.stored_bytes_ = n * k * sizeof(crumb::half);
        m.memory_ = buffer(m.stored_bytes_);
        std::memcpy(m.memory_.bytes().data(), tensor.data.data(), m.stored_bytes_);
        s = m.plan_dense<crumb::half>(bias);
    } else {
        m.stored_bytes_ = n * k * sizeof(float);
        s = m.plan_floats(tensor, bias, codebooks);
    }
    if (!s)
        return s;
    return m;
}

crumb::result<crumb::any_linear> matrix::plan() const {
    using result = crumb::result<crumb::any_linear>;
    return std::visit(
        [](const auto& plan) -> result {
            using type = std::decay_t<decltype(plan)>;
            if constexpr (std::is_same_v<type, nested_plans> || std::is_same_v<type, nested_floats>)
                return crumb::status::error(crumb::errc::unsupported,
                                            "nested weights are several products, not one");
            else if constexpr (requires { plan.exact; })
                return crumb::any_linear(plan.for_rows(panel_batch));
            else
                return crumb::any_linear(plan);
        },
        plan_);
}

std::span<float> matrix::floats() noexcept {
    if (!std::holds_alternative<crumb::dense_linear<float>>(plan_))
        return {};
    return {memory_.as<float>(), n_ * k_};
}

crumb::status matrix::replace(int bits, std::span<const float> weights, std::span<const float> corrections) {
    if (!std::holds_alternative<nested_floats>(plan_) || !precisions_->has(bits) ||
        weights.size() != n_ * k_ || corrections.size() != n_)
        return crumb::status::error(
            crumb::errc::invalid_argument,
            "%zu other weights and %zu corrections for %zu x %zu: they are no nested floats of %d bits",
            weights.size(), corrections.size(), n_, k_, bits);
    float* w = memory_.as<float>() + static_cast<std::size_t>(bits - precisions_->seed) * n_ * (k_ + 1);
    std::copy(weights.begin(), weights.end(), w);
    for (std::size_t r = 0; r < n_; ++r)
        w[n_ * k_ + r] = corrections[r] + bias_[r];
    return {};
}

std::vector<crumb::activation_plan> matrix::input_plans() const {
    std::vector<crumb::activation_plan> plans;
    std::visit(
        [&](const auto& plan) {
            if constexpr (requires { plan.exact; }) {
                plans.push_back(plan.exact.input_plan());
                if (plan.panels)
                    plans.push_back(plan.panels->input_plan());
            }
        },
        plan_);
    return plans;
}

void matrix::prepare(matrix_input& input, crumb::range rows) const {
    std::visit(
        [&](const auto& plan) {
            if constexpr (requires { plan.exact; })
                input.quantize(plan.for_rows(input.x().rows).input_plan(), rows);
        },
        plan_);
}

void matrix::run(const matrix_input& input, const crumb::matrix_view<float>& y, crumb::range channels,
                 int bits) const {
    const crumb::linear_part part{.channels = channels};
    std::visit(
        [&](const auto& plan) {
            using type = std::decay_t<decltype(plan)>;
            if constexpr (std::is_same_v<type, nested_plans>) {
                const auto& chosen = plan.for_rows(y.rows);
                chosen.run(bits, input.copy(chosen.input_plan()), y, part);
            } else if constexpr (std::is_same_v<type, nested_floats>) {
                plan.at[static_cast<std::size_t>(std::clamp(bits, precisions_->seed, precisions_->parent) -
                                                 precisions_->seed)]
                    .run(input.x(), y, part);
            } else if constexpr (requires { plan.exact; }) {
                const auto& chosen = plan.for_rows(y.rows);
                chosen.run(input.copy(chosen.input_plan()), y, part);
            } else {
                plan.run(input.x(), y, part);
            }
        },
        plan_);
}

} // namespace lm
