// Packed scales and minima: a record for each tile of 16 channels and block of inputs.
#pragma once

#include <crumb/format/traits.hpp>

#include <cstring>

namespace crumb::inline CRUMB_ABI {

namespace detail {
/// Number `i` of a row of `T` at byte `at` of a record.
template <class T>
T record_at(const std::uint8_t* record, std::size_t at, std::size_t i) noexcept {
    T value;
    std::memcpy(&value, record + at + i * sizeof(T), sizeof value);
    return value;
}
template <class T>
void put_in_record(std::uint8_t* record, std::size_t at, std::size_t i, T value) noexcept {
    std::memcpy(record + at + i * sizeof(T), &value, sizeof value);
}
} // namespace detail

/// A half per channel: the scale of its block.
struct half_records {
    static constexpr std::size_t bytes = 2 * tile_channels;
    /// Writes what channel `channel` of the tile has in block b.
    template <class F>
    static void put(std::uint8_t* record, std::size_t channel, const typename F::block& b) noexcept {
        detail::put_in_record(record, 0, channel, F::scale(b, 0));
    }
    /// Scale of a channel.
    static half scale(const std::uint8_t* record, std::size_t channel, std::size_t) noexcept {
        return detail::record_at<half>(record, 0, channel);
    }
};

/// The halves of 16 scales, then those of 16 minima.
struct half_pair_records {
    static constexpr std::size_t bytes = 4 * tile_channels;
    /// Writes what channel `channel` of the tile has in block b.
    template <class F>
    static void put(std::uint8_t* record, std::size_t channel, const typename F::block& b) noexcept {
        detail::put_in_record(record, 0, channel, F::scale(b, 0));
        detail::put_in_record(record, 0, tile_channels + channel, F::minimum(b, 0));
    }
    /// Scale of a channel.
    static half scale(const std::uint8_t* record, std::size_t channel, std::size_t) noexcept {
        return detail::record_at<half>(record, 0, channel);
    }
    /// Minimum of a channel.
    static half minimum(const std::uint8_t* record, std::size_t channel, std::size_t) noexcept {
        return detail::record_at<half>(record, 0, tile_channels + channel);
    }
};

/// A byte per channel and group, group by group: `Value` is a struct of one byte `bits`.
template <class Value, std::size_t Groups>
struct small_float_records {
    static constexpr std::size_t bytes = Groups * tile_channels;
    /// Writes what channel `channel` of the tile has in block b.
    template <class F>
    static void put(std::uint8_t* record, std::size_t channel, const typename F::block& b) noexcept {
        for (std::size_t g = 0; g < Groups; ++g)
            record[g * tile_channels + channel] = F::scale(b, g).bits;
    }
    /// Scale of a channel's group.
    static Value scale(const std::uint8_t* record, std::size_t channel, std::size_t group) noexcept {
        return {record[group * tile_channels + channel]};
    }
};

/// Where a record has the halves over its integers: 16 of scales, then, with minima, 16 of minima.
template <bool Minima>
struct record_units {
    static constexpr std::size_t unit_bytes = (Minima ? 4 : 2) * tile_channels;
    /// Writes the halves of channel `channel` in block b.
    template <class F>
    static void put_units(std::uint8_t* record, std::size_t channel, const typename F::block& b) noexcept {
        detail::put_in_record(record, 0, channel, F::scale(b, 0).unit);
        if constexpr (Minima)
            detail::put_in_record(record, 0, tile_channels + channel, F::minimum(b, 0).unit);
    }
    /// The half over a channel's scales.
    static half unit(const std::uint8_t* record, std::size_t channel) noexcept {
        return detail::record_at<half>(record, 0, channel);
    }
    /// The half over a channel's minima.
    static half minimum_unit(const std::uint8_t* record, std::size_t channel) noexcept {
        return detail::record_at<half>(record, 0, tile_channels + channel);
    }
};

/// Units, then a signed byte per channel for each of 16 groups of 16.
struct byte_records : record_units<false> {
    static constexpr std::size_t bytes = unit_bytes + 16 * tile_channels;
    /// Writes what channel `channel` of the tile has in block b.
    template <class F>
    static void put(std::uint8_t* record, std::size_t channel, const typename F::block& b) noexcept {
        put_units<F>(record, channel, b);
        for (std::size_t g = 0; g < 16; ++g)
            record[unit_bytes + g * tile_channels + channel] =
                static_cast<std::uint8_t>(F::scale(b, g).multiplier);
    }
    /// Scale of a channel's group.
    static half_multiple scale(const std::uint8_t* record, std::size_t channel, std::size_t group) noexcept {
        return {unit(record, channel),
                static_cast<std::int8_t>(record[unit_bytes + group * tile_channels + channel])};
    }
};

/// Units, then a byte per channel for each of 16 groups of 16: the scale in the low nibble, the minimum,
/// without its sign, in the high one.
struct nibble_records : record_units<true> {
    static constexpr std::size_t bytes = unit_bytes + 16 * tile_channels;
    /// Writes what channel `channel` of the tile has in block b.
    template <class F>
    static void put(std::uint8_t* record, std::size_t channel, const typename F::block& b) noexcept {
        put_units<F>(record, channel, b);
        for (std::size_t g = 0; g < 16; ++g)
            record[unit_bytes + g * tile_channels + channel] =
                static_cast<std::uint8_t>(F::scale(b, g).multiplier | -F::minimum(b, g).multiplier << 4);
    }
    /// Scale of a channel's group.
    static half_multiple scale(const std::uint8_t* record, std::size_t channel, std::size_t group) noexcept {
        return {unit(record, channel),
                static_cast<std::int8_t>(record[unit_bytes + group * tile_channels + channel] & 15)};
    }
    /// Minimum of a channel's group.
    static half_multiple minimum(const std::uint8_t* record, std::size_t channel,
                                 std::size_t group) noexcept {
        return {minimum_unit(record, channel),
                static_cast<std::int8_t>(-(record[unit_bytes + group * tile_channels + channel] >> 4))};
    }
};

/// Units, then numbers of 6 bits in `Pairs` pairs per channel: for two pairs, 16 bytes with the low nibbles
/// of the first (the first number's in the low nibble), 16 of the second, and 16 whose low nibbles have the
/// upper two bits of the first pair's numbers (the first number's in the lower bits), the high nibbles those
/// of the second.
template <bool Minima, std::size_t Pairs>
struct six_bit_records : record_units<Minima> {
    using record_units<Minima>::unit_bytes;
    static constexpr std::size_t bytes = unit_bytes + Pairs / 2 * 3 * tile_channels;
    static_assert(Pairs % 2 == 0);

  protected:
    /// Where the low nibbles of a pair are.
    static constexpr std::size_t low_at(std::size_t pair) noexcept {
        return unit_bytes + (pair / 2 * 3 + pair % 2) * tile_channels;
    }
    /// Where the upper bits of a pair are.
    static constexpr std::size_t high_at(std::size_t pair) noexcept {
        return unit_bytes + (pair / 2 * 3 + 2) * tile_channels;
    }
    /// Writes a pair of numbers of 6 bits.
    static void put_pair(std::uint8_t* record, std::size_t channel, std::size_t pair, int a, int b) noexcept {
        record[low_at(pair) + channel] = static_cast<std::uint8_t>((a & 15) | (b & 15) << 4);
        auto& high = record[high_at(pair) + channel];
        const int shift = pair % 2 == 0 ? 0 : 4;
        high = static_cast<std::uint8_t>((high & (0xf0 >> shift)) | (a >> 4 | b >> 4 << 2) << shift);
    }
    /// Number 0 or 1 of a pair.
    static int number(const std::uint8_t* record, std::size_t channel, std::size_t pair, int which) noexcept {
        const int low = record[low_at(pair) + channel] >> (4 * which) & 15;
        const int high = record[high_at(pair) + channel] >> (pair % 2 * 4 + 2 * std::size_t(which)) & 3;
        return low | high << 4;
    }
};

/// Scale and minimum, without its sign, of 8 groups of 32 as pairs.
struct six_bit_minima_records : six_bit_records<true, 8> {
    /// Writes what channel `channel` of the tile has in block b.
    template <class F>
    static void put(std::uint8_t* record, std::size_t channel, const typename F::block& b) noexcept {
        put_units<F>(record, channel, b);
        for (std::size_t g = 0; g < 8; ++g)
            put_pair(record, channel, g, F::scale(b, g).multiplier, -F::minimum(b, g).multiplier);
    }
    /// Scale of a channel's group.
    static half_multiple scale(const std::uint8_t* record, std::size_t channel, std::size_t group) noexcept {
        return {unit(record, channel), static_cast<std::int8_t>(number(record, channel, group, 0))};
    }
    /// Minimum of a channel's group.
    static half_multiple minimum(const std::uint8_t* record, std::size_t channel,
                                 std::size_t group) noexcept {
        return {minimum_unit(record, channel), static_cast<std::int8_t>(-number(record, channel, group, 1))};
    }
};

/// Signed scales plus 32 of `Groups` groups, two neighbours to a pair.
template <std::size_t Groups>
struct six_bit_scale_records : six_bit_records<false, Groups / 2> {
    using base = six_bit_records<false, Groups / 2>;
    static constexpr int offset = 32;
    /// Writes what channel `channel` of the tile has in block b.
    template <class F>
    static void put(std::uint8_t* record, std::size_t channel, const typename F::block& b) noexcept {
        base::template put_units<F>(record, channel, b);
        for (std::size_t p = 0; p < Groups / 2; ++p)
            base::put_pair(record, channel, p, F::scale(b, 2 * p).multiplier + offset,
                           F::scale(b, 2 * p + 1).multiplier + offset);
    }
    /// Scale of a channel's group.
    static half_multiple scale(const std::uint8_t* record, std::size_t channel, std::size_t group) noexcept {
        return {base::unit(record, channel),
                static_cast<std::int8_t>(base::number(record, channel, group / 2, group % 2) - offset)};
    }
};

} // namespace crumb::inline CRUMB_ABI
