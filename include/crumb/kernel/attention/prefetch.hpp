// Asking for keys and values that attention reads next. With few queries memory is the limit, and it is busy
// all the time only if it is asked for line after line at an even pace: where many are asked for at once,
// what is read waits behind them. Two places of memory that are asked by turns answer faster than one.
#pragma once

#include <crumb/core/memory.hpp>

#include <cstddef>
#include <cstdint>

namespace crumb::inline CRUMB_ABI::kernel {

/// The cache that keys, values and codes are prefetched into, as `__builtin_prefetch` names it: the second.
/// The first has too few lines on their way to keep memory busy (on Zen 4 half the bandwidth of the second).
inline constexpr int attention_locality = 2;

/// Whether there are CPUs with `cpu_features::two_streams`, passes share what they ask for, and lines are
/// asked for beside floats as well. Elsewhere that would be instructions without a gain that was measured.
inline constexpr bool streams_vary = CRUMB_ARCH_X86_64 != 0;

/// Asks for the lines of a region, in one stream or two.
class line_prefetcher {
  public:
    static constexpr std::size_t line = 64;

    CRUMB_INLINE line_prefetcher(const void* from, std::size_t bytes, bool two) noexcept
        : at_(static_cast<const std::byte*>(from)), two_(two),
          hop_(static_cast<std::ptrdiff_t>(round_up(bytes / 2, line))) {}

    CRUMB_INLINE void next() noexcept {
        __builtin_prefetch(at_, 0, attention_locality);
        at_ += streams_vary && two_ ? hop_ : std::ptrdiff_t{line};
        hop_ = std::ptrdiff_t{line} - hop_;
    }
    /// Asks for as many lines as `n` bytes have, and those before that did not fill one.
    CRUMB_INLINE void step(std::size_t n) noexcept {
        if constexpr (!streams_vary) {
            // Asking for a line twice costs less than to count.
            for (std::size_t i = 0; i < n; i += line)
                __builtin_prefetch(at_ + i, 0, attention_locality);
            at_ += n;
            return;
        }
        for (; n >= line; n -= line)
            next();
        if (n == 0)
            return;
        due_ += n;
        if (due_ >= line) {
            next();
            due_ -= line;
        }
    }

  private:
    const std::byte* at_;
    bool two_;
    std::ptrdiff_t hop_; ///< to the other stream
    std::size_t due_ = 0;
};

/// Which of `count` passes over the same tokens it is.
struct pass_number {
    std::size_t i = 0, count = 1;
};

/// Asks for rows of T, of `channels` elements every `stride`, in one stream or two; or for nothing, if
/// `first` is null. Of several passes each asks for its share of them.
template <class T>
class row_prefetcher {
  public:
    CRUMB_INLINE row_prefetcher(const T* first, std::size_t rows, std::size_t stride, std::size_t channels,
                                pass_number pass, bool two) noexcept
        : at_(first), two_(two), hop_(static_cast<std::ptrdiff_t>((rows + 1) / 2 * stride)),
          channels_(static_cast<std::ptrdiff_t>(streams_vary && two ? 2 * channels : channels)),
          left_(channels_),
          gap_(static_cast<std::ptrdiff_t>(stride) - static_cast<std::ptrdiff_t>(channels)) {
        if (!streams_vary && pass.i != 0)
            at_ = nullptr;
        if (!streams_vary || first == nullptr)
            return;
        at_ += (two ? rows / 2 : rows) * pass.i / pass.count * stride;
        every_ = wait_ = pass.count;
    }

    /// Asks for `N` elements in each step of one pass, in every second step of two, and so on. Half a line is
    /// asked for twice: that costs less than to find out.
    template <int N>
    CRUMB_INLINE void step() noexcept {
        constexpr std::size_t line = line_prefetcher::line;
        constexpr int elements = line / sizeof(T), part = N < elements ? N : elements;
        constexpr std::size_t bytes = part * sizeof(T);
        if (streams_vary ? --wait_ != 0 : at_ == nullptr)
            return;
        wait_ = every_;
        // Not a loop for each case: the members would leave their registers.
        CRUMB_UNROLL
        for (int i = 0; i < N; i += part) {
            if (2 * bytes >= line || (0 - reinterpret_cast<std::uintptr_t>(at_)) % line < bytes)
                __builtin_prefetch(at_, 0, attention_locality);
            at_ += streams_vary && two_ ? hop_ : part;
            hop_ = part - hop_;
        }
        left_ -= N;
        if (left_ <= 0) {
            left_ += channels_;
            at_ += gap_;
        }
    }

  private:
    const T* at_;
    bool two_;
    std::ptrdiff_t hop_;             ///< to the other stream
    std::ptrdiff_t channels_, left_; ///< of a row of each stream
    std::ptrdiff_t gap_;
    std::size_t every_ = 0, wait_ = 0; ///< steps; 0: never
};

/// Asks for the i-th of the pieces of `each` bytes that begin at `from`, or for nothing if that is null.
CRUMB_INLINE void prefetch_piece(const std::byte* from, std::size_t i, std::size_t each) noexcept {
    if (from != nullptr)
        for (std::size_t at = i * each; at < (i + 1) * each; at += line_prefetcher::line)
            __builtin_prefetch(from + at, 0, attention_locality);
}
/// Bytes of a piece, if n pieces have `bytes` or a few more.
CRUMB_INLINE std::size_t piece_bytes(std::size_t bytes, std::size_t n) noexcept {
    return (bytes + n - 1) / n;
}

} // namespace crumb::inline CRUMB_ABI::kernel
