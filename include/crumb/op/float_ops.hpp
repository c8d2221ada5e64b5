// The float operations of a transformer: norms, activation functions, softmax, rotary embedding.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/dispatch/float_ops.hpp>

#include <cmath>

namespace crumb::inline CRUMB_ABI {

/// The pairs of elements that a rotary embedding rotates.
enum class rope_pairing : std::uint8_t {
    interleaved, ///< (2i, 2i + 1): original LLaMA, GGUF's `llama` architecture
    half_split   ///< (i, i + dims / 2): GPT-NeoX, Hugging Face, most others
};

/// Frequencies of a rotary embedding: f_i = base^(-2i / dims) * scale / factors[i], i = 0 .. dims / 2 - 1.
struct rope_options {
    std::size_t dims = 0;                ///< rotated elements of each head, even, at most the head size
    double base = 10000;                 ///< GGUF: rope.freq_base
    double scale = 1;                    ///< 1 / GGUF's rope.scaling.factor of linear scaling
    std::span<const float> factors = {}; ///< empty, or dims / 2 divisors (GGUF: rope_freqs.weight)
    double magnitude = 1;                ///< of what is rotated (GGUF: rope.scaling.attn_factor, and YaRN's)
    rope_pairing pairing = rope_pairing::interleaved; ///< which elements rotate together
};

/// Bytes of a table of cosines and sines; 0 if the sizes are out of range.
constexpr std::size_t rope_table_bytes(std::size_t max_positions, std::size_t dims) noexcept {
    std::size_t floats = 0;
    if (!multiply(max_positions, dims, floats) || floats > (std::size_t{1} << 50))
        return 0;
    return round_up(floats * sizeof(float), alignment);
}

/// Cosines and sines of a rotary embedding in the caller's memory; each is its exact value rounded to float.
class rope_table {
  public:
    static constexpr std::size_t max_dims = std::size_t{1} << 20; ///< rotated elements of a head
    rope_table() noexcept = default;

    /// Fills `buffer` (at least `rope_table_bytes(max_positions, options.dims)` bytes, aligned to
    /// `crumb::alignment`) and refers to it. Angles are computed in double precision.
    static result<rope_table> create(std::span<std::byte> buffer, std::size_t max_positions,
                                     const rope_options& options) noexcept {
        const std::size_t pairs = options.dims / 2;
        if (options.dims == 0 || options.dims % 2 != 0 || options.dims > max_dims)
            return status::error(errc::bad_shape,
                                 "rope: dims is %zu, it has to be even, not 0 and at most %zu", options.dims,
                                 max_dims);
        if (!options.factors.empty() && options.factors.size() != pairs)
            return status::error(errc::bad_shape, "rope: %zu factors for %zu pairs", options.factors.size(),
                                 pairs);
        if (!(options.base > 0) || !std::isfinite(options.base) || !std::isfinite(options.scale) ||
            !(std::fabs(options.magnitude) <= double(std::numeric_limits<float>::max())))
            return status::error(errc::invalid_argument,
                                 "rope: base %g, scale %g or magnitude %g is not usable", options.base,
                                 options.scale, options.magnitude);
        const std::size_t bytes = rope_table_bytes(max_positions, options.dims);
        if (bytes == 0 && max_positions != 0)
            return status::error(errc::bad_shape, "rope: %zu positions x %zu are beyond any memory",
                                 max_positions, options.dims);
        if (auto s = check_buffer(buffer, bytes, "buffer for the rope table"); !s)
            return s;
        rope_table t;
        t.data_ = reinterpret_cast<float*>(buffer.data());
        t.positions_ = max_positions;
        t.dims_ = options.dims;
        t.pairing_ = options.pairing;
        for (std::size_t i = 0; i < pairs; ++i) {
            double f = options.scale * std::pow(options.base, -2.0 * double(i) / double(options.dims));
            if (!options.factors.empty())
                f /= double(options.factors[i]);
            if (!std::isfinite(f * double(max_positions)))
                return status::error(errc::not_finite, "rope: frequency %zu is not finite", i);
            for (std::size_t p = 0; p < max_positions; ++p) {
                t.data_[p * options.dims + i] = float(options.magnitude * std::cos(double(p) * f));
                t.data_[p * options.dims + pairs + i] = float(options.magnitude * std::sin(double(p) * f));
            }
        }
        return t;
    }

    /// Positions 0 .. positions() - 1, rotated elements of a head, and which of them rotate together.
    std::size_t positions() const noexcept { return positions_; }
    /// Rotated elements of a head.
    std::size_t dims() const noexcept { return dims_; }
    /// Which elements are a pair.
    rope_pairing pairing() const noexcept { return pairing_; }
    /// Row p: magnitude cos(p f_i) for i = 0 .. dims / 2 - 1, then the sines.
    const float* data() const noexcept { return data_; }

  private:
    float* data_ = nullptr;
    std::size_t positions_ = 0;
    std::size_t dims_ = 0;
    rope_pairing pairing_ = rope_pairing::interleaved;
};

/// Options of a softmax.
struct softmax_options {
    float scale = 1;                 ///< multiplies x
    std::size_t valid = range{}.end; ///< columns of row 0 in the softmax; the results of others are 0
    std::size_t valid_step = 0;      ///< further columns per row: 1 is a causal mask
};

/// The float operations of one ISA. Matrices are rows of vectors; `rows` restricts a call to some of them, so
/// that threads can share the work; a result does not depend on the split. Results may overwrite an input of
/// the same call (y == x), but must not overlap it otherwise. Copy it freely. eps = 2^-24 in the error
/// bounds; ISAs without FMA: twice as much. NaN in a row of norm or softmax makes the row NaN, elsewhere the
/// element.
class float_ops {
  public:
    /// Chooses the ISA: the one named, or that of `choose_isa`.
    CRUMB_WHEN_CALLED
    static result<float_ops> plan(const context& on = {}) noexcept {
        const auto index = choose_isa(on);
        if (!index)
            return index.error();
        float_ops p;
        p.functions_ = &dispatch::functions_at<dispatch::float_functions>(*index);
        return p;
    }

    /// Name of the ISA that the operations execute.
    const char* isa() const noexcept { return functions().isa; }

    /// y[r, c] = w[c] x[r, c] / sqrt(mean over c of x[r, c]^2 + epsilon), for |x| < 1e18.
    /// Error: (n / 16 + 14) eps |y|.
    void rms_norm(const matrix_view<const float>& x, std::span<const float> w, float epsilon,
                  const matrix_view<float>& y, range rows = {}) const noexcept {
        check(x, y, rows);
        CRUMB_REQUIRE(w.size() == x.cols, "rms_norm: w has %zu values, x %zu columns", w.size(), x.cols);
        functions().rms_norm({x, w.data(), nullptr, epsilon, y, rows.within(x.rows)});
    }

    /// y[r, c] = w[c] (x[r, c] - mean) / sqrt(variance + epsilon) + bias[c]; `bias` may be empty.
    /// Error: (n / 8 + 24) eps (|w| (|x - mean| + max |x|) / sqrt(variance + epsilon) + |y|).
    void layer_norm(const matrix_view<const float>& x, std::span<const float> w, std::span<const float> bias,
                    float epsilon, const matrix_view<float>& y, range rows = {}) const noexcept {
        check(x, y, rows);
        CRUMB_REQUIRE(w.size() == x.cols && (bias.empty() || bias.size() == x.cols),
                      "layer_norm: w has %zu values, bias %zu, x %zu columns", w.size(), bias.size(), x.cols);
        functions().layer_norm(
            {x, w.data(), bias.empty() ? nullptr : bias.data(), epsilon, y, rows.within(x.rows)});
    }

    /// y[r, c] = exp(scale x[r, c]) / sum over the row's valid columns of exp(scale x), the maximum
    /// subtracted. Rows that consist of -infinity only, or contain +infinity, become NaN. Error: (n / 4 + 16
    /// + 4 max |scale x|) eps y + 2^-149.
    void softmax(const matrix_view<const float>& x, const matrix_view<float>& y,
                 const softmax_options& options = {}, range rows = {}) const noexcept {
        check(x, y, rows);
        functions().softmax({x, y, options.scale, options.valid, options.valid_step, rows.within(x.rows)});
    }

    /// y = x / (1 + e^-x). Error: 8 eps |y| + 2^-142.
    void silu(const matrix_view<const float>& x, const matrix_view<float>& y,
              range rows = {}) const noexcept {
        elementwise(functions().silu, x, x, y, rows);
    }
    /// y = gate / (1 + e^-gate) * up. Error: 9 eps |y| + 2^-142 |up|.
    void silu_gated(const matrix_view<const float>& gate, const matrix_view<const float>& up,
                    const matrix_view<float>& y, range rows = {}) const noexcept {
        elementwise(functions().silu_gated, gate, up, y, rows);
    }
    /// y = x / 2 (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3). Error: (24 + 12 |u|) eps |y| + 2^-142.
    void gelu_tanh(const matrix_view<const float>& x, const matrix_view<float>& y,
                   range rows = {}) const noexcept {
        elementwise(functions().gelu_tanh, x, x, y, rows);
    }
    /// The same of `gate`, times `up`.
    void gelu_tanh_gated(const matrix_view<const float>& gate, const matrix_view<const float>& up,
                         const matrix_view<float>& y, range rows = {}) const noexcept {
        elementwise(functions().gelu_tanh_gated, gate, up, y, rows);
    }
    /// y = x / 2 (1 + erf(x / sqrt 2)). Error: 2 eps |x|.
    void gelu_erf(const matrix_view<const float>& x, const matrix_view<float>& y,
                  range rows = {}) const noexcept {
        elementwise(functions().gelu_erf, x, x, y, rows);
    }
    /// The same of `gate`, times `up`.
    void gelu_erf_gated(const matrix_view<const float>& gate, const matrix_view<const float>& up,
                        const matrix_view<float>& y, range rows = {}) const noexcept {
        elementwise(functions().gelu_erf_gated, gate, up, y, rows);
    }
    /// y = a + b.
    void add(const matrix_view<const float>& a, const matrix_view<const float>& b,
             const matrix_view<float>& y, range rows = {}) const noexcept {
        elementwise(functions().add, a, b, y, rows);
    }

    /// Rotary embedding in place. Row r of x holds the heads, `head_size` elements each, of the token at
    /// `position` + r; in each head pairs (a, b) become (a cos - b sin, a sin + b cos), elements beyond
    /// table.dims() stay. Error: 3 eps (|a| + |b|).
    void rope(const matrix_view<float>& x, std::size_t head_size, const rope_table& table,
              std::size_t position, range rows = {}) const noexcept {
        CRUMB_CHECK(rows.is_within(x.rows), "rope: rows %zu to %zu of %zu", rows.begin, rows.end, x.rows);
        rows = rows.within(x.rows);
        if (rows.size() == 0)
            return;
        CRUMB_REQUIRE(head_size != 0 && x.cols % head_size == 0 && table.dims() <= head_size,
                      "rope: x has %zu columns, heads have %zu, the table %zu", x.cols, head_size,
                      table.dims());
        CRUMB_REQUIRE(rows.end <= table.positions() && position <= table.positions() - rows.end,
                      "rope: rows up to %zu of position %zu, the table has %zu positions", rows.end, position,
                      table.positions());
        functions().rope({x, head_size, table.data(), table.dims(), position,
                          table.pairing() == rope_pairing::interleaved, rows});
    }

    /// y[i] = x[i] rounded to half precision, ties to even, as fp16 caches need it.
    void to_half(std::span<const float> x, half* y) const noexcept {
        functions().to_halves(x.data(), y, x.size());
    }
    /// y[i] = x[i], exactly.
    void to_float(std::span<const half> x, float* y) const noexcept {
        functions().to_floats(x.data(), y, x.size());
    }

  private:
    const dispatch::float_functions& functions() const noexcept {
        CRUMB_REQUIRE(functions_ != nullptr, "float_ops: the plan is empty");
        return *functions_;
    }
    static void check(const matrix_view<const float>& x, const matrix_view<const float>& y,
                      [[maybe_unused]] const range& rows) noexcept {
        CRUMB_CHECK(rows.is_within(x.rows), "float_ops: rows %zu to %zu of %zu", rows.begin, rows.end,
                    x.rows);
        CRUMB_REQUIRE(x.rows == y.rows && x.cols == y.cols, "float_ops: operands of %zu x %zu and %zu x %zu",
                      x.rows, x.cols, y.rows, y.cols);
        CRUMB_CHECK(y.rows <= 1 || y.stride >= y.cols, "float_ops: rows of %zu floats, %zu apart", y.cols,
                    y.stride);
    }
    static void elementwise(dispatch::elementwise_function function, const matrix_view<const float>& x,
                            const matrix_view<const float>& up, const matrix_view<float>& y,
                            range rows) noexcept {
        check(x, y, rows);
        check(up, y, rows);
        function({x, up, y, rows.within(x.rows)});
    }

    const dispatch::float_functions* functions_ = nullptr;
};

} // namespace crumb::inline CRUMB_ABI
