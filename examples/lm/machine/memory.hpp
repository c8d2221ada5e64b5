// How much memory this program may still take.
#pragma once

#include <crumb/core/status.hpp>

namespace lm {

/// Bytes that this process may take: what the system says is available, within the limits of the process
/// (`ulimit -v`) and of its control group.
double available_memory();

/// An error that names `what` and both numbers if that takes more than there is: asked before it is taken, as
/// the system would promise more than it has and kill the program that uses it.
crumb::status check_memory(double bytes, const char* what);

} // namespace lm
