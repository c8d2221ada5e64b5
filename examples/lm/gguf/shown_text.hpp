// Paths and arguments in messages, which hold only so much.
#pragma once

#include <string>
#include <string_view>

namespace lm {

/// A path as a message shows it: the end of a long one, which says more than its beginning.
inline std::string shown_path(std::string_view path) {
    constexpr std::size_t most = 60;
    return path.size() <= most ? std::string(path) : "..." + std::string(path.substr(path.size() - most + 3));
}

/// What somebody has typed, as a message shows it: the beginning of a long text.
inline std::string shown_text(std::string_view text) {
    constexpr std::size_t most = 40;
    return text.size() <= most ? std::string(text) : std::string(text.substr(0, most - 3)) + "...";
}

} // namespace lm
