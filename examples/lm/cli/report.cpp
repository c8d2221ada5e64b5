#include "cli/report.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstring>

namespace lm {
namespace {

int print_error = 0; ///< errno of the first failure

/// Keeps the reason if the last call failed.
void keep(bool done) noexcept {
    if (!done && print_error == 0)
        print_error = errno != 0 ? errno : EIO;
}

} // namespace

void print(const char* format, ...) {
    if (print_error != 0)
        return;
    va_list args;
    va_start(args, format);
    errno = 0;
    keep(std::vprintf(format, args) >= 0);
    va_end(args);
}

void print_text(std::string_view text) {
    if (print_error != 0)
        return;
    errno = 0;
    keep(std::fwrite(text.data(), 1, text.size(), stdout) == text.size());
}

crumb::status printed() {
    errno = 0;
    keep(print_error != 0 || (std::fflush(stdout) == 0 && std::ferror(stdout) == 0));
    if (print_error == 0)
        return {};
    return crumb::status::error(crumb::errc::invalid_argument, "standard output: cannot write: %s",
                                std::strerror(print_error));
}

} // namespace lm
