// Layout of a page of a cache: the parts of all layers and kv heads.
#pragma once

#include <crumb/format/kv_part.hpp>

namespace crumb::inline CRUMB_ABI {

/// A page holds `tokens` tokens of all layers and kv heads, 256 of them in a part:
///
///     [layers][kv_heads]( keys [parts] | values [parts] )
///
/// Offsets are in bytes and multiples of `alignment`.
class kv_page_layout {
  public:
    constexpr kv_page_layout() = default;
    /// A page of `tokens` tokens, a multiple of 256, of all layers.
    constexpr kv_page_layout(const kv_codec& codec, std::size_t layers, std::size_t kv_heads,
                             std::size_t head_size, std::size_t tokens) noexcept
        : keys_(codec, head_size, true), values_(codec, head_size, false), key_bytes_(keys_.bytes()),
          value_bytes_(values_.bytes()), layers_(layers), kv_heads_(kv_heads),
          parts_(tokens / kv_part_tokens) {}

    /// Of parts of keys.
    constexpr const kv_part_layout& keys() const noexcept { return keys_; }
    /// Of parts of values.
    constexpr const kv_part_layout& values() const noexcept { return values_; }
    /// Of parts of keys or values.
    constexpr const kv_part_layout& part(bool keys) const noexcept { return keys ? keys_ : values_; }
    /// Parts of a head that lie one after another.
    constexpr std::size_t parts() const noexcept { return parts_; }
    /// Bytes of a part of a head, keys and values.
    constexpr std::size_t head_part_bytes() const noexcept { return key_bytes_ + value_bytes_; }
    /// Bytes in all.
    constexpr std::size_t bytes() const noexcept { return layers_ * layer_bytes(); }

    /// Where part i of a head's keys or values begins.
    constexpr std::size_t offset(std::size_t i, std::size_t layer, std::size_t kv_head,
                                 bool keys) const noexcept {
        const std::size_t head = layer * layer_bytes() + kv_head * parts_ * head_part_bytes();
        return keys ? head + i * key_bytes_ : head + parts_ * key_bytes_ + i * value_bytes_;
    }

  private:
    constexpr std::size_t layer_bytes() const noexcept { return kv_heads_ * parts_ * head_part_bytes(); }

    kv_part_layout keys_, values_;
    std::size_t key_bytes_ = 0, value_bytes_ = 0;
    std::size_t layers_ = 0, kv_heads_ = 0, parts_ = 1;
};

} // namespace crumb::inline CRUMB_ABI
