// Scans of product-quantized codes.
namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct pq_scan_run<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename I::pq;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = static_cast<std::size_t>(I::lanes);

    static void scores(const pq_score_args& args) noexcept {
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
    static void add(const pq_add_args& args) noexcept {
        switch (pq_kind_of(args.codes.codec)) {
        case pq_kind::nibble:
            return adder<pq_kind::nibble>::run(args);
        case pq_kind::additive:
            return adder<pq_kind::additive>::run(args);
        case pq_kind::six:
            return adder<pq_kind::six>::run(args);
        case pq_kind::byte:
            return adder<pq_kind::byte>::run(args);
        }
    }
    static void finish(const pq_finish_args& args) noexcept {
        for (std::size_t c = 0; c < args.head_size; ++c)
            args.out[c] += args.scales[c] * I::sum(I::load(args.sums + c * lanes));
    }

  private:
    /// Whether registers are arrays, whose loops gain nothing from being unrolled.
    static constexpr bool loops = P::most == 1;

    // ---- scores ----
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
            if (loops)
                return 1;
            const std::size_t n = static_cast<std::size_t>(room(queries) / (queries * L::sets));
            return n == 0 ? 1 : n > L::units ? L::units : n;
        }

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
            alignas(64) std::uint16_t low[Queries][kv_page_tokens], high[Queries][kv_page_tokens];
            const pq_query* queries = args.queries + q;
            const std::uint8_t* tables[Queries];
            for (std::size_t i = 0; i < std::size_t{Queries}; ++i)
                tables[i] = queries[i].low;
            all_units<Queries, 0>(args.codes, tables, ahead, low);
            for (std::size_t i = 0; i < std::size_t{Queries}; ++i)
                tables[i] = queries[i].high;
            all_units<Queries, 1>(args.codes, tables, ahead, high);
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
            return Queries;
        }

        /// The sums of one plane. The second one, which finds its codes near by, asks for what comes next.
        template <int Queries, std::size_t Plane>
        static CRUMB_INLINE void all_units(const pq_codes& codes, const std::uint8_t* const* tables,
                                           const std::uint8_t* ahead,
                                           std::uint16_t (*out)[kv_page_tokens]) noexcept {
            constexpr std::size_t step = units_of(Queries);
            const std::size_t last = L::last_unit(codes.last_block);
            std::size_t u = L::first_unit(codes.first_block);
            for (; u + step <= last; u += step)
                all_rows<Queries, step, Plane>(codes.codes, codes.rows(), tables, u, ahead, out);
            if constexpr (step > 1)
                for (; u < last; ++u)
                    all_rows<Queries, 1, Plane>(codes.codes, codes.rows(), tables, u, ahead, out);
        }

        template <int Queries, std::size_t Units, std::size_t Plane>
        static void all_rows(const std::uint8_t* codes, std::size_t rows, const std::uint8_t* const* tables,
                             std::size_t u, const std::uint8_t* ahead,
                             std::uint16_t (*out)[kv_page_tokens]) noexcept {
            sums s[std::size_t{Queries} * Units * L::sets];
            CRUMB_UNROLL
            for (std::size_t i = 0; i < std::size_t{Queries} * Units * L::sets; ++i)
                s[i] = P::start();
            // Prefetching what is read anyway costs less than a branch.
            const std::uint8_t* next = ahead != nullptr ? ahead : codes;
            std::size_t i = 0;
            for (; i + together <= rows; i += together)
                few_rows<Queries, Units, Plane, together>(codes, i, tables, u, next, s);
            if (i < rows)
                few_rows<Queries, Units, Plane, 1>(codes, i, tables, u, next, s);
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

        template <int Queries, std::size_t Units, std::size_t Plane, std::size_t Rows>
        static CRUMB_INLINE void few_rows(const std::uint8_t* codes, std::size_t row,
                                          const std::uint8_t* const* tables, std::size_t u,
                                          const std::uint8_t* next, sums* s) noexcept {
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
                    CRUMB_UNROLL
                    for (std::size_t i = 0; i < pair; ++i)
                        if (L::begins_line(n + i) && Plane == 1)
                            L::prefetch(next + at[r], u + n + i);
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

    // ---- values ----
    template <pq_kind Kind>
    struct adder {
        using L = pq_lookup<I, Kind>;
        static constexpr int most = P::most == 1 ? 1 : I::registers >= 32 ? 4 : 2; ///< planes of a pass

        static void run(const pq_add_args& args) noexcept {
            switch (args.codes.codec.dims) {
            case 1:
                return all<1>(args);
            case 2:
                return all<2>(args);
            default:
                return all<4>(args);
            }
        }

        template <int Dims>
        static void all(const pq_add_args& args) noexcept {
            const std::uint8_t* ahead = args.codes.ahead;
            std::size_t p = 0;
            while (p < args.count) {
                const std::size_t left = args.count - p;
                if (most >= 4 && left >= 4) {
                    p += some < Dims, most >= 4 ? 4 : 1 > (args, p, ahead);
                } else if (most >= 2 && left >= 2) {
                    p += some < Dims, most >= 2 ? 2 : 1 > (args, p, ahead);
                } else {
                    p += some<Dims, 1>(args, p, ahead);
                }
                ahead = nullptr;
            }
        }

        /// Channels of a pass: their sums and tables fit into registers.
        static constexpr int channels(int dims, int planes) noexcept {
            int n = dims;
            while (n > 1 && n * (planes + L::table_registers) > I::registers - 7)
                n /= 2;
            return n;
        }

        template <int Dims, int Planes>
        static std::size_t some(const pq_add_args& args, std::size_t p, const std::uint8_t* ahead) noexcept {
            constexpr int step = channels(Dims, Planes);
            const pq_codes& codes = args.codes;
            const std::uint8_t* row = codes.codes;
            const std::uint8_t* next = ahead != nullptr ? ahead : row;
            const std::int8_t* entries = args.entries;
            const std::size_t first = L::first_unit(codes.first_block), last = L::last_unit(codes.last_block);
            pq_plane planes[Planes];
            alignas(64) std::uint8_t weights[L::split ? Planes : 1][kv_page_tokens];
            for (int i = 0; i < Planes; ++i) {
                planes[i] = args.planes[p + static_cast<std::size_t>(i)];
                if constexpr (L::split) {
                    order_weights(planes[i].weights, weights[i]);
                    planes[i].weights = weights[i];
                }
            }
            if constexpr (!loops) {
                if (last - first == L::units) {
                    whole_page<Dims, Planes>(codes.rows(), row, next, entries, planes);
                    return Planes;
                }
            }
            for (std::size_t left = codes.rows(); left > 0; --left) {
                for (int c = 0; c < Dims; c += step) {
                    pass<step, Planes> run(entries);
                    for (std::size_t u = first; u < last; ++u) {
                        if (L::begins_line(u))
                            L::prefetch(next, u);
                        typename P::reg w[L::sets * Planes];
                        load_weights<Planes>(planes, u, w);
                        run.unit(L::load(row, u), w);
                    }
                    run.end(planes);
                    entries += step * L::entries;
                }
                row += L::row_bytes;
                next += L::row_bytes;
            }
            return Planes;
        }

        template <int Dims, int Planes>
        static CRUMB_INLINE void whole_page(std::size_t rows, const std::uint8_t* row,
                                            const std::uint8_t* next, const std::int8_t* entries,
                                            pq_plane* planes) noexcept {
            constexpr int step = channels(Dims, Planes);
            // Weights stay in registers where there is room.
            constexpr int per_unit = L::sets * Planes, all_weights = per_unit * static_cast<int>(L::units);
            constexpr bool keep = all_weights + step * (Planes + L::table_registers) <= I::registers - 8;
            typename P::reg kept[keep ? all_weights : 1];
            if constexpr (keep) {
                CRUMB_UNROLL
                for (std::size_t u = 0; u < L::units; ++u)
                    load_weights<Planes>(planes, u, kept + u * per_unit);
            }
            constexpr std::size_t pair = !L::six && L::units % 2 == 0 ? 2 : 1;
            for (; rows > 0; --rows) {
                for (int c = 0; c < Dims; c += step) {
                    pass<step, Planes> run(entries);
                    CRUMB_UNROLL
                    for (std::size_t u = 0; u < L::units; u += pair) {
                        // Loads beside each other, so that Arm loads pairs of registers.
                        typename L::unit x[pair];
                        CRUMB_UNROLL
                        for (std::size_t i = 0; i < pair; ++i)
                            x[i] = L::load(row, u + i);
                        CRUMB_UNROLL
                        for (std::size_t i = 0; i < pair; ++i) {
                            if (L::begins_line(u + i))
                                L::prefetch(next, u + i);
                            if constexpr (keep) {
                                run.unit(x[i], kept + (u + i) * per_unit);
                            } else {
                                typename P::reg w[per_unit];
                                load_weights<Planes>(planes, u + i, w);
                                run.unit(x[i], w);
                            }
                        }
                    }
                    run.end(planes);
                    entries += step * L::entries;
                }
                row += L::row_bytes;
                next += L::row_bytes;
            }
        }

        template <int Planes>
        static CRUMB_INLINE void load_weights(const pq_plane* planes, std::size_t u,
                                              typename P::reg* w) noexcept {
            CRUMB_UNROLL
            for (int set = 0; set < L::sets; ++set) {
                CRUMB_UNROLL
                for (int p = 0; p < Planes; ++p)
                    w[set * Planes + p] =
                        P::load(planes[p].weights + place(u, static_cast<std::size_t>(set)));
            }
        }
        /// Where a register's weights lie.
        static constexpr std::size_t place(std::size_t u, std::size_t set) noexcept {
            return L::split ? (u * L::sets + set) * L::width : L::token(u, set);
        }
        static CRUMB_INLINE void order_weights(const std::uint8_t* from, std::uint8_t* to) noexcept {
            constexpr std::size_t half_register = L::width / 2;
            for (std::size_t u = 0; u < L::units; ++u)
                for (std::size_t set = 0; set < std::size_t{L::sets}; ++set) {
                    __builtin_memcpy(to + place(u, set), from + L::token(u, set), half_register);
                    __builtin_memcpy(to + place(u, set) + half_register, from + L::middle(u, set),
                                     half_register);
                }
        }

        // Some channels of a row's codes, in registers.
        template <int Channels, int Planes>
        struct pass {
            typename L::table tables[Channels];
            typename P::dots sums[Channels * Planes];

            CRUMB_INLINE pass(const std::int8_t* entries) noexcept {
                CRUMB_UNROLL
                for (int i = 0; i < Channels; ++i)
                    tables[i] = L::load_table(entries + static_cast<std::size_t>(i) * L::entries);
                CRUMB_UNROLL
                for (int i = 0; i < Channels * Planes; ++i)
                    sums[i] = P::start_dots();
            }
            CRUMB_INLINE void unit(const typename L::unit& x, const typename P::reg* w) noexcept {
                CRUMB_UNROLL
                for (int set = 0; set < L::sets; ++set) {
                    const typename L::index index = L::index_of(x, set);
                    CRUMB_UNROLL
                    for (int i = 0; i < Channels; ++i) {
                        const typename P::reg v = L::look_up(tables[i], index);
                        CRUMB_UNROLL
                        for (int p = 0; p < Planes; ++p)
                            P::dot(sums[i * Planes + p], w[set * Planes + p], v);
                    }
                }
            }
            /// Goes on to the sums of the next channels.
            CRUMB_INLINE void end(pq_plane* planes) const noexcept {
                CRUMB_UNROLL
                for (int p = 0; p < Planes; ++p) {
                    const f32 factor = I::set1(planes[p].factor);
                    CRUMB_UNROLL
                    for (int i = 0; i < Channels; ++i) {
                        I::store(planes[p].sums,
                                 I::fma(factor, P::to_f32(sums[i * Planes + p]), I::load(planes[p].sums)));
                        planes[p].sums += lanes;
                    }
                }
            }
        };
    };
};

} // namespace crumb::inline CRUMB_ABI::kernel
