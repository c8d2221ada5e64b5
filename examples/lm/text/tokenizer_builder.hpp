// Reads a vocabulary from the keys of a file.
#pragma once

#include "text/tokenizer.hpp"

namespace lm {

/// Fills a `tokenizer` from the keys of a file, which it refers to.
class tokenizer::builder {
  public:
    builder(const gguf& file, tokenizer& out) noexcept : file_(file), out_(out) {}
    crumb::status run();

  private:
    /// Types of `tokenizer.ggml.token_type`.
    enum token_type : std::int32_t {
        normal = 1,
        unknown = 2,
        control = 3,
        user_defined = 4,
        unused = 5,
        byte = 6
    };

    crumb::status read_tokens();
    crumb::status same_length(const char* key, std::size_t size) const;
    crumb::status read_id(const char* key, std::optional<std::int32_t>& to) const;
    crumb::status read_ids();
    crumb::status read_flag(const char* name, bool fallback, bool& flag) const;
    crumb::status read_bpe();
    crumb::status read_merges();
    crumb::status read_spm();
    crumb::status read_piece(std::size_t i);
    crumb::status read_names();
    crumb::status require_bytes() const;
    [[nodiscard]] token_type guessed_type(std::size_t token) const noexcept;
    [[nodiscard]] std::string bytes_of(std::int32_t token) const;
    void correct_types();
    void join_characters(std::string_view piece);
    [[nodiscard]] std::string_view text(std::int32_t token) const noexcept { return by_text_[token]; }

    const gguf& file_;
    tokenizer& out_;
    piece_table by_text_; ///< as the file has them
    std::vector<std::int32_t> types_;
    std::optional<std::int32_t> eot_, eom_;
};

} // namespace lm
