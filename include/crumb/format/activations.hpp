// How quantized activations lie in memory: int8 codes, one float scale per row and group of inputs.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/format/traits.hpp>

#include <bit>

namespace crumb::inline CRUMB_ABI {

/// Inputs that share a scale in int8 panels, and in the activations that are multiplied with them.
inline constexpr std::size_t panel_inputs = 512;
/// Inputs that share a scale in products with integer scales of weights: a block of their formats.
inline constexpr std::size_t record_inputs = 256;

/// The order of codes and scales of a block of h rows within a group of 32 inputs. With h = 1 every order is
/// input by input.
enum class activation_order : std::uint8_t {
    chunks, ///< chunk by chunk of 8 inputs: 8 codes of each row; scales row by row
    pairs,  ///< pair by pair of rows: the pair's four chunks, 64 bytes; the last of an odd number of rows: 32
    twin_pairs ///< codes as in `pairs`; scales twice: {s0, s0, s1, s1} of each pair
};

/// Layout of m rows of k activations. Rows stand in blocks of h rows (see `block_of`). A block that
/// begins at row r has its codes at byte r * k_padded, 32 inputs after 32 inputs; and its scales (starts,
/// shifts) at element r * groups (twice that where scales stand twice), group by group. With h = 1 codes lie
/// input by input, with h >= 2 sixteen bytes are an SMMLA operand of a pair of rows.
struct activation_layout {
    std::size_t k = 0;              ///< inputs per row
    std::size_t row_block = 8;      ///< rows of a full block: 1, 2, 4, 8 or 16
    int offset = 0;                 ///< added to weight codes by the kernel; 0: no starts
    std::size_t group = group_size; ///< inputs that share a scale: 32, `record_inputs` or `panel_inputs`
    /// Inputs of a sum of codes, 16 or 32; 0: no sums. With a scale per group of 32 sums are floats, times
    /// that scale, or what sums of products begin at (`sum_factor`); else they are of 16 bits.
    std::size_t sum_inputs = 0;
    /// Not 0, with a scale per group of 32: sums are this times the integer sum, plus the bits of
    /// `activation_origin` if `from_origin`.
    int sum_factor = 0;
    bool from_origin = false; ///< with sums and a scale per group of 32: there are shifts
    activation_order order = activation_order::chunks;
    /// Bits of the weights' codes in absorbed products, 4 or 2, with row_block 1 (see
    /// `kernel::quantize_absorbed`); 0 in all others.
    int absorbed = 0;

    /// Groups of inputs that share a scale.
    std::size_t groups() const noexcept { return (k + group - 1) / group; }
    /// Inputs per row with padding: whole groups of 32, or whole records.
    std::size_t k_padded() const noexcept {
        return round_up(k, group == record_inputs ? record_inputs : group_size);
    }
    /// Bytes that `rows` rows take: codes, scales, starts, shifts, sums, each part aligned.
    std::size_t bytes(std::size_t rows) const noexcept {
        return sums_offset(rows) + round_up(rows * sums() * sum_bytes(), alignment);
    }
    /// Bytes before the scales of `rows` rows.
    std::size_t scales_offset(std::size_t rows) const noexcept {
        return round_up(rows * k_padded(), alignment);
    }
    /// Bytes before the starts.
    std::size_t starts_offset(std::size_t rows) const noexcept {
        return scales_offset(rows) + scale_copies() * part_bytes(rows);
    }
    /// Bytes before the shifts.
    std::size_t shifts_offset(std::size_t rows) const noexcept {
        return starts_offset(rows) + (has_starts() ? part_bytes(rows) : 0);
    }
    /// Bytes before the sums.
    std::size_t sums_offset(std::size_t rows) const noexcept {
        return shifts_offset(rows) + (has_shifts() ? part_bytes(rows) : 0);
    }
    /// Sums of a row: those of group g of row i of a block of h rows begin at number g h + i times those of
    /// a group.
    std::size_t sums() const noexcept { return sum_inputs == 0 ? 0 : groups() * group / sum_inputs; }
    /// Bytes of a sum.
    std::size_t sum_bytes() const noexcept {
        return group == group_size ? sizeof(float) : sizeof(std::int16_t);
    }
    /// Whether groups have starts of their sums.
    bool has_starts() const noexcept { return offset != 0 || absorbed != 0; }
    /// Whether groups have shifts as well.
    bool has_shifts() const noexcept { return (offset != 0 || from_origin) && group == group_size; }
    /// How often a scale stands in its block.
    std::size_t scale_copies() const noexcept { return order == activation_order::twin_pairs ? 2 : 1; }

    friend bool operator==(const activation_layout&, const activation_layout&) = default;

  private:
    std::size_t part_bytes(std::size_t rows) const noexcept {
        return round_up(rows * groups() * sizeof(float), alignment);
    }
};

/// Where a row of activations lies: its block's first row and height.
struct row_position {
    std::size_t first = 0;
    std::size_t height = 1;
};

/// The block that holds `row` of `rows`: full blocks of `row_block` rows come first, then one of 8 if that
/// fits, then one of all that remain.
constexpr row_position block_of(std::size_t row, std::size_t rows, std::size_t row_block) noexcept {
    const std::size_t full = rows / row_block * row_block;
    if (row < full)
        return {row / row_block * row_block, row_block};
    const std::size_t eight = rows - full >= 8 ? full + 8 : full;
    if (row < eight)
        return {full, 8};
    return {eight, rows - eight};
}

/// Where row i of a block of `height` rows has its codes and scale, counted from the block's first.
struct block_position {
    std::size_t code = 0;                  ///< of input 0
    std::size_t chunk_stride = 8;          ///< bytes from 8 inputs of a group to the next 8
    std::size_t group_stride = group_size; ///< bytes from 32 inputs to the next 32
    std::size_t scale = 0;                 ///< of group 0; where scales stand twice, the first of the two
    std::size_t scale_stride = 1;
    std::size_t scale_copies = 1; ///< neighbours with the same value
};

constexpr block_position position_in_block(activation_order order, std::size_t i,
                                           std::size_t height) noexcept {
    block_position p;
    p.group_stride = height * group_size;
    if (order == activation_order::chunks) {
        p.code = 8 * i;
        p.chunk_stride = 8 * height;
    } else {
        const bool alone = i + 1 == height && height % 2 == 1;
        p.code = i / 2 * 2 * group_size + (alone ? 0 : 8 * (i % 2));
        p.chunk_stride = alone ? 8 : 16;
    }
    // Nothing reads the second copy of the scale of a single row, and a block of one row is in input order.
    p.scale_copies = order == activation_order::twin_pairs && height > 1 ? 2 : 1;
    p.scale = i * p.scale_copies;
    p.scale_stride = height * p.scale_copies;
    return p;
}

/// A row of quantized activations, wherever its block has put it.
struct activation_row {
    const std::int8_t* codes = nullptr;
    const float* scales = nullptr;
    block_position in;

    /// Row `row` of `rows` whose codes and scales lie as `layout` says.
    static activation_row of(const activation_layout& layout, const std::int8_t* codes, const float* scales,
                             std::size_t rows, std::size_t row) noexcept {
        const row_position at = block_of(row, rows, layout.row_block);
        const block_position in = position_in_block(layout.order, row - at.first, at.height);
        return {codes + at.first * layout.k_padded() + in.code,
                scales + at.first * layout.groups() * layout.scale_copies() + in.scale, in};
    }
    /// Code of input k.
    constexpr std::int8_t code(std::size_t k) const noexcept {
        return codes[k / group_size * in.group_stride + k % group_size / 8 * in.chunk_stride + k % 8];
    }
    /// Scale of a group.
    constexpr float scale(std::size_t group) const noexcept { return scales[group * in.scale_stride]; }
};

/// Groups whose largest magnitude is below this count as zero: their scale would be subnormal.
inline constexpr float smallest_activation = 2e-36f;
/// Groups whose largest magnitude is above this count as infinite: `origin` times their scale would be.
inline constexpr float largest_activation = 1e33f;

/// The scale of a group whose largest magnitude is `amax`: amax / 127, rounded up to 16 significant bits, so
/// that its product with `origin` is exact and no code exceeds 127.
constexpr float activation_scale(float amax) noexcept {
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(amax / 127.0f) + 0xffu) & ~0xffu);
}

/// 1.5 * 2^23. A sum that begins at the bits of this float is, read as a float, origin + sum, as long as
/// |sum| < 2^22; that of 32 products of bytes stays below 2^20. One FMA with the shift -origin * scale then
/// makes it scale * sum, rounded once, and the conversion costs no instruction.
inline constexpr float activation_origin = 12582912.0f;
inline constexpr std::int32_t activation_origin_bits = std::bit_cast<std::int32_t>(activation_origin);

} // namespace crumb::inline CRUMB_ABI
