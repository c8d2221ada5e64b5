// Groups of indices whose bits lie in planes, for the passes of lookup_asm.inl, which has the other macros
// and undefines these.
//
// v7 scales | v9-v11 masks | v12-v15 tables of the register rows | v16-v19 what completes two rows' pairs,
// then scales | v20-v27 nibbles and indices in turn

// clang-format off
#define CRUMB_KEEP_(d0, d1, d2, d3, a0, a1, a2, a3, mask) \
    "bif v" #d0 ".16b, v" #a0 ".16b, v" #mask ".16b\n" \
    "bif v" #d1 ".16b, v" #a1 ".16b, v" #mask ".16b\n" \
    "bif v" #d2 ".16b, v" #a2 ".16b, v" #mask ".16b\n" \
    "bif v" #d3 ".16b, v" #a3 ".16b, v" #mask ".16b\n"
#define CRUMB_KEEP(...) CRUMB_KEEP_(__VA_ARGS__)

// As CRUMB_NIBBLES, by the row's own table. `next` may take the place of `indices`.
#define CRUMB_OWN_TABLE(table, cells, indices, lane, next) \
    CRUMB_BITS("and", indices, cells, ", v9.16b") \
    CRUMB_BITS("ushr", cells, cells, ", #4") \
    CRUMB_LOOK_UP(indices, table, indices) \
    CRUMB_DOT(indices, 4, lane) \
    next \
    CRUMB_LOOK_UP(cells, table, cells) \
    CRUMB_DOT(cells, 5, lane)

#define CRUMB_PLANES_BEGIN \
    "movi v10.16b, #0xcc\n" \
    "movi v11.16b, #0xaa\n" \
    CRUMB_LOAD(CRUMB_LOW, "[%[tables]]")
// Two rows of nibbles. Pairs are loaded again for the second: one instruction where copies would take four.
#define CRUMB_PLANE_ROWS(table, next_table, lane, next_lane, completed, next) \
    CRUMB_KEEP(CRUMB_EVEN, CRUMB_SELECTORS, 10) \
    CRUMB_OWN_TABLE(table, CRUMB_EVEN, CRUMB_ODD, lane, CRUMB_LOAD(CRUMB_ODD, "[%[codes]], #64")) \
    CRUMB_INSERT(CRUMB_ODD, CRUMB_SELECTORS, 10) \
    completed \
    CRUMB_OWN_TABLE(next_table, CRUMB_ODD, CRUMB_EVEN, next_lane, next)
#define CRUMB_LAST_PLANE_ROWS(scales) \
    CRUMB_PLANE_ROWS(14, 15, 2, 3, scales##_LOAD(7), scales##_CONVERT(7, CRUMB_EVEN)) \
    scales##_FINISH(CRUMB_EVEN)
#define CRUMB_THREE_IN_PLANES(scales) \
    CRUMB_LOAD(CRUMB_SELECTORS, "[%[lows]], #64") \
    CRUMB_FIRST(CRUMB_EVEN, "[%[codes]]") \
    CRUMB_STARTS \
    CRUMB_PLANE_ROWS(12, 13, 0, 1, "", CRUMB_LOAD(CRUMB_EVEN, "[%[codes]]")) \
    CRUMB_LAST_PLANE_ROWS(scales)
// Third and fourth bits, loaded twice as well, change places between the first two rows and the last two.
#define CRUMB_FOUR_IN_PLANES(scales) \
    CRUMB_LOAD(CRUMB_SELECTORS, "[%[lows]]") \
    CRUMB_LOAD(CRUMB_ODD, "[%[fourths]]") \
    CRUMB_FIRST(CRUMB_EVEN, "[%[codes]]") \
    CRUMB_STARTS \
    CRUMB_INSERT(CRUMB_SELECTORS, CRUMB_ODD, 11) \
    CRUMB_PLANE_ROWS(12, 13, 0, 1, \
                     CRUMB_LOAD(CRUMB_SELECTORS, "[%[fourths]], #64"), \
                     CRUMB_LOAD(CRUMB_EVEN, "[%[lows]], #64") \
                     CRUMB_INSERT(CRUMB_SELECTORS, CRUMB_EVEN, 11) \
                     CRUMB_LOAD(CRUMB_EVEN, "[%[codes]]")) \
    CRUMB_LAST_PLANE_ROWS(scales)
// clang-format on
