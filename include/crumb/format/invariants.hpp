// Invariants of packed bytes that kernels rely on, and their checks.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/core/memory.hpp>
#include <crumb/format/scales.hpp>

#include <cmath>
#include <cstring>
#include <limits>

namespace crumb::inline CRUMB_ABI {

// The invariants of each packed kind. Whoever makes an object out of bytes checks them once, in release
// builds as well, and kernels rely on them; docs/layouts.md has the layouts.
//
//  made by                 invariant                                           check
//  all                     tag, version and format; alignment; the size in     read_packed_header,
//                          the header is that of the shape and that of the     packed_layout::of,
//                          bytes; no size overflows                            check_buffer
//  packed_view<F>::open    reserved bytes are 0                                check_zero
//                          scales are finite; exponents are at most            check_scales,
//                          `largest_exponent`: every weight is a finite float  check_exponents
//                          scales and minima in records are finite, and so     check_records,
//                          are all weights under a tensor's scale              has_finite_weights
//  nested_view::open       reserved bytes, and those after the levels, are 0   check_zero
//                          2 <= seed <= parent <= 4; levels ascend             check_levels
//                          scales and corrections are finite                   check_scales
//  neuron_rows::open       known codecs; reserved bytes are 0                  check_zero
//                          thresholds and ranges are not NaN; the padding of   check_thresholds
//                          thresholds holds everything
//                          slopes, intercepts, biases, weights and their       check_line,
//                          scales are finite                                   check_row
//  pq_codebooks::make      sizes agree; scales are finite and >= 0; metrics    pq_codebooks::make
//                          are finite; centroids are within
//                          `largest_centroid`; sums of additive entries fit a
//                          signed byte
//  restore (of kv_cache)   model, codec, codebooks and shape are the cache's;  restore,
//                          lengths agree; scales, means, origins and tokens    check_scales,
//                          are finite                                          check_floats
//  folded_ffn::plan        all parts have the network's shape                  folded_ffn::plan
//  learned_schedule::plan  sizes agree; parameters are finite                  learned_schedule::plan
//
// Codes need no check: every pattern of bits stands for an entry of its table.

/// Refuses bytes that are not 0; the message calls them `what`.
inline status check_zero(std::span<const std::byte> bytes, const char* what) noexcept {
    for (std::size_t i = 0; i < bytes.size(); ++i)
        if (bytes[i] != std::byte{0})
            return status::error(errc::corrupt, "%s: byte %zu is %u, it has to be 0", what, i,
                                 static_cast<unsigned>(bytes[i]));
    return {};
}

/// Refuses fp16 numbers that are infinite or NaN. `at` is aligned to 2.
inline status check_scales(const void* at, std::size_t count, const char* what) noexcept {
    constexpr std::size_t block = 64;
    const auto* bytes = static_cast<const std::byte*>(at);
    for (std::size_t first = 0; first < count; first += block) {
        const std::size_t here = count - first < block ? count - first : block;
        std::uint16_t bits[block] = {};
        std::memcpy(bits, bytes + first * sizeof(half), here * sizeof(half));
        // An exponent of all ones carries into the sign.
        unsigned carries = 0;
        for (const std::uint16_t b : bits)
            carries |= (b & 0x7fffu) + 0x0400u;
        if ((carries & 0x8000u) == 0)
            continue;
        for (std::size_t i = 0; i < here; ++i)
            if (!is_finite(half{bits[i]}))
                return status::error(errc::not_finite, "%s: number %zu is %g", what, first + i,
                                     double{to_float(half{bits[i]})});
    }
    return {};
}

/// Refuses floats that are infinite or NaN. `at` need not be aligned.
inline status check_floats(const void* at, std::size_t count, const char* what) noexcept {
    const auto* bytes = static_cast<const std::byte*>(at);
    for (std::size_t i = 0; i < count; ++i) {
        float x;
        std::memcpy(&x, bytes + i * sizeof x, sizeof x);
        if (!std::isfinite(x))
            return status::error(errc::not_finite, "%s: number %zu is %g", what, i, double{x});
    }
    return {};
}

/// Refuses exponents beyond `largest_exponent`.
inline status check_exponents(const std::uint8_t* at, std::size_t count, const char* what) noexcept {
    for (std::size_t i = 0; i < count; ++i)
        if (at[i] > largest_exponent)
            return status::error(errc::not_finite, "%s: exponent %zu is %u, at most %u is possible", what, i,
                                 at[i], largest_exponent);
    return {};
}

/// Refuses NaN in thresholds low <= x < high, and padding (numbers `count` to `padded`) that does not hold
/// everything.
inline status check_thresholds(const float* low, const float* high, std::size_t count,
                               std::size_t padded) noexcept {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (std::size_t n = 0; n < padded; ++n) {
        if (std::isnan(low[n]) || std::isnan(high[n]))
            return status::error(errc::not_finite, "neurons: the thresholds of neuron %zu are %g and %g", n,
                                 double{low[n]}, double{high[n]});
        if (n >= count && (low[n] != -infinity || high[n] != infinity))
            return status::error(errc::corrupt,
                                 "neurons: padded thresholds %zu are %g and %g, they have to hold everything",
                                 n, double{low[n]}, double{high[n]});
    }
    return {};
}

} // namespace crumb::inline CRUMB_ABI
