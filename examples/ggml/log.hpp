// Messages through ggml's log, which llama.cpp's programs direct.
#pragma once

#include "ggml/ggml_api.hpp"

namespace crumb_ggml {

/// Writes a line, formatted as by printf, which gets its "crumb: " and its end here.
[[gnu::format(printf, 2, 3)]] void log(ggml_log_level level, const char* format, ...) noexcept;

} // namespace crumb_ggml
