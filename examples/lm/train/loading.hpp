// Models as they are run: read, quantized or given codebooks on the way, with a session.
#pragma once

#include "model/progress.hpp"
#include "model/session.hpp"

#include <crumb/offline/cache/trained_codebooks.hpp>

#include <memory>
#include <optional>
#include <string>

namespace lm {

/// Which model runs, and how.
struct load_options {
    std::string model; ///< its file
    weight_type weights = weight_type::stored;
    activation_type activations = activation_type::int8;
    kv_type kv = kv_type::f16;
    ffn_type ffn = ffn_type::dense;
    bool ffn_by_lists = false;            ///< see `model_options`
    std::size_t threads = 0;              ///< 0: all
    bool always_shared = false;           ///< no step of the model comes down to one thread: see `team`
    bool floats_on_demand = false;        ///< see `model_options`
    bool default_codebooks = false;       ///< of the cache, where the file has none: none are trained
    bool cache = false;                   ///< packs the weights into a file beside the model, or uses that
    std::optional<pack_source> source;    ///< of `model`, if that is packed and its source was just described
    std::size_t calibration_windows = 16; ///< of random tokens, for weights that are quantized on the way
};

/// What loading tells while it works; each may be empty.
struct load_events {
    stage_function progress;
    std::function<void(const std::string& text)> notice; ///< something is made that the file lacks
};

/// A model with a session over it.
struct loaded_model {
    std::unique_ptr<model> weights;
    std::unique_ptr<crumb::kv_codebooks> codebooks; ///< of the cache, or null
    std::optional<session> run;
};

/// The model without a session. Weights that are not rounded one by one are quantized on random tokens;
/// codebooks of the cache that the file lacks are trained on text that the model writes, or default ones.
crumb::result<loaded_model> load(const load_options& options, const load_events& events = {});
/// Its session. A context of 0 is the model's; of another one it is checked that there is memory for it.
crumb::status start(loaded_model& model, const load_options& options, std::size_t context, std::size_t batch);
/// Both.
crumb::result<loaded_model> load(const load_options& options, std::size_t context, std::size_t batch,
                                 const load_events& events = {});

/// The model in the file `against`, in full precision with an f16 cache; nothing loaded if the name is empty.
/// Refuses another vocabulary than `other` has.
crumb::result<loaded_model> load_against(const std::string& against, const model& other,
                                         const load_options& options, std::size_t context, std::size_t batch,
                                         const load_events& events = {});

} // namespace lm
