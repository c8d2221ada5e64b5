// Stored weights as views: rows of blocks, and the tables that their codes stand for.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/core/view.hpp>
#include <crumb/format/traits.hpp>

#include <array>
#include <limits>

namespace crumb::inline CRUMB_ABI {

/// The number of entries in the table set of a format: 0 if its codes are weights themselves.
template <weight_format F>
inline constexpr std::size_t codebook_entries = [] {
    if constexpr (has_indexed_codes<F>)
        return F::codes::table_entries;
    else
        return std::size_t{0};
}();

/// Whether the user has to bring the codebooks of a format.
template <weight_format F>
inline constexpr bool needs_codebooks = codebook_entries<F> != 0 && !has_table<F>;

/// The lookup tables of a format's indices. If nibbles are two indices without a selector, there are two
/// tables, for the upper and the lower index of a nibble. With indices of 2 bits and a selector, the second
/// table has the selector in the upper two bits of a nibble.
template <weight_format F>
constexpr auto lookup_tables([[maybe_unused]] std::span<const std::int8_t> codebooks) noexcept {
    if constexpr (codebook_entries<F> == 0) {
        return std::array<std::int8_t, 0>{};
    } else {
        using codes = typename F::codes;
        constexpr std::size_t entries = codebook_entries<F>;
        std::array<std::int8_t, 2 * entries> tables{};
        if constexpr (!needs_codebooks<F>)
            codebooks = F::codebooks;
        for (std::size_t i = 0; i < entries && i < codebooks.size(); ++i) {
            tables[i] = codebooks[codes::paired ? i / 4 : i];
            tables[entries + i] = codebooks[codes::paired      ? i % 4
                                            : codes::bits == 2 ? 4 * (i % 4) + i / 4
                                                               : i];
        }
        return tables;
    }
}

/// The largest magnitude that an entry of a format's table stands for.
template <weight_format F>
constexpr float largest_entry() noexcept {
    float most = 0;
    for (const std::int8_t entry : F::codebooks) {
        const float magnitude = float(entry < 0 ? -entry : entry);
        most = magnitude > most ? magnitude : most;
    }
    return most * table_unit_of<F>;
}

/// Whether a group with this scale has finite weights, before its minimum and the tensor's scale.
template <weight_format F>
constexpr bool has_finite_weights(typename F::scales::value scale) noexcept {
    if (!is_finite(scale))
        return false;
    // Exponents reach further than their tables' entries may.
    if constexpr (std::same_as<typename F::scales::value, e8m0>) {
        return to_float(scale) <= std::numeric_limits<float>::max() / largest_entry<F>();
    } else {
        return true;
    }
}

/// Whether the scale of a tensor leaves all of its weights finite, whatever their own scales are.
template <has_tensor_scale F>
constexpr bool has_finite_weights(float tensor_scale) noexcept {
    static_assert(std::same_as<typename F::scales::value, ue4m3>);
    const float limit = std::numeric_limits<float>::max() / (largest_entry<F>() * to_float(ue4m3{0x7e}));
    return -limit <= tensor_scale && tensor_scale <= limit;
}

/// Weights in storage order: row n (an output channel) is ceil(k / block_inputs) consecutive blocks, `stride`
/// blocks apart. Padding after k in the last block of a row is ignored.
template <weight_format F>
struct storage_view {
    const typename F::block* blocks = nullptr;
    std::size_t n = 0;      ///< output channels
    std::size_t k = 0;      ///< input channels
    std::size_t stride = 0; ///< blocks from one row to the next, at least ceil(k / block_inputs)
    std::span<const std::int8_t> codebooks = {}; ///< to read weights of codebook formats
    float tensor_scale = 1;                      ///< of formats that have one

    static constexpr std::size_t group_inputs = F::scales::group; ///< inputs that share a scale
    /// Groups in a row.
    constexpr std::size_t groups() const noexcept { return (k + group_inputs - 1) / group_inputs; }
    /// The block that holds a group.
    constexpr const typename F::block& block(std::size_t row, std::size_t group) const noexcept {
        return blocks[row * stride + group / F::scales::block_groups];
    }
    /// Scale of a row's group.
    constexpr auto scale(std::size_t row, std::size_t group) const noexcept {
        return F::scale(block(row, group), group % F::scales::block_groups);
    }
    /// What a group begins at, of formats that have minima.
    constexpr auto minimum(std::size_t row, std::size_t group) const noexcept
    requires has_minima<F>
    {
        return F::minimum(block(row, group), group % F::scales::block_groups);
    }
    /// Code of weight i of a row.
    constexpr int code(std::size_t row, std::size_t i) const noexcept {
        return F::code(block(row, i / group_inputs), i % block_inputs<F>);
    }
    /// The value of weight i's code: itself or an entry of a table.
    constexpr int value(std::size_t row, std::size_t i) const noexcept {
        const int c = code(row, i);
        if constexpr (needs_codebooks<F>)
            return codebooks[F::codes::entry(c, selector(row, i / group_inputs))];
        else if constexpr (has_indexed_codes<F>)
            return F::codebooks[F::codes::entry(c, selector(row, i / group_inputs))];
        else if constexpr (has_table<F>)
            return F::codebooks[c];
        else
            return c;
    }
    /// Weight i of a row.
    constexpr double weight(std::size_t row, std::size_t i) const noexcept {
        const std::size_t group = i / group_inputs;
        double w = double(to_float(scale(row, group))) * value(row, i);
        if constexpr (table_unit_of<F> != 1.0f)
            w *= double(table_unit_of<F>);
        if constexpr (has_minima<F>)
            w += double(to_float(minimum(row, group)));
        if constexpr (has_tensor_scale<F>)
            w *= double(tensor_scale);
        return w;
    }

  private:
    constexpr unsigned selector(std::size_t row, std::size_t group) const noexcept {
        if constexpr (F::codes::selector_bits == 0)
            return 0;
        else
            return F::selector(block(row, group), group % F::scales::block_groups);
    }
};

/// A view of n x k weights whose rows follow each other without a gap, as in a GGUF tensor: n output
/// channels, k inputs, n ceil(k / block_inputs) blocks, which is checked. `codebooks`: to read weights of
/// codebook formats.
template <weight_format F>
result<storage_view<F>> storage(std::span<const typename F::block> blocks, std::size_t n, std::size_t k,
                                std::span<const std::int8_t> codebooks = {}) noexcept {
    const std::size_t row = k / block_inputs<F> + (k % block_inputs<F> != 0 ? 1 : 0);
    std::size_t needed = 0;
    if (!multiply(n, row, needed) || blocks.size() != needed)
        return status::error(errc::bad_shape,
                             "stored weights: %zu blocks of format %s, %zu rows of %zu inputs take %zu each",
                             blocks.size(), F::name, n, k, row);
    return storage_view<F>{blocks.data(), n, k, row, codebooks};
}

} // namespace crumb::inline CRUMB_ABI
