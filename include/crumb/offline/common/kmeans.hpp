// k-means clustering.
#pragma once

#include <crumb/offline/common/point_set.hpp>
#include <crumb/offline/common/random.hpp>

#include <functional>

namespace crumb::inline CRUMB_ABI {

/// Parameters of `kmeans`.
struct kmeans_options {
    std::size_t centroids = 256;
    std::size_t max_rounds = 12;
    double tolerance = 1e-4; ///< rounds end when the error falls by less than this share
    std::uint64_t seed = 1;
    std::function<void(std::size_t done, std::size_t all)> progress = {}; ///< after every round
};

/// Centroids, and their errors during training.
struct kmeans_result {
    std::size_t dims = 0;
    std::vector<float> centroids; ///< [kmeans_options::centroids][dims]
    std::vector<double> errors;   ///< mean weighted squared distance after each assignment; falls
    /// Distinct centroids, fewer than requested if the points have fewer distinct values; further ones repeat
    /// the last.
    std::size_t distinct = 0;
};

/// Lloyd's algorithm from k-means++ seeds (Arthur, Vassilvitskii 2007): the first centroid is a point drawn
/// by weight, each further one is drawn by weight x squared distance from the nearest before it; then points
/// go to the nearest centroid (the first of equally near ones), and centroids become weighted means,
/// alternating. A centroid without points moves to the point with the largest error.
class kmeans_search {
  public:
    /// Over points, which outlive it.
    kmeans_search(const point_set& points, const kmeans_options& o) : p_(points), o_(o), random_(o.seed) {}

    /// Rows of centroids in the scaled space of `points`; the result's centroids are left empty.
    kmeans_result run(point_set::planes& centroids) {
        kmeans_result out;
        out.dims = p_.dims();
        out.distinct = seed(centroids);
        const Eigen::Index used = static_cast<Eigen::Index>(out.distinct);
        point_set::planes now = centroids.topRows(used);
        for (std::size_t round = 0;; ++round) {
            const double error = p_.assign(now, nearest_, distance_);
            const double before = out.errors.empty() ? 0.0 : out.errors.back();
            // Rounded means may be worse by a few units in the last place.
            if (!out.errors.empty() && !(p_.in_units(error) < before))
                break;
            centroids.topRows(used) = now;
            out.errors.push_back(p_.in_units(error));
            const bool done = round == o_.max_rounds || !(error > 0) ||
                              (round != 0 && out.errors.back() > before * (1 - o_.tolerance));
            if (o_.progress)
                o_.progress(done ? o_.max_rounds : round, o_.max_rounds);
            if (done)
                break;
            update(now);
        }
        for (Eigen::Index k = used; k < centroids.rows(); ++k)
            centroids.row(k) = centroids.row(used - 1);
        return out;
    }

  private:
    std::size_t seed(point_set::planes& centroids) {
        const auto wanted = static_cast<Eigen::Index>(o_.centroids);
        centroids.resize(wanted, static_cast<Eigen::Index>(p_.dims()));
        // The probabilities of points, and of blocks of 64: a draw goes through blocks first.
        Eigen::ArrayXf nearest = Eigen::ArrayXf::Ones(p_.weights().size());
        Eigen::ArrayXf chance = p_.weights();
        Eigen::ArrayXd sums(p_.blocks());
        for (Eigen::Index k = 0; k < wanted; ++k) {
            for (Eigen::Index b = 0; b < p_.blocks(); ++b)
                sums[b] = k == 0 ? p_.weighted(b, nearest)
                                 : p_.approach(b, centroids, k - 1, k == 1, nearest, chance);
            const double all = sums.sum();
            if (!(all > 0))
                return static_cast<std::size_t>(k);
            centroids.row(k) = p_.values().row(draw(chance, sums, random_.uniform() * all));
        }
        return o_.centroids;
    }

    /// The point up to which probabilities add up to `left`; never one of probability 0.
    static Eigen::Index draw(const Eigen::ArrayXf& chance, const Eigen::ArrayXd& sums, double left) {
        Eigen::Index block = 0, last = 0;
        for (Eigen::Index b = 0; b < sums.size(); ++b) {
            if (!(sums[b] > 0))
                continue;
            block = b;
            if (left < sums[b])
                break;
            left -= sums[b];
        }
        for (Eigen::Index i = block * point_set::lanes; i < (block + 1) * point_set::lanes; ++i) {
            if (!(chance[i] > 0))
                continue;
            last = i;
            left -= double{chance[i]};
            if (left < 0)
                break;
        }
        return last;
    }

    void update(point_set::planes& centroids) {
        const Eigen::Index dims = centroids.cols();
        Eigen::ArrayXXd sums = Eigen::ArrayXXd::Zero(centroids.rows(), dims);
        Eigen::ArrayXd counts = Eigen::ArrayXd::Zero(centroids.rows());
        for (Eigen::Index r = 0; r < static_cast<Eigen::Index>(p_.size()); ++r) {
            const double w = double{p_.weights()[r]};
            counts[nearest_[r]] += w;
            for (Eigen::Index i = 0; i < dims; ++i)
                sums(nearest_[r], i) += w * double{p_.values()(r, i)};
        }
        distance_ *= p_.weights();
        for (Eigen::Index k = 0; k < centroids.rows(); ++k) {
            if (counts[k] > 0) {
                for (Eigen::Index i = 0; i < dims; ++i)
                    centroids(k, i) = static_cast<float>(sums(k, i) / counts[k]);
                continue;
            }
            Eigen::Index worst = 0;
            if (distance_.maxCoeff(&worst) > 0) {
                centroids.row(k) = p_.values().row(worst);
                distance_[worst] = 0;
            }
        }
    }

    const point_set& p_;
    const kmeans_options& o_;
    splitmix64 random_;
    Eigen::ArrayXi nearest_;
    Eigen::ArrayXf distance_;
};

/// Clusters the n rows of `x`; weights and metric as in `point_set::make`. Deterministic for
/// a seed.
inline result<kmeans_result> kmeans(const matrix_view<const float>& x, const kmeans_options& options = {},
                                    std::span<const float> weights = {}, std::span<const float> metric = {}) {
    if (options.centroids == 0 || options.centroids > 65536)
        return status::error(errc::invalid_argument, "k-means: %zu centroids, 1 to 65536 are possible",
                             options.centroids);
    const auto points = point_set::make(x, weights, metric);
    if (!points)
        return points.error();
    point_set::planes centroids;
    kmeans_result out = kmeans_search(*points, options).run(centroids);
    out.centroids = points->restored(centroids);
    return out;
}

} // namespace crumb::inline CRUMB_ABI
