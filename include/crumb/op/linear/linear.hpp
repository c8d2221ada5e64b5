// y = x W^T + bias with group-quantized weights: plan once, run from any thread.
#pragma once

#include <crumb/dispatch/linear.hpp>
#include <crumb/op/linear/activations.hpp>

namespace crumb::inline CRUMB_ABI {

/// How a product is computed. `plan` refuses modes that the ISA or the format lacks.
enum class linear_mode {
    exact, ///< exact group sums, activations with a scale per 32 inputs
    /// For many rows: weights are requantized to int8 during the product, with a scale per channel and
    /// `panel_inputs` inputs; activations likewise per row. Each weight moves by at most D = S max |d| / 127
    /// (see `kernel::panel_gemm`), each activation by at most max |x| / 253, maxima over the block.
    panels,
    /// For one row on Arm with dotprod, with weights packed as `q4_0_absorbing` (with i8mm, also `u2` and k a
    /// multiple of 32, see `kernel::quantize_absorbed`): fewer instructions. Inputs i
    /// and 16 + i of a group share two codes of a common scale s = max(|x_{16+i}|, |x_i - x_{16+i} / 16|) /
    /// 127. As in `exact`, an input is at most s / 2 off its quantized value; s is at most 17/16 of the
    /// scale there. Further rows gain nothing.
    absorbed,
};

/// Options of a plan.
struct linear_options {
    std::size_t max_rows = 1u << 20;  ///< max rows of activations in a call of `run`
    std::span<const float> bias = {}; ///< empty, or one value per output channel; must outlive the plan
    linear_mode mode = linear_mode::exact;
    /// The table set of a codebook format, `codebook_entries<F>` values, which the plan copies; else empty.
    std::span<const std::int8_t> codebooks = {};
};

/// The part of the output that one call of `run` computes; default: everything.
struct linear_part {
    range rows = {};
    range channels = {};
};

class any_linear;

namespace detail {

/// Checks the options of all plans with quantized weights; n output channels.
inline status check_linear(const linear_options& options, std::size_t n) noexcept {
    if (options.mode > linear_mode::absorbed)
        return status::error(errc::invalid_argument, "linear: mode %d, the last is %d",
                             static_cast<int>(options.mode), static_cast<int>(linear_mode::absorbed));
    if (!options.bias.empty() && options.bias.size() != n)
        return status::error(errc::bad_shape, "bias has %zu values, the weights have %zu output channels",
                             options.bias.size(), n);
    return {};
}

/// Whether there are table entries, all from -32 to 31.
template <std::size_t N>
constexpr bool are_narrow(const std::array<std::int8_t, N>& tables) noexcept {
    for (const std::int8_t entry : tables)
        if (entry < -32 || entry > 31)
            return false;
    return N != 0;
}

/// Aborts unless activations lie as a product reads them.
inline void require_layout(const activations& x, const activation_layout& wanted, const char* who) noexcept {
    const activation_layout& has = x.layout();
    CRUMB_REQUIRE(
        has == wanted,
        "%s: activations of another plan: %zu inputs in groups of %zu, blocks of %zu rows; this plan "
        "reads %zu inputs in groups of %zu, blocks of %zu rows",
        who, has.k, has.group, has.row_block, wanted.k, wanted.group, wanted.row_block);
}

/// Completes `args`, which have the weights and the bias, and runs them.
inline void run_linear(const dispatch::linear_functions& functions, kernel::linear_args args,
                       const activations& x, const matrix_view<float>& y, const linear_part& part) noexcept {
    CRUMB_REQUIRE(y.rows == x.rows() && y.cols == args.n,
                  "linear::run: y is %zu x %zu, the product is %zu x %zu", y.rows, y.cols, x.rows(), args.n);
    CRUMB_CHECK(y.rows <= 1 || y.stride >= y.cols, "linear::run: y has rows of %zu floats, %zu apart", y.cols,
                y.stride);
    CRUMB_CHECK(part.rows.is_within(y.rows), "linear::run: rows %zu to %zu of %zu", part.rows.begin,
                part.rows.end, y.rows);
    CRUMB_CHECK(part.channels.is_within(args.n), "linear::run: channels %zu to %zu of %zu",
                part.channels.begin, part.channels.end, args.n);
    args.x_codes = x.codes();
    args.x_scales = x.scales();
    args.x_starts = x.starts();
    args.x_shifts = x.shifts();
    args.x_sums = x.sums();
    args.x_groups = x.layout().k_padded() / group_size;
    args.x_rows = x.rows();
    args.y = y.data;
    args.y_stride = y.stride;
    args.rows = part.rows.within(x.rows());
    args.channels = part.channels.within(args.n);
    args.two_streams = dispatch::isas().two_streams;
    if (args.rows.size() == 0 || args.channels.size() == 0)
        return;
    for (std::size_t r = args.rows.begin; CRUMB_DEBUG_CHECKS && r < args.rows.end; ++r)
        CRUMB_CHECK(x.is_quantized(r), "linear::run: row %zu of %zu has not been quantized", r, x.rows());
    if (x.rows() == 1)
        functions.gemv(args);
    else
        functions.gemm(args);
}

} // namespace detail

/// A matrix product with weights in format `F`. Refers to the packed weights and the bias, owns nothing; copy
/// it freely. Integer sums are exact; a group adds its sum times the activations' scale, rounded, times the
/// weights' scale with one fused multiply-add, in order, so a result does not depend on the split into parts,
/// on the number of rows or on which thread computes it. Error: |y - exact| <= (groups + 2) eps sum_k |w x| +
/// 2 eps |bias| for the quantized operands, eps = 2^-24 (portable ISA without FMA: twice as much).
template <weight_format F>
class linear {
  public:
    /// Checks shapes and chooses the ISA.
    static result<linear> plan(const packed_view<F>& weights, const linear_options& options = {},
                               const context& on = {}) noexcept {
        const auto isa = choose_isa(on);
        if (!isa)
            return isa.error();
        if (const status s = detail::check_linear(options, weights.n()); !s)
            return s;
        // Padding of 2-bit indices decodes to nonzero weights.
        if (options.mode == linear_mode::absorbed && codebook_entries<F> != 0 &&
            weights.k() % group_size != 0)
            return status::error(errc::bad_shape,
                                 "absorbed products in format %s: %zu inputs, no multiple of %zu", F::name,
                                 weights.k(), group_size);
        if (const std::size_t entries = needs_codebooks<F> ? codebook_entries<F> : 0;
            options.codebooks.size() != entries)
            return status::error(errc::invalid_argument, "format %s takes %zu codebook entries, got %zu",
                                 F::name, entries, options.codebooks.size());
        linear p;
        p.functions_ = &dispatch::functions_of<F>(static_cast<std::size_t>(options.mode), *isa);
        if (const status s = dispatch::check_compiled(*p.functions_, F::name); !s)
            return s;
        if (p.functions_->gemm == nullptr)
            return status::error(errc::unsupported, "no %s for weights in format %s on %s",
                                 options.mode == linear_mode::panels ? "int8 panels" : "absorbed products",
                                 F::name, p.functions_->isa);
        p.weights_ = weights;
        p.bias_ = options.bias.empty() ? nullptr : options.bias.data();
        p.max_rows_ = options.max_rows;
        p.tables_ = lookup_tables<F>(options.codebooks);
        if (options.mode == linear_mode::exact && detail::are_narrow(p.tables_))
            if (const auto& narrow = dispatch::functions_of<F>(dispatch::narrow_products, *isa);
                narrow.gemm != nullptr)
                p.functions_ = &narrow;
        return p;
    }

    /// Output channels.
    std::size_t n() const noexcept { return weights_.n(); }
    /// Inputs.
    std::size_t k() const noexcept { return weights_.k(); }
    /// Bytes of the packed weights.
    std::size_t bytes() const noexcept { return weights_.bytes(); }
    /// Name of the ISA that `run` executes.
    const char* isa() const noexcept { return functions().isa; }
    /// Parts should begin and end at multiples of this many channels: others compute channels in vain.
    static constexpr std::size_t channel_step() noexcept { return tile_channels; }
    /// Parts should begin and end at multiples of this many rows.
    std::size_t row_step() const noexcept { return functions().layout.row_block; }
    /// How `activations` for this plan lie in memory; plans with equal layouts can share them.
    activation_plan input_plan() const noexcept {
        activation_layout layout = functions().layout;
        layout.k = weights_.k();
        return {layout, functions().quantize};
    }

    /// y[r, c] = bias[c] + sum over k of w[c, k] x[r, k] for rows and channels of `part`. `y` is the whole
    /// output, x.rows() x n. Writes nothing else. Any number of threads may call it for disjoint parts.
    void run(const activations& x, const matrix_view<float>& y, const linear_part& part = {}) const noexcept {
        detail::require_layout(x, input_plan().layout, "linear::run");
        CRUMB_CHECK(x.rows() <= max_rows_, "linear::run: %zu rows, the plan is for %zu", x.rows(), max_rows_);
        detail::run_linear(functions(), weights(), x, y, part);
    }

  private:
    friend class any_linear;
    kernel::linear_args weights() const noexcept {
        kernel::linear_args args;
        if constexpr (has_records<F>) {
            args.records = weights_.scales();
            args.tensor_scale = weights_.tensor_scale();
        } else if constexpr (packed_layout<F>::has_exponents) {
            args.multipliers = weights_.scales();
            args.exponents = weights_.exponents();
        } else {
            args.scales = weights_.scales();
        }
        args.codebooks = tables_.data();
        args.codes = weights_.codes();
        args.groups = weights_.groups();
        args.n = weights_.n();
        args.bias = bias_;
        return args;
    }
    const dispatch::linear_functions& functions() const noexcept {
        CRUMB_REQUIRE(functions_ != nullptr, "linear: the plan is empty");
        return *functions_;
    }

    packed_view<F> weights_;
    decltype(lookup_tables<F>({})) tables_{};
    const float* bias_ = nullptr;
    std::size_t max_rows_ = 0;
    const dispatch::linear_functions* functions_ = nullptr;
};

} // namespace crumb::inline CRUMB_ABI
