// Nested weights that own their memory.
#pragma once

#include <crumb/format/nested_levels.hpp>

#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Nested weights to be filled by quantizers.
struct nested_quantized {
    std::size_t n = 0;
    std::size_t k = 0;
    std::vector<std::uint8_t> codes; ///< n x k, one code per byte
    std::vector<half> scales;        ///< n x ceil(k / 32)
    std::vector<half> corrections;   ///< (parent - 1) x n
    nested_levels levels;

    /// Groups in a row.
    std::size_t groups() const noexcept { return (k + group_size - 1) / group_size; }
    /// As `pack` takes it; refers to this object.
    operator nested_storage_view() const noexcept {
        return {codes.data(), scales.data(), corrections.data(), n, k, levels};
    }
    /// All codes, scales and corrections 0.
    static nested_quantized zeros(const nested_levels& levels, std::size_t n, std::size_t k) {
        nested_quantized q;
        q.n = n;
        q.k = k;
        q.levels = levels;
        q.codes.resize(n * k);
        q.scales.resize(n * q.groups());
        q.corrections.resize(n * static_cast<std::size_t>(levels.parent - 1));
        return q;
    }
};

} // namespace crumb::inline CRUMB_ABI
