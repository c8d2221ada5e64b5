// Sums of product-quantized values: looked-up entries of centroids times the weights of tokens. Loops:
//     planes of weights (1, 2, 4 or 8 at a time) > rows (sub-spaces) > channels of a row > units of tokens
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
        /// Planes of a pass: what is looked up serves all of them, as long as their weights are loaded in
        /// less time.
        static constexpr int most = L::loops ? 1 : L::keeps_weights && L::sets == 1 ? 8 : 4;

        /// Others are first or last of a scan: where weights are kept, their planes are added one by one.
        static bool is_whole(const pq_codes& codes) noexcept {
            return last_of(codes.last_block) - first_of(codes.first_block) == L::units;
        }
        /// Units that are added together: a line, which is prefetched meanwhile.
        static constexpr std::size_t together = L::loops                   ? 1
                                                : L::line_units < L::units ? L::line_units
                                                                           : L::units;
        /// Units of the blocks from `block` on, and up to it.
        static std::size_t first_of(std::size_t block) noexcept {
            return L::first_unit(block) / together * together;
        }
        static std::size_t last_of(std::size_t block) noexcept {
            return round_up(L::last_unit(block), together);
        }
        static bool meet(std::size_t end, std::size_t begin) noexcept {
            return last_of(end) > first_of(begin);
        }

        static void run(const pq_add_args& args) noexcept {
            const std::uint8_t* ahead = args.codes.ahead;
            const bool one_by_one = (most_channels > 1 && args.codes.codec.dims == 1) ||
                                    (L::keeps_weights && !is_whole(args.codes));
            for (std::size_t p = 0; p < args.count; ahead = nullptr) {
                const std::size_t left = one_by_one ? 1 : args.count - p;
                if (most >= 8 && left >= 5)
                    p += add_planes<most >= 8 ? 8 : 1>(args, p, ahead);
                else if (most >= 4 && left >= 3)
                    p += add_planes<most >= 4 ? 4 : 1>(args, p, ahead);
                else if (most >= 2 && left >= 2)
                    p += add_planes<most >= 2 ? 2 : 1>(args, p, ahead);
                else
                    p += add_planes<1>(args, p, ahead);
            }
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
            const std::size_t first = first_of(codes.first_block), last = last_of(codes.last_block);
            // Beside each other, so that one address serves all of them.
            alignas(64) std::uint8_t weights[unsigned(Planes)][kv_part_tokens];
            pq_plane gathered[unsigned(Planes)], planes[unsigned(Planes)];
            gather(args, p, Planes, gathered, weights);
            // In registers, as far as they go: sums that are stored might be those whose address was given
            // away.
            for (int i = 0; i < Planes; ++i)
                planes[i] = gathered[i];
            const std::size_t passes = codes.codec.dims / std::size_t{Step};
            // A part is added without a loop where that is faster; weights stay in registers if there is
            // room.
            constexpr bool always_whole = L::keeps_weights && (Planes == 2 || Planes == 4);
            constexpr bool if_whole = !L::loops && (L::nibble || (L::keeps_weights && Planes == 1));
            constexpr int per_unit = L::sets * Planes;
            constexpr bool keep = always_whole && per_unit * static_cast<int>(L::units) +
                                                          Step * (Planes + L::table_registers) <=
                                                      I::registers - 8;
            const bool whole = always_whole || (if_whole && is_whole(codes));
            typename P::reg kept[keep ? std::size_t{per_unit} * L::units : 1];
            if constexpr (keep) {
                CRUMB_UNROLL
                for (std::size_t u = 0; u < L::units; ++u)
                    load_weights<Planes>(weights[0], u, kept + u * per_unit);
            }
            std::size_t channel = 0;
            for (std::size_t left = codes.rows(); left > 0; --left) {
                for (std::size_t i = 0; i < passes; ++i) {
                    pass<Step, Planes> run(entries);
                    if (whole) {
                        CRUMB_UNROLL
                        for (std::size_t u = 0; u < L::units; u += together)
                            add_units(run, row, next, u, weights[0], keep ? kept + u * per_unit : nullptr);
                    } else {
                        for (std::size_t u = first; u < last; u += together)
                            add_units(run, row, next, u, weights[0], nullptr);
                    }
                    run.end(planes, channel);
                    channel += Step;
                    entries += Step * L::entries;
                }
                row += L::row_bytes;
                next += L::row_bytes;
            }
        }

        /// The units of a line from unit u on, or one. `kept`: their weights, or null.
        template <int Step, int Planes>
        static CRUMB_INLINE void
        add_units(pass<Step, Planes>& run, const std::uint8_t* row, const std::uint8_t* next, std::size_t u,
                  const std::uint8_t* weights, const typename P::reg* kept) noexcept {
            typename L::unit x[together];
            CRUMB_UNROLL
            for (std::size_t i = 0; i < together; ++i)
                x[i] = L::load(row, u + i);
            CRUMB_UNROLL
            for (std::size_t i = 0; i < together; ++i) {
                if (L::begins_line(together > 1 ? i : u))
                    L::prefetch(next, u + i);
                typename P::reg loaded[unsigned(L::sets * Planes)];
                if (kept == nullptr)
                    load_weights<Planes>(weights, u + i, loaded);
                run.unit(x[i], kept != nullptr ? kept + i * (L::sets * Planes) : loaded);
            }
        }
        template <int Planes>
        static CRUMB_INLINE void load_weights(const std::uint8_t* weights, std::size_t u,
                                              typename P::reg* w) noexcept {
            CRUMB_UNROLL
            for (int set = 0; set < L::sets; ++set) {
                CRUMB_UNROLL
                for (std::size_t p = 0; p < std::size_t{Planes}; ++p)
                    w[std::size_t(set) * Planes + p] =
                        P::load(weights + p * kv_part_tokens + place(u, static_cast<std::size_t>(set)));
            }
        }
        /// Where a register's weights lie.
        static constexpr std::size_t place(std::size_t u, std::size_t set) noexcept {
            return L::split ? (u * L::sets + set) * L::width : L::token(u, set);
        }
        /// Planes p .. p + count - 1 and copies of their weights. Behind the last one it comes again, summed
        /// but not stored.
        static CRUMB_NOINLINE void gather(const pq_add_args& args, std::size_t p, int count, pq_plane* planes,
                                          std::uint8_t (*weights)[kv_part_tokens]) noexcept {
            for (int i = 0; i < count; ++i, ++p) {
                planes[i] = args.planes[p < args.count ? p : args.count - 1];
                if (p >= args.count)
                    planes[i].sums = nullptr;
                const std::uint8_t* from = planes[i].weights;
                if constexpr (L::split) {
                    constexpr std::size_t half_register = L::width / 2;
                    for (std::size_t u = 0; u < L::units; ++u)
                        for (std::size_t set = 0; set < std::size_t{L::sets}; ++set) {
                            std::uint8_t* to = weights[i] + place(u, set);
                            __builtin_memcpy(to, from + L::token(u, set), half_register);
                            __builtin_memcpy(to + half_register, from + L::middle(u, set), half_register);
                        }
                } else {
                    for (std::size_t t = 0; t < kv_part_tokens; t += L::width)
                        __builtin_memcpy(weights[i] + t, from + t, L::width);
                }
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
            CRUMB_INLINE void end(const pq_plane* planes, std::size_t channel) const noexcept {
                CRUMB_UNROLL
                for (int p = 0; p < Planes; ++p) {
                    if (Planes > 2 && planes[p].sums == nullptr)
                        continue;
                    typename P::dots of[unsigned(Channels)];
                    CRUMB_UNROLL
                    for (int i = 0; i < Channels; ++i)
                        of[i] = sums[i * Planes + p];
                    P::template add_to<Channels>(planes[p].sums + channel * pq_sums, planes[p].factor, of);
                }
            }
        };
    };
};

} // namespace crumb::inline CRUMB_ABI::kernel
