// Points to be clustered, in the order that a search for nearest centroids wants, and that search.
#pragma once

#include <crumb/core/status.hpp>
#include <crumb/core/view.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Weighted points moved and scaled into [-1, 1] per dimension, so that no distance overflows:
///     y[i] = (x[i] - mean[i]) scale[i],  scale[i] ~ sqrt(metric[i]).
/// Squared distances of the y are those of the x under the metric, times a constant.
class point_set {
  public:
    static constexpr Eigen::Index lanes = 64;
    using lane = Eigen::Array<float, lanes, 1>;
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
        p.place(x, metric);
        return p;
    }

    std::size_t size() const noexcept { return size_; }
    std::size_t dims() const noexcept { return mean_.size(); }
    Eigen::Index blocks() const noexcept { return weights_.size() / lanes; }
    /// y, a column per dimension; rows beyond `size` are 0.
    const planes& values() const noexcept { return values_; }
    /// Relative to the heaviest; 0 beyond `size`.
    const Eigen::ArrayXf& weights() const noexcept { return weights_; }

    double mean(std::size_t dim) const noexcept { return mean_[dim]; }
    double scale(std::size_t dim) const noexcept { return scale_[dim]; }

    /// 64 squared distances from a row of `centroids`, which has a column per dimension.
    lane distances(Eigen::Index block, const planes& centroids, Eigen::Index row) const {
        lane sum = (values_.col(0).segment<lanes>(block * lanes) - centroids(row, 0)).square();
        for (Eigen::Index i = 1; i < values_.cols(); ++i)
            sum += (values_.col(i).segment<lanes>(block * lanes) - centroids(row, i)).square();
        return sum;
    }

    /// Where each point's nearest centroid is, the first among equals, and its squared distance. Points
    /// beyond `size` are searched as well. Returns the sum of weight x distance.
    double assign(const planes& centroids, Eigen::ArrayXi& nearest, Eigen::ArrayXf& distance) const {
        nearest.resize(weights_.size());
        distance.resize(weights_.size());
        double error = 0;
        for (Eigen::Index b = 0; b < blocks(); ++b) {
            lane best = distances(b, centroids, 0);
            Eigen::Array<int, lanes, 1> index = Eigen::Array<int, lanes, 1>::Zero();
            for (Eigen::Index k = 1; k < centroids.rows(); ++k) {
                const lane d = distances(b, centroids, k);
                const int code = static_cast<int>(k);
                // Plain loops: Eigen 3.4 does not vectorize selections.
                const float* const from = d.data();
                float* const least = best.data();
                int* const which = index.data();
                for (Eigen::Index s = 0; s < lanes; ++s) {
                    which[s] = from[s] < least[s] ? code : which[s];
                    least[s] = from[s] < least[s] ? from[s] : least[s];
                }
            }
            nearest.segment<lanes>(b * lanes) = index;
            distance.segment<lanes>(b * lanes) = best;
            error += double{(best * weights_.segment<lanes>(b * lanes)).sum()};
        }
        return error;
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
    double in_units(double error) const noexcept {
        return error / weights_.cast<double>().sum() / (unit_ * unit_);
    }

  private:
    point_set() = default;

    void place(const matrix_view<const float>& x, std::span<const float> metric) {
        const std::size_t dims = x.cols;
        mean_.assign(dims, 0.0);
        scale_.assign(dims, 1.0);
        double most = 0;
        for (std::size_t i = 0; i < dims; ++i) {
            for (std::size_t r = 0; r < x.rows; ++r)
                mean_[i] += double{x.row(r)[i]};
            mean_[i] /= static_cast<double>(x.rows);
            for (std::size_t r = 0; r < x.rows; ++r)
                most = std::max(most, std::fabs(double{x.row(r)[i]} - mean_[i]));
        }
        const double heaviest =
            metric.empty() ? 1.0 : double{*std::max_element(metric.begin(), metric.end())};
        unit_ = (most > 0 ? 1 / most : 1.0) / std::sqrt(heaviest > 0 ? heaviest : 1.0);
        values_ = planes::Zero(weights_.size(), static_cast<Eigen::Index>(dims));
        for (std::size_t i = 0; i < dims; ++i) {
            const double weight =
                metric.empty() || !(heaviest > 0) ? 1.0 : std::max(double{metric[i]} / heaviest, 1e-12);
            scale_[i] = (most > 0 ? 1 / most : 1.0) * std::sqrt(weight);
            for (std::size_t r = 0; r < x.rows; ++r)
                values_(static_cast<Eigen::Index>(r), static_cast<Eigen::Index>(i)) =
                    static_cast<float>((double{x.row(r)[i]} - mean_[i]) * scale_[i]);
        }
    }

    std::size_t size_ = 0;
    planes values_;
    Eigen::ArrayXf weights_;
    std::vector<double> mean_, scale_;
    double unit_ = 1;
};

} // namespace crumb::inline CRUMB_ABI
