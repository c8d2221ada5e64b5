// Scores of product-quantized keys: sums of looked-up bytes of queries' tables. Loops:
//     tiles of tables > units of 64 to 256 tokens > rows (sub-spaces), 1 or 2 at a time > tables
//     additive codes on VBMI: pairs of queries > units of 64 tokens > 4 rows
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/pq.inl>

#include <crumb/kernel/cache/pq_lookup.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct pq_score_run<I> {
    using P = typename I::pq;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = static_cast<std::size_t>(I::lanes);

    static void run(const pq_score_args& args) noexcept {
        switch (pq_kind_of(args.codes.codec)) {
        case pq_kind::nibble:
            return pq_score_run<typename pq_nibble_scans<I>::type>::nibbles(args);
        case pq_kind::additive:
            return scorer<pq_kind::additive>::run(args);
        case pq_kind::six:
            return scorer<pq_kind::six>::run(args);
        case pq_kind::byte:
            return scorer<pq_kind::byte>::run(args);
        }
    }
    /// `run` for codes of 4 bits, for ISAs whose `pq_nibble_scans` name this one.
    static void nibbles(const pq_score_args& args) noexcept { scorer<pq_kind::nibble>::run(args); }

  private:
    /// A row or two at a time, into sums of 16 bits by `score_tables`. A query is a table per plane. The
    /// query that follows those it has done.
    static std::size_t by_rows(const pq_score_args& args, std::size_t q, const std::uint8_t* ahead,
                               void (*score_tables)(const pq_codes&, const std::uint8_t* const*, std::size_t,
                                                    const std::uint8_t*,
                                                    std::uint16_t (*)[kv_part_tokens]) noexcept) noexcept {
        constexpr std::size_t room = 8;
        alignas(64) std::uint16_t sums_of[room][kv_part_tokens];
        const std::uint8_t* from[room] = {}; // GCC would warn of what the call below does not read
        std::size_t end = q, count = 0;
        for (; end < args.count && count + 2 <= room; ++end) {
            from[count++] = args.queries[end].high;
            if (!args.is_coarse(end))
                from[count++] = args.queries[end].low;
        }
        score_tables(args.codes, from, count, ahead, sums_of);
        const std::size_t first = args.codes.first_block * kv_block_tokens,
                          last = args.codes.last_block * kv_block_tokens;
        const f32 unit = I::set1(pq_max + 1);
        for (const std::uint16_t* high = sums_of[0]; q < end; ++q) {
            const pq_query& query = args.queries[q];
            float* out = args.out + q * kv_part_tokens;
            const f32 step = I::set1(query.step);
            if (args.is_coarse(q)) {
                const f32 base = I::set1(query.coarse_base), coarse = I::mul(step, unit);
                for (std::size_t t = first; t < last; t += lanes)
                    I::store(out + t, I::fma(coarse, P::load_sums(high + t), base));
                high += kv_part_tokens;
                continue;
            }
            const std::uint16_t* low = high + kv_part_tokens;
            const f32 base = I::set1(query.base);
            for (std::size_t t = first; t < last; t += lanes)
                I::store(out + t,
                         I::fma(step, I::fma(unit, P::load_sums(high + t), P::load_sums(low + t)), base));
            high = low + kv_part_tokens;
        }
        return end;
    }

    template <pq_kind Kind>
    struct scorer {
        using L = pq_lookup<I, Kind>;
        using reg = typename P::reg;
        using sums = typename P::sums;
        /// Rows added in 8 bits before widening; an additive pair already reaches 254.
        static constexpr std::size_t
            rows_per_add = L::additive || L::table_registers > (P::holds_tables ? 2 : 4) ? 1 : 2;
        /// Registers of sums that a pass for some tables keeps; each takes two.
        static constexpr int room(int tables) noexcept {
            const int held =
                P::holds_tables ? tables * L::table_registers * static_cast<int>(rows_per_add) : 0;
            // Codes of six bits need registers for their two parts.
            const int others = L::six && L::table_registers > 1 && P::holds_tables ? 12 : 8;
            const int left = (I::registers - others - held) / 2;
            return left < I::registers / 4 ? left : I::registers / 4;
        }
        /// Tables of a pass. Those that lie in memory and take half of the registers or more do not profit
        /// from sharing it.
        static constexpr int tables_per_pass = !P::holds_tables && L::table_registers >= I::registers / 2 ? 1
                                               : P::most >= 4 && room(4) >= 4 * L::sets                   ? 4
                                               : P::most >= 2 && room(2) >= 2 * L::sets                   ? 2
                                                                                                          : 1;
        /// Units of a pass for some tables: as many go into a part without a rest.
        static constexpr std::size_t units_of(int tables) noexcept {
            std::size_t n = L::loops ? 1 : L::units;
            while (n > 1 && static_cast<int>(n) * tables * L::sets > room(tables))
                n /= 2;
            return n;
        }

        static constexpr bool in_pairs = L::additive && has_row_pairs<P>;

        /// Prefetches lines in the order in which they lie, one with every line that is read: memory is busy
        /// all the time, and the hardware sees a stream; several at a time take a quarter of the bandwidth
        /// away.
        struct prefetcher {
            const std::uint8_t* at;
            /// The lines that begin in bytes first .. last - 1 from here on.
            CRUMB_INLINE void prefetch(std::size_t first, std::size_t last) const noexcept {
                CRUMB_UNROLL
                for (std::size_t i = (first + 63) / 64 * 64; i < last; i += 64)
                    __builtin_prefetch(at + i, 0, attention_locality);
            }
        };

        static void run(const pq_score_args& args) noexcept {
            const std::uint8_t* ahead = args.codes.ahead;
            for (std::size_t q = 0; q < args.count; ahead = nullptr) {
                // Pairs of rows gain arithmetic only where several queries share their indices.
                if constexpr (in_pairs)
                    if (q + 2 <= args.count && !args.is_coarse(q) && !args.is_coarse(q + 1)) {
                        by_pairs<2>(args, q, ahead);
                        q += 2;
                        continue;
                    }
                q = by_rows(args, q, ahead, score_tables);
            }
        }

        /// Both planes of two rows at once, into sums of 32 bits.
        template <int Queries>
        static void by_pairs(const pq_score_args& args, std::size_t q, const std::uint8_t* ahead) noexcept {
            using R = typename L::P::row_pairs;
            const pq_codes& codes = args.codes;
            const pq_query* queries = args.queries + q;
            const std::size_t rows = codes.rows(), last = L::last_unit(codes.last_block);
            prefetcher next{ahead != nullptr ? ahead : codes.codes};
            for (std::size_t u = L::first_unit(codes.first_block); u < last; ++u) {
                typename R::sums s[unsigned(Queries)];
                CRUMB_UNROLL
                for (int i = 0; i < Queries; ++i)
                    s[i] = R::start();
                std::size_t row = 0;
                const auto pair = [&](std::size_t r) {
                    const std::uint8_t* at = codes.codes + r * L::row_bytes;
                    const std::size_t second = r + 1 < rows ? L::row_bytes : 0;
                    const auto index = R::index_of(L::load(at, u).x, L::load(at + second, u).x);
                    next.prefetch(0, 128);
                    next.at += 128;
                    return index;
                };
                for (; row + 4 <= rows; row += 4) {
                    const auto first = pair(row), second = pair(row + 2);
                    CRUMB_UNROLL
                    for (int i = 0; i < Queries; ++i)
                        R::add(s[i], first, second, queries[i].low + row * L::entries,
                               queries[i].high + row * L::entries);
                }
                for (; row < rows; row += 2) {
                    const auto index = pair(row);
                    CRUMB_UNROLL
                    for (int i = 0; i < Queries; ++i)
                        R::add(s[i], index, queries[i].low + row * L::entries,
                               queries[i].high + row * L::entries);
                }
                CRUMB_UNROLL
                for (int i = 0; i < Queries; ++i)
                    R::store(s[i], I::set1(queries[i].step), I::set1(queries[i].base),
                             args.out + (q + static_cast<std::size_t>(i)) * kv_part_tokens + L::token(u, 0));
            }
        }

        /// The sums of some tables. Codes are read once for all tables of a pass.
        static void score_tables(const pq_codes& codes, const std::uint8_t* const* tables, std::size_t count,
                                 const std::uint8_t* ahead, std::uint16_t (*out)[kv_part_tokens]) noexcept {
            for (std::size_t i = 0; i < count; ahead = nullptr) {
                // With nothing to prefetch, prefetch the current codes: cheaper than a branch.
                const prefetcher next{ahead != nullptr ? ahead : codes.codes};
                if (tables_per_pass >= 4 && count - i >= 4) {
                    score_units<tables_per_pass >= 4 ? 4 : 1>(codes, tables + i, next, out + i);
                    i += 4;
                } else if (tables_per_pass >= 2 && count - i >= 2) {
                    score_units<tables_per_pass >= 2 ? 2 : 1>(codes, tables + i, next, out + i);
                    i += 2;
                } else {
                    score_units<1>(codes, tables + i, next, out + i);
                    ++i;
                }
            }
        }

        /// Bytes of a row that a pass over `units` units prefetches.
        static constexpr std::size_t prefetched(std::size_t units) noexcept {
            return L::row_bytes * units / L::units;
        }

        /// The sums of some tables for the units of the blocks, and of those that share a pass with them.
        template <int Tables>
        static void score_units(const pq_codes& codes, const std::uint8_t* const* tables, prefetcher next,
                                std::uint16_t (*out)[kv_part_tokens]) noexcept {
            constexpr std::size_t step = units_of(Tables);
            const std::size_t last = L::last_unit(codes.last_block);
            for (std::size_t u = L::first_unit(codes.first_block) / step * step; u < last; u += step)
                score_tile<Tables, step, prefetched(step)>(codes.codes, codes.rows(), tables, u, next, out);
        }

        /// The sums of `Units` units from u on, over all rows. `Each`: bytes to prefetch with a row.
        template <int Tables, std::size_t Units, std::size_t Each>
        static void score_tile(const std::uint8_t* codes, std::size_t rows, const std::uint8_t* const* tables,
                               std::size_t u, prefetcher& next,
                               std::uint16_t (*out)[kv_part_tokens]) noexcept {
            prefetcher ahead = next;
            const std::uint8_t* from[unsigned(Tables)];
            CRUMB_UNROLL
            for (std::size_t q = 0; q < std::size_t{Tables}; ++q)
                from[q] = tables[q];
            sums s[std::size_t{Tables} * Units * L::sets];
            CRUMB_UNROLL
            for (std::size_t i = 0; i < std::size_t{Tables} * Units * L::sets; ++i)
                s[i] = P::start();
            // Few addresses: where units of a row follow each other, the first one is all it takes.
            const std::size_t unit = L::six ? u : 0;
            const std::uint8_t* row = L::six ? codes : codes + u * L::width;
            // Behind an odd number of rows the last one comes again, with a table of zeros.
            std::size_t paired = rows / rows_per_add * rows_per_add, second = L::row_bytes;
            for (std::size_t i = 0;; second = 0, paired = rows) {
                for (; i < paired; i += rows_per_add) {
                    accumulate_rows<Tables, Units, Each / Units>(row, second, i, from, unit, ahead, s);
                    row += rows_per_add * L::row_bytes;
                    ahead.at += rows_per_add * Each;
                }
                if (i >= rows)
                    break;
            }
            next = ahead;
            CRUMB_UNROLL
            for (std::size_t q = 0; q < std::size_t{Tables}; ++q) {
                CRUMB_UNROLL
                for (std::size_t n = 0; n < Units; ++n) {
                    CRUMB_UNROLL
                    for (std::size_t set = 0; set < std::size_t{L::sets}; ++set)
                        P::store(s[(q * Units + n) * L::sets + set], out[q] + L::token(u + n, set),
                                 out[q] + L::middle(u + n, set));
                }
            }
        }

        /// Adds what rows from `row` on hold for some units; the codes of a second one are `second` bytes
        /// away. `Each`: bytes to prefetch per unit.
        template <int Tables, std::size_t Units, std::size_t Each>
        static CRUMB_INLINE void accumulate_rows(const std::uint8_t* codes, std::size_t second,
                                                 std::size_t row, const std::uint8_t* const* tables,
                                                 std::size_t u, const prefetcher& ahead, sums* s) noexcept {
            typename L::table t[unsigned(rows_per_add)][unsigned(Tables)];
            CRUMB_UNROLL
            for (std::size_t r = 0; r < rows_per_add; ++r) {
                CRUMB_UNROLL
                for (std::size_t q = 0; q < std::size_t{Tables}; ++q)
                    t[r][q] = L::load_table(tables[q] + (row + r) * L::entries);
            }
            constexpr std::size_t pair = L::template loads_of<Units>();
            constexpr std::size_t steps = L::sets; // of a unit
            CRUMB_UNROLL
            for (std::size_t n = 0; n < Units; n += pair) {
                typename L::unit x[rows_per_add][pair];
                CRUMB_UNROLL
                for (std::size_t r = 0; r < rows_per_add; ++r) {
                    CRUMB_UNROLL
                    for (std::size_t i = 0; i < pair; ++i)
                        x[r][i] = L::load(codes + r * second, u + n + i);
                }
                CRUMB_UNROLL
                for (std::size_t i = 0; i < pair; ++i) {
                    CRUMB_UNROLL
                    for (int set = 0; set < L::sets; ++set) {
                        const std::size_t k = (n + i) * steps + static_cast<std::size_t>(set);
                        ahead.prefetch(k * rows_per_add * Each / steps,
                                       (k + 1) * rows_per_add * Each / steps);
                        typename L::index index[rows_per_add];
                        CRUMB_UNROLL
                        for (std::size_t r = 0; r < rows_per_add; ++r)
                            index[r] = L::index_of(x[r][i], set);
                        CRUMB_UNROLL
                        for (std::size_t q = 0; q < std::size_t{Tables}; ++q) {
                            reg sum = L::look_up(t[0][q], index[0]);
                            if constexpr (rows_per_add == 2)
                                sum = P::add(sum, L::look_up(t[1][q], index[1]));
                            if (P::pins_all || q + 1 == std::size_t{Tables})
                                P::pin(sum);
                            P::widen(s[(q * Units + n + i) * L::sets + static_cast<std::size_t>(set)], sum);
                        }
                    }
                }
            }
        }
    };
};

} // namespace crumb::inline CRUMB_ABI::kernel
