// Packed indices into codebooks: 2, 3 or 4 bits that become nibbles, each an entry of a 16-entry table.
#pragma once

#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// Packed indices of `Bits` bits, beside `Selectors` low bits of each group's scale that select the codebook.
/// Index q of a group with selector s stands for entry (q << Selectors) + s of the table set, 16 signed
/// bytes: its codebooks, interleaved.
///
/// A tile begins with two register rows of pairs of bits, the upper two of each index (Bits = 4: four rows of
/// nibbles, as `nibble_codes`). With j = k % 16 / 4, row j / 2 has those of input k of channel c in byte
/// 4 c + k % 4, the pair at bit (j even ? 2 : 0) + (k < 16 ? 0 : 4). Bits = 3: one more row, whose byte
/// 4 c + k % 4 has the lowest bits of the indices at bit {1, 2, 0, 3}[j] + (k < 16 ? 0 : 4). So one shift and
/// one bit-select make a register of nibbles out of each.
template <int Bits, int Selectors>
struct index_codes {
    static_assert((Bits == 2 || Bits == 3 || Bits == 4) && Selectors >= 0 && Bits + Selectors <= 4);
    static constexpr int bits = Bits;
    static constexpr int selector_bits = Selectors;
    /// Whether a nibble holds two indices.
    static constexpr bool paired = Bits == 2 && Selectors == 0;
    static constexpr std::size_t rows = 4; ///< register rows of nibbles
    static constexpr std::size_t bytes = std::size_t{Bits} * tile_row_bytes;
    static constexpr std::size_t table_entries = 16;
    static constexpr int minimum = 0;
    static constexpr int maximum = (1 << Bits) - 1;
    static constexpr int panel_shift = 7; ///< as in `nibble_codes`, of the codebook's entries

    /// The entry of the table set.
    static constexpr std::size_t entry(int index, unsigned selector) noexcept {
        return static_cast<std::size_t>(index << Selectors) + (selector & ((1u << Selectors) - 1u));
    }

    /// Where the lowest bits of the indices of register row `row` of nibbles lie in a nibble. Bits = 3 only.
    static constexpr std::size_t low_of(std::size_t row) noexcept {
        constexpr std::size_t at[4] = {1, 2, 0, 3};
        return at[row];
    }

    /// Writes the index of input k into a tile whose bytes were zero.
    static constexpr void put(std::uint8_t* tile, std::size_t channel, std::size_t k, int index) noexcept {
        const auto set = [&](std::size_t row, std::size_t at, int value) {
            auto& byte = tile[row * tile_row_bytes + 4 * channel + k % 4];
            byte = static_cast<std::uint8_t>(byte | value << at);
        };
        if constexpr (Bits == 4) {
            set(fours(k), half_of(k), index);
        } else {
            set(fours(k) / 2, pair_at(k), index >> (Bits - 2));
            if constexpr (Bits == 3)
                set(2, low_at(k), index & 1);
        }
    }
    /// Code k of a channel of a tile.
    static constexpr int get(const std::uint8_t* tile, std::size_t channel, std::size_t k) noexcept {
        const auto byte = [&](std::size_t row) { return tile[row * tile_row_bytes + 4 * channel + k % 4]; };
        if constexpr (Bits == 4)
            return byte(fours(k)) >> half_of(k) & 15;
        const int pair = byte(fours(k) / 2) >> pair_at(k) & 3;
        return Bits == 3 ? pair << 1 | (byte(2) >> low_at(k) & 1) : pair;
    }

  private:
    static constexpr std::size_t fours(std::size_t k) noexcept { return k % 16 / 4; }
    static constexpr std::size_t half_of(std::size_t k) noexcept { return k < 16 ? 0 : 4; }
    static constexpr std::size_t pair_at(std::size_t k) noexcept {
        return (fours(k) % 2 == 0 ? 2 : 0) + half_of(k);
    }
    static constexpr std::size_t low_at(std::size_t k) noexcept { return low_of(fours(k)) + half_of(k); }
};

} // namespace crumb::inline CRUMB_ABI
