// Work in parts, on threads of the caller.
#pragma once

#include <crumb/core/atomic.hpp>
#include <crumb/core/status.hpp>
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
    /// Parts.
    static constexpr std::size_t size() noexcept { return 1; }
    /// Calls f(0, 1).
    template <class F>
    void run(F&& f) const {
        f(std::size_t{0}, std::size_t{1});
    }
};

/// Calls f(range), or f(range, part), for nearly equal parts of 0 .. size - 1, cut at multiples of `step`,
/// one per thread: those of `split`. What is not more than one step is done by the thread that calls, as part
/// 0. If f returns a status, so does this: the first error that a thread met.
template <class Pool, class F>
requires thread_pool<std::remove_reference_t<Pool>>
auto parallel_for(Pool&& pool, std::size_t size, std::size_t step, F&& f) {
    const auto call = [&f](const range& r, [[maybe_unused]] std::size_t part) {
        if constexpr (std::invocable<F&, range, std::size_t>)
            return f(r, part);
        else
            return f(r);
    };
    const auto each = [&](auto&& one) {
        if (size != 0 && size <= step)
            one(range{0, size}, 0);
        else if (size != 0)
            pool.run([&](std::size_t part, std::size_t parts) {
                const range mine = split(size, parts, part, step);
                if (mine.size() != 0)
                    one(mine, part);
            });
    };
    if constexpr (std::same_as<decltype(call(range(), 0)), status>) {
        status first;
        atomic_number<bool> has_failed;
        each([&](const range& r, std::size_t part) {
            if (const status s = call(r, part); !s && !has_failed.exchange(true))
                first = s;
        });
        return first;
    } else {
        each(call);
    }
}

} // namespace crumb::inline CRUMB_ABI
