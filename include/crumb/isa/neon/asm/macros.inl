// Macros of assembly that works on four registers at a time: `CRUMB_FOUR` and the like take lists as
// `CRUMB_SUMS`. Included by sources that are compiled per ISA; end_macros.inl undefines them.

// clang-format off
#define CRUMB_SUMS 0, 1, 2, 3

// `op` of types `dt` and `at`, with what follows the operands.
#define CRUMB_FOUR_(op, d0, d1, d2, d3, dt, a0, a1, a2, a3, at, rest) \
    op " v" #d0 "." dt ", v" #a0 "." at rest "\n" \
    op " v" #d1 "." dt ", v" #a1 "." at rest "\n" \
    op " v" #d2 "." dt ", v" #a2 "." at rest "\n" \
    op " v" #d3 "." dt ", v" #a3 "." at rest "\n"
#define CRUMB_FOUR(...) CRUMB_FOUR_(__VA_ARGS__)
#define CRUMB_BITS_(op, d0, d1, d2, d3, a0, a1, a2, a3, rest) \
    CRUMB_FOUR_(op, d0, d1, d2, d3, "16b", a0, a1, a2, a3, "16b", rest)
#define CRUMB_BITS(...) CRUMB_BITS_(__VA_ARGS__)
#define CRUMB_WORDS_(op, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1, b2, b3) \
    op " v" #d0 ".4s, v" #a0 ".4s, v" #b0 ".4s\n" \
    op " v" #d1 ".4s, v" #a1 ".4s, v" #b1 ".4s\n" \
    op " v" #d2 ".4s, v" #a2 ".4s, v" #b2 ".4s\n" \
    op " v" #d3 ".4s, v" #a3 ".4s, v" #b3 ".4s\n"
#define CRUMB_WORDS(...) CRUMB_WORDS_(__VA_ARGS__)
#define CRUMB_LOOK_UP_(d0, d1, d2, d3, table, a0, a1, a2, a3) \
    "tbl v" #d0 ".16b, {v" #table ".16b}, v" #a0 ".16b\n" \
    "tbl v" #d1 ".16b, {v" #table ".16b}, v" #a1 ".16b\n" \
    "tbl v" #d2 ".16b, {v" #table ".16b}, v" #a2 ".16b\n" \
    "tbl v" #d3 ".16b, {v" #table ".16b}, v" #a3 ".16b\n"
#define CRUMB_LOOK_UP(...) CRUMB_LOOK_UP_(__VA_ARGS__)
#define CRUMB_LOAD_(d0, d1, d2, d3, from) \
    "ld1 {v" #d0 ".16b, v" #d1 ".16b, v" #d2 ".16b, v" #d3 ".16b}, " from "\n"
#define CRUMB_LOAD(...) CRUMB_LOAD_(__VA_ARGS__)
#define CRUMB_STORE_(d0, d1, d2, d3, to) \
    "st1 {v" #d0 ".16b, v" #d1 ".16b, v" #d2 ".16b, v" #d3 ".16b}, " to "\n"
#define CRUMB_STORE(...) CRUMB_STORE_(__VA_ARGS__)
// CRUMB_SUMS += four bytes a lane times those of a lane of x.
#define CRUMB_DOT_(o0, o1, o2, o3, x, lane) \
    CRUMB_FOUR_("sdot", 0, 1, 2, 3, "4s", o0, o1, o2, o3, "16b", ", v" #x ".4b[" #lane "]")
#define CRUMB_DOT(...) CRUMB_DOT_(__VA_ARGS__)
// One register row of nibbles that are indices into table v7: `indices` take the low ones, `cells` become the high ones;
// `lane` of v4 has the inputs of the low ones, of v5 of the high ones.
#define CRUMB_LOOK_UP_ROW_(c0, c1, c2, c3, i0, i1, i2, i3, mask, lane) \
    CRUMB_BITS_("and", i0, i1, i2, i3, c0, c1, c2, c3, ", v" #mask ".16b") \
    CRUMB_BITS_("ushr", c0, c1, c2, c3, c0, c1, c2, c3, ", #4") \
    CRUMB_LOOK_UP_(i0, i1, i2, i3, 7, i0, i1, i2, i3) \
    CRUMB_LOOK_UP_(c0, c1, c2, c3, 7, c0, c1, c2, c3) \
    CRUMB_DOT_(i0, i1, i2, i3, 4, lane) \
    CRUMB_DOT_(c0, c1, c2, c3, 5, lane)
#define CRUMB_LOOK_UP_ROW(...) CRUMB_LOOK_UP_ROW_(__VA_ARGS__)
// All registers.
#define CRUMB_CLOBBERS \
    "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
        "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", \
        "v30", "v31"
// clang-format on
