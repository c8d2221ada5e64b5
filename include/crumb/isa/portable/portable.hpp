// The primitives on xsimd: whatever vector unit the translation unit is compiled for.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/format/scales.hpp>
#include <crumb/isa/list.hpp>

#include <xsimd/xsimd.hpp>

#include <bit>
#include <cstring>

// What it has of its own, by system; defined in this folder.
namespace crumb::inline CRUMB_ABI::kernel {
struct pq_portable;
struct four_rows_portable;
} // namespace crumb::inline CRUMB_ABI::kernel

CRUMB_IGNORE_UNDEFINED_BEGIN

namespace crumb::inline CRUMB_ABI::isa {

/// A template, so that GCC compiles only what is called: xsimd's functions for Arm take it seconds.
template <class = void>
struct portable_primitives {
    static constexpr const char* name = isa_traits<portable>::name;
    using f32 = xsimd::batch<float>;
    using f64 = xsimd::batch<double>;
    using i32 = xsimd::batch<std::int32_t>;
    using bytes = xsimd::batch<std::int16_t>; ///< two bytes per lane
    using quad = bytes;                       ///< four activation codes, repeated
    static constexpr int lanes = static_cast<int>(f32::size);
    static constexpr int width = 4 * lanes;
    static constexpr int registers = CRUMB_ARCH_AARCH64 || width == 64 ? 32 : 16;
    static constexpr int query_tile = 1; ///< sharing would be compiled for the sake of no CPU in use
    static constexpr bool fuses = false; ///< whether `fma` rounds once depends on the command line
    static_assert(width <= 64 && 64 % width == 0 && sizeof(f32) == width && sizeof(bytes) == width);
    static constexpr std::size_t prefetch_bytes = 0; ///< distance ahead; 0: none
    static constexpr std::size_t row_block = 1;
    static constexpr std::size_t single_tiles = 1;         ///< of a pass for one row
    static constexpr bool single_tiles_by_streams = false; ///< or 1, unless memory answers two streams faster
    static constexpr std::size_t block_tiles = 1;          ///< of a pass for a block of rows
    static constexpr std::size_t record_row_block = 2;     ///< of formats with records
    static constexpr std::size_t record_tiles = 1;         ///< of a panel of such
    static constexpr std::size_t panel_rows = 0; ///< from which on weights are expanded into panels; 0: never
    static constexpr std::size_t panel_row_block = 0; ///< of activations for int8 panels; 0: no such product

    // ---- floats ----
    static CRUMB_INLINE f32 zero() noexcept { return f32(0.0f); }
    static CRUMB_INLINE f32 set1(float x) noexcept { return f32(x); }
    static CRUMB_INLINE f32 set1(half x) noexcept { return f32(to_float(x)); }
    static CRUMB_INLINE f32 load(const float* p) noexcept { return f32::load_unaligned(p); }
    static CRUMB_INLINE void store(float* p, f32 x) noexcept { x.store_unaligned(p); }
    static CRUMB_INLINE f32 load_partial(const float* p, std::size_t n) noexcept {
        float x[lanes] = {};
        for (std::size_t i = 0; i < n; ++i)
            x[i] = p[i];
        return load(x);
    }
    static CRUMB_INLINE void store_partial(float* p, f32 v, std::size_t n) noexcept {
        float x[lanes];
        store(x, v);
        for (std::size_t i = 0; i < n; ++i)
            p[i] = x[i];
    }
    static CRUMB_NOINLINE f32 load(const half* p) noexcept {
        float x[lanes];
        for (int i = 0; i < lanes; ++i)
            x[i] = to_float(p[i]);
        return load(x);
    }
    static CRUMB_NOINLINE f32 load(const bf16* p) noexcept {
        float x[lanes];
        for (int i = 0; i < lanes; ++i)
            x[i] = to_float(p[i]);
        return load(x);
    }
    static CRUMB_NOINLINE void store(half* p, f32 v) noexcept {
        float x[lanes];
        store(x, v);
        for (int i = 0; i < lanes; ++i)
            p[i] = to_half(x[i]);
    }
    static CRUMB_INLINE f32 add(f32 a, f32 b) noexcept { return a + b; }
    static CRUMB_INLINE f32 sub(f32 a, f32 b) noexcept { return a - b; }
    static CRUMB_INLINE f32 mul(f32 a, f32 b) noexcept { return a * b; }
    static CRUMB_INLINE f32 mul_rounded(f32 a, f32 b) noexcept {
        f32 x = mul(a, b);
        CRUMB_ROUND_PRODUCT(x.data);
        return x;
    }
    // On Arm xsimd multiplies by an approximate reciprocal, which is up to 2 units in the last place off.
    static CRUMB_INLINE f32 div(f32 a, f32 b) noexcept {
        if constexpr (!CRUMB_ARCH_AARCH64)
            return a / b;
        float x[lanes], y[lanes];
        store(x, a);
        store(y, b);
        for (int i = 0; i < lanes; ++i)
            x[i] /= y[i];
        return load(x);
    }
    static CRUMB_INLINE f32 fma(f32 a, f32 b, f32 c) noexcept { return xsimd::fma(a, b, c); }
    static CRUMB_INLINE f32 min(f32 a, f32 b) noexcept { return xsimd::min(a, b); }
    static CRUMB_INLINE f32 max(f32 a, f32 b) noexcept { return xsimd::max(a, b); }
    static CRUMB_INLINE f32 sqrt(f32 a) noexcept { return xsimd::sqrt(a); }
    static CRUMB_INLINE f32 abs(f32 a) noexcept { return xsimd::abs(a); }
    static CRUMB_INLINE f32 copy_sign(f32 magnitude, f32 sign) noexcept {
        const i32 top = set1_i32(INT32_MIN);
        return as_f32((as_i32(magnitude) & ~top) | (as_i32(sign) & top));
    }
    static CRUMB_INLINE f32 select_less(f32 a, f32 b, f32 yes, f32 no) noexcept {
        return xsimd::select(a < b, yes, no);
    }
    static CRUMB_INLINE float sum(f32 a) noexcept {
        float x[lanes];
        store(x, a);
        for (int n = lanes / 2; n > 0; n /= 2)
            for (int i = 0; i < n; ++i)
                x[i] += x[i + n];
        return x[0];
    }
    static CRUMB_INLINE float maximum(f32 a) noexcept {
        float x[lanes];
        store(x, a);
        float most = x[0];
        for (int i = 1; i < lanes; ++i)
            most = x[i] > most ? x[i] : most;
        return most;
    }

    static CRUMB_INLINE void sum4(f32 a, f32 b, f32 c, f32 d, float* out) noexcept {
        out[0] = sum(a);
        out[1] = sum(b);
        out[2] = sum(c);
        out[3] = sum(d);
    }
    static CRUMB_NOINLINE void load_pairs(const float* p, f32& even, f32& odd) noexcept {
        float x[2 * lanes];
        for (int i = 0; i < lanes; ++i) {
            x[i] = p[2 * i];
            x[lanes + i] = p[2 * i + 1];
        }
        even = load(x);
        odd = load(x + lanes);
    }
    static CRUMB_NOINLINE void store_pairs(float* p, f32 even, f32 odd) noexcept {
        float x[2 * lanes];
        store(x, even);
        store(x + lanes, odd);
        for (int i = 0; i < lanes; ++i) {
            p[2 * i] = x[i];
            p[2 * i + 1] = x[lanes + i];
        }
    }

    // ---- doubles ----
    static CRUMB_INLINE f64 set1_f64(double x) noexcept { return f64(x); }
    static CRUMB_INLINE f64 load(const double* p) noexcept { return f64::load_unaligned(p); }
    static CRUMB_INLINE void store(double* p, f64 x) noexcept { x.store_unaligned(p); }
    static CRUMB_INLINE f64 sub(f64 a, f64 b) noexcept { return a - b; }
    static CRUMB_INLINE f64 mul_rounded(f64 a, f64 b) noexcept {
        f64 x = a * b;
        CRUMB_ROUND_PRODUCT(x.data);
        return x;
    }

    // ---- integers ----
    static CRUMB_INLINE i32 set1_i32(std::int32_t x) noexcept { return i32(x); }
    static CRUMB_INLINE i32 add_i32(i32 a, i32 b) noexcept { return a + b; }
    /// 16-bit numbers of a lane whose products `add_products` adds; 1: the lane is one number.
    static constexpr int products = 1;
    static CRUMB_INLINE i32 add_products(i32 sum, i32 a, i32 b) noexcept { return sum + a * b; }
    static CRUMB_INLINE i32 min_i32(i32 a, i32 b) noexcept { return xsimd::min(a, b); }
    static CRUMB_INLINE i32 max_i32(i32 a, i32 b) noexcept { return xsimd::max(a, b); }
    static CRUMB_INLINE std::int32_t maximum_i32(i32 a) noexcept {
        std::int32_t x[lanes];
        a.store_unaligned(x);
        std::int32_t most = x[0];
        for (int i = 1; i < lanes; ++i)
            most = x[i] > most ? x[i] : most;
        return most;
    }
    static CRUMB_INLINE i32 magnitude_bits(f32 a) noexcept { return as_i32(xsimd::abs(a)); }
    static CRUMB_INLINE i32 round_to_i32(f32 a) noexcept { return xsimd::nearbyint_as_int(a); }
    static CRUMB_INLINE f32 to_f32(i32 a) noexcept { return xsimd::to_float(a); }
    static CRUMB_INLINE f32 power_of_two(i32 n) noexcept { return as_f32((n + i32(127)) << 23); }
    static CRUMB_INLINE f32 as_f32(i32 a) noexcept { return cast<f32>(a); }
    static CRUMB_INLINE i32 as_i32(f32 a) noexcept { return cast<i32>(a); }

    // ---- codes ----
    static CRUMB_INLINE bytes load_bytes(const std::uint8_t* p) noexcept {
        bytes b;
        std::memcpy(static_cast<void*>(&b), p, sizeof b);
        return b;
    }
    static CRUMB_INLINE quad load_quad(const std::int8_t* p) noexcept {
        std::int32_t four;
        std::memcpy(&four, p, sizeof four);
        return cast<bytes>(i32(four));
    }

    // ---- scales and selectors ----
    static CRUMB_NOINLINE f32 load_integers(const std::int8_t* p) noexcept {
        float x[lanes];
        for (int i = 0; i < lanes; ++i)
            x[i] = static_cast<float>(p[i]);
        return load(x);
    }
    /// Codes First .. First + lanes - 1 of a group of `Group`, 0 .. 2^Bits - 1: a group of 32 has the order
    /// of `stored_indices<Bits>`, one of 64 that of blocks in a cache.
    template <int Bits, int First, int Group = 32>
    static CRUMB_NOINLINE f32 load_field(const std::uint8_t* p) noexcept {
        constexpr int stored = Group * Bits / 8; // bytes, each with codes so far apart
        float x[lanes];
        for (int i = 0; i < lanes; ++i)
            x[i] = static_cast<float>(p[(First + i) % stored] >> (First + i) / stored * Bits &
                                      ((1 << Bits) - 1));
        return load(x);
    }
    static CRUMB_NOINLINE f32 load_powers(const std::uint8_t* p) noexcept {
        float x[lanes];
        for (int i = 0; i < lanes; ++i)
            x[i] = power_of(p[i]);
        return load(x);
    }
    /// The low nibble of each channel's scale in both nibbles of the channel's four bytes.
    static CRUMB_NOINLINE bytes spread_low_nibbles(const half* p) noexcept {
        std::uint8_t low[lanes];
        for (int i = 0; i < lanes; ++i)
            low[i] = static_cast<std::uint8_t>(p[i].bits & 15u);
        return spread(low);
    }
    static CRUMB_NOINLINE bytes spread_low_nibbles(const std::int8_t* p) noexcept {
        std::uint8_t low[lanes];
        for (int i = 0; i < lanes; ++i)
            low[i] = static_cast<std::uint8_t>(p[i] & 15);
        return spread(low);
    }
    /// The bits of `Mask` of each byte from a, the others from b.
    template <int Mask>
    static CRUMB_INLINE bytes select_bits(bytes a, bytes b) noexcept {
        const bytes mask(static_cast<std::int16_t>(Mask * 0x0101));
        return (a & mask) | (b & bytes(static_cast<std::int16_t>(~(Mask * 0x0101))));
    }
    // Bits may cross bytes: callers select what stays.
    template <int N>
    static CRUMB_INLINE bytes shift_left(bytes a) noexcept {
        return a << N;
    }
    template <int N>
    static CRUMB_INLINE bytes shift_right(bytes a) noexcept {
        return a >> N;
    }

    static CRUMB_NOINLINE void round_group(const float* x, float inverse, std::int8_t* out) noexcept {
        for (int i = 0; i < 32; i += lanes) {
            std::int32_t q[lanes];
            round_to_i32(load(x + i) * f32(inverse)).store_unaligned(q);
            for (int j = 0; j < lanes; ++j)
                out[i + j] = static_cast<std::int8_t>(q[j]);
        }
    }
    static CRUMB_INLINE std::int32_t sum_group(const std::int8_t* codes) noexcept {
        std::int32_t s = 0;
        for (int i = 0; i < 32; ++i)
            s += codes[i];
        return s;
    }

    // Even and odd bytes as 16-bit lanes; two products of at most 128 * 127 share a lane.
    struct product {
        static constexpr int offset = 0;
        using operand = bytes;
        using acc = i32;
        static CRUMB_INLINE acc start(const std::int32_t*) noexcept { return i32(0); }
        template <int>
        static CRUMB_INLINE void step(acc& s, operand w, quad x) noexcept {
            const i32 pairs = cast<i32>(((w << 8) >> 8) * ((x << 8) >> 8) + (w >> 8) * (x >> 8));
            s = s + ((pairs << 16) >> 16) + (pairs >> 16);
        }
        static CRUMB_INLINE i32 finish(const acc& s, const std::int32_t*) noexcept { return s; }
    };
    struct nibbles : product {
        static constexpr float factor = 0.0625f;
        template <int X>
        static CRUMB_INLINE bytes expand(bytes raw) noexcept {
            return (X == 0 ? raw << 4 : raw) & bytes(static_cast<std::int16_t>(0xf0f0));
        }
    };
    struct int8s : product {
        static constexpr float factor = 1;
        template <int X>
        static CRUMB_INLINE bytes expand(bytes raw) noexcept {
            return raw;
        }
    };

    struct lookups : int8s {
        using table = const std::int8_t*;
        static CRUMB_INLINE table load_table(const std::int8_t* entries) noexcept { return entries; }
        template <int X>
        static CRUMB_NOINLINE bytes look_up(table entries, bytes cells) noexcept {
            std::uint8_t cell[width];
            std::int8_t found[width];
            std::memcpy(cell, &cells, sizeof cell);
            for (int i = 0; i < width; ++i)
                found[i] = entries[X == 0 ? cell[i] & 15 : cell[i] >> 4];
            bytes w;
            std::memcpy(static_cast<void*>(&w), found, sizeof w);
            return w;
        }
    };

    /// Attention decodes the codes of a cache: scans with loops over bytes cost more to compile than they
    /// gain. They say what those of other ISAs have to do.
    static constexpr bool decodes_codes = true;
    using pq = kernel::pq_portable; ///< primitives of scans of product-quantized codes
    using four_rows = kernel::four_rows_portable;

  private:
    static CRUMB_INLINE bytes spread(const std::uint8_t* low) noexcept {
        std::int32_t x[lanes];
        for (int i = 0; i < lanes; ++i)
            x[i] = static_cast<std::int32_t>(low[i] * 0x11111111u);
        return cast<bytes>(i32::load_unaligned(x));
    }
    template <class To, class From>
    static CRUMB_INLINE To cast(const From& x) noexcept {
        To out;
        static_assert(sizeof out == sizeof x);
        std::memcpy(static_cast<void*>(&out), static_cast<const void*>(&x), sizeof out);
        return out;
    }
};
struct portable : portable_primitives<> {};

} // namespace crumb::inline CRUMB_ABI::isa

CRUMB_IGNORE_UNDEFINED_END
