// The coordinates in which keys or values of a head are quantized best.
#pragma once

#include <crumb/config.hpp>

#include <Eigen/Eigenvalues>

#include <algorithm>
#include <cmath>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// A change of coordinates, x' = to x and x = back x'. With M the second moments of what x is multiplied with
/// (queries, or rows of the output matrix) and C the covariance of x in a block of tokens, W = M^(1/2) makes
/// an error count as much as its square is long, and the eigenvectors of W C W make channels uncorrelated
/// (Karhunen and Loeve). All sub-spaces have equally many codes, so strong channels share one with weak ones:
/// the product of their variances is about the same in all.
struct kv_turn {
    Eigen::MatrixXd to, back;

    /// `moments` M and `covariance` C, each up to a factor; `dims`: channels of a sub-space, a divisor of
    /// theirs. A thousandth of the identity is added to M, so that directions that nothing was in keep a
    /// weight.
    static kv_turn of(const Eigen::MatrixXd& moments, const Eigen::MatrixXd& covariance, std::size_t dims) {
        using matrix = Eigen::MatrixXd;
        const Eigen::Index n = moments.rows();
        const double trace = moments.trace();
        matrix m = moments * (trace > 0 ? static_cast<double>(n) / trace : 1.0);
        m.diagonal().array() += 1e-3;
        // All products are of plain matrices: each further kind of expression takes the compiler seconds.
        const Eigen::SelfAdjointEigenSolver<matrix> of_m(m);
        const matrix& v = of_m.eigenvectors();
        const matrix across = v.transpose();
        matrix by_root = v, by_inverse = v;
        for (Eigen::Index c = 0; c < n; ++c) {
            const double root = std::sqrt(std::max(of_m.eigenvalues()[c], 1e-6));
            by_root.col(c) *= root;
            by_inverse.col(c) *= 1 / root;
        }
        const matrix w = by_root * across, inverse = by_inverse * across, wc = w * covariance, wcw = wc * w;
        // Eigenvalues rise.
        const Eigen::SelfAdjointEigenSolver<matrix> of_c(wcw);
        const std::vector<Eigen::Index> order = paired(n, static_cast<Eigen::Index>(dims));
        matrix axes(n, n);
        for (Eigen::Index i = 0; i < n; ++i)
            axes.col(i) = of_c.eigenvectors().col(order[static_cast<std::size_t>(i)]);
        const matrix axes_across = axes.transpose();
        return {axes_across * w, inverse * axes};
    }

  private:
    /// Where the i-th channel comes from among n that are sorted by variance: each sub-space takes one of
    /// every n / dims, in turns from either end.
    static std::vector<Eigen::Index> paired(Eigen::Index n, Eigen::Index dims) {
        std::vector<Eigen::Index> out(static_cast<std::size_t>(n));
        const Eigen::Index groups = n / dims;
        for (Eigen::Index r = 0; r < dims; ++r)
            for (Eigen::Index g = 0; g < groups; ++g)
                out[static_cast<std::size_t>(g * dims + r)] = r * groups + (r % 2 != 0 ? groups - 1 - g : g);
        return out;
    }
};

} // namespace crumb::inline CRUMB_ABI
