// Training codebooks of the cache on a text.
#pragma once

#include "model/progress.hpp"
#include "model/session.hpp"

#include <crumb/offline/cache/samples.hpp>
#include <crumb/offline/cache/trained_codebooks.hpp>

#include <string>

namespace lm {

/// How codebooks are trained.
struct kv_training {
    std::string text; ///< a file, or `self`: text that the model writes
    std::size_t chunks = 64;
    std::size_t sinks = 4;
    crumb::kv_sharing sharing = crumb::kv_sharing::none;
    /// Of the model: second moments of queries, the output matrix and weights of tokens.
    crumb::code_errors errors = crumb::code_errors::weighted;
    std::uint64_t seed = 1;
    std::size_t threads = 1;
};

/// Keys and values of windows of a text.
crumb::result<crumb::kv_samples> collect_samples(const model& m, const kv_training& how,
                                                 const stage_function& progress);

/// Trains codebooks on samples, or on those of windows of a text.
crumb::result<crumb::kv_codebooks> train_codebooks(const crumb::kv_samples& samples,
                                                   const crumb::kv_codec& codec, const kv_training& how,
                                                   const stage_function& progress);
crumb::result<crumb::kv_codebooks> train_codebooks(const model& m, const crumb::kv_codec& codec,
                                                   const kv_training& how, const stage_function& progress);

} // namespace lm
