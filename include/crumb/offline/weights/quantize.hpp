// Round-to-nearest quantization of float matrices into a storage format.
#pragma once

#include <crumb/core/view.hpp>
#include <crumb/format/packed.hpp>

#include <cmath>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Weights in storage format, owned.
template <weight_format F>
struct quantized {
    std::vector<typename F::block> blocks; ///< row after row, ceil(k / block_inputs) blocks each
    std::size_t n = 0;
    std::size_t k = 0;
    std::vector<std::int8_t> codebooks; ///< of codebook formats

    /// As `pack` takes it; refers to this object.
    storage_view<F> view() const noexcept {
        return {blocks.data(), n, k, (k + block_inputs<F> - 1) / block_inputs<F>, codebooks};
    }
    /// The same.
    operator storage_view<F>() const noexcept { return view(); }
};

/// As `pack` of a view.
template <weight_format F>
result<packed_view<F>> pack(const quantized<F>& w, std::span<std::byte> buffer) noexcept {
    return pack(w.view(), buffer);
}

/// Rounds n x k weights to format `F`, block by block; padding of a ragged k is zero. Refuses NaN, infinity
/// and magnitudes whose scale exceeds fp16.
template <rounding_format F>
result<quantized<F>> quantize(const matrix_view<const float>& w) {
    constexpr std::size_t inputs = block_inputs<F>, groups = F::scales::block_groups;
    const std::size_t blocks = w.cols / inputs + (w.cols % inputs != 0);
    std::size_t all = 0;
    if (!multiply(w.rows, blocks, all) || all > (std::size_t{1} << 50) || (w.rows > 1 && w.stride < w.cols))
        return status::error(errc::bad_shape, "weights: %zu rows of %zu, %zu apart", w.rows, w.cols,
                             w.stride);
    quantized<F> q;
    q.n = w.rows;
    q.k = w.cols;
    q.blocks.resize(all);
    for (std::size_t r = 0; r < w.rows; ++r) {
        for (std::size_t b = 0; b < blocks; ++b) {
            float x[inputs] = {};
            for (std::size_t i = 0; i < inputs && b * inputs + i < w.cols; ++i) {
                x[i] = w.row(r)[b * inputs + i];
                if (!std::isfinite(x[i]))
                    return status::error(errc::not_finite, "weight (%zu, %zu) is not finite", r,
                                         b * inputs + i);
            }
            auto& block = q.blocks[r * blocks + b];
            F::encode(x, block);
            for (std::size_t g = 0; g < groups; ++g) {
                bool finite = is_finite(F::scale(block, g));
                if constexpr (has_minima<F>)
                    finite = finite && is_finite(F::minimum(block, g));
                if (!finite)
                    return status::error(
                        errc::not_finite,
                        "weights of row %zu, group %zu are too large for a half-precision scale", r,
                        b * groups + g);
            }
        }
    }
    return q;
}

} // namespace crumb::inline CRUMB_ABI
