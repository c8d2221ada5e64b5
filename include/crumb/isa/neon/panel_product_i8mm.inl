// SMMLA micro-kernel of int8 panels: 8 rows x 8 channels, int32 sums over a run of inputs, then one FMA.
// Loops:
//     groups > chunks of 8 inputs > pairs of rows > pairs of channels
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON_I8MM
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_i8mm
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct panel_product<isa::CRUMB_THIS_ISA> {
    /// t = fma(fl(float(sum) * x_scales[r]), w_scales[c], t) for 8 x 8 totals t, those of rows 2 p and 2 p +
    /// 1 by channels 2 q and 2 q + 1 at totals[16 p + 4 q + {0, 1, 2, 3}].
    static CRUMB_NOINLINE void add(const panel_args& args, float* totals) noexcept {
        add_inline(args, totals);
    }
    static CRUMB_INLINE void add_inline(const panel_args& args, float* totals) noexcept {
#if CRUMB_ASM
        add_asm(args, totals);
#else
        add_intrinsics(args, totals);
#endif
    }
    static CRUMB_NOINLINE void add_intrinsics(const panel_args& args, float* totals) noexcept {
        const std::int8_t *w = args.panel, *x = args.x;
        int32x4_t s[16];
        CRUMB_UNROLL
        for (int i = 0; i < 16; ++i)
            s[i] = vdupq_n_s32(0);
        for (std::size_t left = args.inputs / group_size; left != 0; --left) {
            CRUMB_UNROLL
            for (int chunk = 0; chunk < 4; ++chunk) {
                CRUMB_UNROLL
                for (int p = 0; p < 4; ++p) {
                    const int8x16_t a = vld1q_s8(x + 64 * p + 16 * chunk);
                    CRUMB_UNROLL
                    for (int q = 0; q < 4; ++q)
                        s[4 * p + q] = vmmlaq_s32(s[4 * p + q], a, vld1q_s8(w + 64 * chunk + 16 * q));
                }
            }
            w += 8 * group_size;
            x += 8 * group_size;
        }
        CRUMB_UNROLL
        for (int i = 0; i < 16; ++i)
            add_square(s[i], args.x_scales[i / 4 * 2], args.x_scales[i / 4 * 2 + 1],
                       args.w_scales + i % 4 * 2, totals + 4 * i);
    }

    /// Two rows by two channels.
    static CRUMB_INLINE void add_square(int32x4_t sums, float x0, float x1, const float* w_scales,
                                        float* totals) noexcept {
        const float32x4_t x_scale = vcombine_f32(vdup_n_f32(x0), vdup_n_f32(x1));
        const float32x2_t w_scale = vld1_f32(w_scales);
        vst1q_f32(totals, vfmaq_f32(vld1q_f32(totals), vmulq_f32(vcvtq_f32_s32(sums), x_scale),
                                    vcombine_f32(w_scale, w_scale)));
    }

#if CRUMB_ASM
  private:
// v0-v7 two chunks of four pairs of rows | v8-v15 two chunks of four pairs of channels | v16-v31 sums
//
// then v0-v7 totals | v8-v11 scales of the channels | v12-v15 scales of the rows
// clang-format off
#define CRUMB_PAIR(a, w0, w1, w2, w3, s0, s1, s2, s3) \
    "smmla v" #s0 ".4s, v" #a ".16b, v" #w0 ".16b\n" \
    "smmla v" #s1 ".4s, v" #a ".16b, v" #w1 ".16b\n" \
    "smmla v" #s2 ".4s, v" #a ".16b, v" #w2 ".16b\n" \
    "smmla v" #s3 ".4s, v" #a ".16b, v" #w3 ".16b\n"
#define CRUMB_TWO_CHUNKS(x0, x1, x2, x3) \
    "ld1 {v8.16b-v11.16b}, [%[w]], #64\n" \
    "ldp q0, q1, [%[x]" x0 "\n" \
    "ldp q2, q3, [%[x], #" x1 "]\n" \
    CRUMB_PAIR(0, 8, 9, 10, 11, 16, 17, 18, 19) \
    "ldp q4, q5, [%[x], #" x2 "]\n" \
    "ldp q6, q7, [%[x], #" x3 "]\n" \
    CRUMB_PAIR(2, 8, 9, 10, 11, 20, 21, 22, 23) \
    "ld1 {v12.16b-v15.16b}, [%[w]], #64\n" \
    CRUMB_PAIR(4, 8, 9, 10, 11, 24, 25, 26, 27) \
    CRUMB_PAIR(6, 8, 9, 10, 11, 28, 29, 30, 31) \
    CRUMB_PAIR(1, 12, 13, 14, 15, 16, 17, 18, 19) \
    CRUMB_PAIR(3, 12, 13, 14, 15, 20, 21, 22, 23) \
    CRUMB_PAIR(5, 12, 13, 14, 15, 24, 25, 26, 27) \
    CRUMB_PAIR(7, 12, 13, 14, 15, 28, 29, 30, 31)
#define CRUMB_GROUP \
    CRUMB_TWO_CHUNKS("], #256", "-192", "-128", "-64") \
    CRUMB_TWO_CHUNKS(", #-224]", "-160", "-96", "-32")
#define CRUMB_CLEAR(s0, s1, s2, s3) \
    "movi v" #s0 ".16b, #0\n" \
    "movi v" #s1 ".16b, #0\n" \
    "movi v" #s2 ".16b, #0\n" \
    "movi v" #s3 ".16b, #0\n"
#define CRUMB_FOUR(op, d0, d1, d2, d3, a0, a1, a2, a3, rest) \
    op " v" #d0 ".4s, v" #a0 ".4s" rest "\n" \
    op " v" #d1 ".4s, v" #a1 ".4s" rest "\n" \
    op " v" #d2 ".4s, v" #a2 ".4s" rest "\n" \
    op " v" #d3 ".4s, v" #a3 ".4s" rest "\n"
#define CRUMB_ADD(t0, t1, t2, t3, s0, s1, s2, s3, scale, at) \
    "ldp q" #t0 ", q" #t1 ", [%[totals], #" at "]\n" \
    "ldp q" #t2 ", q" #t3 ", [%[totals], #" at "+32]\n" \
    CRUMB_FOUR("scvtf", s0, s1, s2, s3, s0, s1, s2, s3, "") \
    CRUMB_FOUR("fmul", s0, s1, s2, s3, s0, s1, s2, s3, ", v" #scale ".4s") \
    "fmla v" #t0 ".4s, v" #s0 ".4s, v8.4s\n" \
    "fmla v" #t1 ".4s, v" #s1 ".4s, v9.4s\n" \
    "fmla v" #t2 ".4s, v" #s2 ".4s, v10.4s\n" \
    "fmla v" #t3 ".4s, v" #s3 ".4s, v11.4s\n" \
    "stp q" #t0 ", q" #t1 ", [%[totals], #" at "]\n" \
    "stp q" #t2 ", q" #t3 ", [%[totals], #" at "+32]\n"
#define CRUMB_ADD_ALL \
    "ldp q0, q1, [%[x_scales]]\n" \
    "ld1r {v8.2d}, [%[w_scales]], #8\n" \
    "ld1r {v9.2d}, [%[w_scales]], #8\n" \
    "ld1r {v10.2d}, [%[w_scales]], #8\n" \
    "ld1r {v11.2d}, [%[w_scales]]\n" \
    "zip1 v12.4s, v0.4s, v0.4s\n" \
    "zip2 v13.4s, v0.4s, v0.4s\n" \
    "zip1 v14.4s, v1.4s, v1.4s\n" \
    "zip2 v15.4s, v1.4s, v1.4s\n" \
    CRUMB_ADD(0, 1, 2, 3, 16, 17, 18, 19, 12, "0") \
    CRUMB_ADD(4, 5, 6, 7, 20, 21, 22, 23, 13, "64") \
    CRUMB_ADD(0, 1, 2, 3, 24, 25, 26, 27, 14, "128") \
    CRUMB_ADD(4, 5, 6, 7, 28, 29, 30, 31, 15, "192")
    // clang-format on
    static CRUMB_INLINE void add_asm(const panel_args& args, float* totals) noexcept {
        const std::int8_t *w = args.panel, *x = args.x;
        const float* w_scales = args.w_scales;
        std::size_t left = args.inputs / group_size;
        // Four groups a pass, what is left over first.
        asm volatile(CRUMB_CLEAR(16, 17, 18, 19) CRUMB_CLEAR(20, 21, 22, 23) CRUMB_CLEAR(24, 25, 26, 27)
                         CRUMB_CLEAR(28, 29, 30, 31) "1:\n"
                                                     "tst %[left], #3\n"
                                                     "b.eq 2f\n" CRUMB_GROUP "sub %[left], %[left], #1\n"
                                                     "b 1b\n"
                                                     "2:\n"
                                                     "cbz %[left], 4f\n"
                                                     "3:\n" CRUMB_GROUP CRUMB_GROUP CRUMB_GROUP CRUMB_GROUP
                                                     "subs %[left], %[left], #4\n"
                                                     "b.ne 3b\n"
                                                     "4:\n" CRUMB_ADD_ALL
                     : [w] "+r"(w), [x] "+r"(x), [left] "+r"(left), [w_scales] "+r"(w_scales)
                     : [x_scales] "r"(args.x_scales), [totals] "r"(totals)
                     : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10",
                       "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22",
                       "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31");
    }
#undef CRUMB_PAIR
#undef CRUMB_TWO_CHUNKS
#undef CRUMB_GROUP
#undef CRUMB_CLEAR
#undef CRUMB_FOUR
#undef CRUMB_ADD
#undef CRUMB_ADD_ALL
#endif
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
