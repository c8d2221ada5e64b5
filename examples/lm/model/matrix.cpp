#include "model/matrix.hpp"

#include <crumb/offline/weights/quantize.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lm {

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
crumb::status matrix::plan_dense(const T* weights, std::span<const float> bias) {
    const auto plan = crumb::dense_linear<T>::plan(crumb::matrix<const T>(weights, n_, k_), {.bias = bias});
    if (!plan)
        return plan.error();
    plan_ = matrix_plans{*plan, {}};
    is_floats_ = std::is_same_v<T, float>;
    return {};
}

template <class T>
crumb::status matrix::plan_as_stored(const gguf_tensor& tensor, std::span<const float> bias,
                                     const matrix_extras& extras) {
    // Looks at every number.
    if (const auto rows = tensor_rows::open(tensor, extras); !rows)
        return rows.error();
    stored_bytes_ = n_ * k_ * sizeof(T);
    return plan_dense<T>(reinterpret_cast<const T*>(tensor.data.data()), bias);
}

template <class F>
crumb::status matrix::plan_packed(const crumb::packed_view<F>& packed, const matrix_options& options,
                                  std::span<const std::int8_t> codebooks) {
    const auto plan = crumb::linear<F>::plan(packed, {.bias = options.bias, .codebooks = codebooks});
    if (!plan)
        return plan.error();
    matrix_plans plans{*plan, {}};
    if (options.activations == activation_type::panels && crumb::has_records<F>) {
        lacks_panels_ = true;
    } else if (options.activations == activation_type::panels) {
        const auto panels = crumb::linear<F>::plan(
            packed, {.bias = options.bias, .mode = crumb::linear_mode::panels, .codebooks = codebooks});
        if (!panels)
            return panels.error();
        plans.panels = *panels;
    }
    plan_ = plans;
    return {};
}

template <class F>
crumb::status matrix::plan_blocks(const gguf_tensor& tensor, const crumb::storage_view<F>& blocks,
                                  const matrix_options& options, crumb::arena& memory) {
    stored_bytes_ = n_ * blocks.stride * sizeof(typename F::block);
    if (options.activations == activation_type::f32) {
        memory_ = memory.take(n_ * k_ * sizeof(float));
        for (std::size_t r = 0; r < n_; ++r)
            for (std::size_t i = 0; i < k_; ++i)
                numbers()[r * k_ + i] = static_cast<float>(blocks.weight(r, i));
        if (const auto s = check_finite(tensor, {numbers(), n_ * k_}); !s)
            return s;
        return plan_dense<float>(numbers(), options.bias);
    }
    memory_ = memory.take(crumb::packed_bytes<F>(n_, k_));
    const auto packed = crumb::pack(blocks, memory_);
    if (!packed)
        return in_tensor(tensor, packed.error());
    const auto s = plan_packed(*packed, options, blocks.codebooks);
    return s ? s : in_tensor(tensor, s);
}

template <class F>
crumb::status matrix::plan_format(const gguf_tensor& tensor, const matrix_options& options,
                                  const matrix_extras& extras, crumb::arena& memory) {
    if (ggml_type_of<F> == tensor.type) {
        const auto blocks = blocks_of<F>(tensor, extras);
        return blocks ? plan_blocks(tensor, *blocks, options, memory) : blocks.error();
    }
    if constexpr (crumb::rounding_format<F>) {
        const auto floats = to_floats(tensor, extras);
        if (!floats)
            return floats.error();
        const auto q = crumb::quantize<F>(crumb::matrix<const float>(floats->data(), n_, k_));
        return q ? plan_blocks(tensor, q->view(), options, memory) : in_tensor(tensor, q.error());
    } else {
        return in_tensor(tensor, crumb::status::error(crumb::errc::unsupported,
                                                      !crumb::has_records<F>
                                                          ? "%s is made by quantizing a whole model"
                                                          : "%s is not made of other weights",
                                                      F::name));
    }
}

crumb::status matrix::plan_nested(const gguf_tensor& tensor, const matrix_options& options,
                                  crumb::arena& memory) {
    const auto view = crumb::nested_view::open(tensor.data);
    if (!view)
        return in_tensor(tensor, view.error());
    const crumb::precision_range stored{view->levels().seed, view->levels().parent};
    precisions_ = stored;
    stored_bytes_ = tensor.data.size();
    if (options.activations == activation_type::f32) {
        const auto count = static_cast<std::size_t>(stored.parent - stored.seed + 1);
        memory_ = memory.take(count * n_ * (k_ + 1) * sizeof(float));
        nested_floats plans;
        bias_.assign(n_, 0.0f);
        std::copy(options.bias.begin(), options.bias.end(), bias_.begin());
        for (std::size_t i = 0; i < count; ++i) {
            const int bits = stored.seed + static_cast<int>(i);
            float* w = numbers() + i * n_ * (k_ + 1);
            for (std::size_t r = 0; r < n_; ++r)
                for (std::size_t c = 0; c < k_; ++c)
                    w[r * k_ + c] = static_cast<float>(view->weight(r, c, bits));
            const std::span<float> corrected(w + n_ * k_, n_);
            for (std::size_t r = 0; r < n_; ++r)
                corrected[r] = crumb::to_float(view->corrections(bits)[r]) + bias_[r];
            const auto plan =
                crumb::dense_linear<float>::plan(crumb::matrix<const float>(w, n_, k_), {.bias = corrected});
            if (!plan)
                return in_tensor(tensor, plan.error());
            plans.at.push_back(*plan);
        }
        const auto s = check_finite(tensor, {numbers(), count * n_ * (k_ + 1)});
        plan_ = std::move(plans);
        return s;
    }
    const auto plan = crumb::nested_linear::plan(*view, {.bias = options.bias});
    if (!plan)
        return in_tensor(tensor, plan.error());
    nested_plans plans{*plan, {}};
    if (options.activations == activation_type::panels) {
        const auto panels =
            crumb::nested_linear::plan(*view, {.bias = options.bias, .mode = crumb::linear_mode::panels});
        if (!panels)
            return in_tensor(tensor, panels.error());
        plans.panels = *panels;
    }
    plan_ = plans;
    return {};
}

crumb::status matrix::plan_floats(const gguf_tensor& tensor, std::span<const float> bias,
                                  const matrix_extras& extras, crumb::arena& memory) {
    const auto floats = to_floats(tensor, extras);
    if (!floats)
        return floats.error();
    memory_ = memory.take(n_ * k_ * sizeof(float));
    std::memcpy(memory_.data(), floats->data(), n_ * k_ * sizeof(float));
    given_bias_ = bias;
    return plan_dense<float>(numbers(), bias);
}

crumb::status matrix::bring(const gguf_tensor& tensor, const matrix_extras& extras, crumb::arena& memory) {
    if (!demanded_bias_ || is_floats_)
        return {};
    return plan_floats(tensor, *demanded_bias_, extras, memory);
}

void matrix::leave(crumb::arena& memory) {
    if (!demanded_bias_ || !is_floats_)
        return;
    plan_ = matrix_plans{};
    is_floats_ = false;
    memory.give_back(std::exchange(memory_, {}));
}

crumb::result<matrix> matrix::make(const gguf_tensor& tensor, std::size_t n, std::size_t k,
                                   const matrix_options& wanted, const matrix_extras& extras,
                                   crumb::arena& memory) {
    matrix_options options = wanted;
    weight_type& type = options.type;
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
        std::copy(options.bias.begin(), options.bias.end(), m.bias_.begin());
        for (std::size_t r = 0; r < n; ++r)
            m.bias_[r] += crumb::to_float(view->corrections(view->levels().parent)[r]);
        options.bias = m.bias_;
    }
    if (const auto format = format_of(tensor.type); as_stored && format)
        type = *format;
    crumb::status s;
    if (as_stored && packed && packed->type == weight_type::nested) {
        s = m.plan_nested(tensor, options, memory);
    } else if (as_stored && packed) {
        const auto tables = codebooks_for(packed->type, extras);
        if (!tables)
            return in_tensor(tensor, tables.error());
        m.stored_bytes_ = tensor.data.size();
        if (options.activations == activation_type::f32)
            s = m.plan_floats(tensor, options.bias, extras, memory);
        else
            with_format(packed->type, [&]<class F>(std::type_identity<F>) {
                const auto view = crumb::packed_view<F>::open(tensor.data);
                s = view ? m.plan_packed(*view, options, *tables) : view.error();
                if (!s)
                    s = in_tensor(tensor, s);
            });
    } else if (type == weight_type::nested) {
        return in_tensor(tensor, crumb::status::error(crumb::errc::unsupported,
                                                      "nested weights are made by quantizing a whole model"));
    } else if (type > weight_type::f32) {
        with_format(type, [&]<class F>(std::type_identity<F>) {
            s = m.plan_format<F>(tensor, options, extras, memory);
        });
    } else if (as_stored && tensor.type == ggml_type::f16) {
        s = m.plan_as_stored<crumb::half>(tensor, options.bias, extras);
    } else if (as_stored && tensor.type == ggml_type::bf16) {
        s = m.plan_as_stored<crumb::bf16>(tensor, options.bias, extras);
    } else {
        m.stored_bytes_ = as_stored && !packed ? tensor.data.size() : n * k * sizeof(float);
        if (options.on_demand) {
            m.demanded_bias_ = options.bias;
            // Looks at every number, as decoding all does.
            s = tensor_rows::open(tensor, extras).error();
        } else {
            s = m.plan_floats(tensor, options.bias, extras, memory);
        }
    }
    if (!s)
        return s;
    return m;
}

crumb::result<crumb::any_linear> matrix::plan() const {
    if (const auto* plans = std::get_if<matrix_plans>(&plan_))
        return plans->for_rows(panel_batch);
    return crumb::status::error(crumb::errc::unsupported, "nested weights are several products, not one");
}

bool matrix::reads_activations() const noexcept {
    const auto* plans = std::get_if<matrix_plans>(&plan_);
    return plans != nullptr ? plans->exact.reads_activations() : std::holds_alternative<nested_plans>(plan_);
}

std::span<float> matrix::floats() noexcept {
    if (!is_floats_)
        return {};
    return {numbers(), n_ * k_};
}

crumb::status matrix::correct(std::span<const float> corrections) {
    if (!is_floats_ || memory_.empty() || corrections.size() != n_)
        return crumb::status::error(crumb::errc::invalid_argument,
                                    "%zu corrections of %zu outputs: the weights are no floats of its own",
                                    corrections.size(), n_);
    std::vector<float> sums(corrections.begin(), corrections.end());
    for (std::size_t r = 0; r < given_bias_.size(); ++r)
        sums[r] += given_bias_[r];
    corrected_bias_ = std::move(sums);
    return plan_dense<float>(numbers(), corrected_bias_);
}

crumb::status matrix::replace(int bits, std::span<const float> weights, std::span<const float> corrections) {
    if (!std::holds_alternative<nested_floats>(plan_) || !precisions_->has(bits) ||
        weights.size() != n_ * k_ || corrections.size() != n_)
        return crumb::status::error(
            crumb::errc::invalid_argument,
            "%zu other weights and %zu corrections for %zu x %zu: they are no nested floats of %d bits",
            weights.size(), corrections.size(), n_, k_, bits);
    float* w = numbers() + static_cast<std::size_t>(bits - precisions_->seed) * n_ * (k_ + 1);
    std::copy(weights.begin(), weights.end(), w);
    for (std::size_t r = 0; r < n_; ++r)
        w[n_ * k_ + r] = corrections[r] + bias_[r];
    return {};
}

std::vector<crumb::activation_plan> matrix::input_plans() const {
    std::vector<crumb::activation_plan> plans;
    if (!reads_activations())
        return plans;
    if (const auto* exact = std::get_if<matrix_plans>(&plan_)) {
        plans.push_back(exact->exact.input_plan());
        if (exact->panels)
            plans.push_back(exact->panels.input_plan());
    } else if (const auto* nested = std::get_if<nested_plans>(&plan_)) {
        plans.push_back(nested->exact.input_plan());
        if (nested->panels)
            plans.push_back(nested->panels->input_plan());
    }
    return plans;
}

void matrix::prepare(matrix_input& input, crumb::range rows) const {
    std::visit(
        [&](const auto& plan) {
            if constexpr (requires { plan.exact; }) {
                const auto& chosen = plan.for_rows(input.x().rows);
                if (reads_activations())
                    input.quantize(chosen.input_plan(), rows);
            }
        },
        plan_);
}

void matrix::run(const matrix_input& input, const crumb::matrix_view<float>& y, crumb::range channels,
                 int bits) const {
    const crumb::linear_part part{.channels = channels};
    if (const auto* plans = std::get_if<matrix_plans>(&plan_)) {
        const auto& chosen = plans->for_rows(y.rows);
        if (chosen.reads_activations())
            chosen.run(input.copy(chosen.input_plan()), y, part);
        else
            chosen.run(input.x(), y, part);
    } else if (const auto* nested = std::get_if<nested_plans>(&plan_)) {
        const auto& chosen = nested->for_rows(y.rows);
        chosen.run(bits, input.copy(chosen.input_plan()), y, part);
    } else {
        const int stored = std::clamp(bits, precisions_->seed, precisions_->parent);
        std::get<nested_floats>(plan_).at[static_cast<std::size_t>(stored - precisions_->seed)].run(input.x(),
                                                                                                    y, part);
    }
}

} // namespace lm
