#include "train/sensitivity.hpp"

#include "eval/evaluate.hpp"

#include <crumb/format/traits.hpp>
#include <crumb/offline/common/random.hpp>

#include <algorithm>
#include <cmath>

namespace lm {

using crumb::result;
using crumb::status;

namespace {

/// Errors in a row, of either sign.
void disturb(std::span<float> row, double share, crumb::splitmix64& random) {
    for (std::size_t g = 0; g < row.size(); g += crumb::group_size) {
        const auto group = row.subspan(g, std::min(crumb::group_size, row.size() - g));
        double squares = 0;
        for (const float w : group)
            squares += double{w} * double{w};
        // Evenly spread numbers from -1 to 1 have a mean square of 1/3.
        const double most = std::sqrt(3 * share * squares / static_cast<double>(group.size()));
        for (float& w : group)
            w += static_cast<float>(most * (2 * random.uniform() - 1));
    }
}

class measurement {
  public:
    measurement(model& m, session& s, std::span<const std::int32_t> window, double share)
        : m_(m), s_(s), matrices_(m.matrices()), window_(window), scored_(window.size() / 2), share_(share) {}

    result<sensitivities> run(const progress_function& progress) {
        const auto& d = m_.shape();
        std::vector<buffer> streams; // in front of each layer, and behind the last one
        for (std::size_t i = 0; i <= d.layers; ++i)
            streams.emplace_back(window_.size() * d.width * sizeof(float), buffer::untouched);
        if (const status s = s_.embed(window_, rows(streams[0])); !s)
            return s;
        for (std::size_t i = 0; i < d.layers; ++i) {
            copy(streams[i], streams[i + 1]);
            if (const status s = layer(i, rows(streams[i + 1])); !s)
                return s;
        }
        if (const status s = output(rows(streams[d.layers]), exact_); !s)
            return s;
        sensitivities out;
        buffer now(window_.size() * d.width * sizeof(float), buffer::untouched);
        std::vector<float> kept;
        crumb::splitmix64 random(1);
        for (const named_matrix& each : matrices_) {
            if (const status s = bring(each.role.layer); !s)
                return s;
            const std::span<float> w = m_.floats(each);
            if (w.empty())
                return status::error(crumb::errc::unsupported, "tensor %s is not multiplied as floats",
                                     each.name.c_str());
            kept.assign(w.begin(), w.end());
            for (std::size_t r = 0; r < each.m->n(); ++r)
                disturb(w.subspan(r * each.m->k(), each.m->k()), share_, random);
            copy(streams[each.role.layer], now);
            const auto kl = divergence_from(now, each.role.layer);
            std::copy(kept.begin(), kept.end(), w.begin());
            if (!kl)
                return kl.error();
            out.matrices.push_back(*kl);
            if (progress)
                progress(out.matrices.size(), matrices_.size());
        }
        leave();
        copy(streams[0], now);
        if (const status s = disturb_embedding(rows(now)); !s)
            return s;
        const auto embedding = divergence_from(now, 0);
        if (!embedding)
            return embedding.error();
        out.embedding = *embedding;
        const auto last = disturbed_output(rows(streams[d.layers]));
        if (!last)
            return last.error();
        out.output = *last;
        return out;
    }

  private:
    using view = crumb::matrix_view<float>;
    view rows(buffer& of) const { return crumb::matrix(of.as<float>(), window_.size(), m_.shape().width); }
    void copy(const buffer& from, buffer& to) const {
        std::copy_n(from.as<float>(), window_.size() * m_.shape().width, to.as<float>());
    }
    /// Keeps the weights of one layer until those of another are brought.
    status bring(std::size_t layer) {
        if (brought_ == layer)
            return {};
        leave();
        brought_ = layer;
        return m_.bring(of_layers(matrices_, {layer, layer + 1}));
    }
    void leave() {
        if (brought_)
            m_.leave(of_layers(matrices_, {*brought_, *brought_ + 1}));
        brought_.reset();
    }
    status layer(std::size_t i, const view& stream) {
        const auto own = of_layers(matrices_, {i, i + 1});
        if (i == brought_)
            return run_layer(i, stream);
        status s = m_.bring(own);
        if (s)
            s = run_layer(i, stream);
        m_.leave(own);
        return s;
    }
    status run_layer(std::size_t i, const view& stream) {
        const auto& d = m_.shape();
        inner_.resize(window_.size() * d.widest_inner());
        const auto attended = crumb::matrix(inner_.data(), window_.size(), d.attention_width());
        const auto activated = crumb::matrix(inner_.data(), window_.size(), d.hidden);
        status s = s_.run(pass_part::attention, i, stream, attended);
        if (s)
            s = s_.run(pass_part::add_attention, i, attended, stream);
        if (s)
            s = s_.run(pass_part::network, i, stream, activated);
        if (s)
            s = s_.run(pass_part::add_network, i, activated, stream);
        return s;
    }
    /// What the output matrix reads in the second half.
    status normed(const view& stream, std::vector<float>& to) {
        to.resize(scored_ * m_.shape().width);
        return s_.run(pass_part::output_input, 0,
                      crumb::rows(stream, {window_.size() - scored_, window_.size()}),
                      crumb::matrix(to.data(), scored_, m_.shape().width));
    }
    status output(const view& stream, std::vector<float>& logits) {
        const auto& d = m_.shape();
        logits.resize(scored_ * d.vocabulary);
        if (const status s = normed(stream, x_); !s)
            return s;
        return s_.run(pass_part::output, 0, crumb::matrix<const float>(x_.data(), scored_, d.width),
                      crumb::matrix(logits.data(), scored_, d.vocabulary));
    }
    double divergence_of(const std::vector<float>& logits) const {
        const std::size_t vocabulary = m_.shape().vocabulary;
        double sum = 0;
        for (std::size_t r = 0; r < scored_; ++r)
            sum += divergence(std::span(exact_).subspan(r * vocabulary, vocabulary),
                              std::span(logits).subspan(r * vocabulary, vocabulary));
        return sum / static_cast<double>(scored_);
    }
    /// With a residual stream in front of a layer, which changes.
    result<double> divergence_from(buffer& stream, std::size_t first) {
        for (std::size_t i = first; i < m_.shape().layers; ++i)
            if (const status s = layer(i, rows(stream)); !s)
                return s;
        if (const status s = output(rows(stream), logits_); !s)
            return s;
        return divergence_of(logits_);
    }
    /// As if the rows of the embedding had errors.
    status disturb_embedding(const view& stream) {
        const std::size_t width = m_.shape().width;
        std::vector<float> exact(width), row(width);
        for (std::size_t r = 0; r < window_.size(); ++r) {
            const auto token = static_cast<std::size_t>(window_[r]);
            m_.embedding(token, exact.data());
            row = exact;
            crumb::splitmix64 random(token);
            disturb(row, share_, random);
            for (std::size_t i = 0; i < width; ++i)
                stream.row(r)[i] += m_.shape().embedding_scale * (row[i] - exact[i]);
        }
        return {};
    }
    /// With errors in the output matrix.
    result<double> disturbed_output(const view& stream) {
        const auto& d = m_.shape();
        const auto tensor = m_.file().get_tensor(m_.output_tensor());
        if (!tensor)
            return tensor.error();
        const auto weights = tensor_rows::open(**tensor, m_.extras());
        if (!weights)
            return weights.error();
        if (const status s = normed(stream, x_); !s)
            return s;
        constexpr std::size_t batch = 1024;
        std::vector<float> errors, products(scored_ * batch), exact(d.width);
        crumb::splitmix64 random(2);
        logits_ = exact_;
        for (std::size_t first = 0; first < d.vocabulary; first += batch) {
            const std::size_t count = std::min(batch, d.vocabulary - first);
            errors.resize(count * d.width);
            for (std::size_t r = 0; r < count; ++r) {
                const auto row = std::span(errors).subspan(r * d.width, d.width);
                weights->read(first + r, exact.data());
                std::copy(exact.begin(), exact.end(), row.begin());
                disturb(row, share_, random);
                for (std::size_t i = 0; i < d.width; ++i)
                    row[i] -= exact[i];
            }
            const auto plan =
                crumb::dense_linear<float>::plan(crumb::matrix<const float>(errors.data(), count, d.width));
            if (!plan)
                return plan.error();
            plan->run(crumb::matrix<const float>(x_.data(), scored_, d.width),
                      crumb::matrix(products.data(), scored_, count));
            for (std::size_t r = 0; r < scored_; ++r)
                for (std::size_t i = 0; i < count; ++i)
                    logits_[r * d.vocabulary + first + i] += products[r * count + i];
        }
        return divergence_of(logits_);
    }

    model& m_;
    session& s_;
    std::vector<named_matrix> matrices_;
    std::optional<std::size_t> brought_; ///< a layer
    std::span<const std::int32_t> window_;
    std::size_t scored_;
    double share_;
    std::vector<float> exact_, logits_, inner_, x_;
};

} // namespace

result<sensitivities> measure_sensitivities(model& m, session& s, std::span<const std::int32_t> window,
                                            double share, const progress_function& progress) {
    return measurement(m, s, window, share).run(progress);
}

} // namespace lm
