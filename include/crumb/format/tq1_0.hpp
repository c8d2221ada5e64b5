// TQ1_0: 256 ternary codes, five per byte, and one half-precision scale; byte for byte GGUF's block of that
// name.
#pragma once

#include <crumb/format/field_codes.hpp>
#include <crumb/format/records.hpp>
#include <crumb/format/scale_search.hpp>
#include <crumb/format/traits.hpp>

#include <cstring>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * code i, codes -1..1. 54 bytes per 256 weights, 1.6875 bits per weight.
///
/// A byte is ceil(x * 256 / 243) of a number x of five ternary digits, the first one the most significant, so
/// that digit n is the integer part of 3 * (byte * 3^n mod 256) / 256. Bytes that are no such number read as
/// digits as well, and `set` writes these digits as the byte that is one.
struct tq1_0 {
    /// The block as it is stored.
    struct block {
        std::uint8_t q[48];   ///< bytes 0-47: codes m + 32 n in byte m, codes 160 + m + 16 n in byte 32 + m
        std::uint8_t rest[4]; ///< bytes 48-51: codes 240 + m + 4 n in byte m, n < 4; the fifth digit is 0
        half d;               ///< bytes 52-53, little-endian
    };
    static_assert(sizeof(block) == 54);

    static constexpr const char* name = "tq1_0";
    using scales = group_scales<half, 256>;
    using codes = trit_codes;
    using records = half_records;

    /// Scale of the block.
    static constexpr half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept {
        if (i < 160)
            return digit(b.q[i % 32], i / 32) - 1;
        if (i < 240)
            return digit(b.q[32 + i % 16], (i - 160) / 16) - 1;
        return digit(b.rest[i % 4], (i - 240) / 4) - 1;
    }
    /// Writes the scale and codes of a block.
    static constexpr void set(block& b, half d, const int* code, std::size_t = 0) noexcept {
        b.d = d;
        for (std::size_t m = 0; m < 32; ++m)
            b.q[m] = digits(code + m, 32, 5);
        for (std::size_t m = 0; m < 16; ++m)
            b.q[32 + m] = digits(code + 160 + m, 16, 5);
        for (std::size_t m = 0; m < 4; ++m)
            b.rest[m] = digits(code + 240 + m, 4, 4);
    }
    /// The bytes of digits as they are stored, 52, for packed weights: all of their patterns come back.
    static void get_stored_bytes(const block& b, std::uint8_t* bytes) noexcept {
        std::memcpy(bytes, b.q, sizeof b.q);
        std::memcpy(bytes + sizeof b.q, b.rest, sizeof b.rest);
    }
    /// Writes a scale and these bytes.
    static void set_stored_bytes(block& b, half d, const std::uint8_t* bytes) noexcept {
        std::memcpy(b.q, bytes, sizeof b.q);
        std::memcpy(b.rest, bytes + sizeof b.q, sizeof b.rest);
        b.d = d;
    }
    /// d = max |x|, codes x / d rounded to -1, 0 or 1, as GGUF's reference quantizer.
    static void encode(const float* x, block& b) noexcept { encode_ternary<tq1_0>(x, b); }

  private:
    static constexpr int digit(unsigned byte, std::size_t n) noexcept {
        constexpr unsigned power[5] = {1, 3, 9, 27, 81};
        return static_cast<int>((byte * power[n] & 255) * 3 >> 8);
    }
    /// The byte of `count` codes, `step` apart.
    static constexpr std::uint8_t digits(const int* code, std::size_t step, std::size_t count) noexcept {
        unsigned x = 0;
        for (std::size_t n = 0; n < 5; ++n)
            x = 3 * x + (n < count ? static_cast<unsigned>(code[n * step] + 1) : 0);
        return static_cast<std::uint8_t>((x * 256 + 242) / 243);
    }
};

} // namespace crumb::inline CRUMB_ABI
