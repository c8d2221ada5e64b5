// What a long task has finished, kept in a file for the run that goes on after this one has been stopped.
#pragma once

#include <crumb/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace lm {

/// A file of records behind a head that says what they belong to. A record is on the disk as a whole before
/// the next one begins; of a run that was killed, the part of a record that it has left is dropped. The file
/// appears with the first record, and one process at a time has it.
class partial_file {
  public:
    /// What the records belong to: a name, as a message can have it, and its value.
    struct property {
        std::string name, value;
        friend bool operator==(const property&, const property&) = default;
    };
    using function = std::function<crumb::status(std::uint32_t kind, std::span<const std::byte> record)>;

    /// Opens what there may be at `path` and calls f for every record in order; the bytes are valid during
    /// the call. Refuses files that belong to something else (the error names the first property that
    /// differs, and both values, and says what to do if the file is to stay), files of another kind, and one
    /// that another process has open.
    static crumb::result<partial_file> open(const std::string& path, std::vector<property> properties,
                                            const function& f, const char* advice = "name another output");

    /// No file: `append` does nothing.
    partial_file() = default;
    partial_file(partial_file&& other) noexcept;
    partial_file& operator=(partial_file&& other) noexcept;
    ~partial_file();
    explicit operator bool() const noexcept { return !path_.empty(); }

    /// Adds a record and waits until the disk has it. After an error, a full disk for instance, the file
    /// holds what it held before, and may be opened again.
    [[nodiscard]] crumb::status append(std::uint32_t kind, std::span<const std::byte> record);
    /// Removes a file whose task is done, if there is one.
    [[nodiscard]] static crumb::status remove(const std::string& path);

  private:
    [[nodiscard]] crumb::status create();

    std::string path_; ///< empty: no file
    std::string head_;
    int file_ = -1;         ///< -1: not yet
    std::uint64_t end_ = 0; ///< of the last whole record
};

} // namespace lm
