// The weight formats of crumb by ggml's types.
#pragma once

#include "ggml/ggml_api.hpp"

#include <crumb/op/linear/any_linear.hpp>

#include <cstddef>
#include <span>

namespace crumb_ggml {

/// What a buffer and a product need of a format: functions that know it.
struct weight_format {
    const char* name = nullptr;
    std::size_t block_inputs = 0, block_bytes = 0;
    std::size_t (*packed_bytes)(std::size_t n, std::size_t k) noexcept = nullptr;
    /// Packs `channels` of n x k weights, see `crumb::pack_channels`.
    crumb::status (*pack)(const void* blocks, std::size_t n, std::size_t k, std::span<std::byte> to,
                          crumb::range channels) noexcept = nullptr;
    /// Writes the blocks of `rows` as they were before packing.
    crumb::status (*unpack)(std::span<const std::byte> packed, crumb::range rows,
                            void* blocks) noexcept = nullptr;
};

/// The format of a type's blocks; null for types that crumb does not multiply as they are stored.
const weight_format* format_of(ggml_type type) noexcept;

} // namespace crumb_ggml
