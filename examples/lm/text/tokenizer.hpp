// Text to tokens and back, with the vocabulary of a GGUF file.
#pragma once

#include "gguf/gguf.hpp"
#include "text/pair_table.hpp"
#include "text/piece_table.hpp"
#include "text/pre_tokenizer.hpp"
#include "text/special_tokens.hpp"
#include "text/symbol_merger.hpp"

#include <crumb/core/status.hpp>

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lm {

/// A vocabulary: byte-level BPE (`tokenizer.ggml.model` is `gpt2`) or SentencePiece's merging by score
/// (`llama`). Keeps nothing of the file. Const members may be called from several threads.
class tokenizer {
  public:
    tokenizer(tokenizer&&) noexcept = default;
    tokenizer& operator=(tokenizer&&) noexcept = default;

    /// Reads the keys `tokenizer.ggml.*`. Errors name the key, and the element where there is one.
    static crumb::result<tokenizer> make(const gguf& file);

    /// The tokens of a text of any bytes. With `add_special`, BOS before and EOS behind it where the model
    /// wants them (`add_bos_token`, by default for SentencePiece and some pre-tokenizers of BPE;
    /// `add_eos_token`). Names of user-defined tokens in the text are these tokens, names of control tokens
    /// are text. SentencePiece puts a space before the text, and behind every special token in it, unless
    /// `add_space_prefix` is false. BPE reads a byte that is part of no character as U+FFFD, and leaves out
    /// bytes that the vocabulary has no token for. Time is n log n in the text's length.
    ///
    /// The text is read in blocks of 64 KiB up to the end of a line; a text without lines is one block.
    /// Beside the tokens, memory is that of a block, and 100 bytes per byte of the longest part whose
    /// characters all may join: usually a word; a run of spaces if the vocabulary joins them.
    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, bool add_special) const;
    /// The first `most` tokens of `encode(text, add_special)`, or all if there are fewer. Reads no further
    /// than the block that the last one is in.
    [[nodiscard]] std::vector<std::int32_t> encode_first(std::string_view text, bool add_special,
                                                         std::size_t most) const;
    /// The tokens of a prompt, in which names of control tokens are these tokens but where they touch one of
    /// the ranges `quoted`, which are in order: what somebody has typed.
    [[nodiscard]] std::vector<std::int32_t> encode_prompt(std::string_view text, bool add_special,
                                                          std::span<const text_range> quoted = {}) const;

    /// The bytes of a token, which may be a part of a UTF-8 character: nothing for control tokens and for
    /// numbers outside the vocabulary.
    [[nodiscard]] std::string decode(std::int32_t token) const;
    /// The bytes of several tokens.
    [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const;

    /// Begin and end of sequence, where the model has them.
    [[nodiscard]] std::optional<std::int32_t> bos() const noexcept { return bos_; }
    [[nodiscard]] std::optional<std::int32_t> eos() const noexcept { return eos_; }
    /// Whether a token ends what the model has to say: EOS, or the end of a turn by the file's keys or by
    /// name. Not for tokens that are text, as those of models that know bytes only.
    [[nodiscard]] bool ends_text(std::int32_t token) const noexcept;
    [[nodiscard]] std::size_t vocab_size() const noexcept { return pieces_.size(); }

  private:
    class builder;
    tokenizer() = default;
    static constexpr std::int32_t none = piece_table::none;
    using token_list = std::vector<std::int32_t>;

    /// What `merges_` makes of two neighbours.
    struct bpe_merge {
        std::int32_t rank, token;
    };
    void encode_all(std::string_view text, bool add_special, const special_tokens& names,
                    std::span<const text_range> quoted, std::size_t most, token_list& out) const;
    [[nodiscard]] std::size_t block_end(std::string_view text, std::size_t at,
                                        const special_tokens& names) const;
    // These append whole pieces until `out` has `most` tokens, or more.
    void encode_bpe(std::string_view text, std::size_t most, token_list& out) const;
    void encode_word(std::string_view word, symbol_merger& merger, token_list& out) const;
    void encode_spm(std::string_view text, bool with_prefix, std::size_t most, token_list& out) const;
    /// Whether a symbol that ends with the left character may merge with one that begins with the right one.
    /// Characters of BPE are bytes.
    [[nodiscard]] bool may_join(char32_t left, char32_t right) const;
    /// A token of SentencePiece, or if there is none, what stands for its bytes.
    void append_spm(std::int32_t token, std::string_view bytes, token_list& out) const;

    bool is_bpe_ = false;
    bool add_bos_ = false;
    bool add_eos_ = false;
    bool add_space_prefix_ = false;
    std::optional<std::int32_t> bos_, eos_, unknown_;
    piece_table pieces_; ///< what each token decodes to (SentencePiece: with marks for spaces); those are
    /// found that text may become
    std::array<std::int32_t, 256> byte_tokens_ = {};
    special_tokens always_, in_prompts_; ///< user-defined tokens; control tokens as well
    std::vector<std::int32_t> ends_;     ///< of text, ascending

    std::optional<pre_tokenizer> pre_; ///< BPE
    pair_table<bpe_merge> merges_;     ///< BPE: by the tokens of both symbols
    std::bitset<65536> joined_bytes_;  ///< BPE: left * 256 + right

    pair_table<char> joined_; ///< SentencePiece: characters that are neighbours within a piece
    std::vector<float> scores_;
    std::size_t longest_piece_ = 0;
};

} // namespace lm
