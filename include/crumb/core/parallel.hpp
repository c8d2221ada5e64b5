// Work in parts, on threads of the caller.
#pragma once

#include <crumb/core/view.hpp>

#include <concepts>
#include <type_traits>

namespace crumb::inline CRUMB_ABI {

/// Threads of the caller: `run(f)` calls f(part, parts) once for every part below `parts`, which is `size()`,
/// in parallel if it likes, and returns when all calls have returned.
template <class P>
concept thread_pool = requires(P& pool, void (*f)(std::size_t part, std::size_t parts)) {
    pool.run(f);
    { pool.size() } -> std::convertible_to<std::size_t>;
};

/// The thread that calls, as a pool.
struct this_thread {
    static constexpr std::size_t size() noexcept { return 1; }
    template <class F>
    void run(F&& f) const {
        f(std::size_t{0}, std::size_t{1});
    }
};

/// Calls f(range) for nearly equal parts of 0 .. size - 1, cut at multiples of `step`, one per thread: those
/// of `split`.
template <class Pool, class F>
requires thread_pool<std::remove_reference_t<Pool>>
void parallel_for(Pool&& pool, std::size_t size, std::size_t step, F&& f) {
    pool.run([&](std::size_t part, std::size_t parts) {
        const range mine = split(size, parts, part, step);
        if (mine.size() != 0)
            f(mine);
    });
}

} // namespace crumb::inline CRUMB_ABI
