// A planned matrix product whose format is known at run time only.
#pragma once

#include <crumb/format/list.hpp>
#include <crumb/op/linear/dense_linear.hpp>
#include <crumb/op/linear/linear.hpp>
#include <crumb/op/linear/nested_linear.hpp>

#include <algorithm>
#include <optional>

namespace crumb::inline CRUMB_ABI {

/// y = x W^T + bias by a plan of `linear`, `nested_linear` at one precision or `dense_linear`, with the same
/// results. Refers to the plan's weights and bias; copy it freely.
class any_linear {
  public:
    any_linear() noexcept = default;
    /// The product of a plan.
    template <weight_format F>
    any_linear(const linear<F>& plan) noexcept
        : functions_(&plan.functions()), args_(plan.weights()), k_(plan.k()), bytes_(plan.bytes()),
          max_rows_(plan.max_rows_) {
        keep(plan.tables_);
    }
    /// At `bits` bits, one of the plan's precisions.
    any_linear(const nested_linear& plan, int bits) noexcept : k_(plan.k()), max_rows_(plan.max_rows_) {
        bits = plan.stored(bits);
        functions_ = &plan.functions(bits);
        args_ = plan.weights(bits);
        bytes_ = plan.bytes(bits);
        keep(plan.tables_[nested_linear::index_of(bits)]);
    }
    /// The product of a plan of floats, halves or bfloat16.
    template <class T>
    any_linear(const dense_linear<T>& plan) noexcept : k_(plan.k()), bytes_(plan.n() * plan.k() * sizeof(T)) {
        args_.n = plan.n();
        if constexpr (std::same_as<T, float>)
            f32_ = plan;
        else if constexpr (std::same_as<T, half>)
            f16_ = plan;
        else
            bf16_ = plan;
    }

    /// By weights that were packed in any listed format, or nested, at their highest precision: their header
    /// says which. `bytes` as for `packed_view::open` and `nested_view::open`.
    CRUMB_WHEN_CALLED
    static result<any_linear> open(std::span<const std::byte> bytes, const linear_options& options = {},
                                   const context& on = {}) noexcept {
        const auto header = read_packed_header(bytes);
        if (!header)
            return header.error();
        if (header->has_format(nested_view::name)) {
            const auto weights = nested_view::open(bytes);
            if (!weights)
                return weights.error();
            const auto plan = nested_linear::plan(*weights, options, on);
            if (!plan)
                return plan.error();
            return any_linear(*plan, plan->parent());
        }
        result<any_linear> made =
            status::error(errc::wrong_format, "packed weights: format %.16s, which is none of this build's",
                          header->format);
        const auto try_format = [&]<class F>() {
            if (!header->has_format(F::name))
                return;
            const auto weights = packed_view<F>::open(bytes);
            if (!weights) {
                made = weights.error();
                return;
            }
            const auto plan = linear<F>::plan(*weights, options, on);
            if (plan)
                made = any_linear(*plan);
            else
                made = plan.error();
        };
        all_format_list::for_each(try_format);
        variant_list::for_each(try_format);
        return made;
    }

    /// Whether there is a plan.
    explicit operator bool() const noexcept { return reads_activations() || reads_floats(); }
    /// Output channels; 0: empty.
    std::size_t n() const noexcept { return args_.n; }
    /// Inputs.
    std::size_t k() const noexcept { return k_; }
    /// Bytes of weights that a product with one row reads.
    std::size_t bytes() const noexcept { return bytes_; }
    /// Whether `run` reads quantized activations; otherwise floats.
    bool reads_activations() const noexcept { return functions_ != nullptr; }
    /// The layout of quantized activations, of a plan that `reads_activations`.
    activation_plan input_plan() const noexcept {
        CRUMB_REQUIRE(reads_activations(), "any_linear::input_plan: the plan %s",
                      reads_floats() ? "reads floats" : "is empty");
        activation_layout layout = functions_->layout;
        layout.k = k_;
        return {layout, functions_->quantize};
    }

    /// y[r, c] for rows and channels of `part`; x: m x k floats, of a plan that reads them.
    void run(const matrix_view<const float>& x, const matrix_view<float>& y,
             const linear_part& part = {}) const noexcept {
        CRUMB_REQUIRE(!reads_activations(), "any_linear::run: the plan reads activations, not floats");
        CRUMB_REQUIRE(reads_floats(), "any_linear::run: the plan is empty");
        if (f32_)
            f32_->run(x, y, part);
        else if (f16_)
            f16_->run(x, y, part);
        else
            bf16_->run(x, y, part);
    }
    /// Likewise; x: made for `input_plan`, of a plan that `reads_activations`.
    void run(const activations& x, const matrix_view<float>& y, const linear_part& part = {}) const noexcept {
        CRUMB_REQUIRE(reads_activations(), "any_linear::run: the plan %s",
                      reads_floats() ? "reads floats, not activations" : "is empty");
        detail::require_layout(x, input_plan().layout, "any_linear::run");
        CRUMB_CHECK(x.rows() <= max_rows_, "any_linear::run: %zu rows, the plan is for %zu", x.rows(),
                    max_rows_);
        kernel::linear_args args = args_;
        args.codebooks = tables_.data();
        detail::run_linear(*functions_, args, x, y, part);
    }
    /// Likewise, for who has both: reads floats or activations as the plan does; the other may be empty.
    void run(const matrix_view<const float>& x, const activations& quantized, const matrix_view<float>& y,
             const linear_part& part = {}) const noexcept {
        if (reads_activations())
            run(quantized, y, part);
        else
            run(x, y, part);
    }

    /// The constant added to output n: bias, and correction of nested weights.
    float constant(std::size_t n) const noexcept {
        CRUMB_REQUIRE(n < args_.n, "any_linear::constant: output %zu of %zu", n, args_.n);
        return (args_.corrections != nullptr ? to_float(args_.corrections[n]) : 0.0f) +
               (args_.bias != nullptr ? args_.bias[n] : 0.0f);
    }
    /// Whether `unpack` can write the weights: not those of dense plans, nor of formats with records, whose
    /// groups are more than scales and codes.
    bool can_unpack() const noexcept { return functions_ != nullptr && functions_->unpack != nullptr; }
    /// Writes the weights of `channels`, which begin at a multiple of 16, as int8 codes and scales, weight =
    /// scale * code, laid out as `kernel::unpack_args` says. Returns the largest possible magnitude of a
    /// code. Only if `can_unpack`.
    float unpack(range channels, std::int8_t* codes, float* scales) const noexcept {
        CRUMB_REQUIRE(can_unpack(), "any_linear::unpack: the plan %s",
                      functions_ != nullptr ? "is of a format with records"
                      : reads_floats()      ? "has dense weights"
                                            : "is empty");
        channels = channels.within(args_.n);
        CRUMB_REQUIRE(channels.begin % tile_channels == 0 && channels.begin <= channels.end,
                      "any_linear::unpack: channels %zu to %zu of %zu", channels.begin, channels.end,
                      args_.n);
        kernel::unpack_args args{args_, codes, scales};
        args.weights.codebooks = tables_.data();
        args.weights.channels = channels;
        return functions_->unpack(args);
    }

  private:
    bool reads_floats() const noexcept { return f32_ || f16_ || bf16_; }
    template <std::size_t N>
    void keep(const std::array<std::int8_t, N>& tables) noexcept {
        static_assert(N <= std::tuple_size_v<decltype(tables_)>);
        std::copy(tables.begin(), tables.end(), tables_.begin());
    }

    const dispatch::linear_functions* functions_ = nullptr;
    kernel::linear_args args_;
    std::array<std::int8_t, 64> tables_{};
    std::size_t k_ = 0, bytes_ = 0, max_rows_ = 0;
    std::optional<dense_linear<float>> f32_;
    std::optional<dense_linear<half>> f16_;
    std::optional<dense_linear<bf16>> bf16_;
};

} // namespace crumb::inline CRUMB_ABI
