// Tables of real numbers as tables of signed bytes.
#pragma once

#include <crumb/config.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

namespace crumb::inline CRUMB_ABI {

/// Writes at most 2 * largest + 1 ascending numbers t, times `scale`, to the nearest distinct ascending
/// integers within -largest .. largest: of equal ones the larger move up, and at the end the smaller move
/// down. `out` is as long as t.
inline void put_on_int8_grid(std::span<const double> t, double scale, std::span<std::int8_t> out,
                             int largest = 127) noexcept {
    int last = -largest - 1;
    for (std::size_t i = 0; i < t.size(); ++i) {
        const int highest = largest - static_cast<int>(t.size() - 1 - i);
        const double most = static_cast<double>(largest);
        const double x = std::clamp(t[i] * scale, -most, most);
        last = std::min(std::max(last + 1, static_cast<int>(std::lrint(x))), highest);
        out[i] = static_cast<std::int8_t>(last);
    }
}

} // namespace crumb::inline CRUMB_ABI
