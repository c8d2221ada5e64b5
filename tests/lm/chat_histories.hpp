// Conversations that formats are tried on: what tests/data/chats.txt is made of.
#pragma once

#include "text/chat_format.hpp"

#include <string>
#include <vector>

namespace lm::test {

/// Histories that end with a user's message, with and without the system's, with spaces around messages.
inline std::vector<std::vector<chat_message>> chat_histories() {
    const chat_message system{chat_role::system, "You are terse."};
    const chat_message first{chat_role::user, "Hello"}, answer{chat_role::assistant, "Hi there"};
    const chat_message second{chat_role::user, "  Who are you?\n"},
        padded{chat_role::assistant, " I am a model.\n\n"};
    const chat_message third{chat_role::user, "Line one\nline two"};
    return {{first},
            {system, first},
            {first, answer, second},
            {system, first, answer, second, padded, third},
            {{chat_role::system, " spaced \n"}, second}};
}

/// One line of a text.
inline std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text)
        out += c == '\n' ? std::string("\\n") : std::string(1, c);
    return out;
}

} // namespace lm::test
