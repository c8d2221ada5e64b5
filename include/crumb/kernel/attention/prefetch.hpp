// Asking for keys and values that attention reads next. With few queries memory is the limit, and it is busy
// all the time only if it is asked for line after line, in the order in which they lie, at an even pace:
// where many are asked for at once, what is read waits behind them.
#pragma once

#include <crumb/config.hpp>

#include <cstddef>
#include <cstdint>

namespace crumb::inline CRUMB_ABI::kernel {

/// The cache that keys, values and codes are prefetched into, as `__builtin_prefetch` names it: the second.
/// The first has too few lines on their way to keep memory busy (on Zen 4 half the bandwidth of the second).
inline constexpr int attention_locality = 2;

/// Asks for rows of T, of `channels` elements every `stride`; or for nothing, if `first` is null.
template <class T>
class row_prefetcher {
  public:
    CRUMB_INLINE row_prefetcher(const T* first, std::size_t stride, std::size_t channels) noexcept
        : at_(first), channels_(static_cast<std::ptrdiff_t>(channels)), left_(channels_),
          gap_(static_cast<std::ptrdiff_t>(stride) - channels_) {}

    /// Asks for the lines that begin in the next `N` elements. Half a line is asked for twice: that costs
    /// less than to find out.
    template <int N>
    CRUMB_INLINE void step() noexcept {
        constexpr std::size_t line = 64, bytes = N * sizeof(T);
        if (at_ == nullptr)
            return;
        if (2 * bytes >= line || (0 - reinterpret_cast<std::uintptr_t>(at_)) % line < bytes) {
            CRUMB_UNROLL
            for (std::size_t i = 0; i < bytes; i += line)
                __builtin_prefetch(reinterpret_cast<const std::byte*>(at_) + i, 0, attention_locality);
        }
        at_ += N;
        left_ -= N;
        if (left_ <= 0) {
            left_ += channels_;
            at_ += gap_;
        }
    }

  private:
    const T* at_;
    std::ptrdiff_t channels_, left_, gap_;
};

/// Asks for the i-th of the pieces of `each` bytes that begin at `from`, or for nothing if that is null.
CRUMB_INLINE void prefetch_piece(const std::byte* from, std::size_t i, std::size_t each) noexcept {
    if (from != nullptr)
        for (std::size_t at = i * each; at < (i + 1) * each; at += 64)
            __builtin_prefetch(from + at, 0, attention_locality);
}
/// Bytes of a piece, if n pieces have `bytes` or a few more.
CRUMB_INLINE std::size_t piece_bytes(std::size_t bytes, std::size_t n) noexcept {
    return (bytes + n - 1) / n;
}

} // namespace crumb::inline CRUMB_ABI::kernel
