// SMMLA micro-kernel of int8 panels: 8 rows x 8 channels, int32 sums over a run of inputs, then one FMA.
namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct panel_product<isa::CRUMB_THIS_ISA> {
    /// out[r * stride + c] = fma(fl(float(sum) * x_scales[r]), w_scales[c], out[r * stride + c]) for 8 x 8.
    static CRUMB_NOINLINE void add(const panel_args& args, float* out, std::size_t stride) noexcept {
        alignas(64) std::int32_t sums[64];
        sum(args, sums);
        const float32x4_t d0 = vld1q_f32(args.w_scales), d1 = vld1q_f32(args.w_scales + 4);
        CRUMB_UNROLL
        for (int p = 0; p < 4; ++p) {
            float* first = out + static_cast<std::size_t>(2 * p) * stride;
            add_rows(sums + 16 * p, args.x_scales + 2 * p, d0, first, first + stride);
            add_rows(sums + 16 * p + 8, args.x_scales + 2 * p, d1, first + 4, first + stride + 4);
        }
    }

    /// sums[16 p + 4 q + {0, 1, 2, 3}]: rows 2 p and 2 p + 1 by channels 2 q and 2 q + 1.
    static CRUMB_INLINE void sum(const panel_args& args, std::int32_t* sums) noexcept {
#if CRUMB_ASM
        sum_asm(args, sums);
#else
        sum_intrinsics(args, sums);
#endif
    }
    static CRUMB_NOINLINE void sum_intrinsics(const panel_args& args, std::int32_t* sums) noexcept {
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
            x += args.x_stride;
        }
        CRUMB_UNROLL
        for (int i = 0; i < 16; ++i)
            vst1q_s32(sums + 4 * i, s[i]);
    }

  private:
    static CRUMB_INLINE void add_rows(const std::int32_t* sums, const float* x_scales, float32x4_t w_scales,
                                      float* row0, float* row1) noexcept {
        const int64x2_t a = vreinterpretq_s64_s32(vld1q_s32(sums));
        const int64x2_t b = vreinterpretq_s64_s32(vld1q_s32(sums + 4));
        const float32x4_t s0 = vcvtq_f32_s32(vreinterpretq_s32_s64(vzip1q_s64(a, b)));
        const float32x4_t s1 = vcvtq_f32_s32(vreinterpretq_s32_s64(vzip2q_s64(a, b)));
        vst1q_f32(row0, vfmaq_f32(vld1q_f32(row0), vmulq_n_f32(s0, x_scales[0]), w_scales));
        vst1q_f32(row1, vfmaq_f32(vld1q_f32(row1), vmulq_n_f32(s1, x_scales[1]), w_scales));
    }

#if CRUMB_ASM
// v0-v7 two chunks of four pairs of rows | v8-v15 two chunks of four pairs of channels | v16-v31 sums
// clang-format off
#define CRUMB_PAIR(a, w0, w1, w2, w3, s0, s1, s2, s3) \
    "smmla v" #s0 ".4s, v" #a ".16b, v" #w0 ".16b\n" \
    "smmla v" #s1 ".4s, v" #a ".16b, v" #w1 ".16b\n" \
    "smmla v" #s2 ".4s, v" #a ".16b, v" #w2 ".16b\n" \
    "smmla v" #s3 ".4s, v" #a ".16b, v" #w3 ".16b\n"
#define CRUMB_TWO_CHUNKS(x0, x1, x2, x3, w0, w1, w2, w3) \
    "ldp q8, q9, [%[w], #" w0 "]\n" \
    "ldp q0, q1, [%[x], #" x0 "]\n" \
    "ldp q10, q11, [%[w], #" w1 "]\n" \
    "ldp q2, q3, [%[x], #" x1 "]\n" \
    CRUMB_PAIR(0, 8, 9, 10, 11, 16, 17, 18, 19) \
    "ldp q4, q5, [%[x], #" x2 "]\n" \
    "ldp q6, q7, [%[x], #" x3 "]\n" \
    CRUMB_PAIR(2, 8, 9, 10, 11, 20, 21, 22, 23) \
    "ldp q12, q13, [%[w], #" w2 "]\n" \
    "ldp q14, q15, [%[w], #" w3 "]\n" \
    CRUMB_PAIR(4, 8, 9, 10, 11, 24, 25, 26, 27) \
    CRUMB_PAIR(6, 8, 9, 10, 11, 28, 29, 30, 31) \
    CRUMB_PAIR( 1, 12, 13, 14, 15, 16, 17, 18, 19) \
    CRUMB_PAIR(3, 12, 13, 14, 15, 20, 21, 22, 23) \
    CRUMB_PAIR(5, 12, 13, 14, 15, 24, 25, 26, 27) \
    CRUMB_PAIR(7, 12, 13, 14, 15, 28, 29, 30, 31)
#define CRUMB_CLEAR(s0, s1, s2, s3) \
    "movi v" #s0 ".16b, #0\n" \
    "movi v" #s1 ".16b, #0\n" \
    "movi v" #s2 ".16b, #0\n" \
    "movi v" #s3 ".16b, #0\n"
    // clang-format on
    static CRUMB_INLINE void sum_asm(const panel_args& args, std::int32_t* sums) noexcept {
        const std::int8_t *w = args.panel, *x = args.x;
        std::size_t left = args.inputs / group_size;
        asm volatile(
            CRUMB_CLEAR(16, 17, 18, 19) CRUMB_CLEAR(20, 21, 22, 23) CRUMB_CLEAR(24, 25, 26, 27) CRUMB_CLEAR(
                28, 29, 30, 31) "cbz %[left], 2f\n"
                                "1:\n" CRUMB_TWO_CHUNKS("0", "64", "128", "192", "0", "32", "64", "96")
                                    CRUMB_TWO_CHUNKS("32", "96", "160", "224", "128", "160", "192",
                                                     "224") "add %[w], %[w], #256\n"
                                                            "add %[x], %[x], %[stride]\n"
                                                            "subs %[left], %[left], #1\n"
                                                            "b.ne 1b\n"
                                                            "2:\n"
                                                            "stp q16, q17, [%[sums]]\n"
                                                            "stp q18, q19, [%[sums], #32]\n"
                                                            "stp q20, q21, [%[sums], #64]\n"
                                                            "stp q22, q23, [%[sums], #96]\n"
                                                            "stp q24, q25, [%[sums], #128]\n"
                                                            "stp q26, q27, [%[sums], #160]\n"
                                                            "stp q28, q29, [%[sums], #192]\n"
                                                            "stp q30, q31, [%[sums], #224]\n"
            : [w] "+r"(w), [x] "+r"(x), [left] "+r"(left)
            : [stride] "r"(args.x_stride), [sums] "r"(sums)
            : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",
              "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25",
              "v26", "v27", "v28", "v29", "v30", "v31");
    }
#undef CRUMB_PAIR
#undef CRUMB_TWO_CHUNKS
#undef CRUMB_CLEAR
#endif
};

} // namespace crumb::inline CRUMB_ABI::kernel
