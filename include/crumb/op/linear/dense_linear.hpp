// y = x W^T + bias with weights in single precision, fp16 or bfloat16: for layers that stay unquantized, and
// as a baseline.
#pragma once

#include <crumb/dispatch/dense.hpp>
#include <crumb/op/linear/linear.hpp>

#include <concepts>

namespace crumb::inline CRUMB_ABI {

/// A matrix product with float, half or bf16 weights in row-major order, without packing. Refers to weights
/// and bias, owns nothing. Results do not depend on the split into parts or on the number of rows. Many rows
/// of activations are multiplied faster where rows begin at multiples of 64 bytes.
template <class T>
requires(std::same_as<T, float> || std::same_as<T, half> || std::same_as<T, bf16>)
class dense_linear {
  public:
    /// Checks shapes and chooses the ISA; `options.max_rows` is not used.
    static result<dense_linear> plan(const matrix_view<const T>& weights, const linear_options& options = {},
                                     const context& on = {}) noexcept {
        const auto isa = choose_isa(on);
        if (!isa)
            return isa.error();
        if (weights.rows > 1 && weights.stride < weights.cols)
            return status::error(errc::bad_shape, "weights: row stride %zu is below %zu columns",
                                 weights.stride, weights.cols);
        if (!options.bias.empty() && options.bias.size() != weights.rows)
            return status::error(errc::bad_shape, "bias has %zu values, the weights have %zu output channels",
                                 options.bias.size(), weights.rows);
        dense_linear p;
        p.weights_ = weights;
        p.bias_ = options.bias.empty() ? nullptr : options.bias.data();
        p.run_ = dispatch::functions_at<dispatch::dense_functions>(*isa).get<T>();
        p.isa_ = isa_names()[*isa];
        p.converts_on_product_ports_ = dispatch::isas().converts_on_product_ports;
        return p;
    }

    /// Outputs and inputs.
    std::size_t n() const noexcept { return weights_.rows; }
    /// Inputs.
    std::size_t k() const noexcept { return weights_.cols; }
    /// Name of the ISA that `run` executes.
    const char* isa() const noexcept { return isa_; }

    /// y[r, c] = bias[c] + sum over k of w[c, k] x[r, k] for rows and channels of `part`; x is m x k, y m x
    /// n.
    void run(const matrix_view<const float>& x, const matrix_view<float>& y,
             const linear_part& part = {}) const noexcept {
        CRUMB_REQUIRE(run_ != nullptr, "dense_linear::run: the plan is empty");
        CRUMB_REQUIRE(x.cols == k() && y.cols == n() && x.rows == y.rows,
                      "dense_linear::run: x is %zu x %zu, y %zu x %zu, the weights are %zu x %zu", x.rows,
                      x.cols, y.rows, y.cols, n(), k());
        CRUMB_CHECK(y.rows <= 1 || y.stride >= y.cols,
                    "dense_linear::run: y has rows of %zu floats, %zu apart", y.cols, y.stride);
        CRUMB_CHECK(part.rows.is_within(x.rows) && part.channels.is_within(n()),
                    "dense_linear::run: rows %zu to %zu of %zu, channels %zu to %zu of %zu", part.rows.begin,
                    part.rows.end, x.rows, part.channels.begin, part.channels.end, n());
        const range rows = part.rows.within(x.rows);
        const range channels = part.channels.within(n());
        if (rows.size() != 0 && channels.size() != 0)
            run_({weights_, x, y, bias_, rows, channels, converts_on_product_ports_});
    }

  private:
    matrix_view<const T> weights_;
    const float* bias_ = nullptr;
    dispatch::dense_function<T> run_ = nullptr;
    const char* isa_ = nullptr;
    bool converts_on_product_ports_ = false;
};

} // namespace crumb::inline CRUMB_ABI
