// What ggml asks first: the registry of this plug-in.
#pragma once

#include "ggml/ggml_api.hpp"

namespace crumb_ggml {

/// The registry with its one device; with none if CRUMB_GGML is off.
ggml_backend_reg_t registry() noexcept;

} // namespace crumb_ggml
