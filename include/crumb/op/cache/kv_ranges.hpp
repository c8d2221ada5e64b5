// The ranges of tokens that threads share where they share a head.
#pragma once

#include <crumb/core/view.hpp>
#include <crumb/op/cache/kv_cache_options.hpp>

namespace crumb::inline CRUMB_ABI {

/// The ranges of tokens whose partial results, merged in order, are the result of a row. They follow from the
/// row's position and the cache's options alone, so that results depend neither on the number of threads nor
/// on the rows that go together. Short sequences, and caches with a span, have one range.
class kv_ranges {
  public:
    /// Most ranges of a row.
    static constexpr std::size_t max_count = 16;
    /// Tokens of the shortest ranges: what is lost at their ends is below a percent of a step.
    static constexpr std::size_t min_tokens = 2048;

    /// Those of the row at `position`; `shortest`: a multiple of 256 instead of `min_tokens`;
    /// 0: one range.
    static constexpr kv_ranges of(std::size_t position, const kv_cache_options& cache,
                                  std::size_t shortest = min_tokens) noexcept {
        kv_ranges r;
        r.shortest_ = shortest;
        r.end_ = position + 1;
        r.sinks_ = cache.codec.is_uncoded() ? 0 : cache.sinks;
        if (cache.span != 0 || shortest == 0 || r.end_ < r.sinks_ || (r.end_ - r.sinks_) / 2 < shortest)
            return r;
        r.tokens_ = shortest;
        while ((r.end_ - r.sinks_) / r.tokens_ > max_count)
            r.tokens_ *= 2;
        r.count_ = (r.end_ - r.sinks_) / r.tokens_;
        return r;
    }

    /// What they were made with.
    constexpr std::size_t shortest() const noexcept { return shortest_; }
    /// Ranges, 1 .. max_count.
    constexpr std::size_t count() const noexcept { return count_; }
    /// Tokens of all ranges but the last, which is up to twice as long, and the sinks in the first; 0 if
    /// there is one range.
    constexpr std::size_t tokens() const noexcept { return tokens_; }
    /// Whether another row has as many ranges of as many tokens: both may go together.
    constexpr bool goes_with(const kv_ranges& other) const noexcept {
        return count_ == other.count_ && tokens_ == other.tokens_;
    }
    /// The tokens of ranges first .. last - 1.
    constexpr range tokens(std::size_t first, std::size_t last) const noexcept {
        return {first == 0 ? 0 : sinks_ + first * tokens_, last == count_ ? end_ : sinks_ + last * tokens_};
    }

  private:
    std::size_t count_ = 1, shortest_ = min_tokens, tokens_ = 0, sinks_ = 0, end_ = 0;
};

} // namespace crumb::inline CRUMB_ABI
