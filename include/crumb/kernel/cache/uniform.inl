// Parts of codes with a scale and an origin (KIVI) in a pass of attention, as they lie: channel by channel,
// with the scales multiplied to what all tokens of a block share. Loops:
//     scores   blocks of 64 tokens > tiles of queries > channels > registers of tokens
//     sums     groups of 32 channels > tiles of queries > 2 to 8 channels > blocks of tokens
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct kv_uniform<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;
    static constexpr int query_tile = attention_pass<I>::query_tile;
    static constexpr int vectors =
        static_cast<int>(kv_block_tokens / lanes); ///< registers of a block's codes

    const attention_pass<I>& pass;
    const kv_layer_view& cache;
    const kv_attention_args& args;
    float* factors; ///< per query 2 * padded of scores, or 256 of values

    CRUMB_INLINE kv_uniform(const attention_pass<I>& p, const kv_attention_args& a) noexcept
        : pass(p), cache(a.cache), args(a), factors(a.memory.factors(a.memory.work(a.scratch))) {}

    /// Tokens first .. stop - 1 of the parts `here`, whose token 0 is the sequence's token t. `next`: what is
    /// read after them, or nothing.
    CRUMB_INLINE void attend(const kv_parts& here, std::size_t t, std::size_t first, std::size_t stop,
                             const kv_parts& next) const noexcept {
        if (cache.keys().codec().bits == 4)
            attend_to<4>(here, t, first, stop, next);
        else
            attend_to<2>(here, t, first, stop, next);
    }

  private:
    /// Channels whose values are summed together for some queries: sums that hide how long each takes.
    static constexpr std::size_t channels_of(int queries) noexcept {
        return queries == 4 && I::registers >= 32 ? 4 : static_cast<std::size_t>(8 / queries);
    }
    /// f.operator()<count>(first) for tiles of the pass's queries.
    template <class F>
    CRUMB_INLINE void for_tiles(F&& f) const noexcept {
        std::size_t i = 0;
        for (; i + query_tile <= pass.queries; i += query_tile)
            f.template operator()<query_tile>(i);
        if constexpr (query_tile > 2)
            if (i + 2 <= pass.queries) {
                f.template operator()<2>(i);
                i += 2;
            }
        if constexpr (query_tile > 1)
            if (i < pass.queries)
                f.template operator()<1>(i);
    }

    template <int Bits>
    void attend_to(const kv_parts& here, std::size_t t, std::size_t first, std::size_t stop,
                   const kv_parts& next) const noexcept {
        score<Bits>(here.keys, here.values, first, stop);
        pass.weigh(t, stop);
        add<Bits>(here.values, next.keys, stop);
    }

    /// The first token of register n of a block's codes: those whose codes share bytes follow each other, so
    /// that these are loaded once.
    template <int Bits>
    static constexpr int token_of(int n) noexcept {
        constexpr int shared = 8 / Bits;
        return n % shared * (static_cast<int>(kv_block_tokens) / shared) +
               n / shared * static_cast<int>(lanes);
    }
    /// Codes of the tokens from `First` on of a block.
    template <int Bits, int First, class Isa = I>
    static CRUMB_INLINE f32 field(const std::uint8_t* block) noexcept {
        constexpr int group = static_cast<int>(kv_block_tokens);
        if constexpr (looks_up_fields<Isa>) {
            alignas(64) static constexpr float nibbles[] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                            8, 9, 10, 11, 12, 13, 14, 15};
            alignas(64) static constexpr float pairs[] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
            return Isa::template look_up_field<Bits, First, group>(block,
                                                                   I::load(Bits == 4 ? nibbles : pairs));
        } else {
            return Isa::template load_field<Bits, First, group>(block);
        }
    }
    /// The codes of a channel in block b.
    template <int Bits>
    static CRUMB_INLINE const std::uint8_t* codes_of(const std::byte* part, const kv_part_layout& l,
                                                     std::size_t c, std::size_t b) noexcept {
        return reinterpret_cast<const std::uint8_t*>(part + l.codes_offset()) + c * l.row_bytes() +
               b * (kv_block_tokens * Bits / 8);
    }

    // q . k = sum over channels of (q d) code + q . z, where d and z are those of the token's mean block.
    template <int Bits>
    CRUMB_INLINE void score(const std::byte* part, const std::byte* ahead, std::size_t first,
                            std::size_t stop) const noexcept {
        const kv_part_layout& l = cache.keys();
        for (std::size_t b = first / kv_block_tokens; b * kv_block_tokens < stop; ++b) {
            for_tiles([&]<int Queries>(std::size_t i) {
                for (std::size_t half_block = 0; half_block < 2; ++half_block)
                    score_factors<Queries>(part, i, b, half_block);
            });
            // Bytes of the values per channel, less than a line, to have prefetched all of them by the last
            // block.
            const std::size_t each =
                piece_bytes(cache.values().bytes(), kv_part_tokens / kv_block_tokens * l.head_size());
            const std::byte* from = ahead + b * l.head_size() * each;
            for_tiles([&]<int Queries>(std::size_t i) {
                score_tile<Bits, Queries>(part, i, b, i == 0 ? from : nullptr, each);
            });
        }
        for (std::size_t i = 0; i < pass.queries; ++i)
            for (std::size_t t = 0; t < first; ++t)
                pass.scores[i * pass.stride + t] = -__builtin_inff();
    }

    /// The factors q d of queries in half a block, and q . z as their scores.
    template <int Queries>
    CRUMB_INLINE void score_factors(const std::byte* part, std::size_t i, std::size_t b,
                                    std::size_t half_block) const noexcept {
        const kv_part_layout& l = cache.keys();
        const std::size_t m = 2 * b + half_block, size = l.head_size(), padded = pass.padded;
        const half* d = halves(part) + m * size;
        const half* z = halves(part + l.origins_offset()) + m * size;
        const float* q = pass.q + i * padded;
        float* f = factors + (2 * i + half_block) * padded;
        f32 dot[unsigned(Queries)];
        CRUMB_UNROLL
        for (int a = 0; a < Queries; ++a)
            dot[a] = I::zero();
        for (std::size_t c = 0; c < size; c += lanes) {
            const f32 scale = M::load(d + c, size - c), origin = M::load(z + c, size - c);
            CRUMB_UNROLL
            for (std::size_t a = 0; a < std::size_t{Queries}; ++a) {
                const f32 x = I::load(q + a * padded + c);
                I::store(f + 2 * a * padded + c, I::mul(x, scale));
                dot[a] = I::fma(x, origin, dot[a]);
            }
        }
        float* s = pass.scores + i * pass.stride + m * kv_mean_tokens;
        CRUMB_UNROLL
        for (std::size_t a = 0; a < std::size_t{Queries}; ++a) {
            const f32 sum = I::set1(I::sum(dot[a]));
            for (std::size_t t = 0; t < kv_mean_tokens; t += lanes)
                I::store(s + a * pass.stride + t, sum);
        }
    }

    // Out of line, for a copy: stores of vectors may alias the members of *this.
    template <int Bits, int Queries>
    void score_tile(const std::byte* part, std::size_t i, std::size_t b, const std::byte* ahead,
                    std::size_t each) const noexcept {
        kv_uniform(*this).template score_registers<Bits, Queries, 0>(part, i, b, ahead, each);
    }
    /// Adds the sums over channels to the scores of block b, registers N and on. Asks for `each` bytes from
    /// `ahead` on per channel, or for nothing.
    template <int Bits, int Queries, int N>
    CRUMB_INLINE void score_registers(const std::byte* part, std::size_t i, std::size_t b,
                                      const std::byte* ahead, std::size_t each) const noexcept {
        // One query needs more sums than several, because each waits for the one before.
        constexpr int most = Queries == 1                         ? 8
                             : Queries == 2 || I::registers >= 32 ? 4
                                                                  : 2,
                      together = most < vectors ? most : vectors;
        f32 sum[unsigned(Queries * together)];
        CRUMB_UNROLL
        for (int k = 0; k < Queries * together; ++k)
            sum[k] = I::zero();
        const float* f = factors + 2 * i * pass.padded;
        const std::uint8_t* block = codes_of<Bits>(part, cache.keys(), 0, b);
        const std::size_t step = cache.keys().row_bytes();
        // Asking for what is read anyway costs less than a branch.
        const std::byte* next = ahead != nullptr ? ahead : part;
        each = ahead != nullptr ? each : 0;
        for (std::size_t c = 0; c < args.head_size; ++c, block += step, next += each) {
            __builtin_prefetch(next, 0, attention_locality);
            add_scores<Bits, Queries, together, N>(block, f + c, sum);
        }
        add_to_scores<Bits, Queries, together, N>(sum, pass.scores + i * pass.stride + b * kv_block_tokens);
        if constexpr (N + together < vectors)
            score_registers<Bits, Queries, N + together>(part, i, b, nullptr, each);
    }
    /// A channel's share.
    template <int Bits, int Queries, int Together, int N, int V = 0>
    CRUMB_INLINE void add_scores(const std::uint8_t* block, const float* f, f32* sum) const noexcept {
        constexpr int t = token_of<Bits>(N + V);
        constexpr std::size_t half_block = static_cast<std::size_t>(t) / kv_mean_tokens;
        const f32 code = field<Bits, t>(block);
        CRUMB_UNROLL
        for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
            sum[a * Together + V] =
                I::fma(I::set1(f[(2 * a + half_block) * pass.padded]), code, sum[a * Together + V]);
        if constexpr (V + 1 < Together)
            add_scores<Bits, Queries, Together, N, V + 1>(block, f, sum);
    }
    template <int Bits, int Queries, int Together, int N>
    CRUMB_INLINE void add_to_scores(const f32* sum, float* scores) const noexcept {
        CRUMB_UNROLL
        for (std::size_t a = 0; a < std::size_t{Queries}; ++a) {
            CRUMB_UNROLL
            for (int v = 0; v < Together; ++v) {
                float* s = scores + a * pass.stride + token_of<Bits>(N + v);
                I::store(s, I::add(I::load(s), sum[a * Together + static_cast<std::size_t>(v)]));
            }
        }
    }

    // o = sum over tokens of (p d) code + p . z, where d and z are those of the channel's group.
    template <int Bits>
    CRUMB_INLINE void add(const std::byte* part, const std::byte* ahead, std::size_t stop) const noexcept {
        const kv_part_layout& l = cache.values();
        const std::size_t each = piece_bytes(cache.keys().bytes(), l.head_size());
        for (std::size_t g = 0; g < l.groups(); ++g) {
            for_tiles([&]<int Queries>(std::size_t i) {
                kv_uniform(*this).template add_group<Bits, Queries>(part, g, i, i == 0 ? ahead : nullptr,
                                                                    each, stop);
            });
        }
    }

    /// Of a group of channels and queries i and on: o[c] += p . z + sum over tokens of (p d) code.
    template <int Bits, int Queries>
    void add_group(const std::byte* part, std::size_t g, std::size_t i, const std::byte* ahead,
                   std::size_t each, std::size_t stop) const noexcept {
        constexpr std::size_t together = channels_of(Queries);
        const kv_part_layout& l = cache.values();
        const std::size_t blocks = (stop + kv_block_tokens - 1) / kv_block_tokens;
        float bases[unsigned(Queries)];
        value_factors<Queries>(part, g, i, bases, stop, blocks * kv_block_tokens);
        const std::size_t begin = g * kv_group_channels, left = l.head_size() - begin,
                          end = begin + (left < kv_group_channels ? left : kv_group_channels);
        alignas(64) float out[unsigned(Queries)][kv_group_channels] = {};
        for (std::size_t c = begin; c < end; c += together) {
            f32 sum[Queries * together];
            CRUMB_UNROLL
            for (std::size_t k = 0; k < Queries * together; ++k)
                sum[k] = I::zero();
            const std::uint8_t* x[together];
            CRUMB_UNROLL
            for (std::size_t k = 0; k < together; ++k)
                x[k] = codes_of<Bits>(part, l, c + k < end ? c + k : end - 1, 0);
            for (std::size_t b = 0; b < blocks; ++b) {
                // A piece per channel, shared by the blocks of a whole part.
                for (std::size_t k = b * together / 4; k < (b + 1) * together / 4 && c + k < end; ++k)
                    prefetch_piece(ahead, c + k, each);
                add_registers<Bits, Queries, 0>(x, factors + b * kv_block_tokens, sum);
                CRUMB_UNROLL
                for (std::size_t k = 0; k < together; ++k)
                    x[k] += kv_block_tokens * Bits / 8;
            }
            alignas(16) float totals[Queries * together];
            CRUMB_UNROLL
            for (std::size_t k = 0; k < Queries * together; k += 4)
                I::sum4(sum[k], sum[k + 1], sum[k + 2], sum[k + 3], totals + k);
            CRUMB_UNROLL
            for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
                __builtin_memcpy(out[a] + (c - begin), totals + a * together, together * sizeof(float));
        }
        for (std::size_t a = 0; a < std::size_t{Queries}; ++a) {
            float* o = pass.o + (i + a) * pass.padded + begin;
            const f32 base = I::set1(bases[a]);
            for (std::size_t c = 0; c < end - begin; c += lanes)
                I::store(o + c, I::add(I::load(o + c), I::add(I::load(out[a] + c), base)));
        }
    }
    /// factors[a][t] = p[t] d[t] for `end` tokens, 0 from `stop` on; bases[a] = p . z.
    template <int Queries>
    CRUMB_INLINE void value_factors(const std::byte* part, std::size_t g, std::size_t i, float* bases,
                                    std::size_t stop, std::size_t end) const noexcept {
        const half* d = halves(part) + g * kv_part_tokens;
        const half* z = halves(part + cache.values().origins_offset()) + g * kv_part_tokens;
        const float* p = pass.scores + i * pass.stride;
        float* w = factors;
        f32 dot[unsigned(Queries)];
        CRUMB_UNROLL
        for (int a = 0; a < Queries; ++a)
            dot[a] = I::zero();
        std::size_t t = 0;
        // `attention_pass::weigh` has filled the last register up with zeros.
        for (; t < stop; t += lanes) {
            const f32 scale = I::load(d + t), origin = I::load(z + t);
            CRUMB_UNROLL
            for (std::size_t a = 0; a < std::size_t{Queries}; ++a) {
                const f32 x = I::load(p + a * pass.stride + t);
                I::store(w + a * kv_part_tokens + t, I::mul(x, scale));
                dot[a] = I::fma(x, origin, dot[a]);
            }
        }
        for (; t < end; t += lanes)
            for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
                I::store(w + a * kv_part_tokens + t, I::zero());
        CRUMB_UNROLL
        for (int a = 0; a < Queries; ++a)
            bases[a] = I::sum(dot[a]);
    }
    /// Registers N and on of a block's codes of some channels.
    template <int Bits, int Queries, int N>
    static CRUMB_INLINE void add_registers(const std::uint8_t* const* x, const float* w, f32* sum) noexcept {
        constexpr std::size_t together = channels_of(Queries);
        constexpr int t = token_of<Bits>(N);
        f32 by[unsigned(Queries)];
        CRUMB_UNROLL
        for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
            by[a] = I::load(w + a * kv_part_tokens + t);
        CRUMB_UNROLL
        for (std::size_t k = 0; k < together; ++k) {
            const f32 code = field<Bits, t>(x[k]);
            CRUMB_UNROLL
            for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
                sum[a * together + k] = I::fma(by[a], code, sum[a * together + k]);
        }
        if constexpr (N + 1 < vectors)
            add_registers<Bits, Queries, N + 1>(x, w, sum);
    }

    static CRUMB_INLINE const half* halves(const std::byte* p) noexcept {
        return reinterpret_cast<const half*>(p);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
