// Blocks of 16 and 8 rows times four channels by SMMLA in assembly: all totals in registers, no spills.
//
// v0-v7 weights: v0, v1 chunk 0 of channels 0 and 1, 2 and 3; v2, v3 chunk 1; ... | v8, v9 their scales
// v10, v11 activations | v12, v13 sums | v14 activation scales or mask | v15 origin | v16-v31 totals
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON_I8MM
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_i8mm
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

// clang-format off
#define CRUMB_ZIP(r0, r1, low, high) \
    "ldr q10, [%[codes], #" #r0 "]\n" \
    "ldr q11, [%[codes], #" #r1 "]\n" \
    "zip1 v" #low ".4s, v10.4s, v11.4s\n" \
    "zip2 v" #high ".4s, v10.4s, v11.4s\n"
#define CRUMB_HIGH_AND_LOW(high, from) \
    "and v" #high ".16b, v" #from ".16b, v14.16b\n" \
    "shl v" #from ".16b, v" #from ".16b, #4\n"
#define CRUMB_NIBBLES \
    CRUMB_ZIP(0, 64, 0, 1) \
    CRUMB_ZIP(128, 192, 2, 3) \
    "add %[codes], %[codes], #256\n" \
    "movi v14.16b, #0xf0\n" \
    CRUMB_HIGH_AND_LOW(4, 0) \
    CRUMB_HIGH_AND_LOW(5, 1) \
    CRUMB_HIGH_AND_LOW(6, 2) \
    CRUMB_HIGH_AND_LOW(7, 3)
#define CRUMB_BYTES \
    CRUMB_ZIP(0, 64, 0, 1) \
    CRUMB_ZIP(128, 192, 2, 3) \
    CRUMB_ZIP(256, 320, 4, 5) \
    CRUMB_ZIP(384, 448, 6, 7) \
    "add %[codes], %[codes], #512\n"
#define CRUMB_SCALES \
    "ldr d8, [%[scales]], #32\n" \
    "fcvtl v8.4s, v8.4h\n" \
    "zip2 v9.2d, v8.2d, v8.2d\n" \
    "zip1 v8.2d, v8.2d, v8.2d\n"
#define CRUMB_SMMLA(x, w0, w1) \
    "smmla v12.4s, v" #x ".16b, v" #w0 ".16b\n" \
    "smmla v13.4s, v" #x ".16b, v" #w1 ".16b\n"
// A pair of rows: its codes are at `x`, 32 bytes on at `x1`, its scales at `s`; each address may step its
// register.
#define CRUMB_PAIR(x, x1, s, t0, t1) \
    "ldp q10, q11, [%[x]" x "\n" \
    "ldp q12, q13, [%[constants]]\n" \
    CRUMB_SMMLA(10, 0, 1) \
    CRUMB_SMMLA(11, 2, 3) \
    "ldp q10, q11, [%[x], #" x1 "]\n" \
    "ldr q14, [%[x_scales]" s "\n" \
    CRUMB_SMMLA(10, 4, 5) \
    CRUMB_SMMLA(11, 6, 7) \
    "fsub v12.4s, v12.4s, v15.4s\n" \
    "fsub v13.4s, v13.4s, v15.4s\n" \
    "fmul v12.4s, v12.4s, v14.4s\n" \
    "fmul v13.4s, v13.4s, v14.4s\n" \
    "fmla v" #t0 ".4s, v12.4s, v8.4s\n" \
    "fmla v" #t1 ".4s, v13.4s, v9.4s\n"
#define CRUMB_16_ROWS \
    CRUMB_PAIR("], #512", "-480", "], #128", 16, 17) \
    CRUMB_PAIR(", #-448]", "-416", ", #-112]", 18, 19) \
    CRUMB_PAIR(", #-384]", "-352", ", #-96]", 20, 21) \
    CRUMB_PAIR(", #-320]", "-288", ", #-80]", 22, 23) \
    CRUMB_PAIR(", #-256]", "-224", ", #-64]", 24, 25) \
    CRUMB_PAIR(", #-192]", "-160", ", #-48]", 26, 27) \
    CRUMB_PAIR(", #-128]", "-96", ", #-32]", 28, 29) \
    CRUMB_PAIR(", #-64]", "-32", ", #-16]", 30, 31)
#define CRUMB_8_ROWS \
    CRUMB_PAIR("], #256", "-224", "], #64", 16, 17) \
    CRUMB_PAIR(", #-192]", "-160", ", #-48]", 18, 19) \
    CRUMB_PAIR(", #-128]", "-96", ", #-32]", 20, 21) \
    CRUMB_PAIR(", #-64]", "-32", ", #-16]", 22, 23)
#define CRUMB_CLEAR(t0, t1) \
    "movi v" #t0 ".16b, #0\n" \
    "movi v" #t1 ".16b, #0\n"
#define CRUMB_STORE(t0, t1, at) \
    "zip1 v0.2d, v" #t0 ".2d, v" #t1 ".2d\n" \
    "zip2 v1.2d, v" #t0 ".2d, v" #t1 ".2d\n" \
    "str q0, [%[out], #" #at "]\n" \
    "str q1, [%[out], #" #at "+64]\n"
#define CRUMB_CLEAR_8 CRUMB_CLEAR(16, 17) CRUMB_CLEAR(18, 19) CRUMB_CLEAR(20, 21) CRUMB_CLEAR(22, 23)
#define CRUMB_CLEAR_16 \
    CRUMB_CLEAR_8 \
    CRUMB_CLEAR(24, 25) \
    CRUMB_CLEAR(26, 27) \
    CRUMB_CLEAR(28, 29) \
    CRUMB_CLEAR(30, 31)
#define CRUMB_STORE_8 \
    CRUMB_STORE(16, 17, 0) \
    CRUMB_STORE(18, 19, 128) \
    CRUMB_STORE(20, 21, 256) \
    CRUMB_STORE(22, 23, 384)
#define CRUMB_STORE_16 \
    CRUMB_STORE_8 \
    CRUMB_STORE(24, 25, 512) \
    CRUMB_STORE(26, 27, 640) \
    CRUMB_STORE(28, 29, 768) \
    CRUMB_STORE(30, 31, 896)

#define CRUMB_BLOCK(height, weights)                                                                         \
    asm volatile("ldr q15, [%[constants]]\n" CRUMB_CLEAR_##height                                            \
                 "1:\n" weights CRUMB_SCALES CRUMB_##height##_ROWS "subs %[groups], %[groups], #1\n"         \
                                                                   "b.ne 1b\n" CRUMB_STORE_##height          \
                 : [codes] "+r"(codes), [scales] "+r"(scales), [x] "+r"(x), [x_scales] "+r"(x_scales),       \
                   [groups] "+r"(groups)                                                                     \
                 : [constants] "r"(constants), [out] "r"(out)                                                \
                 : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", \
                   "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23",       \
                   "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")
// clang-format on

template <class Format, class Tile>
struct i8mm_asm<isa::CRUMB_THIS_ISA, Format, Tile> : Tile {
    template <int Rows>
    static CRUMB_INLINE void block(const linear_args& args, std::size_t tile, std::size_t row,
                                   float* out) noexcept {
        if constexpr (Tile::plain_codes && (Rows == 16 || Rows == 8)) {
            if (args.groups != 0) {
                for (std::size_t v = 0; v < 4; ++v)
                    four_channels<Rows>(args, tile, v, row, out + 4 * v);
                return;
            }
        }
        Tile::template block<Rows>(args, tile, row, out);
    }

  private:
    static constexpr std::int32_t o = activation_origin_bits;
    alignas(64) static constexpr std::int32_t constants[8] = {o, o, o, o, o, o, o, o};

    template <int Rows>
    static CRUMB_INLINE void four_channels(const linear_args& args, std::size_t tile, std::size_t v,
                                           std::size_t row, float* out) noexcept {
        const std::uint8_t* codes = args.codes + tile * args.groups * Tile::code_bytes + 16 * v;
        const half* scales = args.scales + tile * args.groups * tile_channels + 4 * v;
        const std::int8_t* x = args.x_codes + row * args.groups * group_size;
        const float* x_scales = Tile::row_scales(args, row);
        std::size_t groups = args.groups;
        if constexpr (Rows == 16 && Tile::nibbles)
            CRUMB_BLOCK(16, CRUMB_NIBBLES);
        else if constexpr (Rows == 16)
            CRUMB_BLOCK(16, CRUMB_BYTES);
        else if constexpr (Tile::nibbles)
            CRUMB_BLOCK(8, CRUMB_NIBBLES);
        else
            CRUMB_BLOCK(8, CRUMB_BYTES);
    }
};

#undef CRUMB_ZIP
#undef CRUMB_HIGH_AND_LOW
#undef CRUMB_NIBBLES
#undef CRUMB_BYTES
#undef CRUMB_SCALES
#undef CRUMB_SMMLA
#undef CRUMB_PAIR
#undef CRUMB_16_ROWS
#undef CRUMB_8_ROWS
#undef CRUMB_CLEAR
#undef CRUMB_STORE
#undef CRUMB_CLEAR_8
#undef CRUMB_CLEAR_16
#undef CRUMB_STORE_8
#undef CRUMB_STORE_16
#undef CRUMB_BLOCK

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
