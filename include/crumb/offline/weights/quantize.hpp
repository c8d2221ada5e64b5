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
    std::vector<std::int8_t> codebooks; ///< of formats that need them

    operator storage_view<F>() const noexcept { return storage<F>(blocks.data(), n, k, codebooks); }
};

/// Rounds n x k weights to format `F`, group by group; surplus weights of a ragged k count as zero. Refuses
/// NaN, infinity and magnitudes whose scale does not fit a half.
template <rounding_format F>
result<quantized<F>> quantize(const matrix_view<const float>& w) {
    const std::size_t groups = (w.cols + group_size - 1) / group_size;
    quantized<F> q;
    q.n = w.rows;
    q.k = w.cols;
    q.blocks.resize(w.rows * groups);
    for (std::size_t r = 0; r < w.rows; ++r) {
        for (std::size_t g = 0; g < groups; ++g) {
            float x[group_size] = {};
            for (std::size_t i = 0; i < group_size && g * group_size + i < w.cols; ++i) {
                x[i] = w.row(r)[g * group_size + i];
                if (!std::isfinite(x[i]))
                    return status::error(errc::not_finite, "weight (%zu, %zu) is not finite", r,
                                         g * group_size + i);
            }
            auto& block = q.blocks[r * groups + g];
            F::encode(x, block);
            if (!is_finite(F::scale(block, 0)))
                return status::error(errc::not_finite,
                                     "weights of row %zu, group %zu are too large for a half-precision scale",
                                     r, g);
        }
    }
    return q;
}

} // namespace crumb::inline CRUMB_ABI
