// Layout of a part: 256 tokens of a head's keys or values.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/core/memory.hpp>
#include <crumb/format/kv_codec.hpp>

namespace crumb::inline CRUMB_ABI {

/// Tokens of a part: keys or values of a head that lie together.
inline constexpr std::size_t kv_part_tokens = 256;
/// Tokens that are encoded together. Codes of a block and a sub-space fill a register of 64 lanes.
inline constexpr std::size_t kv_block_tokens = 64;
/// Tokens that share a mean (`pq`), or a scale and an origin (`uniform`).
inline constexpr std::size_t kv_mean_tokens = 32;
/// Channels of a token that share a scale (`q8_0`), or a scale and an origin (`uniform`, values).
inline constexpr std::size_t kv_group_channels = 32;

/// Layout of the keys or the values of one head in a part of a page. All offsets are multiples of
/// `alignment`, in bytes.
///
///     f32, f16  floats or fp16 [256][head_size]
///     q8_0      fp16 d [256][groups] | int8 [256][head_size]
///     uniform   keys:   fp16 d [8][head_size], z [8][head_size] | codes [head_size][row]
///               values: fp16 d [groups][256], z [groups][256]   | codes [head_size][row]
///     pq        fp16 mean [8][head_size] | fp16 s [256] | codes [head_size / dims][row]
///
/// A row holds one code of 256 tokens, in 4 blocks of 64 that share no byte. 8 bits: byte t. 4 bits: 32 bytes
/// per block, byte i has token i of the block in its low nibble and token i + 32 in the high one. 2 bits: 16
/// bytes per block, byte i has tokens i, i + 16, i + 32 and i + 48 from the low bits upwards. 6 bits: the low
/// 4 bits of all blocks as for 4 bits, then the high 2 as for 2 bits.
class kv_part_layout {
  public:
    constexpr kv_part_layout() = default;
    /// A part of keys, or of values.
    constexpr kv_part_layout(const kv_codec& codec, std::size_t head_size, bool keys) noexcept
        : codec_(codec), head_size_(head_size), keys_(keys),
          rows_(codec.dims != 0 ? head_size / codec.dims : 0), row_bytes_(kv_part_tokens * codec.bits / 8) {
        place();
    }

    /// How tokens are encoded.
    constexpr const kv_codec& codec() const noexcept { return codec_; }
    /// Channels of a token.
    constexpr std::size_t head_size() const noexcept { return head_size_; }
    /// Whether it holds keys.
    constexpr bool keys() const noexcept { return keys_; }

    /// Groups of channels of a token.
    constexpr std::size_t groups() const noexcept {
        return (head_size_ + kv_group_channels - 1) / kv_group_channels;
    }
    /// Rows of codes: the codes of a token, one per row.
    constexpr std::size_t rows() const noexcept { return rows_; }
    /// Bytes of a row.
    constexpr std::size_t row_bytes() const noexcept { return row_bytes_; }

    /// Bytes before the scales of tokens: the means, if the codec has them.
    constexpr std::size_t scales_offset() const noexcept { return scales_offset_; }
    /// `uniform`: bytes before the origins z.
    constexpr std::size_t origins_offset() const noexcept { return codes_offset_ / 2; }
    /// Bytes before the codes.
    constexpr std::size_t codes_offset() const noexcept { return codes_offset_; }
    /// Bytes in all.
    constexpr std::size_t bytes() const noexcept { return bytes_; }

    static constexpr std::size_t mean_blocks = kv_part_tokens / kv_mean_tokens;

  private:
    static constexpr std::size_t fp16_bytes(std::size_t n) noexcept {
        return round_up(n * sizeof(half), alignment);
    }
    /// Kernels ask for the offsets of each part, so they are computed once.
    constexpr void place() noexcept {
        switch (codec_.kind) {
        case kv_kind::f32:
        case kv_kind::f16:
            break;
        case kv_kind::q8_0:
            codes_offset_ = fp16_bytes(kv_part_tokens * groups());
            break;
        case kv_kind::uniform:
            codes_offset_ = 2 * fp16_bytes(keys_ ? mean_blocks * head_size_ : kv_part_tokens * groups());
            break;
        case kv_kind::pq:
            if (codec_.residual) {
                scales_offset_ = fp16_bytes(mean_blocks * head_size_);
                codes_offset_ = scales_offset_ + fp16_bytes(kv_part_tokens);
            }
        }
        bytes_ = codes_offset_ + rows_ * row_bytes_;
    }

    kv_codec codec_;
    std::size_t head_size_ = 0;
    bool keys_ = true;
    std::size_t rows_ = 0, row_bytes_ = 0;
    std::size_t scales_offset_ = 0, codes_offset_ = 0, bytes_ = 0;
};

/// Where a code of `width` bits (8, 4 or 2) of token t lies in a row.
struct kv_code_place {
    std::size_t byte = 0;
    unsigned shift = 0;
    /// Of token t, 0 .. 255.
    constexpr kv_code_place(unsigned width, std::size_t t) noexcept {
        const std::size_t per_block = kv_block_tokens * width / 8, in_block = t % kv_block_tokens;
        byte = t / kv_block_tokens * per_block + in_block % per_block;
        shift = width * static_cast<unsigned>(in_block / per_block);
    }
};

/// The code of token t (of 256) in a row of `bits` bits per code.
constexpr unsigned kv_code(const std::uint8_t* row, int bits, std::size_t t) noexcept {
    const auto plane = [&](const std::uint8_t* p, unsigned width) {
        const kv_code_place at(width, t);
        return (unsigned{p[at.byte]} >> at.shift) & ((1u << width) - 1);
    };
    if (bits == 6)
        return plane(row, 4) | plane(row + kv_part_tokens / 2, 2) << 4;
    return plane(row, static_cast<unsigned>(bits));
}

/// Writes what `kv_code` reads; the codes of other tokens keep their values.
constexpr void set_kv_code(std::uint8_t* row, int bits, std::size_t t, unsigned code) noexcept {
    const auto plane = [&](std::uint8_t* p, unsigned width, unsigned value) {
        const kv_code_place at(width, t);
        const unsigned mask = ((1u << width) - 1) << at.shift;
        p[at.byte] = static_cast<std::uint8_t>((p[at.byte] & ~mask) | (value << at.shift & mask));
    };
    if (bits == 6) {
        plane(row, 4, code & 15);
        plane(row + kv_part_tokens / 2, 2, code >> 4);
    } else {
        plane(row, static_cast<unsigned>(bits), code);
    }
}

} // namespace crumb::inline CRUMB_ABI
