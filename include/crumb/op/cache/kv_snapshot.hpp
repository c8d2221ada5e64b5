// Saving a cache of keys and values to bytes, and restoring it.
#pragma once

#include <crumb/op/cache/kv_cache.hpp>

namespace crumb::inline CRUMB_ABI {

/// A saved cache, version 3, numbers in the machine's (little-endian) order:
///
///     header (128 bytes) | sinks and window | parts, in the order of kv_cache::for_each_part
///
/// The header has the cache's options, the lengths, and a hash of it all: of the header with a hash of 0, and
/// of what follows. Version 2 has the same bytes, but its hash leaves the header out. Caches with other page
/// lengths can restore it.
struct kv_snapshot_header {
    char magic[8] = {'c', 'r', 'u', 'm', 'b', 'k', 'v', '\n'};
    std::uint32_t version = 3;
    std::uint8_t kind = 0, bits = 0, dims = 0, flags = 0; ///< of the codec; flags: 1 additive, 2 residual
    std::uint64_t layers = 0, kv_heads = 0, head_size = 0, sinks = 0, slots = 0;
    std::uint64_t codebook_id = 0, model_id = 0;
    std::uint64_t length = 0, coded = 0, parts = 0, bytes = 0;
    std::uint64_t content = 0;      ///< the hash
    std::uint64_t reserved[2] = {}; ///< 0
};
static_assert(sizeof(kv_snapshot_header) == 128);

/// FNV-1a over 8 bytes at a time.
inline std::uint64_t kv_hash(std::span<const std::byte> bytes, std::uint64_t hash) noexcept {
    constexpr std::uint64_t prime = 0x100000001b3;
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        std::uint64_t word;
        __builtin_memcpy(&word, bytes.data() + i, 8);
        hash = (hash ^ word) * prime;
    }
    for (; i < bytes.size(); ++i)
        hash = (hash ^ std::to_integer<std::uint64_t>(bytes[i])) * prime;
    return hash;
}

/// Bytes that `save` writes.
inline std::size_t snapshot_bytes(const kv_cache& cache) noexcept {
    return sizeof(kv_snapshot_header) + cache.fp16_rows().size() +
           cache.parts_for(cache.length(), cache.coded()) * cache.part_bytes();
}

namespace detail {
/// Where the hash begins that goes on over what follows the header.
inline std::uint64_t hash_of(kv_snapshot_header h) noexcept {
    h.content = 0;
    return h.version < 3 ? 0 : kv_hash(std::as_bytes(std::span(&h, 1)), 0);
}
inline kv_snapshot_header header_of(const kv_cache& cache) noexcept {
    const kv_cache_options& s = cache.options();
    kv_snapshot_header h;
    h.kind = static_cast<std::uint8_t>(s.codec.kind);
    h.bits = s.codec.bits;
    h.dims = s.codec.dims;
    h.flags = static_cast<std::uint8_t>((s.codec.additive ? 1 : 0) + (s.codec.residual ? 2 : 0));
    h.layers = s.layers;
    h.kv_heads = s.kv_heads;
    h.head_size = s.head_size;
    h.sinks = cache.sinks();
    h.slots = cache.slots();
    h.codebook_id = s.codebook_id;
    h.model_id = s.model_id;
    h.length = cache.length();
    h.coded = cache.coded();
    h.parts = cache.parts_for(h.length, h.coded);
    h.bytes = snapshot_bytes(cache);
    return h;
}
inline status check_span(const kv_cache& cache) noexcept {
    if (cache.options().span == 0)
        return {};
    return status::error(errc::unsupported, "kv snapshot: a cache with a span of tokens is not saved");
}
} // namespace detail

/// Writes the cache to `to`, which has snapshot_bytes bytes. Refuses caches with a span. No encoding may be
/// under way.
inline status save(const kv_cache& cache, std::span<std::byte> to) noexcept {
    if (const status s = detail::check_span(cache); !s)
        return s;
    kv_snapshot_header h = detail::header_of(cache);
    if (to.size() < h.bytes)
        return status::error(errc::buffer_too_small, "kv snapshot: the buffer has %zu bytes, %zu are needed",
                             to.size(), std::size_t(h.bytes));
    h.content = detail::hash_of(h);
    std::byte* at = to.data() + sizeof h;
    const auto put = [&](std::span<const std::byte> from) {
        __builtin_memcpy(at, from.data(), from.size());
        h.content = kv_hash(from, h.content);
        at += from.size();
    };
    put(cache.fp16_rows());
    cache.for_each_part(h.parts, [&](std::size_t p, std::size_t layer, std::size_t head, bool keys) {
        put(cache.part(p, layer, head, keys));
    });
    __builtin_memcpy(to.data(), &h, sizeof h);
    return {};
}

/// Tokens of a saved cache; pages for them have to be added before `restore`.
inline result<std::size_t> snapshot_length(std::span<const std::byte> from) noexcept {
    kv_snapshot_header h;
    if (from.size() < sizeof h)
        return status::error(errc::corrupt, "kv snapshot: %zu bytes are no snapshot", from.size());
    const kv_snapshot_header expected;
    __builtin_memcpy(&h, from.data(), sizeof h);
    if (__builtin_memcmp(h.magic, expected.magic, sizeof h.magic) != 0)
        return status::error(errc::wrong_format, "kv snapshot: these bytes are no snapshot");
    if (h.version < 2 || h.version > expected.version)
        return status::error(errc::wrong_version, "kv snapshot: version %u, this build reads 2 and %u",
                             h.version, expected.version);
    return static_cast<std::size_t>(h.length);
}

namespace detail {
/// Refuses a part of a snapshot whose scales, means or origins are not finite.
inline status check_part(const kv_part_layout& layout, std::span<const std::byte> part) noexcept {
    switch (layout.codec().kind) {
    case kv_kind::f32:
        return check_floats(part.data(), part.size() / sizeof(float), "kv snapshot");
    case kv_kind::f16:
        return check_scales(part.data(), part.size() / sizeof(half), "kv snapshot");
    default:
        return check_scales(part.data(), layout.codes_offset() / sizeof(half), "kv snapshot");
    }
}
} // namespace detail

/// Gives the cache the contents that `save` wrote. Refuses snapshots of another model, shape, codec or of
/// other codebooks, truncated or changed bytes, and numbers that are not finite; the cache is unchanged then.
/// It needs pages for the saved tokens.
inline status restore(kv_cache& cache, std::span<const std::byte> from) noexcept {
    if (const status s = detail::check_span(cache); !s)
        return s;
    const auto length = snapshot_length(from);
    if (!length)
        return length.error();
    kv_snapshot_header h;
    __builtin_memcpy(&h, from.data(), sizeof h);
    const kv_snapshot_header own = detail::header_of(cache);
    const auto differ = [](const char* what, std::uint64_t saved, std::uint64_t here) {
        return status::error(errc::bad_shape, "kv snapshot: %s %llu, the cache has %llu", what,
                             static_cast<unsigned long long>(saved), static_cast<unsigned long long>(here));
    };
    if (h.model_id != own.model_id)
        return status::error(
            errc::invalid_argument, "kv snapshot: another model wrote it (%016llx, not %016llx)",
            static_cast<unsigned long long>(h.model_id), static_cast<unsigned long long>(own.model_id));
    if (h.kind != own.kind || h.bits != own.bits || h.dims != own.dims || h.flags != own.flags)
        return status::error(
            errc::wrong_format,
            "kv snapshot: codec (kind %d, bits %d, dims %d, flags %d), the cache has (%d, %d, %d, %d)",
            h.kind, h.bits, h.dims, h.flags, own.kind, own.bits, own.dims, own.flags);
    if (h.codebook_id != own.codebook_id)
        return status::error(errc::wrong_format, "kv snapshot: other codebooks (%016llx, not %016llx)",
                             static_cast<unsigned long long>(h.codebook_id),
                             static_cast<unsigned long long>(own.codebook_id));
    if (h.layers != own.layers)
        return differ("layers", h.layers, own.layers);
    if (h.kv_heads != own.kv_heads)
        return differ("kv_heads", h.kv_heads, own.kv_heads);
    if (h.head_size != own.head_size)
        return differ("head_size", h.head_size, own.head_size);
    if (h.sinks != own.sinks)
        return differ("sinks", h.sinks, own.sinks);
    if (h.slots != own.slots)
        return differ("window slots", h.slots, own.slots);
    if (h.length > cache.options().max_tokens)
        return differ("tokens", h.length, cache.options().max_tokens);
    const std::size_t after_sinks = h.length > h.sinks ? h.length - h.sinks : 0;
    const bool coded = !cache.options().codec.is_uncoded();
    if (h.reserved[0] != 0 || h.reserved[1] != 0 || h.parts != cache.parts_for(h.length, h.coded) ||
        h.coded % kv_block_tokens != 0 || h.coded > after_sinks ||
        (coded && after_sinks - h.coded > h.slots) || (!coded && h.coded != 0) ||
        h.bytes != sizeof h + cache.fp16_rows().size() + h.parts * cache.part_bytes())
        return status::error(errc::corrupt, "kv snapshot: its header contradicts itself");
    if (from.size() < h.bytes)
        return status::error(errc::corrupt, "kv snapshot: %zu of %zu bytes", from.size(),
                             std::size_t(h.bytes));
    if (const std::size_t pages = cache.pages_for(h.length); pages > cache.page_count())
        return status::error(errc::buffer_too_small, "kv snapshot: it needs %zu pages, there are %zu", pages,
                             cache.page_count());
    const auto content = from.subspan(sizeof h, h.bytes - sizeof h);
    std::uint64_t hash = detail::hash_of(h);
    status finite;
    const auto each = [&](auto&& f) {
        std::size_t at = 0;
        const auto next = [&](std::span<std::byte> to, const kv_part_layout& layout) {
            f(content.subspan(at, to.size()), to, layout);
            at += to.size();
        };
        // Sinks and window are fp16 with every codec.
        next(cache.fp16_rows(), {kv_codec::f16(), h.head_size, true});
        cache.for_each_part(h.parts, [&](std::size_t p, std::size_t layer, std::size_t head, bool keys) {
            next(cache.part(p, layer, head, keys), {cache.options().codec, h.head_size, keys});
        });
    };
    each([&](std::span<const std::byte> bytes, std::span<std::byte>, const kv_part_layout& layout) {
        hash = kv_hash(bytes, hash);
        if (finite)
            finite = detail::check_part(layout, bytes);
    });
    if (hash != h.content)
        return status::error(errc::corrupt, "kv snapshot: its contents were changed");
    if (!finite)
        return finite;
    each([](std::span<const std::byte> bytes, std::span<std::byte> to, const kv_part_layout&) {
        __builtin_memcpy(to.data(), bytes.data(), to.size());
    });
    cache.assume(h.length, h.coded);
    return {};
}

} // namespace crumb::inline CRUMB_ABI
