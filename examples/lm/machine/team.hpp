// Threads: the library computes sub-ranges, this program's threads ask for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>

namespace lm {

/// Nanoseconds of one thread that a step takes, per item of it: what steps of one kind have taken last.
struct pace {
    double per_item = 0; ///< 0: unknown
};

/// Whether threads that meet at barriers pay, judged by the one that releases the barriers: it alone knows
/// how long it has worked beside the others and how long it has waited for them. What waits cost beyond what
/// the others' help gains is lost; a try ends when a tenth of the step is lost, and the next one waits until
/// one thread has run ten times as long as was lost. While others take that thread's core the next try moves
/// away, as they would take the helpers' as well. All times are nanoseconds.
class balance {
  public:
    using time = std::int64_t;

    /// Before a step that would take one thread `expected`: whether to try it with `parts`.
    bool try_step(time expected, std::size_t parts) noexcept;
    /// How long part 0 may wait for the others now, after all have worked for `worked`.
    time patience(time worked) const noexcept { return tolerance_ - lost_ + gain(worked); }
    /// All parts have worked for `worked`, and one has waited for `waited` then. False: one thread is faster.
    bool pays(time worked, time waited) noexcept;
    /// No try before one thread has run for `time`.
    void postpone(time ran) noexcept { alone_ = ran; }
    /// One thread has run for `ran`; for `taken` others had its core.
    void alone(time ran, time taken) noexcept;

  private:
    // Threads that share a memory or a core gain less than their number promises.
    time gain(time worked) const noexcept { return worked * static_cast<time>(others_) / 2; }

    std::size_t others_ = 0;
    time tolerance_ = 0;
    time lost_ = 0;  ///< since the last try failed; less than 0: gained in this step
    time alone_ = 0; ///< that one thread has still to run before the next try
};

/// A fixed number of threads that live as long as the last copy of this handle. The caller of `run` and
/// `step` is one of them. Those that wait watch for a few microseconds and sleep then, so that a machine
/// shared with others loses little time.
class team {
  public:
    /// `threads` 0: `all()`. Throws std::system_error if the system refuses a thread. Of a team with `alone`,
    /// no clock decides in `step`: alone() is asked at the start of every step, and at every barrier that all
    /// parts have come to; from where it says true, part 0 goes on as the only one.
    explicit team(std::size_t threads, std::function<bool()> alone = {});
    std::size_t size() const noexcept { return size_; }

    /// The number of threads that this process may run at once.
    static std::size_t all() noexcept;

    /// Calls f(part, parts) for every part, each in a thread of its own, and waits for all. One call at a
    /// time. What a part throws is thrown here after all have ended: of several, the first one.
    template <class F>
    void run(F&& f) const {
        if (size_ == 1)
            return f(std::size_t{0}, std::size_t{1});
        run_all(call_of(f), &f);
    }

    /// The same for a step of `items`, whose parts meet at barriers, as long as that is faster than one
    /// thread. Where others need the cores, a barrier costs as much as the system lets them run. So the step
    /// may begin with one part, f(0, 1), or come down to one at any barrier; the result must not depend on
    /// the number of parts. The parts that fall out have done their share of what stands before that barrier,
    /// and leave f by an exception that must not be caught, nor may anything that it destroys touch what is
    /// not theirs. A part that throws ends the step for all at their next barrier.
    template <class F>
    void step(pace& of, std::size_t items, F&& f) const {
        if (size_ == 1)
            return f(std::size_t{0}, std::size_t{1});
        step_all(of, items, call_of(f), &f);
    }

    /// Inside `step`: waits until every part has come here. Returns the number of parts that go on, of which
    /// this is one: all or 1.
    std::size_t barrier(std::size_t part) const { return size_ == 1 ? 1 : meet(part, nullptr, nullptr); }
    /// The same; every part but the last to come calls idle(), which must not throw, before it waits. What
    /// falls out does so too: nobody waits for the end of it.
    template <class F>
    std::size_t barrier(std::size_t part, F& idle) const {
        static_assert(noexcept(idle()));
        return size_ == 1 ? 1 : meet(part, [](void* f) { (*static_cast<F*>(f))(); }, &idle);
    }

  private:
    using function = void (*)(void*, std::size_t, std::size_t);
    template <class F>
    static function call_of(F&) noexcept {
        return [](void* task, std::size_t part, std::size_t parts) { (*static_cast<F*>(task))(part, parts); };
    }
    struct crew;
    void run_all(function call, void* task) const;
    void step_all(pace& of, std::size_t items, function call, void* task) const;
    std::size_t meet(std::size_t part, void (*idle)(void*), void* of) const;

    std::size_t size_;
    std::shared_ptr<crew> crew_;
};

} // namespace lm
