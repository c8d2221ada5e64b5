#include "cli/interrupts.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>

#include <pthread.h>
#include <sys/select.h>

namespace lm {
namespace {

std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);
pthread_t main_thread;
struct sigaction before = {};

void on_interrupt(int number) {
    interrupted.store(true);
    // The one that waits.
    if (::pthread_equal(::pthread_self(), main_thread) == 0)
        ::pthread_kill(main_thread, number);
}

} // namespace

interrupts::interrupts() noexcept {
    main_thread = ::pthread_self();
    struct sigaction action = {};
    ::sigemptyset(&action.sa_mask);
    action.sa_handler = on_interrupt;
    if (::sigaction(SIGINT, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
        ::sigaction(SIGINT, &action, nullptr);
}

interrupts::~interrupts() { ::sigaction(SIGINT, &before, nullptr); }

bool interrupts::any() noexcept { return interrupted.load(); }

void interrupts::forget() noexcept { interrupted.store(false); }

bool interrupts::wait_for_input(int descriptor) noexcept {
    // Only `pselect` lets the signal in, so that none can come between the question and the wait.
    sigset_t interrupt, outside;
    ::sigemptyset(&interrupt);
    ::sigaddset(&interrupt, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &interrupt, &outside);
    while (!any()) {
        fd_set descriptors;
        FD_ZERO(&descriptors);
        FD_SET(descriptor, &descriptors);
        if (::pselect(descriptor + 1, &descriptors, nullptr, nullptr, nullptr, &outside) >= 0 ||
            errno != EINTR)
            break;
    }
    ::pthread_sigmask(SIG_SETMASK, &outside, nullptr);
    return !any();
}

} // namespace lm
