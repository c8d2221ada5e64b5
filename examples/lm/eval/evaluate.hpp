// Perplexity, and the distance from a reference model.
#pragma once

#include "model/precision.hpp"
#include "model/session.hpp"

#include <functional>

namespace lm {

/// How little the model expected `token`: the negative logarithm of the probability that it has by `logits`,
/// in nats.
double surprise(std::span<const float> logits, std::int32_t token);

/// The token of the largest logit, the first among equals.
std::int32_t likeliest(std::span<const float> logits);

/// KL(exact || model) of the distributions that logits stand for, in nats.
double divergence(std::span<const float> exact, std::span<const float> model);

/// What is measured over the scored positions of all windows.
struct evaluation {
    std::size_t tokens = 0; ///< scored positions
    double nll = 0;         ///< mean negative log-likelihood, nats
    double nll_error = 0;   ///< its standard error
    double kl = 0;          ///< mean KL(reference || model), nats; 0 without a reference
    double kl_error = 0;    ///< its standard error
    double agreement = 0;   ///< share of positions where both models' likeliest tokens are the same
    double seconds = 0;     ///< time spent in the model, without the reference
    std::size_t fed = 0;    ///< tokens fed to the model in that time
    double bits = 0;        ///< mean precision of the steps; 0 without a schedule
};

/// Cuts `text` into windows of `ctx` tokens and scores the second half of each: positions ctx/2 .. ctx-2
/// predict their successors, as llama.cpp's perplexity tool does. At most `chunks` windows (0: all); an
/// unfinished one is dropped. Logits that are not finite are an error. `progress(done, all)` is called after
/// every window. With a schedule, the first half of a window and one token more are its prompt, and what
/// follows are its steps, one at a time.
crumb::result<evaluation> evaluate(session& s, session* reference, std::span<const std::int32_t> text,
                                   std::size_t ctx, std::size_t chunks,
                                   const std::function<void(std::size_t, std::size_t)>& progress,
                                   const schedule_source* schedule = nullptr);

} // namespace lm
