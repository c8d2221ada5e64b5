// Threads: the library computes sub-ranges, this program's OpenMP team asks for them.
#pragma once

#include <crumb/core/view.hpp>

#include <cstddef>
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace lm {

/// A fixed number of threads.
class team {
  public:
    explicit team(std::size_t threads) noexcept : threads_(threads == 0 ? all() : threads) {}
    std::size_t size() const noexcept { return threads_; }

    /// The number of threads that this machine runs at once.
    static std::size_t all() noexcept {
#if defined(_OPENMP)
        return static_cast<std::size_t>(omp_get_max_threads());
#else
        return 1;
#endif
    }

    /// Calls f(part, parts) for every part, each in a thread of its own.
    template <class F>
    void run(F&& f) const {
#if defined(_OPENMP)
        if (threads_ > 1) {
#pragma omp parallel num_threads(static_cast <int>(threads_))
            f(static_cast<std::size_t>(omp_get_thread_num()),
              static_cast<std::size_t>(omp_get_num_threads()));
            return;
        }
#endif
        f(std::size_t{0}, std::size_t{1});
    }

    /// Inside `run`: waits until every part has come here.
    void barrier() const noexcept {
#if defined(_OPENMP)
        if (threads_ > 1) {
#pragma omp barrier
        }
#endif
    }

  private:
    std::size_t threads_;
};

} // namespace lm
