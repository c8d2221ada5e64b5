// Packed codes of 1 to 6 bits without a sign, and ternary digits: what formats with records of scales use.
#pragma once

#include <crumb/format/traits.hpp>

namespace crumb::inline CRUMB_ABI {

/// Packed codes 0 .. 2^Bits - 1 of a group of 32. The inputs of a channel come in fours: four f holds inputs
/// 4 f .. 4 f + 3, byte 4 c + i of a register row belongs to input i of a four of channel c.
///
///     bits   register rows
///     1      one: bit f is the code of four f
///     2      two: row r has fours 4 r .. 4 r + 3, at bits 2 (f % 4)
///     3      three: row r has fours 2 r and 2 r + 1 at bits 0 and 3; fours 6 and 7 have their lower two bits
///            at bit 6 of rows 0 and 2, and their upper one at bits 7 and 6 of row 1
///     4      four: row r has four r in the low nibble, four 4 + r in the high one
///     5      five: row r has four r at bit 0; fours 5, 6 and 7 have their lower three bits at bit 5 of
///            rows 0, 2 and 4; the upper two of fours 5 and 6 are at bit 6 of rows 1 and 3, of four 7 at
///            bit 5 of both
///     6      six: rows 3 h + j, j < 3, have fours 4 h + j at bit 0; at bit 6 they have bits 2 j and
///            2 j + 1 of four 4 h + 3
template <int Bits>
struct field_codes {
    static_assert(Bits >= 1 && Bits <= 6);
    static constexpr int field_bits = Bits;
    static constexpr std::size_t rows = Bits; ///< register rows per group
    static constexpr std::size_t bytes = rows * tile_row_bytes;
    static constexpr int minimum = 0;
    static constexpr int maximum = (1 << Bits) - 1;

    /// `bits` bits of a code, from bit `shift` on: where a register row has them.
    struct piece {
        int row, bit, bits, shift;
    };
    /// Of what a code consists, uppermost bits first.
    struct pieces {
        int count;
        piece at[3];
    };
    /// The code of four f.
    static constexpr pieces pieces_of(int four) noexcept {
        if constexpr (Bits <= 2) {
            constexpr int per_row = 8 / Bits;
            return {1, {{four / per_row, four % per_row * Bits, Bits, 0}}};
        } else if constexpr (Bits == 4) {
            return {1, {{four % 4, four / 4 * 4, 4, 0}}};
        } else if constexpr (Bits == 3) {
            if (four < 6)
                return {1, {{four / 2, four % 2 * 3, 3, 0}}};
            return {2, {{1, 13 - four, 1, 2}, {four == 6 ? 0 : 2, 6, 2, 0}}};
        } else if constexpr (Bits == 5) {
            if (four < 5)
                return {1, {{four, 0, 5, 0}}};
            if (four < 7)
                return {2, {{2 * four - 9, 6, 2, 3}, {2 * four - 10, 5, 3, 0}}};
            return {3, {{3, 5, 1, 4}, {1, 5, 1, 3}, {4, 5, 3, 0}}};
        } else {
            const int first = four / 4 * 3;
            if (four % 4 < 3)
                return {1, {{first + four % 4, 0, 6, 0}}};
            return {3, {{first + 2, 6, 2, 4}, {first + 1, 6, 2, 2}, {first, 6, 2, 0}}};
        }
    }

    /// Writes code `k` of channel `channel` into a tile whose bytes were zero.
    static constexpr void put(std::uint8_t* tile, std::size_t channel, std::size_t k, int code) noexcept {
        const pieces of = pieces_of(static_cast<int>(k / 4));
        for (int i = 0; i < of.count; ++i) {
            const piece& p = of.at[i];
            auto& byte = tile[std::size_t(p.row) * tile_row_bytes + 4 * channel + k % 4];
            byte = static_cast<std::uint8_t>(byte | (code >> p.shift & ((1 << p.bits) - 1)) << p.bit);
        }
    }
    /// Code k of a channel of a tile.
    static constexpr int get(const std::uint8_t* tile, std::size_t channel, std::size_t k) noexcept {
        const pieces of = pieces_of(static_cast<int>(k / 4));
        int code = 0;
        for (int i = 0; i < of.count; ++i) {
            const piece& p = of.at[i];
            const int byte = tile[std::size_t(p.row) * tile_row_bytes + 4 * channel + k % 4];
            code |= (byte >> p.bit & ((1 << p.bits) - 1)) << p.shift;
        }
        return code;
    }
};

/// Ternary digits of a block of 256 inputs, five to a byte as stored: 13 register rows of bytes 4 c + i. Row
/// r < 8 has the digits of inputs 32 d + 4 r + i, d = 0 .. 4, row 8 + r those of 160 + 16 d + 4 r + i, row 12
/// those of 240 + 4 d + i, d = 0 .. 3. Digit d of a byte b is ((3^d b mod 256) * 3) / 256, 0 to 2.
struct trit_codes {
    static constexpr std::size_t block_rows = 13;                     ///< register rows per block
    static constexpr std::size_t bytes = block_rows * tile_row_bytes; ///< per tile and block
    static constexpr int minimum = 0;
    static constexpr int maximum = 2;

    /// Digit d of byte i of row r of a channel belongs to input 4 four_of(r, d) + i.
    static constexpr int four_of(int row, int digit) noexcept {
        return row < 8 ? 8 * digit + row : row < 12 ? 40 + 4 * digit + row - 8 : 60 + digit;
    }
};

/// Bit layouts of whole blocks of 256 inputs.
template <class Codes>
concept codes_of_blocks = requires { Codes::block_rows; };

} // namespace crumb::inline CRUMB_ABI
