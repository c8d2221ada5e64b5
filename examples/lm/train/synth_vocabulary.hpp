// Vocabularies of synthetic models.
#pragma once

#include "gguf/gguf_writer.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lm {

/// The first token of `put_spm`'s pieces; before it come <unk>, <s>, </s> and the 256 bytes.
inline constexpr std::int32_t first_spm_piece = 259;
/// Sets the keys of SentencePiece with byte fallback, and with these pieces and scores.
void put_spm(gguf_writer& file, const std::vector<std::pair<std::string, float>>& pieces);

/// The least number of tokens of the vocabularies below.
inline constexpr std::size_t min_spm_vocabulary = 354, min_bpe_vocabulary = 257;

/// Sets the keys of SentencePiece: bytes, letters, and words of a to z.
void put_spm_words(gguf_writer& file, std::size_t size);
/// Sets those of byte-level BPE: bytes and such words.
void put_bpe_words(gguf_writer& file, std::size_t size);

} // namespace lm
