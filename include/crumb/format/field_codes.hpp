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
///     3      those of the lower two bits, and one: bit f is the upper bit of four f
///     4      four: row r has four r in the low nibble, four 4 + r in the high one
///     5      those of the lower four bits, and one: bit f is the upper bit of four f
///     6      those of the lower four bits, and two with the upper two bits, as those of 2 bits
template <int Bits>
struct field_codes {
    static_assert(Bits >= 1 && Bits <= 6);
    static constexpr int field_bits = Bits;
    static constexpr std::size_t rows = Bits; ///< register rows per group
    static constexpr std::size_t bytes = rows * tile_row_bytes;
    static constexpr int minimum = 0;
    static constexpr int maximum = (1 << Bits) - 1;

    /// Writes code `k` of channel `channel` into a tile whose bytes were zero.
    static constexpr void put(std::uint8_t* tile, std::size_t channel, std::size_t k, int code) noexcept {
        for (int part = 0; part < parts; ++part) {
            const place at = place_of(part, k / 4);
            auto& byte = tile[at.row * tile_row_bytes + 4 * channel + k % 4];
            byte = static_cast<std::uint8_t>(byte | (code >> at.shift & ((1 << at.bits) - 1)) << at.bit);
        }
    }
    /// Code k of a channel of a tile.
    static constexpr int get(const std::uint8_t* tile, std::size_t channel, std::size_t k) noexcept {
        int code = 0;
        for (int part = 0; part < parts; ++part) {
            const place at = place_of(part, k / 4);
            const int byte = tile[at.row * tile_row_bytes + 4 * channel + k % 4];
            code |= (byte >> at.bit & ((1 << at.bits) - 1)) << at.shift;
        }
        return code;
    }

  private:
    static constexpr int low_bits = Bits >= 4 ? 4 : Bits >= 2 ? 2 : 1;
    static constexpr int parts = Bits == low_bits ? 1 : 2;
    struct place {
        std::size_t row, bit;
        int bits, shift; ///< of the code
    };
    static constexpr place place_of(int part, std::size_t four) noexcept {
        const int bits = part == 0 ? low_bits : Bits - low_bits;
        const std::size_t first = part == 0 ? 0 : std::size_t{low_bits};
        const int shift = part == 0 ? 0 : low_bits;
        if (bits == 4)
            return {first + four % 4, four / 4 * 4, bits, shift};
        if (bits == 2)
            return {first + four / 4, four % 4 * 2, bits, shift};
        return {first, four, bits, shift};
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
