// Parts of product-quantized codes in a pass of attention, by tables: scores of the part, its weights rounded
// to planes of 7 bits, sums of values. Loops besides those of the scans:
//     scores and means   queries > 4 blocks of 32 tokens > registers of channels
//     rounding           queries > registers of tokens
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>

#include <crumb/isa/portable/pq.inl>

#include <crumb/kernel/cache/scans.inl>

#include <crumb/kernel/cache/pq_tables.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct kv_scan<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;
    static constexpr std::size_t blocks = kv_part_layout::mean_blocks;
    static constexpr float levels = static_cast<float>(pq_max);
    /// Share of a part's weight that rounding may change before a second plane of weights is worth its time.
    static constexpr float max_loss = 1.0f / 64;
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
        const pq_query_memory carved(codec, args.head_size);
        for (std::size_t i = 0; i < pass.queries; ++i) {
            queries[i] = carved.at(at.tables(own, i));
            pq_table_run<I>::run({codec, args.head_size, pass.q + i * pass.padded,
                                  cache.tables(pass.kv_head, true), &queries[i]});
        }
        restart();
    }
    /// Begins again with the same tables: nothing is summed.
    CRUMB_INLINE void restart() const noexcept {
        const kv_codec& codec = cache.keys().codec();
        for (std::size_t i = 0; i < pass.queries; ++i) {
            states[i] = {-__builtin_inff(), codec.residual ? 0.0f : 1.0f, 0};
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
        args.scans->score(
            {codes(keys, cache.keys(), ahead, {first, stop}), queries, pass.queries, pass.scores});
        finish_scores(keys, first, stop, ahead == nullptr ? nullptr : ahead + key_bytes);
        pass.weigh(t, stop);
    }

    /// Adds looked-up values of some tokens of a part, with the planes that `round_weights` has made.
    /// `ahead`: a part whose codes are prefetched, or null.
    CRUMB_INLINE void add_values(const std::byte* values, std::size_t planes, range tokens,
                                 const std::byte* ahead) const noexcept {
        args.scans->add({codes(values, cache.values(),
                               ahead == nullptr ? nullptr : ahead + cache.values().codes_offset(), tokens),
                         cache.tables(pass.kv_head, false).entries, at.planes(work), planes});
    }

    /// Adds what was summed to the pass's results.
    CRUMB_INLINE void end() const noexcept {
        const pq_tables values = cache.tables(pass.kv_head, false);
        float* sum = at.numbers(work, 0);
        const float largest = args.errors != nullptr ? largest_component(values) : 0.0f;
        for (std::size_t i = 0; i < pass.queries; ++i) {
            float factor = 0;
            if (states[i].reference != -__builtin_inff()) {
                factor = M::exp_of(states[i].reference - pass.maxima[i]);
                for (std::size_t c = 0; c < pass.padded; c += lanes)
                    I::store(sum + c, I::zero());
                pq_add_run<I>::finish({at.sums(own, i), args.head_size, values.scales, sum});
                float* o = pass.o + i * pass.padded;
                for (std::size_t c = 0; c < pass.padded; c += lanes)
                    I::store(o + c, I::fma(I::load(sum + c), I::set1(factor), I::load(o + c)));
            }
            if (args.errors != nullptr) {
                const std::size_t row = pass.row + i / args.group;
                const std::size_t head = pass.kv_head * args.group + i % args.group;
                args.errors[row * (args.q.cols / args.head_size) + head] = {
                    queries[i].error * states[i].scale,
                    pass.totals[i] > 0 ? states[i].lost * factor / pass.totals[i] * largest : 0.0f};
            }
        }
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
            std::int8_t* high = at.weights(work, 2 * i);
            float lost;
            // A quarter of a step is what a weight loses on average.
            if (0.25f * step * static_cast<float>(stop) <= max_loss * I::sum(total)) {
                lost = round(w, end, step, high);
                planes[count++] = {reinterpret_cast<const std::uint8_t*>(high), step * factor,
                                   at.sums(own, i)};
            } else {
                // What rounding down leaves, in 128ths of a step.
                std::int8_t* low = at.weights(work, 2 * i + 1);
                lost = round_down(w, end, step, high, low);
                planes[count++] = {reinterpret_cast<const std::uint8_t*>(high), step * factor,
                                   at.sums(own, i)};
                planes[count++] = {reinterpret_cast<const std::uint8_t*>(low), step / 128 * factor,
                                   at.sums(own, i)};
            }
            states[i].lost += lost * factor;
        }
        return count;
    }

    /// o += sum over blocks of (sum of the block's weights) * mean. `ahead`: a part whose means and scales
    /// are prefetched, or null.
    void add_means(const std::byte* part, const kv_part_weights& weights, std::size_t first, std::size_t stop,
                   const std::byte* ahead) const noexcept {
        const std::size_t head = pass.piece(cache.values().codes_offset(), pass.vectors);
        for (std::size_t i = 0; i < pass.queries; ++i) {
            const float* p = weights.row(i);
            const float level =
                weights.levels == pass.maxima ? 1.0f : M::exp_of(weights.levels[i] - pass.maxima[i]);
            float sums[blocks];
            const std::size_t begin = first / kv_mean_tokens;
            const std::size_t end = (stop + kv_mean_tokens - 1) / kv_mean_tokens;
            for (std::size_t b = begin / 4 * 4; b < end; b += 4) {
                f32 of_block[4];
                CRUMB_UNROLL
                for (std::size_t j = 0; j < 4; ++j) {
                    const float* w = p + (b + j) * kv_mean_tokens;
                    of_block[j] = I::load(w);
                    CRUMB_UNROLL
                    for (std::size_t t = lanes; t < kv_mean_tokens; t += lanes)
                        of_block[j] = I::add(of_block[j], I::load(w + t));
                }
                I::sum4(of_block[0], of_block[1], of_block[2], of_block[3], sums + b);
            }
            float* o = pass.o + i * pass.padded;
            for (std::size_t c = 0; c < args.head_size; c += lanes) {
                if (i == 0)
                    pass.prefetch_piece(ahead, c / lanes, head);
                f32 y = I::load(o + c);
                for (std::size_t b = begin; b < end; ++b)
                    y = I::fma(I::set1(level * sums[b]),
                               M::load(mean(part, cache.values(), b) + c, args.head_size - c), y);
                I::store(o + c, y);
            }
        }
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
    static CRUMB_INLINE const half* mean(const std::byte* part, const kv_part_layout& layout,
                                         std::size_t b) noexcept {
        return reinterpret_cast<const half*>(part) + b * layout.head_size();
    }
    /// The scales of a part's tokens as floats.
    CRUMB_INLINE const float* scales(const std::byte* part, const kv_part_layout& layout, std::size_t stop,
                                     float* to) const noexcept {
        const half* from = reinterpret_cast<const half*>(part + layout.scales_offset());
        for (std::size_t t = 0; t < stop; t += lanes)
            I::store(to + t, I::load(from + t));
        return to;
    }

    /// From sums of tables to scores: s[t] * sum + q . mean, and -infinity for tokens before `first`.
    /// `ahead`: where as many bytes are prefetched as means and scales have, or null.
    void finish_scores(const std::byte* part, std::size_t first, std::size_t stop,
                       const std::byte* ahead) const noexcept {
        const float* s = nullptr;
        if (cache.keys().codec().residual) {
            s = scales(part, cache.keys(), stop, at.numbers(work, 0));
            f32 most = I::zero();
            std::size_t t = first / lanes * lanes;
            for (; t + lanes <= stop; t += lanes)
                most = I::max(most, I::load(s + t));
            float largest = I::maximum(most);
            for (; t < stop; ++t)
                largest = s[t] > largest ? s[t] : largest;
            for (std::size_t i = 0; i < pass.queries; ++i)
                states[i].scale = largest > states[i].scale ? largest : states[i].scale;
        }
        const std::size_t begin = first / kv_mean_tokens / 4 * 4,
                          end = (stop + kv_mean_tokens - 1) / kv_mean_tokens;
        for (std::size_t i = 0; i < pass.queries; ++i) {
            float* x = pass.scores + i * pass.stride;
            if (s != nullptr) {
                const float* q = pass.q + i * pass.padded;
                float of_blocks[blocks];
                for (std::size_t b = begin; b < end; b += 4)
                    four_levels(part, q, b, end, i == 0 ? ahead : nullptr, of_blocks + b);
                for (std::size_t b = begin; b < end; ++b) {
                    const f32 level = I::set1(of_blocks[b]);
                    for (std::size_t t = b * kv_mean_tokens; t < (b + 1) * kv_mean_tokens; t += lanes)
                        I::store(x + t, I::fma(I::load(x + t), I::load(s + t), level));
                }
            }
            for (std::size_t t = 0; t < first; ++t)
                x[t] = -__builtin_inff();
        }
    }

    /// Products of a query with the means of 4 blocks from b on, of those before `end`.
    CRUMB_INLINE void four_levels(const std::byte* part, const float* q, std::size_t b, std::size_t end,
                                  const std::byte* ahead, float* out) const noexcept {
        const std::size_t head = pass.piece(cache.keys().codes_offset(), blocks);
        const half* means[4];
        f32 dots[4];
        CRUMB_UNROLL
        for (std::size_t j = 0; j < 4; ++j) {
            pass.prefetch_piece(ahead, b + j, head);
            means[j] = mean(part, cache.keys(), b + j < end ? b + j : end - 1);
            dots[j] = I::zero();
        }
        for (std::size_t c = 0; c < args.head_size; c += lanes) {
            const f32 x = I::load(q + c);
            CRUMB_UNROLL
            for (int j = 0; j < 4; ++j)
                dots[j] = I::fma(x, M::load(means[j] + c, args.head_size - c), dots[j]);
        }
        I::sum4(dots[0], dots[1], dots[2], dots[3], out);
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
            state.reference = level;
        }
        return M::exp_of(level - state.reference);
    }

    /// out = round(w / step); the sum of |w - step * out|.
    static CRUMB_INLINE float round(const float* w, std::size_t end, float step, std::int8_t* out) noexcept {
        const f32 by = I::set1(1 / step), unit = I::set1(step);
        f32 lost = I::zero();
        for (std::size_t t = 0; t < end; t += 32) {
            I::round_group(w + t, 1 / step, out + t);
            CRUMB_UNROLL
            for (std::size_t j = t; j < t + 32; j += lanes) {
                const f32 x = I::load(w + j);
                lost = I::add(lost, I::abs(I::sub(x, I::mul(nearest(I::mul(x, by)), unit))));
            }
        }
        return I::sum(lost);
    }
    /// high + low / 128 = w / step, as near as bytes of 7 bits come. The sum of what is left.
    static CRUMB_INLINE float round_down(const float* w, std::size_t end, float step, std::int8_t* high,
                                         std::int8_t* low) noexcept {
        const f32 half_step = I::set1(step / 2), by = I::set1(1 / step), unit = I::set1(step);
        const f32 fine_by = I::set1(128 / step), fine_unit = I::set1(step / 128);
        const f32 most = I::set1(step * (levels / 128));
        float down[32], fine[32];
        f32 lost = I::zero();
        for (std::size_t t = 0; t < end; t += 32) {
            CRUMB_UNROLL
            for (std::size_t j = 0; j < 32; j += lanes) {
                const f32 x = I::load(w + t + j), d = I::max(I::sub(x, half_step), I::zero());
                const f32 rest = I::sub(x, I::mul(nearest(I::mul(d, by)), unit));
                const f32 r = I::min(I::max(rest, I::zero()), most);
                I::store(down + j, d);
                I::store(fine + j, r);
                lost = I::add(lost, I::abs(I::sub(rest, I::mul(nearest(I::mul(r, fine_by)), fine_unit))));
            }
            I::round_group(down, 1 / step, high + t);
            I::round_group(fine, 128 / step, low + t);
        }
        return I::sum(lost);
    }
    /// As `round_group` rounds.
    static CRUMB_INLINE f32 nearest(f32 x) noexcept { return I::to_f32(I::round_to_i32(x)); }

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
