#include "gguf/signals.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

namespace lm {
namespace {

constexpr std::size_t path_size = 4096; ///< of the longest path that Linux opens, with its end

/// A path that one thread puts in and takes out while handlers may look at it.
class slot {
  public:
    bool is_used() const noexcept { return state_.load(std::memory_order_acquire) == used; }
    const char* path() const noexcept { return path_.data(); }
    /// Whether the slot was free; it is this thread's then, until `publish`.
    bool take() noexcept {
        int expected = unused;
        return state_.compare_exchange_strong(expected, taken, std::memory_order_acq_rel);
    }
    void publish(const char* path) noexcept {
        std::memcpy(path_.data(), path, std::strlen(path) + 1);
        state_.store(used, std::memory_order_release);
    }
    void free() noexcept { state_.store(unused, std::memory_order_release); }

  private:
    enum : int { unused, taken, used };
    static_assert(std::atomic<int>::is_always_lock_free);
    std::atomic<int> state_ = unused;
    std::array<char, path_size> path_ = {};
};

struct mapping : slot {
    std::uintptr_t begin = 0;
    std::size_t size = 0;   ///< of the file
    std::size_t mapped = 0; ///< up to the end of a page
};

std::array<slot, 16> temporaries;
std::array<mapping, 256> mappings;
pthread_t main_thread;

template <class Table>
int take_slot(Table& table, const char* path) noexcept {
    if (std::strlen(path) < path_size)
        for (std::size_t i = 0; i < table.size(); ++i)
            if (table[i].take())
                return static_cast<int>(i);
    return -1;
}

void say(const char* path, const char* what) noexcept {
    static char line[path_size + 128];
    char* end = line;
    for (const char* part : {"crumb-lm: ", path, what}) {
        const std::size_t size = std::strlen(part);
        std::memcpy(end, part, size);
        end += size;
    }
    // Nothing can be done about a line that does not arrive.
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line, static_cast<std::size_t>(end - line));
}

/// Does what the signal does without a handler, as soon as the caller returns.
void raise_default(int number) noexcept {
    std::signal(number, SIG_DFL);
    std::raise(number);
}

void on_end(int number) {
    // Between making a file and the handler, the main thread does nothing.
    if (::pthread_equal(::pthread_self(), main_thread) == 0) {
        ::pthread_kill(main_thread, number);
        return;
    }
    remove_temporaries();
    raise_default(number);
}

void on_bus_error(int number, siginfo_t* info, void*) {
    static std::atomic_flag begun;
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    if (info->si_code <= 0) // another process sent it
        return raise_default(number);
    for (const mapping& m : mappings) {
        if (!m.is_used() || address - m.begin >= m.mapped)
            continue;
        while (begun.test_and_set()) // one thread is enough, which ends the others
            ::pause();
        struct stat now = {};
        const bool is_whole = ::stat(m.path(), &now) == 0 && static_cast<std::size_t>(now.st_size) >= m.size;
        say(m.path(), is_whole ? " could not be read\n" : " was shortened while it was read\n");
        remove_temporaries();
        ::_exit(1);
    }
    std::signal(number, SIG_DFL); // the instruction runs again
}

} // namespace

int add_temporary(const char* path) noexcept {
    const int at = take_slot(temporaries, path);
    if (at >= 0)
        temporaries[static_cast<std::size_t>(at)].publish(path);
    return at;
}

void drop_temporary(int slot) noexcept {
    if (slot >= 0)
        temporaries[static_cast<std::size_t>(slot)].free();
}

void remove_temporaries() noexcept {
    for (const slot& each : temporaries)
        if (each.is_used())
            ::unlink(each.path());
}

int add_mapping(const void* address, std::size_t size, const char* path) noexcept {
    const int at = take_slot(mappings, path);
    if (at < 0)
        return at;
    mapping& m = mappings[static_cast<std::size_t>(at)];
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    m.begin = reinterpret_cast<std::uintptr_t>(address);
    m.size = size;
    m.mapped = (size + page - 1) / page * page;
    m.publish(path);
    return at;
}

void drop_mapping(int slot) noexcept {
    if (slot >= 0)
        mappings[static_cast<std::size_t>(slot)].free();
}

void handle_signals() noexcept {
    main_thread = ::pthread_self();
    struct sigaction action = {};
    ::sigfillset(&action.sa_mask);
    action.sa_handler = on_end;
    for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU}) {
        struct sigaction before = {};
        // nohup and shells' background jobs ignore some of them.
        if (::sigaction(number, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
            ::sigaction(number, &action, nullptr);
    }
    action.sa_handler = nullptr;
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = on_bus_error;
    ::sigaction(SIGBUS, &action, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
}

} // namespace lm
