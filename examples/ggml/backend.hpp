// A backend: the threads and the memory of one context of llama.cpp.
#pragma once

#include "ggml/ggml_api.hpp"

namespace crumb_ggml {

/// A new backend; null, and a line in the log, if it cannot be made.
ggml_backend_t new_backend() noexcept;

/// The number of threads that it computes the next graphs with.
void set_threads(ggml_backend_t backend, int threads);

} // namespace crumb_ggml
