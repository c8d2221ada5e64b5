// One row times a tile of indices in assembly: four groups per pass. What GCC and clang make of the
// intrinsics spills, and copies registers that a bit-select could have overwritten.
//
// v0-v3 sums | v4, v5 activations | v6 their scales | v7 table | v8 origin | v9 mask | v10, v11 masks, or the
// second table, or scales | v12-v15 lowest bits, or indices | v16-v19 selectors, then scales | v20-v27
// nibbles, indices, entries, powers of two | v28-v31 totals
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

#include <crumb/isa/neon/asm/planes.inl>

namespace crumb::inline CRUMB_ABI::kernel {

// clang-format off
#define CRUMB_LOW 12, 13, 14, 15
#define CRUMB_SELECTORS 16, 17, 18, 19
#define CRUMB_EVEN 20, 21, 22, 23
#define CRUMB_ODD 24, 25, 26, 27
#define CRUMB_TOTALS 28, 29, 30, 31

#define CRUMB_INSERT_(d0, d1, d2, d3, a0, a1, a2, a3, mask) \
    "bit v" #d0 ".16b, v" #a0 ".16b, v" #mask ".16b\n" \
    "bit v" #d1 ".16b, v" #a1 ".16b, v" #mask ".16b\n" \
    "bit v" #d2 ".16b, v" #a2 ".16b, v" #mask ".16b\n" \
    "bit v" #d3 ".16b, v" #a3 ".16b, v" #mask ".16b\n"
#define CRUMB_INSERT(...) CRUMB_INSERT_(__VA_ARGS__)

#define CRUMB_NIBBLES(cells, indices, lane) CRUMB_LOOK_UP_ROW(cells, indices, 9, lane)
// One register row of nibbles, each two indices.
#define CRUMB_PAIRED(cells, entries, lane, next_lane) \
    CRUMB_BITS("and", CRUMB_LOW, cells, ", v9.16b") \
    CRUMB_BITS("ushr", cells, cells, ", #4") \
    CRUMB_LOOK_UP(entries, 7, CRUMB_LOW) \
    CRUMB_LOOK_UP(CRUMB_LOW, 11, CRUMB_LOW) \
    CRUMB_DOT(entries, 4, lane) \
    CRUMB_DOT(CRUMB_LOW, 4, next_lane) \
    CRUMB_LOOK_UP(entries, 7, cells) \
    CRUMB_LOOK_UP(cells, 11, cells) \
    CRUMB_DOT(entries, 5, lane) \
    CRUMB_DOT(cells, 5, next_lane)
// Selectors beside pairs of bits, of which the odd nibbles' are moved up before the even ones' replace them.
#define CRUMB_SELECT_TWO \
    CRUMB_BITS("shl", CRUMB_ODD, CRUMB_EVEN, ", #2") \
    CRUMB_INSERT(CRUMB_EVEN, CRUMB_SELECTORS, 10) \
    CRUMB_INSERT(CRUMB_ODD, CRUMB_SELECTORS, 10)
#define CRUMB_SELECT_ONE(low) \
    CRUMB_INSERT(CRUMB_EVEN, low, 10) \
    CRUMB_INSERT(CRUMB_EVEN, CRUMB_SELECTORS, 11)

// The scales of a group: `SELECT` spreads their low nibbles over the channels' bytes. `LOAD`, `CONVERT` and
// `FINISH` make v16-v19 of them, apart because loads take time. `BEGIN` is what four groups need.
#define CRUMB_SPREAD \
    CRUMB_LOAD(CRUMB_SELECTORS, "[%[spread]]") \
    "sli v24.16b, v24.16b, #4\n" \
    CRUMB_LOOK_UP(CRUMB_SELECTORS, 24, CRUMB_SELECTORS)
#define CRUMB_HALVES_BEGIN ""
#define CRUMB_HALVES_SELECT \
    "ldp q16, q17, [%[scales]]\n" \
    "uzp1 v24.16b, v16.16b, v17.16b\n" \
    CRUMB_SPREAD
#define CRUMB_HALVES_LOAD(to) "ldp q18, q19, [%[scales]], #32\n"
#define CRUMB_HALVES_CONVERT(from, powers) \
    "fcvtl v16.4s, v18.4h\n" \
    "fcvtl2 v17.4s, v18.8h\n" \
    "fcvtl v18.4s, v19.4h\n" \
    "fcvtl2 v19.4s, v19.8h\n"
#define CRUMB_HALVES_FINISH(powers) ""
// Bytes go to the top of words. Their powers of two change every 8 groups.
#define CRUMB_MULTIPLIERS_BEGIN \
    "tbnz %[passes], #0, 2f\n" \
    "ldr q16, [%[exponents]], #16\n" \
    CRUMB_LOAD(CRUMB_EVEN, "[%[tops]]") \
    CRUMB_LOOK_UP(CRUMB_EVEN, 16, CRUMB_EVEN) \
    CRUMB_FOUR("ushr", CRUMB_EVEN, "4s", CRUMB_EVEN, "4s", ", #1") \
    "st1 {v20.16b, v21.16b, v22.16b, v23.16b}, [%[powers]]\n" \
    "2:\n"
#define CRUMB_MULTIPLIERS_SELECT \
    "ldr q24, [%[scales]]\n" \
    CRUMB_SPREAD
#define CRUMB_MULTIPLIERS_LOAD(to) \
    CRUMB_LOAD(CRUMB_SELECTORS, "[%[tops]]") \
    "ldr q" #to ", [%[scales]], #16\n"
#define CRUMB_MULTIPLIERS_CONVERT_(from, ...) \
    CRUMB_LOOK_UP(CRUMB_SELECTORS, from, CRUMB_SELECTORS) \
    CRUMB_LOAD(__VA_ARGS__, "[%[powers]]") \
    CRUMB_FOUR("scvtf", CRUMB_SELECTORS, "4s", CRUMB_SELECTORS, "4s", ", #24")
#define CRUMB_MULTIPLIERS_CONVERT(...) CRUMB_MULTIPLIERS_CONVERT_(__VA_ARGS__)
#define CRUMB_MULTIPLIERS_FINISH(powers) CRUMB_WORDS("fmul", CRUMB_SELECTORS, CRUMB_SELECTORS, powers)

// A group. Codes are loaded a register row ahead.
#define CRUMB_FIRST(to, step) \
    CRUMB_LOAD(to, step) \
    "ldp q4, q5, [%[x]], #32\n"
#define CRUMB_STARTS CRUMB_LOAD(CRUMB_SUMS, "[%[origin]]")
#define CRUMB_TWO_BITS(scales) \
    CRUMB_FIRST(CRUMB_EVEN, "[%[codes]], #64") \
    scales##_SELECT \
    CRUMB_STARTS \
    CRUMB_SELECT_TWO \
    CRUMB_NIBBLES(CRUMB_EVEN, CRUMB_LOW, 0) \
    CRUMB_LOAD(CRUMB_EVEN, "[%[codes]], #64") \
    CRUMB_NIBBLES(CRUMB_ODD, CRUMB_LOW, 1) \
    CRUMB_SELECT_TWO \
    scales##_LOAD(11) \
    CRUMB_NIBBLES(CRUMB_EVEN, CRUMB_LOW, 2) \
    scales##_CONVERT(11, CRUMB_EVEN) \
    CRUMB_NIBBLES(CRUMB_ODD, CRUMB_LOW, 3) \
    scales##_FINISH(CRUMB_EVEN)
#define CRUMB_PAIRS(scales) \
    CRUMB_FIRST(CRUMB_EVEN, "[%[codes]], #64") \
    CRUMB_LOAD(CRUMB_ODD, "[%[codes]], #64") \
    CRUMB_STARTS \
    CRUMB_PAIRED(CRUMB_EVEN, CRUMB_SELECTORS, 0, 1) \
    scales##_LOAD(10) \
    CRUMB_PAIRED(CRUMB_ODD, CRUMB_EVEN, 2, 3) \
    scales##_CONVERT(10, CRUMB_EVEN) \
    scales##_FINISH(CRUMB_EVEN)
// The lowest bits of the indices stay, the others are loaded twice.
#define CRUMB_THREE_BITS(scales) \
    CRUMB_LOAD(CRUMB_LOW, "[%[lows]], %[step]") \
    CRUMB_FIRST(CRUMB_EVEN, "[%[codes]]") \
    scales##_SELECT \
    CRUMB_STARTS \
    CRUMB_SELECT_ONE(CRUMB_LOW) \
    CRUMB_NIBBLES(CRUMB_EVEN, CRUMB_ODD, 0) \
    CRUMB_LOAD(CRUMB_EVEN, "[%[codes]], #64") \
    CRUMB_BITS("ushr", CRUMB_ODD, CRUMB_LOW, ", #1") \
    CRUMB_BITS("shl", CRUMB_EVEN, CRUMB_EVEN, ", #2") \
    CRUMB_SELECT_ONE(CRUMB_ODD) \
    CRUMB_NIBBLES(CRUMB_EVEN, CRUMB_ODD, 1) \
    CRUMB_LOAD(CRUMB_EVEN, "[%[codes]]") \
    CRUMB_BITS("shl", CRUMB_ODD, CRUMB_LOW, ", #1") \
    CRUMB_SELECT_ONE(CRUMB_ODD) \
    CRUMB_NIBBLES(CRUMB_EVEN, CRUMB_ODD, 2) \
    CRUMB_LOAD(CRUMB_EVEN, "[%[codes]]") \
    "add %[codes], %[codes], #128\n" \
    CRUMB_BITS("ushr", CRUMB_LOW, CRUMB_LOW, ", #2") \
    CRUMB_BITS("shl", CRUMB_EVEN, CRUMB_EVEN, ", #2") \
    CRUMB_SELECT_ONE(CRUMB_LOW) \
    scales##_LOAD(12) \
    CRUMB_NIBBLES(CRUMB_EVEN, CRUMB_ODD, 3) \
    scales##_CONVERT(12, CRUMB_LOW) \
    scales##_FINISH(CRUMB_LOW)
#define CRUMB_FOUR_BITS(scales) \
    CRUMB_FIRST(CRUMB_EVEN, "[%[codes]], #64") \
    CRUMB_STARTS \
    CRUMB_LOAD(CRUMB_ODD, "[%[codes]], #64") \
    CRUMB_NIBBLES(CRUMB_EVEN, CRUMB_LOW, 0) \
    CRUMB_LOAD(CRUMB_EVEN, "[%[codes]], #64") \
    CRUMB_NIBBLES(CRUMB_ODD, CRUMB_LOW, 1) \
    CRUMB_LOAD(CRUMB_ODD, "[%[codes]], #64") \
    scales##_LOAD(11) \
    CRUMB_NIBBLES(CRUMB_EVEN, CRUMB_LOW, 2) \
    scales##_CONVERT(11, CRUMB_EVEN) \
    CRUMB_NIBBLES(CRUMB_ODD, CRUMB_LOW, 3) \
    scales##_FINISH(CRUMB_EVEN)

// totals += (sums - origin) * (activation scale `lane` of four) * weight scales
#define CRUMB_ADD_GROUP(lane) \
    CRUMB_FOUR("fsub", CRUMB_SUMS, "4s", CRUMB_SUMS, "4s", ", v8.4s") \
    CRUMB_FOUR("fmul", CRUMB_SUMS, "4s", CRUMB_SUMS, "4s", ", v6.s[" #lane "]") \
    CRUMB_WORDS("fmla", CRUMB_TOTALS, CRUMB_SUMS, CRUMB_SELECTORS)

#define CRUMB_PASSES(prepare, begin, group) \
    asm volatile(prepare \
                 "movi v9.16b, #15\n" \
                 "ldr q7, [%[tables]]\n" \
                 "ldr q8, [%[origin]]\n" \
                 "movi v28.16b, #0\n" \
                 "movi v29.16b, #0\n" \
                 "movi v30.16b, #0\n" \
                 "movi v31.16b, #0\n" \
                 "1:\n" \
                 "ldr q6, [%[x_scales]], #16\n" \
                 begin \
                 group CRUMB_ADD_GROUP(0) \
                 group CRUMB_ADD_GROUP(1) \
                 group CRUMB_ADD_GROUP(2) \
                 group CRUMB_ADD_GROUP(3) \
                 "subs %[passes], %[passes], #1\n" \
                 "b.ne 1b\n" \
                 "stp q28, q29, [%[out]]\n" \
                 "stp q30, q31, [%[out], #32]\n" \
                 : [codes] "+r"(p.codes), [lows] "+r"(p.lows), [fourths] "+r"(p.fourths), \
                   [scales] "+r"(p.scales), [exponents] "+r"(p.exponents), [x] "+r"(p.x), \
                   [x_scales] "+r"(p.x_scales), [passes] "+r"(p.passes) \
                 : [tables] "r"(p.tables), [origin] "r"(constants.origin), [spread] "r"(constants.spread), \
                   [tops] "r"(constants.tops), [powers] "r"(powers), [step] "r"(p.step), [out] "r"(out) \
                 : CRUMB_CLOBBERS)
#define CRUMB_PASSES_WITH(prepare, group) \
    do { \
        if constexpr (block_scaled) \
            CRUMB_PASSES(prepare, CRUMB_MULTIPLIERS_BEGIN, group(CRUMB_MULTIPLIERS)); \
        else \
            CRUMB_PASSES(prepare, CRUMB_HALVES_BEGIN, group(CRUMB_HALVES)); \
    } while (false)
// clang-format on

template <class Format, class Tile>
struct lookup_asm<isa::CRUMB_THIS_ISA, Format, Tile> : Tile {
    static CRUMB_INLINE void single(const linear_args& args, std::size_t tile, std::size_t row,
                                    float* out) noexcept {
        if constexpr (indexed_codes<typename Format::codes>) {
            // Whole passes, and as many as share powers of two.
            const std::size_t groups = args.groups / pass_groups * pass_groups;
            if (groups == 0)
                return Tile::single(args, tile, row, out);
            run({args, tile, row, groups / 4}, out);
            if (groups != args.groups)
                Tile::single_from(args, tile, row, groups, out);
        } else {
            Tile::single(args, tile, row, out);
        }
    }

  private:
    static constexpr bool block_scaled = Format::scales::block_groups != 1;
    static constexpr std::size_t planes = planes_of<typename Format::codes>;
    static constexpr std::size_t pass_groups = block_scaled ? Format::scales::block_groups : 4;

    struct pointers {
        const std::uint8_t* codes;
        const std::uint8_t* lows; ///< the register row of lowest bits, or the plane of third ones
        const std::uint8_t* fourths = nullptr;
        const void* scales;
        const std::uint8_t* exponents = nullptr;
        const std::int8_t* x;
        const float* x_scales;
        std::size_t passes;
        const std::int8_t* tables;
        std::size_t step = Tile::code_bytes;

        CRUMB_INLINE pointers(const linear_args& args, std::size_t tile, std::size_t row,
                              std::size_t passes_) noexcept
            : codes(args.codes + tile * args.groups * Tile::code_bytes), lows(codes + 2 * tile_row_bytes),
              x(args.x_codes + row * args.groups * group_size), x_scales(Tile::row_scales(args, row)),
              passes(passes_), tables(args.codebooks) {
            if constexpr (block_scaled) {
                scales = args.multipliers + tile * args.groups * tile_channels;
                exponents = args.exponents + tile * ((args.groups + 7) / 8) * tile_channels;
            } else {
                scales = args.scales + tile * args.groups * tile_channels;
            }
            if constexpr (planes >= 1)
                lows = args.planes[0] + tile * args.groups * tile_row_bytes;
            if constexpr (planes >= 2)
                fourths = args.planes[1] + tile * args.groups * tile_row_bytes;
        }
    };
    static CRUMB_INLINE void run(pointers p, float* out) noexcept {
        using index = typename Format::codes;
        [[maybe_unused]] alignas(64) float powers[tile_channels];
        if constexpr (planes == 1)
            CRUMB_PASSES_WITH(CRUMB_PLANES_BEGIN, CRUMB_THREE_IN_PLANES);
        else if constexpr (planes == 2)
            CRUMB_PASSES_WITH(CRUMB_PLANES_BEGIN, CRUMB_FOUR_IN_PLANES);
        else if constexpr (index::paired)
            CRUMB_PASSES_WITH("ldr q11, [%[tables], #16]\n", CRUMB_PAIRS);
        else if constexpr (index::bits == 2)
            CRUMB_PASSES_WITH("movi v10.16b, #0x33\n", CRUMB_TWO_BITS);
        else if constexpr (index::bits == 3)
            CRUMB_PASSES_WITH("movi v10.16b, #0x22\nmovi v11.16b, #0x11\n", CRUMB_THREE_BITS);
        else
            CRUMB_PASSES_WITH("", CRUMB_FOUR_BITS);
    }

    struct constant_bytes {
        alignas(64) std::int32_t origin[16];
        std::uint8_t spread[64], tops[64]; ///< indices that repeat a byte, and that move it to a word's top
    };
    static constexpr constant_bytes constants = [] {
        constant_bytes c{};
        for (auto& start : c.origin)
            start = activation_origin_bits;
        for (unsigned i = 0; i < 64; ++i) {
            c.spread[i] = static_cast<std::uint8_t>(i / 4);
            c.tops[i] = static_cast<std::uint8_t>(i % 4 == 3 ? i / 4 : 255);
        }
        return c;
    }();
};

#undef CRUMB_LOW
#undef CRUMB_SELECTORS
#undef CRUMB_EVEN
#undef CRUMB_ODD
#undef CRUMB_TOTALS
#undef CRUMB_INSERT_
#undef CRUMB_INSERT
#undef CRUMB_KEEP_
#undef CRUMB_KEEP
#undef CRUMB_NIBBLES
#undef CRUMB_PAIRED
#undef CRUMB_OWN_TABLE
#undef CRUMB_SELECT_TWO
#undef CRUMB_SELECT_ONE
#undef CRUMB_SPREAD
#undef CRUMB_HALVES_BEGIN
#undef CRUMB_HALVES_SELECT
#undef CRUMB_HALVES_LOAD
#undef CRUMB_HALVES_CONVERT
#undef CRUMB_HALVES_FINISH
#undef CRUMB_MULTIPLIERS_BEGIN
#undef CRUMB_MULTIPLIERS_SELECT
#undef CRUMB_MULTIPLIERS_LOAD
#undef CRUMB_MULTIPLIERS_CONVERT_
#undef CRUMB_MULTIPLIERS_CONVERT
#undef CRUMB_MULTIPLIERS_FINISH
#undef CRUMB_FIRST
#undef CRUMB_STARTS
#undef CRUMB_TWO_BITS
#undef CRUMB_PAIRS
#undef CRUMB_THREE_BITS
#undef CRUMB_FOUR_BITS
#undef CRUMB_PLANES_BEGIN
#undef CRUMB_PLANE_ROWS
#undef CRUMB_LAST_PLANE_ROWS
#undef CRUMB_THREE_IN_PLANES
#undef CRUMB_FOUR_IN_PLANES
#undef CRUMB_ADD_GROUP
#undef CRUMB_PASSES
#undef CRUMB_PASSES_WITH
#include <crumb/isa/neon/asm/end_macros.inl>

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
