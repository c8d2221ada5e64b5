// Weights that make up for errors in their inputs.
#include <crumb/offline/weights/target.hpp>

#include <Eigen/Core>

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace test_targets {
namespace {

using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

crumb::matrix_view<const double> view(const matrix& m) {
    return crumb::matrix<const double>(m.data(), static_cast<std::size_t>(m.rows()),
                                       static_cast<std::size_t>(m.cols()));
}

/// Inputs z of T tokens, those of the full model z', and what the outputs lack.
struct problem {
    static constexpr Eigen::Index n = 7, k = 12, tokens = 60;
    matrix z, full, lack;
    floats w;

    problem() {
        std::mt19937 random(3);
        std::normal_distribution<double> normal;
        const auto fill = [&](matrix& m, Eigen::Index rows, Eigen::Index cols, double size) {
            m = matrix::NullaryExpr(rows, cols, [&] { return size * normal(random); });
        };
        fill(z, k, tokens, 1);
        fill(full, k, tokens, 0.3);
        full += z;
        fill(lack, n, tokens, 0.2);
        w = floats::NullaryExpr(n, k, [&] { return static_cast<float>(normal(random)); });
    }
    matrix h() const { return z * z.transpose(); }
    matrix cross() const { return (full - z) * z.transpose(); }
    matrix behind() const { return lack * z.transpose(); }
    double error(const floats& v) const {
        return (w.cast<double>() * full + lack - v.cast<double>() * z).squaredNorm();
    }
    floats shifted(double share, double damping = 0) const {
        floats v = w;
        const matrix sums = h(), c = cross(), d = behind();
        const auto made = crumb::shifted_weights::make(view(sums), damping);
        EXPECT_TRUE(made.ok()) << made.message();
        const auto s =
            made->shift(crumb::matrix(v.data(), static_cast<std::size_t>(n), static_cast<std::size_t>(k)),
                        view(c), view(d), share);
        EXPECT_TRUE(s.ok()) << s.message();
        return v;
    }
};

TEST(ShiftedWeights, AreTheLeastSquares) {
    const problem p;
    const floats best = p.shifted(1);
    const double least = p.error(best);
    EXPECT_LT(least, p.error(p.w));
    // No direction improves on them: what is left is perpendicular to the inputs, up to the rounding of
    // weights to floats, of which each has at most half a unit of 2^-23.
    const matrix left = p.w.cast<double>() * p.full + p.lack - best.cast<double>() * p.z;
    const double rounding = 0x1p-24 * best.cast<double>().cwiseAbs().maxCoeff() *
                            p.h().cwiseAbs().maxCoeff() * static_cast<double>(problem::k);
    EXPECT_LT((left * p.z.transpose()).cwiseAbs().maxCoeff(), 2 * rounding);
    // A share of the way lies between.
    EXPECT_LT(p.error(p.shifted(0.5)), p.error(p.w));
    EXPECT_GT(p.error(p.shifted(0.5)), least);
    EXPECT_EQ(p.shifted(0), p.w);
    // Damped, they stay nearer.
    EXPECT_LT((p.shifted(1, 1.0) - p.w).norm(), (best - p.w).norm());
}

TEST(ShiftedWeights, WithoutInputsNothingChanges) {
    floats w = floats::Ones(2, 3);
    const matrix zero = matrix::Zero(3, 3), none;
    const auto made = crumb::shifted_weights::make(view(zero));
    ASSERT_TRUE(made.ok()) << made.message();
    ASSERT_TRUE(made->shift(crumb::matrix(w.data(), 2, 3), view(zero), view(none), 1).ok());
    EXPECT_EQ(w, floats::Ones(2, 3).eval());
}

TEST(ShiftedWeights, RefusesWhatDoesNotFit) {
    const matrix square = matrix::Identity(3, 3), wide = matrix::Zero(2, 3);
    EXPECT_FALSE(crumb::shifted_weights::make(view(wide)).ok());
    EXPECT_FALSE(crumb::shifted_weights::make(view(square), -1).ok());
    matrix infinite = square;
    infinite(1, 1) = std::numeric_limits<double>::infinity();
    EXPECT_FALSE(crumb::shifted_weights::make(view(infinite)).ok());
    const auto made = crumb::shifted_weights::make(view(square));
    ASSERT_TRUE(made.ok());
    floats w = floats::Ones(2, 3);
    const auto rows = crumb::matrix(w.data(), 2, 3);
    EXPECT_FALSE(made->shift(rows, view(wide), {}, 1).ok());
    EXPECT_FALSE(made->shift(rows, view(square), view(square), 1).ok());
    EXPECT_TRUE(made->shift(rows, view(square), view(wide), 1).ok());
}

} // namespace
} // namespace test_targets
