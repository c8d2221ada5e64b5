// What packed bytes have to hold before a kernel runs on them, and the checks of it.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/core/memory.hpp>
#include <crumb/format/scales.hpp>

#include <cmath>
#include <cstring>
#include <limits>

namespace crumb::inline CRUMB_ABI {

// The invariants of each packed kind. Whoever makes an object out of bytes checks all of its lines once, in
// release builds, and kernels rely on them; docs/layouts.md has the layouts.
//
//     kind, made by                 invariant                                                   check
//     all                           tag, version and format; aligned; as many bytes as the
//     read_packed_header,
//                                   header says, which are those of the shape; no size packed_layout::of,
//                                   overflows                                                   check_buffer
//     packed_view<F>::open          reserved bytes are 0                                        check_zero
//                                   scales are finite halves; or exponents are at most          check_scales
//                                   `largest_exponent`, so that every weight is a finite float
//                                   check_exponents
//     nested_view::open             reserved bytes and those behind the levels are 0            check_zero
//                                   2 <= seed <= parent <= 4; levels of seed .. parent ascend   check_levels
//                                   scales and corrections are finite                           check_scales
//     neuron_rows::open             known codecs; reserved bytes of header and lines are 0      check_zero
//                                   thresholds and ranges are no NaN; padded thresholds hold check_thresholds
//                                   everything, as no record stands behind them
//                                   slopes, intercepts, biases, weights or their scales are     check_line,
//                                   finite                                                      check_row
//     pq_codebooks::make            as many entries, scales and metrics as the sets take; pq_codebooks::make
//                                   scales finite and >= 0, metrics finite; centroids
//                                   within `largest_centroid`; two tables that are added
//                                   stay within signed bytes
//     restore (of a kv_cache)       model, codec, codebooks and shape are the cache's; lengths  restore
//                                   agree; scales, means and origins, halves and floats of      check_scales,
//                                   tokens are finite                                           check_floats
//     folded_ffn::plan              fold, predictor, neurons, bounds, up, down have the shape
//     folded_ffn::plan
//                                   that the caller gives
//     learned_schedule::plan        sizes agree; parameters are finite learned_schedule::plan
//
// Codes need no check: every pattern of bits stands for an entry of its table.

/// Refuses bytes that are not 0; `what` is what the message calls them.
inline status check_zero(std::span<const std::byte> bytes, const char* what) noexcept {
    for (std::size_t i = 0; i < bytes.size(); ++i)
        if (bytes[i] != std::byte{0})
            return status::error(errc::corrupt, "%s: byte %zu is %u, it has to be 0", what, i,
                                 static_cast<unsigned>(bytes[i]));
    return {};
}

/// Refuses halves that are infinite or NaN. `at` is aligned to 2.
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

/// Refuses thresholds low <= x < high that are NaN, and those behind the first `count` of `padded` that do
/// not hold everything.
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
