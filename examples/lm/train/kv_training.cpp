#include "train/kv_training.hpp"

#include "model/input_text.hpp"

#include <crumb/offline/cache/codebooks.hpp>

#include <cmath>
#include <limits>
#include <mutex>

namespace lm {

using crumb::result;
using crumb::status;

namespace {

/// Tokens after which calibration takes one to be codes: the default window.
constexpr std::size_t coded_after = kv_type().window;

/// What a layer's values are multiplied with: the rows of its output matrix.
status weigh_values(const model& m, std::size_t layer, crumb::kv_samples& samples) {
    const auto tensor = m.file().get_tensor("blk." + std::to_string(layer) + ".attn_output.weight");
    if (!tensor)
        return tensor.error();
    const auto rows = tensor_rows::open(**tensor, m.extras());
    if (!rows)
        return rows.error();
    std::vector<float> row(rows->size());
    for (std::size_t r = 0; r < rows->rows(); ++r) {
        rows->read(r, row.data());
        if (const status s =
                samples.weigh(layer, false, crumb::matrix<const float>(row.data(), 1, row.size()));
            !s)
            return s;
    }
    return {};
}

/// How much errors of a window's tokens count, tokens x kv heads: the squares of the weights that later
/// queries give them, of those that meet them as codes.
std::vector<float> token_weights(const session::attention_inputs& in, const model_shape& d,
                                 std::size_t window) {
    constexpr std::size_t step = 8; // of queries, which are alike
    const std::size_t size = d.head_size, group = d.heads / d.kv_heads;
    const float scale = d.attention_scale != 0 ? d.attention_scale : 1 / std::sqrt(static_cast<float>(size));
    std::vector<float> out(in.keys.rows * d.kv_heads), scores(in.keys.rows);
    for (std::size_t r = window; r < in.queries.rows; r += step)
        for (std::size_t h = 0; h < d.heads; ++h) {
            const float* q = in.queries.row(r) + h * size;
            float most = -std::numeric_limits<float>::infinity(), sum = 0;
            for (std::size_t t = 0; t <= r; ++t) {
                const float* k = in.keys.row(t) + h / group * size;
                scores[t] = 0;
                for (std::size_t i = 0; i < size; ++i)
                    scores[t] += q[i] * k[i];
                scores[t] *= scale;
                most = std::max(most, scores[t]);
            }
            for (std::size_t t = 0; t <= r; ++t)
                sum += scores[t] = std::exp(scores[t] - most);
            for (std::size_t t = 0; t + window <= r; ++t)
                out[t * d.kv_heads + h / group] += scores[t] / sum * (scores[t] / sum);
        }
    return out;
}

} // namespace

result<crumb::kv_samples> collect_samples(const model& m, const kv_training& how,
                                          const stage_function& progress) {
    const model_shape& d = m.shape();
    const std::size_t window = std::min<std::size_t>(d.context, 512);
    // One thread: the keys and values of all heads have to be there when they are observed.
    auto s = session::make(m, team(1), kv_type::f16, window, window);
    if (!s)
        return s.error();
    const auto text = calibration_text(how.text, m, *s, window, how.chunks, how.seed, progress);
    if (!text)
        return text.error();
    auto samples = crumb::kv_samples::make({d.layers, d.kv_heads, d.head_size}, 512, how.seed);
    if (!samples)
        return samples.error();
    status error;
    s->observe_cache([&](const session::attention_inputs& in) {
        const bool by_attention = how.errors != crumb::code_errors::plain;
        const auto weights = by_attention ? token_weights(in, d, coded_after) : std::vector<float>();
        const status added =
            samples->add(in.layer, in.keys, in.values,
                         by_attention ? crumb::matrix<const float>(weights.data(), in.keys.rows, d.kv_heads)
                                      : crumb::matrix_view<const float>());
        const status weighed = by_attention ? samples->weigh(in.layer, true, in.queries) : status();
        for (const status& each : {added, weighed})
            if (!each)
                error = each;
    });
    for (std::size_t layer = 0; how.errors != crumb::code_errors::plain && layer < d.layers; ++layer)
        if (const status weighed = weigh_values(m, layer, *samples); !weighed)
            return weighed;
    const std::size_t windows = text->size() / window;
    for (std::size_t w = 0; w < windows; ++w) {
        s->reset();
        samples->begin_sequence(how.sinks);
        const auto fed = s->feed(std::span(*text).subspan(w * window, window), 0);
        for (const status& each : {error, fed.error()})
            if (!each)
                return each;
        if (progress)
            progress("calibration", w + 1, windows);
    }
    return samples;
}

result<crumb::kv_codebooks> train_codebooks(const crumb::kv_samples& samples, const crumb::kv_codec& codec,
                                            const kv_training& how, const stage_function& progress) {
    crumb::kv_training_options options;
    options.sharing = how.sharing;
    options.errors = how.errors;
    options.seed = how.seed;
    const team threads(how.threads);
    options.for_each = [&](std::size_t n, const std::function<void(std::size_t)>& f) {
        threads.run([&](std::size_t part, std::size_t parts) {
            for (std::size_t i = part; i < n; i += parts)
                f(i);
        });
    };
    std::mutex guard;
    std::size_t trained = 0;
    if (progress)
        options.progress = [&](std::size_t, std::size_t all) {
            const std::lock_guard lock(guard);
            progress("codebooks", ++trained, all);
        };
    return crumb::train_kv_codebooks(samples, codec, options);
}

result<crumb::kv_codebooks> train_codebooks(const model& m, const crumb::kv_codec& codec,
                                            const kv_training& how, const stage_function& progress) {
    const auto samples = collect_samples(m, how, progress);
    if (!samples)
        return samples.error();
    return train_codebooks(*samples, codec, how, progress);
}

} // namespace lm
