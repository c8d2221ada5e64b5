// How quantized activations lie in memory: int8 codes, one float scale per row and group of 32.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// Rows in the block that begins at a row with `left` rows from it to the end: full blocks of `row_block`,
/// then one of 8 if that fits, then the rest.
constexpr std::size_t rows_of_block(std::size_t left, std::size_t row_block) noexcept {
    return left >= row_block ? row_block : left >= 8 ? 8 : left;
}

/// Layout of m rows of k activations. Rows stand in blocks of h rows (see `rows_of_block`). A block that
/// begins at row r has its codes at byte r * k_padded, chunk by chunk of 8 inputs: 8 codes of each of its h
/// rows; and its scales (and sums) at element r * groups, group by group: one for each of its h rows. With
/// h = 1 codes lie in plain order, with h >= 2 sixteen bytes are what SMMLA takes from a pair of rows.
struct activation_layout {
    std::size_t k = 0;         ///< inputs per row
    std::size_t row_block = 8; ///< rows of a full block: 8 or 16
    int offset = 0;            ///< sums are stored as -offset * (sum of the group's codes); 0: not stored

    std::size_t groups() const noexcept { return (k + group_size - 1) / group_size; }
    std::size_t k_padded() const noexcept { return groups() * group_size; }
    /// Bytes that `rows` rows take: codes, scales, sums, each part aligned.
    std::size_t bytes(std::size_t rows) const noexcept { return sums_offset(rows) + sums_bytes(rows); }
    std::size_t scales_offset(std::size_t rows) const noexcept {
        return round_up(rows * k_padded(), alignment);
    }
    std::size_t sums_offset(std::size_t rows) const noexcept {
        return scales_offset(rows) + round_up(rows * groups() * sizeof(float), alignment);
    }
    std::size_t sums_bytes(std::size_t rows) const noexcept {
        return offset == 0 ? 0 : round_up(rows * groups() * sizeof(std::int32_t), alignment);
    }
    friend bool operator==(const activation_layout&, const activation_layout&) = default;
};

/// Where a row of activations lies: its block's first row and height.
struct row_position {
    std::size_t first = 0;
    std::size_t height = 1;
};

/// The block that holds `row` of `rows`.
constexpr row_position block_of(std::size_t row, std::size_t rows, std::size_t row_block) noexcept {
    const std::size_t full = rows / row_block * row_block;
    if (row < full)
        return {row / row_block * row_block, row_block};
    const std::size_t eight = rows - full >= 8 ? full + 8 : full;
    if (row < eight)
        return {full, 8};
    return {eight, rows - eight};
}

/// Groups whose largest magnitude is below this count as zero: their reciprocal would overflow.
inline constexpr float smallest_activation = 1e-36f;

} // namespace crumb::inline CRUMB_ABI
