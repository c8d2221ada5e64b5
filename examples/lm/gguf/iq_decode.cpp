#include "gguf/iq_decode.hpp"

#include "gguf/iq_grids.hpp"

#include <crumb/core/half.hpp>

#include <bit>
#include <cstdint>

namespace lm {
namespace {

/// A block's bytes as little-endian numbers.
struct reader {
    const std::byte* data;

    unsigned u8(std::size_t at) const noexcept { return std::to_integer<unsigned>(data[at]); }
    unsigned u16(std::size_t at) const noexcept { return u8(at) | u8(at + 1) << 8; }
    std::uint32_t u32(std::size_t at) const noexcept { return u16(at) | std::uint32_t{u16(at + 2)} << 16; }
    float f16(std::size_t at) const noexcept {
        return crumb::to_float(crumb::half{static_cast<std::uint16_t>(u16(at))});
    }
};

template <const auto& Grid>
const auto& points() {
    static const auto all = Grid.points();
    return all;
}

/// A point of a grid times a scale, negative where a bit of `signs` is set.
template <class Point>
float* put(const Point& point, float scale, unsigned signs, float* y) noexcept {
    for (std::size_t i = 0; i < point.size(); ++i)
        *y++ = scale * float(point[i]) * ((signs >> i & 1) != 0 ? -1.0f : 1.0f);
    return y;
}

/// Seven signs, and an eighth that makes the number of set bits even.
unsigned even_signs(std::uint32_t seven) noexcept {
    return (seven & 127) | (static_cast<unsigned>(std::popcount(seven & 127)) & 1) << 7;
}

// Of every 32 weights: an index per 8 weights in four bytes; then four times seven signs, and the scale.
void decode_iq2_xxs(reader b, float* y) noexcept {
    for (std::size_t g = 0; g < 8; ++g) {
        const std::uint32_t rest = b.u32(2 + 8 * g + 4);
        const float scale = b.f16(0) * (0.5f + float(rest >> 28)) * 0.25f;
        for (std::size_t l = 0; l < 4; ++l)
            y = put(points<iq2_xxs_grid>()[b.u8(2 + 8 * g + l)], scale, even_signs(rest >> 7 * l), y);
    }
}

// Of every 8 weights: an index of nine bits and seven signs. At the end a scale of 4 bits for every 16.
void decode_iq2_xs(reader b, float* y) noexcept {
    for (std::size_t l = 0; l < 32; ++l) {
        const unsigned q = b.u16(2 + 2 * l), s = b.u8(66 + l / 4) >> 4 * (l / 2 % 2) & 15;
        const float scale = b.f16(0) * (0.5f + float(s)) * 0.25f;
        y = put(points<iq2_xs_grid>()[q & 511], scale, even_signs(q >> 9), y);
    }
}

// The lower eight bits of 32 indices, 32 bytes of signs, the upper two bits, scales of 4 bits for every 16.
void decode_iq2_s(reader b, float* y) noexcept {
    for (std::size_t l = 0; l < 32; ++l) {
        const unsigned q = b.u8(2 + l) | (b.u8(66 + l / 4) >> 2 * (l % 4) & 3) << 8;
        const unsigned s = b.u8(74 + l / 4) >> 4 * (l / 2 % 2) & 15;
        y = put(points<iq2_s_grid>()[q], b.f16(0) * (0.5f + float(s)) * 0.25f, b.u8(34 + l), y);
    }
}

// 64 indices, each of 4 weights; then for every 32 weights four times seven signs, and the scale.
void decode_iq3_xxs(reader b, float* y) noexcept {
    for (std::size_t l = 0; l < 64; ++l) {
        const std::uint32_t rest = b.u32(66 + l / 8 * 4);
        const float scale = b.f16(0) * (0.5f + float(rest >> 28)) * 0.5f;
        const unsigned signs = even_signs(rest >> 7 * (l / 2 % 4)) >> 4 * (l % 2);
        y = put(points<iq3_xxs_grid>()[b.u8(2 + l)], scale, signs, y);
    }
}

// The lower eight bits of 64 indices, the ninth bits, 32 bytes of signs, scales of 4 bits for every 32
// weights.
void decode_iq3_s(reader b, float* y) noexcept {
    for (std::size_t l = 0; l < 64; ++l) {
        const unsigned q = b.u8(2 + l) | (b.u8(66 + l / 8) >> l % 8 & 1) << 8;
        const unsigned s = b.u8(106 + l / 16) >> 4 * (l / 8 % 2) & 15;
        const float scale = b.f16(0) * (1.0f + 2.0f * float(s));
        y = put(points<iq3_s_grid>()[q], scale, b.u8(74 + l / 2) >> 4 * (l % 2), y);
    }
}

/// A point of the ternary grid, shifted by an eighth of a step.
float* put_shifted(std::size_t index, float scale, bool down, float* y) {
    for (const std::int8_t value : points<iq1_s_grid>()[index])
        *y++ = scale * (float(value) + (down ? -0.125f : 0.125f));
    return y;
}

// The lower eight bits of 32 indices; then for every 32 weights four times three bits more, the scale, the
// shift.
void decode_iq1_s(reader b, float* y) {
    for (std::size_t l = 0; l < 32; ++l) {
        const unsigned rest = b.u16(34 + l / 4 * 2);
        const float scale = b.f16(0) * (2.0f * float(rest >> 12 & 7) + 1.0f);
        y = put_shifted(b.u8(2 + l) | (rest >> 3 * (l % 4) & 7) << 8, scale, (rest & 0x8000) != 0, y);
    }
}

// The lower eight bits of 32 indices, nibbles of three bits more and the shift, four numbers of four scales
// of 3 bits for 16 weights each, whose top nibbles are the half over all of them.
void decode_iq1_m(reader b, float* y) {
    unsigned bits = 0;
    for (std::size_t i = 0; i < 4; ++i)
        bits |= b.u16(48 + 2 * i) >> 12 << 4 * i;
    const float d = crumb::to_float(crumb::half{static_cast<std::uint16_t>(bits)});
    for (std::size_t l = 0; l < 32; ++l) {
        const unsigned rest = b.u8(32 + l / 2) >> 4 * (l % 2);
        const unsigned s = b.u16(48 + l / 8 * 2) >> 3 * (l / 2 % 4) & 7;
        y = put_shifted(b.u8(l) | (rest & 7) << 8, d * (2.0f * float(s) + 1.0f), (rest & 8) != 0, y);
    }
}

// A float and 256 signed bytes; sums of sixteen of them follow.
void decode_q8_k(reader b, float* y) noexcept {
    const float d = std::bit_cast<float>(b.u32(0));
    for (std::size_t i = 0; i < 256; ++i)
        *y++ = d * float(static_cast<std::int8_t>(b.u8(4 + i)));
}

// A half, another one (of the sum), and 32 signed bytes.
void decode_q8_1(reader b, float* y) noexcept {
    for (std::size_t i = 0; i < 32; ++i)
        *y++ = b.f16(0) * float(static_cast<std::int8_t>(b.u8(4 + i)));
}

using decoder = void (*)(reader, float*);

decoder decoder_of(ggml_type type) noexcept {
    switch (type) {
    case ggml_type::q8_k:
        return decode_q8_k;
    case ggml_type::q8_1:
        return decode_q8_1;
    case ggml_type::iq2_xxs:
        return decode_iq2_xxs;
    case ggml_type::iq2_xs:
        return decode_iq2_xs;
    case ggml_type::iq2_s:
        return decode_iq2_s;
    case ggml_type::iq3_xxs:
        return decode_iq3_xxs;
    case ggml_type::iq3_s:
        return decode_iq3_s;
    case ggml_type::iq1_s:
        return decode_iq1_s;
    case ggml_type::iq1_m:
        return decode_iq1_m;
    default:
        return nullptr;
    }
}

} // namespace

bool is_decoded(ggml_type type) noexcept { return decoder_of(type) != nullptr; }

crumb::status decode(ggml_type type, std::span<const std::byte> blocks, float* out) {
    const decoder decode_block = decoder_of(type);
    if (decode_block == nullptr)
        return crumb::status::error(crumb::errc::unsupported, "%s is no type of grids, nor Q8_1 or Q8_K",
                                    ggml_type_name(type).c_str());
    const ggml_type_info& info = *find_ggml_type(type);
    if (blocks.size() % info.block_bytes != 0)
        return crumb::status::error(crumb::errc::bad_shape, "%zu bytes of %s are no multiple of its %u",
                                    blocks.size(), info.name, info.block_bytes);
    for (std::size_t b = 0; b < blocks.size() / info.block_bytes; ++b)
        decode_block({blocks.data() + b * info.block_bytes}, out + b * info.block);
    return {};
}

} // namespace lm
