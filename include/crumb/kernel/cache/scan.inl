// Parts of product-quantized codes in a pass of attention, by tables or expanded: scores of the part, its
// weights rounded to planes of 7 bits, sums of values. Loops besides those of the scans:
//     rounding   queries > registers of tokens
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>

#include <crumb/isa/portable/pq.inl>

#include <crumb/kernel/cache/scans.inl>

#include <crumb/kernel/cache/expand_query.inl>
#include <crumb/kernel/cache/pq_tables.inl>
#include <crumb/kernel/cache/scan_means.inl>
#include <crumb/kernel/cache/scan_rounding.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct kv_scan<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    using rounding = pq_rounding<I>;
    static constexpr std::size_t lanes = M::lanes;
    static constexpr int query_tile = I::query_tile; ///< queries that share means
    static constexpr float levels = static_cast<float>(pq_max);
    /// Beyond this the sums of values would leave the range of floats: they are brought to a newer reference.
    static constexpr float max_ahead = 40;
    static constexpr std::size_t far_enough = 16384; ///< bytes that prefetched codes are ahead

    const attention_pass<I>& pass;
    const kv_layer_view& cache;
    const kv_scratch& at;
    float *own, *work;
    const kv_attention_args& args;
    pq_query* queries;
    kv_scan_state* states;

    /// `place`: the number of the pass's head among those that go through the parts together.
    CRUMB_INLINE kv_scan(const attention_pass<I>& p, const kv_attention_args& a, std::size_t place) noexcept
        : pass(p), cache(a.cache), at(a.memory), own(at.state(a.scratch, place)), work(at.work(a.scratch)),
          args(a), queries(at.queries(own)), states(at.states(own)) {}

    CRUMB_INLINE void begin() const noexcept {
        const kv_codec& codec = cache.keys().codec();
        const bool expanded = at.route() == kv_route::expanded;
        const pq_query_memory carved(codec, args.head_size, expanded);
        const pq_tables keys = cache.tables(pass.kv_head, true);
        if (at.joined())
            for (const bool of_keys : {true, false})
                args.scans->join({codec, args.head_size, cache.tables(pass.kv_head, of_keys).entries, of_keys,
                                  at.entries(own, of_keys)});
        for (std::size_t i = 0; i < pass.queries; ++i) {
            queries[i] = carved.at(at.tables(own, i));
            const pq_table_args of{codec, args.head_size, pass.q + i * pass.padded, keys, &queries[i]};
            if (expanded)
                pq_expand_query_run<I>::run(of);
            else
                pq_table_run<I>::run(of);
        }
        restart();
    }
    /// Begins again with the same tables: nothing is summed.
    CRUMB_INLINE void restart() const noexcept {
        for (std::size_t i = 0; i < pass.queries; ++i) {
            states[i] = {};
            states[i].reference = -__builtin_inff();
            float* sums = at.sums(own, i);
            for (std::size_t c = 0; c < at.sum_floats(); c += lanes)
                I::store(sums + c, I::zero());
        }
    }

    /// Tokens first .. stop - 1 of the parts `here`, whose token 0 is the sequence's token t. `next`: what is
    /// read after them, or nothing.
    CRUMB_INLINE void attend(const kv_parts& here, std::size_t t, std::size_t first, std::size_t stop,
                             const kv_parts& next) const noexcept {
        // Each step prefetches what will be read soon, 16 KB ahead or more, so that memory is busy all the
        // time: scores for a part from its beginning on, sums of values for another one. Memory is fastest
        // where it is prefetched in the order in which it lies.
        const bool far = cache.values().bytes() >= far_enough;
        const std::byte *scores_ask = far ? here.values : next.keys,
                        *sums_ask = far ? next.keys : next.values;
        score_part(here.keys, t, first, stop, scores_ask);
        const kv_part_weights weights{pass.scores, pass.stride, pass.maxima};
        const std::size_t planes = round_weights(here.values, weights, stop);
        if (cache.values().codec().residual)
            add_means(here.values, weights, first, stop, sums_ask);
        add_values(here.values, planes, {first, stop}, sums_ask);
    }

    /// Scores tokens first .. stop - 1 of a part of keys, whose token 0 is t, and turns them into weights,
    /// relative to the pass's maxima. `ahead`: a part to prefetch, or null.
    void score_part(const std::byte* keys, std::size_t t, std::size_t first, std::size_t stop,
                    const std::byte* ahead) const noexcept {
        // As many lines as there are codes; then what is left of the part.
        const std::size_t key_bytes = cache.keys().bytes() - cache.keys().codes_offset();
        const float* s =
            cache.keys().codec().residual ? scales(keys, cache.keys(), stop, at.numbers(work, 0)) : nullptr;
        choose_planes(s != nullptr ? largest(s, stop) : 1);
        pq_score_args scan{codes(keys, cache.keys(), ahead, {first, stop}),
                           queries,
                           pass.queries,
                           pass.scores,
                           at.counts(work),
                           nullptr};
        if (at.route() == kv_route::expanded) {
            scan.entries = at.joined() ? at.entries(own, true) : cache.tables(pass.kv_head, true).entries;
            args.scans->expand(scan);
        } else {
            args.scans->score(scan);
        }
        finish_scores(keys, s, first, stop, ahead == nullptr ? nullptr : ahead + key_bytes);
        pass.weigh(t, stop);
    }

    /// Adds looked-up values of some tokens of a part, with the planes that `round_weights` has made.
    /// `ahead`: a part whose codes are prefetched, or null.
    CRUMB_INLINE void add_values(const std::byte* values, std::size_t planes, range tokens,
                                 const std::byte* ahead) const noexcept {
        const pq_add_args add{
            codes(values, cache.values(), ahead == nullptr ? nullptr : ahead + cache.values().codes_offset(),
                  tokens),
            at.joined() ? at.entries(own, false) : cache.tables(pass.kv_head, false).entries, at.planes(work),
            planes};
        if (at.joined())
            args.scans->add_joined(add);
        else
            args.scans->add(add);
    }

    /// Adds what was summed to the pass's results.
    CRUMB_INLINE void end() const noexcept {
        const pq_tables values = cache.tables(pass.kv_head, false);
        float* sum = at.numbers(work, 0);
        const float most = args.errors != nullptr ? largest_component(values) : 0.0f;
        for (std::size_t i = 0; i < pass.queries; ++i) {
            float factor = 0;
            if (states[i].reference != -__builtin_inff()) {
                factor = M::exp_of(states[i].reference - pass.maxima[i]);
                for (std::size_t c = 0; c < pass.padded; c += lanes)
                    I::store(sum + c, I::zero());
                pq_add_run<I>::finish({at.sums(own, i), args.head_size, values.scales, sum, at.joined()});
                float* o = pass.o + i * pass.padded;
                for (std::size_t c = 0; c < pass.padded; c += lanes)
                    I::store(o + c, I::fma(I::load(sum + c), I::set1(factor), I::load(o + c)));
            }
            report(i, factor, most);
        }
    }
    /// Says what the errors of query i are, if they are asked for. `factor`: e^(reference - maximum); `most`:
    /// the largest magnitude that weights are multiplied with.
    CRUMB_INLINE void report(std::size_t i, float factor, float most) const noexcept {
        if (args.errors == nullptr)
            return;
        const std::size_t row = pass.row + i / args.group, head = pass.kv_head * args.group + i % args.group;
        const kv_scan_state& state = states[i];
        const auto share = [](std::uint32_t some, std::uint32_t all) {
            return all == 0 ? 0.0f : static_cast<float>(some) / static_cast<float>(all);
        };
        args.errors[row * (args.q.cols / args.head_size) + head] = {
            state.error, pass.totals[i] > 0 ? state.lost * factor / pass.totals[i] * most : 0.0f,
            share(state.second_scores, state.scored), share(state.second_weights, state.weighed)};
    }

    /// e^(level - reference) of query i, whose sums it brings to a newer reference where that is too far
    /// behind.
    CRUMB_INLINE float relative(std::size_t i, float level) const noexcept {
        kv_scan_state& state = states[i];
        if (state.reference == -__builtin_inff())
            state.reference = level;
        if (level - state.reference > max_ahead) {
            const float factor = M::exp_of(state.reference - level);
            float* sums = at.sums(own, i);
            for (std::size_t c = 0; c < at.sum_floats(); c += lanes)
                I::store(sums + c, I::mul(I::load(sums + c), I::set1(factor)));
            state.lost *= factor;
            state.mass *= factor;
            state.spent *= factor;
            state.reference = level;
        }
        return M::exp_of(level - state.reference);
    }

    /// Whether one plane is enough for weights whose steps add up to `steps`, which it counts: a quarter of a
    /// step is what a weight loses on average. What earlier ones did not lose, these may.
    CRUMB_INLINE bool one_plane(kv_scan_state& state, float steps, float limit) const noexcept {
        const float loss = 0.25f * steps;
        const bool one = state.spent + loss <= limit * state.mass;
        ++state.weighed;
        if (one)
            state.spent += loss;
        else
            ++state.second_weights;
        return one;
    }

    /// Weights of a part's tokens 0 .. stop - 1, scaled and rounded, for all queries; the number of planes
    /// they take.
    std::size_t round_weights(const std::byte* part, const kv_part_weights& weights,
                              std::size_t stop) const noexcept {
        const float* s = cache.values().codec().residual
                             ? scales(part, cache.values(), stop, at.numbers(work, 0))
                             : nullptr;
        // A register may hold codes of tokens behind `stop`: their weights are 0.
        constexpr std::size_t end = kv_part_tokens;
        float* w = at.numbers(work, 1);
        pq_plane* planes = at.planes(work);
        std::size_t count = 0;
        for (std::size_t i = 0; i < pass.queries; ++i) {
            float* p = weights.row(i);
            for (std::size_t j = stop; j % kv_mean_tokens != 0; ++j)
                p[j] = 0;
            f32 most = I::zero(), total = I::zero();
            std::size_t t = 0;
            for (; t < stop; t += lanes) {
                f32 x = I::load(p + t);
                if (s != nullptr)
                    x = I::mul(x, I::load(s + t));
                I::store(w + t, x);
                most = I::max(most, x);
                total = I::add(total, x);
            }
            for (; t < end; t += lanes)
                I::store(w + t, I::zero());
            const float step = I::maximum(most) / levels;
            // Below that a reciprocal would not be finite.
            if (!(step > 1e-37f))
                continue;
            const float factor = relative(i, weights.levels[i]);
            kv_scan_state& state = states[i];
            state.mass += I::sum(total) * factor;
            const bool one = one_plane(state, step * static_cast<float>(stop) * factor, args.limits.weight);
            std::int8_t *high = at.weights(work, 2 * i), *low = at.weights(work, 2 * i + 1);
            const auto add = [&](const std::int8_t* plane, float unit) {
                planes[count++] = {reinterpret_cast<const std::uint8_t*>(plane), unit * factor,
                                   at.sums(own, i)};
            };
            add(high, step);
            if (one) {
                state.lost += rounding::round(w, end, step, high, args.errors != nullptr) * factor;
            } else {
                // What rounding down leaves, in 128ths of a step.
                add(low, step / 128);
                state.lost += rounding::round_down(w, end, step, high, low) * factor;
            }
        }
        return count;
    }

    /// o += sum over blocks of (sum of the block's weights) * mean. `ahead`: a part whose means and scales
    /// are prefetched, or null.
    void add_means(const std::byte* part, const kv_part_weights& weights, std::size_t first, std::size_t stop,
                   const std::byte* ahead) const noexcept {
        const std::size_t begin = first / kv_mean_tokens, end = (stop + kv_mean_tokens - 1) / kv_mean_tokens;
        const kv_means<I> means{pass, cache, args.head_size};
        std::size_t i = 0;
        for (; i + query_tile <= pass.queries; i += query_tile)
            means.template add<query_tile>(part, weights, i, begin, end, i == 0 ? ahead : nullptr);
        if constexpr (query_tile > 1)
            for (; i < pass.queries; ++i)
                means.template add<1>(part, weights, i, begin, end, i == 0 ? ahead : nullptr);
    }

  private:
    CRUMB_INLINE pq_codes codes(const std::byte* part, const kv_part_layout& layout, const std::byte* ahead,
                                range tokens) const noexcept {
        const std::size_t offset = layout.codes_offset();
        return {layout.codec(),
                args.head_size,
                reinterpret_cast<const std::uint8_t*>(part + offset),
                reinterpret_cast<const std::uint8_t*>(ahead),
                tokens.begin / kv_block_tokens,
                (tokens.end + kv_block_tokens - 1) / kv_block_tokens};
    }
    /// The scales of a part's tokens as floats.
    CRUMB_INLINE const float* scales(const std::byte* part, const kv_part_layout& layout, std::size_t stop,
                                     float* to) const noexcept {
        const half* from = reinterpret_cast<const half*>(part + layout.scales_offset());
        for (std::size_t t = 0; t < stop; t += lanes)
            I::store(to + t, I::load(from + t));
        return to;
    }

    /// The largest of `n` scales.
    static CRUMB_INLINE float largest(const float* s, std::size_t n) noexcept {
        f32 most = I::zero();
        std::size_t t = 0;
        for (; t + lanes <= n; t += lanes)
            most = I::max(most, I::load(s + t));
        float x = I::maximum(most);
        for (; t < n; ++t)
            x = s[t] > x ? s[t] : x;
        return x;
    }
    /// How many planes each query takes for a part whose tokens have scales of up to `scale`. All of the
    /// part's tokens count, so that it does not depend on which of them a call reads.
    CRUMB_INLINE void choose_planes(float scale) const noexcept {
        std::uint8_t* counts = at.counts(work);
        const bool whole =
            at.route() == kv_route::expanded && args.scans->expansion(cache.keys().codec()).whole;
        const float limit = whole ? 0 : args.limits.score;
        for (std::size_t i = 0; i < pass.queries; ++i) {
            kv_scan_state& state = states[i];
            const float coarse = queries[i].coarse_error * scale;
            const bool one = coarse <= limit && limit > 0;
            const float error = one ? coarse : queries[i].error * scale;
            counts[i] = one ? 1 : 2;
            state.error = error > state.error ? error : state.error;
            ++state.scored;
            state.second_scores += one ? 0 : 1;
        }
    }

    /// From sums over codes to scores: s[t] * sum + q . mean, and -infinity for tokens before `first`.
    /// `ahead`: where as many bytes are prefetched as means and scales have, or null.
    void finish_scores(const std::byte* part, const float* s, std::size_t first, std::size_t stop,
                       const std::byte* ahead) const noexcept {
        const std::size_t begin = first / kv_mean_tokens / 4 * 4,
                          end = (stop + kv_mean_tokens - 1) / kv_mean_tokens;
        if (s != nullptr) {
            const kv_means<I> means{pass, cache, args.head_size};
            std::size_t i = 0;
            for (; i + query_tile <= pass.queries; i += query_tile)
                means.template add_levels<query_tile>(part, s, i, begin, end, i == 0 ? ahead : nullptr);
            if constexpr (query_tile > 1)
                for (; i < pass.queries; ++i)
                    means.template add_levels<1>(part, s, i, begin, end, i == 0 ? ahead : nullptr);
        }
        for (std::size_t i = 0; i < pass.queries; ++i)
            for (std::size_t t = 0; t < first; ++t)
                pass.scores[i * pass.stride + t] = -__builtin_inff();
    }

    /// The largest magnitude of a centroid's component.
    CRUMB_INLINE float largest_component(const pq_tables& tables) const noexcept {
        float largest = 0;
        for (std::size_t c = 0; c < args.head_size; ++c) {
            const float x =
                largest_entry(tables.entries + c * cache.values().codec().entries()) * tables.scales[c];
            largest = x > largest ? x : largest;
        }
        return largest;
    }
    /// The largest magnitude that entries of one channel make.
    CRUMB_INLINE float largest_entry(const std::int8_t* entries) const noexcept {
        const kv_codec& codec = cache.values().codec();
        const std::size_t tables = codec.additive ? 2 : 1, each = codec.entries() / tables;
        int sum = 0;
        for (std::size_t k = 0; k < tables; ++k) {
            int most = 0;
            for (std::size_t e = k * each; e < (k + 1) * each; ++e) {
                const int magnitude = entries[e] < 0 ? -entries[e] : entries[e];
                most = magnitude > most ? magnitude : most;
            }
            sum += most;
        }
        return static_cast<float>(sum);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
