// How byte-level BPE cuts text into words before it merges: by the expressions that go with a name.
#pragma once

#include "text/regex.hpp"

#include <string_view>
#include <vector>

namespace lm {

/// The expressions of one `tokenizer.ggml.pre`, and what else follows from that name.
class pre_tokenizer {
  public:
    /// An error names the name and lists those that are known.
    static crumb::result<pre_tokenizer> make(std::string_view name);

    /// Whether a word that is a token is taken as it is, whatever merges would make of it.
    [[nodiscard]] bool ignores_merges() const noexcept { return ignores_merges_; }
    /// Whether text begins with BOS unless the file says otherwise.
    [[nodiscard]] bool adds_bos() const noexcept { return adds_bos_; }

    /// Cuts texts; of one thread.
    class splitter {
      public:
        explicit splitter(const pre_tokenizer& of);
        /// Calls `visit(word)` for all words of a well-formed text in order, until it returns false.
        template <class Visit>
        void for_each(std::string_view text, const Visit& visit) {
            (void)cut(text, 0, visit);
        }

      private:
        // Every expression cuts what those before it have left in one piece, around its matches.
        template <class Visit>
        bool cut(std::string_view text, std::size_t stage, const Visit& visit) {
            if (text.empty())
                return true;
            if (stage == stages_.size())
                return visit(text);
            std::size_t done = 0;
            while (done < text.size()) {
                const auto found = stages_[stage].find(text, done);
                // None of the expressions matches nothing.
                if (!found || found->end == found->begin)
                    break;
                if (!cut(text.substr(done, found->begin - done), stage + 1, visit) ||
                    !cut(text.substr(found->begin, found->end - found->begin), stage + 1, visit))
                    return false;
                done = found->end;
            }
            return cut(text.substr(done), stage + 1, visit);
        }

        std::vector<regex::matcher> stages_;
    };

  private:
    std::vector<regex> stages_;
    bool ignores_merges_ = false;
    bool adds_bos_ = false;
};

} // namespace lm
