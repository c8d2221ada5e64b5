// What has to happen when a signal ends the program: temporary files vanish, and a mapped file that somebody
// has shortened is named.
#pragma once

#include <cstddef>

namespace lm {

// Both tables are static and their paths copies, so that a handler can read them at any time. Slots are
// numbers from 0 on; -1 says that the table is full or the path longer than any that can be opened.

/// Remembers a file to unlink. It may be made after the call, so that no signal can come between.
int add_temporary(const char* path) noexcept;
/// Forgets it again; -1 does nothing.
void drop_temporary(int slot) noexcept;
/// Unlinks all that are remembered. Safe in signal handlers.
void remove_temporaries() noexcept;

/// Remembers where a file of `size` bytes is mapped. Without a slot, a shortened file ends the program
/// without a reason.
int add_mapping(const void* address, std::size_t size, const char* path) noexcept;
void drop_mapping(int slot) noexcept;

/// Installs the handlers, for programs; the calling thread is the one that makes temporary files.
/// SIGHUP, SIGINT, SIGQUIT, SIGTERM and SIGXCPU unlink temporary files and then do what they did before,
/// unless they are ignored. A SIGBUS within a mapped file prints one line that names it, unlinks as well and
/// exits with 1; any other does what it did before. SIGPIPE and SIGXFSZ are ignored, so that writing fails
/// instead.
void handle_signals() noexcept;

} // namespace lm
