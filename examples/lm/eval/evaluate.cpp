#include "eval/evaluate.hpp"

#include "machine/seconds.hpp"

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

std::int32_t likeliest(std::span<const float> logits) {
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double surprise(std::span<const float> logits, std::int32_t token) {
    return log_sum_exp(logits) - double{logits[static_cast<std::size_t>(token)]};
}

double divergence(std::span<const float> exact, std::span<const float> model) {
    const double p_norm = log_sum_exp(exact), q_norm = log_sum_exp(model);
    double sum = 0;
    for (std::size_t t = 0; t < exact.size(); ++t) {
        const double log_p = double{exact[t]} - p_norm;
        sum += std::exp(log_p) * (log_p - (double{model[t]} - q_norm));
    }
    return std::max(sum, 0.0);
}

crumb::result<evaluation> evaluate(session& s, session* reference, std::span<const std::int32_t> text,
                                   std::size_t ctx, std::size_t chunks,
                                   const std::function<void(std::size_t, std::size_t)>& progress,
                                   const schedule_source* schedule) {
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
    std::optional<decoder> steps;
    std::vector<float> stepped;
    if (schedule != nullptr)
        steps.emplace(s, *schedule);
    const std::size_t first = ctx / 2, scored = ctx - 1 - first;
    for (std::size_t w = 0; w < windows; ++w) {
        const auto tokens = text.subspan(w * ctx, ctx);
        const auto start = std::chrono::steady_clock::now();
        std::span<const float> logits;
        if (steps) {
            const auto behind = steps->begin(tokens.first(first + 1));
            if (!behind)
                return behind.error();
            stepped.assign(behind->begin(), behind->end());
            for (const std::int32_t token : tokens.subspan(first + 1)) {
                const auto next = steps->step(token);
                if (!next)
                    return next.error();
                stepped.insert(stepped.end(), next->begin(), next->end());
            }
            logits = stepped;
        } else {
            s.reset();
            const auto fed = s.feed(tokens, ctx - first);
            if (!fed)
                return fed.error();
            logits = *fed;
        }
        e.seconds += seconds_since(start);
        e.fed += ctx;
        std::span<const float> exact;
        if (reference != nullptr) {
            reference->reset();
            const auto fed = reference->feed(tokens, ctx - first);
            if (!fed)
                return fed.error();
            exact = *fed;
            if (exact.size() != logits.size())
                return status::error(errc::bad_shape, "the reference has another vocabulary");
        }
        const std::size_t vocabulary = logits.size() / (ctx - first);
        for (std::size_t i = 0; i < scored; ++i) {
            const auto q = logits.subspan(i * vocabulary, vocabulary);
            nll.add(surprise(q, tokens[first + i + 1]));
            if (reference == nullptr)
                continue;
            const auto p = exact.subspan(i * vocabulary, vocabulary);
            kl.add(divergence(p, q));
            agreement.add(likeliest(p) == likeliest(q) ? 1.0 : 0.0);
        }
        if (progress)
            progress(w + 1, windows);
    }
    // Finite logits can lie so far apart that a probability is 0.
    if (!std::isfinite(nll.average) || !std::isfinite(kl.average))
        return status::error(errc::not_finite, "a token of the text has probability 0: logits are too large");
    e.tokens = windows * scored;
    e.nll = nll.average;
    e.nll_error = nll.error();
    e.kl = kl.average;
    e.kl_error = kl.error();
    e.agreement = agreement.average;
    e.bits = steps ? steps->average_bits() : 0;
    return e;
}

} // namespace lm
