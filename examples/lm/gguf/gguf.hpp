// Reads GGUF files (versions 2 and 3, little-endian): typed keys and named tensors.
#pragma once

#include "gguf/ggml_type.hpp"
#include "gguf/gguf_value.hpp"
#include "gguf/mapped_file.hpp"

#include <crumb/core/status.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace lm {

/// One tensor: what the table says, and its bytes.
struct gguf_tensor {
    std::string_view name;
    ggml_type type = ggml_type::f32;
    std::uint32_t rank = 1;
    std::array<std::uint64_t, 4> dims = {1, 1, 1, 1}; ///< `ne`: dims[0] runs fastest; 1 from `rank` on
    std::uint64_t offset = 0;                         ///< within the file's data section
    std::span<const std::byte> data;                  ///< empty when the type's block size is unknown

    /// The product of the dimensions.
    [[nodiscard]] std::uint64_t elements() const noexcept { return dims[0] * dims[1] * dims[2] * dims[3]; }
    /// A copy of its `count` numbers, float or int8: an error unless it has just these, in one dimension.
    template <class T>
    [[nodiscard]] crumb::result<std::vector<T>> numbers(std::size_t count) const {
        static_assert(std::is_same_v<T, float> || std::is_same_v<T, std::int8_t>);
        if (type != (std::is_same_v<T, float> ? ggml_type::f32 : ggml_type::i8) || rank != 1 ||
            dims[0] != count)
            return crumb::status::error(crumb::errc::corrupt, "tensor %.*s is not of %zu numbers",
                                        static_cast<int>(name.size()), name.data(), count);
        std::vector<T> out(count);
        std::memcpy(out.data(), data.data(), count * sizeof(T));
        return out;
    }
};

/// A validated GGUF file. Everything it hands out points into the file's bytes and lives as long as they do.
///
/// Getters fail when the key is missing or holds another kind, with a message that names the key; integers of
/// any width convert when in range. The two-argument forms give `fallback` when the key is missing.
class gguf {
  public:
    /// Reads `bytes`, which the caller keeps, at an address aligned to 8. Every offset, length and type is
    /// checked here; the tensors' values are not.
    static crumb::result<gguf> parse(std::span<const std::byte> bytes);
    /// Maps a file and reads it; messages begin with the file's name.
    static crumb::result<gguf> open(const std::string& path);

    [[nodiscard]] std::uint32_t version() const noexcept { return version_; }
    /// Tensor data begins at multiples of this many bytes.
    [[nodiscard]] std::uint32_t alignment() const noexcept { return alignment_; }

    /// All keys, in the file's order.
    [[nodiscard]] std::span<const gguf_value> values() const noexcept { return values_; }
    /// The value of a key, or nullptr.
    [[nodiscard]] const gguf_value* find(std::string_view key) const noexcept;

    [[nodiscard]] crumb::result<std::uint32_t> get_u32(std::string_view key) const;
    [[nodiscard]] crumb::result<std::uint32_t> get_u32(std::string_view key, std::uint32_t fallback) const;
    [[nodiscard]] crumb::result<std::int32_t> get_i32(std::string_view key) const;
    [[nodiscard]] crumb::result<std::int32_t> get_i32(std::string_view key, std::int32_t fallback) const;
    [[nodiscard]] crumb::result<std::uint64_t> get_u64(std::string_view key) const;
    [[nodiscard]] crumb::result<std::uint64_t> get_u64(std::string_view key, std::uint64_t fallback) const;
    /// From f32 or f64; NaN, infinity and what rounds to infinity are errors.
    [[nodiscard]] crumb::result<float> get_f32(std::string_view key) const;
    [[nodiscard]] crumb::result<float> get_f32(std::string_view key, float fallback) const;
    [[nodiscard]] crumb::result<bool> get_bool(std::string_view key) const;
    [[nodiscard]] crumb::result<bool> get_bool(std::string_view key, bool fallback) const;
    [[nodiscard]] crumb::result<std::string_view> get_string(std::string_view key) const;
    [[nodiscard]] crumb::result<std::string_view> get_string(std::string_view key,
                                                             std::string_view fallback) const;

    /// An array of any kind, without copying it.
    [[nodiscard]] crumb::result<const gguf_value*> get_array(std::string_view key) const;
    /// An array of strings, without copying it.
    [[nodiscard]] crumb::result<gguf_strings> get_strings(std::string_view key) const;
    /// An array of integers, each in range.
    [[nodiscard]] crumb::result<std::vector<std::int32_t>> get_i32s(std::string_view key) const;
    /// An array of f32 or f64, each finite.
    [[nodiscard]] crumb::result<std::vector<float>> get_f32s(std::string_view key) const;

    /// All tensors, in the file's order.
    [[nodiscard]] std::span<const gguf_tensor> tensors() const noexcept { return tensors_; }
    /// The tensor of a name, or nullptr.
    [[nodiscard]] const gguf_tensor* find_tensor(std::string_view name) const noexcept;
    /// The tensor of a name, or an error that names it.
    [[nodiscard]] crumb::result<const gguf_tensor*> get_tensor(std::string_view name) const;

  private:
    class parser;
    std::uint32_t version_ = 0;
    std::uint32_t alignment_ = 32;
    std::vector<gguf_value> values_;
    std::vector<gguf_tensor> tensors_;
    std::unordered_map<std::string_view, std::size_t> value_index_;
    std::unordered_map<std::string_view, std::size_t> tensor_index_;
    mapped_file file_;
};

} // namespace lm
