#include "machine/memory.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <memory>

#include <sys/resource.h>
#include <unistd.h>

namespace lm {
namespace {

/// The first number that `format` finds in a line of a file; nothing if there is none.
template <class T>
bool read_number(const char* path, const char* format, T& to) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "r"), &std::fclose);
    char line[256];
    while (file && std::fgets(line, sizeof line, file.get()) != nullptr)
        if (std::sscanf(line, format, &to) == 1)
            return true;
    return false;
}

} // namespace

double available_memory() {
    const double page = static_cast<double>(::sysconf(_SC_PAGESIZE));
    double most = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * page;
    std::uint64_t number = 0;
    if (read_number("/proc/meminfo", "MemAvailable: %" SCNu64, number))
        most = std::min(most, 1024.0 * static_cast<double>(number));
    std::uint64_t limit = 0, used = 0;
    if (read_number("/sys/fs/cgroup/memory.max", "%" SCNu64, limit) &&
        read_number("/sys/fs/cgroup/memory.current", "%" SCNu64, used))
        most = std::min(most, static_cast<double>(limit) - static_cast<double>(used));
    rlimit space = {};
    if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY &&
        read_number("/proc/self/statm", "%" SCNu64, number))
        most = std::min(most, static_cast<double>(space.rlim_cur) - page * static_cast<double>(number));
    return std::max(most, 0.0);
}

crumb::status check_memory(double bytes, const char* what) {
    if (const double most = available_memory(); bytes > most)
        return crumb::status::error(crumb::errc::buffer_too_small,
                                    "%s needs %.0f MB of memory, this machine has %.0f MB left", what,
                                    bytes / 1e6, most / 1e6);
    return {};
}

} // namespace lm
