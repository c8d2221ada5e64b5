// A hash table from pairs of numbers.
#pragma once

#include "text/piece_table.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lm {

/// Values of pairs of numbers, of which the pair of two 0xFFFFFFFF must not occur. Grows as it is filled.
template <class Value>
class pair_table {
  public:
    /// Makes room for so many pairs.
    void reserve(std::size_t pairs) {
        if (hash_slots(pairs) > slots_.size())
            rehash(hash_slots(pairs));
    }
    /// Keeps the value unless the pair has one.
    void add(std::uint32_t left, std::uint32_t right, Value value) {
        if (2 * (count_ + 1) > slots_.size())
            rehash(hash_slots(2 * (count_ + 1)));
        slot& to = *find_slot(slots_, key_of(left, right));
        if (to.key != empty)
            return;
        to = {key_of(left, right), value};
        ++count_;
    }
    /// The value of a pair, or null.
    [[nodiscard]] const Value* find(std::uint32_t left, std::uint32_t right) const noexcept {
        if (slots_.empty())
            return nullptr;
        const slot* found = find_slot(slots_, key_of(left, right));
        return found->key == empty ? nullptr : &found->value;
    }
    [[nodiscard]] std::size_t size() const noexcept { return count_; }

  private:
    static constexpr std::uint64_t empty = ~std::uint64_t{0};
    struct slot {
        std::uint64_t key = empty;
        Value value = {};
    };
    static std::uint64_t key_of(std::uint32_t left, std::uint32_t right) noexcept {
        return std::uint64_t{left} << 32 | right;
    }
    template <class Slots>
    auto find_slot(Slots& slots, std::uint64_t key) const noexcept -> decltype(slots.data()) {
        std::size_t i = (key * factor_) >> (64 - std::countr_zero(slots.size()));
        while (slots[i].key != empty && slots[i].key != key)
            i = (i + 1) & (slots.size() - 1);
        return slots.data() + i;
    }
    void rehash(std::size_t size) {
        std::vector<slot> next(size);
        for (const slot& each : slots_)
            if (each.key != empty)
                *find_slot(next, each.key) = each;
        slots_ = std::move(next);
    }

    std::uint64_t factor_ = hash_factor();
    std::vector<slot> slots_;
    std::size_t count_ = 0;
};

} // namespace lm
