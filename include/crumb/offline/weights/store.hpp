// From the quantizers' levels and scales to storage formats.
#pragma once

#include <crumb/offline/weights/error_feedback.hpp>
#include <crumb/offline/weights/quantize.hpp>

namespace crumb::inline CRUMB_ABI {

/// The levels of a format's codes, with its table set if it needs one.
template <weight_format F>
level_set levels_of(std::span<const std::int8_t> codebooks = {}) {
    if constexpr (codebook_entries<F> != 0) {
        using codes = typename F::codes;
        if constexpr (!needs_codebooks<F>)
            codebooks = F::codebooks;
        CRUMB_REQUIRE(codebooks.size() == codebook_entries<F>, "levels of format %s: %zu entries, not %zu",
                      F::name, codebooks.size(), codebook_entries<F>);
        level_set s;
        s.entries = std::size_t{1} << codes::bits;
        s.selector_bits = codes::selector_bits;
        s.scales = F::scales::block_groups == 1 ? scale_kind::half : scale_kind::byte;
        for (std::size_t t = 0; t < s.tables(); ++t)
            for (std::size_t i = 0; i < s.entries; ++i)
                s.levels[t * s.entries + i] =
                    codebooks[codes::entry(static_cast<int>(i), static_cast<unsigned>(t))];
        return s;
    } else {
        constexpr int min = std::max(F::codes::minimum - code_offset_of<F>, -127);
        return uniform_levels(min, 1,
                              static_cast<std::size_t>(F::codes::maximum - code_offset_of<F> - min + 1));
    }
}

/// The table set for plans, from trained levels.
template <weight_format F>
std::vector<std::int8_t> codebooks_of(const level_set& s) {
    std::vector<std::int8_t> entries(codebook_entries<F>);
    for (std::size_t t = 0; t < s.tables(); ++t)
        for (std::size_t i = 0; i < s.entries; ++i)
            entries[F::codes::entry(static_cast<int>(i), static_cast<unsigned>(t))] = s.table(t)[i];
    return entries;
}

/// The choices of a quantizer as blocks of a format.
template <weight_format F>
quantized<F> store(const leveled_matrix& q) {
    constexpr std::size_t per_block = F::scales::block_groups;
    CRUMB_REQUIRE(q.index.size() == q.n * q.k && q.scale.size() == q.n * q.groups(),
                  "store: %zu codes and %zu scales for %zu x %zu weights", q.index.size(), q.scale.size(),
                  q.n, q.k);
    quantized<F> out;
    out.n = q.n;
    out.k = q.k;
    const std::size_t row_blocks = (q.k + block_inputs<F> - 1) / block_inputs<F>;
    out.blocks.resize(q.n * row_blocks);
    if constexpr (needs_codebooks<F>)
        out.codebooks = codebooks_of<F>(q.levels);
    for (std::size_t r = 0; r < q.n; ++r) {
        for (std::size_t g = 0; g < row_blocks * per_block; ++g) {
            int code[group_size] = {};
            typename F::scales::value scale{};
            if (g < q.groups()) {
                const std::uint16_t bits = q.scale[r * q.groups() + g];
                if constexpr (per_block == 1)
                    scale = half{bits};
                else
                    scale = {static_cast<std::uint8_t>(127 + q.exponent[r * q.blocks() + g / per_block]),
                             static_cast<std::int8_t>(bits)};
                for (std::size_t i = 0; i < group_size && g * group_size + i < q.k; ++i) {
                    const std::uint8_t index = q.index[r * q.k + g * group_size + i];
                    code[i] = codebook_entries<F> != 0 ? index : q.levels.levels[index];
                }
            } else if constexpr (per_block != 1) {
                scale.exponent = static_cast<std::uint8_t>(127 + q.exponent[r * q.blocks() + g / per_block]);
            }
            F::set(out.blocks[r * row_blocks + g / per_block], scale, code, g % per_block);
        }
    }
    return out;
}

/// Quantizes n x k weights without error feedback: least squares per group, weighted by the importance of
/// each column (empty: equal), and every row keeps its length (see `error_feedback::independent`). Formats
/// with `encode` use that instead. Refuses NaN and infinity.
template <weight_format F>
result<quantized<F>> quantize(const matrix_view<const float>& w, std::span<const std::int8_t> codebooks,
                              std::span<const float> importance = {}) {
    if constexpr (rounding_format<F>) {
        return quantize<F>(w);
    } else {
        if (codebooks.size() != codebook_entries<F>)
            return status::error(errc::invalid_argument, "format %s takes %zu codebook entries, got %zu",
                                 F::name, codebook_entries<F>, codebooks.size());
        const auto quantizer = error_feedback::independent(w.cols, importance);
        if (!quantizer)
            return quantizer.error();
        leveled_matrix q = leveled_matrix::zeros(levels_of<F>(codebooks), w.rows, w.cols);
        if (const status s = quantizer->quantize(w, q); !s)
            return s;
        return store<F>(q);
    }
}

} // namespace crumb::inline CRUMB_ABI
