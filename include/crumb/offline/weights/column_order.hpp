// The order in which error feedback takes the columns of a matrix.
#pragma once

#include <crumb/offline/weights/level_set.hpp>

#include <numeric>

namespace crumb::inline CRUMB_ABI {

/// Columns in blocks of 256, blocks in groups of 32: columns that share a scale stay together; the order
/// within groups, within blocks and of blocks is free. A ragged group is padded with positions without
/// column.
struct column_order {
    /// A block, 256 columns or what is left of them.
    struct part {
        std::size_t first = 0, groups = 0; ///< position of its first column; number of groups
        std::size_t block = 0;             ///< of the matrix
    };
    std::size_t k = 0;                 ///< columns
    std::vector<std::size_t> at;       ///< column at each position, k for none
    std::vector<std::size_t> group_at; ///< group at each 32 positions
    std::vector<part> parts;

    /// k columns in ascending order.
    static column_order ascending(std::size_t k) { return column_order(k, {}); }
    /// Blocks, groups and columns of largest mean energy first, equal ones ascending. `energy`: a finite
    /// number per column.
    static column_order by_energy(std::span<const double> energy) {
        return column_order(energy.size(), energy);
    }

  private:
    column_order(std::size_t columns, std::span<const double> energy) : k(columns) {
        constexpr std::size_t per_block = scale_block / group_size;
        const std::size_t groups = (k + group_size - 1) / group_size;
        for (const std::size_t b : sorted({0, (k + scale_block - 1) / scale_block}, scale_block, energy)) {
            const auto in_block =
                sorted({b * per_block, std::min((b + 1) * per_block, groups)}, group_size, energy);
            parts.push_back({at.size(), in_block.size(), b});
            for (const std::size_t g : in_block) {
                group_at.push_back(g);
                const std::size_t end = std::min((g + 1) * group_size, k);
                for (const std::size_t i : sorted({g * group_size, end}, 1, energy))
                    at.push_back(i);
                at.resize((at.size() + group_size - 1) / group_size * group_size, k);
            }
        }
    }

    /// The units of `size` columns each in order.
    static std::vector<std::size_t> sorted(range units, std::size_t size, std::span<const double> energy) {
        std::vector<std::size_t> order(units.size());
        std::iota(order.begin(), order.end(), units.begin);
        if (energy.empty())
            return order;
        std::vector<double> mean;
        for (const std::size_t u : order) {
            const auto own = energy.subspan(u * size, std::min(size, energy.size() - u * size));
            mean.push_back(std::accumulate(own.begin(), own.end(), 0.0) / static_cast<double>(own.size()));
        }
        std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            const double x = mean[a - units.begin], y = mean[b - units.begin];
            return x > y || (x == y && a < b);
        });
        return order;
    }
};

} // namespace crumb::inline CRUMB_ABI
