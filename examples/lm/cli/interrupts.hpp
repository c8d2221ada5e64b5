// Ctrl-C as a question instead of an end.
#pragma once

namespace lm {

/// While an object of this lives, SIGINT is remembered, and interrupts reading, instead of ending the
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
};

} // namespace lm
