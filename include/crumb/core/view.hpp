// Strided views of the caller's memory, and index ranges.
#pragma once

#include <crumb/core/status.hpp>

#include <cstddef>
#include <limits>

namespace crumb::inline CRUMB_ABI {

/// A row-major matrix that somebody else owns: element (r, c) is `data[r * stride + c]`, `stride >= cols`.
template <class T>
struct matrix_view {
    T* data = nullptr;
    std::size_t rows = 0;
    std::size_t cols = 0;
    std::size_t stride = 0; ///< elements from one row to the next

    constexpr matrix_view() noexcept = default;
    /// n rows of k elements, contiguous.
    constexpr matrix_view(T* elements, std::size_t n, std::size_t k) noexcept
        : matrix_view(elements, n, k, k) {}
    /// n rows of k elements, `step` elements from one to the next.
    constexpr matrix_view(T* elements, std::size_t n, std::size_t k, std::size_t step) noexcept
        : data(elements), rows(n), cols(k), stride(step) {}

    /// The first element of row r.
    constexpr T* row(std::size_t r) const noexcept { return data + r * stride; }
    /// The same elements, to be read.
    constexpr operator matrix_view<const T>() const noexcept { return {data, rows, cols, stride}; }
};

/// A view of `rows` x `cols` elements with rows `stride` elements apart.
template <class T>
constexpr matrix_view<T> matrix(T* data, std::size_t rows, std::size_t cols, std::size_t stride) noexcept {
    return {data, rows, cols, stride};
}

/// A view of `rows` x `cols` contiguous elements.
template <class T>
constexpr matrix_view<T> matrix(T* data, std::size_t rows, std::size_t cols) noexcept {
    return {data, rows, cols, cols};
}

/// The indices begin, ..., end - 1. A default range means everything.
struct range {
    std::size_t begin = 0;
    std::size_t end = std::numeric_limits<std::size_t>::max();

    /// This range with an open end closed at `size`.
    constexpr range within(std::size_t size) const noexcept { return {begin, end < size ? end : size}; }
    /// Indices in it; huge with an open end, see `within`.
    constexpr std::size_t size() const noexcept { return end > begin ? end - begin : 0; }
    /// Whether it is a part of 0 .. size - 1, its end open or not.
    constexpr bool is_within(std::size_t size) const noexcept {
        return begin <= size && begin <= end && (end <= size || end == range().end);
    }
};

/// The part number `part` of `parts` nearly equal parts of 0 .. size - 1, cut at multiples of `step`.
constexpr range split(std::size_t size, std::size_t parts, std::size_t part, std::size_t step = 1) noexcept {
    CRUMB_REQUIRE(parts != 0 && step != 0, "split: %zu parts in steps of %zu", parts, step);
    const std::size_t steps = (size + step - 1) / step;
    const std::size_t begin = steps * part / parts * step;
    const std::size_t end = steps * (part + 1) / parts * step;
    return {begin < size ? begin : size, end < size ? end : size};
}

/// The columns of a range, which ends within the matrix unless it is open.
template <class T>
constexpr matrix_view<T> columns(const matrix_view<T>& m, const range& of) noexcept {
    const range r = of.within(m.cols);
    return {m.data + r.begin, m.rows, r.size(), m.stride};
}

/// The rows of a range, likewise.
template <class T>
constexpr matrix_view<T> rows(const matrix_view<T>& m, const range& of) noexcept {
    const range r = of.within(m.rows);
    return {m.row(r.begin), r.size(), m.cols, m.stride};
}

} // namespace crumb::inline CRUMB_ABI
