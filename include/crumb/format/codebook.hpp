// The blocks of codebook formats: indices with scales that carry the selector.
#pragma once

#include <crumb/format/index_codes.hpp>

namespace crumb::inline CRUMB_ABI {

/// Indices of `Bits` bits of a group of 32 in storage order, 4 * Bits bytes. 2 bits: index i at bit 2 (i / 8)
/// of byte i % 8. 3 bits: the upper two so, then bit i / 4 of byte 8 + i % 4 the lowest. 4 bits: index i in
/// the low nibble of byte i, index 16 + i in the high one.
template <int Bits>
struct stored_indices {
    static constexpr std::size_t bytes = 4 * Bits;
    std::uint8_t q[bytes];

    /// Index i.
    constexpr int get(std::size_t i) const noexcept {
        if constexpr (Bits == 4)
            return q[i % 16] >> (i < 16 ? 0 : 4) & 15;
        const int pair = q[i % 8] >> (2 * (i / 8)) & 3;
        return Bits == 3 ? pair << 1 | (q[bytes - 4 + i % 4] >> (i / 4) & 1) : pair;
    }
    /// Writes 32 indices.
    constexpr void set(const int* index) noexcept {
        for (auto& byte : q)
            byte = 0;
        const auto put = [&](std::size_t byte, std::size_t at, int value) {
            q[byte] = static_cast<std::uint8_t>(q[byte] | value << at);
        };
        for (std::size_t i = 0; i < group_size; ++i) {
            if constexpr (Bits == 4) {
                put(i % 16, i < 16 ? 0 : 4, index[i]);
            } else {
                put(i % 8, 2 * (i / 8), index[i] >> (Bits - 2));
                if constexpr (Bits == 3)
                    put(bytes - 4 + i % 4, i / 4, index[i] & 1);
            }
        }
    }
};

/// A group of 32 with an fp16 scale.
template <int Bits, int Selectors>
struct codebook_group {
    /// The block as it is stored.
    struct block {
        half d; ///< the scale; its low `Selectors` bits are the selector as well
        stored_indices<Bits> q;
    };
    static_assert(sizeof(block) == 2 + 4 * Bits);
    using scales = half_scales;
    using codes = index_codes<Bits, Selectors>;

    /// Scale of the block.
    static constexpr half scale(const block& b, std::size_t = 0) noexcept { return b.d; }
    /// The table that a group's indices refer to.
    static constexpr unsigned selector(const block& b, std::size_t = 0) noexcept {
        return b.d.bits & ((1u << Selectors) - 1u);
    }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept { return b.q.get(i); }
    /// Writes the scale and codes of a block.
    static constexpr void set(block& b, half d, const int* code, std::size_t = 0) noexcept {
        b.d = d;
        b.q.set(code);
    }
};

/// 8 groups of 32 with a signed byte as each group's scale, under a power of two.
template <int Bits, int Selectors>
struct codebook_block {
    /// The block as it is stored.
    struct block {
        std::uint8_t exponent;     ///< scale of group g = multiplier[g] * 2^(exponent - 127)
        std::int8_t multiplier[8]; ///< their low `Selectors` bits are the selectors as well
        stored_indices<Bits> q[8];
    };
    static_assert(sizeof(block) == 9 + 32 * Bits);
    using scales = block_scales;
    using codes = index_codes<Bits, Selectors>;

    /// Scale of a group.
    static constexpr block_scale scale(const block& b, std::size_t group) noexcept {
        return {b.exponent, b.multiplier[group]};
    }
    /// The table that a group's indices refer to.
    static constexpr unsigned selector(const block& b, std::size_t group) noexcept {
        return static_cast<unsigned>(b.multiplier[group]) & ((1u << Selectors) - 1u);
    }
    /// Code of weight i.
    static constexpr int code(const block& b, std::size_t i) noexcept {
        return b.q[i / group_size].get(i % group_size);
    }
    /// The exponent is that of the whole block.
    static constexpr void set(block& b, block_scale d, const int* code, std::size_t group) noexcept {
        b.exponent = d.exponent;
        b.multiplier[group] = d.multiplier;
        b.q[group].set(code);
    }
};

} // namespace crumb::inline CRUMB_ABI
