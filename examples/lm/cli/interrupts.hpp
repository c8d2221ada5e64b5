// Ctrl-C as a question instead of an end.
#pragma once

namespace lm {

/// While an object of this lives, SIGINT is remembered, and ends `wait_for_input`, instead of ending the
/// program. If it was ignored, it stays so. One object at a time, made by the main thread.
class interrupts {
  public:
    interrupts() noexcept;
    ~interrupts();
    interrupts(const interrupts&) = delete;
    interrupts& operator=(const interrupts&) = delete;

    /// Whether there was one since `forget`.
    [[nodiscard]] static bool any() noexcept;
    static void forget() noexcept;
    /// Waits, on the main thread, until `descriptor` has bytes or is at its end: true; or until there was an
    /// interrupt since `forget`: false. One that comes just before the wait ends it too.
    [[nodiscard]] static bool wait_for_input(int descriptor) noexcept;
};

} // namespace lm
