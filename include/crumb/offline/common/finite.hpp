// Refuses matrices and vectors with NaN or infinity.
#pragma once

#include <crumb/core/status.hpp>
#include <crumb/core/view.hpp>

#include <cmath>
#include <limits>
#include <span>

namespace crumb::inline CRUMB_ABI {

/// Refuses NaN and infinity; the message calls the matrix `name`.
inline status check_finite(const matrix_view<const float>& m, const char* name) noexcept {
    for (std::size_t r = 0; r < m.rows; ++r) {
        bool finite = true;
        for (std::size_t c = 0; c < m.cols; ++c)
            finite &= std::fabs(m.row(r)[c]) <= std::numeric_limits<float>::max();
        if (!finite)
            return status::error(errc::not_finite, "%s: row %zu has a value that is not finite", name, r);
    }
    return {};
}
template <class T>
status check_finite(std::span<const T> v, const char* name) noexcept {
    for (std::size_t i = 0; i < v.size(); ++i)
        if (!std::isfinite(v[i]))
            return status::error(errc::not_finite, "%s: value %zu is not finite", name, i);
    return {};
}

} // namespace crumb::inline CRUMB_ABI
