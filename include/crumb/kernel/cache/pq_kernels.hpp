// Scans of product-quantized keys and values, by name: sums of table lookups for scores, sums of looked-up
// entries for outputs. The bodies are in pq_tables.inl, pq_score.inl and pq_add.inl.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/kernel/cache/route.hpp>

#include <cstddef>
#include <cstdint>

namespace crumb::inline CRUMB_ABI::kernel {

/// How codes are looked up.
enum class pq_kind : std::uint8_t {
    nibble,   ///< 4 bits: a table of 16
    additive, ///< two nibbles: the sum of an entry of each of two tables of 16
    six,      ///< 6 bits: a table of 64
    byte      ///< 8 bits: a table of 256
};

constexpr pq_kind pq_kind_of(const kv_codec& codec) noexcept {
    return codec.additive    ? pq_kind::additive
           : codec.bits == 4 ? pq_kind::nibble
           : codec.bits == 6 ? pq_kind::six
                             : pq_kind::byte;
}

/// The ISA whose scans of nibbles another uses: its own, or those that its primitives name, where theirs
/// would be no faster.
template <class I>
struct pq_nibble_scans {
    using type = I;
};
template <class I>
requires requires { typename I::pq::nibble_scans; }
struct pq_nibble_scans<I> {
    using type = typename I::pq::nibble_scans;
};

// ---- tables ----------------------------------------------------------------------------------------------
/// What one query needs of its head's keys, in two planes of 7 bits: the product of query and key is
///     base + step * sum over rows j of (low[j][code_j] + 128 * high[j][code_j])
/// give or take `error`, where additive codes take the sum of an entry of each half of a table.
struct pq_query {
    std::uint8_t* low = nullptr;  ///< [rows][entries], 0 .. 127; an odd number of rows is followed by zeros
    std::uint8_t* high = nullptr; ///< likewise
    float step = 0, base = 0;
    /// Bound of the difference to the sum of exact products, for any codes. Infinite if the query was not
    /// finite; the tables are zero then.
    float error = 0;
    /// The same with the plane `high` alone, where the base is `coarse_base`.
    float coarse_base = 0, coarse_error = 0;
    float* work = nullptr; ///< of `pq_make_tables`: head_size + 2 * tables floats
    /// For codes that are expanded `low` and `high` are signed bytes, one per channel and zeros up to a
    /// multiple of 64, and the product is step * sum of (128 high[c] + low[c]) entry[c]; their sums.
    std::int32_t low_sum = 0, high_sum = 0;
};

/// Memory of a `pq_query`, in bytes from an address aligned to `alignment`.
struct pq_query_memory {
    std::size_t high, work, bytes; ///< offsets, and the end

    constexpr pq_query_memory(const kv_codec& codec, std::size_t head_size, bool expanded) noexcept
        : high(0), work(0), bytes(0) {
        const std::size_t rows = head_size / codec.dims;
        high = round_up(expanded ? head_size : round_up(rows, 2) * codec.entries(), alignment);
        work = 2 * high;
        bytes = work + (expanded ? 0 : round_up((head_size + 4 * rows) * sizeof(float), alignment));
    }
    /// The query that lies there.
    pq_query at(std::byte* memory) const noexcept {
        pq_query q;
        q.low = reinterpret_cast<std::uint8_t*>(memory);
        q.high = q.low + high;
        q.work = reinterpret_cast<float*>(memory + work);
        return q;
    }
};

struct pq_table_args {
    kv_codec codec;
    std::size_t head_size = 0;
    const float* q = nullptr; ///< [head_size], multiplied by the scale of scores
    pq_tables centroids;
    pq_query* out = nullptr;
};

// ---- scans -----------------------------------------------------------------------------------------------
/// Codes of a part: a head's keys or values of 256 tokens.
struct pq_codes {
    kv_codec codec;
    std::size_t head_size = 0;
    const std::uint8_t* codes = nullptr; ///< [rows][row bytes]
    /// As many bytes that will be needed next: their lines are prefetched while those of `codes` are read; or
    /// null.
    const std::uint8_t* ahead = nullptr;
    /// Blocks of 64 tokens to read, half-open, of 4. Codes of others may be read, whatever they are.
    std::size_t first_block = 0, last_block = 0;

    constexpr std::size_t rows() const noexcept { return head_size / codec.dims; }
    constexpr std::size_t row_bytes() const noexcept { return kv_part_tokens * codec.bits / 8; }
};

struct pq_score_args {
    pq_codes codes;
    const pq_query* queries = nullptr;
    std::size_t count = 0;                ///< of queries
    float* out = nullptr;                 ///< [count][256]: only those of the blocks are written
    const std::uint8_t* planes = nullptr; ///< [count]: 1 for `high` alone, or 2; null: all 2
    /// For codes that are expanded: `pq_tables::entries`, or what `pq_join` makes of them.
    const std::int8_t* entries = nullptr;

    constexpr bool is_coarse(std::size_t q) const noexcept { return planes != nullptr && planes[q] == 1; }
};

/// Floats that a channel of values is summed in: what is left of a register after its halves are added, since
/// each further step costs about as much as the dot instruction of 64 tokens. Narrow registers use fewer.
inline constexpr std::size_t pq_sums = 8;

/// Weights of a part's tokens for one sum of values.
struct pq_plane {
    const std::uint8_t* weights = nullptr; ///< [256], 0 .. 127; 0 for tokens that do not take part
    float factor = 0;
    float* sums = nullptr; ///< [head_size][pq_sums]
};

struct pq_add_args {
    pq_codes codes;
    /// `pq_tables::entries`, additive halves add to -127 .. 127; or what `pq_join` makes of them.
    const std::int8_t* entries = nullptr;
    const pq_plane* planes = nullptr;
    std::size_t count = 0; ///< of planes
};

struct pq_finish_args {
    const float* sums = nullptr; ///< as in `pq_plane`
    std::size_t head_size = 0;
    const float* scales = nullptr; ///< of channels
    float* out = nullptr;          ///< [head_size]
    bool joined = false;           ///< sums of joined rows: [head_size]
};

/// Entries of a head whose rows are to be joined: [head_size / dims][dims][256].
struct pq_join_args {
    kv_codec codec;
    std::size_t head_size = 0;
    const std::int8_t* entries = nullptr;
    bool keys = true;
    std::int8_t* out = nullptr; ///< [head_size / dims][256][dims], for keys as the ISA multiplies them
};

// What the scans are written with, an ISA names as `pq`: isa/portable/pq.inl says what its functions do.

/// Whether sums of additive keys are made of two rows at a time, in an order of the ISA's own.
template <class Primitives>
concept has_row_pairs = requires { typename Primitives::row_pairs; };

/// Whether tables of 64 entries and more are made a row at a time, by instructions of the ISA's own.
template <class Primitives>
concept has_wide_rows = requires { typename Primitives::template wide_row<1>; };

/// Whether codes can be expanded, for dot instructions or for `words`.
template <class Primitives>
concept has_quads = requires { typename Primitives::quads; };

/// Whether codes are expanded for products with integers of 16 bits. What `words` has: `keep`, of two
/// channels of 32 tokens, and `place` in what it keeps; `load`, `load_query` and `dot`, of two channels of 8
/// tokens or four of 4; `store`, of step * sums; `widen`, of a query's planes.
template <class Primitives>
concept has_words = requires { typename Primitives::words; };

// One specialization per ISA is compiled inside its target region.
template <class Isa, pq_kind Kind>
struct pq_lookup;
template <class Isa>
struct pq_expand_query_run;
template <class Isa, class Words>
struct pq_words_run;
template <class Isa>
struct pq_expand_run;
template <class Isa>
struct pq_join_run;
template <class Isa>
struct pq_table_run;
template <class Isa>
struct pq_score_run;
template <class Isa>
struct pq_add_run;

/// How an ISA expands a codec.
struct pq_expansion {
    std::size_t from = 0; ///< queries per kv head and row from which it is faster than tables; 0: never
    bool joined = false;  ///< entries of a code are loaded together, from a copy that `join` makes
    bool whole = false;   ///< two planes of a query cost no more than one
};

/// The scans of an ISA, called once per part: attention over codes is compiled for fewer ISAs than they are.
struct pq_scans {
    void (*score)(const pq_score_args&) noexcept = nullptr;
    void (*add)(const pq_add_args&) noexcept = nullptr;
    bool (*meet)(const kv_codec&, std::size_t, std::size_t) noexcept = nullptr;
    pq_expansion (*expansion)(const kv_codec&) noexcept = nullptr;
    void (*expand)(const pq_score_args&) noexcept = nullptr;
    void (*join)(const pq_join_args&) noexcept = nullptr;
    void (*add_joined)(const pq_add_args&) noexcept = nullptr;
};

/// Makes the tables of a query; `out` points into memory as `pq_query_memory` says. Integers of tables and
/// all else are the same on every ISA.
template <class Isa>
void pq_make_tables(const pq_table_args& args) noexcept {
    pq_table_run<Isa>::run(args);
}

/// Makes the planes of a query for codes that are expanded.
template <class Isa>
void pq_expand_query(const pq_table_args& args) noexcept {
    pq_expand_query_run<Isa>::run(args);
}

template <class Isa>
pq_expansion pq_expansion_of(const kv_codec& codec) noexcept {
    return pq_expand_run<Isa>::of(codec);
}
/// out[q][t] = step * (sum over channels of the query's integers times entries). The sums are exact integers.
template <class Isa>
void pq_expand(const pq_score_args& args) noexcept {
    pq_expand_run<Isa>::run(args);
}
template <class Isa>
void pq_join(const pq_join_args& args) noexcept {
    pq_join_run<Isa>::join(args);
}
/// As `pq_add`, but sums are [head_size].
template <class Isa>
void pq_add_joined(const pq_add_args& args) noexcept {
    pq_join_run<Isa>::add(args);
}

/// out[q][t] = base + step * (sums of tables) for the tokens of the blocks. The sums are exact integers.
template <class Isa>
void pq_scores(const pq_score_args& args) noexcept {
    pq_score_run<Isa>::run(args);
}

/// sums[c][lanes] += factor * (sum over tokens t of weights[t] * entry of channel c of code_t), spread over
/// the lanes; the sums of a part are exact integers.
template <class Isa>
void pq_add(const pq_add_args& args) noexcept {
    pq_add_run<Isa>::run(args);
}

/// Whether codes of blocks before `end` and codes from block `begin` on come in one register. What is added
/// of a register is all of it, so they have to be added together.
template <class Isa>
bool pq_meet(const kv_codec& codec, std::size_t end, std::size_t begin) noexcept {
    return pq_add_run<Isa>::meet(codec, end, begin);
}

/// out[c] += scales[c] * (sum of the lanes of sums[c]).
template <class Isa>
void pq_finish(const pq_finish_args& args) noexcept {
    pq_add_run<Isa>::finish(args);
}

} // namespace crumb::inline CRUMB_ABI::kernel
