// The quantizers' view of group-quantized weights: weight = d(group) * level[selector(group)][index].
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/core/status.hpp>
#include <crumb/core/view.hpp>
#include <crumb/format/traits.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Inputs of a row that share an exponent (`scale_kind::byte`), and that error feedback takes at a time.
inline constexpr std::size_t scale_block = block_scales::block_groups * group_size;

/// How the scale d of a group is stored.
enum class scale_kind : std::uint8_t {
    half, ///< fp16; its low mantissa bits are the selector as well as part of the number
    byte  ///< d = 2^E b: E per block of 256 inputs, b a signed byte whose low bits are the selector
};

/// Tables of levels and the kind of their scales: codebooks, or the evenly spaced levels of uniform formats.
struct level_set {
    static constexpr std::size_t max_levels = 256;

    std::size_t entries = 0;    ///< levels per table, at most 256
    unsigned selector_bits = 0; ///< 2^selector_bits tables
    scale_kind scales = scale_kind::half;
    std::array<std::int8_t, max_levels> levels = {}; ///< table after table, each ascending

    /// Tables of the set.
    constexpr std::size_t tables() const noexcept { return std::size_t{1} << selector_bits; }
    /// The levels of a table, ascending.
    constexpr std::span<const std::int8_t> table(std::size_t selector) const noexcept {
        return {levels.data() + selector * entries, entries};
    }
    friend constexpr bool operator==(const level_set&, const level_set&) = default;
};

/// Evenly spaced levels first, first + step, ...; half-precision scales without a selector. Q4_0 is
/// uniform_levels(-8, 1, 16), Q8_0 is (-127, 1, 255), symmetric 2 bits are (-3, 2, 4).
constexpr level_set uniform_levels(int first, int step, std::size_t entries) noexcept {
    CRUMB_REQUIRE(entries <= level_set::max_levels, "uniform levels: %zu of them", entries);
    level_set s;
    s.entries = entries;
    for (std::size_t i = 0; i < entries; ++i)
        s.levels[i] = static_cast<std::int8_t>(first + step * static_cast<int>(i));
    return s;
}

/// Whether quantizers can use a set: 2 to 256 ascending levels per table, at most 256 in all.
inline status check_levels(const level_set& s) noexcept {
    if (s.entries < 2 || s.selector_bits > 4 || s.entries * s.tables() > level_set::max_levels)
        return status::error(errc::invalid_argument, "level set: %zu levels with %u selector bits", s.entries,
                             s.selector_bits);
    for (std::size_t t = 0; t < s.tables(); ++t)
        for (std::size_t i = 1; i < s.entries; ++i)
            if (s.table(t)[i] <= s.table(t)[i - 1])
                return status::error(errc::invalid_argument, "level set: table %zu does not ascend at %zu", t,
                                     i);
    return {};
}

/// A scale that a format can store: its number and its bits, selector included.
struct stored_scale {
    float d = 0;
    std::uint16_t bits = 0; ///< of the fp16 number, or of b
};

/// The finite fp16 number nearest to `d` among those whose low bits are `selector`.
inline stored_scale nearest_half_scale(float d, unsigned selector, unsigned selector_bits) noexcept {
    const unsigned mask = (1u << selector_bits) - 1u;
    const unsigned max = (0x7bffu & ~mask) | selector;
    const unsigned sign = std::signbit(d) ? 0x8000u : 0u;
    const unsigned magnitude = std::min(to_half(std::fabs(d)).bits & 0x7fffu, 0x7bffu);
    stored_scale best;
    float error = std::numeric_limits<float>::infinity();
    for (int step = -1; step <= 1; ++step) {
        const int bits = static_cast<int>((magnitude & ~mask) | selector) + step * static_cast<int>(mask + 1);
        if (bits < 0 || bits > static_cast<int>(max))
            continue;
        const half h{static_cast<std::uint16_t>(sign | static_cast<unsigned>(bits))};
        if (const float e = std::fabs(to_float(h) - d); e < error) {
            best = {to_float(h), h.bits};
            error = e;
        }
    }
    return best;
}

/// Quantized weights as arrays, from which storage formats write their blocks.
struct leveled_matrix {
    std::size_t n = 0, k = 0;
    std::vector<std::uint8_t> index; ///< n x k
    std::vector<std::uint16_t>
        scale; ///< n x groups: bits of the fp16 number, or the byte b; selector included
    std::vector<std::int8_t> exponent; ///< n x blocks of 256, of `scale_kind::byte` only
    level_set levels;

    /// Groups of 32 in a row.
    std::size_t groups() const noexcept { return (k + group_size - 1) / group_size; }
    /// Blocks of 256 in a row.
    std::size_t blocks() const noexcept { return (k + scale_block - 1) / scale_block; }
    /// The table of a group.
    unsigned selector(std::size_t row, std::size_t group) const noexcept {
        return scale[row * groups() + group] & ((1u << levels.selector_bits) - 1u);
    }
    /// Scale of a group.
    float d(std::size_t row, std::size_t group) const noexcept {
        const std::uint16_t bits = scale[row * groups() + group];
        if (levels.scales == scale_kind::half)
            return to_float(half{bits});
        return std::ldexp(static_cast<float>(static_cast<std::int8_t>(bits)),
                          exponent[row * blocks() + group * group_size / scale_block]);
    }
    /// Weight i of a row.
    float weight(std::size_t row, std::size_t i) const noexcept {
        const std::size_t g = i / group_size;
        return d(row, g) * static_cast<float>(levels.table(selector(row, g))[index[row * k + i]]);
    }
    /// All zeros; every index is 0.
    static leveled_matrix zeros(const level_set& levels, std::size_t n, std::size_t k) {
        leveled_matrix m;
        m.n = n;
        m.k = k;
        m.levels = levels;
        m.index.resize(n * k);
        m.scale.resize(n * m.groups());
        if (levels.scales == scale_kind::byte)
            m.exponent.resize(n * m.blocks());
        return m;
    }
};

} // namespace crumb::inline CRUMB_ABI
