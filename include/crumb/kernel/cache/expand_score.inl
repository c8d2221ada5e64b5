// Scores of product-quantized keys whose codes are expanded into bytes, four channels of a token beside each
// other, and multiplied with all queries by dot instructions. Loops:
//     tokens of a tile > four planes of queries > quads of channels > registers of values
// The first four planes expand codes in registers; if there are more, they find the bytes in the first cache.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/pq.inl>

#include <crumb/kernel/cache/pq_lookup.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct pq_expand_run<I> {
    using P = typename I::pq;
    using f32 = typename I::f32;

    template <class Primitives = P>
    static pq_expansion of([[maybe_unused]] const kv_codec& codec) noexcept {
        if (codec.kind == kv_kind::q8_0)
            return of_bytes<I>();
        if (codec.kind == kv_kind::uniform)
            return of_fields<I>();
        if constexpr (has_quads<Primitives>)
            return Primitives::quads::expansion_of(pq_kind_of(codec), codec.dims);
        else
            return {};
    }
    /// Of a codec that `of` knows.
    template <class Primitives = P>
    static void run([[maybe_unused]] const pq_score_args& args) noexcept {
        if constexpr (has_words<Primitives>)
            pq_words_run<I, typename Primitives::words>(args).run();
        else if constexpr (has_quads<Primitives>)
            expander<Primitives>(args).run();
    }

  private:
    template <class Isa>
    static constexpr pq_expansion of_bytes() noexcept {
        if constexpr (has_byte_products<Isa>)
            return {Isa::byte_products::from, false};
        else
            return {};
    }

    template <class Isa>
    static constexpr pq_expansion of_fields() noexcept {
        return {has_field_products<Isa> ? 1u : 0u, false};
    }

    static constexpr std::size_t tile = 4; ///< planes that share a pass

    template <class Primitives>
    struct expander {
        using Q = typename Primitives::quads;
        using reg = typename Primitives::reg;
        static constexpr std::size_t registers = Q::registers, width = static_cast<std::size_t>(P::width);
        /// Bytes of a tile's quad, and of the tile.
        static constexpr std::size_t quad_bytes = registers * width, max_quads = 128;

        const pq_score_args& args;
        const pq_codes& codes;
        const std::size_t quads;
        std::size_t used = 0, count = 0; ///< planes; rounded up to whole passes
        const std::int8_t* planes[2 * few_queries + tile];
        std::int32_t sums[2 * few_queries + tile];
        /// The query that a plane belongs to, or none; of two planes the second has none.
        std::size_t owner[2 * few_queries + tile];
        static constexpr std::size_t none = ~std::size_t{0};

        explicit expander(const pq_score_args& a) noexcept
            : args(a), codes(a.codes), quads(a.codes.head_size / 4) {
            for (const bool coarse : {false, true})
                for (std::size_t q = 0; q < args.count; ++q)
                    if (args.is_coarse(q) == coarse) {
                        const pq_query& query = args.queries[q];
                        add(query.high, query.high_sum, q);
                        if (!coarse)
                            add(query.low, query.low_sum, none);
                    }
            used = count;
            while (count % tile != 0)
                add(args.queries[0].high, 0, none);
        }
        void add(const std::uint8_t* plane, std::int32_t sum, std::size_t query) noexcept {
            planes[count] = reinterpret_cast<const std::int8_t*>(plane);
            sums[count] = sum;
            owner[count++] = query;
        }

        void run() noexcept {
            const pq_kind kind = pq_kind_of(codes.codec);
            if (kind == pq_kind::byte) {
                if constexpr (Q::joins)
                    return codes.codec.dims == 4 ? joined<4>() : joined<2>();
                else
                    return codes.codec.dims == 4 ? looked_up<pq_kind::byte, 4>()
                                                 : looked_up<pq_kind::byte, 2>();
            }
            if (kind == pq_kind::additive)
                return looked_up<pq_kind::additive, 2>();
            if (kind == pq_kind::six)
                return looked_up<pq_kind::six, 2>();
            return looked_up<pq_kind::nibble, 1>();
        }

        // ---- codes that are looked up in registers ----
        template <pq_kind Kind, std::size_t Dims>
        void looked_up() const noexcept {
            using L = pq_lookup<I, Kind>;
            alignas(64) std::uint8_t kept[max_quads * quad_bytes];
            const std::uint8_t* ahead = codes.ahead != nullptr ? codes.ahead : codes.codes;
            constexpr std::size_t each = L::row_bytes / (L::units * L::sets); // prefetched per row
            const std::size_t last = L::last_unit(codes.last_block);
            std::size_t asked = 0;
            const bool keeps = count > tile;
            const std::int8_t* const from[] = {planes[0], planes[1], planes[2], planes[3]};
            for (std::size_t u = L::first_unit(codes.first_block); u < last; ++u)
                for (std::size_t set = 0; set < std::size_t{L::sets}; ++set) {
                    typename Q::acc sum[tile * registers];
                    {
                        // An array of its own: what another function is handed lies in memory.
                        typename Q::acc acc[tile * registers];
                        start<tile>(acc, 0);
                        const std::int8_t* entries = args.entries;
                        const std::uint8_t* row = codes.codes;
                        for (std::size_t quad = 0; quad < quads; ++quad) {
                            reg channel[4], values[registers];
                            CRUMB_UNROLL
                            for (std::size_t r = 0; r < 4 / Dims; ++r) {
                                const auto index = L::index_of(L::load(row, u), static_cast<int>(set));
                                CRUMB_UNROLL
                                for (std::size_t i = 0; i < Dims; ++i) {
                                    channel[r * Dims + i] = L::look_up(L::load_table(entries), index);
                                    entries += L::entries;
                                }
                                row += L::row_bytes;
                                // One line with every line that is read.
                                if (each >= 64 || asked / 64 != (asked + each) / 64)
                                    __builtin_prefetch(ahead + asked, 0, attention_locality);
                                asked += each;
                            }
                            Q::interleave(channel, values);
                            if (keeps)
                                Q::keep(kept + quad * quad_bytes, values);
                            dots<tile>(acc, values, from, quad);
                        }
                        CRUMB_UNROLL
                        for (std::size_t i = 0; i < tile * registers; ++i)
                            sum[i] = acc[i];
                    }
                    for (std::size_t p = 0;;) {
                        scores(sum, p, L::token(u, set), L::middle(u, set));
                        if ((p += tile) >= count)
                            break;
                        from_cache<tile>(sum, kept, quad_bytes, p);
                    }
                }
        }

        // ---- codes whose entries are loaded together ----
        template <std::size_t Dims>
        void joined() const noexcept {
            constexpr std::size_t block_bytes = 4 * kv_block_tokens;
            alignas(64) std::uint8_t kept[max_quads * block_bytes];
            const std::uint8_t* ahead = codes.ahead != nullptr ? codes.ahead : codes.codes;
            for (std::size_t b = codes.first_block; b < codes.last_block; ++b) {
                ahead = pq_join_run<I>::template expand_keys<Dims>(args, b, ahead, kept);
                for (std::size_t at = 0; at < block_bytes; at += quad_bytes)
                    for (std::size_t p = 0; p < count; p += tile) {
                        typename Q::acc acc[tile * registers];
                        if (used <= tile / 2)
                            from_cache<tile / 2>(acc, kept + at, block_bytes, 0);
                        else
                            from_cache<tile>(acc, kept + at, block_bytes, p);
                        const std::size_t t = b * kv_block_tokens + at / 4;
                        scores(acc, p, t, t + kv_block_tokens / 2);
                    }
            }
        }

        // ---- both ----
        template <std::size_t Planes>
        CRUMB_INLINE void start(typename Q::acc* acc, std::size_t p) const noexcept {
            CRUMB_UNROLL
            for (std::size_t i = 0; i < Planes; ++i) {
                CRUMB_UNROLL
                for (std::size_t k = 0; k < registers; ++k)
                    acc[i * registers + k] = Q::start(sums[p + i]);
            }
        }
        template <std::size_t Planes>
        static CRUMB_INLINE void dots(typename Q::acc* acc, const reg* values, const std::int8_t* const* from,
                                      std::size_t quad) noexcept {
            typename Q::operand x[registers];
            CRUMB_UNROLL
            for (std::size_t k = 0; k < registers; ++k)
                x[k] = Q::operand_of(values[k]);
            CRUMB_UNROLL
            for (std::size_t i = 0; i < Planes; ++i) {
                const auto q = Q::load_query(from[i] + 4 * quad);
                CRUMB_UNROLL
                for (std::size_t k = 0; k < registers; ++k)
                    Q::dot(acc[i * registers + k], x[k], q);
            }
        }
        /// The sums of some planes over bytes that lie `stride` apart per quad.
        template <std::size_t Planes>
        CRUMB_NOINLINE void from_cache(typename Q::acc* out, const std::uint8_t* kept, std::size_t stride,
                                       std::size_t p) const noexcept {
            typename Q::acc acc[Planes * registers];
            start<Planes>(acc, p);
            const std::int8_t* from[Planes];
            CRUMB_UNROLL
            for (std::size_t i = 0; i < Planes; ++i)
                from[i] = planes[p + i];
            for (std::size_t quad = 0; quad < quads; ++quad) {
                reg values[registers];
                CRUMB_UNROLL
                for (std::size_t k = 0; k < registers; ++k)
                    values[k] = P::load(kept + quad * stride + k * width);
                dots<Planes>(acc, values, from, quad);
            }
            CRUMB_UNROLL
            for (std::size_t i = 0; i < Planes * registers; ++i)
                out[i] = acc[i];
        }
        /// Scores of the queries of four planes, for tokens from `t` on and, of the second half of registers,
        /// from `middle` on.
        CRUMB_INLINE void scores(const typename Q::acc* acc, std::size_t p, std::size_t t,
                                 std::size_t middle) const noexcept {
            CRUMB_UNROLL
            for (std::size_t i = 0; i < tile; ++i) {
                const std::size_t q = owner[p + i];
                if (q == none)
                    continue;
                const bool coarse = args.is_coarse(q);
                typename Q::acc sum[registers];
                CRUMB_UNROLL
                for (std::size_t k = 0; k < registers; ++k) {
                    const typename Q::acc high = Q::times_128(acc[i * registers + k]);
                    sum[k] = i + 1 < tile && !coarse ? Q::plus(high, acc[(i + 1) * registers + k]) : high;
                }
                float* out = args.out + q * kv_part_tokens;
                Q::store(sum, I::set1(args.queries[q].step), out + t, out + middle);
            }
        }
    };
};

} // namespace crumb::inline CRUMB_ABI::kernel
