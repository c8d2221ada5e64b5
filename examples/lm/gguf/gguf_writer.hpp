// Writes GGUF files.
#pragma once

#include "gguf/ggml_type.hpp"
#include "gguf/gguf_value.hpp"

#include <crumb/core/status.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace lm {

/// The kind of a C++ number; `array` for other types.
template <class T>
constexpr gguf_kind gguf_kind_of() noexcept {
    constexpr bool is_signed = std::signed_integral<T>;
    if constexpr (std::same_as<T, bool>)
        return gguf_kind::boolean;
    else if constexpr (std::same_as<T, float> || std::same_as<T, double>)
        return sizeof(T) == 4 ? gguf_kind::f32 : gguf_kind::f64;
    else if constexpr (!std::integral<T>)
        return gguf_kind::array;
    else if constexpr (sizeof(T) == 1)
        return is_signed ? gguf_kind::i8 : gguf_kind::u8;
    else if constexpr (sizeof(T) == 2)
        return is_signed ? gguf_kind::i16 : gguf_kind::u16;
    else if constexpr (sizeof(T) == 4)
        return is_signed ? gguf_kind::i32 : gguf_kind::u32;
    else
        return is_signed ? gguf_kind::i64 : gguf_kind::u64;
}

template <class T>
concept gguf_number = gguf_kind_of<T>() != gguf_kind::array;

class gguf;
struct gguf_tensor;

/// Collects keys and tensors, and writes them as one GGUF file (little-endian).
///
/// What cannot be written is remembered as an error: the first one comes out of `bytes` and `write`.
class gguf_writer {
  public:
    /// `version` is 2 or 3 (they differ in number only); tensor data begins at multiples of `alignment`
    /// bytes, a power of two of at least 8. Other alignments than 32 put the key `general.alignment` into the
    /// file.
    explicit gguf_writer(std::uint32_t version = 3, std::uint32_t alignment = 32);

    /// Sets a key, or replaces its value. The key `general.alignment` is the writer's own and ignored here.
    template <gguf_number T>
    void set(std::string_view key, T value) {
        put(key, gguf_kind_of<T>(), false, 1, bytes_of(std::span<const T>(&value, 1)));
    }
    void set(std::string_view key, std::string_view value);
    template <gguf_number T>
    void set_array(std::string_view key, std::span<const T> values) {
        put(key, gguf_kind_of<T>(), true, values.size(), bytes_of(values));
    }
    void set_strings(std::string_view key, std::span<const std::string> values);
    /// Copies a key from a file that was read.
    void set(const gguf_value& value);

    /// Adds a tensor of a known type; `dims[0]` runs fastest. `data` is `ggml_bytes(type, dims)` long and
    /// stays the caller's, who keeps it until the last `bytes` or `write`.
    void add_tensor(std::string_view name, ggml_type type, std::span<const std::uint64_t> dims,
                    std::span<const std::byte> data);
    /// The same of a tensor of a file that was read.
    void add_tensor(const gguf_tensor& t);

    /// Sets and adds all keys and tensors of a file that was read, but those whose names begin with
    /// `without`.
    void copy(const gguf& file, std::string_view without);

    /// Fills `out` with a tensor's bytes from byte `at` on, or says why it cannot. No `status`: the name of
    /// that type differs where callers see declarations of kernels only.
    using source = std::function<std::string(std::uint64_t at, std::span<std::byte> out)>;
    /// Adds a tensor whose bytes exist only while they are written: `bytes` and `write` ask for them in
    /// order, in pieces of whole blocks, and end with the first error.
    void add_generated(std::string_view name, ggml_type type, std::span<const std::uint64_t> dims,
                       source data);

    /// The whole file in memory, or the first error.
    [[nodiscard]] crumb::result<std::vector<std::byte>> bytes() const;
    /// Writes an `output_file`, so that `path` is never half written; it may be a file that tensors are
    /// mapped from. An error names the file, or is the first one of those before. `progress(done, all)` is
    /// called with bytes of tensor data now and then.
    [[nodiscard]] crumb::status
    write(const std::string& path, const std::function<void(std::size_t, std::size_t)>& progress = {}) const;

  private:
    struct entry {
        std::string key;
        gguf_kind kind;
        bool is_array;
        std::uint64_t count;
        std::vector<std::byte> bytes;
    };
    struct tensor {
        std::string name;
        ggml_type type;
        std::vector<std::uint64_t> dims;
        std::uint64_t size;
        std::span<const std::byte> data;
        source generated; ///< empty: `data`
    };

    template <class T>
    static std::vector<std::byte> bytes_of(std::span<const T> values) {
        const auto raw = std::as_bytes(values);
        return {raw.begin(), raw.end()};
    }
    void put(std::string_view key, gguf_kind kind, bool is_array, std::uint64_t count,
             std::vector<std::byte> bytes);
    std::optional<std::uint64_t> check(std::string_view name, ggml_type type,
                                       std::span<const std::uint64_t> dims);
    /// Calls f(piece) for all bytes of a tensor until it returns an error.
    template <class F>
    static crumb::status for_each_piece(const tensor& t, F&& f);
    void fail(crumb::status error);
    std::vector<std::byte> header() const;
    std::size_t padding(std::size_t size) const noexcept;

    std::uint32_t version_;
    std::uint32_t alignment_;
    std::vector<entry> entries_;
    std::vector<tensor> tensors_;
    std::unordered_map<std::string, std::size_t> index_;
    std::unordered_set<std::string> names_;
    crumb::status error_;
};

} // namespace lm
