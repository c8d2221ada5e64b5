// How models of conversations want them written.
#pragma once

#include "text/regex.hpp"

#include <crumb/core/status.hpp>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lm {

enum class chat_role { system, user, assistant };

struct chat_message {
    chat_role role;
    std::string text;
};

/// A text to be encoded as a prompt, and which parts of it are messages: in those, names of control tokens
/// are text.
struct chat_text {
    std::string text;
    std::vector<text_range> quoted;
};

struct chat_rules;

/// One of the formats that models are trained on.
class chat_format {
  public:
    /// The format with this name; an error lists the names.
    static crumb::result<chat_format> named(std::string_view name);
    /// The format that a template (`tokenizer.chat_template`, in Jinja) writes, told by what it mentions. An
    /// error if it is none of ours, or empty.
    static crumb::result<chat_format> of_template(std::string_view text);
    /// All names, parted by ", ".
    static std::string names();

    [[nodiscard]] std::string_view name() const noexcept;

    /// The messages up to the place where the model goes on. The system's message, if there is one, comes
    /// first; then users' and the assistant's take turns, a user's last. BOS is the tokenizer's.
    [[nodiscard]] chat_text prompt(std::span<const chat_message> messages) const;
    /// What comes behind an answer that the model has given, with the next message: `prompt` of both is that
    /// of what was before, the answer, and this.
    [[nodiscard]] chat_text next(std::string_view message) const;

  private:
    explicit chat_format(const chat_rules& rules) noexcept : rules_(&rules) {}
    const chat_rules* rules_;
};

} // namespace lm
