// Text that comes in pieces, given on in whole characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lm {

/// Holds back the beginning of a UTF-8 character until the rest is there. Bytes that are no such beginning
/// pass.
class utf8_stream {
  public:
    /// What can be shown after the next piece.
    std::string push(std::string_view piece) {
        held_ += piece;
        const std::size_t whole = held_.size() - unfinished(held_);
        std::string out = held_.substr(0, whole);
        held_.erase(0, whole);
        return out;
    }

  private:
    /// Bytes at the end that a character begins with.
    static std::size_t unfinished(std::string_view text) noexcept {
        for (std::size_t size = 1; size <= 3 && size <= text.size(); ++size) {
            const auto lead = static_cast<std::uint8_t>(text[text.size() - size]);
            if (lead < 0x80)
                return 0;
            if (lead < 0xC0)
                continue;
            const std::size_t wanted = lead < 0xC2 || lead > 0xF4 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
            return wanted > size && may_begin(text.substr(text.size() - size)) ? size : 0;
        }
        return 0;
    }
    /// Whether the second byte, if it is there, is one that this first byte can have.
    static bool may_begin(std::string_view text) noexcept {
        if (text.size() < 2)
            return true;
        const auto lead = static_cast<std::uint8_t>(text[0]), second = static_cast<std::uint8_t>(text[1]);
        const std::uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        const std::uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        return second >= least && second <= most;
    }

    std::string held_;
};

} // namespace lm
