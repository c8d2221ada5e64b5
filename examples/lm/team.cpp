#include "team.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace lm {
namespace {

inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/// A number that only grows, and that threads wait for.
class counter {
  public:
    std::uint32_t value() const noexcept { return value_.load(std::memory_order_acquire); }
    void raise() noexcept {
        value_.fetch_add(1, std::memory_order_seq_cst);
        // Waking costs a system call, so only sleepers are woken.
        if (sleepers_.load(std::memory_order_seq_cst) != 0)
            value_.notify_all();
    }
    /// Returns once the value is no longer `old`; looks `spins` times before it sleeps.
    void wait_beyond(std::uint32_t old, int spins) noexcept {
        for (int i = 0; i < spins; ++i) {
            if (value() != old)
                return;
            pause();
        }
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        value_.wait(old, std::memory_order_seq_cst);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }

  private:
    std::atomic<std::uint32_t> value_ = 0;
    std::atomic<std::uint32_t> sleepers_ = 0;
};

} // namespace

struct team::crew {
    // On every field that is written often its own cache line: waiting threads read them all the time.
    alignas(64) counter job;
    alignas(64) counter passed;
    alignas(64) std::atomic<std::size_t> arrived = 0;
    alignas(64) void (*call)(void*, std::size_t, std::size_t) = nullptr;
    void* task = nullptr;
    bool quit = false;
    std::size_t size = 0;
    int spins = 0;
    std::vector<std::thread> threads;

    void barrier() noexcept {
        const std::uint32_t before = passed.value();
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
            arrived.store(0, std::memory_order_relaxed);
            passed.raise();
        } else {
            passed.wait_beyond(before, spins);
        }
    }

    void work(std::size_t part) noexcept {
        for (std::uint32_t seen = 0;; ++seen) {
            job.wait_beyond(seen, spins);
            if (quit)
                return;
            call(task, part, size);
            barrier();
        }
    }

    ~crew() {
        quit = true;
        job.raise();
        for (std::thread& t : threads)
            t.join();
    }
};

team::team(std::size_t threads) : size_(threads == 0 ? all() : threads) {
    if (size_ == 1)
        return;
    crew_ = std::make_shared<crew>();
    crew_->size = size_;
    // Where threads outnumber the cores, the one that is waited for needs the core of the one that waits.
    crew_->spins = size_ <= all() ? 2000 : 0;
    for (std::size_t part = 1; part < size_; ++part)
        crew_->threads.emplace_back([c = crew_.get(), part] { c->work(part); });
}

std::size_t team::all() noexcept { return std::max(1u, std::thread::hardware_concurrency()); }

void team::run_all(void (*call)(void*, std::size_t, std::size_t), void* task) const {
    crew_->call = call;
    crew_->task = task;
    crew_->job.raise();
    call(task, 0, size_);
    crew_->barrier();
}

void team::wait_for_all() const noexcept { crew_->barrier(); }

} // namespace lm
