// What plans and caches are made for.
#pragma once

#include <crumb/config.hpp>

namespace crumb::inline CRUMB_ABI {

/// The last argument of everything that chooses kernels.
struct context {
    /// Name of an ISA, see `isa_names`; null: the one that the environment variable CRUMB_ISA names, else the
    /// best that this CPU has.
    const char* isa = nullptr;
};

} // namespace crumb::inline CRUMB_ABI
