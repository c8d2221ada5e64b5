// Regular expressions with Unicode properties, matched by PCRE2.
#pragma once

#include <crumb/core/status.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace lm {

/// Bytes [begin, end) of a text.
struct text_range {
    std::size_t begin, end;
    friend bool operator==(const text_range&, const text_range&) = default;
};

/// A compiled expression. Copies share it, and several threads may match with it, each by a `matcher`.
class regex {
  public:
    /// PCRE2's syntax over UTF-8. `\s` and `\S` are told apart by Unicode's White_Space. An error quotes the
    /// expression and says what is wrong with it.
    static crumb::result<regex> compile(std::string_view pattern);

    /// Looks for matches; of one thread.
    class matcher {
      public:
        explicit matcher(const regex& of);
        /// The first match in `text`, which is well-formed UTF-8, that begins at `from` or behind. Looks at
        /// nothing outside the text. Throws std::bad_alloc.
        std::optional<text_range> find(std::string_view text, std::size_t from);

      private:
        struct free_data {
            void operator()(pcre2_real_match_data_8* p) const noexcept;
            void operator()(pcre2_real_match_context_8* p) const noexcept;
        };
        std::shared_ptr<const pcre2_real_code_8> code_;
        std::unique_ptr<pcre2_real_match_data_8, free_data> data_;
        std::unique_ptr<pcre2_real_match_context_8, free_data> context_;
    };

  private:
    std::shared_ptr<const pcre2_real_code_8> code_;
};

} // namespace lm
