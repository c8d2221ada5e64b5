#include "train/kv_training.hpp"

#include "model/input_text.hpp"

#include <mutex>

namespace lm {

using crumb::result;
using crumb::status;

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
    s->observe_cache([&](std::size_t layer, const crumb::matrix_view<const float>& k,
                         const crumb::matrix_view<const float>& v) {
        if (const status added = samples->add(layer, k, v); !added)
            error = added;
    });
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
