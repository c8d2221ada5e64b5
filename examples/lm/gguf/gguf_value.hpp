// Metadata values of GGUF files: their kinds, and how they convert.
#pragma once

#include <crumb/core/status.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace lm {

/// Kinds of metadata values, numbered as in the file.
enum class gguf_kind : std::uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    string,
    array,
    u64,
    i64,
    f64
};

/// Bytes of one value of a kind; 0 for strings, arrays and unknown kinds.
inline std::size_t gguf_kind_bytes(gguf_kind kind) noexcept {
    switch (kind) {
    case gguf_kind::u8:
    case gguf_kind::i8:
    case gguf_kind::boolean:
        return 1;
    case gguf_kind::u16:
    case gguf_kind::i16:
        return 2;
    case gguf_kind::u32:
    case gguf_kind::i32:
    case gguf_kind::f32:
        return 4;
    case gguf_kind::u64:
    case gguf_kind::i64:
    case gguf_kind::f64:
        return 8;
    default:
        return 0;
    }
}

/// The kind's name, for messages.
inline const char* gguf_kind_name(gguf_kind kind) noexcept {
    constexpr const char* names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                     "bool", "string", "array", "u64", "i64", "f64"};
    const auto number = static_cast<std::size_t>(kind);
    return number < std::size(names) ? names[number] : "unknown";
}

/// `name` in single quotes, fit for a message: control characters replaced, shortened to 64 bytes.
inline std::string quoted(std::string_view name) {
    constexpr std::size_t longest = 64;
    std::string text = "'";
    for (char c : name.substr(0, longest))
        text += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
    return text + (name.size() > longest ? "...'" : "'");
}

/// The strings of a metadata value, read in order; they point into the file.
class gguf_strings {
  public:
    class iterator {
      public:
        using iterator_category = std::forward_iterator_tag;
        using value_type = std::string_view;
        using difference_type = std::ptrdiff_t;
        using pointer = const std::string_view*;
        using reference = std::string_view;

        iterator() noexcept = default;
        explicit iterator(const std::byte* at) noexcept : at_(at) {}
        std::string_view operator*() const noexcept {
            return {reinterpret_cast<const char*>(at_) + sizeof(std::uint64_t), length()};
        }
        iterator& operator++() noexcept {
            at_ += sizeof(std::uint64_t) + length();
            return *this;
        }
        iterator operator++(int) noexcept {
            const iterator old = *this;
            ++*this;
            return old;
        }
        bool operator==(const iterator&) const noexcept = default;

      private:
        [[nodiscard]] std::size_t length() const noexcept {
            std::uint64_t length;
            std::memcpy(&length, at_, sizeof length);
            return static_cast<std::size_t>(length);
        }
        const std::byte* at_ = nullptr;
    };

    gguf_strings() noexcept = default;
    gguf_strings(std::span<const std::byte> bytes, std::size_t count) noexcept
        : bytes_(bytes), count_(count) {}
    [[nodiscard]] iterator begin() const noexcept { return iterator(bytes_.data()); }
    [[nodiscard]] iterator end() const noexcept { return iterator(bytes_.data() + bytes_.size()); }
    [[nodiscard]] std::size_t size() const noexcept { return count_; }

  private:
    std::span<const std::byte> bytes_;
    std::size_t count_ = 0;
};

/// One key with its value, as it lies in the file: a scalar, or an array of `count` elements of a kind.
struct gguf_value {
    std::string_view key;
    gguf_kind kind = gguf_kind::u8; ///< of the elements, if it is an array
    bool is_array = false;
    std::size_t count = 1;
    std::span<const std::byte> bytes; ///< the elements, unaligned; each string preceded by its length (u64)

    /// Element `i < count` as the integer type T; nothing when it is no integer or outside T's range.
    template <class T>
    [[nodiscard]] std::optional<T> integer(std::size_t i = 0) const noexcept {
        switch (kind) {
        case gguf_kind::u8:
            return narrow<T>(load<std::uint8_t>(i));
        case gguf_kind::i8:
            return narrow<T>(load<std::int8_t>(i));
        case gguf_kind::u16:
            return narrow<T>(load<std::uint16_t>(i));
        case gguf_kind::i16:
            return narrow<T>(load<std::int16_t>(i));
        case gguf_kind::u32:
            return narrow<T>(load<std::uint32_t>(i));
        case gguf_kind::i32:
            return narrow<T>(load<std::int32_t>(i));
        case gguf_kind::u64:
            return narrow<T>(load<std::uint64_t>(i));
        case gguf_kind::i64:
            return narrow<T>(load<std::int64_t>(i));
        default:
            return std::nullopt;
        }
    }
    /// Element `i < count` of kind f32 or f64; nothing for other kinds.
    [[nodiscard]] std::optional<double> real(std::size_t i = 0) const noexcept {
        if (kind == gguf_kind::f32)
            return static_cast<double>(load<float>(i));
        return kind == gguf_kind::f64 ? std::optional(load<double>(i)) : std::nullopt;
    }
    /// Element `i < count` of kind boolean; nothing for other kinds.
    [[nodiscard]] std::optional<bool> boolean(std::size_t i = 0) const noexcept {
        return kind == gguf_kind::boolean ? std::optional(bytes[i] != std::byte{0}) : std::nullopt;
    }
    /// The strings; none for other kinds.
    [[nodiscard]] gguf_strings strings() const noexcept {
        return kind == gguf_kind::string ? gguf_strings(bytes, count) : gguf_strings();
    }

  private:
    template <class T>
    T load(std::size_t i) const noexcept {
        T value;
        std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
        return value;
    }
    template <class T, class From>
    static std::optional<T> narrow(From value) noexcept {
        return std::in_range<T>(value) ? std::optional(static_cast<T>(value)) : std::nullopt;
    }
};

// Conversions with messages that name the key.
namespace detail {

inline crumb::status wrong_kind(const gguf_value& value, const char* wanted) {
    return crumb::status::error(crumb::errc::invalid_argument, "key %s is %s%s, not %s",
                                quoted(value.key).c_str(), value.is_array ? "an array of " : "",
                                gguf_kind_name(value.kind), wanted);
}

inline crumb::status missing(std::string_view key) {
    return crumb::status::error(crumb::errc::invalid_argument, "key %s is missing", quoted(key).c_str());
}

inline bool is_real(gguf_kind kind) noexcept { return kind == gguf_kind::f32 || kind == gguf_kind::f64; }

inline bool is_integer(gguf_kind kind) noexcept {
    return gguf_kind_bytes(kind) != 0 && kind != gguf_kind::boolean && !is_real(kind);
}

template <class T>
crumb::result<T> integer_of(const gguf_value& value, std::size_t i) {
    if (const auto integer = value.integer<T>(i))
        return *integer;
    return crumb::status::error(
        crumb::errc::invalid_argument, "key %s holds an integer that does not fit into %s%u",
        quoted(value.key).c_str(), std::is_signed_v<T> ? "i" : "u", static_cast<unsigned>(sizeof(T) * 8));
}

inline crumb::result<float> real_of(const gguf_value& value, std::size_t i) {
    const double real = *value.real(i);
    if (std::abs(real) <= static_cast<double>(std::numeric_limits<float>::max()))
        return static_cast<float>(real);
    return crumb::status::error(crumb::errc::not_finite, "key %s holds a number that is not finite",
                                quoted(value.key).c_str());
}

template <class T>
crumb::result<std::vector<T>> elements(const gguf_value& value,
                                       crumb::result<T> (*get)(const gguf_value&, std::size_t)) {
    std::vector<T> out;
    out.reserve(value.count);
    for (std::size_t i = 0; i < value.count; ++i) {
        const auto element = get(value, i);
        if (!element)
            return element.error();
        out.push_back(*element);
    }
    return out;
}

template <class T>
crumb::result<T> scalar(const gguf_value* value, std::string_view key) {
    if (value == nullptr)
        return missing(key);
    if constexpr (std::is_same_v<T, bool>) {
        if (!value->is_array && value->kind == gguf_kind::boolean)
            return *value->boolean();
        return wrong_kind(*value, "a bool");
    } else if constexpr (std::is_same_v<T, float>) {
        return !value->is_array && is_real(value->kind) ? real_of(*value, 0) : wrong_kind(*value, "a float");
    } else if constexpr (std::is_same_v<T, std::string_view>) {
        if (!value->is_array && value->kind == gguf_kind::string)
            return *value->strings().begin();
        return wrong_kind(*value, "a string");
    } else {
        return !value->is_array && is_integer(value->kind) ? integer_of<T>(*value, 0)
                                                           : wrong_kind(*value, "an integer");
    }
}

} // namespace detail

} // namespace lm
