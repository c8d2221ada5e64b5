// One row times the groups of a tile that have indices in nibbles and exponents, in assembly; see
// record_single.inl. Loops:
//     fours of groups of 32
//
// v0-v3 sums | v4, v5 activations | v6 mask | v7 table | v8-v11, v12-v15 indices of two register rows in turn
// | v16-v19 operands, then powers of two | v20, v21, v26 exponents | v22 scales of activations | v23 the
// least power | v24 unit | v25 origin | v28-v31 totals
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_dotprod
#include <crumb/isa/editor.hpp>

#include <crumb/isa/neon/fields.inl>
#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/record_drivers.inl>

#include <crumb/isa/neon/asm/record_single.inl>
#endif

#include <crumb/isa/neon/asm/macros.inl>

namespace crumb::inline CRUMB_ABI::kernel {

// clang-format off
#define CRUMB_A 8, 9, 10, 11
#define CRUMB_B 12, 13, 14, 15
#define CRUMB_C 16, 17, 18, 19
#define CRUMB_LAST 28, 29, 30, 31

#define CRUMB_INDEX_ROW(cells, lane) CRUMB_LOOK_UP_ROW(cells, CRUMB_C, 6, lane)
// totals += (sums - origin) * (activation scale `lane` of four) * powers of two
#define CRUMB_INDEX_GROUP(lane) \
    CRUMB_LOAD(CRUMB_A, "[%[codes]], #64") \
    "ldp q4, q5, [%[x]], #32\n" \
    CRUMB_LOAD(CRUMB_SUMS, "[%[origin]]") \
    CRUMB_LOAD(CRUMB_B, "[%[codes]], #64") \
    CRUMB_INDEX_ROW(CRUMB_A, 0) \
    CRUMB_LOAD(CRUMB_A, "[%[codes]], #64") \
    CRUMB_INDEX_ROW(CRUMB_B, 1) \
    CRUMB_LOAD(CRUMB_B, "[%[codes]], #64") \
    CRUMB_INDEX_ROW(CRUMB_A, 2) \
    "ldr q26, [%[record]], #16\n" \
    CRUMB_INDEX_ROW(CRUMB_B, 3) \
    "ushll v20.8h, v26.8b, #7\n" \
    "ushll2 v21.8h, v26.16b, #7\n" \
    "umax v20.8h, v20.8h, v23.8h\n" \
    "umax v21.8h, v21.8h, v23.8h\n" \
    "shll v16.4s, v20.4h, #16\n" \
    "shll2 v17.4s, v20.8h, #16\n" \
    "shll v18.4s, v21.4h, #16\n" \
    "shll2 v19.4s, v21.8h, #16\n" \
    CRUMB_FOUR("fsub", CRUMB_SUMS, "4s", CRUMB_SUMS, "4s", ", v25.4s") \
    CRUMB_FOUR("fmul", CRUMB_SUMS, "4s", CRUMB_SUMS, "4s", ", v22.s[" #lane "]") \
    CRUMB_WORDS("fmla", CRUMB_LAST, CRUMB_SUMS, CRUMB_C)
// clang-format on

template <class Format>
requires(has_table<Format> && std::is_same_v<typename Format::codes, field_codes<4>> &&
         std::is_same_v<typename Format::scales::value, e8m0>)
struct record_single<isa::CRUMB_THIS_ISA, Format> {
    static constexpr bool takes_all = false;
    static CRUMB_INLINE std::size_t run(const linear_args& args, std::size_t tile, float* out) noexcept {
        static_assert(record_reader<isa::CRUMB_THIS_ISA, Format>::use == record_sums::none);
        record_pointers<isa::CRUMB_THIS_ISA, Format> p(args, tile);
        const std::size_t fours = p.blocks / 4;
        std::size_t left = fours;
        if (fours == 0)
            return 0;
        // clang-format off
        asm volatile(
            "movi v6.16b, #15\n"
            "ldr q7, [%[table]]\n"
            "movi v23.8h, #64\n"
            "ldr s24, [%[unit]]\n"
            "ldr q25, [%[origin]]\n"
            CRUMB_LOAD(CRUMB_LAST, "[%[out]]")
            "1:\n"
            "ldr q22, [%[x_scales]], #16\n"
            "subs %[left], %[left], #1\n"
            // Powers of two: it does not matter which factor the unit goes with.
            "fmul v22.4s, v22.4s, v24.s[0]\n"
            CRUMB_INDEX_GROUP(0)
            CRUMB_INDEX_GROUP(1)
            CRUMB_INDEX_GROUP(2)
            CRUMB_INDEX_GROUP(3)
            "b.ne 1b\n"
            CRUMB_STORE(CRUMB_LAST, "[%[out]]")
            : [codes] "+&r"(p.codes), [record] "+&r"(p.record), [x] "+&r"(p.x), [x_scales] "+&r"(p.x_scales),
              [left] "+&r"(left)
            : [table] "r"(codes::table_entries.at), [origin] "r"(origin), [unit] "r"(&unit), [out] "r"(out)
            : CRUMB_CLOBBERS);
        // clang-format on
        return 4 * fours;
    }

  private:
    static constexpr std::int32_t o = activation_origin_bits;
    alignas(64) static constexpr std::int32_t origin[16] = {o, o, o, o, o, o, o, o, o, o, o, o, o, o, o, o};
    using codes = record_codes<isa::CRUMB_THIS_ISA, Format>;
    static constexpr float unit = table_unit_of<Format>;
};

#undef CRUMB_A
#undef CRUMB_B
#undef CRUMB_C
#undef CRUMB_LAST
#undef CRUMB_INDEX_ROW
#undef CRUMB_INDEX_GROUP
#include <crumb/isa/neon/asm/end_macros.inl>

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
