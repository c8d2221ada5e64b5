// One row times a tile in assembly: four groups per pass, everything in registers.
//
// v0-v3 sums | v4, v5 activations | v6 their scales | v7 mask | v8 origin | v9 starts | v10-v13 second sums
// v14, v15 weight scales | v16-v19, v24-v27 codes of two register rows in turn | v20-v23 operands | v28-v31
// totals
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_dotprod
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>
#endif

#include <crumb/isa/neon/asm/macros.inl>

namespace crumb::inline CRUMB_ABI::kernel {

// clang-format off
#define CRUMB_SECOND_SUMS 10, 11, 12, 13
#define CRUMB_EVEN 16, 17, 18, 19
#define CRUMB_OPERANDS 20, 21, 22, 23
#define CRUMB_ODD 24, 25, 26, 27

#define CRUMB_LOAD_PAIRS_(r0, r1, r2, r3, at) \
    "ldp q" #r0 ", q" #r1 ", [%[codes], #" at "]\n" \
    "ldp q" #r2 ", q" #r3 ", [%[codes], #" at "+32]\n"
#define CRUMB_LOAD_PAIRS(...) CRUMB_LOAD_PAIRS_(__VA_ARGS__)
#define CRUMB_PRODUCT_(op, s0, s1, s2, s3, o0, o1, o2, o3, x, lane) \
    CRUMB_FOUR_(op, s0, s1, s2, s3, "4s", o0, o1, o2, o3, "16b", ", v" #x ".4b[" #lane "]")
#define CRUMB_PRODUCT(...) CRUMB_PRODUCT_(__VA_ARGS__)

// One register row of nibbles, its codes in `row`; `lane` of v4 has the inputs of the low ones, of v5 of the
// high ones.
#define CRUMB_EXACT(row, lane) \
    CRUMB_FOUR("shl", CRUMB_OPERANDS, "16b", row, "16b", ", #4") \
    CRUMB_FOUR("and", row, "16b", row, "16b", ", v7.16b") \
    CRUMB_PRODUCT("sdot", CRUMB_SUMS, CRUMB_OPERANDS, 4, lane) \
    CRUMB_PRODUCT("sdot", CRUMB_SUMS, row, 5, lane)
#define CRUMB_ABSORBED_SIGNED(row, lane) \
    CRUMB_FOUR("and", CRUMB_OPERANDS, "16b", row, "16b", ", v7.16b") \
    CRUMB_PRODUCT("sdot", CRUMB_SUMS, row, 5, lane) \
    CRUMB_PRODUCT("sdot", CRUMB_SECOND_SUMS, CRUMB_OPERANDS, 4, lane)
#define CRUMB_ABSORBED_UNSIGNED(row, lane) \
    CRUMB_FOUR("shl", CRUMB_OPERANDS, "16b", row, "16b", ", #4") \
    CRUMB_PRODUCT("sdot", CRUMB_SUMS, row, 5, lane) \
    CRUMB_PRODUCT("usdot", CRUMB_SUMS, CRUMB_OPERANDS, 4, lane)

// Four pairs of bits of a register row: `lane` of v5, `next` of v5, then of v4.
#define CRUMB_ABSORBED_PAIRS(row, lane, next) \
    CRUMB_PRODUCT("usdot", CRUMB_SUMS, row, 5, lane) \
    CRUMB_FOUR("shl", CRUMB_OPERANDS, "16b", row, "16b", ", #2") \
    CRUMB_PRODUCT("usdot", CRUMB_SUMS, CRUMB_OPERANDS, 5, next) \
    CRUMB_FOUR("shl", CRUMB_OPERANDS, "16b", row, "16b", ", #4") \
    CRUMB_PRODUCT("usdot", CRUMB_SUMS, CRUMB_OPERANDS, 4, lane) \
    CRUMB_FOUR("shl", CRUMB_OPERANDS, "16b", row, "16b", ", #6") \
    CRUMB_PRODUCT("usdot", CRUMB_SUMS, CRUMB_OPERANDS, 4, next)

// Sums that begin at the origin, or at the start of group `lane` of four.
#define CRUMB_FROM_ORIGIN \
    "ldp q0, q1, [%[constants]]\n" \
    "ldp q2, q3, [%[constants]]\n"
#define CRUMB_FROM_START(lane) CRUMB_FOUR_("dup", 0, 1, 2, 3, "4s", 9, 9, 9, 9, "s[" #lane "]", "")
#define CRUMB_SECOND_FROM_ZERO \
    "ldp q10, q11, [%[constants], #32]\n" \
    "ldp q12, q13, [%[constants], #32]\n"

#define CRUMB_NIBBLES(row) \
    "ldp q16, q17, [%[codes]], #256\n" \
    "ldp q18, q19, [%[codes], #-224]\n" \
    "ldp q4, q5, [%[x]], #32\n" \
    CRUMB_LOAD_PAIRS(CRUMB_ODD, "-192") \
    row(CRUMB_EVEN, 0) \
    CRUMB_LOAD_PAIRS(CRUMB_EVEN, "-128") \
    row(CRUMB_ODD, 1) \
    CRUMB_LOAD_PAIRS(CRUMB_ODD, "-64") \
    row(CRUMB_EVEN, 2)
#define CRUMB_BYTES \
    "ldp q16, q17, [%[codes]], #512\n" \
    "ldp q18, q19, [%[codes], #-480]\n" \
    "ldp q4, q5, [%[x]], #32\n" \
    CRUMB_LOAD_PAIRS(CRUMB_ODD, "-448") \
    CRUMB_PRODUCT("sdot", CRUMB_SUMS, CRUMB_EVEN, 4, 0) \
    CRUMB_LOAD_PAIRS(CRUMB_EVEN, "-384") \
    CRUMB_PRODUCT("sdot", CRUMB_SUMS, CRUMB_ODD, 4, 1) \
    CRUMB_LOAD_PAIRS(CRUMB_ODD, "-320") \
    CRUMB_PRODUCT("sdot", CRUMB_SUMS, CRUMB_EVEN, 4, 2) \
    CRUMB_LOAD_PAIRS(CRUMB_EVEN, "-256") \
    CRUMB_PRODUCT("sdot", CRUMB_SUMS, CRUMB_ODD, 4, 3) \
    CRUMB_LOAD_PAIRS(CRUMB_ODD, "-192") \
    CRUMB_PRODUCT("sdot", CRUMB_SUMS, CRUMB_EVEN, 5, 0) \
    CRUMB_LOAD_PAIRS(CRUMB_EVEN, "-128") \
    CRUMB_PRODUCT("sdot", CRUMB_SUMS, CRUMB_ODD, 5, 1) \
    CRUMB_LOAD_PAIRS(CRUMB_ODD, "-64") \
    CRUMB_PRODUCT("sdot", CRUMB_SUMS, CRUMB_EVEN, 5, 2)

// totals += (sums - origin) * (activation scale `lane` of four) * weight scales, which take the even rows'
// place.
#define CRUMB_LOAD_SCALES "ldp q14, q15, [%[scales]], #32\n"
#define CRUMB_CONVERT_SCALES \
    "fcvtl v16.4s, v14.4h\n" \
    "fcvtl2 v17.4s, v14.8h\n" \
    "fcvtl v18.4s, v15.4h\n" \
    "fcvtl2 v19.4s, v15.8h\n"
#define CRUMB_ADD_GROUP(lane) \
    CRUMB_FOUR("fsub", CRUMB_SUMS, "4s", CRUMB_SUMS, "4s", ", v8.4s") \
    CRUMB_FOUR("fmul", CRUMB_SUMS, "4s", CRUMB_SUMS, "4s", ", v6.s[" #lane "]") \
    "fmla v28.4s, v0.4s, v16.4s\n" \
    "fmla v29.4s, v1.4s, v17.4s\n" \
    "fmla v30.4s, v2.4s, v18.4s\n" \
    "fmla v31.4s, v3.4s, v19.4s\n"

#define CRUMB_EXACT_GROUP(lane) \
    CRUMB_FROM_ORIGIN \
    CRUMB_NIBBLES(CRUMB_EXACT) \
    CRUMB_LOAD_SCALES \
    CRUMB_CONVERT_SCALES \
    CRUMB_EXACT(CRUMB_ODD, 3) \
    CRUMB_ADD_GROUP(lane)
#define CRUMB_BYTES_GROUP(lane) \
    CRUMB_FROM_ORIGIN \
    CRUMB_BYTES \
    CRUMB_LOAD_SCALES \
    CRUMB_CONVERT_SCALES \
    CRUMB_PRODUCT( "sdot", CRUMB_SUMS, CRUMB_ODD, 5, 3) \
    CRUMB_ADD_GROUP(lane)
#define CRUMB_SIGNED_GROUP(lane) \
    CRUMB_FROM_START(lane) \
    CRUMB_SECOND_FROM_ZERO \
    CRUMB_NIBBLES(CRUMB_ABSORBED_SIGNED) \
    CRUMB_LOAD_SCALES \
    CRUMB_CONVERT_SCALES \
    CRUMB_ABSORBED_SIGNED( CRUMB_ODD, 3) \
    "movi v20.4s, #16\n" \
    CRUMB_FOUR("mla", CRUMB_SUMS, "4s", CRUMB_SECOND_SUMS, "4s", ", v20.4s") \
    CRUMB_ADD_GROUP(lane)
#define CRUMB_UNSIGNED_GROUP(lane) \
    CRUMB_FROM_START(lane) \
    CRUMB_NIBBLES(CRUMB_ABSORBED_UNSIGNED) \
    CRUMB_LOAD_SCALES \
    CRUMB_CONVERT_SCALES \
    CRUMB_ABSORBED_UNSIGNED(CRUMB_ODD, 3) \
    CRUMB_ADD_GROUP(lane)

#define CRUMB_PAIRS_GROUP(lane) \
    CRUMB_FROM_START(lane) \
    "ldp q16, q17, [%[codes]], #128\n" \
    "ldp q18, q19, [%[codes], #-96]\n" \
    "ldp q4, q5, [%[x]], #32\n" \
    CRUMB_LOAD_PAIRS(CRUMB_ODD, "-64") \
    CRUMB_ABSORBED_PAIRS(CRUMB_EVEN, 0, 1) \
    CRUMB_LOAD_SCALES \
    CRUMB_CONVERT_SCALES \
    CRUMB_ABSORBED_PAIRS(CRUMB_ODD, 2, 3) \
    CRUMB_ADD_GROUP(lane)

#define CRUMB_PASSES(prepare, pass, group)                                                                   \
    asm volatile(prepare "ldr q8, [%[constants]]\n"                                                          \
                         "movi v28.16b, #0\n"                                                                \
                         "movi v29.16b, #0\n"                                                                \
                         "movi v30.16b, #0\n"                                                                \
                         "movi v31.16b, #0\n"                                                                \
                         "1:\n"                                                                              \
                         "ldr q6, [%[x_scales]], #16\n" pass group(0) group(1) group(2)                      \
                             group(3) "subs %[passes], %[passes], #1\n"                                      \
                                      "b.ne 1b\n"                                                            \
                                      "stp q28, q29, [%[out]]\n"                                             \
                                      "stp q30, q31, [%[out], #32]\n"                                        \
                 : [codes] "+r"(p.codes), [scales] "+r"(p.scales), [x] "+r"(p.x),                            \
                   [x_scales] "+r"(p.x_scales), [starts] "+r"(p.starts), [passes] "+r"(p.passes)             \
                 : [constants] "r"(constants), [out] "r"(out)                                                \
                 : CRUMB_CLOBBERS)
// clang-format on

template <>
struct single_passes<isa::CRUMB_THIS_ISA> {
    const std::uint8_t* codes;
    const half* scales;
    const std::int8_t* x;
    const float* x_scales;
    const std::int32_t* starts;
    std::size_t passes;

    CRUMB_INLINE single_passes(const linear_args& args, std::size_t code_bytes, std::size_t tile,
                               std::size_t row, const float* row_scales) noexcept
        : codes(args.codes + tile * args.groups * code_bytes),
          scales(args.scales + tile * args.groups * tile_channels),
          x(args.x_codes + row * args.groups * group_size), x_scales(row_scales),
          starts(args.x_starts != nullptr ? args.x_starts + row * args.groups : nullptr),
          passes(args.groups / 4) {}

    static CRUMB_INLINE void nibbles(single_passes p, float* out) noexcept {
        CRUMB_PASSES("movi v7.16b, #0xf0\n", "", CRUMB_EXACT_GROUP);
    }
    static CRUMB_INLINE void bytes(single_passes p, float* out) noexcept {
        CRUMB_PASSES("", "", CRUMB_BYTES_GROUP);
    }
    template <bool Unsigned>
    static CRUMB_INLINE void absorbed(single_passes p, float* out) noexcept {
        if constexpr (Unsigned)
            CRUMB_PASSES("", "ldr q9, [%[starts]], #16\n", CRUMB_UNSIGNED_GROUP);
        else
            CRUMB_PASSES("movi v7.16b, #15\n", "ldr q9, [%[starts]], #16\n", CRUMB_SIGNED_GROUP);
    }

    template <class = void> // only ISAs that have USDOT
    static CRUMB_INLINE void absorbed_pairs(single_passes p, float* out) noexcept {
        CRUMB_PASSES("", "ldr q9, [%[starts]], #16\n", CRUMB_PAIRS_GROUP);
    }

  private:
    static constexpr std::int32_t o = activation_origin_bits;
    alignas(64) static constexpr std::int32_t constants[16] = {o, o, o, o, o, o, o, o};
};

template <class Format, class Tile>
struct single_asm<isa::CRUMB_THIS_ISA, Format, Tile> : Tile {
    static CRUMB_INLINE void single(const linear_args& args, std::size_t tile, std::size_t row,
                                    float* out) noexcept {
        using passes = single_passes<isa::CRUMB_THIS_ISA>;
        if (args.groups < 4 || !Tile::plain_codes)
            return Tile::single(args, tile, row, out);
        const passes p(args, Tile::code_bytes, tile, row, Tile::row_scales(args, row));
        if constexpr (Tile::nibbles)
            passes::nibbles(p, out);
        else
            passes::bytes(p, out);
        if (args.groups % 4 != 0)
            Tile::single_from(args, tile, row, args.groups / 4 * 4, out);
    }
};

template <class Format, class Tile>
struct absorbed_asm<isa::CRUMB_THIS_ISA, Format, Tile> : Tile {
    static CRUMB_INLINE void single(const linear_args& args, std::size_t tile, std::size_t row,
                                    float* out) noexcept {
        using passes = single_passes<isa::CRUMB_THIS_ISA>;
        if (args.groups < 4)
            return Tile::single(args, tile, row, out);
        const passes p(args, Tile::code_bytes, tile, row, args.x_scales + row * args.groups);
        if constexpr (indexed_codes<typename Format::codes>)
            passes::template absorbed_pairs<>(p, out);
        else
            passes::template absorbed<isa::CRUMB_THIS_ISA::has_matrix_product>(p, out);
        if (args.groups % 4 != 0)
            Tile::single_from(args, tile, row, args.groups / 4 * 4, out);
    }
};

#undef CRUMB_SECOND_SUMS
#undef CRUMB_EVEN
#undef CRUMB_OPERANDS
#undef CRUMB_ODD
#undef CRUMB_LOAD_PAIRS_
#undef CRUMB_LOAD_PAIRS
#undef CRUMB_PRODUCT_
#undef CRUMB_PRODUCT
#undef CRUMB_EXACT
#undef CRUMB_ABSORBED_SIGNED
#undef CRUMB_ABSORBED_UNSIGNED
#undef CRUMB_ABSORBED_PAIRS
#undef CRUMB_PAIRS_GROUP
#undef CRUMB_FROM_ORIGIN
#undef CRUMB_FROM_START
#undef CRUMB_SECOND_FROM_ZERO
#undef CRUMB_NIBBLES
#undef CRUMB_BYTES
#undef CRUMB_LOAD_SCALES
#undef CRUMB_CONVERT_SCALES
#undef CRUMB_ADD_GROUP
#undef CRUMB_EXACT_GROUP
#undef CRUMB_BYTES_GROUP
#undef CRUMB_SIGNED_GROUP
#undef CRUMB_UNSIGNED_GROUP
#undef CRUMB_PASSES
#include <crumb/isa/neon/asm/end_macros.inl>

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
