// What attention needs of products of int8 matrices, which it does not compile itself.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/core/view.hpp>

#include <cstddef>
#include <cstdint>

namespace crumb::inline CRUMB_ABI::kernel {

/// Rows of k int8 codes with a scale per 32 of them, as scales and codes of packed `q8_0` lie.
struct kv_matrix {
    const half* scales = nullptr;
    const std::uint8_t* codes = nullptr;
    std::size_t n = 0; ///< rows, a multiple of 16
    std::size_t k = 0;
};

/// Products y = x w^T of such a matrix with rows of floats, which are rounded to int8 first. A row of y does
/// not depend on the other rows.
struct kv_matrix_products {
    const void* functions = nullptr; ///< first argument of all
    /// Bytes that `rows` rounded rows of k take.
    std::size_t (*bytes)(const void* functions, std::size_t rows, std::size_t k) noexcept = nullptr;
    /// Rounds x to `to`: bytes(x.rows, x.cols), aligned.
    void (*quantize)(const void* functions, const matrix_view<const float>& x,
                     std::byte* to) noexcept = nullptr;
    /// y, or what it has and the product; `x`: y.rows rounded rows of w.k.
    void (*multiply)(const void* functions, const kv_matrix& w, const std::byte* x,
                     const matrix_view<float>& y, bool adds) noexcept = nullptr;

    constexpr bool has_all() const noexcept {
        return bytes != nullptr && quantize != nullptr && multiply != nullptr;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
