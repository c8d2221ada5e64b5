// UTF-8, and GPT-2's characters for bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lm {

/// A character and the bytes it takes in UTF-8.
struct utf8_char {
    char32_t value;
    std::size_t size;
};

/// Whether a byte is a letter of ASCII.
constexpr bool is_letter(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// The character at `text[at]`, `at < text.size()`, also of a sequence that is longer than it need be, and a
/// surrogate. A byte that begins no sequence stands for itself, as one U+FFFD.
inline utf8_char decode_utf8_leniently(std::string_view text, std::size_t at) noexcept {
    const auto lead = static_cast<std::uint8_t>(text[at]);
    if (lead < 0x80)
        return {lead, 1};
    const std::size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC0 || lead >= 0xF8 || text.size() - at < size)
        return {0xFFFD, 1};
    char32_t value = lead & (0x7Fu >> size);
    for (std::size_t i = 1; i < size; ++i) {
        const auto next = static_cast<std::uint8_t>(text[at + i]);
        if ((next & 0xC0) != 0x80)
            return {0xFFFD, 1};
        value = value << 6 | (next & 0x3Fu);
    }
    return value > 0x10FFFF ? utf8_char{0xFFFD, 1} : utf8_char{value, size};
}

/// The character at `text[at]`, `at < text.size()`. A byte that begins no well-formed sequence stands for
/// itself, as one U+FFFD.
inline utf8_char decode_utf8(std::string_view text, std::size_t at) noexcept {
    constexpr char32_t lowest[] = {0, 0, 0x80, 0x800, 0x10000};
    const utf8_char c = decode_utf8_leniently(text, at);
    const bool surrogate = c.value >= 0xD800 && c.value <= 0xDFFF;
    return c.value < lowest[c.size] || surrogate ? utf8_char{0xFFFD, 1} : c;
}

/// Appends a character as UTF-8.
inline void append_utf8(std::string& out, char32_t c) {
    const auto put = [&out](char32_t byte) { out += static_cast<char>(byte); };
    if (c < 0x80)
        return put(c);
    if (c < 0x800) {
        put(0xC0 | c >> 6);
    } else {
        if (c < 0x10000) {
            put(0xE0 | c >> 12);
        } else {
            put(0xF0 | c >> 18);
            put(0x80 | (c >> 12 & 0x3F));
        }
        put(0x80 | (c >> 6 & 0x3F));
    }
    put(0x80 | (c & 0x3F));
}

/// GPT-2's character for each byte: the byte's own if that is printable, otherwise one from U+0100 on.
inline constexpr auto gpt2_characters = [] {
    std::array<char32_t, 256> characters = {};
    char32_t next = 0x100;
    for (char32_t b = 0; b < 256; ++b) {
        const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
        characters[b] = printable ? b : next++;
    }
    return characters;
}();

/// The bytes that a text of GPT-2's characters stands for; other characters are kept as they are.
inline std::string gpt2_bytes(std::string_view text) {
    constexpr auto bytes = [] {
        std::array<std::int16_t, 0x144> table = {};
        table.fill(-1);
        for (std::size_t b = 0; b < 256; ++b)
            table[gpt2_characters[b]] = static_cast<std::int16_t>(b);
        return table;
    }();
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const utf8_char c = decode_utf8(text, at);
        if (c.value < bytes.size() && bytes[c.value] >= 0)
            out += static_cast<char>(bytes[c.value]);
        else
            out += text.substr(at, c.size);
        at += c.size;
    }
    return out;
}

} // namespace lm
