// The levels of nested weights: one table per precision.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/core/status.hpp>
#include <crumb/format/traits.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace crumb::inline CRUMB_ABI {

/// Min and max bits per nested weight.
inline constexpr int min_nested_bits = 2;
inline constexpr int max_nested_bits = 4;

/// Levels of nested weights. A code has `parent` bits, most significant first; at precision p it is its upper
/// p bits, q_p = q >> (parent - p), and the weight is scale(group) * table(p)[q_p]. Tables ascend.
struct nested_levels {
    int seed = min_nested_bits;   ///< the lowest precision
    int parent = max_nested_bits; ///< bits that are stored: the highest precision
    /// The tables of 2, 3 and 4 bits, one after another; those outside seed .. parent are ignored.
    std::array<std::int8_t, 4 + 8 + 16> levels = {};

    /// Where the table of `bits` bits begins in `levels`.
    static constexpr std::size_t first_of(int bits) noexcept { return (std::size_t{1} << bits) - 4; }
    /// The 2^bits levels of a precision.
    constexpr std::span<const std::int8_t> table(int bits) const noexcept {
        return {levels.data() + first_of(bits), std::size_t{1} << bits};
    }
    /// The same, to be written.
    constexpr std::span<std::int8_t> table(int bits) noexcept {
        return {levels.data() + first_of(bits), std::size_t{1} << bits};
    }
    /// Whether a precision is one of seed .. parent.
    constexpr bool has(int bits) const noexcept { return bits >= seed && bits <= parent; }
    friend constexpr bool operator==(const nested_levels&, const nested_levels&) = default;

    /// Evenly spaced levels; a level of fewer bits is the middle of the finer ones that it replaces:
    /// (2 q + 1 - 2^p) 2^(4 - p), so that all precisions share a scale.
    static constexpr nested_levels uniform(int seed_bits, int parent_bits) noexcept {
        nested_levels l;
        l.seed = seed_bits;
        l.parent = parent_bits;
        for (int p = min_nested_bits; p <= max_nested_bits; ++p)
            for (int q = 0; q < 1 << p; ++q)
                l.table(p)[static_cast<std::size_t>(q)] =
                    static_cast<std::int8_t>((2 * q + 1 - (1 << p)) * (1 << (max_nested_bits - p)));
        return l;
    }
};

/// Refuses precisions outside 2 to 4 bits, and tables that do not ascend.
inline status check_levels(const nested_levels& l) noexcept {
    if (l.seed < min_nested_bits || l.parent > max_nested_bits || l.seed > l.parent)
        return status::error(errc::invalid_argument, "nested weights of %d to %d bits: %d to %d are possible",
                             l.seed, l.parent, min_nested_bits, max_nested_bits);
    for (int p = l.seed; p <= l.parent; ++p)
        for (std::size_t i = 1; i < l.table(p).size(); ++i)
            if (l.table(p)[i] <= l.table(p)[i - 1])
                return status::error(errc::invalid_argument,
                                     "nested weights: the levels of %d bits do not ascend at %zu", p, i);
    return {};
}

/// Nested weights as quantizers leave them; the memory is the caller's.
///
/// Products add a correction per channel and precision: the output error on the mean input, sum over i of
/// (w_i - w_i at p bits) E[x_i]. So the codes only have to represent what varies with the input.
struct nested_storage_view {
    const std::uint8_t* codes = nullptr; ///< n x k, one `parent`-bit code per byte
    const half* scales = nullptr;        ///< n x ceil(k / 32)
    const half* corrections = nullptr;   ///< (parent - 1) x n, from 2 bits on; null: all 0
    std::size_t n = 0;                   ///< output channels
    std::size_t k = 0;                   ///< input channels
    nested_levels levels;

    /// Groups in a row.
    constexpr std::size_t groups() const noexcept { return (k + group_size - 1) / group_size; }
    /// Weight i of a row in units of its group's scale, at a precision.
    constexpr int value(std::size_t row, std::size_t i, int bits) const noexcept {
        return levels.table(bits)[static_cast<std::size_t>(codes[row * k + i] >> (levels.parent - bits))];
    }
    /// What is added to a row's output at a precision.
    constexpr half correction(std::size_t row, int bits) const noexcept {
        return corrections == nullptr
                   ? half{}
                   : corrections[static_cast<std::size_t>(bits - min_nested_bits) * n + row];
    }
    /// Weight i of a row at a precision.
    constexpr double weight(std::size_t row, std::size_t i, int bits) const noexcept {
        return double(to_float(scales[row * groups() + i / group_size])) * value(row, i, bits);
    }
};

} // namespace crumb::inline CRUMB_ABI
