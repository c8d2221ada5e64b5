// A cache of keys and values for all layers of a model: sinks, coded pages and a window, in the caller's
// memory.
#pragma once

#include <crumb/dispatch/cache.hpp>
#include <crumb/op/cache/kv_storage.hpp>

#include <algorithm>
#include <cmath>

namespace crumb::inline CRUMB_ABI {

/// A handle on the caller's memory; copy it freely. One thread at a time writes, advances, truncates or
/// restores; `encode` may run at the same time, and attention too, in other threads.
///
/// A step: `write` keys and values of its rows layer by layer (threads may share the heads), attend, then
/// `advance`. Tokens become codes 64 at a time, once they are older than the window: `encode`.
class kv_cache {
  public:
    /// Bytes of the state: sinks, window, the list of pages. An error if the options are out of range.
    static result<std::size_t> state_bytes(const kv_cache_options& options) noexcept {
        if (const status s = check_options(options); !s)
            return s;
        return kv_storage::bytes(options);
    }

    /// An empty cache without pages in `state`: state_bytes, aligned, the caller's while the cache is used.
    CRUMB_WHEN_CALLED
    static result<kv_cache> create(const kv_cache_options& options, std::span<std::byte> state,
                                   const context& on = {}) noexcept {
        if (const status s = check_options(options); !s)
            return s;
        const auto index = choose_isa(on);
        if (!index)
            return index.error();
        if (const status s = check_buffer(state, kv_storage::bytes(options), "kv_cache: state"); !s)
            return s;
        kv_cache c;
        c.storage_ = kv_storage(options, state.data());
        c.functions_ = &dispatch::functions_at<dispatch::kv_cache_functions>(*index);
        return c;
    }

    /// What it was made with.
    const kv_cache_options& options() const noexcept { return storage_.options(); }
    /// Name of the ISA that writes and encodes.
    const char* isa() const noexcept {
        CRUMB_REQUIRE(functions_ != nullptr, "kv_cache: the cache was not created");
        return functions_->isa;
    }
    /// First tokens, which stay in fp16.
    std::size_t sinks() const noexcept { return storage_.sinks(); }
    /// Tokens that the window has room for.
    std::size_t slots() const noexcept { return storage_.slots(); }

    // ---- pages ----
    /// Bytes of a page: `page_tokens` tokens of all layers.
    std::size_t page_bytes() const noexcept { return storage_.page().bytes(); }
    /// Pages that `tokens` tokens need.
    std::size_t pages_for(std::size_t tokens) const noexcept { return storage_.pages_for(tokens); }
    /// Pages that have been added.
    std::size_t page_count() const noexcept { return storage_.count().pages.load(); }
    /// Appends a page: page_bytes, aligned, the caller's while the cache is used. Nothing of it is touched
    /// before a token comes there, so a long page may be address space that the system fills as it is used.
    /// Refuses a page more than `pages_for(max_tokens)`; does nothing where that is 0, as all tokens are
    /// sinks.
    status add_page(std::span<std::byte> page) noexcept {
        const std::size_t n = page_count();
        if (n == storage_.max_pages())
            return n == 0 ? status()
                          : status::error(errc::invalid_argument,
                                          "kv_cache: %zu tokens at most need %zu pages, there are %zu",
                                          options().max_tokens, storage_.max_pages(), n);
        if (const status s = check_buffer(page, page_bytes(), "kv_cache: page"); !s)
            return s;
        storage_.pages()[n] = page.data();
        storage_.count().pages.store(n + 1);
        return {};
    }

    // ---- tokens ----
    /// Tokens of the sequence.
    std::size_t length() const noexcept { return storage_.count().length.load(); }
    /// Tokens that are codes.
    std::size_t coded() const noexcept { return storage_.count().coded.load(); }

    /// Whether `rows` more tokens fit now.
    status check_room(std::size_t rows) const noexcept { return storage_.check_room(rows); }

    /// Writes keys and values of tokens length() .. length() + k.rows - 1: row r, kv head h, element i at
    /// column h * head_size + i. Refuses more rows than fit, rows that attention has read without an
    /// `advance` after it, NaN, and values beyond fp16; the sequence is unchanged until `advance`. Threads
    /// may write disjoint heads.
    status write(std::size_t layer, const matrix_view<const float>& k, const matrix_view<const float>& v,
                 const range& heads = {}) noexcept {
        if (layer >= options().layers)
            return status::error(errc::invalid_argument, "kv_cache: layer %zu of %zu", layer,
                                 options().layers);
        if (k.rows != v.rows || k.cols != storage_.width() || v.cols != storage_.width())
            return status::error(errc::bad_shape,
                                 "kv_cache: keys %zu x %zu and values %zu x %zu, expected n x %zu", k.rows,
                                 k.cols, v.rows, v.cols, storage_.width());
        if (const status s = check_room(k.rows); !s)
            return s;
        const std::size_t begin = length();
        if (is_uncoded())
            storage_.reach(begin + k.rows);
        const bool floats = options().codec.kind == kv_kind::f32;
        const float max = floats ? std::numeric_limits<float>::max() : 65504.0f;
        const range part = heads.within(options().kv_heads);
        CRUMB_CHECK(heads.is_within(options().kv_heads), "kv_cache::write: kv heads %zu to %zu of %zu",
                    heads.begin, heads.end, options().kv_heads);
        for (std::size_t h = part.begin; h < part.end; ++h) {
            if (storage_.step_of(layer, h).is_read())
                return status::error(
                    errc::invalid_argument,
                    "kv_cache: layer %zu, kv head %zu: attention has read token %zu; advance "
                    "before the next is written",
                    layer, h, begin);
            for (std::size_t r = 0; r < k.rows; ++r)
                for (const bool keys : {true, false}) {
                    const float* from = (keys ? k : v).row(r) + h * options().head_size;
                    for (std::size_t i = 0; i < options().head_size; ++i)
                        if (!(std::fabs(from[i]) <= max))
                            return status::error(errc::not_finite,
                                                 "kv_cache: token %zu, kv head %zu: a %s is %g", begin + r, h,
                                                 keys ? "key" : "value", double(from[i]));
                    std::byte* to = storage_.row(layer, h, keys, begin + r);
                    if (is_uncoded() && (begin + r) % kv_part_tokens == 0)
                        storage_.begin_part(to, keys);
                    if (floats)
                        __builtin_memcpy(to, from, options().head_size * sizeof(float));
                    else
                        functions_->to_halves(from, reinterpret_cast<half*>(to), options().head_size);
                }
            storage_.step_of(layer, h).write(k.rows);
        }
        return {};
    }

    /// Makes `rows` written tokens part of the sequence. Refuses more than have been written to every layer
    /// and kv head.
    status advance(std::size_t rows) noexcept {
        if (const status s = check_room(rows); !s)
            return s;
        for (std::size_t i = 0; i < storage_.steps().size(); ++i)
            if (storage_.steps()[i].rows() < rows)
                return status::error(
                    errc::invalid_argument, "kv_cache: advance by %zu tokens, layer %zu, kv head %zu has %zu",
                    rows, i / options().kv_heads, i % options().kv_heads, storage_.steps()[i].rows());
        for (kv_storage::step& s : storage_.steps())
            s.clear();
        storage_.count().length.store(length() + rows);
        return {};
    }

    // ---- encoding ----
    /// Tokens that wait to be encoded: whole blocks of 64, older than the window but for its `ahead` oldest
    /// tokens.
    std::size_t encodable(std::size_t ahead = 0) const noexcept { return storage_.encodable(ahead); }

    /// Blocks that are being encoded.
    struct encoding {
        std::size_t first = 0, tokens = 0; ///< after the sinks
        std::size_t items = 0;             ///< pairs of a layer and a kv head
        /// Whether there is anything to encode.
        explicit operator bool() const noexcept { return tokens != 0; }
    };
    /// Begins to encode all waiting tokens; empty if there are none or another encoding has not ended. With
    /// `ahead`, a block can be encoded while it is still in the window; attention reads its halves until
    /// `end_encoding`, which the caller leaves until it is older than that.
    encoding begin_encoding(std::size_t ahead = 0) noexcept {
        if (encodable(ahead) == 0 || storage_.count().encoding.exchange(true))
            return {};
        const encoding e{coded(), encodable(ahead), options().layers * options().kv_heads};
        storage_.reach(e.first + e.tokens);
        if (!e)
            storage_.count().encoding.store(false);
        return e;
    }
    /// Bytes of scratch memory that a thread needs to encode.
    std::size_t encode_scratch_bytes() const noexcept {
        return round_up(kernel::kv_encode_floats(options().head_size) * sizeof(float), alignment);
    }
    /// Encodes a part of the pairs; threads may do disjoint parts. `scratch`: encode_scratch_bytes, aligned.
    void encode(const encoding& e, std::span<std::byte> scratch, const range& items = {}) const noexcept {
        if (!e)
            return;
        CRUMB_CHECK(check_buffer(scratch, encode_scratch_bytes(), "scratch"),
                    "kv_cache::encode: scratch is too small or not aligned");
        require_own(e);
        const range part = items.within(e.items);
        for (std::size_t i = part.begin; i < part.end; ++i)
            for (const bool keys : {true, false}) {
                const std::size_t layer = i / options().kv_heads, h = i % options().kv_heads;
                kernel::kv_block_args args{.layout = storage_.page().part(keys),
                                           .tables = options().codebooks.tables(layer, h, keys),
                                           .scale_trials = options().scale_trials,
                                           .scratch = reinterpret_cast<float*>(scratch.data())};
                for (std::size_t t = e.first; t < e.first + e.tokens; t += kv_block_tokens) {
                    args.block = t % kv_part_tokens / kv_block_tokens;
                    args.part = storage_.part(t / kv_part_tokens, layer, h, keys);
                    if (args.block == 0)
                        storage_.begin_part(args.part, keys);
                    args.from = storage_.window_row(layer, h, keys, t);
                    functions_->encode(args);
                }
            }
    }
    /// Makes the codes part of the cache; after all parts are encoded.
    void end_encoding(const encoding& e) noexcept {
        require_own(e);
        storage_.count().coded.store(e.first + e.tokens);
        storage_.count().encoding.store(false);
    }
    /// Gives an encoding up, in whose parts no thread is at work: its tokens wait again.
    void drop_encoding(const encoding&) noexcept { storage_.count().encoding.store(false); }
    /// The three steps above in this thread; returns the number of tokens encoded.
    std::size_t encode(std::span<std::byte> scratch) noexcept {
        const encoding e = begin_encoding();
        if (!e)
            return 0;
        encode(e, scratch);
        end_encoding(e);
        return e.tokens;
    }

    // ---- for attention ----
    /// Called before attention reads tokens up to `end` - 1 of a layer: an error if some have not been
    /// written.
    status begin_reading(std::size_t layer, const range& heads, std::size_t end) const noexcept {
        const std::size_t n = length();
        if (end <= n)
            return {};
        for (std::size_t h = heads.begin; h < heads.end; ++h) {
            kv_storage::step& step = storage_.step_of(layer, h);
            if (end > n + step.rows())
                return status::error(
                    errc::invalid_argument,
                    "kv_attention: layer %zu, kv head %zu: %zu tokens are read, %zu are there", layer, h, end,
                    n + step.rows());
            step.read();
        }
        return {};
    }
    /// A layer as it is now, for attention. Valid until the next `advance` of the cache.
    kernel::kv_layer_view layer(std::size_t i) const noexcept {
        const bool all = page_count() == storage_.max_pages();
        return storage_.view(i, !is_uncoded() ? coded()
                                : all         ? options().max_tokens
                                              : page_count() * options().page_tokens);
    }

    /// Bytes of a token's codes, with scales and means; fp16 in sinks and window not counted.
    double bytes_per_token() const noexcept { return double(part_bytes()) / double(kv_part_tokens); }
    /// Bits of a channel, likewise.
    double bits_per_channel() const noexcept {
        return 8 * bytes_per_token() / double(2 * options().layers * storage_.width());
    }

    // ---- other lengths ----
    /// Whether `truncate` can keep so many tokens: with a span, what the next token sees may be gone.
    bool can_truncate(std::size_t tokens) const noexcept {
        const std::size_t span = options().span, seen = span == 0 || tokens < span ? 0 : tokens + 1 - span;
        return tokens == 0 || std::max(seen, sinks()) >= std::min(storage_.oldest(), tokens);
    }
    /// Forgets all but the first `tokens` tokens, or all of them unless `can_truncate`. If that cuts a coded
    /// block, the remainder is decoded into the window. No encoding may be under way.
    void truncate(std::size_t tokens) noexcept;

    /// Takes the first `tokens` tokens of another cache of the same shape, but for `max_tokens` and
    /// `page_tokens`; needs pages for them. Refuses caches with a span.
    status copy_prefix(const kv_cache& from, std::size_t tokens) noexcept;

    // ---- memory, for snapshots ----
    /// Parts of each head that `tokens` tokens take, `coded` of them as codes.
    std::size_t parts_for(std::size_t tokens, std::size_t coded) const noexcept {
        return ((is_uncoded() ? tokens : coded) + kv_part_tokens - 1) / kv_part_tokens;
    }
    /// Bytes of a part of all layers and kv heads, keys and values.
    std::size_t part_bytes() const noexcept {
        return options().layers * options().kv_heads * storage_.page().head_part_bytes();
    }
    /// A kv head's keys or values of tokens 256 p and following after the sinks.
    std::span<std::byte> part(std::size_t p, std::size_t layer, std::size_t h, bool keys) const noexcept {
        return {storage_.part(p, layer, h, keys), storage_.page().part(keys).bytes()};
    }
    /// f(p, layer, kv head, keys) for all of the first `parts` parts, in that order.
    template <class F>
    void for_each_part(std::size_t parts, F&& f) const {
        for (std::size_t p = 0; p < parts; ++p)
            for (std::size_t layer = 0; layer < options().layers; ++layer)
                for (std::size_t h = 0; h < options().kv_heads; ++h)
                    for (const bool keys : {true, false})
                        f(p, layer, h, keys);
    }
    /// Sinks and window of all layers.
    std::span<std::byte> fp16_rows() noexcept { return storage_.fp16_rows(); }
    /// The same, to be read.
    std::span<const std::byte> fp16_rows() const noexcept { return storage_.fp16_rows(); }
    /// Sets the lengths of a sequence whose memory has been filled.
    void assume(std::size_t length, std::size_t coded) noexcept {
        for (kv_storage::step& s : storage_.steps())
            s.clear();
        storage_.count().coded.store(coded);
        storage_.count().length.store(length);
    }

  private:
    /// Aborts unless an encoding is what `begin_encoding` gave last.
    void require_own(const encoding& e) const noexcept {
        CRUMB_REQUIRE(e.items == options().layers * options().kv_heads && e.first == coded() &&
                          e.tokens <= length() - std::min(length(), sinks() + e.first),
                      "kv_cache: no such encoding: %zu tokens from %zu on, %zu pairs", e.tokens, e.first,
                      e.items);
    }
    bool is_uncoded() const noexcept { return storage_.is_uncoded(); }

    kv_storage storage_;
    const dispatch::kv_cache_functions* functions_ = nullptr;
};

inline void kv_cache::truncate(std::size_t tokens) noexcept {
    CRUMB_REQUIRE(!storage_.count().encoding.load(), "kv_cache::truncate: an encoding is under way");
    if (tokens > length())
        return;
    if (!can_truncate(tokens))
        tokens = 0;
    if (tokens == 0)
        storage_.count().end.store(0);
    const std::size_t kept = tokens > sinks() ? tokens - sinks() : 0;
    const std::size_t first = kept / kv_block_tokens * kv_block_tokens;
    if (!is_uncoded() && kept < coded()) {
        float row[512];
        for (std::size_t layer = 0; layer < options().layers; ++layer)
            for (std::size_t h = 0; h < options().kv_heads; ++h)
                for (const bool keys : {true, false})
                    for (std::size_t u = first; u < kept; ++u) {
                        const std::size_t t = u % kv_part_tokens;
                        functions_->decode(
                            {storage_.page().part(keys), options().codebooks.tables(layer, h, keys),
                             storage_.part(u / kv_part_tokens, layer, h, keys), t, t + 1, row, 512});
                        // Codes of numbers near 65504 may decode to more.
                        for (std::size_t i = 0; i < options().head_size; ++i)
                            row[i] = std::clamp(row[i], -65504.0f, 65504.0f);
                        functions_->to_halves(row, storage_.window_row(layer, h, keys, u),
                                              options().head_size);
                    }
        storage_.count().coded.store(first);
    }
    for (kv_storage::step& s : storage_.steps())
        s.clear();
    storage_.count().length.store(tokens);
}

inline status kv_cache::copy_prefix(const kv_cache& from, std::size_t tokens) noexcept {
    const kv_cache_options &a = options(), &b = from.options();
    if (a.span != 0 || b.span != 0)
        return status::error(errc::unsupported,
                             "kv_cache: a cache with a span of tokens has no prefix that could be copied");
    if (a.layers != b.layers || a.kv_heads != b.kv_heads || a.head_size != b.head_size ||
        !(a.codec == b.codec) || a.codebook_id != b.codebook_id || a.model_id != b.model_id ||
        sinks() != from.sinks() || slots() != from.slots())
        return status::error(errc::bad_shape,
                             "kv_cache: a prefix can be copied between caches of equal shapes only");
    if (tokens > from.length())
        return status::error(errc::invalid_argument, "kv_cache: a prefix of %zu tokens, the cache has %zu",
                             tokens, from.length());
    const std::size_t pages = pages_for(tokens);
    if (tokens > options().max_tokens || pages > page_count())
        return status::error(errc::buffer_too_small,
                             "kv_cache: a prefix of %zu tokens needs %zu pages, there are %zu", tokens, pages,
                             page_count());
    const std::size_t kept = tokens > sinks() ? tokens - sinks() : 0;
    for_each_part(parts_for(tokens, std::min(kept, from.coded())), [&](std::size_t p, std::size_t layer,
                                                                       std::size_t h, bool keys) {
        __builtin_memcpy(storage_.part(p, layer, h, keys), from.storage_.part(p, layer, h, keys),
                         storage_.page().part(keys).bytes());
    });
    __builtin_memcpy(fp16_rows().data(), from.fp16_rows().data(), fp16_rows().size());
    // Codes beyond the prefix are cut off before they are read.
    assume(from.length(), from.coded());
    truncate(tokens);
    return {};
}

} // namespace crumb::inline CRUMB_ABI
