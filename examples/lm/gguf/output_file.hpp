// Files that appear whole or not at all.
#pragma once

#include <crumb/core/status.hpp>

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include <sys/stat.h>

namespace lm {

/// A file that is written beside its target and takes its place in the end. Until then, and if anything
/// fails, the target stays as it was; the part that is written vanishes with the object, or when a signal
/// ends a program that has called `handle_signals`. A process that is killed leaves it behind, and it is in
/// nobody's way.
class output_file {
  public:
    /// Begins a file. The target may be a regular file that may be written to, whose permissions (and owner,
    /// where the system allows it) the new one gets; or a link to one, which stays a link; or nothing yet.
    /// Everything else is refused.
    static crumb::result<output_file> create(const std::string& path);

    output_file(output_file&& other) noexcept;
    output_file& operator=(output_file&& other) noexcept;
    ~output_file();

    /// Adds bytes; small pieces are collected. Of errors the first is kept for `commit`.
    void write(std::span<const std::byte> bytes);
    void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
    CRUMB_PRINTF(2, 3) void print(const char* format, ...);
    /// Whether no error is known yet: there is nothing to be gained by more writing otherwise.
    bool ok() const noexcept { return error_ == 0; }

    /// Writes what is left, waits until the disk has all of it and puts the file in its target's place. Says
    /// which file could not be written and why, if anything has failed. Once only.
    [[nodiscard]] crumb::status commit();

    /// The path of the target, behind all links.
    const std::string& target() const noexcept { return target_; }

  private:
    output_file() = default;
    void flush() noexcept;
    void write_now(std::span<const std::byte> bytes) noexcept;
    void discard() noexcept;

    std::string path_;      ///< as given
    std::string target_;    ///< behind links
    std::string temporary_; ///< what is written; empty: nothing
    std::string pending_;   ///< not written yet
    int file_ = -1;
    int directory_ = -1; ///< of the target; -1: it cannot be read
    int slot_ = -1;      ///< see `add_temporary`
    int error_ = 0;      ///< errno of the first failure
    bool replaces_ = false;
    struct stat before_ = {}; ///< of the target that is replaced
};

/// Refuses paths that `output_file` would refuse, and two that are one file. For commands that work for
/// minutes before they write; empty paths are skipped.
[[nodiscard]] crumb::status check_outputs(std::initializer_list<std::string> paths);

} // namespace lm
