// What the threads of a team wait at.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lm {

/// Tells the CPU that the calling thread looks at something again and again.
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
        if (passes(old, spins))
            return;
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        value_.wait(old, std::memory_order_seq_cst);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    /// Whether that happens while it looks.
    bool passes(std::uint32_t old, int spins) const noexcept {
        for (int i = 0; i < spins; ++i) {
            if (value() != old)
                return true;
            pause();
        }
        return false;
    }

  private:
    std::atomic<std::uint32_t> value_ = 0;
    std::atomic<std::uint32_t> sleepers_ = 0;
};

/// Where threads join a job: its number, how many have joined, and whether more may. A thread that the system
/// lets run too late finds the gate closed, or open for a later job.
class gate {
  public:
    static constexpr std::uint64_t is_open = 1, one = 2;
    static std::uint32_t job_of(std::uint64_t state) noexcept {
        return static_cast<std::uint32_t>(state >> 32);
    }
    static std::size_t joined_in(std::uint64_t state) noexcept {
        return static_cast<std::uint32_t>(state) / one;
    }
    std::uint64_t state() const noexcept { return state_.load(std::memory_order_acquire); }
    void open(std::uint32_t job) noexcept {
        state_.store(std::uint64_t{job} << 32 | is_open, std::memory_order_release);
    }
    /// False: the state is another one by now.
    bool join(std::uint64_t state) noexcept {
        return state_.compare_exchange_strong(state, state + one, std::memory_order_acq_rel);
    }
    /// Returns how many have joined.
    std::size_t close() noexcept { return joined_in(state_.fetch_and(~is_open, std::memory_order_acq_rel)); }

  private:
    std::atomic<std::uint64_t> state_ = 0;
};

} // namespace lm
