// Codebooks of the cache: in a model's file, or trained on a text.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "model/session.hpp"
#include "train/quantizer.hpp"

#include <crumb/offline/cache/codebooks.hpp>

#include <optional>

namespace lm {

/// A number that a model keeps when its matrices are quantized: of its shape, norms and biases.
std::uint64_t model_identity(const model& m);

/// Name of the codec among keys and tensors: `--kv` without sinks and window.
std::string codec_name(const crumb::kv_codec& codec);

/// The codebooks that a file has for a codec: tensors `crumb.kv.<codec>.entries`, `.scales` and perhaps
/// `.metric`, keys `.version`, `.model`, `.head_size`, `.layer_step`, `.head_step` and `.sets`. Nothing if it
/// has none; an error if they are damaged, of another model or of a version this program does not read.
crumb::result<std::optional<crumb::kv_codebooks>> read_codebooks(const model& m,
                                                                 const crumb::kv_codec& codec);

/// Adds them to a file, where that keeps them alive until it is written.
void write_codebooks(gguf_writer& to, const model& m, const crumb::kv_codebooks& books);

/// How codebooks are trained.
struct kv_training {
    std::string text; ///< a file, or `self`: text that the model writes
    std::size_t chunks = 64;
    std::size_t sinks = 4;
    crumb::kv_sharing sharing = crumb::kv_sharing::none;
    std::uint64_t seed = 1;
    std::size_t threads = 1;
};

/// Called with what is done of a stage.
using kv_progress = std::function<void(const char* stage, std::size_t done, std::size_t all)>;

/// Keys and values of windows of a text.
crumb::result<crumb::kv_samples> collect_samples(const model& m, const kv_training& how,
                                                 const kv_progress& progress);

/// Trains codebooks on samples, or on those of windows of a text.
crumb::result<crumb::kv_codebooks> train_codebooks(const crumb::kv_samples& samples,
                                                   const crumb::kv_codec& codec, const kv_training& how,
                                                   const kv_progress& progress);
crumb::result<crumb::kv_codebooks> train_codebooks(const model& m, const crumb::kv_codec& codec,
                                                   const kv_training& how, const kv_progress& progress);

} // namespace lm
