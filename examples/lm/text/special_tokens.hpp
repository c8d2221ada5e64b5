// Names of special tokens, found in text before anything else is.
#pragma once

#include "text/piece_table.hpp"
#include "text/regex.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lm {

/// A part of a text: a special token, or text that none is in.
struct text_fragment {
    text_range at;
    std::int32_t token; ///< or -1
};

/// Some tokens' names.
class special_tokens {
  public:
    struct name {
        std::string_view text;
        std::int32_t token;
        bool in_quotes;    ///< found in what is quoted as well
        bool strips_right; ///< spaces behind it vanish
    };
    /// Empty names are left out.
    void assign(std::span<const name> names);

    /// Whether a name has a letter before a line's end within it, or ends in a letter and strips.
    [[nodiscard]] bool crosses_lines() const noexcept { return crosses_lines_; }

    /// Cuts `text` around names: the longest first, wherever they are; of equally long ones the leftmost.
    /// Ranges of `quoted`, in order, have only names that are found there. A place of the text costs as much
    /// as it has in common with a name.
    void cut(std::string_view text, std::span<const text_range> quoted,
             std::vector<text_fragment>& out) const;

  private:
    struct found {
        std::size_t begin;
        std::int32_t name;
    };
    /// Adds all names that begin at a place of the text, the shorter before the longer.
    void find_at(std::string_view text, std::size_t at, std::vector<found>& out) const;
    void find(std::string_view text, std::span<const text_range> quoted, std::vector<found>& out) const;

    struct entry {
        std::int32_t token;
        bool in_quotes, strips_right;
    };
    piece_table names_;
    std::vector<entry> entries_;
    std::vector<std::int32_t> sorted_;     ///< names by their bytes
    std::array<std::size_t, 257> first_{}; ///< where those begin in `sorted_` that begin with a byte
    bool crosses_lines_ = false;
};

} // namespace lm
