// How attention reads the codes of a cache.
#pragma once

#include <crumb/format/pq_codebooks.hpp>
#include <crumb/kernel/attention/kernels.hpp>

namespace crumb::inline CRUMB_ABI::kernel {

/// How a step attends to codes.
enum class kv_mode : std::uint8_t {
    fast, ///< pq: tables of inner products and weights in planes of 7 bits; uniform: scales times queries
    exact ///< codes are decoded to floats
};

/// How a pass of attention reads what is no sink and not in the window.
enum class kv_route : std::uint8_t {
    floats,   ///< as they lie
    halves,   ///< as they lie
    bytes,    ///< `q8_0` as it lies
    channels, ///< `uniform` channel by channel, its scales multiplied to queries and weights
    tables,   ///< `pq` by sums of looked-up products (scores) and entries (outputs)
    decoded   ///< any codes: a block of tokens at a time becomes floats
};

/// Products of a query with codes, and weights of tokens, are at most this: two of them add in a byte, and
/// two products with bytes in 16 bits.
inline constexpr int pq_max = 127;

/// The route of passes of up to `queries` queries. Codes are worth reading as they lie for a few queries; for
/// more they are decoded once.
constexpr kv_route kv_route_of(const kv_codec& codec, std::size_t head_size, std::size_t queries,
                               kv_mode mode) noexcept {
    switch (codec.kind) {
    case kv_kind::f32:
        return kv_route::floats;
    case kv_kind::f16:
        return kv_route::halves;
    case kv_kind::q8_0:
        // Rows that end within a register are converted first.
        return head_size % 16 == 0 && queries <= converted_above ? kv_route::bytes : kv_route::decoded;
    case kv_kind::uniform:
        return mode == kv_mode::fast && queries <= 16 ? kv_route::channels : kv_route::decoded;
    case kv_kind::pq:
        break;
    }
    // Sums of looked-up bytes have 16 bits.
    const std::size_t most = head_size / codec.dims * (codec.additive ? 2 : 1) * pq_max;
    return mode == kv_mode::fast && queries <= 16 && most <= 65535 ? kv_route::tables : kv_route::decoded;
}

} // namespace crumb::inline CRUMB_ABI::kernel
