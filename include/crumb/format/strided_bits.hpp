// Codes of a few bits as GGUF's blocks store them: several per byte, some distance apart.
#pragma once

#include <crumb/config.hpp>

#include <cstddef>
#include <cstdint>

namespace crumb::inline CRUMB_ABI {

/// `Count` unsigned codes of `Bits` bits. Neighbours lie in neighbouring bytes; after `Stride` bytes the
/// codes go on in the next higher bits of the same bytes, and when these are full, in the next `Stride`
/// bytes. So code i is at bit Bits * (i / Stride % n) of byte i / (Stride * n) * Stride + i % Stride, n = 8 /
/// Bits.
template <int Bits, std::size_t Stride, std::size_t Count>
struct strided_bits {
    static_assert(Bits == 1 || Bits == 2 || Bits == 4);
    static constexpr std::size_t per_byte = 8 / Bits;
    static constexpr std::size_t bytes = Count / per_byte;
    static_assert(bytes % Stride == 0 && bytes * per_byte == Count);
    static constexpr unsigned mask = (1u << Bits) - 1;
    std::uint8_t q[bytes];

    /// Number i.
    constexpr int get(std::size_t i) const noexcept {
        return static_cast<int>(unsigned{q[byte_of(i)]} >> shift_of(i) & mask);
    }
    /// Writes the low `Bits` bits of `code` and leaves the other codes of the byte.
    constexpr void put(std::size_t i, int code) noexcept {
        auto& byte = q[byte_of(i)];
        byte = static_cast<std::uint8_t>((byte & ~(mask << shift_of(i))) |
                                         (static_cast<unsigned>(code) & mask) << shift_of(i));
    }

  private:
    static constexpr std::size_t byte_of(std::size_t i) noexcept {
        return i / (Stride * per_byte) * Stride + i % Stride;
    }
    static constexpr std::size_t shift_of(std::size_t i) noexcept {
        return std::size_t{Bits} * (i / Stride % per_byte);
    }
};

} // namespace crumb::inline CRUMB_ABI
