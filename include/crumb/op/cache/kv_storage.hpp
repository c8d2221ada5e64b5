// The memory of a cache: sinks and window in fp16, all other tokens in pages.
#pragma once

#include <crumb/core/atomic.hpp>
#include <crumb/kernel/cache/kernels.hpp>
#include <crumb/op/cache/kv_cache_options.hpp>

#include <algorithm>
#include <new>

namespace crumb::inline CRUMB_ABI {

/// The state of a cache and its pages; copies share the caller's memory. With `f32` and `f16` all tokens lie
/// in pages; with other codecs the first are sinks, the newest are in the window, and codes are in pages.
class kv_storage {
  public:
    /// Lengths of a sequence, shared by threads.
    struct counters {
        atomic_number<std::size_t> length, coded, pages;
        atomic_number<std::size_t> end; ///< one past the last token that has been in a page
        atomic_number<bool> encoding;
    };
    /// A kv head of a layer in the step that has not been advanced: rows written, and whether they were read.
    class step {
      public:
        /// Rows written in this step.
        std::size_t rows() const noexcept { return state_.load_alone() >> 1; }
        /// Whether attention has read them.
        bool is_read() const noexcept { return state_.load_alone() & 1; }
        /// So many rows are written, and not read.
        void write(std::size_t rows) noexcept { state_.store_alone(static_cast<std::uint32_t>(rows << 1)); }
        /// They are read.
        void read() noexcept {
            if (!is_read())
                state_.set_bits_alone(1);
        }
        /// None are written.
        void clear() noexcept { write(0); }

      private:
        atomic_number<std::uint32_t> state_;
    };

    /// Bytes of the state.
    static std::size_t bytes(const kv_cache_options& options) noexcept { return layout(options).bytes; }

    kv_storage() = default;
    /// No tokens and no pages. `state`: `bytes`, aligned.
    kv_storage(const kv_cache_options& options, std::byte* state) noexcept
        : options_(options),
          page_(options.codec, options.layers, options.kv_heads, options.head_size, options.page_tokens),
          at_(layout(options)), state_(state), counters_(new(state) counters) {
        __builtin_memset(state + at_.pages, 0, at_.bytes - at_.pages);
        steps_ = new (state + at_.steps) step[options.layers * options.kv_heads];
    }

    /// As the cache was made.
    const kv_cache_options& options() const noexcept { return options_; }
    /// Where a page has what.
    const kv_page_layout& page() const noexcept { return page_; }
    /// The lengths.
    counters& count() const noexcept {
        CRUMB_REQUIRE(counters_ != nullptr, "kv_cache: the cache was not created");
        return *counters_;
    }
    /// The step of a kv head of a layer.
    step& step_of(std::size_t layer, std::size_t h) const noexcept {
        return steps_[layer * options_.kv_heads + h];
    }
    /// Those of all.
    std::span<step> steps() const noexcept { return {steps_, options_.layers * options_.kv_heads}; }
    /// Whether tokens lie in pages as floats or halves.
    bool is_uncoded() const noexcept { return options_.codec.is_uncoded(); }
    /// Floats of a token's keys or values in a layer.
    std::size_t width() const noexcept { return options_.kv_heads * options_.head_size; }
    /// Tokens of sinks and window.
    std::size_t sinks() const noexcept { return at_.sinks; }
    /// Tokens that the window has room for.
    std::size_t slots() const noexcept { return at_.slots; }

    /// Whether `rows` more tokens fit now.
    status check_room(std::size_t rows) const noexcept {
        const std::size_t length = count().length.load(), coded = count().coded.load();
        if (rows > options_.max_tokens - length)
            return status::error(errc::invalid_argument,
                                 "kv_cache: %zu tokens and %zu more exceed the %zu allowed", length, rows,
                                 options_.max_tokens);
        const std::size_t after = length + rows, pages = count().pages.load();
        if (options_.span != 0 && rows > options_.max_rows)
            return status::error(errc::invalid_argument,
                                 "kv_cache: %zu tokens at once, max_rows is %zu and the span has no room "
                                 "for more",
                                 rows, options_.max_rows);
        if (pages_for(after) > pages)
            return status::error(errc::buffer_too_small, "kv_cache: %zu tokens need %zu pages, there are %zu",
                                 after, pages_for(after), pages);
        if (!is_uncoded() && after > sinks() && after - sinks() - coded > slots())
            return status::error(errc::buffer_too_small,
                                 "kv_cache: the window's %zu tokens are full: %zu wait to be encoded",
                                 slots(), length - sinks() - coded);
        return {};
    }
    /// Tokens that wait to be encoded: whole blocks of 64, older than the window but for its `ahead` oldest
    /// tokens.
    std::size_t encodable(std::size_t ahead = 0) const noexcept {
        const std::size_t settled = sinks() + options_.window - std::min(ahead, options_.window);
        const std::size_t n = count().length.load(), done = count().coded.load();
        if (is_uncoded() || n <= settled)
            return 0;
        const std::size_t end = (n - settled) / kv_block_tokens * kv_block_tokens;
        return end > done ? end - done : 0;
    }

    // ---- pages ----
    /// Pages that `tokens` tokens need.
    std::size_t pages_for(std::size_t tokens) const noexcept { return pages_of(options_, at_.sinks, tokens); }
    /// Pages that max_tokens tokens need.
    std::size_t max_pages() const noexcept { return pages_for(options_.max_tokens); }
    /// Pages that tokens go through again and again.
    std::size_t ring() const noexcept { return at_.ring; }
    /// Tokens up to `end` - 1, counted after the sinks, come into pages.
    void reach(std::size_t end) const noexcept {
        // Threads that write heads of the same rows store the same number.
        if (count().end.load_alone() < end)
            count().end.store(end);
    }
    /// The first token behind the sinks that is still in a page or in the window.
    std::size_t oldest() const noexcept {
        const std::size_t end = count().end.load();
        const std::size_t parts = (end + kv_part_tokens - 1) / kv_part_tokens, kept = ring() * page_.parts();
        return at_.sinks + (parts > kept ? (parts - kept) * kv_part_tokens : 0);
    }
    /// The caller's pages.
    std::byte** pages() const noexcept { return reinterpret_cast<std::byte**>(state_ + at_.pages); }
    /// A kv head's keys or values of tokens 256 p and following after the sinks.
    std::byte* part(std::size_t p, std::size_t layer, std::size_t h, bool keys) const noexcept {
        return pages()[p / page_.parts() % ring()] + page_.offset(p % page_.parts(), layer, h, keys);
    }
    /// Zeros a part: tokens that do not exist yet are read with weight 0, so they have to be finite.
    void begin_part(std::byte* part, bool keys) const noexcept {
        __builtin_memset(part, 0, page_.part(keys).bytes());
    }

    // ---- rows ----
    /// Sinks and window of all layers.
    std::span<std::byte> fp16_rows() const noexcept {
        return {state_ + at_.fp16_rows, at_.bytes - at_.fp16_rows};
    }
    /// The row of token t, one of the sinks.
    half* sink_row(std::size_t layer, std::size_t h, bool keys, std::size_t t) const noexcept {
        return half_rows(layer, h, keys, at_.sinks) + t * options_.head_size;
    }
    /// u: the token's number after the sinks.
    half* window_row(std::size_t layer, std::size_t h, bool keys, std::size_t u) const noexcept {
        half* first = half_rows(layer, h, keys, at_.slots) + 2 * options_.layers * width() * at_.sinks;
        return first + (at_.slots == 0 ? 0 : u % at_.slots) * options_.head_size;
    }
    /// The row of a new token t.
    std::byte* row(std::size_t layer, std::size_t h, bool keys, std::size_t t) const noexcept {
        if (is_uncoded())
            return part(t / kv_part_tokens, layer, h, keys) +
                   t % kv_part_tokens * options_.head_size * options_.codec.bits / 8;
        return reinterpret_cast<std::byte*>(t < at_.sinks ? sink_row(layer, h, keys, t)
                                                          : window_row(layer, h, keys, t - at_.sinks));
    }

    /// A layer with `coded` tokens in pages.
    kernel::kv_layer_view view(std::size_t layer, std::size_t coded) const noexcept {
        return {.page = page_,
                .pages = pages(),
                .ring = ring(),
                .layer = layer,
                .sinks = at_.sinks,
                .coded = coded,
                .slots = at_.slots,
                .sink_keys = {sink_row(layer, 0, true, 0), options_.head_size},
                .sink_values = {sink_row(layer, 0, false, 0), options_.head_size},
                .window_keys = {window_row(layer, 0, true, 0), options_.head_size},
                .window_values = {window_row(layer, 0, false, 0), options_.head_size},
                .codebooks = options_.codebooks};
    }

  private:
    struct state_layout {
        std::size_t sinks = 0, slots = 0;                           ///< tokens
        std::size_t ring = 1;                                       ///< pages
        std::size_t steps = 0, pages = 0, fp16_rows = 0, bytes = 0; ///< offsets
    };

    static state_layout layout(const kv_cache_options& s) noexcept {
        state_layout at;
        if (!s.codec.is_uncoded()) {
            at.sinks = s.sinks;
            at.slots = round_up(s.window + kv_block_tokens - 1 + s.max_rows + s.slack, kv_block_tokens);
        }
        at.ring = std::max<std::size_t>(1, pages_of(s, at.sinks, s.max_tokens));
        at.steps = round_up(sizeof(counters), alignment);
        at.pages = at.steps + round_up(s.layers * s.kv_heads * sizeof(step), alignment);
        at.fp16_rows =
            at.pages + round_up(pages_of(s, at.sinks, s.max_tokens) * sizeof(std::byte*), alignment);
        at.bytes = at.fp16_rows +
                   round_up(2 * s.layers * s.kv_heads * (at.sinks + at.slots) * s.head_size * sizeof(half),
                            alignment);
        return at;
    }
    static std::size_t pages_of(const kv_cache_options& s, std::size_t sinks, std::size_t tokens) noexcept {
        if (tokens <= sinks)
            return 0;
        const std::size_t all = (tokens - sinks + s.page_tokens - 1) / s.page_tokens;
        return s.span == 0 ? all : std::min(all, (span_parts(s) * kv_part_tokens - 1) / s.page_tokens + 1);
    }
    /// Parts that the tokens lie in which the rows of a step see, and what is encoded meanwhile.
    static std::size_t span_parts(const kv_cache_options& s) noexcept {
        const std::size_t more = s.codec.is_uncoded() ? s.max_rows : kv_block_tokens + s.slack;
        return (s.span + more + kv_part_tokens - 2) / kv_part_tokens + 1;
    }
    /// The rows of a layer, kv head and kind; all layers' sinks lie before all layers' windows.
    half* half_rows(std::size_t layer, std::size_t h, bool keys, std::size_t rows) const noexcept {
        return reinterpret_cast<half*>(state_ + at_.fp16_rows) +
               ((2 * layer + (keys ? 0 : 1)) * options_.kv_heads + h) * rows * options_.head_size;
    }

    kv_cache_options options_;
    kv_page_layout page_;
    state_layout at_;
    std::byte* state_ = nullptr;
    counters* counters_ = nullptr;
    step* steps_ = nullptr;
};

} // namespace crumb::inline CRUMB_ABI
