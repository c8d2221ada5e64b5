// Text of any bytes as byte-level BPE reads it: valid UTF-8, as regular expressions want it.
#pragma once

#include "text/unicode.hpp"

#include <cstring>

namespace lm {

/// Whether all of a text is well-formed UTF-8.
inline bool is_utf8(std::string_view text) noexcept {
    for (std::size_t at = 0; at < text.size();) {
        std::uint64_t eight = 0;
        if (text.size() - at >= sizeof eight) {
            std::memcpy(&eight, text.data() + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const utf8_char c = decode_utf8(text, at);
        if (c.size == 1 && c.value == 0xFFFD)
            return false;
        at += c.size;
    }
    return true;
}

/// A text as the reference implementation of byte-level BPE for GGUF files decodes and encodes it. A byte
/// that begins no sequence becomes U+FFFD, an overlong sequence the shortest, and surrogates stay.
class readable_text {
  public:
    /// `text` must outlive this object, which copies only what is no well-formed UTF-8.
    explicit readable_text(std::string_view text) : bytes_(text), shown_(text) {
        if (is_utf8(text))
            return;
        for (std::size_t at = 0; at < text.size();) {
            const utf8_char c = decode_utf8_leniently(text, at);
            const bool is_surrogate = c.value >= 0xD800 && c.value <= 0xDFFF;
            append_utf8(repaired_, c.value);
            append_utf8(stand_in_, is_surrogate ? U'\uE000' : c.value);
            at += c.size;
        }
        bytes_ = repaired_;
        shown_ = stand_in_;
    }
    readable_text(const readable_text&) = delete;
    readable_text& operator=(const readable_text&) = delete;

    /// What tokens are made of.
    [[nodiscard]] std::string_view bytes() const noexcept { return bytes_; }
    /// The same with another character of the same size and kind for each surrogate: well-formed UTF-8.
    [[nodiscard]] std::string_view shown() const noexcept { return shown_; }

  private:
    std::string repaired_, stand_in_;
    std::string_view bytes_, shown_;
};

} // namespace lm
