#include "machine/team.hpp"

#include "machine/gate.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

namespace lm {
namespace {

balance::time now() noexcept {
    using namespace std::chrono;
    return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

/// Time that the calling thread has had a core.
balance::time thread_time() noexcept {
    std::timespec t = {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return balance::time{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

/// Whether others want so many cores that a team of `threads` would share more than one of its own with them:
/// by the number of runnable threads that the system tells, where it does.
bool is_crowded(std::size_t threads) noexcept {
    const int file = ::open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    char text[128];
    const ssize_t size = ::read(file, text, sizeof text - 1);
    ::close(file);
    std::size_t running = 0;
    text[size < 0 ? 0 : size] = '\0';
    // The caller is one of them.
    return std::sscanf(text, "%*f %*f %*f %zu/", &running) == 1 && running + threads > team::all() + 2;
}

/// Thrown by barriers in parts that do not go on.
struct left {};

/// For an unknown pace.
constexpr balance::time unknown_step = 10'000'000;
/// Less than this is noise.
constexpr balance::time min_tolerance = 200'000;
/// Looks at a counter, a few microseconds, in which a part that others wait for may well come.
constexpr int short_wait = 64;
/// One thread runs for this time before it looks again whether others leave cores.
constexpr balance::time crowded_time = 10'000'000;
/// After this time on an idle machine threads are tried again.
constexpr balance::time longest_penance = 500'000'000;

} // namespace

bool balance::try_step(time expected, std::size_t parts) noexcept {
    // A long step would be taken alone as a whole for the rest of a short penance.
    if (alone_ > 0 && alone_ >= expected / 2)
        return false;
    alone_ = 0;
    others_ = parts - 1;
    tolerance_ = std::max(min_tolerance, expected / 10);
    // Small losses of many steps add up; what was gained does not cover a machine that has become busy.
    lost_ = std::max<time>(lost_, 0);
    return true;
}

bool balance::pays(time worked, time waited) noexcept {
    lost_ += waited - gain(worked);
    if (lost_ <= tolerance_)
        return true;
    alone_ = 10 * lost_;
    lost_ = 0;
    return false;
}

void balance::alone(time ran, time taken) noexcept {
    if (alone_ > 0)
        alone_ = std::min(alone_ - ran + 10 * std::max<time>(taken, 0), longest_penance);
}

struct team::crew {
    // On every field that is written often its own cache line: waiting threads read them all the time.
    alignas(64) counter job;
    alignas(64) gate joining;
    alignas(64) std::atomic<std::size_t> arrived = 0;
    /// Of the barrier that part 0 waits at: from when on it goes on alone; 0: it has not waited for long.
    std::atomic<balance::time> deadline = 0;
    std::atomic<bool> failed = false;
    alignas(64) counter passed; ///< barriers
    std::atomic<bool> leave = false;
    // What the job is, written before its gate opens.
    alignas(64) function call = nullptr;
    void* task = nullptr;
    bool has_barriers = false;
    std::size_t size = 0;
    int spins = 0;
    std::function<bool()> alone;
    std::atomic<bool> quit = false;
    std::mutex failure_guard;
    std::exception_ptr failure;
    std::vector<std::thread> threads;
    // Part 0's own.
    alignas(64) std::uint32_t jobs = 0;
    std::size_t parts = 1;
    bool together = false; ///< all have done the last step
    balance paying;
    balance::time since = 0;      ///< start, or end of the last long wait
    balance::time ran_before = 0; ///< this thread, when it went on alone
    balance::time used = 0;       ///< of this step, in the time of one thread

    ~crew() {
        quit.store(true, std::memory_order_relaxed);
        job.raise();
        for (std::thread& t : threads)
            t.join();
    }

    void fail() noexcept {
        const std::lock_guard lock(failure_guard);
        if (!failure)
            failure = std::current_exception();
        failed.store(true, std::memory_order_relaxed);
    }
    void rethrow() {
        if (failed.exchange(false, std::memory_order_relaxed))
            std::rethrow_exception(std::exchange(failure, nullptr));
    }

    /// The last part to come to a barrier, or to the end, lets all others go on, or part 0 only. False: this
    /// is not the last one.
    bool arrive() noexcept {
        if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 != size)
            return false;
        arrived.store(0, std::memory_order_relaxed);
        const balance::time until = deadline.load(std::memory_order_relaxed);
        release(failed.load(std::memory_order_relaxed) || (until != 0 && now() > until));
        return true;
    }
    void release(bool to_leave) noexcept {
        // Those that wait are reading this line: it should change hands once.
        if (leave.load(std::memory_order_relaxed) != to_leave)
            leave.store(to_leave, std::memory_order_relaxed);
        passed.raise();
    }

    // ---- parts from 1 on

    void work(std::size_t part) noexcept {
        std::uint32_t seen = 0, done = 0;
        for (;;) {
            job.wait_beyond(seen, spins);
            seen = job.value();
            if (quit.load(std::memory_order_relaxed))
                return;
            // `passed` is read first: once this part has joined, it may grow.
            std::uint64_t state = joining.state();
            std::uint32_t before = passed.value();
            const auto may_join = [&] { return (state & gate::is_open) != 0 && gate::job_of(state) != done; };
            while (may_join() && !joining.join(state)) {
                state = joining.state();
                before = passed.value();
            }
            if (!may_join())
                continue;
            done = gate::job_of(state);
            try {
                // With a sole helper all have joined now.
                if (has_barriers && size > 2)
                    go_on(before);
                call(task, part, size);
            } catch (const left&) {
                continue;
            } catch (...) {
                fail();
            }
            arrive();
        }
    }

    void go_on(std::uint32_t before) {
        passed.wait_beyond(before, spins);
        if (leave.load(std::memory_order_relaxed))
            throw left{};
    }

    std::size_t meet_others(void (*idle)(void*), void* of) {
        const std::uint32_t before = passed.value();
        if (!arrive() && idle != nullptr)
            idle(of);
        go_on(before);
        return size;
    }

    // ---- part 0

    void open(function f, void* of, bool with_barriers) noexcept {
        call = f;
        task = of;
        has_barriers = with_barriers;
        joining.open(++jobs);
        job.raise();
    }

    void wait(void (*idle)(void*) = nullptr, void* of = nullptr) noexcept {
        const std::uint32_t before = passed.value();
        if (arrive())
            return;
        if (idle != nullptr)
            idle(of);
        // What is over at once costs no look at the clock.
        if (passed.passes(before, std::min(spins, short_wait)))
            return;
        const balance::time from = now();
        if (!alone)
            deadline.store(from + paying.patience(from - since), std::memory_order_relaxed);
        passed.wait_beyond(before, spins);
        deadline.store(0, std::memory_order_relaxed);
        account(from);
    }
    /// The time since the last long wait, of which the part after `from` is another one.
    void account(balance::time from) noexcept {
        const balance::time to = now();
        used += (from - since) * static_cast<balance::time>(size);
        paying.pays(from - since, to - from);
        since = to;
    }

    void begin_alone() noexcept {
        parts = 1;
        since = now();
        ran_before = thread_time();
    }
    void end_alone() noexcept {
        const balance::time ran = thread_time() - ran_before;
        used += ran;
        paying.alone(ran, now() - since - ran);
    }

    void run(function f, void* of) {
        open(f, of, false);
        try {
            f(of, 0, size);
        } catch (...) {
            fail();
        }
        const std::uint32_t before = passed.value();
        if (!arrive())
            passed.wait_beyond(before, spins);
        rethrow();
    }

    /// Whether all have come in time to the step that has been opened.
    bool all_join() noexcept {
        for (int i = 1; gate::joined_in(joining.state()) != size - 1; ++i) {
            if (spins == 0 || alone)
                std::this_thread::yield();
            else
                pause();
            if (!alone && i % 16 == 0 && now() - since > paying.patience(0))
                return joining.close() == size - 1;
        }
        return true;
    }

    bool starts_together(balance::time expected) noexcept {
        if (!paying.try_step(expected, size))
            return false;
        // A try where others have the cores costs a time slice, which a short text does not win back.
        if (together || !is_crowded(size))
            return true;
        paying.postpone(crowded_time);
        return false;
    }

    void step(pace& of_kind, std::size_t items, function f, void* of) {
        const double n = static_cast<double>(std::max<std::size_t>(1, items));
        const auto expected =
            of_kind.per_item > 0 ? static_cast<balance::time>(of_kind.per_item * n) : unknown_step;
        since = now();
        used = 0;
        parts = size;
        if (alone ? alone() : !starts_together(expected)) {
            begin_alone();
        } else {
            open(f, of, true);
            const bool all = all_join();
            account(since);
            if (!all)
                begin_alone();
            if (size > 2)
                release(!all);
        }
        try {
            f(of, 0, parts);
            if (parts == 1)
                end_alone();
            else
                end_together();
        } catch (const left&) {
        } catch (...) {
            fail();
            if (parts > 1)
                wait();
        }
        together = parts == size;
        rethrow();
        of_kind.per_item = static_cast<double>(used) / n;
    }
    void end_together() noexcept {
        wait();
        account(now());
    }

    std::size_t meet(void (*idle)(void*), void* of) {
        if (parts == 1)
            return 1;
        if (alone)
            deadline.store(alone() ? 1 : 0, std::memory_order_relaxed);
        wait(idle, of);
        if (!leave.load(std::memory_order_relaxed))
            return parts;
        if (failed.load(std::memory_order_relaxed))
            throw left{};
        begin_alone();
        return parts;
    }
};

team::team(std::size_t threads, std::function<bool()> alone) : size_(threads == 0 ? all() : threads) {
    if (size_ == 1)
        return;
    crew_ = std::make_shared<crew>();
    crew_->size = size_;
    crew_->alone = std::move(alone);
    // Where threads outnumber the cores, the one that is waited for needs the core of the one that waits.
    crew_->spins = size_ <= all() ? 2000 : 0;
    crew_->threads.reserve(size_ - 1);
    for (std::size_t part = 1; part < size_; ++part)
        crew_->threads.emplace_back([c = crew_.get(), part] { c->work(part); });
}

std::size_t team::all() noexcept { return std::max(1u, std::thread::hardware_concurrency()); }

void team::run_all(function call, void* task) const { crew_->run(call, task); }

void team::step_all(pace& of, std::size_t items, function call, void* task) const {
    crew_->step(of, items, call, task);
}

std::size_t team::meet(std::size_t part, void (*idle)(void*), void* of) const {
    return part == 0 ? crew_->meet(idle, of) : crew_->meet_others(idle, of);
}

} // namespace lm
