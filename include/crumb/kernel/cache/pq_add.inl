// Sums of product-quantized values: looked-up entries of centroids times the weights of tokens. Loops:
//     planes of weights (1, 2 or 4 at a time) > rows (sub-spaces) > channels of a row > units of tokens
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/pq.inl>

#include <crumb/kernel/cache/pq_lookup.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct pq_add_run<I> {
    using P = typename I::pq;

    static void run(const pq_add_args& args) noexcept {
        switch (pq_kind_of(args.codes.codec)) {
        case pq_kind::nibble:
            return pq_add_run<typename pq_nibble_scans<I>::type>::nibbles(args);
        case pq_kind::additive:
            return adder<pq_kind::additive>::run(args);
        case pq_kind::six:
            return adder<pq_kind::six>::run(args);
        case pq_kind::byte:
            return adder<pq_kind::byte>::run(args);
        }
    }
    /// `run` for codes of 4 bits, for ISAs whose `pq_nibble_scans` name this one.
    static void nibbles(const pq_add_args& args) noexcept { adder<pq_kind::nibble>::run(args); }
    /// Whether codes of blocks before `end` and codes from block `begin` on come in one register. What is
    /// added of a register is all of it, so they have to be added together.
    static bool meet(const kv_codec& codec, std::size_t end, std::size_t begin) noexcept {
        switch (pq_kind_of(codec)) {
        case pq_kind::nibble:
            return adder<pq_kind::nibble>::meet(end, begin);
        case pq_kind::additive:
            return adder<pq_kind::additive>::meet(end, begin);
        case pq_kind::six:
            return adder<pq_kind::six>::meet(end, begin);
        default:
            return adder<pq_kind::byte>::meet(end, begin);
        }
    }
    static void finish(const pq_finish_args& args) noexcept {
        for (std::size_t c = 0; c < args.head_size; ++c) {
            if (args.joined) {
                args.out[c] += args.scales[c] * args.sums[c];
                continue;
            }
            const float* s = args.sums + c * pq_sums;
            args.out[c] +=
                args.scales[c] * (((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
        }
    }

  private:
    template <pq_kind Kind>
    struct adder {
        using L = pq_lookup<I, Kind>;
        template <int Channels, int Planes>
        struct pass;
        /// Planes of a pass: what is looked up serves all of them.
        static constexpr int most = L::loops ? 1 : 4;

        static bool meet(std::size_t end, std::size_t begin) noexcept {
            return L::last_unit(end) > L::first_unit(begin);
        }

        static void run(const pq_add_args& args) noexcept {
            const std::uint8_t* ahead = args.codes.ahead;
            const bool one_by_one =
                (most_channels > 1 && args.codes.codec.dims == 1) || !(L::loops || is_whole(args.codes));
            for (std::size_t p = 0; p < args.count; ahead = nullptr) {
                const std::size_t left = one_by_one ? 1 : args.count - p;
                if (most >= 4 && left >= 3)
                    p += add_planes<most >= 4 ? 4 : 1>(args, p, ahead);
                else if (most >= 2 && left >= 2)
                    p += add_planes<most >= 2 ? 2 : 1>(args, p, ahead);
                else
                    p += add_planes<1>(args, p, ahead);
            }
        }
        /// Others are first or last of a scan: their planes are added one by one.
        static bool is_whole(const pq_codes& codes) noexcept {
            return L::last_unit(codes.last_block) - L::first_unit(codes.first_block) == L::units;
        }

        /// Max channels of a pass: those of a code of the fastest codecs of this kind. Others run as well,
        /// but not as fast as they could: a single channel of other kinds with a plane at a time.
        static constexpr int most_channels = L::nibble ? 1 : L::additive || L::six ? 2 : 4;
        /// Channels of a pass: their sums fit into registers, and their tables, unless they are small and lie
        /// in the first cache.
        static constexpr int channels(int dims, int planes) noexcept {
            const bool held = P::holds_tables || (L::table_registers > 2 && !P::pins_all);
            int n = dims < most_channels ? dims : most_channels;
            while (n > 1 && (n * planes > I::registers / 2 ||
                             (held && n * (planes + L::table_registers) > I::registers - 7)))
                n /= 2;
            return n;
        }

        template <int Planes>
        static CRUMB_INLINE std::size_t add_planes(const pq_add_args& args, std::size_t p,
                                                   const std::uint8_t* ahead) noexcept {
            // A single channel has more than one plane only where passes have one channel anyway.
            constexpr int of_one = Planes == 1 ? 1 : channels(2, Planes);
            switch (args.codes.codec.dims) {
            case 4:
                by_steps<channels(4, Planes), Planes>(args, p, ahead);
                break;
            case 2:
                by_steps<channels(2, Planes), Planes>(args, p, ahead);
                break;
            default:
                by_steps<of_one, Planes>(args, p, ahead);
            }
            return Planes;
        }

        /// `Step` channels of a row in a pass.
        template <int Step, int Planes>
        static void by_steps(const pq_add_args& args, std::size_t p, const std::uint8_t* ahead) noexcept {
            const pq_codes& codes = args.codes;
            const std::uint8_t* row = codes.codes;
            const std::uint8_t* next = ahead != nullptr ? ahead : row;
            const std::int8_t* entries = args.entries;
            const std::size_t first = L::first_unit(codes.first_block), last = L::last_unit(codes.last_block);
            pq_plane planes[unsigned(Planes)];
            alignas(64) std::uint8_t weights[L::split ? Planes : 1][kv_part_tokens];
            for (int i = 0; i < Planes; ++i) {
                const std::size_t at = p + static_cast<std::size_t>(i);
                // Fewer than a pass has room for: the last one is summed again, and not stored.
                planes[i] = args.planes[at < args.count ? at : args.count - 1];
                if (at >= args.count)
                    planes[i].sums = nullptr;
                if constexpr (L::split) {
                    order_weights(planes[i].weights, weights[i]);
                    planes[i].weights = weights[i];
                }
            }
            const std::size_t passes = codes.codec.dims / std::size_t{Step};
            if constexpr (!L::loops)
                if (Planes > 1 || is_whole(codes))
                    return whole_part<Step, Planes>(codes.rows(), passes, row, next, entries, planes);
            for (std::size_t left = codes.rows(); left > 0; --left) {
                for (std::size_t i = 0; i < passes; ++i) {
                    pass<Step, Planes> run(entries);
                    for (std::size_t u = first; u < last; ++u) {
                        if (L::begins_line(u))
                            L::prefetch(next, u);
                        typename P::reg w[L::sets * Planes];
                        load_weights<Planes>(planes, u, w);
                        run.unit(L::load(row, u), w);
                    }
                    run.end(planes);
                    entries += Step * L::entries;
                }
                row += L::row_bytes;
                next += L::row_bytes;
            }
        }

        template <int Step, int Planes>
        static CRUMB_INLINE void whole_part(std::size_t rows, std::size_t passes, const std::uint8_t* row,
                                            const std::uint8_t* next, const std::int8_t* entries,
                                            pq_plane* planes) noexcept {
            // Weights stay in registers where there is room.
            constexpr int per_unit = L::sets * Planes, all_weights = per_unit * static_cast<int>(L::units);
            constexpr bool keep = all_weights + Step * (Planes + L::table_registers) <= I::registers - 8;
            typename P::reg kept[unsigned(keep ? all_weights : 1)];
            if constexpr (keep) {
                CRUMB_UNROLL
                for (std::size_t u = 0; u < L::units; ++u)
                    load_weights<Planes>(planes, u, kept + u * per_unit);
            }
            for (; rows > 0; --rows) {
                for (std::size_t left = passes; left > 0; --left) {
                    pass<Step, Planes> run(entries);
                    if constexpr (L::keeps_weights) {
                        constexpr std::size_t pair = L::template loads_of<L::units>();
                        CRUMB_UNROLL
                        for (std::size_t u = 0; u < L::units; u += pair)
                            add_units<pair>(run, row, next, u, planes, keep ? kept + u * per_unit : nullptr);
                    } else {
                        for (std::size_t u = 0; u < L::units; u += L::line_units)
                            add_units<L::line_units>(run, row, next, u, planes, nullptr);
                    }
                    run.end(planes);
                    entries += Step * L::entries;
                }
                row += L::row_bytes;
                next += L::row_bytes;
            }
        }
        /// N units from unit u on. `kept`: their weights, or null.
        template <std::size_t N, int Step, int Planes>
        static CRUMB_INLINE void add_units(pass<Step, Planes>& run, const std::uint8_t* row,
                                           const std::uint8_t* next, std::size_t u, const pq_plane* planes,
                                           const typename P::reg* kept) noexcept {
            constexpr bool lines = N % L::line_units == 0; // of which u begins one
            typename L::unit x[N];
            CRUMB_UNROLL
            for (std::size_t i = 0; i < N; ++i)
                x[i] = L::load(row, u + i);
            CRUMB_UNROLL
            for (std::size_t i = 0; i < N; ++i) {
                if (L::begins_line(lines ? i : u + i))
                    L::prefetch(next, u + i);
                typename P::reg loaded[unsigned(L::sets * Planes)];
                if (kept == nullptr)
                    load_weights<Planes>(planes, u + i, loaded);
                run.unit(x[i], kept != nullptr ? kept + i * (L::sets * Planes) : loaded);
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
            typename L::table tables[unsigned(Channels)];
            typename P::dots sums[unsigned(Channels * Planes)];

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
                P::pin(sums[0]);
            }
            /// Goes on to the sums of the next channels.
            CRUMB_INLINE void end(pq_plane* planes) const noexcept {
                CRUMB_UNROLL
                for (int p = 0; p < Planes; ++p) {
                    if (Planes > 2 && planes[p].sums == nullptr)
                        continue;
                    typename P::dots of[unsigned(Channels)];
                    CRUMB_UNROLL
                    for (int i = 0; i < Channels; ++i)
                        of[i] = sums[i * Planes + p];
                    P::template add_to<Channels>(planes[p].sums, planes[p].factor, of);
                    planes[p].sums += Channels * pq_sums;
                }
            }
        };
    };
};

} // namespace crumb::inline CRUMB_ABI::kernel
