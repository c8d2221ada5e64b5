// Training of the learned scheduler: labels, the network with its gradient, Adam.
#pragma once

#include <crumb/offline/common/random.hpp>
#include <crumb/offline/schedule/trained_schedule.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// The label of a prompt (PMPD, A.1.2): the first point of the grid, that is the shortest prefix in high
/// precision, whose sequence scores at least as much as the full-precision model's; the last point if none
/// does. `scores`: Rouge-L of the sequence of each point. Refuses fewer than two, and NaN.
inline result<std::size_t> switch_label(std::span<const double> scores, double full_precision) {
    if (scores.size() < 2)
        return status::error(errc::invalid_argument, "label: %zu scores, a grid has 2 points or more",
                             scores.size());
    if (std::isnan(full_precision) ||
        std::any_of(scores.begin(), scores.end(), [](double s) { return std::isnan(s); }))
        return status::error(errc::not_finite, "label: a score is NaN");
    const auto at = std::find_if(scores.begin(), scores.end(), [&](double s) { return s >= full_precision; });
    return std::min(static_cast<std::size_t>(at - scores.begin()), scores.size() - 1);
}

/// Keys and values of a prompt, and its label, a point of the grid. The caller keeps the rows alive.
/// Activations are passed as both.
struct schedule_sample {
    matrix_view<const float> keys, values; ///< T x (heads * head_size)
    std::size_t label = 0;
};

/// The learned scheduler in double precision over parameters in one vector: query, W1, b1, W2, b2, each
/// row-major. The first layer sees the pooled values less `center`, times `scale`.
class schedule_network {
  public:
    using vector = Eigen::VectorXd;
    using rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

    /// Of a shape, with center 0 and scale 1.
    explicit schedule_network(const learned_shape& s)
        : center(vector::Zero(index(s.width()))), scale(vector::Ones(index(s.width()))),
          heads_(index(s.heads)), size_(index(s.head_size)), hidden_(index(s.hidden)),
          points_(index(s.points)) {}

    vector center, scale; ///< not trained

    /// Floats that are pooled: heads times head size.
    Eigen::Index width() const { return heads_ * size_; }
    /// Length of theta.
    Eigen::Index parameters() const { return w1_at() + hidden_ * (width() + 1) + points_ * (hidden_ + 1); }

    /// The query in theta, heads x head size.
    auto query(auto& theta) const { return part(theta, 0, heads_, size_); }
    /// W1, hidden x width.
    auto w1(auto& theta) const { return part(theta, w1_at(), hidden_, width()); }
    /// b1, a column.
    auto b1(auto& theta) const { return part(theta, w1_at() + hidden_ * width(), hidden_, 1); }
    /// W2, points x hidden.
    auto w2(auto& theta) const { return part(theta, w2_at(), points_, hidden_); }
    /// b2, a column.
    auto b2(auto& theta) const { return part(theta, w2_at() + points_ * hidden_, points_, 1); }

    /// O of a sample; `looked_at`, unless null, becomes the tokens' weights, a column per head.
    vector pool(const vector& theta, const schedule_sample& s, Eigen::MatrixXd* looked_at = nullptr) const {
        vector o(width());
        for (Eigen::Index h = 0; h < heads_; ++h) {
            const vector scores = score_scale() * head(s.keys, h) * query(theta).row(h).transpose();
            const vector a = normalized(scores).array().exp();
            o.segment(h * size_, size_) = head(s.values, h).transpose() * a;
            if (looked_at != nullptr)
                looked_at->col(h) = a;
        }
        return o;
    }

    /// Logarithms of the points' probabilities.
    vector log_probabilities(const vector& theta, const schedule_sample& s) const {
        const vector z = (pool(theta, s) - center).cwiseProduct(scale);
        const vector u = w1(theta) * z + b1(theta);
        return normalized(logits(theta, u.cwiseMax(0.0)));
    }

    /// -weight log P(label); adds its gradient to `gradient`.
    double loss(const vector& theta, const schedule_sample& s, double weight, vector& gradient) const {
        Eigen::MatrixXd looked_at(index(s.keys.rows), heads_);
        const vector z = (pool(theta, s, &looked_at) - center).cwiseProduct(scale);
        const vector u = w1(theta) * z + b1(theta), x = u.cwiseMax(0.0);
        const vector log_p = normalized(logits(theta, x));

        vector d_logits = log_p.array().exp();
        d_logits[index(s.label)] -= 1;
        d_logits *= weight;
        w2(gradient) += d_logits * x.transpose();
        b2(gradient) += d_logits;
        const vector d_u = (u.array() > 0).select(w2(theta).transpose() * d_logits, 0.0);
        w1(gradient) += d_u * z.transpose();
        b1(gradient) += d_u;
        const vector d_o = (w1(theta).transpose() * d_u).cwiseProduct(scale);
        for (Eigen::Index h = 0; h < heads_; ++h) {
            const vector a = looked_at.col(h);
            const vector d_a = head(s.values, h) * d_o.segment(h * size_, size_);
            const vector d_scores = a.array() * (d_a.array() - a.dot(d_a));
            query(gradient).row(h) += score_scale() * d_scores.transpose() * head(s.keys, h);
        }
        return -weight * log_p[index(s.label)];
    }

  private:
    static Eigen::Index index(std::size_t i) { return static_cast<Eigen::Index>(i); }
    Eigen::Index w1_at() const { return width(); }
    Eigen::Index w2_at() const { return w1_at() + hidden_ * (width() + 1); }

    static Eigen::Map<rows> part(vector& theta, Eigen::Index at, Eigen::Index r, Eigen::Index c) {
        return {theta.data() + at, r, c};
    }
    static Eigen::Map<const rows> part(const vector& theta, Eigen::Index at, Eigen::Index r, Eigen::Index c) {
        return {theta.data() + at, r, c};
    }

    double score_scale() const { return 1 / std::sqrt(double(size_)); }
    rows head(const matrix_view<const float>& m, Eigen::Index h) const {
        using floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
        return Eigen::Map<const floats, 0, Eigen::OuterStride<>>(m.data + h * size_, index(m.rows), size_,
                                                                 Eigen::OuterStride<>(index(m.stride)))
            .cast<double>();
    }
    static vector normalized(const vector& scores) {
        const double max = scores.maxCoeff();
        return scores.array() - (max + std::log((scores.array() - max).exp().sum()));
    }
    vector logits(const vector& theta, const vector& x) const { return w2(theta) * x + b2(theta); }

    Eigen::Index heads_, size_, hidden_, points_;
};

/// Parameters of `train_schedule`.
struct schedule_training_options {
    std::size_t hidden = 64;
    std::size_t epochs = 100; ///< at most
    std::size_t batch = 16;
    double rate = 1e-3;                     ///< Adam's step; beta 0.9 and 0.999
    double l2 = 0;                          ///< adds l2 / 2 (|W1|^2 + |W2|^2), W1 as it sees centered values
    double held_out = 0;                    ///< share of the samples that is not trained on, 0 .. below 1
    std::size_t patience = 10;              ///< epochs without a better held-out loss before training stops
    std::vector<double> class_weights = {}; ///< of the samples of each label; empty: 1
    std::uint64_t seed = 1;
    std::function<void(std::size_t epoch, const schedule_epoch&)> progress = {};
};

/// Draws samples, trains and measures; `train_schedule` checks the arguments.
class schedule_trainer {
  public:
    /// Draws the held-out samples; all samples outlive it.
    schedule_trainer(const learned_shape& shape, std::span<const schedule_sample> samples,
                     const schedule_training_options& o)
        : shape_(shape), samples_(samples), o_(o), network_(shape), random_(o.seed), order_(samples.size()) {
        std::iota(order_.begin(), order_.end(), std::size_t{0});
        shuffle(order_);
        const auto share = static_cast<std::size_t>(o.held_out * double(samples.size()));
        const std::size_t held = std::min(share, samples.size() - 1);
        held_.assign(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(held));
        order_.erase(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(held));
    }

    /// Trains and measures.
    result<trained_schedule> run() {
        start();
        trained_schedule out;
        out.shape = shape_;
        schedule_network::vector best = theta_;
        for (std::size_t e = 0; e < o_.epochs; ++e) {
            const schedule_epoch now = {epoch(), held_.empty() ? 0.0 : mean_loss(held_)};
            if (!theta_.allFinite() || !std::isfinite(now.loss) || !std::isfinite(now.held_out_loss))
                return status::error(errc::not_finite, "training: epoch %zu ends with a loss of %g", e,
                                     now.loss);
            out.epochs.push_back(now);
            if (o_.progress)
                o_.progress(e, now);
            if (e == 0 || held_.empty() || now.held_out_loss < out.epochs[out.best_epoch].held_out_loss) {
                out.best_epoch = e;
                best = theta_;
            } else if (e - out.best_epoch >= o_.patience) {
                break;
            }
        }
        theta_ = best;
        out.accuracy = accuracy(order_);
        out.held_out_accuracy = held_.empty() ? 0.0 : accuracy(held_);
        out.held_out_majority = held_.empty() ? 0.0 : majority();
        copy_parameters(out);
        return out;
    }

  private:
    void shuffle(std::vector<std::size_t>& x) {
        for (std::size_t i = x.size(); i > 1; --i)
            std::swap(x[i - 1], x[random_.below(i)]);
    }
    double weight(std::size_t i) const {
        return o_.class_weights.empty() ? 1.0 : o_.class_weights[samples_[i].label];
    }

    /// A query of equal weights for all tokens, pooled values normalized to zero mean and unit variance, and
    /// weights that keep that variance (He et al. 2015).
    void start() {
        theta_ = schedule_network::vector::Zero(network_.parameters());
        schedule_network::vector squares = schedule_network::vector::Zero(network_.width());
        for (const std::size_t i : order_)
            network_.center += network_.pool(theta_, samples_[i]) / double(order_.size());
        for (const std::size_t i : order_)
            squares += (network_.pool(theta_, samples_[i]) - network_.center).cwiseAbs2();
        for (Eigen::Index c = 0; c < squares.size(); ++c) {
            const double deviation = std::sqrt(squares[c] / double(order_.size()));
            network_.scale[c] = deviation > 1e-6 * (1 + std::fabs(network_.center[c])) ? 1 / deviation : 1.0;
        }
        draw(network_.w1(theta_));
        draw(network_.w2(theta_));
        first_ = second_ = schedule_network::vector::Zero(theta_.size());
    }
    void draw(Eigen::Map<schedule_network::rows> w) {
        const double max = std::sqrt(6 / double(w.cols()));
        for (Eigen::Index i = 0; i < w.size(); ++i)
            w.data()[i] = max * (2 * random_.uniform() - 1);
    }

    double epoch() {
        shuffle(order_);
        double loss = 0, all = 0;
        schedule_network::vector gradient(theta_.size());
        for (std::size_t begin = 0; begin < order_.size(); begin += o_.batch) {
            const std::size_t end = std::min(begin + o_.batch, order_.size());
            double weights = 0;
            gradient.setZero();
            for (std::size_t i = begin; i < end; ++i) {
                loss += network_.loss(theta_, samples_[order_[i]], weight(order_[i]), gradient);
                weights += weight(order_[i]);
            }
            all += weights;
            step(gradient / weights);
        }
        return loss / all;
    }
    /// Adam (Kingma, Ba 2015).
    void step(schedule_network::vector gradient) {
        constexpr double b1 = 0.9, b2 = 0.999, tiny = 1e-8;
        network_.w1(gradient) += o_.l2 * network_.w1(theta_);
        network_.w2(gradient) += o_.l2 * network_.w2(theta_);
        ++steps_;
        first_ = b1 * first_ + (1 - b1) * gradient;
        second_ = b2 * second_ + (1 - b2) * gradient.cwiseAbs2();
        const double rate = o_.rate / (1 - std::pow(b1, steps_)), norm = 1 / (1 - std::pow(b2, steps_));
        theta_.array() -= rate * first_.array() / ((second_.array() * norm).sqrt() + tiny);
    }

    double mean_loss(const std::vector<std::size_t>& of) const {
        double loss = 0, all = 0;
        for (const std::size_t i : of) {
            const auto log_p = network_.log_probabilities(theta_, samples_[i]);
            loss -= weight(i) * log_p[static_cast<Eigen::Index>(samples_[i].label)];
            all += weight(i);
        }
        return loss / all;
    }
    double accuracy(const std::vector<std::size_t>& of) const {
        std::size_t right = 0;
        for (const std::size_t i : of) {
            Eigen::Index best = 0;
            network_.log_probabilities(theta_, samples_[i]).maxCoeff(&best);
            right += static_cast<std::size_t>(best) == samples_[i].label;
        }
        return double(right) / double(of.size());
    }

    /// How often the most frequent label of the samples trained on is right on those held out.
    double majority() const {
        std::vector<std::size_t> counts(shape_.points);
        for (const std::size_t i : order_)
            ++counts[samples_[i].label];
        const auto label =
            static_cast<std::size_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
        const auto right = std::count_if(held_.begin(), held_.end(),
                                         [&](std::size_t i) { return samples_[i].label == label; });
        return double(right) / double(held_.size());
    }

    /// Folds center and scale into the first layer, as inference has neither.
    void copy_parameters(trained_schedule& out) const {
        const schedule_network::vector& theta = theta_;
        const schedule_network::rows w1 = network_.w1(theta) * network_.scale.asDiagonal();
        const schedule_network::rows b1 = network_.b1(theta) - w1 * network_.center;
        const auto copy = [](const auto& from, std::vector<float>& to) {
            for (Eigen::Index i = 0; i < from.size(); ++i)
                to.push_back(static_cast<float>(from.data()[i]));
        };
        copy(network_.query(theta), out.query);
        copy(w1, out.w1);
        copy(b1, out.b1);
        copy(network_.w2(theta), out.w2);
        copy(network_.b2(theta), out.b2);
    }

    learned_shape shape_;
    std::span<const schedule_sample> samples_;
    const schedule_training_options& o_;
    schedule_network network_;
    splitmix64 random_;
    std::vector<std::size_t> order_, held_; ///< samples trained on, and not
    schedule_network::vector theta_, first_, second_;
    double steps_ = 0;
};

/// An error if options are out of range.
inline status check_options(const schedule_training_options& o, std::size_t points) noexcept {
    if (o.hidden == 0 || o.epochs == 0 || o.batch == 0)
        return status::error(errc::invalid_argument,
                             "training: %zu hidden units, %zu epochs, batches of %zu; none can be 0",
                             o.hidden, o.epochs, o.batch);
    if (!(o.rate > 0) || !std::isfinite(o.rate) || !(o.l2 >= 0) || !std::isfinite(o.l2) ||
        !(o.held_out >= 0 && o.held_out < 1))
        return status::error(errc::invalid_argument, "training: rate %g, l2 %g, held_out %g", o.rate, o.l2,
                             o.held_out);
    if (!o.class_weights.empty() && o.class_weights.size() != points)
        return status::error(errc::bad_shape, "training: %zu class weights for %zu points",
                             o.class_weights.size(), points);
    for (const double w : o.class_weights)
        if (!(w > 0) || !std::isfinite(w))
            return status::error(errc::invalid_argument, "training: a class weight is %g", w);
    return {};
}

/// Trains a scheduler for `points` switch points by cross entropy. Equal seeds, samples and options make
/// equal parameters. Refuses no samples, samples without tokens or of different widths, labels outside the
/// grid, NaN and infinity, and options out of range.
inline result<trained_schedule> train_schedule(std::span<const schedule_sample> samples, std::size_t heads,
                                               std::size_t head_size, std::size_t points,
                                               const schedule_training_options& options = {}) {
    if (samples.empty())
        return status::error(errc::invalid_argument, "training: there are no samples");
    if (const status s = check_options(options, points); !s)
        return s;
    const learned_shape shape = {heads, head_size, options.hidden, points};
    if (const status s = check_shape(shape); !s)
        return s;
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const schedule_sample& s = samples[i];
        if (s.label >= points)
            return status::error(errc::invalid_argument, "training: label %zu of sample %zu, %zu points",
                                 s.label, i, points);
        for (const auto* m : {&s.keys, &s.values}) {
            if (m->cols != shape.width() || m->rows != s.keys.rows || m->rows == 0 ||
                (m->rows > 1 && m->stride < m->cols))
                return status::error(errc::bad_shape, "training: sample %zu is %zu x %zu, not T x %zu", i,
                                     m->rows, m->cols, shape.width());
            for (std::size_t t = 0; t < m->rows; ++t)
                if (!std::all_of(m->row(t), m->row(t) + m->cols, [](float x) { return std::isfinite(x); }))
                    return status::error(errc::not_finite, "training: token %zu of sample %zu is not finite",
                                         t, i);
        }
    }
    return schedule_trainer(shape, samples, options).run();
}

} // namespace crumb::inline CRUMB_ABI
