// Numbers in the texts of options.
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace lm {

/// Reads a number that is all of `text`; false if it is none, or too large.
template <class T>
bool parse_number(std::string_view text, T& to) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
    return error == std::errc() && end == text.data() + text.size();
}

} // namespace lm
