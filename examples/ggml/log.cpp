#include "ggml/log.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace crumb_ggml {

void log(ggml_log_level level, const char* format, ...) noexcept {
    char text[1024] = "crumb: ";
    const std::size_t begin = std::strlen(text);
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text + begin, sizeof text - begin - 1, format, arguments);
    va_end(arguments);
    std::strcat(text, "\n");
    ggml_log_callback callback = nullptr;
    void* user_data = nullptr;
    ggml_log_get(&callback, &user_data);
    if (callback != nullptr)
        callback(level, text, user_data);
}

} // namespace crumb_ggml
