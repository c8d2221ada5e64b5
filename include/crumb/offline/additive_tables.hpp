// Additive codes: 256 centroids that are sums of one of 16 vectors and one of 16 others.
#pragma once

#include <crumb/offline/kmeans.hpp>

#include <Eigen/Cholesky>

namespace crumb::inline CRUMB_ABI {

/// Two tables of 16 vectors and how they came about.
struct additive_tables {
    static constexpr std::size_t entries = 16;

    std::size_t dims = 0;
    std::vector<float> low;     ///< [16][dims]
    std::vector<float> high;    ///< [16][dims]; the middle of each dimension's range is 0
    std::vector<double> errors; ///< mean weighted squared distance from the nearest sum, per round; falls
};

/// Trains both tables jointly: points go to the nearest of all 256 sums low[a] + high[b], and both tables
/// become the least-squares solution for these codes, in turns. Starts are (1) k-means, then k-means of what
/// it leaves; (2) in two dimensions, one table per dimension. After some rounds the better start goes on.
class additive_search {
  public:
    additive_search(const point_set& points, const kmeans_options& o) : p_(points), o_(o) {}

    /// Rows 0 to 15 low, 16 to 31 high, in the scaled space of the points.
    std::vector<double> run(point_set::planes& tables) {
        constexpr std::size_t trial = 4;
        tables = residual_start();
        auto errors = improve(tables, trial);
        if (p_.dims() == 2) {
            point_set::planes other = product_start();
            const auto others = improve(other, trial);
            if (others.back() < errors.back()) {
                tables = std::move(other);
                errors = others;
            }
        }
        const auto more = improve(tables, std::max(o_.most_rounds, trial) - trial);
        errors.insert(errors.end(), more.begin() + 1, more.end());
        // What one table loses the other gains: ranges around 0 leave the int8 grid the most room.
        const Eigen::Index size = additive_tables::entries;
        for (Eigen::Index i = 0; i < tables.cols(); ++i) {
            const auto high = tables.col(i).segment(size, size);
            const float middle = (high.minCoeff() + high.maxCoeff()) / 2;
            tables.col(i).segment(size, size) -= middle;
            tables.col(i).head(size) += middle;
        }
        return errors;
    }

    /// All 256 sums; that of code a + 16 b is in row a + 16 b.
    static point_set::planes sums(const point_set::planes& tables) {
        const Eigen::Index size = additive_tables::entries;
        point_set::planes out(size * size, tables.cols());
        for (Eigen::Index code = 0; code < out.rows(); ++code)
            out.row(code) = tables.row(code % size) + tables.row(size + code / size);
        return out;
    }

  private:
    kmeans_options start_options(std::uint64_t salt) const {
        kmeans_options o;
        o.centroids = additive_tables::entries;
        o.most_rounds = 40;
        o.tolerance = 1e-5;
        o.seed = o_.seed * 4 + salt;
        return o;
    }

    point_set::planes residual_start() const {
        const Eigen::Index size = additive_tables::entries;
        point_set::planes tables(2 * size, p_.values().cols()), part;
        kmeans_options o = start_options(1);
        (void)kmeans_search(p_, o).run(part);
        tables.topRows(size) = part;
        Eigen::ArrayXi nearest;
        Eigen::ArrayXf distance;
        (void)p_.assign(part, nearest, distance);
        point_set rest = p_;
        rest.subtract(part, nearest);
        o = start_options(2);
        (void)kmeans_search(rest, o).run(part);
        tables.bottomRows(size) = part;
        return tables;
    }

    point_set::planes product_start() const {
        const Eigen::Index size = additive_tables::entries;
        point_set::planes tables = point_set::planes::Zero(2 * size, 2);
        for (Eigen::Index i = 0; i < 2; ++i) {
            point_set::planes part;
            const point_set one = p_.dimension(i);
            const kmeans_options o = start_options(3);
            (void)kmeans_search(one, o).run(part);
            tables.col(i).segment(i * size, size) = part;
        }
        return tables;
    }

    /// Error before the first and after every round.
    std::vector<double> improve(point_set::planes& tables, std::size_t rounds) const {
        std::vector<double> errors;
        point_set::planes now = tables;
        Eigen::ArrayXi nearest;
        Eigen::ArrayXf distance;
        for (std::size_t round = 0;; ++round) {
            const double error = p_.in_units(p_.assign(sums(now), nearest, distance));
            if (!errors.empty() && !(error < errors.back()))
                break;
            const bool done = round == rounds || (round != 0 && error > errors.back() * (1 - o_.tolerance));
            errors.push_back(error);
            tables = now;
            if (done)
                break;
            solve(nearest, now);
        }
        return errors;
    }

    /// Least squares: entry e of the 32 has the equation sum over f of n(e, f) t[f] = sum of the points of e,
    /// where n counts the points whose codes have both. A constant can move between the tables, and entries
    /// may be unused: a small pull towards what they are decides.
    void solve(const Eigen::ArrayXi& nearest, point_set::planes& tables) const {
        const int size = static_cast<int>(additive_tables::entries);
        Eigen::MatrixXd counts = Eigen::MatrixXd::Zero(2 * size, 2 * size);
        Eigen::MatrixXd right = Eigen::MatrixXd::Zero(2 * size, tables.cols());
        for (Eigen::Index r = 0; r < static_cast<Eigen::Index>(p_.size()); ++r) {
            const double w = double{p_.weights()[r]};
            const Eigen::Index a = nearest[r] % size, b = size + nearest[r] / size;
            counts(a, a) += w;
            counts(b, b) += w;
            counts(a, b) += w;
            counts(b, a) += w;
            for (Eigen::Index i = 0; i < tables.cols(); ++i) {
                right(a, i) += w * double{p_.values()(r, i)};
                right(b, i) += w * double{p_.values()(r, i)};
            }
        }
        const double pull = 1e-6 * (1 + counts.trace() / (2 * size));
        counts.diagonal().array() += pull;
        right += pull * tables.cast<double>().matrix();
        tables = counts.ldlt().solve(right).cast<float>();
    }

    const point_set& p_;
    const kmeans_options& o_;
};

/// Trains tables for the n rows of `x`; of the options, `centroids` does not count. Weights and metric as in
/// `point_set::make`.
inline result<additive_tables> train_additive_tables(const matrix_view<const float>& x,
                                                     const kmeans_options& options = {},
                                                     std::span<const float> weights = {},
                                                     std::span<const float> metric = {}) {
    const auto points = point_set::make(x, weights, metric);
    if (!points)
        return points.error();
    point_set::planes tables;
    additive_tables out;
    out.errors = additive_search(*points, options).run(tables);
    out.dims = x.cols;
    const Eigen::Index size = additive_tables::entries;
    out.low = points->restored(tables.topRows(size));
    // The points' mean belongs to one of the tables only.
    out.high = points->restored(tables.bottomRows(size), false);
    return out;
}

} // namespace crumb::inline CRUMB_ABI
