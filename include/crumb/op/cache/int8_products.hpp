// Products of int8 matrices for attention to long prompts.
#pragma once

#include <crumb/dispatch/linear.hpp>
#include <crumb/kernel/cache/matrix_products.hpp>

namespace crumb::inline CRUMB_ABI {

using kernel::kv_matrix_products;

namespace detail {

inline const dispatch::linear_functions& int8_functions(const void* functions) noexcept {
    return *static_cast<const dispatch::linear_functions*>(functions);
}
inline activation_layout int8_layout(const void* functions, std::size_t k) noexcept {
    activation_layout layout = int8_functions(functions).layout;
    layout.k = k;
    return layout;
}
inline std::size_t int8_bytes(const void* functions, std::size_t rows, std::size_t k) noexcept {
    return int8_layout(functions, k).bytes(rows);
}
inline void int8_quantize(const void* functions, const matrix_view<const float>& x, std::byte* to) noexcept {
    const activation_layout layout = int8_layout(functions, x.cols);
    const std::size_t rows = x.rows;
    int8_functions(functions).quantize(
        {.x = x.data,
         .x_stride = x.stride,
         .rows = rows,
         .layout = layout,
         .codes = reinterpret_cast<std::int8_t*>(to),
         .scales = reinterpret_cast<float*>(to + layout.scales_offset(rows)),
         .starts =
             layout.has_starts() ? reinterpret_cast<std::int32_t*>(to + layout.starts_offset(rows)) : nullptr,
         .shifts = layout.has_shifts() ? reinterpret_cast<float*>(to + layout.shifts_offset(rows)) : nullptr,
         .part = {0, rows}});
}
inline void int8_multiply(const void* functions, const kernel::kv_matrix& w, const std::byte* x,
                          const matrix_view<float>& y, bool adds) noexcept {
    const activation_layout layout = int8_layout(functions, w.k);
    const std::size_t rows = y.rows;
    kernel::linear_args args;
    args.scales = w.scales;
    args.codes = w.codes;
    args.groups = (w.k + group_size - 1) / group_size;
    args.n = w.n;
    args.x_codes = reinterpret_cast<const std::int8_t*>(x);
    args.x_scales = reinterpret_cast<const float*>(x + layout.scales_offset(rows));
    if (layout.has_starts())
        args.x_starts = reinterpret_cast<const std::int32_t*>(x + layout.starts_offset(rows));
    if (layout.has_shifts())
        args.x_shifts = reinterpret_cast<const float*>(x + layout.shifts_offset(rows));
    args.x_groups = layout.k_padded() / group_size;
    args.x_rows = rows;
    args.y = y.data;
    args.y_stride = y.stride;
    args.adds = adds;
    args.rows = {0, rows};
    args.channels = {0, w.n};
    const dispatch::linear_functions& f = int8_functions(functions);
    (rows == 1 ? f.gemv : f.gemm)(args);
}

} // namespace detail

/// What `kv_attention_options::prompts` takes: the products of `linear<q8_0>`. Refuses ISAs that this program
/// or CPU does not have, and programs without the kernels of `q8_0`.
CRUMB_WHEN_CALLED
inline result<kv_matrix_products> int8_products(const context& on = {}) noexcept {
    const auto isa = choose_isa(on);
    if (!isa)
        return isa.error();
    const dispatch::linear_functions& f = dispatch::functions_of<q8_0>(0, *isa);
    if (const status s = dispatch::check_compiled(f, q8_0::name); !s)
        return s;
    return kv_matrix_products{&f, detail::int8_bytes, detail::int8_quantize, detail::int8_multiply};
}

} // namespace crumb::inline CRUMB_ABI
