// Codebooks of the cache in a model's file.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "model/kv.hpp"
#include "model/model.hpp"

#include <crumb/offline/cache/trained_codebooks.hpp>

#include <optional>

namespace lm {

/// Name of the codec among keys and tensors: `--kv` without sinks and window.
std::string codec_name(const crumb::kv_codec& codec);

/// What the names of a codec's keys and tensors begin with.
std::string codebooks_prefix(const crumb::kv_codec& codec);

/// As `read_kv_codebooks`; an error also if key `crumb.kv.<codec>.model` names another model.
crumb::result<std::optional<crumb::kv_codebooks>> read_codebooks(const model& m,
                                                                 const crumb::kv_codec& codec);

/// Adds them to a file, where that keeps them alive until it is written.
void write_codebooks(gguf_writer& to, const model& m, const crumb::kv_codebooks& books);

} // namespace lm
