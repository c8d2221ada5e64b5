// A number that threads share. Not std::atomic: its header brings <string> and <system_error>, a fifth of
// what the headers take to compile.
#pragma once

#include <crumb/config.hpp>

namespace crumb::inline CRUMB_ABI {

/// A number that threads read and write. `T`: an integer of at most 8 bytes, or bool.
template <class T>
class atomic_number {
  public:
    /// 0, or false.
    atomic_number() noexcept = default;
    atomic_number(const atomic_number&) = delete;
    atomic_number& operator=(const atomic_number&) = delete;

    /// The number; whoever stored it has done before what it did before.
    T load() const noexcept { return __atomic_load_n(&value_, __ATOMIC_ACQUIRE); }
    /// Makes it x, seen after all that this thread has done.
    void store(T x) noexcept { __atomic_store_n(&value_, x, __ATOMIC_RELEASE); }
    /// The number before, in place of which it stores x.
    T exchange(T x) noexcept { return __atomic_exchange_n(&value_, x, __ATOMIC_ACQ_REL); }

    /// Like `load`, but says nothing of what else other threads have done.
    T load_alone() const noexcept { return __atomic_load_n(&value_, __ATOMIC_RELAXED); }
    /// Likewise `store`.
    void store_alone(T x) noexcept { __atomic_store_n(&value_, x, __ATOMIC_RELAXED); }
    /// Sets the bits of x that it does not have; says nothing of what else threads have done.
    void set_bits_alone(T x) noexcept { __atomic_fetch_or(&value_, x, __ATOMIC_RELAXED); }

  private:
    T value_{};
};

} // namespace crumb::inline CRUMB_ABI
