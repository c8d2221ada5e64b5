// What ggml makes of blocks of GGUF's types: the file gguf_types.bin, which make_gguf_types.py describes.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace crumb_test {

struct gguf_type {
    std::uint32_t number = 0;
    std::size_t block_bytes = 0;
    std::size_t block_inputs = 0;
    double squared_error[2] = {}; ///< of ggml's quantizer on `error_inputs(kind)`
    std::vector<std::byte> blocks;
    std::vector<float> floats;         ///< of the first blocks
    std::vector<std::uint32_t> hashes; ///< of every 16 floats of all blocks
};

/// The blocks of a type; fails the test and returns none if the file does not have them.
inline gguf_type read_gguf_type(std::uint32_t number) {
    std::ifstream file(CRUMB_DATA_DIR "/gguf_types.bin", std::ios::binary);
    struct {
        std::uint32_t number, blocks, bytes, inputs, full, zero;
        double squared_error[2];
    } header;
    static_assert(sizeof header == 40);
    while (file.read(reinterpret_cast<char*>(&header), sizeof header)) {
        gguf_type type{header.number, header.bytes, header.inputs, {}, {}, {}, {}};
        std::memcpy(type.squared_error, header.squared_error, sizeof type.squared_error);
        type.blocks.resize(std::size_t{header.blocks} * header.bytes);
        type.floats.resize(std::size_t{header.full} * header.inputs);
        type.hashes.resize(std::size_t{header.blocks} * header.inputs / 16);
        file.read(reinterpret_cast<char*>(type.blocks.data()), std::streamsize(type.blocks.size()));
        file.read(reinterpret_cast<char*>(type.floats.data()), std::streamsize(type.floats.size() * 4));
        file.read(reinterpret_cast<char*>(type.hashes.data()), std::streamsize(type.hashes.size() * 4));
        if (file && header.number == number)
            return type;
    }
    ADD_FAILURE() << "gguf_types.bin has no type " << number;
    return {};
}

/// FNV-1a.
inline std::uint32_t hash_of(std::span<const std::byte> bytes) {
    std::uint32_t hash = 2166136261;
    for (const std::byte byte : bytes)
        hash = (hash ^ std::to_integer<std::uint32_t>(byte)) * 16777619;
    return hash;
}

/// Compares decoded floats of all blocks of a type with ggml's, bit for bit.
inline void expect_floats(const gguf_type& type, std::span<const float> decoded) {
    ASSERT_EQ(decoded.size(), type.hashes.size() * 16);
    for (std::size_t i = 0; i < type.floats.size(); ++i) {
        std::uint32_t bits = 0, expected = 0;
        std::memcpy(&bits, &decoded[i], 4);
        std::memcpy(&expected, &type.floats[i], 4);
        ASSERT_EQ(bits, expected) << "weight " << i << ": " << decoded[i] << ", not " << type.floats[i];
    }
    for (std::size_t i = 0; i < type.hashes.size(); ++i) {
        ASSERT_EQ(hash_of(std::as_bytes(decoded.subspan(16 * i, 16))), type.hashes[i])
            << "weights " << 16 * i << "-" << 16 * i + 15 << ", first " << decoded[16 * i];
    }
}

/// The floats whose squared errors the file has: 0 Gaussian, 1 heavy-tailed (Student's t with 3 degrees of
/// freedom). The first of them are quantized in the first blocks.
inline std::vector<float> error_inputs(int kind) {
    constexpr std::size_t count = 16384;
    std::uint64_t state = 1;
    const auto normal = [&] {
        std::int64_t sum = -6 * 65535;
        for (int i = 0; i < 12; ++i) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += std::int64_t(state >> 48);
        }
        return sum;
    };
    std::vector<float> x(count);
    for (float& value : x)
        value = float(double(normal()) / 65536);
    if (kind == 1) {
        for (float& value : x) {
            const std::int64_t numerator = normal();
            std::int64_t squares = 0;
            for (int i = 0; i < 3; ++i) {
                const std::int64_t n = normal();
                squares += n * n;
            }
            value = float(double(numerator) / std::sqrt(double(squares) / 3));
        }
    }
    return x;
}

} // namespace crumb_test
