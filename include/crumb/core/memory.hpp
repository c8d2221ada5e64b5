// Alignment, and carving of the caller's buffers.
#pragma once

#include <crumb/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace crumb::inline CRUMB_ABI {

/// The alignment in bytes of every buffer that the library takes: one cache line, one AVX-512 register.
inline constexpr std::size_t alignment = 64;

/// `size` rounded up to a multiple of `unit`.
constexpr std::size_t round_up(std::size_t size, std::size_t unit) noexcept {
    return (size + unit - 1) / unit * unit;
}

/// Checks that the caller's buffer has `bytes` bytes and is aligned; `name` is what the message calls it.
inline status check_buffer(std::span<const std::byte> buffer, std::size_t bytes, const char* name) noexcept {
    if (buffer.size() < bytes)
        return status::error(errc::buffer_too_small, "%s has %zu bytes, %zu are needed", name, buffer.size(),
                             bytes);
    if (bytes != 0 && reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment != 0)
        return status::error(errc::misaligned, "%s is not aligned to %zu bytes", name, alignment);
    return {};
}

/// Aborts unless `check_buffer` accepts the buffer.
inline void require_buffer(std::span<const std::byte> buffer, std::size_t bytes, const char* name) noexcept {
    if (const status s = check_buffer(buffer, bytes, name); !s)
        CRUMB_REQUIRE(false, "%s", s.message());
}

/// Whether a * b fits into size_t; the product goes to `out`.
constexpr bool multiply(std::size_t a, std::size_t b, std::size_t& out) noexcept {
    return !__builtin_mul_overflow(a, b, &out);
}

/// Bytes up to the end of item `index` of items of `bytes` bytes each; the largest number where that does not
/// fit into size_t.
constexpr std::size_t end_of_item(std::size_t index, std::size_t bytes) noexcept {
    std::size_t end = 0;
    return !__builtin_add_overflow(index, std::size_t{1}, &end) && multiply(end, bytes, end)
               ? end
               : std::numeric_limits<std::size_t>::max();
}

} // namespace crumb::inline CRUMB_ABI
