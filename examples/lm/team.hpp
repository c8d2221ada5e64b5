// Threads: the library computes sub-ranges, this program's threads ask for them.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

namespace lm {

/// A fixed number of threads that live as long as the last copy of this handle. The caller of `run` is one of
/// them. Those that wait watch for a few microseconds and sleep then, so that a machine shared with others
/// loses little time.
class team {
  public:
    explicit team(std::size_t threads);
    std::size_t size() const noexcept { return size_; }

    /// The number of threads that this process may run at once.
    static std::size_t all() noexcept;

    /// Calls f(part, parts) for every part, each in a thread of its own, and waits for all. One call at a
    /// time.
    template <class F>
    void run(F&& f) const {
        if (size_ == 1)
            return f(std::size_t{0}, std::size_t{1});
        using function = std::remove_reference_t<F>;
        run_all([](void* task, std::size_t part,
                   std::size_t parts) { (*static_cast<function*>(task))(part, parts); },
                &f);
    }

    /// Inside `run`: waits until every part has come here.
    void barrier() const noexcept {
        if (size_ > 1)
            wait_for_all();
    }

  private:
    struct crew;
    void run_all(void (*call)(void*, std::size_t, std::size_t), void* task) const;
    void wait_for_all() const noexcept;

    std::size_t size_;
    std::shared_ptr<crew> crew_;
};

} // namespace lm
