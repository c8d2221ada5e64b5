// Vocabularies of synthetic models: bytes or letters, and words of a to z.
#pragma once

#include "gguf/gguf_writer.hpp"

#include <cstddef>

namespace lm {

/// The least number of tokens.
inline constexpr std::size_t min_spm_vocabulary = 354, min_bpe_vocabulary = 257;

/// Sets the keys of SentencePiece with byte fallback.
void put_spm(gguf_writer& file, std::size_t size);
/// Sets those of byte-level BPE.
void put_bpe(gguf_writer& file, std::size_t size);

} // namespace lm
