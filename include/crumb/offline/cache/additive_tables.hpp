// Additive codes: 256 centroids that are sums of one of 16 vectors and one of 16 others.
#pragma once

#include <crumb/offline/common/kmeans.hpp>

#include <Eigen/Cholesky>

namespace crumb::inline CRUMB_ABI {

/// Two tables of 16 vectors, and their errors during training.
struct additive_tables {
    static constexpr std::size_t entries = 16;

    std::size_t dims = 0;
    std::vector<float> low;     ///< [16][dims]
    std::vector<float> high;    ///< [16][dims]; the middle of each dimension's range is 0
    std::vector<double> errors; ///< mean weighted squared distance from the nearest sum, per round; falls
};

/// Trains both tables jointly: points go to the nearest of all 256 sums low[a] + high[b], and both tables
/// become the least-squares solution for these codes, alternating. Starts are (1) k-means, then k-means of
/// its residuals; (2) in two dimensions, one table per dimension. Both try some rounds on some of the points;
/// the better one goes on with more and ends with all.
class additive_search {
  public:
    /// Over points, which outlive it.
    additive_search(const point_set& points, const kmeans_options& o) : p_(points), o_(o) {}

    /// Rows 0 to 15 low, 16 to 31 high, in the scaled space of the points.
    std::vector<double> run(point_set::planes& tables) {
        {
            const point_set some = p_.some(trial_points);
            additive_search trial(some, o_);
            tables = trial.residual_start();
            const double error = trial.improve(tables, trial_rounds).back();
            if (p_.dims() == 2) {
                point_set::planes other = trial.product_start();
                if (trial.improve(other, trial_rounds).back() < error)
                    tables = std::move(other);
            }
        }
        if (const point_set some = p_.some(max_points); some.size() < p_.size())
            (void)additive_search(some, o_).improve(tables, o_.max_rounds);
        auto errors = improve(tables, p_.size() > max_points ? last_rounds : o_.max_rounds);
        // A constant may move between the tables: ranges around 0 use the int8 grid best.
        const Eigen::Index size = additive_tables::entries;
        for (Eigen::Index i = 0; i < tables.cols(); ++i) {
            const auto high = tables.col(i).segment(size, size);
            const float middle = (high.minCoeff() + high.maxCoeff()) / 2;
            tables.col(i).segment(size, size) -= middle;
            tables.col(i).head(size) += middle;
        }
        return errors;
    }

  private:
    using batch = point_set::batch;
    static constexpr Eigen::Index width = point_set::width, lanes = point_set::lanes;
    static constexpr Eigen::Index vectors = 4; ///< of points at once, against the latency of minima
    static constexpr float momentum = 0.9f;
    static constexpr std::size_t trial_points = 2048, trial_rounds = 6, max_points = 4096, last_rounds = 5;

    kmeans_options start_options(std::uint64_t salt) const {
        kmeans_options o;
        o.centroids = additive_tables::entries;
        o.max_rounds = 20;
        o.tolerance = 1e-3;
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

    /// Error before the first and after every round. A round extrapolates: it moves beyond the solution in
    /// the same direction as long as that helps, since codes follow the tables slowly.
    std::vector<double> improve(point_set::planes& tables, std::size_t rounds) const {
        std::vector<double> errors;
        point_set::planes now = tables, solution;
        Eigen::ArrayXi nearest;
        Eigen::ArrayXf distance;
        bool beyond = false;
        for (std::size_t round = 0;; ++round) {
            const double error = p_.in_units(assign(now, nearest, distance));
            if (!errors.empty() && !(error < errors.back())) {
                if (!beyond || round >= rounds)
                    break;
                now = solution;
                beyond = false;
                continue;
            }
            const bool done = round >= rounds || (round != 0 && error > errors.back() * (1 - o_.tolerance));
            errors.push_back(error);
            tables = now;
            if (done)
                break;
            const point_set::planes last = round == 0 ? now : solution;
            solution = now;
            solve(nearest, solution);
            now = solution + momentum * (solution - last);
            beyond = true;
        }
        return errors;
    }

    /// As point_set::assign to all 256 sums; code a + 16 b is low[a] + high[b]. With
    ///     |y - l - h|^2 = |y|^2 + (|l|^2 - 2 y l) + (|h|^2 - 2 y h) + 2 l h
    /// a sum costs an addition and a minimum, whose b is kept; then the nearest low[a] to y - high[b] is
    /// sought by its distance.
    double assign(const point_set::planes& tables, Eigen::ArrayXi& nearest, Eigen::ArrayXf& distance) const {
        constexpr Eigen::Index size = additive_tables::entries;
        const Eigen::Index dims = tables.cols(), all = p_.values().rows();
        nearest.resize(all);
        distance.resize(all);
        const Eigen::ArrayXf squares = tables.square().rowwise().sum();
        const point_set::planes factors = -2 * tables;
        float products[size * size * width];
        for (Eigen::Index n = 0; n < size * size; ++n) {
            const float twice = 2 * (tables.row(n % size) * tables.row(size + n / size)).sum();
            std::fill_n(products + n * width, width, twice);
        }
        double error = 0;
        for (Eigen::Index block = 0; block < p_.blocks(); ++block) {
            for (Eigen::Index r = block * lanes; r < (block + 1) * lanes; r += vectors * width) {
                batch part[2 * size][vectors];
                for (Eigen::Index i = 0; i < dims; ++i) {
                    batch y[vectors];
                    CRUMB_UNROLL
                    for (Eigen::Index v = 0; v < vectors; ++v)
                        y[v] = batch::load_unaligned(&p_.values()(r + v * width, i));
                    for (Eigen::Index e = 0; e < 2 * size; ++e) {
                        const batch t(factors(e, i)), square(squares[e]);
                        CRUMB_UNROLL
                        for (Eigen::Index v = 0; v < vectors; ++v)
                            part[e][v] = t * y[v] + (i == 0 ? square : part[e][v]);
                    }
                }
                best_highs(part, products, r, nearest);
            }
            for (Eigen::Index r = block * lanes; r < (block + 1) * lanes; r += width)
                best_lows(tables, r, nearest, distance);
            error += p_.weighted(block, distance);
        }
        return error;
    }
    /// The b of some registers of points.
    static void best_highs(const batch (*part)[vectors], const float* products, Eigen::Index r,
                           Eigen::ArrayXi& nearest) {
        constexpr Eigen::Index size = additive_tables::entries;
        const batch max(std::numeric_limits<float>::infinity());
        batch best[vectors], which[vectors];
        CRUMB_UNROLL
        for (Eigen::Index v = 0; v < vectors; ++v) {
            best[v] = max;
            which[v] = batch(0.0f);
        }
        for (Eigen::Index b = 0; b < size; ++b) {
            batch min[vectors];
            CRUMB_UNROLL
            for (batch& l : min)
                l = max;
            CRUMB_UNROLL
            for (Eigen::Index a = 0; a < size; ++a, products += width) {
                const batch product = batch::load_unaligned(products);
                CRUMB_UNROLL
                for (Eigen::Index v = 0; v < vectors; ++v)
                    min[v] = xsimd::min(part[a][v] + product, min[v]);
            }
            CRUMB_UNROLL
            for (Eigen::Index v = 0; v < vectors; ++v) {
                const batch sum = min[v] + part[size + b][v];
                which[v] = xsimd::select(sum < best[v], batch(static_cast<float>(b)), which[v]);
                best[v] = xsimd::min(sum, best[v]);
            }
        }
        for (Eigen::Index v = 0; v < vectors; ++v) {
            float high[width];
            which[v].store_unaligned(high);
            for (Eigen::Index i = 0; i < width; ++i)
                nearest[r + v * width + i] = static_cast<int>(high[i]) * static_cast<int>(size);
        }
    }
    /// Adds the a of a register of points.
    void best_lows(const point_set::planes& tables, Eigen::Index r, Eigen::ArrayXi& nearest,
                   Eigen::ArrayXf& distance) const {
        constexpr Eigen::Index size = additive_tables::entries;
        batch sums[size];
        for (batch& sum : sums)
            sum = batch(0.0f);
        for (Eigen::Index i = 0; i < tables.cols(); ++i) {
            float high[width];
            for (Eigen::Index s = 0; s < width; ++s)
                high[s] = tables(size + (nearest[r + s] >> 4), i);
            const batch rest = batch::load_unaligned(&p_.values()(r, i)) - batch::load_unaligned(high);
            CRUMB_UNROLL
            for (Eigen::Index a = 0; a < size; ++a) {
                const batch d = rest - batch(tables(a, i));
                sums[a] = sums[a] + d * d;
            }
        }
        batch best = sums[0], which(0.0f);
        CRUMB_UNROLL
        for (Eigen::Index a = 1; a < size; ++a) {
            which = xsimd::select(sums[a] < best, batch(static_cast<float>(a)), which);
            best = xsimd::min(sums[a], best);
        }
        float low[width];
        which.store_unaligned(low);
        best.store_unaligned(&distance[r]);
        for (Eigen::Index s = 0; s < width; ++s)
            nearest[r + s] += static_cast<int>(low[s]);
    }

    /// Least squares: entry e of the 32 has the equation sum over f of n(e, f) t[f] = sum of the points of e,
    /// where n counts the points whose codes have both. A constant can move between the tables, and entries
    /// may be unused: a small pull towards their present values decides.
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

/// Trains tables for the n rows of `x`; ignores `kmeans_options::centroids`. Weights and metric as in
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
