// Options of a cache of keys and values, and their check.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/format/pq_codebooks.hpp>

namespace crumb::inline CRUMB_ABI {

/// Sizes, codec and identity of a cache.
struct kv_cache_options {
    std::size_t layers = 0;
    std::size_t kv_heads = 0;
    std::size_t head_size = 0;  ///< 1 .. 512, a multiple of codec.dims
    std::size_t max_tokens = 0; ///< of a sequence
    std::size_t max_rows = 1;   ///< max tokens written between two calls of `encode`
    /// Tokens of a page, a multiple of 256, at most 2^27. In a page, all tokens of a head lie one after
    /// another: the longer, the faster a head is read from memory. One page for `max_tokens` is fastest.
    std::size_t page_tokens = kv_part_tokens;
    /// Tokens that a token sees, itself included; older ones are not kept, in whole parts of 256. 0: all.
    std::size_t span = 0;
    kv_codec codec = {};     ///< of tokens that are older than the window
    std::size_t sinks = 4;   ///< first tokens, kept in fp16; f32, f16: unused
    std::size_t window = 32; ///< newest tokens, always in fp16; f32, f16: unused
    std::size_t slack = 0;   ///< further tokens that may wait for an encoding thread
    /// Scales that are tried for a token, 1 to 5; unused by codecs but `pq` with scales. Five make codes
    /// nearer to what they stand for than one does, and `encode` takes 3.5 times as long.
    std::size_t scale_trials = kv_scale_trials;
    pq_codebooks codebooks = {};   ///< of `pq`; the caller keeps them alive
    std::uint64_t codebook_id = 0; ///< identity of the codebooks, for `save` and `restore`
    std::uint64_t model_id = 0;    ///< identity of the model, likewise
};

/// An error if no cache can have these options.
inline status check_options(const kv_cache_options& s) noexcept {
    const kv_codec& c = s.codec;
    if (s.layers == 0 || s.kv_heads == 0)
        return status::error(errc::bad_shape, "kv_cache: %zu layers, %zu kv_heads; neither can be 0",
                             s.layers, s.kv_heads);
    if (s.head_size == 0 || s.head_size > 512)
        return status::error(errc::bad_shape, "kv_cache: head_size is %zu, it has to be 1 .. 512",
                             s.head_size);
    constexpr std::size_t max_tokens = std::size_t{1} << 32, max_others = std::size_t{1} << 20;
    if (s.layers > 4096 || s.kv_heads > 4096)
        return status::error(errc::bad_shape, "kv_cache: %zu layers, %zu kv_heads; at most 4096 of each",
                             s.layers, s.kv_heads);
    if (s.max_tokens == 0 || s.max_tokens > max_tokens || s.sinks > max_others || s.window > max_others ||
        s.slack > max_others || s.max_rows == 0 || s.max_rows > max_others || s.span > max_tokens)
        return status::error(
            errc::invalid_argument,
            "kv_cache: max_tokens %zu, max_rows %zu, sinks %zu, window %zu, slack %zu, span %zu are out of "
            "range",
            s.max_tokens, s.max_rows, s.sinks, s.window, s.slack, s.span);
    // Beyond that the bytes of a page might overflow 64 bits.
    constexpr std::size_t max_page_tokens = std::size_t{1} << 27;
    if (s.page_tokens == 0 || s.page_tokens % kv_part_tokens != 0 || s.page_tokens > max_page_tokens)
        return status::error(errc::invalid_argument,
                             "kv_cache: pages of %zu tokens; they have a multiple of %zu, at most %zu",
                             s.page_tokens, kv_part_tokens, max_page_tokens);
    if (s.scale_trials == 0 || s.scale_trials > kv_scale_trials)
        return status::error(errc::invalid_argument, "kv_cache: scale_trials is %zu, it has to be 1 .. %zu",
                             s.scale_trials, kv_scale_trials);
    if (!is_known(c))
        return status::error(errc::invalid_argument,
                             "kv_cache: there is no codec of kind %d with %d bits for %d channels%s",
                             int(c.kind), int(c.bits), int(c.dims), c.additive ? ", additive" : "");
    if (!c.has_codebooks())
        return {};
    if (s.head_size % c.dims != 0)
        return status::error(errc::bad_shape,
                             "kv_cache: head_size %zu is no multiple of the codec's %d channels", s.head_size,
                             int(c.dims));
    if (s.codebooks.empty())
        return status::error(errc::invalid_argument, "kv_cache: the codec needs codebooks");
    const kv_codec& of = s.codebooks.codec();
    if (!(of == c) || s.codebooks.head_size() != s.head_size)
        return status::error(
            errc::bad_shape,
            "kv_cache: codebooks of %d bits for %d channels%s%s in heads of %zu, the cache has %d bits "
            "for %d channels%s%s in heads of %zu",
            int(of.bits), int(of.dims), of.additive ? ", additive" : "", of.residual ? ", residual" : "",
            s.codebooks.head_size(), int(c.bits), int(c.dims), c.additive ? ", additive" : "",
            c.residual ? ", residual" : "", s.head_size);
    if (!s.codebooks.serves(s.layers, s.kv_heads))
        return status::error(errc::bad_shape,
                             "kv_cache: %zu sets of codebooks do not serve %zu layers of %zu heads",
                             s.codebooks.sets(), s.layers, s.kv_heads);
    return {};
}

} // namespace crumb::inline CRUMB_ABI
