// Tensor types by ggml's numbers: their names and sizes.
#pragma once

#include <crumb/core/status.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lm {

/// The tensor types of ggml; 4, 5, 31-33 and 36-38 were given up. A file may hold any other number.
enum class ggml_type : std::uint32_t {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q8_1 = 9,
    q2_k = 10,
    q3_k = 11,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    q8_k = 15,
    iq2_xxs = 16,
    iq2_xs = 17,
    iq3_xxs = 18,
    iq1_s = 19,
    iq4_nl = 20,
    iq3_s = 21,
    iq2_s = 22,
    iq4_xs = 23,
    i8 = 24,
    i16 = 25,
    i32 = 26,
    i64 = 27,
    f64 = 28,
    iq1_m = 29,
    bf16 = 30,
    tq1_0 = 34,
    tq2_0 = 35,
    mxfp4 = 39,
    nvfp4 = 40,
    q1_0 = 41,
    q2_0 = 42
};

/// The name and the storage of a tensor type: `block_bytes` for every `block` elements of a row.
struct ggml_type_info {
    std::uint32_t number;
    const char* name;
    std::uint32_t block;
    std::uint32_t block_bytes;
};

inline constexpr ggml_type_info ggml_types[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},    {42, "Q2_0", 64, 18},
};

/// What is known about a type; nullptr for numbers that are not in the table.
constexpr const ggml_type_info* find_ggml_type(ggml_type type) noexcept {
    for (const ggml_type_info& info : ggml_types)
        if (info.number == static_cast<std::uint32_t>(type))
            return &info;
    return nullptr;
}

/// The type with a name, in upper or lower case.
constexpr std::optional<ggml_type> ggml_type_named(std::string_view name) noexcept {
    const auto upper = [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; };
    for (const ggml_type_info& info : ggml_types) {
        const std::string_view known = info.name;
        if (std::equal(known.begin(), known.end(), name.begin(), name.end(),
                       [&](char a, char b) { return a == upper(b); }))
            return static_cast<ggml_type>(info.number);
    }
    return {};
}

/// The type's name, or `type <number>`.
inline std::string ggml_type_name(ggml_type type) {
    const ggml_type_info* info = find_ggml_type(type);
    return info != nullptr ? info->name : "type " + std::to_string(static_cast<std::uint32_t>(type));
}

/// Bytes of a tensor with these dimensions, the first of which is the row: 0 if the type is unknown, an error
/// if they are not possible. The message is a predicate ("has ...") to be put behind the tensor's name.
inline crumb::result<std::uint64_t> ggml_bytes(ggml_type type, std::span<const std::uint64_t> dims) noexcept {
    using crumb::errc;
    using crumb::status;
    using number = unsigned long long;
    constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
    if (dims.empty() || dims.size() > 4)
        return status::error(errc::bad_shape, "has %llu dimensions (1 to 4 are possible)",
                             number{dims.size()});
    std::uint64_t elements = 1;
    for (std::uint64_t dim : dims) {
        if (dim == 0)
            return status::error(errc::bad_shape, "has a dimension of 0");
        if (dim > most / elements)
            return status::error(errc::bad_shape, "has absurd dimensions: their product overflows");
        elements *= dim;
    }
    const ggml_type_info* info = find_ggml_type(type);
    if (info == nullptr)
        return std::uint64_t{0};
    if (dims[0] % info->block != 0)
        return status::error(errc::bad_shape, "has rows of %llu elements, not a multiple of %s's %u",
                             number{dims[0]}, info->name, info->block);
    const std::uint64_t blocks = elements / info->block;
    if (blocks > most / info->block_bytes)
        return status::error(errc::bad_shape, "has absurd dimensions: its size in bytes overflows");
    return blocks * info->block_bytes;
}

} // namespace lm
