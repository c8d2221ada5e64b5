// Nested weights at one precision as stored blocks of a flat format, which the other references read.
#pragma once

#include <crumb/format/codebook.hpp>
#include <crumb/format/nested_levels.hpp>
#include <crumb/format/packed.hpp>

#include <array>
#include <vector>

namespace crumb::inline CRUMB_ABI::reference {

/// The format: indices into one table of 2^Bits levels, a half per group.
template <int Bits>
struct nested_block : codebook_group<Bits, 0> {
    static constexpr const char* name = "nested_block";
};

/// The upper `Bits` bits of all codes.
template <int Bits>
struct flat_nested {
    std::size_t n = 0;
    std::size_t k = 0;
    std::vector<typename nested_block<Bits>::block> blocks;
    std::array<std::int8_t, 16> levels = {};

    /// Of all weights at `Bits` bits.
    explicit flat_nested(const nested_storage_view& w) : n(w.n), k(w.k), blocks(w.n * w.groups()) {
        for (std::size_t i = 0; i < w.levels.table(Bits).size(); ++i)
            levels[i] = w.levels.table(Bits)[i];
        for (std::size_t r = 0; r < n; ++r) {
            for (std::size_t g = 0; g < w.groups(); ++g) {
                int code[group_size] = {};
                for (std::size_t i = 0; i < group_size && g * group_size + i < k; ++i)
                    code[i] = w.codes[r * k + g * group_size + i] >> (w.levels.parent - Bits);
                nested_block<Bits>::set(blocks[r * w.groups() + g], w.scales[r * w.groups() + g], code);
            }
        }
    }
    /// The weights; refers to this object.
    storage_view<nested_block<Bits>> view() const noexcept {
        return *storage<nested_block<Bits>>(blocks, n, k, levels);
    }
};

} // namespace crumb::inline CRUMB_ABI::reference
