// Activations quantized to int8 per group, once for all products that read them.
#pragma once

#include <crumb/core/view.hpp>
#include <crumb/format/activations.hpp>
#include <crumb/kernel/linear/kernels.hpp>

#include <initializer_list>
#include <span>

namespace crumb::inline CRUMB_ABI {

/// A layout and the function that fills it; obtained from a plan. Equal if the layouts are.
struct activation_plan {
    activation_layout layout;                                          ///< of the quantized rows
    void (*quantize)(const kernel::quantize_args&) noexcept = nullptr; ///< null in an empty plan
    friend bool operator==(const activation_plan& a, const activation_plan& b) noexcept {
        return a.layout == b.layout;
    }
};

/// Bytes of a buffer for `rows` rows of activations.
inline std::size_t activation_bytes(const activation_plan& plan, std::size_t rows) noexcept {
    return plan.layout.bytes(rows);
}
/// Bytes of a buffer that serves each of several plans, one at a time, for up to `rows` rows.
inline std::size_t activation_bytes(std::span<const activation_plan> plans, std::size_t rows) noexcept {
    std::size_t most = 0;
    for (const activation_plan& plan : plans)
        if (const std::size_t bytes = activation_bytes(plan, rows); bytes > most)
            most = bytes;
    return most;
}
inline std::size_t activation_bytes(std::initializer_list<activation_plan> plans, std::size_t rows) noexcept {
    return activation_bytes(std::span(plans.begin(), plans.size()), rows);
}

/// Quantized activations in the caller's buffer.
class activations {
  public:
    activations() noexcept = default;

    /// Refers to `buffer` (at least `activation_bytes(plan, rows)` bytes, aligned to `crumb::alignment`),
    /// whose contents are lost. Debug builds mark all rows, and products abort where a row that they read has
    /// not been quantized.
    static result<activations> create(std::span<std::byte> buffer, const activation_plan& plan,
                                      std::size_t rows) noexcept {
        auto a = attach(buffer, plan, rows);
#if CRUMB_DEBUG_CHECKS
        if (a)
            a->mark();
#endif
        return a;
    }
    /// Refers to a buffer that another object, made for the same plan and rows, fills or has filled.
    static result<activations> attach(std::span<std::byte> buffer, const activation_plan& plan,
                                      std::size_t rows) noexcept {
        if (plan.quantize == nullptr)
            return status::error(errc::invalid_argument, "activations: the plan is empty");
        if (rows > (std::size_t{1} << 40) || plan.layout.k > (std::size_t{1} << 40) ||
            (rows != 0 && plan.layout.k > (std::size_t{1} << 56) / rows))
            return status::error(errc::bad_shape, "activations: %zu x %zu are beyond any memory", rows,
                                 plan.layout.k);
        if (auto s = check_buffer(buffer, activation_bytes(plan, rows), "buffer for activations"); !s)
            return s;
        activations a;
        a.base_ = buffer.data();
        a.plan_ = plan;
        a.rows_ = rows;
        return a;
    }

    /// Quantizes rows `part` of x (rows() x k floats): scale = max |x| / 127 per group (see
    /// `activation_scale`), code = x / scale rounded to nearest, ties to even, the same on every ISA. Groups
    /// below `smallest_activation` count as zero; a group with NaN, infinity or more than
    /// `largest_activation` makes the outputs that depend on it NaN. Plans for absorbed products have rules
    /// of their own: see `kernel::quantize_absorbed`. Disjoint parts may run in different threads.
    void quantize(const matrix_view<const float>& x, range part = {}) noexcept {
        CRUMB_REQUIRE(x.rows == rows_ && x.cols == plan_.layout.k,
                      "activations::quantize: x is %zu x %zu, the activations are %zu x %zu", x.rows, x.cols,
                      rows_, plan_.layout.k);
        CRUMB_CHECK(x.rows <= 1 || x.stride >= x.cols,
                    "activations::quantize: x has rows of %zu floats, %zu apart", x.cols, x.stride);
        CRUMB_CHECK(part.is_within(rows_), "activations::quantize: rows %zu to %zu of %zu", part.begin,
                    part.end, rows_);
        kernel::quantize_args args;
        args.x = x.data;
        args.x_stride = x.stride;
        args.rows = rows_;
        args.layout = plan_.layout;
        args.codes = reinterpret_cast<std::int8_t*>(base_);
        args.scales = reinterpret_cast<float*>(base_ + plan_.layout.scales_offset(rows_));
        if (plan_.layout.has_starts())
            args.starts = reinterpret_cast<std::int32_t*>(base_ + plan_.layout.starts_offset(rows_));
        if (plan_.layout.has_shifts())
            args.shifts = reinterpret_cast<float*>(base_ + plan_.layout.shifts_offset(rows_));
        if (plan_.layout.sum_inputs != 0)
            args.sums = base_ + plan_.layout.sums_offset(rows_);
        args.part = part.within(rows_);
        if (args.part.size() != 0)
            plan_.quantize(args);
    }

    /// Rows, quantized or not yet.
    std::size_t rows() const noexcept { return rows_; }
    /// How the bytes below are ordered.
    const activation_layout& layout() const noexcept { return plan_.layout; }
    /// rows() x k_padded codes.
    const std::int8_t* codes() const noexcept { return reinterpret_cast<const std::int8_t*>(base_); }
    /// The groups' scales: input = scale * code.
    const float* scales() const noexcept {
        return reinterpret_cast<const float*>(base_ + plan_.layout.scales_offset(rows_));
    }
    /// Start values of the groups' sums: the bits of `activation_origin` (0 for groups longer than 32)
    /// minus offset * (sum of the group's codes); absorbed: see `kernel::quantize_absorbed`. Null if the
    /// layout has none.
    const std::int32_t* starts() const noexcept {
        return plan_.layout.has_starts()
                   ? reinterpret_cast<const std::int32_t*>(base_ + plan_.layout.starts_offset(rows_))
                   : nullptr;
    }
    /// -activation_origin times the scales, or null if the layout has none.
    const float* shifts() const noexcept {
        return plan_.layout.has_shifts()
                   ? reinterpret_cast<const float*>(base_ + plan_.layout.shifts_offset(rows_))
                   : nullptr;
    }
    /// Sums of codes, see `activation_layout::sum_inputs`; null if the layout has none.
    const void* sums() const noexcept {
        return plan_.layout.sum_inputs != 0 ? base_ + plan_.layout.sums_offset(rows_) : nullptr;
    }

    /// Whether `row` has been quantized; true without debug checks, and after `attach` by nobody's `create`.
    bool is_quantized(std::size_t row) const noexcept {
        return !CRUMB_DEBUG_CHECKS || layout().groups() == 0 ||
               std::bit_cast<std::uint32_t>(
                   activation_row::of(layout(), codes(), scales(), rows_, row).scale(0)) != mark_bits;
    }

  private:
    /// The bits of a NaN that no computation returns.
    static constexpr std::uint32_t mark_bits = 0x7fd0c0deu;
    void mark() noexcept {
        auto* scales = reinterpret_cast<std::uint32_t*>(base_ + plan_.layout.scales_offset(rows_));
        const std::size_t count = rows_ * plan_.layout.groups() * plan_.layout.scale_copies();
        for (std::size_t i = 0; i < count; ++i)
            __builtin_memcpy(scales + i, &mark_bits, sizeof mark_bits);
    }

    std::byte* base_ = nullptr;
    activation_plan plan_;
    std::size_t rows_ = 0;
};

} // namespace crumb::inline CRUMB_ABI
