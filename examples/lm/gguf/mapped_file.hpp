// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace lm {

/// Owns a private, read-only mapping of a regular file. The bytes stay at their address when the object
/// moves, and are valid until it is destroyed. If somebody shortens the file meanwhile, reading them ends a
/// program that has called `handle_signals` with a message, any other by SIGBUS.
class mapped_file {
  public:
    mapped_file() noexcept = default;
    mapped_file(mapped_file&& other) noexcept;
    mapped_file& operator=(mapped_file&& other) noexcept;
    ~mapped_file();

    /// Maps `path`; an empty file gives empty bytes. On failure returns nothing and sets `error` to a message
    /// that names the file (see `shown_path`).
    static std::optional<mapped_file> open(const std::string& path, std::string& error);

    /// The file's bytes, aligned to a page.
    [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
        return {static_cast<const std::byte*>(address_), size_};
    }

  private:
    void* address_ = nullptr;
    std::size_t size_ = 0;
    int slot_ = -1; ///< see `add_mapping`
};

} // namespace lm
