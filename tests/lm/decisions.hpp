// What decides in tests whether the threads of a team go on together.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>

namespace lm::test {

/// Steps of a team with this never come down to one part.
inline bool together() { return false; }

/// Decides for one part when it is asked for the n-th time, counted from 0.
struct nth_decision {
    std::size_t n = 0, asked = 0;
    void set(std::size_t which) {
        n = which;
        asked = 0;
    }
    /// Calls f once for each decision that steps which stay together take, so that this one decides for one
    /// part; before, once with no such decision. Returns how many there are.
    template <class F>
    std::size_t for_each(F&& f) {
        set(std::numeric_limits<std::size_t>::max());
        f();
        const std::size_t all = asked;
        for (std::size_t i = 0; i < all; ++i) {
            set(i);
            f();
        }
        return all;
    }
    /// For a team; refers to this object.
    std::function<bool()> function() {
        return [this] { return asked++ == n; };
    }
};

} // namespace lm::test
