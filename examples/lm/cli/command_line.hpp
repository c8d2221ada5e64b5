// The command line of crumb-lm.
#pragma once

namespace lm {

/// Runs the command that the arguments of `main` name. Returns the exit code.
int run_command_line(int argc, char** argv);

} // namespace lm
