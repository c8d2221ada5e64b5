// One row times the blocks of a tile with records in assembly: codes of 4 and 6 bits with integer scales, and
// indices with exponents. What compilers make of the intrinsics copies registers, loads codes one by one, and
// widens sums of activations anew for each group. Loops:
//     blocks of 256 > groups, or fours of groups of 32
//
// v0-v3 sums | v4, v5 activations | v24-v27 sums times scales | others are said at each loop
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_dotprod
#include <crumb/isa/editor.hpp>

#include <crumb/isa/neon/fields.inl>
#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/record_drivers.inl>
#endif

#include <crumb/isa/neon/asm/macros.inl>

namespace crumb::inline CRUMB_ABI::kernel {

// clang-format off
#define CRUMB_A 8, 9, 10, 11
#define CRUMB_B 12, 13, 14, 15
#define CRUMB_C 16, 17, 18, 19
#define CRUMB_D 20, 21, 22, 23
#define CRUMB_SCALED 24, 25, 26, 27
#define CRUMB_LAST 28, 29, 30, 31

// Four words a register of 16 bytes, by way of v20 and v21.
#define CRUMB_WIDEN_(op, from, d0, d1, d2, d3) \
    op " v20.8h, v" #from ".8b, #0\n" \
    op "2 v21.8h, v" #from ".16b, #0\n" \
    op " v" #d0 ".4s, v20.4h, #0\n" \
    op "2 v" #d1 ".4s, v20.8h, #0\n" \
    op " v" #d2 ".4s, v21.4h, #0\n" \
    op "2 v" #d3 ".4s, v21.8h, #0\n"
#define CRUMB_WIDEN(...) CRUMB_WIDEN_(__VA_ARGS__)
// totals `op` (integers * the scale in v4) * the halves in registers a and b, by way of v12-v15.
#define CRUMB_END_(op, t0, t1, t2, t3, i0, i1, i2, i3, a, b) \
    CRUMB_FOUR_("scvtf", i0, i1, i2, i3, "4s", i0, i1, i2, i3, "4s", "") \
    CRUMB_FOUR_("fmul", i0, i1, i2, i3, "4s", i0, i1, i2, i3, "4s", ", v4.s[0]") \
    "fcvtl v12.4s, v" #a ".4h\n" \
    "fcvtl2 v13.4s, v" #a ".8h\n" \
    "fcvtl v14.4s, v" #b ".4h\n" \
    "fcvtl2 v15.4s, v" #b ".8h\n" \
    CRUMB_WORDS_(op, t0, t1, t2, t3, i0, i1, i2, i3, 12, 13, 14, 15)
#define CRUMB_END(...) CRUMB_END_(__VA_ARGS__)
// clang-format on

/// Where a tile's blocks and the row's activations are.
template <class Format>
struct record_pointers<isa::CRUMB_THIS_ISA, Format> {
    static constexpr std::size_t groups = block_inputs<Format> / group_size;
    const std::uint8_t* codes;
    const std::uint8_t* record;
    const std::int8_t* x;
    const float* x_scales;
    const void* sums; ///< of activations
    std::size_t blocks;

    CRUMB_INLINE record_pointers(const linear_args& args, std::size_t tile) noexcept
        : codes(args.codes + tile * args.groups * Format::codes::bytes),
          record(args.records + tile * (args.groups / groups) * Format::records::bytes), x(args.x_codes),
          x_scales(args.x_scales), sums(args.x_sums), blocks(args.groups / groups) {
        const std::size_t of_x = (args.x_groups + groups - 1) / groups;
        blocks = of_x < blocks ? of_x : blocks;
    }
};

// ---- codes of 4 and 5 bits with scales and minima of 6 bits -----------------------------------------------
//
// v6, v7 masks | v8-v11, v12-v15 codes of two register rows in turn | v16-v19, v20-v23 operands, then scales
// | v28-v31 sums of minima times those of activations
//
// clang-format off

// Scales and minima of groups `lane` and `next`; v8 has the groups' sums of activations.
#define CRUMB_NUMBERS(lane, next, at) \
    "ld1 {v0.16b, v1.16b, v2.16b}, [%[numbers]], #48\n" \
    "ushr v4.16b, v2.16b, #2\n" \
    "ushr v3.16b, v0.16b, #4\n" \
    "sli v0.16b, v2.16b, #4\n" \
    "sli v3.16b, v4.16b, #4\n" \
    "sri v4.16b, v1.16b, #4\n" \
    "bif v1.16b, v2.16b, v6.16b\n" \
    "and v0.16b, v0.16b, v7.16b\n" \
    "and v3.16b, v3.16b, v7.16b\n" \
    "and v1.16b, v1.16b, v7.16b\n" \
    "stp q0, q1, [%[scales], #" at "]\n" \
    CRUMB_ADD_MINIMA(3, lane) \
    CRUMB_ADD_MINIMA(4, next)
#define CRUMB_ADD_MINIMA(from, lane) \
    "ushll v12.8h, v" #from ".8b, #0\n" \
    "ushll2 v13.8h, v" #from ".16b, #0\n" \
    "smlal v28.4s, v12.4h, v8.h[" #lane "]\n" \
    "smlal2 v29.4s, v12.8h, v8.h[" #lane "]\n" \
    "smlal v30.4s, v13.4h, v8.h[" #lane "]\n" \
    "smlal2 v31.4s, v13.8h, v8.h[" #lane "]\n"
#define CRUMB_NIBBLE_ROW(cells, lane) \
    CRUMB_BITS("and", CRUMB_C, cells, ", v6.16b") \
    CRUMB_BITS("ushr", cells, cells, ", #4") \
    CRUMB_DOT(CRUMB_C, 4, lane) \
    CRUMB_DOT(cells, 5, lane)
#define CRUMB_NIBBLE_ROWS \
    CRUMB_NIBBLE_ROW(CRUMB_A, 0) \
    CRUMB_LOAD(CRUMB_A, "[%[codes]], #64") \
    CRUMB_NIBBLE_ROW(CRUMB_B, 1) \
    CRUMB_LOAD(CRUMB_B, "[%[codes]], #64") \
    CRUMB_NIBBLE_ROW(CRUMB_A, 2) \
    "ldr q8, [%[next]], #16\n" \
    CRUMB_NIBBLE_ROW(CRUMB_B, 3)
// Two register rows, and the four whose lower bits are above the codes of the first, whose upper ones above the
// second's.
#define CRUMB_FIVE_ROWS_(d0, d1, d2, d3, to_a, lane_a, to_b, lane_b, to_d, lane_d) \
    CRUMB_BITS("ushr", d0, d1, d2, d3, CRUMB_B, ", #3") \
    CRUMB_BITS("sri", d0, d1, d2, d3, CRUMB_A, ", #5") \
    CRUMB_BITS("and", CRUMB_A, CRUMB_A, ", v6.16b") \
    CRUMB_DOT(d0, d1, d2, d3, to_d, lane_d) \
    CRUMB_BITS("shl", d0, d1, d2, d3, CRUMB_B, ", #2") \
    CRUMB_DOT(CRUMB_A, to_a, lane_a) \
    CRUMB_BITS("and", CRUMB_B, CRUMB_B, ", v6.16b") \
    CRUMB_DOT(CRUMB_B, to_b, lane_b)
#define CRUMB_FIVE_ROWS(...) CRUMB_FIVE_ROWS_(__VA_ARGS__)
#define CRUMB_FIVES \
    CRUMB_FIVE_ROWS(CRUMB_C, 4, 0, 4, 1, 5, 1) \
    CRUMB_LOAD(CRUMB_A, "[%[codes]], #64") \
    CRUMB_LOAD(CRUMB_B, "[%[codes]], #64") \
    CRUMB_FIVE_ROWS(CRUMB_D, 4, 2, 4, 3, 5, 2) \
    CRUMB_LOAD(CRUMB_A, "[%[codes]], #64") \
    CRUMB_BITS("ushr", CRUMB_D, CRUMB_D, ", #3") \
    CRUMB_BITS("sri", CRUMB_D, CRUMB_C, ", #4") \
    CRUMB_BITS("sri", CRUMB_D, CRUMB_A, ", #5") \
    CRUMB_BITS("and", CRUMB_A, CRUMB_A, ", v6.16b") \
    CRUMB_DOT(CRUMB_D, 5, 3) \
    CRUMB_DOT(CRUMB_A, 5, 0) \
    "ldr q8, [%[next]], #16\n"
#define CRUMB_GROUP_WITH(rows) \
    CRUMB_LOAD(CRUMB_A, "[%[codes]], #64") \
    "ldp q4, q5, [%[x]], #32\n" \
    CRUMB_LOAD(CRUMB_SUMS, "[%[zero]]") \
    CRUMB_LOAD(CRUMB_B, "[%[codes]], #64") \
    rows \
    CRUMB_WIDEN("ushll", 8, CRUMB_C) \
    CRUMB_WORDS("mla", CRUMB_SCALED, CRUMB_SUMS, CRUMB_C)
#define CRUMB_BLOCKS(mask, rows) \
    asm volatile( \
        "movi v7.16b, #63\n" \
        "1:\n" \
        "ldp q8, q9, [%[sums]], #32\n" \
        "movi v6.16b, #15\n" \
        CRUMB_LOAD(CRUMB_LAST, "[%[zero]]") \
        "addp v8.8h, v8.8h, v9.8h\n" \
        CRUMB_NUMBERS(0, 1, "0") \
        CRUMB_NUMBERS(2, 3, "32") \
        CRUMB_NUMBERS(4, 5, "64") \
        CRUMB_NUMBERS(6, 7, "96") \
        mask \
        CRUMB_LOAD(CRUMB_SCALED, "[%[zero]]") \
        "2:\n" \
        CRUMB_GROUP_WITH(rows) \
        CRUMB_GROUP_WITH(rows) \
        CRUMB_GROUP_WITH(rows) \
        CRUMB_GROUP_WITH(rows) \
        "cmp %[next], %[end]\n" \
        "b.ne 2b\n" \
        "mov %[next], %[scales]\n" \
        "ld1 {v8.8h, v9.8h, v10.8h, v11.8h}, [%[units]], %[bytes]\n" \
        "add %[numbers], %[numbers], #64\n" \
        "ldr s4, [%[x_scales]], #4\n" \
        CRUMB_LOAD(CRUMB_SUMS, "[%[out]]") \
        CRUMB_END("fmla", CRUMB_SUMS, CRUMB_SCALED, 8, 9) \
        CRUMB_END("fmls", CRUMB_SUMS, CRUMB_LAST, 10, 11) \
        CRUMB_STORE(CRUMB_SUMS, "[%[out]]") \
        "subs %[blocks], %[blocks], #1\n" \
        "b.ne 1b\n" \
        : [codes] "+&r"(p.codes), [units] "+&r"(p.record), [numbers] "+&r"(numbers), [x] "+&r"(p.x), \
          [x_scales] "+&r"(p.x_scales), [sums] "+&r"(p.sums), [next] "+&r"(next), [blocks] "+&r"(p.blocks) \
        : [zero] "r"(zero), [scales] "r"(scales), [end] "r"(scales + sizeof scales), [out] "r"(out), \
          [bytes] "r"(six_bit_minima_records::bytes) \
        : CRUMB_CLOBBERS)
// clang-format on

template <class Format>
requires std::is_same_v<typename Format::records, six_bit_minima_records>
struct record_single<isa::CRUMB_THIS_ISA, Format> {
    static constexpr bool takes_all = true;
    static CRUMB_INLINE std::size_t run(const linear_args& args, std::size_t tile, float* out) noexcept {
        static_assert(Format::codes::field_bits == 4 || Format::codes::field_bits == 5);
        record_pointers<isa::CRUMB_THIS_ISA, Format> p(args, tile);
        const std::size_t blocks = p.blocks;
        const std::uint8_t* numbers = p.record + six_bit_minima_records::unit_bytes;
        alignas(64) static constexpr std::uint8_t zero[64] = {};
        alignas(64) std::uint8_t scales[8 * tile_channels];
        const std::uint8_t* next = scales;
        if (blocks == 0)
            return 0;
        if constexpr (Format::codes::field_bits == 4)
            CRUMB_BLOCKS("", CRUMB_NIBBLE_ROWS);
        else
            CRUMB_BLOCKS("movi v6.16b, #31\n", CRUMB_FIVES);
        return blocks;
    }
};

// ---- codes of 6 bits with a byte per group of 16 ----------------------------------------------------------
//
// v6 mask | v7 what sums begin at | v8-v19 codes of three register rows, then scales | v20-v23 what they have
// above them | v28-v31 totals
//
// clang-format off
#define CRUMB_SIX_HALF(x, lane) \
    CRUMB_LOAD(CRUMB_A, "[%[codes]], #64") \
    CRUMB_LOAD(CRUMB_B, "[%[codes]], #64") \
    CRUMB_LOAD(CRUMB_C, "[%[codes]], #64") \
    CRUMB_FOUR("dup", CRUMB_SUMS, "4s", 7, 7, 7, 7, "s[" #lane "]", "") \
    CRUMB_BITS("ushr", CRUMB_D, CRUMB_C, ", #2") \
    CRUMB_BITS("sri", CRUMB_D, CRUMB_B, ", #4") \
    CRUMB_BITS("sri", CRUMB_D, CRUMB_A, ", #6") \
    CRUMB_BITS("and", CRUMB_A, CRUMB_A, ", v6.16b") \
    CRUMB_BITS("and", CRUMB_B, CRUMB_B, ", v6.16b") \
    CRUMB_BITS("and", CRUMB_C, CRUMB_C, ", v6.16b") \
    CRUMB_DOT(CRUMB_A, x, 0) \
    "ldr q8, [%[numbers]], #16\n" \
    CRUMB_DOT(CRUMB_B, x, 1) \
    CRUMB_DOT(CRUMB_C, x, 2) \
    CRUMB_DOT(CRUMB_D, x, 3) \
    CRUMB_WIDEN("sshll", 8, CRUMB_C) \
    CRUMB_WORDS("mla", CRUMB_SCALED, CRUMB_SUMS, CRUMB_C)
// clang-format on

template <class Format>
requires std::is_same_v<typename Format::codes, field_codes<6>> &&
         std::is_same_v<typename Format::records, byte_records>
struct record_single<isa::CRUMB_THIS_ISA, Format> {
    static constexpr bool takes_all = true;
    static CRUMB_INLINE std::size_t run(const linear_args& args, std::size_t tile, float* out) noexcept {
        static_assert(record_shape<Format>::offset == 32);
        record_pointers<isa::CRUMB_THIS_ISA, Format> p(args, tile);
        const std::size_t blocks = p.blocks;
        const std::uint8_t* numbers = p.record + byte_records::unit_bytes;
        alignas(64) static constexpr std::uint8_t zero[64] = {};
        std::size_t pairs = 0;
        if (blocks == 0)
            return 0;
        // clang-format off
        asm volatile(
            "movi v6.16b, #63\n"
            CRUMB_LOAD(CRUMB_LAST, "[%[zero]]")
            "1:\n"
            CRUMB_LOAD(CRUMB_SCALED, "[%[zero]]")
            "mov %[pairs], #4\n"
            "2:\n"
            "ldr d7, [%[sums]], #8\n"
            "subs %[pairs], %[pairs], #1\n"
            "sshll v7.4s, v7.4h, #5\n"
            "neg v7.4s, v7.4s\n"
            "ldp q4, q5, [%[x]], #32\n"
            CRUMB_SIX_HALF(4, 0)
            CRUMB_SIX_HALF(5, 1)
            "ldp q4, q5, [%[x]], #32\n"
            CRUMB_SIX_HALF(4, 2)
            CRUMB_SIX_HALF(5, 3)
            "b.ne 2b\n"
            "ld1 {v8.8h, v9.8h}, [%[units]], %[bytes]\n"
            "add %[numbers], %[numbers], #32\n"
            "ldr s4, [%[x_scales]], #4\n"
            "subs %[blocks], %[blocks], #1\n"
            CRUMB_END("fmla", CRUMB_LAST, CRUMB_SCALED, 8, 9)
            "b.ne 1b\n"
            CRUMB_STORE(CRUMB_LAST, "[%[out]]")
            : [codes] "+&r"(p.codes), [units] "+&r"(p.record), [numbers] "+&r"(numbers), [x] "+&r"(p.x),
              [x_scales] "+&r"(p.x_scales), [sums] "+&r"(p.sums), [pairs] "+&r"(pairs), [blocks] "+&r"(p.blocks)
            : [zero] "r"(zero), [out] "r"(out), [bytes] "r"(byte_records::bytes)
            : CRUMB_CLOBBERS);
        // clang-format on
        return blocks;
    }
};

#undef CRUMB_A
#undef CRUMB_B
#undef CRUMB_C
#undef CRUMB_D
#undef CRUMB_SCALED
#undef CRUMB_LAST
#undef CRUMB_WIDEN_
#undef CRUMB_WIDEN
#undef CRUMB_END_
#undef CRUMB_END
#undef CRUMB_NUMBERS
#undef CRUMB_ADD_MINIMA
#undef CRUMB_NIBBLE_ROW
#undef CRUMB_NIBBLE_ROWS
#undef CRUMB_FIVE_ROWS_
#undef CRUMB_FIVE_ROWS
#undef CRUMB_FIVES
#undef CRUMB_GROUP_WITH
#undef CRUMB_BLOCKS
#undef CRUMB_SIX_HALF
#include <crumb/isa/neon/asm/end_macros.inl>

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
