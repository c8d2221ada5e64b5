// Files of packed weights: which file one was made of, and whether that is still the same.
#pragma once

#include "gguf/gguf.hpp"
#include "gguf/gguf_writer.hpp"

#include <cstdint>
#include <string>

namespace lm {

/// A file as it was when its weights were packed.
struct pack_source {
    std::string path;           ///< absolute
    std::uint64_t bytes = 0;    ///< its size
    std::int64_t modified = 0;  ///< nanoseconds since 1970
    std::uint64_t contents = 0; ///< a hash of its keys and of its tensors' names, types and places

    friend bool operator==(const pack_source&, const pack_source&) = default;
};

/// What a file is now. `file` is what `path` has been read as.
crumb::result<pack_source> describe_source(const std::string& path, const gguf& file);

/// Whether a file has been written by `crumb-lm pack`.
bool is_packed(const gguf& file) noexcept;
/// Sets the keys `crumb.pack.*`.
void write_source(gguf_writer& to, const pack_source& source);

/// Whether a packed file was made of a source that is still as `now`.
bool is_packed_from(const gguf& packed, const pack_source& now);

/// Success for files that are not packed, and for packed ones whose source is as it was or is not where it
/// was. Else an error that says what has changed. `known`: a file that has just been described; if that is
/// the source, it is not read again.
crumb::status check_source(const gguf& packed, const pack_source* known = nullptr);

} // namespace lm
