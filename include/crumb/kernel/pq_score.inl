// Scores of product-quantized keys: sums of looked-up bytes of queries' tables.
namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct pq_score_run<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename I::pq;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = static_cast<std::size_t>(I::lanes);

    static void run(const pq_score_args& args) noexcept {
        switch (pq_kind_of(args.codes.codec)) {
        case pq_kind::nibble:
            return scorer<pq_kind::nibble>::run(args);
        case pq_kind::additive:
            return scorer<pq_kind::additive>::run(args);
        case pq_kind::six:
            return scorer<pq_kind::six>::run(args);
        case pq_kind::byte:
            return scorer<pq_kind::byte>::run(args);
        }
    }

  private:
    template <pq_kind Kind>
    struct scorer {
        using L = pq_lookup<I, Kind>;
        using reg = typename P::reg;
        using sums = typename P::sums;
        /// Looked-up bytes of how many rows fit into one: a sum of additive codes is up to 254 by itself.
        static constexpr std::size_t together = L::additive || L::table_registers > (P::holds_tables ? 2 : 4)
                                                    ? 1
                                                    : 2;
        /// Registers of sums that a pass for some queries keeps; each takes two.
        static constexpr int room(int queries) noexcept {
            const int tables =
                P::holds_tables ? queries * L::table_registers * static_cast<int>(together) : 0;
            const int left = (I::registers - 8 - tables) / 2;
            return left < I::registers / 4 ? left : I::registers / 4;
        }
        /// Queries of a pass.
        static constexpr int most = P::most >= 4 && room(4) >= 4 * L::sets   ? 4
                                    : P::most >= 2 && room(2) >= 2 * L::sets ? 2
                                                                             : 1;
        /// Units of a pass for some queries.
        static constexpr std::size_t units_of(int queries) noexcept {
            if (L::loops)
                return 1;
            const std::size_t n = static_cast<std::size_t>(room(queries) / (queries * L::sets));
            return n == 0 ? 1 : n > L::units ? L::units : n;
        }

        static constexpr bool in_pairs = L::additive && has_row_pairs<P>;

        /// Asks for lines in the order in which they lie, a little at every step: memory is busy all the
        /// time, and its own prefetching sees a stream. Into the second cache: the first is full of tables
        /// and sums, and has fewer lines on their way.
        struct prefetcher {
            const std::uint8_t* at;
            /// The lines of the next `Bytes` bytes.
            template <std::size_t Bytes>
            CRUMB_INLINE void ask() noexcept {
                CRUMB_UNROLL
                for (std::size_t i = 0; i < Bytes; i += 64)
                    __builtin_prefetch(at + i, 0, 2);
                at += Bytes;
            }
        };

        static void run(const pq_score_args& args) noexcept {
            const std::uint8_t* ahead = args.codes.ahead;
            std::size_t q = 0;
            while (q < args.count) {
                const std::size_t left = args.count - q;
                if (most >= 4 && left >= 4) {
                    q += some < most >= 4 ? 4 : 1 > (args, q, ahead);
                } else if (most >= 2 && left >= 2) {
                    q += some < most >= 2 ? 2 : 1 > (args, q, ahead);
                } else {
                    q += some<1>(args, q, ahead);
                }
                ahead = nullptr;
            }
        }

        template <int Queries>
        static std::size_t some(const pq_score_args& args, std::size_t q,
                                const std::uint8_t* ahead) noexcept {
            // One query's pass gains no arithmetic by pairs, and reads memory better by planes.
            if constexpr (in_pairs && Queries > 1)
                by_pairs<Queries>(args, q, ahead);
            else
                by_planes<Queries>(args, q, ahead);
            return Queries;
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
                typename R::sums s[Queries];
                CRUMB_UNROLL
                for (int i = 0; i < Queries; ++i)
                    s[i] = R::start();
                std::size_t row = 0;
                for (; row + 2 <= rows; row += 2) {
                    const std::size_t at = row * L::row_bytes;
                    const auto index = R::index_of(L::load(codes.codes + at, u).x,
                                                   L::load(codes.codes + at + L::row_bytes, u).x);
                    next.template ask<128>();
                    CRUMB_UNROLL
                    for (int i = 0; i < Queries; ++i)
                        R::template add<2>(s[i], index, queries[i].low + row * L::entries,
                                           queries[i].high + row * L::entries);
                }
                if (row < rows) {
                    const auto x = L::load(codes.codes + row * L::row_bytes, u).x;
                    const auto index = R::index_of(x, x);
                    next.template ask<64>();
                    CRUMB_UNROLL
                    for (int i = 0; i < Queries; ++i)
                        R::template add<1>(s[i], index, queries[i].low + row * L::entries,
                                           queries[i].high + row * L::entries);
                }
                CRUMB_UNROLL
                for (int i = 0; i < Queries; ++i)
                    R::store(s[i], I::set1(queries[i].step), I::set1(queries[i].base),
                             args.out + (q + static_cast<std::size_t>(i)) * kv_page_tokens + L::token(u, 0));
            }
        }

        /// One plane after the other, a row or two at a time, into sums of 16 bits.
        template <int Queries>
        static void by_planes(const pq_score_args& args, std::size_t q, const std::uint8_t* ahead) noexcept {
            alignas(64) std::uint16_t low[Queries][kv_page_tokens], high[Queries][kv_page_tokens];
            const pq_query* queries = args.queries + q;
            const std::uint8_t* tables[Queries];
            // Asking for what is read anyway costs less than a branch.
            prefetcher next{ahead != nullptr ? ahead : args.codes.codes};
            for (std::size_t i = 0; i < std::size_t{Queries}; ++i)
                tables[i] = queries[i].low;
            all_units<Queries, 0>(args.codes, tables, next, low);
            for (std::size_t i = 0; i < std::size_t{Queries}; ++i)
                tables[i] = queries[i].high;
            all_units<Queries, 1>(args.codes, tables, next, high);
            const std::size_t first = args.codes.first_block * kv_block_tokens,
                              last = args.codes.last_block * kv_block_tokens;
            const f32 unit = I::set1(pq_most + 1);
            for (std::size_t i = 0; i < std::size_t{Queries}; ++i) {
                const f32 step = I::set1(queries[i].step), base = I::set1(queries[i].base);
                float* out = args.out + (q + i) * kv_page_tokens;
                for (std::size_t t = first; t < last; t += lanes)
                    I::store(out + t,
                             I::fma(step, I::fma(unit, P::load_sums(high[i] + t), P::load_sums(low[i] + t)),
                                    base));
            }
        }

        /// The sums of one plane.
        template <int Queries, int Plane>
        static CRUMB_INLINE void all_units(const pq_codes& codes, const std::uint8_t* const* tables,
                                           prefetcher& next, std::uint16_t (*out)[kv_page_tokens]) noexcept {
            constexpr std::size_t step = units_of(Queries);
            const std::size_t last = L::last_unit(codes.last_block);
            std::size_t u = L::first_unit(codes.first_block);
            for (; u + step <= last; u += step)
                all_rows<Queries, step, Plane>(codes.codes, codes.rows(), tables, u, next, out);
            if constexpr (step > 1)
                for (; u < last; ++u)
                    all_rows<Queries, 1, Plane>(codes.codes, codes.rows(), tables, u, next, out);
        }

        template <int Queries, std::size_t Units, int Plane>
        static void all_rows(const std::uint8_t* codes, std::size_t rows, const std::uint8_t* const* tables,
                             std::size_t u, prefetcher& next, std::uint16_t (*out)[kv_page_tokens]) noexcept {
            // Both planes together ask for a row's bytes once; with narrow registers, where that would be a
            // small part of a line at a time, the second one does.
            constexpr std::size_t bytes = L::row_bytes * Units / L::units;
            constexpr bool both = L::width >= 32 && bytes >= 64;
            constexpr std::size_t each = both ? bytes / 2 : Plane == 1 ? bytes : 0;
            prefetcher ahead = next;
            sums s[std::size_t{Queries} * Units * L::sets];
            CRUMB_UNROLL
            for (std::size_t i = 0; i < std::size_t{Queries} * Units * L::sets; ++i)
                s[i] = P::start();
            std::size_t i = 0;
            for (; i + together <= rows; i += together) {
                ahead.template ask<together * each>();
                few_rows<Queries, Units, together>(codes, i, tables, u, s);
            }
            if (i < rows) {
                ahead.template ask<each>();
                few_rows<Queries, Units, 1>(codes, i, tables, u, s);
            }
            next = ahead;
            CRUMB_UNROLL
            for (std::size_t q = 0; q < std::size_t{Queries}; ++q) {
                CRUMB_UNROLL
                for (std::size_t n = 0; n < Units; ++n) {
                    CRUMB_UNROLL
                    for (std::size_t set = 0; set < std::size_t{L::sets}; ++set)
                        P::store(s[(q * Units + n) * L::sets + set], out[q] + L::token(u + n, set),
                                 out[q] + L::middle(u + n, set));
                }
            }
        }

        template <int Queries, std::size_t Units, std::size_t Rows>
        static CRUMB_INLINE void few_rows(const std::uint8_t* codes, std::size_t row,
                                          const std::uint8_t* const* tables, std::size_t u,
                                          sums* s) noexcept {
            std::size_t at[Rows];
            CRUMB_UNROLL
            for (std::size_t r = 0; r < Rows; ++r)
                at[r] = (row + r) * L::row_bytes;
            typename L::table t[Rows][Queries];
            CRUMB_UNROLL
            for (std::size_t r = 0; r < Rows; ++r) {
                CRUMB_UNROLL
                for (std::size_t q = 0; q < std::size_t{Queries}; ++q)
                    t[r][q] = L::load_table(tables[q] + (row + r) * L::entries);
            }
            // Loads beside each other, so that Arm loads pairs of registers.
            constexpr std::size_t pair = !L::six && Units % 2 == 0 ? 2 : 1;
            CRUMB_UNROLL
            for (std::size_t n = 0; n < Units; n += pair) {
                typename L::unit x[Rows][pair];
                CRUMB_UNROLL
                for (std::size_t r = 0; r < Rows; ++r) {
                    CRUMB_UNROLL
                    for (std::size_t i = 0; i < pair; ++i)
                        x[r][i] = L::load(codes + at[r], u + n + i);
                }
                CRUMB_UNROLL
                for (std::size_t i = 0; i < pair; ++i) {
                    CRUMB_UNROLL
                    for (int set = 0; set < L::sets; ++set) {
                        typename L::index index[Rows];
                        CRUMB_UNROLL
                        for (std::size_t r = 0; r < Rows; ++r)
                            index[r] = L::index_of(x[r][i], set);
                        CRUMB_UNROLL
                        for (std::size_t q = 0; q < std::size_t{Queries}; ++q) {
                            reg sum = L::look_up(t[0][q], index[0]);
                            if constexpr (Rows == 2)
                                sum = P::add(sum, L::look_up(t[1][q], index[1]));
                            P::widen(s[(q * Units + n + i) * L::sets + static_cast<std::size_t>(set)], sum);
                        }
                    }
                }
            }
        }
    };
};

} // namespace crumb::inline CRUMB_ABI::kernel
