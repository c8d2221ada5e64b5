// Products of bytes with integers of 15 bits, in two planes of bytes, by SDOT. No loops but over registers.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_dotprod
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct byte_products_dotprod {
    static constexpr std::size_t from = 1;
    static constexpr std::size_t width = 32, sets = 1, tokens = 16;
    using reg = int8x16x2_t;
    using acc = int32x4_t;
    using f32 = float32x4_t;

    static CRUMB_INLINE acc zero() noexcept { return vdupq_n_s32(0); }
    static CRUMB_INLINE f32 to_f32(acc sum) noexcept { return vcvtq_f32_s32(sum); }

    // ---- scores ----
    static CRUMB_INLINE reg load(const std::int8_t* p) noexcept { return {{vld1q_s8(p), vld1q_s8(p + 16)}}; }
    static CRUMB_INLINE void by_quads(const reg* rows, reg* quads) noexcept {
        CRUMB_UNROLL
        for (int h = 0; h < 2; ++h) {
            const int32x4_t x[] = {words(rows[0].val[h]), words(rows[1].val[h]), words(rows[2].val[h]),
                                   words(rows[3].val[h])};
            const int64x2_t a = vreinterpretq_s64_s32(vtrn1q_s32(x[0], x[1])),
                            b = vreinterpretq_s64_s32(vtrn1q_s32(x[2], x[3])),
                            c = vreinterpretq_s64_s32(vtrn2q_s32(x[0], x[1])),
                            d = vreinterpretq_s64_s32(vtrn2q_s32(x[2], x[3]));
            quads[0].val[h] = vreinterpretq_s8_s64(vtrn1q_s64(a, b));
            quads[1].val[h] = vreinterpretq_s8_s64(vtrn1q_s64(c, d));
            quads[2].val[h] = vreinterpretq_s8_s64(vtrn2q_s64(a, b));
            quads[3].val[h] = vreinterpretq_s8_s64(vtrn2q_s64(c, d));
        }
    }
    static CRUMB_INLINE acc multiply(const reg* quads, const std::int8_t* query,
                                     std::size_t to_low) noexcept {
        acc high = zero(), low = zero();
        CRUMB_UNROLL
        for (int h = 0; h < 2; ++h) {
            const int8x16_t x = vld1q_s8(query + 16 * h), y = vld1q_s8(query + to_low + 16 * h);
            high = vdotq_laneq_s32(high, quads[0].val[h], x, 0);
            low = vdotq_laneq_s32(low, quads[0].val[h], y, 0);
            high = vdotq_laneq_s32(high, quads[1].val[h], x, 1);
            low = vdotq_laneq_s32(low, quads[1].val[h], y, 1);
            high = vdotq_laneq_s32(high, quads[2].val[h], x, 2);
            low = vdotq_laneq_s32(low, quads[2].val[h], y, 2);
            high = vdotq_laneq_s32(high, quads[3].val[h], x, 3);
            low = vdotq_laneq_s32(low, quads[3].val[h], y, 3);
        }
        return joined(high, low);
    }
    static CRUMB_INLINE f32 scales(const float* group) noexcept { return vld1q_f32(group); }
    static CRUMB_INLINE void store(const f32* sums, float step, float* out) noexcept {
        vst1q_f32(out, vmulq_n_f32(*sums, step));
    }

    // ---- values ----
    /// `row`: 8 channels of the first token, `weights`: its weight for the first query.
    template <std::size_t Queries>
    static CRUMB_INLINE void add(const std::int8_t* row, std::size_t stride, const std::int8_t* weights,
                                 std::size_t to_low, std::size_t to_next, acc* sum) noexcept {
        int8x16_t high[Queries], low[Queries];
        CRUMB_UNROLL
        for (std::size_t a = 0; a < Queries; ++a) {
            high[a] = vld1q_s8(weights + a * to_next);
            low[a] = vld1q_s8(weights + a * to_next + to_low);
        }
        add_four<Queries, 0>(row, stride, high, low, sum);
        add_four<Queries, 1>(row + 4 * stride, stride, high, low, sum);
        add_four<Queries, 2>(row + 8 * stride, stride, high, low, sum);
        add_four<Queries, 3>(row + 12 * stride, stride, high, low, sum);
    }
    static CRUMB_INLINE void finish(const acc* sum, f32& first, f32& second) noexcept {
        first = to_f32(joined(sum[0], sum[2]));
        second = to_f32(joined(sum[1], sum[3]));
    }
    static CRUMB_INLINE void round(const float* p, const float* d, std::int8_t* high,
                                   std::int8_t* low) noexcept {
        const int16x8_t a = round_8(p, d), b = round_8(p + 8, d + 8);
        const int16x8_t x = vrshrq_n_s16(a, 7), y = vrshrq_n_s16(b, 7);
        vst1q_s8(high, narrow(x, y));
        vst1q_s8(low, narrow(vsubq_s16(a, vshlq_n_s16(x, 7)), vsubq_s16(b, vshlq_n_s16(y, 7))));
    }

  private:
    static CRUMB_INLINE int32x4_t words(int8x16_t x) noexcept { return vreinterpretq_s32_s8(x); }
    static CRUMB_INLINE acc joined(acc high, acc low) noexcept {
        return vaddq_s32(vshlq_n_s32(high, 7), low);
    }
    /// Tokens 4 T and on of 16.
    template <std::size_t Queries, int T>
    static CRUMB_INLINE void add_four(const std::int8_t* row, std::size_t stride, const int8x16_t* high,
                                      const int8x16_t* low, acc* sum) noexcept {
        const int16x8_t a = vreinterpretq_s16_s8(vzip1q_s8(eight(row), eight(row + stride))),
                        b = vreinterpretq_s16_s8(vzip1q_s8(eight(row + 2 * stride), eight(row + 3 * stride)));
        const int8x16_t x = vreinterpretq_s8_s16(vzip1q_s16(a, b)),
                        y = vreinterpretq_s8_s16(vzip2q_s16(a, b));
        CRUMB_UNROLL
        for (std::size_t q = 0; q < Queries; ++q) {
            sum[4 * q] = vdotq_laneq_s32(sum[4 * q], x, high[q], T);
            sum[4 * q + 1] = vdotq_laneq_s32(sum[4 * q + 1], y, high[q], T);
            sum[4 * q + 2] = vdotq_laneq_s32(sum[4 * q + 2], x, low[q], T);
            sum[4 * q + 3] = vdotq_laneq_s32(sum[4 * q + 3], y, low[q], T);
        }
    }
    static CRUMB_INLINE int8x16_t eight(const std::int8_t* p) noexcept {
        return vcombine_s8(vld1_s8(p), vdup_n_s8(0));
    }
    static CRUMB_INLINE int16x8_t round_8(const float* p, const float* d) noexcept {
        const int32x4_t a = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(p), vld1q_f32(d))),
                        b = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(p + 4), vld1q_f32(d + 4)));
        return vuzp1q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
    }
    static CRUMB_INLINE int8x16_t narrow(int16x8_t a, int16x8_t b) noexcept {
        return vuzp1q_s8(vreinterpretq_s8_s16(a), vreinterpretq_s8_s16(b));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
