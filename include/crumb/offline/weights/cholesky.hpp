// Cholesky factors whose bits depend on no compiler flag, ISA or number of threads.
#pragma once

#include <crumb/offline/common/weight_functions.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Factors a symmetric matrix A = U^T U, U upper triangular: A, of which the upper triangle is read, becomes
/// U; below the diagonal anything may stand then. n is a multiple of 16. False: A is not positive definite.
inline bool factor_cholesky(const dispatch::weight_functions& functions, double* a, std::size_t n) {
    constexpr std::size_t block = 32;
    for (std::size_t first = 0; first < n; first += block) {
        const std::size_t rows = std::min(block, n - first);
        // All rows above, then row after row.
        functions.subtract_product(
            {a + first, 1, n, a + first, n, a + first * n + first, n, rows, n - first, first});
        for (std::size_t i = first; i < first + rows; ++i) {
            double* own = a + i * n;
            const double* above = a + first * n;
            functions.subtract_product(
                {above + i, 1, n, above + first, n, own + first, n, 1, n - first, i - first});
            if (!(own[i] > 0) || !std::isfinite(own[i]))
                return false;
            const double d = std::sqrt(own[i]);
            own[i] = d;
            for (std::size_t j = i + 1; j < n; ++j)
                own[j] /= d;
        }
    }
    return true;
}

/// (U^T U)^-1 of a small factor.
inline std::vector<double> inverse_of_cholesky(const std::vector<double>& u, std::size_t n) {
    // Rows of U^-T, then their products.
    std::vector<double> v(n * n, 0.0), out(n * n, 0.0);
    for (std::size_t i = 0; i < n; ++i) {
        v[i * n + i] = 1;
        for (std::size_t p = 0; p < i; ++p)
            for (std::size_t j = 0; j <= p; ++j)
                v[i * n + j] -= rounded(u[p * n + i] * v[p * n + j]);
        for (std::size_t j = 0; j <= i; ++j)
            v[i * n + j] /= u[i * n + i];
    }
    for (std::size_t p = 0; p < n; ++p)
        for (std::size_t i = 0; i <= p; ++i)
            for (std::size_t j = 0; j <= p; ++j)
                out[i * n + j] += rounded(v[p * n + i] * v[p * n + j]);
    return out;
}

} // namespace crumb::inline CRUMB_ABI
