// Folding the feed-forward networks of a model.
#pragma once

#include "model/ffn_file.hpp"
#include "model/progress.hpp"
#include "model/session.hpp"

#include <functional>
#include <span>
#include <string>

namespace lm {

/// How networks are folded.
struct ffn_training {
    ffn_recipe recipe;
    std::string text; ///< a file, or `self`: text that the model writes
    std::size_t chunks = 64;
    std::uint64_t seed = 1;
    std::size_t threads = 0; ///< 0: all cores
    std::string csv;         ///< errors by layer and neuron and densities of inputs, or empty
};

/// Folds all layers of `m`, whose matrices are floats. The session is of the same
/// model, on one thread; it is fed and reset.
crumb::result<stored_ffns> fold_ffns(const model& m, session& s, const ffn_training& how,
                                     const stage_function& progress);

/// The same for several sizes, after one look at the text: each of `parameters` stands in the place of
/// `how.recipe.parameters`, and `each` gets the networks, which are gone after it.
crumb::status fold_ffns(const model& m, session& s, const ffn_training& how,
                        std::span<const double> parameters,
                        const std::function<crumb::status(const stored_ffns&)>& each,
                        const stage_function& progress);

} // namespace lm
