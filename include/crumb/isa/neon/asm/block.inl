// Blocks of 8 rows times four channels by SDOT in assembly: two pairs of rows at a time, no spills.
//
// v0-v7 weights of four inputs each | v8 their scales | v9 origin | v10-v17 activations of two pairs
// v18, v19 activation scales | v20-v23 sums | v24-v31 totals
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_dotprod
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

// clang-format off
#define CRUMB_NIBBLES \
    "ldr q4, [%[codes]]\n" \
    "ldr q5, [%[codes], #64]\n" \
    "ldr q6, [%[codes], #128]\n" \
    "ldr q7, [%[codes], #192]\n" \
    "add %[codes], %[codes], #256\n" \
    "movi v20.16b, #0xf0\n" \
    "shl v0.16b, v4.16b, #4\n" \
    "shl v1.16b, v5.16b, #4\n" \
    "shl v2.16b, v6.16b, #4\n" \
    "shl v3.16b, v7.16b, #4\n" \
    "and v4.16b, v4.16b, v20.16b\n" \
    "and v5.16b, v5.16b, v20.16b\n" \
    "and v6.16b, v6.16b, v20.16b\n" \
    "and v7.16b, v7.16b, v20.16b\n"
#define CRUMB_BYTES \
    "ldr q0, [%[codes]]\n" \
    "ldr q1, [%[codes], #64]\n" \
    "ldr q2, [%[codes], #128]\n" \
    "ldr q3, [%[codes], #192]\n" \
    "ldr q4, [%[codes], #256]\n" \
    "ldr q5, [%[codes], #320]\n" \
    "ldr q6, [%[codes], #384]\n" \
    "ldr q7, [%[codes], #448]\n" \
    "add %[codes], %[codes], #512\n"
// A chunk of 8 inputs: w0 and w1 times both rows of each pair.
#define CRUMB_CHUNK(w0, w1, a, b) \
    "sdot v20.4s, v" #w0 ".16b, v" #a ".4b[0]\n" \
    "sdot v21.4s, v" #w0 ".16b, v" #a ".4b[2]\n" \
    "sdot v22.4s, v" #w0 ".16b, v" #b ".4b[0]\n" \
    "sdot v23.4s, v" #w0 ".16b, v" #b ".4b[2]\n" \
    "sdot v20.4s, v" #w1 ".16b, v" #a ".4b[1]\n" \
    "sdot v21.4s, v" #w1 ".16b, v" #a ".4b[3]\n" \
    "sdot v22.4s, v" #w1 ".16b, v" #b ".4b[1]\n" \
    "sdot v23.4s, v" #w1 ".16b, v" #b ".4b[3]\n"
#define CRUMB_FOUR_ROWS(x0, x1, x2, x3, scales, t0, t1, t2, t3) \
    "ldp q10, q11, [%[x], #" #x0 "]\n" \
    "ldp q14, q15, [%[x], #" #x2 "]\n" \
    "ldp q20, q21, [%[constants]]\n" \
    "ldp q22, q23, [%[constants]]\n" \
    "ldp q12, q13, [%[x], #" #x1 "]\n" \
    "ldp q16, q17, [%[x], #" #x3 "]\n" \
    CRUMB_CHUNK(0, 1, 10, 14) \
    CRUMB_CHUNK(2, 3, 11, 15) \
    CRUMB_CHUNK(4, 5, 12, 16) \
    CRUMB_CHUNK(6, 7, 13, 17) \
    "fsub v20.4s, v20.4s, v9.4s\n" \
    "fsub v21.4s, v21.4s, v9.4s\n" \
    "fsub v22.4s, v22.4s, v9.4s\n" \
    "fsub v23.4s, v23.4s, v9.4s\n" \
    "fmul v20.4s, v20.4s, v" #scales ".s[0]\n" \
    "fmul v21.4s, v21.4s, v" #scales ".s[1]\n" \
    "fmul v22.4s, v22.4s, v" #scales ".s[2]\n" \
    "fmul v23.4s, v23.4s, v" #scales ".s[3]\n" \
    "fmla v" #t0 ".4s, v20.4s, v8.4s\n" \
    "fmla v" #t1 ".4s, v21.4s, v8.4s\n" \
    "fmla v" #t2 ".4s, v22.4s, v8.4s\n" \
    "fmla v" #t3 ".4s, v23.4s, v8.4s\n"
#define CRUMB_BLOCK(weights)                                                                                 \
    asm volatile("ldr q9, [%[constants]]\n"                                                                  \
                 "movi v24.16b, #0\n"                                                                        \
                 "movi v25.16b, #0\n"                                                                        \
                 "movi v26.16b, #0\n"                                                                        \
                 "movi v27.16b, #0\n"                                                                        \
                 "movi v28.16b, #0\n"                                                                        \
                 "movi v29.16b, #0\n"                                                                        \
                 "movi v30.16b, #0\n"                                                                        \
                 "movi v31.16b, #0\n"                                                                        \
                 "1:\n"                                                                                      \
                 "ldr d8, [%[scales]], #32\n"                                                                \
                 "ldp q18, q19, [%[x_scales]], #32\n" weights                                                \
                 "fcvtl v8.4s, v8.4h\n" CRUMB_FOUR_ROWS(0, 32, 64, 96, 18, 24, 25, 26, 27) CRUMB_FOUR_ROWS(  \
                     128, 160, 192, 224, 19, 28, 29, 30, 31) "add %[x], %[x], #256\n"                        \
                                                             "subs %[groups], %[groups], #1\n"               \
                                                             "b.ne 1b\n"                                     \
                                                             "str q24, [%[out]]\n"                           \
                                                             "str q25, [%[out], #64]\n"                      \
                                                             "str q26, [%[out], #128]\n"                     \
                                                             "str q27, [%[out], #192]\n"                     \
                                                             "str q28, [%[out], #256]\n"                     \
                                                             "str q29, [%[out], #320]\n"                     \
                                                             "str q30, [%[out], #384]\n"                     \
                                                             "str q31, [%[out], #448]\n"                     \
                 : [codes] "+r"(codes), [scales] "+r"(scales), [x] "+r"(x), [x_scales] "+r"(x_scales),       \
                   [groups] "+r"(groups)                                                                     \
                 : [constants] "r"(constants), [out] "r"(out)                                                \
                 : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", \
                   "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23",       \
                   "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")
// clang-format on

template <class Format, class Tile>
struct block_asm<isa::CRUMB_THIS_ISA, Format, Tile> : Tile {
    template <int Rows>
    static CRUMB_INLINE void block(const linear_args& args, std::size_t tile, std::size_t row,
                                   float* out) noexcept {
        if constexpr (Tile::plain_codes && Rows == 8) {
            if (args.groups != 0) {
                for (std::size_t v = 0; v < 4; ++v)
                    four_channels(args, tile, v, row, out + 4 * v);
                return;
            }
        }
        Tile::template block<Rows>(args, tile, row, out);
    }

  private:
    static constexpr std::int32_t o = activation_origin_bits;
    alignas(64) static constexpr std::int32_t constants[8] = {o, o, o, o, o, o, o, o};

    static CRUMB_INLINE void four_channels(const linear_args& args, std::size_t tile, std::size_t v,
                                           std::size_t row, float* out) noexcept {
        const std::uint8_t* codes = args.codes + tile * args.groups * Tile::code_bytes + 16 * v;
        const half* scales = args.scales + tile * args.groups * tile_channels + 4 * v;
        const std::int8_t* x = args.x_codes + row * args.groups * group_size;
        const float* x_scales = Tile::row_scales(args, row);
        std::size_t groups = args.groups;
        if constexpr (Tile::nibbles)
            CRUMB_BLOCK(CRUMB_NIBBLES);
        else
            CRUMB_BLOCK(CRUMB_BYTES);
    }
};

#undef CRUMB_NIBBLES
#undef CRUMB_BYTES
#undef CRUMB_CHUNK
#undef CRUMB_FOUR_ROWS
#undef CRUMB_BLOCK

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
