#include "evaluate.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace lm {
namespace {

double log_sum_exp(std::span<const float> x) {
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (float v : x)
        sum += std::exp(double{v} - most);
    return most + std::log(sum);
}

std::size_t likeliest(std::span<const float> x) {
    return static_cast<std::size_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

/// Mean and standard error of a stream of values.
struct mean {
    double n = 0, average = 0, squares = 0;
    void add(double x) {
        const double d = x - average;
        average += d / ++n;
        squares += d * (x - average);
    }
    double error() const { return n > 1 ? std::sqrt(squares / (n - 1) / n) : 0.0; }
};

} // namespace

double surprise(std::span<const float> logits, std::int32_t token) {
    return log_sum_exp(logits) - double{logits[static_cast<std::size_t>(token)]};
}

crumb::result<evaluation> evaluate(session& s, session* reference, std::span<const std::int32_t> text,
                                   std::size_t ctx, std::size_t chunks,
                                   const std::function<void(std::size_t, std::size_t)>& progress) {
    using crumb::errc;
    using crumb::status;
    if (ctx < 4)
        return status::error(errc::invalid_argument, "a window of %zu tokens is too short: 4 are needed",
                             ctx);
    if (ctx > s.context() || (reference != nullptr && ctx > reference->context()))
        return status::error(
            errc::invalid_argument, "a window of %zu tokens does not fit the context of %zu", ctx,
            reference != nullptr ? std::min(s.context(), reference->context()) : s.context());
    std::size_t windows = text.size() / ctx;
    if (windows == 0)
        return status::error(errc::invalid_argument, "the text has %zu tokens, one window needs %zu",
                             text.size(), ctx);
    if (chunks != 0)
        windows = std::min(windows, chunks);

    evaluation e;
    mean nll, kl, agreement;
    const std::size_t first = ctx / 2, scored = ctx - 1 - first;
    for (std::size_t w = 0; w < windows; ++w) {
        const auto tokens = text.subspan(w * ctx, ctx);
        const auto start = std::chrono::steady_clock::now();
        s.reset();
        const auto logits = s.feed(tokens, ctx - first);
        e.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        e.fed += ctx;
        std::span<const float> exact;
        if (reference != nullptr) {
            reference->reset();
            exact = reference->feed(tokens, ctx - first);
            if (exact.size() != logits.size())
                return status::error(errc::bad_shape, "the reference has another vocabulary");
        }
        const std::size_t vocabulary = logits.size() / (ctx - first);
        for (std::size_t i = 0; i < scored; ++i) {
            const auto q = logits.subspan(i * vocabulary, vocabulary);
            const double q_norm = log_sum_exp(q);
            nll.add(q_norm - double{q[static_cast<std::size_t>(tokens[first + i + 1])]});
            if (reference == nullptr)
                continue;
            const auto p = exact.subspan(i * vocabulary, vocabulary);
            const double p_norm = log_sum_exp(p);
            double divergence = 0;
            for (std::size_t t = 0; t < vocabulary; ++t) {
                const double log_p = double{p[t]} - p_norm;
                divergence += std::exp(log_p) * (log_p - (double{q[t]} - q_norm));
            }
            kl.add(std::max(divergence, 0.0));
            agreement.add(likeliest(p) == likeliest(q) ? 1.0 : 0.0);
        }
        if (progress)
            progress(w + 1, windows);
    }
    if (!std::isfinite(nll.average) || !std::isfinite(kl.average))
        return status::error(errc::not_finite, "the model's output is not finite: its weights are too large");
    e.tokens = windows * scored;
    e.nll = nll.average;
    e.nll_error = nll.error();
    e.kl = kl.average;
    e.kl_error = kl.error();
    e.agreement = agreement.average;
    return e;
}

} // namespace lm
