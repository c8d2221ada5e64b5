// y = x W^T + bias with nested weights: one stored copy, a precision per call.
#pragma once

#include <crumb/format/nested.hpp>
#include <crumb/op/linear/linear.hpp>

namespace crumb::inline CRUMB_ABI {

/// A matrix product with nested weights (PMPD, section 4.2; nested as in Any-Precision LLM). `run` at
/// precision p reads the scales and the first p - 1 planes of the packed bytes and nothing else. Refers to
/// the packed weights and the bias, owns nothing; copy it freely. Rounding, error, threads and splits are
/// those of `linear`.
class nested_linear {
  public:
    /// Checks shapes and chooses the ISA. Modes: `exact` and `panels`; `options.codebooks` stays empty, as
    /// the levels are in the packed bytes.
    CRUMB_WHEN_CALLED
    static result<nested_linear> plan(const nested_view& weights, const linear_options& options = {},
                                      const context& on = {}) noexcept {
        const auto isa = choose_isa(on);
        if (!isa)
            return isa.error();
        if (const status s = detail::check_linear(options, weights.n()); !s)
            return s;
        if (!options.codebooks.empty())
            return status::error(errc::invalid_argument, "nested weights bring their levels, got %zu entries",
                                 options.codebooks.size());
        nested_linear p;
        status compiled;
        std::size_t at = 0;
        precision_list::for_each([&]<class P>() {
            p.functions_[at] = &dispatch::functions_of<P>(static_cast<std::size_t>(options.mode), *isa);
            if (weights.levels().has(P::codes::bits)) {
                p.tables_[at] = nested_lookup_tables<P>(weights.levels());
                if (compiled)
                    compiled = dispatch::check_compiled(*p.functions_[at], P::name);
            }
            ++at;
        });
        if (!compiled)
            return compiled;
        p.weights_ = weights;
        if (options.mode == linear_mode::absorbed || p.functions(p.seed()).gemm == nullptr)
            return status::error(errc::unsupported, "no %s for nested weights on %s",
                                 options.mode == linear_mode::panels ? "int8 panels" : "absorbed products",
                                 p.isa());
        p.bias_ = options.bias.empty() ? nullptr : options.bias.data();
        p.max_rows_ = options.max_rows;
        return p;
    }

    /// Outputs and inputs.
    std::size_t n() const noexcept { return weights_.n(); }
    /// Inputs.
    std::size_t k() const noexcept { return weights_.k(); }
    /// The lowest and the highest precision of `run`, in bits.
    int seed() const noexcept { return weights_.levels().seed; }
    /// The highest precision, in bits.
    int parent() const noexcept { return weights_.levels().parent; }
    /// Bytes of packed weights that are read at `bits` bits.
    std::size_t bytes(int bits) const noexcept { return weights_.bytes_at(bits); }
    /// Name of the ISA that `run` executes.
    const char* isa() const noexcept { return functions(seed()).isa; }
    /// As in `linear`.
    static constexpr std::size_t channel_step() noexcept { return tile_channels; }
    /// Rows of a block, see `split`.
    std::size_t row_step() const noexcept { return functions(seed()).layout.row_block; }
    /// The layout of `activations`, the same at every precision.
    activation_plan input_plan() const noexcept {
        activation_layout layout = functions(seed()).layout;
        layout.k = weights_.k();
        return {layout, functions(seed()).quantize};
    }

    /// y[r, c] = bias[c] + correction[c] + sum over k of w[c, k] x[r, k] for rows and channels of `part`, w
    /// and correction at `bits` bits, seed() to parent(). `y` is the whole output, x.rows() x n. Writes
    /// nothing else. Any number of threads may call it for disjoint parts.
    void run(int bits, const activations& x, const matrix_view<float>& y,
             const linear_part& part = {}) const noexcept {
        bits = stored(bits);
        detail::require_layout(x, input_plan().layout, "nested_linear::run");
        CRUMB_CHECK(x.rows() <= max_rows_, "nested_linear::run: %zu rows, the plan is for %zu", x.rows(),
                    max_rows_);
        detail::run_linear(functions(bits), weights(bits), x, y, part);
    }

  private:
    friend class any_linear;
    /// The nearest stored precision, so that no argument reads beyond the packed bytes.
    int stored(int bits) const noexcept {
        CRUMB_CHECK(weights_.levels().has(bits), "nested_linear: %d bits, the weights have %d to %d", bits,
                    seed(), parent());
        return bits < seed() ? seed() : bits > parent() ? parent() : bits;
    }
    kernel::linear_args weights(int bits) const noexcept {
        kernel::linear_args args;
        args.scales = weights_.scales();
        args.codes = weights_.plane(0);
        args.planes[0] = weights_.plane(1);
        args.planes[1] = weights_.plane(2);
        args.codebooks = tables_[index_of(bits)].data();
        args.groups = weights_.groups();
        args.n = weights_.n();
        args.corrections = weights_.corrections(bits);
        args.bias = bias_;
        return args;
    }
    static constexpr std::size_t index_of(int bits) noexcept {
        return static_cast<std::size_t>(bits - min_nested_bits);
    }
    const dispatch::linear_functions& functions(int bits) const noexcept {
        CRUMB_REQUIRE(functions_[0] != nullptr, "nested_linear: the plan is empty");
        return *functions_[index_of(bits)];
    }

    nested_view weights_;
    std::array<nested_tables, precision_list::size> tables_{};
    std::array<const dispatch::linear_functions*, precision_list::size> functions_{};
    const float* bias_ = nullptr;
    std::size_t max_rows_ = 0;
};

} // namespace crumb::inline CRUMB_ABI
