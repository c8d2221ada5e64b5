// Points to be clustered, dimension by dimension, and the search for nearest centroids.
#pragma once

#include <crumb/core/status.hpp>
#include <crumb/core/view.hpp>

#include <Eigen/Core>
#include <xsimd/xsimd.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Weighted points moved and scaled into [-1, 1] per dimension, so that no distance overflows:
///     y[i] = (x[i] - mean[i]) scale[i],  scale[i] ~ sqrt(metric[i]).
/// Squared distances of the y are those of the x under the metric, times a constant.
class point_set {
  public:
    static constexpr Eigen::Index lanes = 64;
    using batch = xsimd::batch<float>;
    static constexpr Eigen::Index width = static_cast<Eigen::Index>(batch::size);
    using planes = Eigen::ArrayXXf; ///< a column per dimension

    /// Points x, n x dims; `weights` of points (empty: all 1) and `metric`, weights of dimensions (empty: all
    /// 1), must not be negative. A dimension of weight 0 counts 1e-12 of the heaviest. Refuses no points,
    /// NaN, infinity, and weights that are all 0.
    static result<point_set> make(const matrix_view<const float>& x, std::span<const float> weights,
                                  std::span<const float> metric) {
        if (x.rows == 0 || x.cols == 0)
            return status::error(errc::bad_shape, "clustering: %zu points of %zu dimensions", x.rows, x.cols);
        if ((!weights.empty() && weights.size() != x.rows) || (!metric.empty() && metric.size() != x.cols))
            return status::error(errc::bad_shape, "clustering: %zu x %zu points, %zu weights, %zu metric",
                                 x.rows, x.cols, weights.size(), metric.size());
        const auto is_weight = [](float w) { return std::isfinite(w) && w >= 0; };
        if (!std::all_of(weights.begin(), weights.end(), is_weight) ||
            !std::all_of(metric.begin(), metric.end(), is_weight))
            return status::error(errc::invalid_argument, "clustering: weights must be finite, not negative");
        for (std::size_t r = 0; r < x.rows; ++r)
            for (std::size_t i = 0; i < x.cols; ++i)
                if (!std::isfinite(x.row(r)[i]))
                    return status::error(errc::not_finite, "clustering: point %zu is not finite", r);
        point_set p;
        const auto size = static_cast<Eigen::Index>(x.rows);
        p.size_ = x.rows;
        p.weights_ = Eigen::ArrayXf::Zero((size + lanes - 1) / lanes * lanes);
        if (weights.empty())
            p.weights_.head(size).setOnes();
        else
            std::copy(weights.begin(), weights.end(), p.weights_.data());
        const double heaviest = p.weights_.cast<double>().maxCoeff();
        if (!(heaviest > 0))
            return status::error(errc::invalid_argument, "clustering: all weights are 0");
        p.weights_ = (p.weights_.cast<double>() / heaviest).cast<float>();
        p.total_ = p.weights_.cast<double>().sum();
        p.place(x, metric);
        return p;
    }

    /// Points.
    std::size_t size() const noexcept { return size_; }
    /// Dimensions of a point.
    std::size_t dims() const noexcept { return mean_.size(); }
    /// Blocks of `lanes` points, the last one padded.
    Eigen::Index blocks() const noexcept { return weights_.size() / lanes; }
    /// y, a column per dimension; rows beyond `size` are 0.
    const planes& values() const noexcept { return values_; }
    /// Relative to the heaviest; 0 beyond `size`.
    const Eigen::ArrayXf& weights() const noexcept { return weights_; }

    /// What was subtracted from a dimension.
    double mean(std::size_t dim) const noexcept { return mean_[dim]; }
    /// What a dimension was multiplied by, less its mean.
    double scale(std::size_t dim) const noexcept { return scale_[dim]; }

    /// Updates `min`, the squared distances of a block's points from the nearest centroid so far, with a row
    /// of `centroids` (`first`: sets them), and writes `chance`, `min` times weights. Returns the sum of
    /// `chance`.
    double approach(Eigen::Index block, const planes& centroids, Eigen::Index row, bool first,
                    Eigen::ArrayXf& min, Eigen::ArrayXf& chance) const {
        batch sum(0.0f);
        for (Eigen::Index r = block * lanes; r < (block + 1) * lanes; r += width) {
            batch d(0.0f);
            for (Eigen::Index i = 0; i < values_.cols(); ++i) {
                const batch t = batch::load_unaligned(&values_(r, i)) - batch(centroids(row, i));
                d = d + t * t;
            }
            if (!first)
                d = xsimd::min(d, batch::load_unaligned(&min[r]));
            d.store_unaligned(&min[r]);
            d = d * batch::load_unaligned(&weights_[r]);
            d.store_unaligned(&chance[r]);
            sum = sum + d;
        }
        return double{total(sum)};
    }

    /// Each point's nearest centroid, the first of equally near ones, and its squared distance. Points
    /// beyond `size` are searched as well. Returns the sum of weight x distance.
    double assign(const planes& centroids, Eigen::ArrayXi& nearest, Eigen::ArrayXf& distance) const {
        nearest.resize(weights_.size());
        distance.resize(weights_.size());
        // Copies of the last one fill its group: they are never the first of equally near ones.
        const Eigen::Index count = (centroids.rows() + group - 1) / group * group;
        planes all(count, centroids.cols());
        all.topRows(centroids.rows()) = centroids;
        all.bottomRows(count - centroids.rows()).rowwise() = centroids.row(centroids.rows() - 1);
        // Broadcast to registers, as SSE has no broadcast operands.
        std::vector<float> spread;
        spread.reserve(static_cast<std::size_t>(all.size() * width));
        for (Eigen::Index k = 0; k < count; ++k)
            for (Eigen::Index i = 0; i < all.cols(); ++i)
                spread.insert(spread.end(), width, all(k, i));
        double error = 0;
        for (Eigen::Index b = 0; b < blocks(); ++b) {
            float groups[lanes];
            switch (values_.cols()) {
            case 1:
                nearest_groups<1, 4>(b, spread.data(), count, groups);
                break;
            case 2:
                nearest_groups<2, 4>(b, spread.data(), count, groups);
                break;
            case 4:
                nearest_groups<4, 2>(b, spread.data(), count, groups);
                break;
            default:
                nearest_groups<0, 1>(b, spread.data(), count, groups);
            }
            for (Eigen::Index s = 0; s < lanes; ++s)
                nearest_of(b * lanes + s, all, static_cast<Eigen::Index>(groups[s]), nearest, distance);
            error += weighted(b, distance);
        }
        return error;
    }
    /// The sum of weight x distance of a block.
    double weighted(Eigen::Index block, const Eigen::ArrayXf& distance) const {
        batch sum(0.0f);
        for (Eigen::Index r = block * lanes; r < (block + 1) * lanes; r += width)
            sum = sum + batch::load_unaligned(&distance[r]) * batch::load_unaligned(&weights_[r]);
        return double{total(sum)};
    }

    /// About `max` of the points at most, evenly spaced; all if those have no weight.
    point_set some(std::size_t max) const {
        const std::size_t step = (size_ + max - 1) / max;
        point_set p = *this;
        if (step <= 1)
            return p;
        p.size_ = (size_ + step - 1) / step;
        const auto padded = (static_cast<Eigen::Index>(p.size_) + lanes - 1) / lanes * lanes;
        p.weights_ = Eigen::ArrayXf::Zero(padded);
        p.values_ = planes::Zero(padded, values_.cols());
        for (Eigen::Index r = 0; r < static_cast<Eigen::Index>(p.size_); ++r) {
            p.weights_[r] = weights_[r * static_cast<Eigen::Index>(step)];
            p.values_.row(r) = values_.row(r * static_cast<Eigen::Index>(step));
        }
        p.total_ = p.weights_.cast<double>().sum();
        return p.total_ > 0 ? p : *this;
    }

    /// The points minus the rows of `centroids` that they are assigned to.
    void subtract(const planes& centroids, const Eigen::ArrayXi& nearest) {
        for (Eigen::Index r = 0; r < static_cast<Eigen::Index>(size_); ++r)
            values_.row(r) -= centroids.row(nearest[r]);
    }
    /// One dimension of the points.
    point_set dimension(Eigen::Index i) const {
        point_set p = *this;
        p.values_ = values_.col(i);
        p.mean_ = {mean_[static_cast<std::size_t>(i)]};
        p.scale_ = {scale_[static_cast<std::size_t>(i)]};
        return p;
    }

    /// Centroids as points x, [rows][dims]; or as differences of points, without the mean.
    std::vector<float> restored(const planes& centroids, bool with_mean = true) const {
        std::vector<float> out;
        out.reserve(static_cast<std::size_t>(centroids.size()));
        for (Eigen::Index k = 0; k < centroids.rows(); ++k)
            for (std::size_t i = 0; i < dims(); ++i)
                out.push_back(
                    static_cast<float>((with_mean ? mean_[i] : 0.0) +
                                       double{centroids(k, static_cast<Eigen::Index>(i))} / scale_[i]));
        return out;
    }
    /// Turns a sum of weight x distance into its mean over the points' weights, in the units of x.
    double in_units(double error) const noexcept { return error / total_ / (unit_ * unit_); }

    /// Sum over a block's points.
    static float total(const batch& x) noexcept {
        float all[width], sum = 0;
        x.store_unaligned(all);
        for (const float y : all)
            sum += y;
        return sum;
    }

  private:
    point_set() = default;

    /// Centroids in a group: at first only a group's smallest distance is kept.
    static constexpr Eigen::Index group = 16;
    static_assert(group % width == 0 && lanes % (4 * width) == 0);

    /// The group with each point's nearest centroid, as a float. `Dims` 0: any number.
    template <int Dims, int Vectors>
    void nearest_groups(Eigen::Index block, const float* spread, Eigen::Index count, float* groups) const {
        const Eigen::Index dims = Dims > 0 ? Dims : values_.cols();
        for (Eigen::Index s = 0; s < lanes; s += Vectors * width) {
            const float* from = values_.data() + block * lanes + s;
            batch y[Vectors][Dims > 0 ? Dims : 1], best[Vectors], which[Vectors];
            CRUMB_UNROLL
            for (int v = 0; v < Vectors; ++v) {
                best[v] = batch(std::numeric_limits<float>::infinity());
                which[v] = batch(0.0f);
                CRUMB_UNROLL
                for (int i = 0; i < Dims; ++i)
                    y[v][i] = batch::load_unaligned(from + i * values_.rows() + v * width);
            }
            const float* c = spread;
            for (Eigen::Index k = 0; k < count; k += group) {
                batch min[Vectors];
                CRUMB_UNROLL
                for (int v = 0; v < Vectors; ++v)
                    min[v] = batch(std::numeric_limits<float>::infinity());
                for (Eigen::Index n = 0; n < group; ++n, c += dims * width)
                    CRUMB_UNROLL
                for (int v = 0; v < Vectors; ++v) {
                    batch sum(0.0f);
                    CRUMB_UNROLL
                    for (int i = 0; i < Dims; ++i) {
                        const batch d = batch::load_unaligned(c + i * width) - y[v][i];
                        sum = i == 0 ? d * d : sum + d * d;
                    }
                    for (Eigen::Index i = 0; Dims == 0 && i < dims; ++i) {
                        const batch d = batch::load_unaligned(c + i * width) -
                                        batch::load_unaligned(from + i * values_.rows() + v * width);
                        sum = sum + d * d;
                    }
                    min[v] = xsimd::min(sum, min[v]);
                }
                CRUMB_UNROLL
                for (int v = 0; v < Vectors; ++v) {
                    which[v] = xsimd::select(min[v] < best[v], batch(static_cast<float>(k)), which[v]);
                    best[v] = xsimd::min(min[v], best[v]);
                }
            }
            CRUMB_UNROLL
            for (int v = 0; v < Vectors; ++v)
                which[v].store_unaligned(groups + s + v * width);
        }
    }
    /// The nearest of the group that begins with centroid k.
    void nearest_of(Eigen::Index r, const planes& all, Eigen::Index k, Eigen::ArrayXi& nearest,
                    Eigen::ArrayXf& distance) const {
        batch sums[group / width];
        CRUMB_UNROLL
        for (Eigen::Index v = 0; v < group / width; ++v) {
            sums[v] = batch(0.0f);
            for (Eigen::Index i = 0; i < all.cols(); ++i) {
                const batch d = batch::load_unaligned(&all(k + v * width, i)) - batch(values_(r, i));
                sums[v] = sums[v] + d * d;
            }
        }
        batch min = sums[0];
        for (Eigen::Index v = 1; v < group / width; ++v)
            min = xsimd::min(min, sums[v]);
        const float best = lowest(min);
        static constexpr float order[group] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        batch where(static_cast<float>(group - 1));
        CRUMB_UNROLL
        for (Eigen::Index v = 0; v < group / width; ++v)
            where = xsimd::min(where, xsimd::select(sums[v] == batch(best),
                                                    batch::load_unaligned(order + v * width), where));
        distance[r] = best;
        nearest[r] = static_cast<int>(k) + static_cast<int>(lowest(where));
    }
    static float lowest(const batch& x) noexcept {
        float all[width];
        x.store_unaligned(all);
        float min = all[0];
        for (Eigen::Index i = 1; i < width; ++i)
            min = all[i] < min ? all[i] : min;
        return min;
    }

    void place(const matrix_view<const float>& x, std::span<const float> metric) {
        const std::size_t dims = x.cols;
        mean_.assign(dims, 0.0);
        scale_.assign(dims, 1.0);
        double max = 0;
        for (std::size_t i = 0; i < dims; ++i) {
            for (std::size_t r = 0; r < x.rows; ++r)
                mean_[i] += double{x.row(r)[i]};
            mean_[i] /= static_cast<double>(x.rows);
            for (std::size_t r = 0; r < x.rows; ++r)
                max = std::max(max, std::fabs(double{x.row(r)[i]} - mean_[i]));
        }
        const double heaviest =
            metric.empty() ? 1.0 : double{*std::max_element(metric.begin(), metric.end())};
        unit_ = (max > 0 ? 1 / max : 1.0) / std::sqrt(heaviest > 0 ? heaviest : 1.0);
        values_ = planes::Zero(weights_.size(), static_cast<Eigen::Index>(dims));
        for (std::size_t i = 0; i < dims; ++i) {
            const double weight =
                metric.empty() || !(heaviest > 0) ? 1.0 : std::max(double{metric[i]} / heaviest, 1e-12);
            scale_[i] = (max > 0 ? 1 / max : 1.0) * std::sqrt(weight);
            for (std::size_t r = 0; r < x.rows; ++r)
                values_(static_cast<Eigen::Index>(r), static_cast<Eigen::Index>(i)) =
                    static_cast<float>((double{x.row(r)[i]} - mean_[i]) * scale_[i]);
        }
    }

    std::size_t size_ = 0;
    planes values_;
    Eigen::ArrayXf weights_;
    std::vector<double> mean_, scale_;
    double unit_ = 1, total_ = 0; ///< of x in y's; of the weights
};

} // namespace crumb::inline CRUMB_ABI
