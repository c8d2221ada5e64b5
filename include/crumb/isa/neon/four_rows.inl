// Codes of four neurons at a time for NEON: a register of 16 bytes each. Loops: registers of a tile.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct four_rows_neon {
    using reg = uint8x16x4_t;

    static CRUMB_INLINE reg load(const std::uint8_t* const* at) noexcept {
        return {{vld1q_u8(at[0]), vld1q_u8(at[1]), vld1q_u8(at[2]), vld1q_u8(at[3])}};
    }
    static CRUMB_INLINE reg load_twice(const std::uint8_t* const* at) noexcept {
        return each([&](int r) {
            const uint8x8_t x = vld1_u8(at[r]);
            return vcombine_u8(x, x);
        });
    }
    template <int Half>
    static CRUMB_INLINE reg nibbles(const reg& x) noexcept {
        return each(
            [&](int r) { return Half == 0 ? vandq_u8(x.val[r], vdupq_n_u8(15)) : vshrq_n_u8(x.val[r], 4); });
    }
    template <int Half>
    static CRUMB_INLINE reg pairs(const reg& x) noexcept {
        const int8x16_t by = vcombine_s8(vdup_n_s8(-4 * Half), vdup_n_s8(-4 * Half - 2));
        return each([&](int r) { return vandq_u8(vshlq_u8(x.val[r], by), vdupq_n_u8(3)); });
    }
    static CRUMB_INLINE reg look_up(const reg& tables, const reg& indices) noexcept {
        return each([&](int r) { return vqtbl1q_u8(tables.val[r], indices.val[r]); });
    }
    static CRUMB_INLINE reg same(const std::int8_t* sixteen) noexcept {
        const uint8x16_t x = vreinterpretq_u8_s8(vld1q_s8(sixteen));
        return {{x, x, x, x}};
    }
    static CRUMB_INLINE reg scaled(const reg& x, const std::int16_t* factors, std::size_t stride) noexcept {
        return each([&](int r) {
            const int8x16_t codes = vreinterpretq_s8_u8(x.val[r]);
            const int16x8_t low =
                vqrdmulhq_n_s16(vmovl_s8(vget_low_s8(codes)), factors[stride * static_cast<std::size_t>(r)]);
            const int16x8_t high =
                vqrdmulhq_n_s16(vmovl_high_s8(codes), factors[stride * static_cast<std::size_t>(r)]);
            return vreinterpretq_u8_s8(vqmovn_high_s16(vqmovn_s16(low), high));
        });
    }
    static CRUMB_INLINE void store_columns(std::uint8_t* to, const reg& x) noexcept { vst4q_u8(to, x); }
    static CRUMB_INLINE void store_tile(std::uint8_t* to, const reg* x) noexcept {
        CRUMB_UNROLL
        for (int q = 0; q < 4; ++q)
            store_fours(to + 16 * q, x[q]);
    }

    static CRUMB_INLINE void combine(std::uint8_t* codes, const std::int8_t* others,
                                     const std::int16_t* factors,
                                     const std::int16_t* other_factors) noexcept {
        for (std::size_t i = 0; i < tile_row_bytes; i += 16) {
            const int16x8_t x = vreinterpretq_s16_u8(vld1q_u8(codes + i));
            const int16x8_t y = vreinterpretq_s16_s8(vld1q_s8(others + i));
            const int16x8_t mx = twice(factors + i / 4), my = twice(other_factors + i / 4);
            const int16x8_t high = vdupq_n_s16(static_cast<std::int16_t>(0xff00));
            const int16x8_t even =
                vaddq_s16(vqrdmulhq_s16(vshlq_n_s16(x, 8), mx), vqrdmulhq_s16(vshlq_n_s16(y, 8), my));
            const int16x8_t odd =
                vaddq_s16(vqrdmulhq_s16(vandq_s16(x, high), mx), vqrdmulhq_s16(vandq_s16(y, high), my));
            const int8x16_t low = vreinterpretq_s8_s16(vrshrq_n_s16(even, 7));
            const int8x16_t up = vreinterpretq_s8_s16(vrshrq_n_s16(odd, 7));
            vst1q_u8(codes + i, vreinterpretq_u8_s8(vtrn1q_s8(low, up)));
        }
    }

    struct sums {
        int16x8_t of[4];
    };
    static CRUMB_INLINE sums start(std::int16_t x) noexcept {
        const int16x8_t all = vdupq_n_s16(x);
        return {{all, all, all, all}};
    }
    static CRUMB_INLINE void add_products(sums& s, const std::uint8_t* const* at,
                                          const std::int8_t* factors) noexcept {
        CRUMB_UNROLL
        for (int r = 0; r < 4; ++r) {
            const uint8x16_t x = vld1q_u8(at[r]);
            const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(15)));
            const int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(x, 4));
            const int8x16_t by = vld1q_dup_s8(factors + r);
            s.of[0] = vmlal_s8(s.of[0], vget_low_s8(low), vget_low_s8(by));
            s.of[1] = vmlal_high_s8(s.of[1], low, by);
            s.of[2] = vmlal_s8(s.of[2], vget_low_s8(high), vget_low_s8(by));
            s.of[3] = vmlal_high_s8(s.of[3], high, by);
        }
    }
    template <int V>
    static CRUMB_INLINE float32x4_t columns(const sums& s) noexcept {
        const int16x8_t x = s.of[V / 2];
        return vcvtq_f32_s32(V % 2 == 0 ? vmovl_s16(vget_low_s16(x)) : vmovl_high_s16(x));
    }
    static CRUMB_INLINE void store_factors(std::int8_t* to, const int32x4_t* x) noexcept {
        const int32x4_t two = vsliq_n_s32(vsliq_n_s32(x[0], x[1], 8), x[2], 16);
        vst1q_s8(to, vreinterpretq_s8_s32(vsliq_n_s32(two, x[3], 24)));
    }

  private:
    /// to[64 j + 4 r + i] = byte 4 j + i of row r.
    static CRUMB_INLINE void store_fours(std::uint8_t* to, const reg& x) noexcept {
        const uint32x4_t r0 = vreinterpretq_u32_u8(x.val[0]), r1 = vreinterpretq_u32_u8(x.val[1]);
        const uint32x4_t r2 = vreinterpretq_u32_u8(x.val[2]), r3 = vreinterpretq_u32_u8(x.val[3]);
        const uint64x2_t a = vreinterpretq_u64_u32(vzip1q_u32(r0, r1));
        const uint64x2_t b = vreinterpretq_u64_u32(vzip1q_u32(r2, r3));
        const uint64x2_t c = vreinterpretq_u64_u32(vzip2q_u32(r0, r1));
        const uint64x2_t d = vreinterpretq_u64_u32(vzip2q_u32(r2, r3));
        vst1q_u8(to, vreinterpretq_u8_u64(vzip1q_u64(a, b)));
        vst1q_u8(to + tile_row_bytes, vreinterpretq_u8_u64(vzip2q_u64(a, b)));
        vst1q_u8(to + 2 * tile_row_bytes, vreinterpretq_u8_u64(vzip1q_u64(c, d)));
        vst1q_u8(to + 3 * tile_row_bytes, vreinterpretq_u8_u64(vzip2q_u64(c, d)));
    }
    template <class F>
    static CRUMB_INLINE reg each(F f) noexcept {
        return {{f(0), f(1), f(2), f(3)}};
    }
    static CRUMB_INLINE int16x8_t twice(const std::int16_t* four) noexcept {
        const int16x4_t x = vld1_s16(four);
        return vcombine_s16(vzip1_s16(x, x), vzip2_s16(x, x));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
