// Parts of bytes with a scale per token and 32 channels (`q8_0`) in a pass of attention, multiplied as
// integers: queries and weights times scales are rounded to 15 bits, as words of 16 bits or in two planes of
// bytes, 128 high + low. Loops:
//     scores   tiles of queries > 4 or 8 tokens > registers of bytes
//     sums     tiles of queries > registers of channels > tokens, 2 or 16 at a time
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>

#include <crumb/kernel/cache/expand_query.inl>
#include <crumb/kernel/cache/integer_words.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class B>
struct kv_integers<isa::CRUMB_THIS_ISA, B> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;
    using reg = typename B::reg;
    using acc = typename B::acc;
    static constexpr std::size_t lanes = M::lanes, width = B::width;
    static constexpr std::size_t block = attention_block;
    static constexpr std::size_t sets = B::sets; ///< of four tokens that are scored together
    static constexpr bool words = B::tokens == 2;
    static constexpr float whole = 127 * 128; ///< largest weight
    static constexpr float most_code = 128;   ///< largest magnitude of a code

    const attention_pass<I>& pass;
    const kv_layer_view& cache;
    const kv_attention_args& args;
    const kv_scratch& at;
    float* own;
    std::size_t groups;
    pq_query* queries;
    kv_scan_state* states;
    float *key_scales, *value_scales; ///< of a block, [groups][block]
    float* free;                      ///< as many
    float* steps;                     ///< of weights, [queries][groups]
    std::int16_t* weights;            ///< [queries][groups][block], or a plane of bytes after the other
    std::int8_t* rest;                ///< rows of a last tile of tokens

    /// `place`: the number of the pass's head among those that go through the parts together.
    CRUMB_INLINE kv_integers(const attention_pass<I>& p, const kv_attention_args& a,
                             std::size_t place) noexcept
        : pass(p), cache(a.cache), args(a), at(a.memory), own(at.state(a.scratch, place)),
          groups(cache.keys().groups()), queries(at.queries(own)), states(at.states(own)) {
        key_scales = pass.converted;
        value_scales = key_scales + groups * block;
        free = value_scales + groups * block;
        steps = free + groups * block;
        weights = reinterpret_cast<std::int16_t*>(steps + round_up(pass.queries * groups, 16));
        rest = reinterpret_cast<std::int8_t*>(weights + pass.queries * groups * block);
    }

    CRUMB_INLINE void begin() const noexcept {
        const pq_query_memory carved(cache.keys().codec(), args.head_size, true);
        for (std::size_t i = 0; i < pass.queries; ++i) {
            queries[i] = carved.at(at.tables(own, i));
            pq_expand_query_run<I>::run(
                {cache.keys().codec(), args.head_size, pass.q + i * pass.padded, {}, &queries[i]});
            spread(queries[i], spread_of(i));
        }
        restart();
    }
    CRUMB_INLINE void restart() const noexcept {
        for (std::size_t i = 0; i < pass.queries; ++i)
            states[i] = {};
    }

    /// Tokens first .. stop - 1 of the parts `here`, whose token 0 is the sequence's token t. `next`: what is
    /// read after them, or nothing.
    void attend(const kv_parts& here, std::size_t t, std::size_t first, std::size_t stop,
                const kv_parts& next) const noexcept {
        const std::size_t scale_bytes = piece_bytes(cache.keys().codes_offset(), kv_part_tokens / block);
        for (std::size_t from = first; from < stop; from += block) {
            const std::size_t n = stop - from < block ? stop - from : block, b = (from - t) / block;
            load_scales(here.keys, from - t, n, key_scales);
            load_scales(here.values, from - t, n, value_scales);
            const std::int8_t *k = codes(here.keys, from - t), *v = codes(here.values, from - t);
            // A block of keys is read while the one before is multiplied, and likewise values: there is time
            // for memory that is late.
            const bool in_part = from + n < stop;
            const kv_parts& later = in_part ? here : next;
            const std::size_t at_token = in_part ? from + n - t : 0;
            const std::int8_t *keys_ahead =
                                  n == block && later.keys != nullptr ? codes(later.keys, at_token) : nullptr,
                              *values_ahead = keys_ahead != nullptr ? codes(later.values, at_token) : nullptr;
            for_tiles(
                [&]<int Queries>(std::size_t i) { score<Queries>(k, i, n, i == 0 ? keys_ahead : nullptr); });
            prefetch_piece(next.keys, b, scale_bytes);
            if (args.errors != nullptr)
                weigh_counting(from, n);
            else
                pass.weigh(from, n);
            round_weights(n);
            prefetch_piece(next.values, b, scale_bytes);
            for_tiles(
                [&]<int Queries>(std::size_t i) { add<Queries>(v, i, n, i == 0 ? values_ahead : nullptr); });
        }
    }

    CRUMB_INLINE void end() const noexcept {
        if (args.errors == nullptr)
            return;
        for (std::size_t i = 0; i < pass.queries; ++i) {
            const std::size_t row = pass.row + i / args.group,
                              head = pass.kv_head * args.group + i % args.group;
            const float lost = states[i].lost * rescaled(i);
            args.errors[row * (args.q.cols / args.head_size) + head] = {
                states[i].error, pass.totals[i] > 0 ? lost / pass.totals[i] * most_code : 0.0f, 0, 0};
        }
    }

  private:
    /// e^(reference - maximum) of query i.
    CRUMB_INLINE float rescaled(std::size_t i) const noexcept {
        return states[i].lost == 0 ? 0.0f : M::exp_of(states[i].reference - pass.maxima[i]);
    }
    /// Makes weights of a block's scores, and counts what rounding of queries and of weights may cost.
    void weigh_counting(std::size_t t, std::size_t n) const noexcept {
        const float key_scale = largest(key_scales, groups * block),
                    value_scale = largest(value_scales, groups * block);
        pass.weigh(t, n);
        for (std::size_t i = 0; i < pass.queries; ++i) {
            kv_scan_state& state = states[i];
            const float error = queries[i].error * key_scale;
            state.error = error > state.error ? error : state.error;
            // Half a step of each token, and what products of floats add to it.
            const float step = largest(pass.scores + i * pass.stride, n) * value_scale * (0.505f / whole);
            state.lost = state.lost * rescaled(i) + static_cast<float>(n) * step;
            state.reference = pass.maxima[i];
        }
    }
    /// The largest magnitude of some numbers.
    static CRUMB_INLINE float largest(const float* x, std::size_t n) noexcept {
        float most = 0;
        for (std::size_t i = 0; i < n; ++i)
            most = __builtin_fabsf(x[i]) > most ? __builtin_fabsf(x[i]) : most;
        return most;
    }
    CRUMB_INLINE std::int16_t* spread_of(std::size_t i) const noexcept {
        return reinterpret_cast<std::int16_t*>(
            at.tables(own, i) + pq_query_memory(cache.keys().codec(), args.head_size, true).bytes);
    }
    CRUMB_INLINE const std::int8_t* codes(const std::byte* part, std::size_t token) const noexcept {
        return reinterpret_cast<const std::int8_t*>(part + cache.keys().codes_offset()) +
               token * args.head_size;
    }
    /// A copy of n rows, and zeros behind them up to `all`: what lies there may belong to another part.
    CRUMB_INLINE const std::int8_t* filled_up(const std::int8_t* rows, std::size_t n,
                                              std::size_t all) const noexcept {
        __builtin_memcpy(rest, rows, n * args.head_size);
        __builtin_memset(rest + n * args.head_size, 0, (all - n) * args.head_size);
        return rest;
    }
    template <class F>
    CRUMB_INLINE void for_tiles(F&& f) const noexcept {
        std::size_t i = 0;
        for (; i + 4 <= pass.queries; i += 4)
            f.template operator()<4>(i);
        if (i + 2 <= pass.queries) {
            f.template operator()<2>(i);
            i += 2;
        }
        if (i < pass.queries)
            f.template operator()<1>(i);
    }

    /// A query as it is multiplied: two planes, or words, per register of bytes and k channels 16 l + 4 k and
    /// 16 l + 4 k + 2 in the four lanes from 4 l on, then those behind them.
    void spread(const pq_query& q, std::int16_t* out) const noexcept {
        const auto* low = reinterpret_cast<const std::int8_t*>(q.low);
        const auto* high = reinterpret_cast<const std::int8_t*>(q.high);
        if constexpr (!words) {
            __builtin_memcpy(out, high, args.head_size);
            __builtin_memcpy(reinterpret_cast<std::int8_t*>(out) + args.head_size, low, args.head_size);
            return;
        }
        for (std::size_t z = 0; z < args.head_size; z += width)
            for (std::size_t k = 0; k < 4; ++k)
                for (std::size_t odd = 0; odd < 2; ++odd, out += width / 2)
                    for (std::size_t l = 0; l < width / 16; ++l)
                        for (std::size_t j = 0; j < 8; ++j) {
                            const std::size_t c = z + 16 * l + 4 * k + odd + j % 2 * 2;
                            out[8 * l + j] = static_cast<std::int16_t>(128 * high[c] + low[c]);
                        }
    }

    /// The scales of n tokens, [groups][block], 0 behind them.
    CRUMB_INLINE void load_scales(const std::byte* part, std::size_t first, std::size_t n,
                                  float* to) const noexcept {
        const half* from = reinterpret_cast<const half*>(part) + first * groups;
        const std::size_t all = block * groups, some = n * groups;
        std::size_t steps_left = 0;
        for (std::size_t g = 1; g < groups; g *= 2)
            ++steps_left;
        float *x = steps_left % 2 == 0 ? to : free, *y = steps_left % 2 == 0 ? free : to;
        for (std::size_t i = 0; i < all; i += lanes)
            I::store(x + i, i < some ? M::load(from + i, some - i) : I::zero());
        // A step takes the lowest bit of a number's place to its top.
        for (; steps_left != 0; --steps_left) {
            for (std::size_t i = 0; i < all / 2; i += lanes) {
                f32 even, odd;
                I::load_pairs(x + 2 * i, even, odd);
                I::store(y + i, even);
                I::store(y + all / 2 + i, odd);
            }
            float* const z = x;
            x = y;
            y = z;
        }
    }

    // ---- scores ----
    template <int Queries>
    void score(const std::int8_t* k, std::size_t i, std::size_t n, const std::int8_t* ahead) const noexcept {
        kv_integers(*this).template score_tile<Queries>(k, i, n, ahead);
    }
    template <int Queries>
    CRUMB_INLINE void score_tile(const std::int8_t* k, std::size_t i, std::size_t n,
                                 const std::int8_t* ahead) const noexcept {
        constexpr std::size_t tile = Queries, together = 4 * sets;
        const std::size_t size = args.head_size;
        // Asking for what is read anyway costs less than a branch.
        line_prefetcher next(ahead != nullptr ? ahead : k, block * size, args.two_streams);
        const std::int16_t* query[tile];
        CRUMB_UNROLL
        for (std::size_t a = 0; a < tile; ++a)
            query[a] = spread_of(i + a);
        for (std::size_t t = 0; t < n; t += together) {
            const std::int8_t* rows = k + t * size;
            if (t + together > n)
                rows = filled_up(rows, n - t, together);
            f32 sum[tile * sets];
            CRUMB_UNROLL
            for (std::size_t j = 0; j < tile * sets; ++j)
                sum[j] = I::zero();
            for (std::size_t z = 0; z < size; z += width) {
                reg quads[together];
                CRUMB_UNROLL
                for (std::size_t s = 0; s < together; s += 4) {
                    reg x[4];
                    CRUMB_UNROLL
                    for (std::size_t j = 0; j < 4; ++j) {
                        next.step(width);
                        x[j] = B::load(rows + (s + j) * size + z);
                    }
                    B::by_quads(x, quads + s);
                }
                acc dot[tile * sets];
                if constexpr (words) {
                    kv_words<I, B>::template multiply<tile>(quads, query, z, dot);
                } else {
                    CRUMB_UNROLL
                    for (std::size_t a = 0; a < tile; ++a)
                        dot[a] = B::multiply(quads, reinterpret_cast<const std::int8_t*>(query[a]) + z, size);
                }
                CRUMB_UNROLL
                for (std::size_t s = 0; s < sets; ++s) {
                    const f32 scale = B::scales(key_scales + z / kv_group_channels * block + t + 4 * s);
                    CRUMB_UNROLL
                    for (std::size_t a = 0; a < tile; ++a)
                        sum[a * sets + s] = I::fma(B::to_f32(dot[a * sets + s]), scale, sum[a * sets + s]);
                }
            }
            CRUMB_UNROLL
            for (std::size_t a = 0; a < tile; ++a)
                B::store(sum + a * sets, queries[i + a].step, pass.scores + (i + a) * pass.stride + t);
        }
    }

    // ---- values ----
    /// Weights times scales as integers, in steps of a query and a group of channels: the largest weight of
    /// the query times the largest scale of the group is `whole` steps. Scales are in units of that largest
    /// one then.
    CRUMB_INLINE void round_weights(std::size_t n) const noexcept {
        for (std::size_t g = 0; g < groups; ++g) {
            float* d = value_scales + g * block;
            const float most = maximum(d), by = most > 0 ? whole / most : 0.0f;
            for (std::size_t t = 0; t < block; t += lanes)
                I::store(d + t, I::mul(I::load(d + t), I::set1(by)));
            steps[g] = most / whole;
        }
        // The first query's steps are those of the scales until all others are made of them.
        for (std::size_t i = pass.queries; i-- != 0;) {
            float* p = pass.scores + i * pass.stride;
            for (std::size_t t = round_up(n, lanes); t < block; t += lanes)
                I::store(p + t, I::zero());
            // Below the limit a reciprocal would not be finite.
            const float most = maximum(p), by = most > 1e-37f ? 1 / most : 0.0f;
            for (std::size_t t = 0; t < block; t += lanes)
                I::store(p + t, I::mul(I::load(p + t), I::set1(by)));
            for (std::size_t g = 0; g < groups; ++g) {
                steps[i * groups + g] = most * steps[g];
                for (std::size_t t = 0; t < block; t += 16)
                    round_16(p + t, value_scales + g * block + t, weights + (i * groups + g) * block, t);
            }
        }
    }
    static CRUMB_INLINE void round_16(const float* p, const float* d, std::int16_t* to,
                                      std::size_t t) noexcept {
        if constexpr (words) {
            B::round(p, d, to + t);
        } else {
            auto* const planes = reinterpret_cast<std::int8_t*>(to);
            B::round(p, d, planes + t, planes + block + t);
        }
    }
    /// The largest magnitude in a block.
    static CRUMB_INLINE float maximum(const float* x) noexcept {
        f32 most = I::abs(I::load(x));
        for (std::size_t t = lanes; t < block; t += lanes)
            most = I::max(most, I::abs(I::load(x + t)));
        return I::maximum(most);
    }

    template <int Queries>
    void add(const std::int8_t* v, std::size_t i, std::size_t n, const std::int8_t* ahead) const noexcept {
        kv_integers(*this).template add_tile<Queries>(v, i, n, ahead);
    }
    template <int Queries>
    CRUMB_INLINE void add_tile(const std::int8_t* v, std::size_t i, std::size_t n,
                               const std::int8_t* ahead) const noexcept {
        constexpr std::size_t tile = Queries, channels = 2 * lanes, tokens = B::tokens, sums = words ? 2 : 4;
        const std::size_t size = args.head_size, last = n - n % tokens;
        if (last != n)
            (void)filled_up(v + last * size, n - last, tokens);
        // Asking for what is read anyway costs less than a branch.
        line_prefetcher next(ahead != nullptr ? ahead : v, block * size, args.two_streams);
        for (std::size_t c = 0; c < size; c += channels) {
            const std::size_t g = c / kv_group_channels;
            acc sum[sums * tile];
            CRUMB_UNROLL
            for (std::size_t j = 0; j < sums * tile; ++j)
                sum[j] = B::zero();
            const std::int16_t* w = weights + (i * groups + g) * block;
            for (std::size_t t = 0; t < n; t += tokens) {
                next.step(tokens * channels);
                const std::int8_t* row = (t < last ? v + t * size : rest) + c;
                if constexpr (words)
                    kv_words<I, B>::template add<tile>(row, size, w + t, groups * block, sum);
                else
                    B::template add<tile>(row, size, reinterpret_cast<const std::int8_t*>(w) + t, block,
                                          2 * groups * block, sum);
            }
            CRUMB_UNROLL
            for (std::size_t a = 0; a < tile; ++a) {
                f32 low, high;
                if constexpr (words) {
                    low = B::to_f32(sum[2 * a]);
                    high = B::to_f32(sum[2 * a + 1]);
                    B::in_order(low, high);
                } else {
                    B::finish(sum + 4 * a, low, high);
                }
                const f32 step = I::set1(steps[(i + a) * groups + g]);
                float* o = pass.o + (i + a) * pass.padded + c;
                I::store(o, I::fma(step, low, I::load(o)));
                I::store(o + lanes, I::fma(step, high, I::load(o + lanes)));
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
