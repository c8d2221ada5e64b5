// Texts of tokens in one piece of memory, found by number and by text.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string_view>
#include <vector>

namespace lm {

/// An odd number that no file can know. The upper bits of a product with it choose slots, so that no
/// vocabulary is made to collide.
inline std::uint64_t hash_factor() {
    static const std::uint64_t factor = [] {
        std::random_device random;
        return (std::uint64_t{random()} << 32 | random()) | 1;
    }();
    return factor;
}

/// A power of two of which n are at most half.
inline std::size_t hash_slots(std::size_t n) noexcept {
    std::size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    return slots;
}

/// Numbered texts, of which some are found by what they say.
class piece_table {
  public:
    static constexpr std::int32_t none = -1;

    /// Makes room; more pieces than that must not be added.
    void reserve(std::size_t pieces, std::size_t bytes) {
        ends_.reserve(pieces);
        bytes_.reserve(bytes);
        slots_.assign(hash_slots(pieces), {0, none});
    }
    /// Adds the next piece. One that is indexed is found by its text, unless an earlier one has the same.
    void add(std::string_view text, bool indexed) {
        const auto id = static_cast<std::int32_t>(ends_.size());
        bytes_.insert(bytes_.end(), text.begin(), text.end());
        ends_.push_back(bytes_.size());
        if (!indexed)
            return;
        const std::uint32_t hash = hash_of(text);
        for (std::size_t i = slot_of(hash);; i = (i + 1) & (slots_.size() - 1)) {
            if (slots_[i].id == none) {
                slots_[i] = {hash, id};
                return;
            }
            if (slots_[i].hash == hash && (*this)[slots_[i].id] == text)
                return;
        }
    }

    [[nodiscard]] std::size_t size() const noexcept { return ends_.size(); }
    /// The text of a piece that there is.
    [[nodiscard]] std::string_view operator[](std::int32_t id) const noexcept {
        const auto i = static_cast<std::size_t>(id);
        const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
        return {bytes_.data() + begin, ends_[i] - begin};
    }
    /// The indexed piece with this text, or `none`.
    [[nodiscard]] std::int32_t find(std::string_view text) const noexcept {
        if (slots_.empty())
            return none;
        const std::uint32_t hash = hash_of(text);
        for (std::size_t i = slot_of(hash);; i = (i + 1) & (slots_.size() - 1)) {
            if (slots_[i].id == none)
                return none;
            if (slots_[i].hash == hash && (*this)[slots_[i].id] == text)
                return slots_[i].id;
        }
    }

  private:
    struct slot {
        std::uint32_t hash;
        std::int32_t id;
    };
    std::size_t slot_of(std::uint32_t hash) const noexcept {
        return hash >> (32 - std::countr_zero(slots_.size()));
    }
    std::uint32_t hash_of(std::string_view text) const noexcept {
        return static_cast<std::uint32_t>(std::hash<std::string_view>()(text) * factor_ >> 32);
    }

    std::uint64_t factor_ = hash_factor();
    std::vector<char> bytes_;
    std::vector<std::size_t> ends_;
    std::vector<slot> slots_;
};

} // namespace lm
