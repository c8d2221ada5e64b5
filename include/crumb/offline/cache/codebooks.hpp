// Training of the codebooks of a product-quantized cache.
#pragma once

#include <crumb/offline/cache/entries.hpp>
#include <crumb/offline/cache/kv_turn.hpp>
#include <crumb/offline/cache/samples.hpp>
#include <crumb/reference/kv_codec.hpp>

#include <mutex>

namespace crumb::inline CRUMB_ABI {

/// Parameters of `train_kv_codebooks`.
struct kv_training_options {
    kv_sharing sharing = kv_sharing::none;
    std::size_t max_samples = 8192; ///< max tokens per codebook, evenly spaced
    std::size_t max_rounds = 10;
    std::uint64_t seed = 1;
    code_errors errors = code_errors::plain; ///< all layers need second moments for others
    std::function<void(std::size_t done, std::size_t all)> progress = {}; ///< after every codebook
    /// Calls f(0), ..., f(n - 1) in any order, in parallel if it likes; empty: one after the other. Results
    /// are the same. `progress` is called where f runs, by one thread at a time.
    std::function<void(std::size_t n, const std::function<void(std::size_t)>& f)> for_each = {};
};

/// The steps of `train_kv_codebooks`, one codebook at a time.
class kv_codebook_trainer {
  public:
    /// Trains all sets; `train_kv_codebooks` checks the arguments.
    static result<kv_codebooks> train(const kv_samples& samples, const kv_codec& codec,
                                      const kv_training_options& o) {
        const kv_shape& shape = samples.shape();
        kv_codebooks out;
        out.codec = codec;
        out.head_size = shape.head_size;
        if (!codec.has_codebooks())
            return status::error(errc::invalid_argument, "kv codebooks: the codec has none");
        const bool of_layers = o.sharing == kv_sharing::none || o.sharing == kv_sharing::heads;
        const bool of_heads = o.sharing == kv_sharing::none || o.sharing == kv_sharing::layers;
        out.head_step = of_heads ? 1 : 0;
        out.layer_step = !of_layers ? 0 : of_heads ? shape.kv_heads : 1;
        out.sets = (of_layers ? shape.layers : 1) * (of_heads ? shape.kv_heads : 1);
        out.entries.resize(2 * out.sets * shape.head_size * codec.entries());
        out.scales.resize(2 * out.sets * shape.head_size);
        if (o.errors == code_errors::weighted)
            out.metric.resize(2 * out.sets * shape.head_size * codec.dims);
        if (o.errors == code_errors::turned)
            out.turns.resize(4 * out.sets * shape.head_size * shape.head_size);
        if (const auto view = out.view(); !view)
            return view.error();
        if (o.max_samples == 0)
            return status::error(errc::invalid_argument, "kv codebooks: no samples are allowed");
        for (std::size_t l = 0; l < shape.layers; ++l)
            if (samples.blocks(l) == 0 || (o.errors != code_errors::plain &&
                                           !(samples.has_moments(l, true) && samples.has_moments(l, false))))
                return status::error(errc::invalid_argument, "kv codebooks: layer %zu has no %s", l,
                                     samples.blocks(l) == 0 ? "whole block of samples" : "second moments");

        std::vector<status> failed(2 * out.sets);
        std::mutex counting;
        std::size_t done = 0;
        const std::function<void(std::size_t)> one = [&](std::size_t n) {
            failed[n] = kv_codebook_trainer(samples, o, out, n).run();
            if (!o.progress)
                return;
            const std::lock_guard lock(counting);
            o.progress(++done, 2 * out.sets);
        };
        if (o.for_each)
            o.for_each(2 * out.sets, one);
        else
            for (std::size_t n = 0; n < 2 * out.sets; ++n)
                one(n);
        for (const status& s : failed)
            if (!s)
                return s;
        return out;
    }

  private:
    using matrix_rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    struct member {
        std::size_t layer, head;
    };

    kv_codebook_trainer(const kv_samples& samples, const kv_training_options& o, kv_codebooks& out,
                        std::size_t n)
        : samples_(samples), o_(o), out_(out), n_(n), size_(out.head_size), keys_(n % 2 == 0) {
        const kv_shape& shape = samples.shape();
        for (std::size_t l = 0; l < shape.layers; ++l)
            for (std::size_t h = 0; h < shape.kv_heads; ++h)
                if (l * out.layer_step + h * out.head_step == n / 2)
                    members_.push_back({l, h});
    }

    status run() {
        if (o_.errors == code_errors::turned)
            turn();
        collect();
        level_weights();
        const std::size_t dims = out_.codec.dims;
        for (std::size_t j = 0; j < size_ / dims; ++j) {
            Eigen::MatrixXd w = Eigen::MatrixXd::Identity(index(dims), index(dims));
            if (o_.errors == code_errors::weighted) {
                w = metric(j);
                for (std::size_t a = 0; a < dims; ++a)
                    for (std::size_t b = 0; b < dims; ++b)
                        out_.metric[((n_ * size_ / dims + j) * dims + a) * dims + b] =
                            static_cast<float>(w(index(a), index(b)));
            }
            if (const status s = sub_space(j, w); !s)
                return s;
        }
        return {};
    }

    /// Keys or values of a head in a block, turned if they are to be.
    matrix_rows block(const member& m, std::size_t b) const {
        const auto block = samples_.block(m.layer, m.head, keys_, b);
        const Eigen::Map<const matrix_rows> x(block.data(), index(kv_mean_tokens), index(size_));
        if (o_.errors != code_errors::turned)
            return x;
        return x * Eigen::Map<const matrix_rows>(turn_of(false), index(size_), index(size_)).transpose();
    }
    float* turn_of(bool back) const noexcept {
        return out_.turns.data() + (2 * n_ + (back ? 1 : 0)) * size_ * size_;
    }
    /// Finds the matrices of this codebook's members.
    void turn() {
        Eigen::MatrixXd moments = Eigen::MatrixXd::Zero(index(size_), index(size_)), spread = moments;
        for (const member& m : members_) {
            moments += moments_of(m, {0, size_});
            for (std::size_t b = 0; b < samples_.blocks(m.layer); ++b) {
                const auto block = samples_.block(m.layer, m.head, keys_, b);
                const Eigen::Map<const matrix_rows> from(block.data(), index(kv_mean_tokens), index(size_));
                Eigen::MatrixXd x = from.cast<double>();
                x.rowwise() -= x.colwise().mean().eval();
                const auto weights = samples_.weights(m.layer, m.head, b);
                Eigen::MatrixXd across = x.transpose();
                for (std::size_t t = 0; t < kv_mean_tokens; ++t)
                    across.col(index(t)) *= double{weights[t]};
                spread.noalias() += across * x;
            }
        }
        const kv_turn found = kv_turn::of(moments, spread, out_.codec.dims);
        const auto store_as = [&](bool back, const Eigen::MatrixXd& m) {
            Eigen::Map<matrix_rows>(turn_of(back), index(size_), index(size_)) = m.cast<float>();
        };
        store_as(false, found.to);
        store_as(true, keys_ ? Eigen::MatrixXd(found.back.transpose()) : found.back);
    }
    /// Tokens without their block's mean, divided by their scale: the input of codes.
    void collect() {
        std::size_t blocks = 0;
        for (const member& m : members_)
            blocks += samples_.blocks(m.layer);
        const std::size_t all = blocks * kv_mean_tokens, wanted = std::min(all, o_.max_samples);
        std::vector<float> rest(kv_mean_tokens * size_), scale(kv_mean_tokens);
        std::vector<half> mean(size_);
        x_.reserve(wanted * size_);
        std::size_t at = 0, taken = 0;
        for (const member& m : members_)
            for (std::size_t b = 0; b < samples_.blocks(m.layer); ++b) {
                const matrix_rows x = block(m, b);
                const std::span<const float> weights = samples_.weights(m.layer, m.head, b);
                reference::kv_part::take_out(
                    out_.codec.residual, matrix<const float>(x.data(), kv_mean_tokens, size_), mean.data(),
                    matrix(rest.data(), kv_mean_tokens, size_), scale.data());
                for (std::size_t t = 0; t < kv_mean_tokens; ++t, ++at) {
                    if (static_cast<double>(at) * static_cast<double>(wanted) <
                        static_cast<double>(taken) * static_cast<double>(all))
                        continue;
                    ++taken;
                    const float inverse = scale[t] > 0 ? 1 / scale[t] : 0.0f;
                    for (std::size_t i = 0; i < size_; ++i)
                        x_.push_back(rest[t * size_ + i] * inverse);
                    weights_.push_back(weights[t]);
                    // An error is as large as its token.
                    if (out_.codec.residual && has_weights())
                        weights_.back() *= scale[t] * scale[t];
                }
            }
    }

    bool has_weights() const {
        const auto first = samples_.weights(members_.front().layer, members_.front().head, 0);
        return std::any_of(first.begin(), first.end(), [](float w) { return w != 1; });
    }
    /// Weights with a mean of 1 and a share of it for every token, so that codebooks serve more than a few.
    void level_weights() {
        if (!has_weights())
            return;
        double sum = 0;
        for (const float w : weights_)
            sum += double{w};
        // What a query reads of values is a mean: all of them count for more.
        const float share = keys_ ? 0.05f : 0.5f;
        const auto mean = static_cast<float>(sum / static_cast<double>(weights_.size()));
        for (float& w : weights_)
            w = mean > 0 ? share + w / mean : 1.0f;
    }

    /// A member's second moments of some channels, of trace 1 unless they are 0.
    Eigen::MatrixXd moments_of(const member& m, range channels) const {
        const Eigen::Index d = index(channels.size());
        Eigen::MatrixXd one(d, d);
        for (std::size_t a = channels.begin; a < channels.end; ++a)
            for (std::size_t b = channels.begin; b < channels.end; ++b)
                one(index(a - channels.begin), index(b - channels.begin)) =
                    samples_.moment(m.layer, m.head, keys_, a, b);
        return one.trace() > 0 ? Eigen::MatrixXd(one / one.trace()) : one;
    }
    /// Lᵀ of the Cholesky decomposition of the mean second moments, of trace `dims`. A thousandth of the
    /// identity is added, so that directions that no query had keep a weight.
    Eigen::MatrixXd metric(std::size_t j) const {
        const std::size_t dims = out_.codec.dims;
        const Eigen::Index d = index(dims);
        Eigen::MatrixXd sum = Eigen::MatrixXd::Zero(d, d);
        for (const member& m : members_)
            sum += moments_of(m, {j * dims, (j + 1) * dims});
        if (sum.trace() > 0)
            sum *= static_cast<double>(dims) / sum.trace();
        sum += 1e-3 * Eigen::MatrixXd::Identity(d, d);
        return Eigen::MatrixXd(sum.llt().matrixL()).transpose();
    }

    status sub_space(std::size_t j, const Eigen::MatrixXd& w) {
        const std::size_t dims = out_.codec.dims, rows = x_.size() / size_;
        std::vector<float> points(rows * dims);
        for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t a = 0; a < dims; ++a) {
                // W is upper triangular.
                double sum = 0;
                for (std::size_t b = a; b < dims; ++b)
                    sum += w(index(a), index(b)) * double{x_[r * size_ + j * dims + b]};
                points[r * dims + a] = static_cast<float>(sum);
            }
        // More points make training longer and codebooks no better.
        const std::size_t step = std::max<std::size_t>(1, rows / (256 * out_.codec.entries()));
        const matrix_view<const float> view{points.data(), (rows + step - 1) / step, dims, step * dims};
        std::vector<float> weights(view.rows);
        for (std::size_t r = 0; r < view.rows; ++r)
            weights[r] = weights_[r * step];
        const auto centers = train_kv_entries(out_.codec, view, (o_.seed * 2 * out_.sets + n_) * size_ + j,
                                              o_.max_rounds, weights);
        if (!centers)
            return centers.error();
        const Eigen::Map<const matrix_rows> c(centers->data(), index(out_.codec.entries()), index(dims));
        const Eigen::MatrixXd back = w.triangularView<Eigen::Upper>().solve(c.cast<double>().transpose());
        for (std::size_t i = 0; i < dims; ++i)
            store_kv_entries(out_, n_ * size_ + j * dims + i, back.row(index(i)).transpose());
        return {};
    }

    static Eigen::Index index(std::size_t i) noexcept { return static_cast<Eigen::Index>(i); }

    const kv_samples& samples_;
    const kv_training_options& o_;
    kv_codebooks& out_;
    std::size_t n_, size_;
    bool keys_;
    std::vector<member> members_;
    std::vector<float> x_;       ///< rows of head_size
    std::vector<float> weights_; ///< of the rows
};

/// Trains codebooks on samples: per set, keys and values, and sub-space, k-means (or additive tables) of the
/// tokens without mean and scale, then int8 entries with a scale per channel. Additive entries keep
/// max |low| + max |high| <= 127. Refuses codecs without codebooks, and layers without a whole block.
inline result<kv_codebooks> train_kv_codebooks(const kv_samples& samples, const kv_codec& codec,
                                               const kv_training_options& options = {}) {
    return kv_codebook_trainer::train(samples, codec, options);
}

} // namespace crumb::inline CRUMB_ABI
