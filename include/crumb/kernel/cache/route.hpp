// How attention reads the codes of a cache.
#pragma once

#include <crumb/format/pq_codebooks.hpp>
#include <crumb/kernel/attention/kernels.hpp>

#include <array>

namespace crumb::inline CRUMB_ABI::kernel {

/// How a step attends to codes.
enum class kv_mode : std::uint8_t {
    fast, ///< pq: tables of inner products and weights in planes of 7 bits; q8_0: queries and weights of 15
          ///< bits; uniform: scales times queries, as floats or in planes of 7 bits
    exact ///< codes are decoded to floats
};

/// How a pass of attention reads what is no sink and not in the window.
enum class kv_route : std::uint8_t {
    floats,   ///< as they lie
    halves,   ///< as they lie
    bytes,    ///< `q8_0` as it lies, converted to floats
    integers, ///< codes as they lie times integers: `q8_0` queries and weights of 15 bits, `uniform` both
              ///< times scales, in planes of 7 bits
    channels, ///< `uniform` channel by channel, its scales multiplied to queries and weights: on an ISA
              ///< without products of integers
    tables,   ///< `pq` by sums of looked-up products (scores) and entries (outputs)
    expanded, ///< `pq`: codes become bytes in registers or the first cache, which all queries multiply
    decoded,  ///< any codes: a block of tokens at a time becomes floats
    matrices  ///< halves or codes: whole blocks that all rows of a pass see become int8 matrices, which many
              ///< queries and their weights, rounded alike, are multiplied with; other tokens as floats
};
/// The name of a route, as it stands in the list.
constexpr const char* name_of(kv_route route) noexcept {
    constexpr const char* names[] = {"floats", "halves",   "bytes",   "integers", "channels",
                                     "tables", "expanded", "decoded", "matrices"};
    static_assert(std::size(names) == static_cast<std::size_t>(kv_route::matrices) + 1);
    return names[static_cast<std::size_t>(route)];
}

/// Products of a query with codes, and weights of tokens, are at most this: two of them add in a byte, and
/// two products with bytes in 16 bits.
inline constexpr int pq_max = 127;

/// Rows of a step up to which its results do not depend on how many there are, and queries of a kv head that
/// share a pass over codes.
inline constexpr std::size_t few_rows = 16, few_queries = 16;

/// Queries of a kv head up to which rows of bytes are converted again and again; for more they are decoded
/// once.
inline constexpr std::size_t byte_queries = 8;

/// The route of steps of `rows` rows with `group` queries per kv head and row. Codes are worth reading as
/// they lie for a few queries; for more they are decoded once. `expand_from`: queries per kv head and row
/// from which an ISA expands the codec, or 0. What rows decide they decide at `few_rows`, so that drafts
/// which are verified together have the bits of single tokens.
constexpr kv_route kv_route_of(const kv_codec& codec, std::size_t head_size, std::size_t group,
                               std::size_t rows, kv_mode mode, std::size_t expand_from) noexcept {
    const bool few = mode == kv_mode::fast && rows <= few_rows && group <= few_queries;
    switch (codec.kind) {
    case kv_kind::f32:
        return kv_route::floats;
    case kv_kind::f16:
        return kv_route::halves;
    case kv_kind::q8_0:
        // Scales of tokens are brought together by halves of their groups.
        if (few && expand_from != 0 && group >= expand_from && head_size >= 64 &&
            (head_size & (head_size - 1)) == 0)
            return kv_route::integers;
        // Rows that end within a register are converted first.
        return head_size % 16 == 0 && group * rows <= byte_queries ? kv_route::bytes : kv_route::decoded;
    case kv_kind::uniform:
        if (few && expand_from == 0)
            return kv_route::channels;
        // Rows that end within a register of floats are decoded.
        return few && head_size % 16 == 0 ? kv_route::integers : kv_route::decoded;
    case kv_kind::pq:
        break;
    }
    if (!few)
        return kv_route::decoded;
    // Dot instructions take four channels at a time.
    if (expand_from != 0 && group >= expand_from && head_size % 4 == 0)
        return kv_route::expanded;
    // Sums of looked-up bytes have 16 bits.
    const std::size_t most = head_size / codec.dims * (codec.additive ? 2 : 1) * pq_max;
    return most <= 65535 ? kv_route::tables : kv_route::decoded;
}

/// Queries of a kv head that share a pass over what is decoded or made matrices for them, unless one group is
/// larger.
inline constexpr std::size_t decoded_queries = 256;

/// Whether matrices can take the place of another route for steps of many rows.
constexpr bool can_use_matrices(const kv_codec& codec, std::size_t head_size, std::size_t span) noexcept {
    // Floats may be too large for the scales; a token that a span hides would change the scales of values.
    return codec.kind != kv_kind::f32 && head_size % 16 == 0 && span == 0;
}

/// Rows from one at `position`, `sinks` tokens aside, to the next that sees another number of whole blocks
/// before itself.
constexpr std::size_t kv_rows_alike(std::size_t position, std::size_t sinks) noexcept {
    return attention_block - (position < sinks ? 0 : (position - sinks) % attention_block);
}

/// Whether a route reads codes of `pq` as they lie.
constexpr bool is_scan(kv_route route) noexcept {
    return route == kv_route::tables || route == kv_route::expanded;
}

/// Rows of a pass of a route over `group` queries each, of a call for `all` rows, if `rows` are as many as
/// others have room for.
constexpr std::size_t kv_pass_rows(kv_route route, std::size_t group, std::size_t all,
                                   std::size_t rows) noexcept {
    if (route == kv_route::matrices || route == kv_route::decoded) {
        const std::size_t room = group < decoded_queries ? decoded_queries / group : 1;
        const std::size_t most =
            route == kv_route::decoded || room < attention_block ? room : attention_block;
        return all < most ? all : most;
    }
    if (!is_scan(route) && route != kv_route::channels && route != kv_route::integers)
        return rows;
    const std::size_t room = few_queries / group;
    return rows < room ? rows : room;
}

/// Where a table has an entry for calls of up to `rows` rows, 1 .. decoded_queries: one for each number up to
/// `few_rows`, then for 16 more each.
constexpr std::size_t kv_rows_entry(std::size_t rows) noexcept {
    return rows <= few_rows ? rows - 1 : few_rows + (rows - 1 - few_rows) / 16;
}

} // namespace crumb::inline CRUMB_ABI::kernel
