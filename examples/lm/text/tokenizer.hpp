// Text to tokens and back, with the vocabulary of a GGUF file.
#pragma once

#include "gguf/gguf.hpp"
#include "text/symbol_merger.hpp"

#include <crumb/core/status.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace lm {

/// A vocabulary: GPT-2's byte-level BPE (`tokenizer.ggml.model` is `gpt2`) or SentencePiece's merging by
/// score (`llama`). Keeps nothing of the file. Const members may be called from several threads.
///
/// Text is text: the names of control and user-defined tokens in it are not recognized.
class tokenizer {
  public:
    tokenizer(tokenizer&&) noexcept = default;
    tokenizer& operator=(tokenizer&&) noexcept = default;

    /// Reads the keys `tokenizer.ggml.*`. Errors name the key, and the element where there is one.
    static crumb::result<tokenizer> make(const gguf& file);

    /// The tokens of a text of any bytes. With `add_special`, BOS before and EOS behind it where the model
    /// wants them (`add_bos_token`, by default for SentencePiece only; `add_eos_token`). SentencePiece puts a
    /// space before the text unless `add_space_prefix` is false. Time is n log n in the text's length.
    ///
    /// The text is read in pieces, cut between two characters that no merge joins (BPE: between words too).
    /// Beside the tokens, memory is that of the longest piece, up to 100 bytes per byte: usually a word; the
    /// whole text if the vocabulary joins all of its characters, as a run of spaces.
    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, bool add_special) const;
    /// The first `most` tokens of `encode(text, add_special)`, or all if there are fewer. Reads no further
    /// than the piece that the last one is in (BPE: to that word's end).
    [[nodiscard]] std::vector<std::int32_t> encode_first(std::string_view text, bool add_special,
                                                         std::size_t most) const;

    /// The bytes of a token, which may be a part of a UTF-8 character: nothing for control tokens and for
    /// numbers outside the vocabulary.
    [[nodiscard]] std::string decode(std::int32_t token) const;
    /// The bytes of several tokens.
    [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const;

    /// Begin and end of sequence, where the model has them.
    [[nodiscard]] std::optional<std::int32_t> bos() const noexcept { return bos_; }
    [[nodiscard]] std::optional<std::int32_t> eos() const noexcept { return eos_; }
    [[nodiscard]] std::size_t vocab_size() const noexcept { return pieces_.size(); }

  private:
    class builder;
    tokenizer() = default;
    static constexpr std::int32_t none = -1;

    /// These append whole pieces until `out` has `most` tokens, or more.
    void encode_bpe(std::string_view text, std::size_t most, std::vector<std::int32_t>& out) const;
    void encode_spm(std::string_view text, std::size_t most, std::vector<std::int32_t>& out) const;
    /// Whether a symbol that ends with the left character may merge with one that begins with the right one.
    /// Characters of BPE are bytes.
    [[nodiscard]] bool may_join(char32_t left, char32_t right) const;
    /// A token, or if there is none, what stands for its bytes.
    void append(std::int32_t token, std::string_view bytes, std::vector<std::int32_t>& out) const;

    bool is_bpe_ = false;
    bool add_bos_ = false;
    bool add_eos_ = false;
    bool add_space_prefix_ = false;
    std::optional<std::int32_t> bos_, eos_, unknown_;
    std::vector<std::string> pieces_; ///< what each token decodes to
    std::array<std::int32_t, 256> byte_tokens_ = {};

    std::unordered_set<std::uint64_t> joined_;               ///< the pairs of which `may_join` is true
    std::unordered_map<std::uint64_t, symbol_merge> merges_; ///< BPE: by both symbols
    std::vector<std::int32_t> symbol_tokens_;                ///< BPE: the token of each symbol, or `none`

    std::unordered_map<std::string_view, std::int32_t> tokens_; ///< SentencePiece: by text, into `pieces_`
    std::vector<float> scores_;
    std::size_t longest_piece_ = 0;
};

} // namespace lm
