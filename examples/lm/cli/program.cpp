#include "cli/program.hpp"

#include "cli/report.hpp"
#include "gguf/signals.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace lm {
namespace {

const char* program = "crumb-lm";

/// Files and pipes must not get the numbers of standard streams that are closed: what is printed would land
/// in them. What stands in for stdout cannot be written to, so that printing fails as it should.
void open_standard_streams() noexcept {
    for (int stream = 0; stream <= 2; ++stream)
        if (::fcntl(stream, F_GETFD) < 0)
            // The lowest free number is this one.
            (void)::open("/dev/null", stream == 2 ? O_WRONLY : O_RDONLY);
}

/// Says on stderr why the program gives up. For handlers; takes no memory.
void report_exception() noexcept {
    try {
        throw;
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "%s: there is not enough memory\n", program);
    } catch (const std::length_error& e) {
        std::fprintf(stderr, "%s: there is not enough memory for such a size (%s)\n", program, e.what());
    } catch (const std::filesystem::filesystem_error& e) {
        std::fprintf(stderr, "%s: %s\n", program, e.what());
    } catch (const std::system_error& e) {
        const bool is_thread = e.code() == std::errc::resource_unavailable_try_again;
        std::fprintf(stderr, "%s: %s%s\n", program, e.what(),
                     is_thread ? ": the system gives no more threads (--threads takes fewer)" : "");
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s: %s\n", program, e.what());
    } catch (...) {
        std::fprintf(stderr, "%s: an exception of unknown type\n", program);
    }
}

/// Exceptions that nobody can catch, in threads for instance.
[[noreturn]] void on_terminate() noexcept {
    remove_temporaries();
    if (!std::current_exception())
        std::abort();
    report_exception();
    ::_exit(1);
}

} // namespace

void complain(const char* format, ...) {
    std::fprintf(stderr, "%s: ", program);
    va_list args;
    va_start(args, format);
    std::vfprintf(stderr, format, args);
    va_end(args);
    std::fputc('\n', stderr);
}

int exit_code(const crumb::status& result) {
    const crumb::status arrived = printed();
    const crumb::status& first = result ? arrived : result;
    if (first)
        return 0;
    complain("%s", first.message());
    return 1;
}

int run_program(const char* name, const std::function<int()>& run) {
    program = name;
    open_standard_streams();
    handle_signals();
    std::set_terminate(on_terminate);
    try {
        return run();
    } catch (...) {
        report_exception();
        return 1;
    }
}

} // namespace lm
