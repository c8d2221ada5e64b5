// What a program on these commands does around them: streams, signals, exceptions, exit codes.
#pragma once

#include <crumb/core/status.hpp>

#include <functional>

namespace lm {

/// Prints a line on stderr, behind the name of the program.
CRUMB_PRINTF(1, 2) void complain(const char* format, ...);

/// The exit code of a command that has ended so; complains about an error, or about output that has not
/// arrived.
int exit_code(const crumb::status& result);

/// Runs a program named `name`: signals are handled, standard streams are open, and what is thrown becomes a
/// line on stderr. Returns the exit code. `name` must outlive the program.
int run_program(const char* name, const std::function<int()>& run);

} // namespace lm
