// The primitives of baseline AArch64: 16-byte registers, SMULL/SMLAL and pairwise additions for products.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/format/activations.hpp>
#include <crumb/isa/list.hpp>

#if CRUMB_BUILDS_NEON

#include <arm_neon.h>

// What it has of its own, by system; defined in this folder.
namespace crumb::inline CRUMB_ABI::kernel {
struct pq_neon;
struct four_rows_neon;
template <class Isa, class Format>
struct neon_tile;
} // namespace crumb::inline CRUMB_ABI::kernel

namespace crumb::inline CRUMB_ABI::isa {

/// Also the base of the ISAs with dotprod and i8mm, which replace the products.
struct neon {
    static constexpr const char* name = isa_traits<neon>::name;
    static constexpr int width = 16;
    static constexpr int lanes = 4;
    static constexpr int registers = 32;
    static constexpr int query_tile = 4;             ///< queries that share a register of keys or values
    static constexpr bool fuses = true;              ///< `fma` rounds once
    static constexpr std::size_t prefetch_bytes = 0; ///< distance ahead; 0: none
    static constexpr bool has_matrix_product = false;
    static constexpr std::size_t row_block = 8;
    static constexpr std::size_t single_tiles = 1;         ///< of a pass for one row
    static constexpr bool single_tiles_by_streams = false; ///< or 1, unless memory answers two streams faster
    static constexpr std::size_t block_tiles = 1;          ///< of a pass for a block of rows
    static constexpr std::size_t record_row_block = 4;     ///< of formats with records
    static constexpr std::size_t record_tiles = 1;         ///< of a panel of such
    static constexpr std::size_t panel_rows = 0; ///< from which on weights are expanded into panels; 0: never
    static constexpr std::size_t panel_row_block = 0; ///< of activations for int8 panels; 0: no such product
    static constexpr activation_order order = activation_order::pairs;
    using own_tiles = void;
    template <class Format>
    using intrinsics_tile = kernel::neon_tile<neon, Format>;
    template <class Format>
    using tile = intrinsics_tile<Format>;

    using f32 = float32x4_t;
    using f64 = float64x2_t;
    using i32 = int32x4_t;
    using bytes = uint8x16_t;
    using act = int8x16_t;

    // ---- floats ----
    static CRUMB_INLINE f32 zero() noexcept { return vdupq_n_f32(0); }
    static CRUMB_INLINE f32 set1(float x) noexcept { return vdupq_n_f32(x); }
    static CRUMB_INLINE f32 set1(half x) noexcept {
        return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x.bits)));
    }
    static CRUMB_INLINE f32 load(const float* p) noexcept { return vld1q_f32(p); }
    static CRUMB_INLINE void store(float* p, f32 x) noexcept { vst1q_f32(p, x); }
    static CRUMB_INLINE f32 load_partial(const float* p, std::size_t n) noexcept {
        float x[4] = {};
        for (std::size_t i = 0; i < n; ++i)
            x[i] = p[i];
        return vld1q_f32(x);
    }
    static CRUMB_INLINE void store_partial(float* p, f32 v, std::size_t n) noexcept {
        float x[4];
        vst1q_f32(x, v);
        for (std::size_t i = 0; i < n; ++i)
            p[i] = x[i];
    }
    static CRUMB_INLINE f32 load(const half* p) noexcept {
        return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p))));
    }
    static CRUMB_INLINE f32 load(const bf16* p) noexcept {
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p)), 16));
    }
    static CRUMB_INLINE void store(half* p, f32 x) noexcept {
        vst1_u16(reinterpret_cast<std::uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(x)));
    }
    static CRUMB_INLINE f32 add(f32 a, f32 b) noexcept { return vaddq_f32(a, b); }
    static CRUMB_INLINE f32 sub(f32 a, f32 b) noexcept { return vsubq_f32(a, b); }
    static CRUMB_INLINE f32 mul(f32 a, f32 b) noexcept { return vmulq_f32(a, b); }
    static CRUMB_INLINE f32 mul_rounded(f32 a, f32 b) noexcept {
        f32 x = mul(a, b);
        CRUMB_ROUND_PRODUCT(x);
        return x;
    }
    static CRUMB_INLINE f32 div(f32 a, f32 b) noexcept { return vdivq_f32(a, b); }
    static CRUMB_INLINE f32 fma(f32 a, f32 b, f32 c) noexcept { return vfmaq_f32(c, a, b); }
    static CRUMB_INLINE f32 min(f32 a, f32 b) noexcept { return vminq_f32(a, b); }
    static CRUMB_INLINE f32 max(f32 a, f32 b) noexcept { return vmaxq_f32(a, b); }
    static CRUMB_INLINE f32 sqrt(f32 a) noexcept { return vsqrtq_f32(a); }
    static CRUMB_INLINE f32 abs(f32 a) noexcept { return vabsq_f32(a); }
    static CRUMB_INLINE f32 copy_sign(f32 magnitude, f32 sign) noexcept {
        return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
    }
    static CRUMB_INLINE f32 select_less(f32 a, f32 b, f32 yes, f32 no) noexcept {
        return vbslq_f32(vcltq_f32(a, b), yes, no);
    }
    static CRUMB_INLINE float sum(f32 a) noexcept { return vaddvq_f32(a); }
    static CRUMB_INLINE float maximum(f32 a) noexcept { return vmaxvq_f32(a); }

    static CRUMB_INLINE void sum4(f32 a, f32 b, f32 c, f32 d, float* out) noexcept {
        vst1q_f32(out, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
    }
    static CRUMB_INLINE void load_pairs(const float* p, f32& even, f32& odd) noexcept {
        const float32x4x2_t x = vld2q_f32(p);
        even = x.val[0];
        odd = x.val[1];
    }
    static CRUMB_INLINE void store_pairs(float* p, f32 even, f32 odd) noexcept {
        const float32x4x2_t pairs = {{even, odd}};
        vst2q_f32(p, pairs);
    }

    // ---- doubles ----
    static CRUMB_INLINE f64 set1_f64(double x) noexcept { return vdupq_n_f64(x); }
    static CRUMB_INLINE f64 load(const double* p) noexcept { return vld1q_f64(p); }
    static CRUMB_INLINE void store(double* p, f64 x) noexcept { vst1q_f64(p, x); }
    static CRUMB_INLINE f64 sub(f64 a, f64 b) noexcept { return vsubq_f64(a, b); }
    static CRUMB_INLINE f64 mul_rounded(f64 a, f64 b) noexcept {
        f64 x = vmulq_f64(a, b);
        CRUMB_ROUND_PRODUCT(x);
        return x;
    }

    // ---- integers ----
    static CRUMB_INLINE i32 set1_i32(std::int32_t x) noexcept { return vdupq_n_s32(x); }
    static CRUMB_INLINE i32 add_i32(i32 a, i32 b) noexcept { return vaddq_s32(a, b); }
    /// 16-bit numbers of a lane whose products `add_products` adds; 1: the lane is one number.
    static constexpr int products = 1;
    static CRUMB_INLINE i32 add_products(i32 sum, i32 a, i32 b) noexcept { return vmlaq_s32(sum, a, b); }
    static CRUMB_INLINE i32 min_i32(i32 a, i32 b) noexcept { return vminq_s32(a, b); }
    static CRUMB_INLINE i32 max_i32(i32 a, i32 b) noexcept { return vmaxq_s32(a, b); }
    static CRUMB_INLINE std::int32_t maximum_i32(i32 a) noexcept { return vmaxvq_s32(a); }
    static CRUMB_INLINE i32 magnitude_bits(f32 a) noexcept { return as_i32(vabsq_f32(a)); }
    static CRUMB_INLINE i32 round_to_i32(f32 a) noexcept { return vcvtnq_s32_f32(a); }
    static CRUMB_INLINE f32 to_f32(i32 a) noexcept { return vcvtq_f32_s32(a); }
    static CRUMB_INLINE f32 power_of_two(i32 n) noexcept {
        return as_f32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
    }
    static CRUMB_INLINE f32 as_f32(i32 a) noexcept { return vreinterpretq_f32_s32(a); }
    static CRUMB_INLINE i32 as_i32(f32 a) noexcept { return vreinterpretq_s32_f32(a); }

    // ---- codes ----
    static CRUMB_INLINE bytes load_bytes(const std::uint8_t* p) noexcept { return vld1q_u8(p); }
    static CRUMB_INLINE act load_act(const std::int8_t* p) noexcept { return vld1q_s8(p); }

    // ---- scales and selectors ----
    static CRUMB_INLINE f32 load_integers(const std::int8_t* p) noexcept {
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(load_four(p))))));
    }
    /// Codes First .. First + lanes - 1 of a group of `Group`, 0 .. 2^Bits - 1: a group of 32 has the order
    /// of `stored_indices<Bits>`, one of 64 that of blocks in a cache.
    template <int Bits, int First, int Group = 32>
    static CRUMB_INLINE f32 load_field(const std::uint8_t* p) noexcept {
        constexpr int stored = Group * Bits / 8; // bytes, each with codes so far apart
        const uint8x8_t four =
            vreinterpret_u8_u32(load_four(reinterpret_cast<const std::int8_t*>(p) + First % stored));
        const uint32x4_t wide = vmovl_u16(vget_low_u16(vmovl_u8(four)));
        const uint32x4_t low = First < stored ? wide : vshlq_u32(wide, vdupq_n_s32(-(First / stored * Bits)));
        // Nothing is above the last code of a byte.
        constexpr bool last = (First / stored + 1) * Bits == 8;
        return vcvtq_f32_u32(last ? low : vandq_u32(low, vdupq_n_u32((1u << Bits) - 1u)));
    }
    static CRUMB_INLINE f32 load_powers(const std::uint8_t* p) noexcept {
        const uint16x8_t e = vmovl_u8(vreinterpret_u8_u32(load_four(p)));
        return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(e)), 23));
    }
    /// The low nibble of each channel's scale in both nibbles of the channel's four bytes.
    static CRUMB_INLINE bytes spread_low_nibbles(const half* p) noexcept {
        const uint8x8_t scales = vreinterpret_u8_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p)));
        return spread(vuzp1_u8(scales, scales));
    }
    static CRUMB_INLINE bytes spread_low_nibbles(const std::int8_t* p) noexcept {
        return spread(vreinterpret_u8_u32(load_four(p)));
    }
    /// The bits of `Mask` of each byte from a, the others from b.
    template <int Mask>
    static CRUMB_INLINE bytes select_bits(bytes a, bytes b) noexcept {
        return vbslq_u8(vdupq_n_u8(Mask), a, b);
    }
    template <int N>
    static CRUMB_INLINE bytes shift_left(bytes a) noexcept {
        return vshlq_n_u8(a, N);
    }
    template <int N>
    static CRUMB_INLINE bytes shift_right(bytes a) noexcept {
        return vshrq_n_u8(a, N);
    }

    static CRUMB_INLINE void round_group(const float* x, float inverse, std::int8_t* out) noexcept {
        vst1q_s8(out, round_16(x, inverse));
        vst1q_s8(out + 16, round_16(x + 16, inverse));
    }
    /// As `round_group`, the chunks of 8 codes `stride` bytes apart. NaN becomes 0.
    static CRUMB_INLINE void round_chunks(const float* x, float inverse, std::int8_t* to,
                                          std::size_t stride) noexcept {
        CRUMB_UNROLL
        for (int i = 0; i < 2; ++i) {
            const int64x2_t codes = vreinterpretq_s64_s8(round_16(x + 16 * i, inverse));
            vst1q_lane_s64(reinterpret_cast<std::int64_t*>(to), codes, 0);
            vst1q_lane_s64(reinterpret_cast<std::int64_t*>(to + stride), codes, 1);
            to += 2 * stride;
        }
    }
    static CRUMB_INLINE int8x16_t round_16(const float* x, float inverse) noexcept {
        const int32x4_t q0 = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), inverse));
        const int32x4_t q1 = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4), inverse));
        const int32x4_t q2 = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 8), inverse));
        const int32x4_t q3 = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 12), inverse));
        const int16x8_t h0 = vuzp1q_s16(vreinterpretq_s16_s32(q0), vreinterpretq_s16_s32(q1));
        const int16x8_t h1 = vuzp1q_s16(vreinterpretq_s16_s32(q2), vreinterpretq_s16_s32(q3));
        return vuzp1q_s8(vreinterpretq_s8_s16(h0), vreinterpretq_s8_s16(h1));
    }
    /// The largest magnitude's bits in each of four groups of 32.
    static CRUMB_INLINE i32 largest_of_four(const float* x) noexcept {
        i32 most[4];
        CRUMB_UNROLL
        for (int g = 0; g < 4; ++g) {
            most[g] = magnitude_bits(load(x + 32 * g));
            CRUMB_UNROLL
            for (int i = 4; i < 32; i += 4)
                most[g] = max_i32(most[g], magnitude_bits(load(x + 32 * g + i)));
        }
        return vpmaxq_s32(vpmaxq_s32(most[0], most[1]), vpmaxq_s32(most[2], most[3]));
    }
    static CRUMB_INLINE i32 select_less_i32(i32 a, i32 b, i32 yes, i32 no) noexcept {
        return vbslq_s32(vcltq_s32(a, b), yes, no);
    }
    static CRUMB_INLINE std::int32_t sum_group(const std::int8_t* codes) noexcept {
        const int16x8_t s = vpaddlq_s8(vld1q_s8(codes));
        return vaddlvq_s16(vpadalq_s8(s, vld1q_s8(codes + 16)));
    }

    /// Operands of nibble tiles: 16 times the code, by one shift or one mask.
    struct nibble_operands {
        static constexpr float factor = 0.0625f;
        template <int X>
        static CRUMB_INLINE int8x16_t expand(bytes raw) noexcept {
            if constexpr (X == 0)
                return vreinterpretq_s8_u8(vshlq_n_u8(raw, 4));
            else
                return vreinterpretq_s8_u8(vandq_u8(raw, vdupq_n_u8(0xf0)));
        }
    };
    /// Operands of byte tiles: the code.
    struct byte_operands {
        static constexpr float factor = 1;
        template <int>
        static CRUMB_INLINE int8x16_t expand(bytes raw) noexcept {
            return vreinterpretq_s8_u8(raw);
        }
    };

    /// Operands of indices: entries of a table of 16.
    struct table_operands {
        using table = int8x16_t;
        static CRUMB_INLINE table load_table(const std::int8_t* entries) noexcept {
            return vld1q_s8(entries);
        }
        template <int X>
        static CRUMB_INLINE int8x16_t look_up(table t, bytes cells) noexcept {
            if constexpr (X == 0)
                return vqtbl1q_s8(t, vandq_u8(cells, vdupq_n_u8(15)));
            else
                return vqtbl1q_s8(t, vshrq_n_u8(cells, 4));
        }
    };

    /// Channels 0 and 1 of a register, and channels 2 and 3: sums that still lie in 2 or 4 lanes per channel.
    template <class T>
    struct split_sums {
        T low, high;
    };
    static CRUMB_INLINE int8x16_t lane_of(act a, int lane) noexcept {
        const int32x4_t four = vreinterpretq_s32_s8(a);
        return vreinterpretq_s8_s32(lane == 0   ? vdupq_laneq_s32(four, 0)
                                    : lane == 1 ? vdupq_laneq_s32(four, 1)
                                    : lane == 2 ? vdupq_laneq_s32(four, 2)
                                                : vdupq_laneq_s32(four, 3));
    }

    // Codes themselves: eight products of at most 8 * 127 share a 16-bit lane, a whole group.
    struct nibbles {
        static constexpr int offset = 0;
        static constexpr float factor = 1;
        using operand = int8x16_t;
        using acc = split_sums<int16x8_t>;
        template <int X>
        static CRUMB_INLINE operand expand(bytes raw) noexcept {
            const int8x16_t w = vreinterpretq_s8_u8(raw);
            return vshrq_n_s8(X == 0 ? vshlq_n_s8(w, 4) : w, 4);
        }
        static CRUMB_INLINE acc start() noexcept { return {vdupq_n_s16(0), vdupq_n_s16(0)}; }
        /// `start` and `step`: GCC would add to registers full of zeros.
        template <int Half>
        static CRUMB_INLINE acc first(operand w0, operand w1, act a) noexcept {
            const int8x16_t a0 = lane_of(a, 2 * Half), a1 = lane_of(a, 2 * Half + 1);
            return {vmlal_s8(vmull_s8(vget_low_s8(w0), vget_low_s8(a0)), vget_low_s8(w1), vget_low_s8(a1)),
                    vmlal_high_s8(vmull_high_s8(w0, a0), w1, a1)};
        }
        template <int Half>
        static CRUMB_INLINE void step(acc& s, operand w0, operand w1, act a) noexcept {
            const int8x16_t a0 = lane_of(a, 2 * Half), a1 = lane_of(a, 2 * Half + 1);
            s.low = vmlal_s8(s.low, vget_low_s8(w0), vget_low_s8(a0));
            s.high = vmlal_high_s8(s.high, w0, a0);
            s.low = vmlal_s8(s.low, vget_low_s8(w1), vget_low_s8(a1));
            s.high = vmlal_high_s8(s.high, w1, a1);
        }
        static CRUMB_INLINE i32 finish(const acc& s) noexcept {
            return vpaddq_s32(vpaddlq_s16(s.low), vpaddlq_s16(s.high));
        }
    };
    // Two products of at most 128 * 127 share a 16-bit lane; pairs of lanes belong to one channel until the
    // end.
    struct int8s : byte_operands {
        static constexpr int offset = 0;
        using operand = int8x16_t;
        using acc = split_sums<int32x4_t>;
        static CRUMB_INLINE acc start() noexcept { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
        template <int Half>
        static CRUMB_INLINE acc first(operand w0, operand w1, act a) noexcept {
            const split_sums<int16x8_t> p = products<Half>(w0, w1, a);
            return {vpaddlq_s16(p.low), vpaddlq_s16(p.high)};
        }
        template <int Half>
        static CRUMB_INLINE void step(acc& s, operand w0, operand w1, act a) noexcept {
            const split_sums<int16x8_t> p = products<Half>(w0, w1, a);
            s.low = vpadalq_s16(s.low, p.low);
            s.high = vpadalq_s16(s.high, p.high);
        }
        template <int Half>
        static CRUMB_INLINE split_sums<int16x8_t> products(operand w0, operand w1, act a) noexcept {
            return nibbles::first<Half>(w0, w1, a);
        }
        static CRUMB_INLINE i32 finish(const acc& s) noexcept { return vpaddq_s32(s.low, s.high); }
    };
    struct lookups : int8s, table_operands {};

    using pq = kernel::pq_neon; ///< primitives of scans of product-quantized codes
    using four_rows = kernel::four_rows_neon;

  private:
    static CRUMB_INLINE uint32x2_t load_four(const void* p) noexcept {
        std::uint32_t four;
        __builtin_memcpy(&four, p, sizeof four);
        return vdup_n_u32(four);
    }
    static CRUMB_INLINE bytes spread(uint8x8_t low) noexcept {
        const uint8x16_t owner = vreinterpretq_u8_u32(uint32x4_t{0, 0x01010101, 0x02020202, 0x03030303});
        return vqtbl1q_u8(vcombine_u8(vsli_n_u8(low, low, 4), low), owner);
    }
};

} // namespace crumb::inline CRUMB_ABI::isa

#endif
