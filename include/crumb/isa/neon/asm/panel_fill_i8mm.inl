// Making of int8 panels for SMMLA: eight channels of a tile, each group times its multiplier.
//
// The 16 codes of nibbles times one multiplier are a table of 16 bytes, so that a lookup makes 16 weights of
// two channels, with rounding.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON_I8MM
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_i8mm
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

// clang-format off
// v8, v9 multipliers of four channels each: their low 16 bits, behind 1.5 * 2^23 in v21
#define CRUMB_MULTIPLIERS \
    "ldr q31, [%[scales]], #32\n" \
    "fcvtl v8.4s, v31.4h\n" \
    "fcvtl2 v9.4s, v31.8h\n" \
    "fmul v8.4s, v8.4s, v29.4s\n" \
    "fmul v9.4s, v9.4s, v30.4s\n" \
    "fadd v8.4s, v8.4s, v21.4s\n" \
    "fadd v9.4s, v9.4s, v21.4s\n"
#define CRUMB_FILL(prepare, group)                                                                           \
    asm volatile(prepare "ldp q29, q30, [%[inverse]]\n"                                                      \
                         "movi v21.4s, #0x4b, lsl #24\n"                                                     \
                         "orr v21.4s, #0x40, lsl #16\n"                                                      \
                         "1:\n" CRUMB_MULTIPLIERS group "subs %[groups], %[groups], #1\n"                    \
                         "b.ne 1b\n"                                                                         \
                 : [codes] "+r"(codes), [scales] "+r"(scales), [groups] "+r"(groups), [to] "+r"(to)          \
                 : [inverse] "r"(inverse), [constants] "r"(&constants)                                       \
                 : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", \
                   "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23",       \
                   "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31")

// Nibbles: v0-v7 tables of channels | v8-v15 four rows of codes, then v16-v19 those of two rows and v8-v11
// those of two more, 8 inputs of two channels each | v12-v15 weights | v20 offset of the low codes | v24, v25
// indices of low and high codes, whose upper halves, 16 for the second channel, BIT and SRI leave alone | v26,
// v27 codes * 2^12 | v28 mask
//
// SQRDMULH: (2 * code * 2^12 * m + 2^15) >> 16 = (code * m + 4) >> 3.
#define CRUMB_TABLE(to, m, lane) \
    "sqrdmulh v" #to ".8h, v26.8h, v" #m ".h[" #lane "]\n" \
    "sqrdmulh v31.8h, v27.8h, v" #m ".h[" #lane "]\n" \
    "uzp1 v" #to ".16b, v" #to ".16b, v31.16b\n"
#define CRUMB_ZIP(z0, z1, z2, z3, a0, a1, b0, b1) \
    "zip1 v" #z0 ".4s, v" #a0 ".4s, v" #b0 ".4s\n" \
    "zip2 v" #z1 ".4s, v" #a0 ".4s, v" #b0 ".4s\n" \
    "zip1 v" #z2 ".4s, v" #a1 ".4s, v" #b1 ".4s\n" \
    "zip2 v" #z3 ".4s, v" #a1 ".4s, v" #b1 ".4s\n"
#define CRUMB_LOOKUP_(op, shift_or_mask, index, to, row, t0, t1) \
    op " v" #index ".16b, v" #row ".16b, " shift_or_mask "\n" \
    "tbl v" #to ".16b, {v" #t0 ".16b, v" #t1 ".16b}, v" #index ".16b\n"
#define CRUMB_LOOKUP(...) CRUMB_LOOKUP_(__VA_ARGS__)
#define CRUMB_LOW_CODES "bit", "v28.16b", 24
#define CRUMB_HIGH_CODES "sri", "#4", 25
// A chunk of 8 inputs.
#define CRUMB_CHUNK(codes, z0, z1, z2, z3) \
    CRUMB_LOOKUP(codes, 12, z0, 0, 1) \
    CRUMB_LOOKUP(codes, 13, z1, 2, 3) \
    CRUMB_LOOKUP(codes, 14, z2, 4, 5) \
    CRUMB_LOOKUP(codes, 15, z3, 6, 7) \
    "st1 {v12.16b-v15.16b}, [%[to]], #64\n"
#define CRUMB_NIBBLES_CONSTANTS \
    "ldp q26, q27, [%[constants]]\n" \
    "ldr q24, [%[constants], #32]\n" \
    "mov v25.16b, v24.16b\n" \
    "movi v28.16b, #15\n"
#define CRUMB_NIBBLES(toggle) \
    CRUMB_TABLE(0, 8, 0) \
    CRUMB_TABLE(1, 8, 2) \
    CRUMB_TABLE(2, 8, 4) \
    CRUMB_TABLE(3, 8, 6) \
    CRUMB_TABLE(4, 9, 0) \
    CRUMB_TABLE(5, 9, 2) \
    CRUMB_TABLE(6, 9, 4) \
    CRUMB_TABLE(7, 9, 6) \
    "ldp q8, q9, [%[codes]], #256\n" \
    "ldp q10, q11, [%[codes], #-192]\n" \
    "ldp q12, q13, [%[codes], #-128]\n" \
    "ldp q14, q15, [%[codes], #-64]\n" \
    toggle \
    CRUMB_ZIP(16, 17, 18, 19, 8, 9, 10, 11) \
    CRUMB_ZIP(8, 9, 10, 11, 12, 13, 14, 15) \
    CRUMB_CHUNK(CRUMB_LOW_CODES, 16, 17, 18, 19) \
    CRUMB_CHUNK(CRUMB_LOW_CODES, 8, 9, 10, 11) \
    CRUMB_CHUNK(CRUMB_HIGH_CODES, 16, 17, 18, 19) \
    CRUMB_CHUNK(CRUMB_HIGH_CODES, 8, 9, 10, 11)
#define CRUMB_TOGGLE(row) "eor v" #row ".16b, v" #row ".16b, v20.16b\n"
#define CRUMB_TOGGLE_ALL \
    CRUMB_TOGGLE(8) CRUMB_TOGGLE(9) CRUMB_TOGGLE(10) CRUMB_TOGGLE(11) \
    CRUMB_TOGGLE(12) CRUMB_TOGGLE(13) CRUMB_TOGGLE(14) CRUMB_TOGGLE(15)

// Bytes: v8, v9 multipliers, four times each | v10-v13 two rows of codes | v16-v20, v22-v24 products and weights |
// v26 indices of the multipliers
//
// Two register rows (4 channels x 4 inputs each), stored lane by lane in turn (ST2), give 8 inputs of one
// channel after the other.
#define CRUMB_REQUANTIZE(to, high, row, m) \
    "smull v" #to ".8h, v" #row ".8b, v" #m ".8b\n" \
    "smull2 v" #high ".8h, v" #row ".16b, v" #m ".16b\n" \
    "rshrn v" #to ".8b, v" #to ".8h, #7\n" \
    "rshrn2 v" #to ".16b, v" #high ".8h, #7\n"
#define CRUMB_BYTES_CHUNK(a, b) \
    "ldp q10, q11, [%[codes]" a "\n" \
    "ldp q12, q13, [%[codes], #" b "]\n" \
    CRUMB_REQUANTIZE(16, 20, 10, 8) \
    CRUMB_REQUANTIZE(17, 22, 12, 8) \
    CRUMB_REQUANTIZE(18, 23, 11, 9) \
    CRUMB_REQUANTIZE(19, 24, 13, 9) \
    "st2 {v16.4s, v17.4s}, [%[to]], #32\n" \
    "st2 {v18.4s, v19.4s}, [%[to]], #32\n"
#define CRUMB_BYTES \
    "tbl v8.16b, {v8.16b}, v26.16b\n" \
    "tbl v9.16b, {v9.16b}, v26.16b\n" \
    CRUMB_BYTES_CHUNK("], #512", "-448") \
    CRUMB_BYTES_CHUNK(", #-384]", "-320") \
    CRUMB_BYTES_CHUNK(", #-256]", "-192") \
    CRUMB_BYTES_CHUNK(", #-128]", "-64")
// clang-format on

template <class Format>
struct panel_fill<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    /// to = round(code * m / 2^panel_shift), m = round(scale * inverse), chunk by chunk of 8 inputs.
    static CRUMB_INLINE void eight_channels(const std::uint8_t* codes, const half* scales,
                                            const float* inverse, std::size_t groups,
                                            std::int8_t* to) noexcept {
        if constexpr (!nibbles)
            CRUMB_FILL("ldr q26, [%[constants], #48]\n", CRUMB_BYTES);
        else if constexpr (requires { Format::codes::low_offset; })
            CRUMB_FILL(CRUMB_NIBBLES_CONSTANTS "movi v20.16b, #8\n", CRUMB_NIBBLES(CRUMB_TOGGLE_ALL));
        else
            CRUMB_FILL(CRUMB_NIBBLES_CONSTANTS, CRUMB_NIBBLES(""));
    }

  private:
    static constexpr bool nibbles = Format::codes::rows == 4;
    struct constant_vectors {
        alignas(64) std::int16_t codes[16] = {0,       0x1000,  0x2000,  0x3000,  0x4000,  0x5000,
                                              0x6000,  0x7000,  -0x8000, -0x7000, -0x6000, -0x5000,
                                              -0x4000, -0x3000, -0x2000, -0x1000};
        std::uint8_t channels[16] = {0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16};
        std::uint8_t multipliers[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    };
    static constexpr constant_vectors constants{};
};

#undef CRUMB_MULTIPLIERS
#undef CRUMB_FILL
#undef CRUMB_TABLE
#undef CRUMB_ZIP
#undef CRUMB_LOOKUP_
#undef CRUMB_LOOKUP
#undef CRUMB_LOW_CODES
#undef CRUMB_HIGH_CODES
#undef CRUMB_CHUNK
#undef CRUMB_NIBBLES_CONSTANTS
#undef CRUMB_NIBBLES
#undef CRUMB_TOGGLE
#undef CRUMB_TOGGLE_ALL
#undef CRUMB_REQUANTIZE
#undef CRUMB_BYTES_CHUNK
#undef CRUMB_BYTES

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
