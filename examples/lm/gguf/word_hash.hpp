// A hash of bytes, to tell files apart.
#pragma once

#include "gguf/gguf.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace lm {

/// FNV-1a, eight bytes at a time. Not for what somebody might forge.
class word_hash {
  public:
    void add(std::uint64_t word) noexcept { value_ = (value_ ^ word) * 0x100000001b3u; }
    /// With their number.
    void add(std::span<const std::byte> bytes) noexcept {
        add(bytes.size());
        for (std::size_t i = 0; i < bytes.size(); i += 8) {
            std::uint64_t word = 0;
            std::memcpy(&word, bytes.data() + i, std::min<std::size_t>(8, bytes.size() - i));
            add(word);
        }
    }
    void add(std::string_view text) noexcept { add(std::as_bytes(std::span(text))); }
    /// The keys of a file and their values.
    void add_values(const gguf& file) noexcept {
        for (const gguf_value& value : file.values()) {
            add(value.key);
            add(static_cast<std::uint64_t>(value.kind) << 1 | std::uint64_t{value.is_array});
            add(value.bytes);
        }
    }
    std::uint64_t value() const noexcept { return value_; }

  private:
    std::uint64_t value_ = 0xcbf29ce484222325u;
};

} // namespace lm
