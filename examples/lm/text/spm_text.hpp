// Characters and pieces as SentencePiece has them.
#pragma once

#include "text/unicode.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>

namespace lm {

/// What stands for a space within pieces.
inline constexpr std::string_view space_mark = "\xE2\x96\x81";

/// A piece with its spaces.
inline std::string with_spaces(std::string_view piece) {
    std::string out;
    for (std::size_t at = 0; at < piece.size();) {
        const bool mark = piece.substr(at).starts_with(space_mark);
        out += mark ? ' ' : piece[at];
        at += mark ? space_mark.size() : 1;
    }
    return out;
}

/// A text as pieces have it, with a space before it or without.
inline std::string with_marks(bool space_before, std::string_view text) {
    std::string out(space_before ? space_mark : std::string_view());
    out.reserve(out.size() + text.size() + text.size() / 2);
    for (const char c : text)
        if (c == ' ')
            out += space_mark;
        else
            out += c;
    return out;
}

/// The byte that a piece `<0xXX>` stands for.
inline std::optional<std::uint8_t> fallback_byte(std::string_view piece) noexcept {
    std::uint8_t value = 0;
    if (piece.size() != 6 || !piece.starts_with("<0x") || !piece.ends_with('>'))
        return std::nullopt;
    const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
    return error == std::errc() && end == piece.data() + 5 ? std::optional(value) : std::nullopt;
}

/// The character of SentencePiece at `text[at]`: as many bytes as the first one says, whatever they are. Each
/// that is no character has a number of its own beyond Unicode's, by its bytes.
inline utf8_char spm_char(std::string_view text, std::size_t at) noexcept {
    const auto lead = static_cast<std::uint8_t>(text[at]);
    const std::size_t wanted = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    const std::size_t size = std::min(wanted, text.size() - at);
    const utf8_char c = decode_utf8(text, at);
    if (c.size == size && (c.value != 0xFFFD || size == 3))
        return c;
    char32_t number = 0x811C9DC5u;
    for (std::size_t i = 0; i < size; ++i)
        number = (number ^ static_cast<std::uint8_t>(text[at + i])) * 0x01000193u;
    return {number | 0x80000000u, size};
}

} // namespace lm
