// The state of attention for some queries of a kv head, and its passes over blocks of 64 tokens. Loops:
//     dense     blocks of tokens > score, weigh, add
//     score     tiles of queries > 2 or 4 tokens > registers of channels
//     weigh     queries > registers of tokens
//     add       tiles of queries > registers of channels (`vectors_of`) > tokens
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

// Queries of one kv head that go through the tokens together: i = (row - first row) * group + head in group.
template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct attention_pass<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;
    static constexpr int query_tile =
        I::query_tile == 1 ? 1 : 4;               ///< queries that share what is converted of keys and values
    static constexpr int sums = I::registers / 2; ///< accumulators
    /// Queries up to which halves are converted again for each tile; for more they are converted once.
    static constexpr std::size_t converted_above = query_tile == 1 ? 1 : 32;

    const attention_query_args& args;
    std::size_t kv_head, row, queries, vectors, padded, stride;
    float *q, *o, *converted, *scores, *maxima, *totals, *fresh, *factors;

    CRUMB_NOINLINE attention_pass(const attention_query_args& a, std::size_t h, std::size_t r,
                                  std::size_t rows, float* state, float* work) noexcept
        : args(a), kv_head(h), row(r), queries(rows * a.group), vectors((a.head_size + lanes - 1) / lanes),
          padded(vectors * lanes), stride(a.score_tokens) {
        const attention_scratch at{a.row_block * a.group, padded, stride};
        q = state;
        o = state + at.sums();
        maxima = state + at.maxima();
        totals = state + at.totals();
        converted = work;
        scores = work + at.scores();
        fresh = work + at.fresh();
        factors = work + at.factors();
    }

    /// One past the last token that query i sees.
    CRUMB_INLINE std::size_t visible(std::size_t i) const noexcept { return visible(i, 0, args.tokens.end); }
    /// The first token that query i sees.
    CRUMB_INLINE std::size_t oldest(std::size_t i) const noexcept {
        const std::size_t end = args.position + row + i / args.group + 1;
        return end < args.span ? 0 : end - args.span;
    }
    /// Where a pass that counts tokens in blocks from `origin` on begins: results do not depend on the rows
    /// that share a pass, because blocks begin at the same tokens for all of them.
    CRUMB_INLINE std::size_t first(std::size_t origin) const noexcept {
        const std::size_t seen = oldest(0), from = seen < origin ? 0 : origin;
        const std::size_t block = from + (seen - from) / attention_block * attention_block;
        return block > args.tokens.begin ? block : args.tokens.begin;
    }
    /// How many of `n` tokens from t on query i sees.
    CRUMB_INLINE std::size_t visible(std::size_t i, std::size_t t, std::size_t n) const noexcept {
        return visible_of(args, row, i, t, n);
    }

    void begin() const noexcept {
        const f32 scale = I::set1(args.scale);
        for (std::size_t i = 0; i < queries; ++i) {
            const float* from =
                args.q.row(row + i / args.group) + (kv_head * args.group + i % args.group) * args.head_size;
            for (std::size_t c = 0; c < padded; c += lanes) {
                I::store(q + i * padded + c, I::mul(M::load(from + c, args.head_size - c), scale));
                I::store(o + i * padded + c, I::zero());
            }
            maxima[i] = -__builtin_inff();
            totals[i] = 0;
        }
        for (std::size_t i = queries; i % lanes != 0; ++i)
            maxima[i] = fresh[i] = 0;
    }

    /// Takes tokens first .. last - 1 of rows that are `T`; token t is at k.row(t - origin). `after`: keys
    /// that are read next, as many as the last block has, or none.
    template <class T>
    void dense(kv_rows<T> k, kv_rows<T> v, std::size_t origin, std::size_t first, std::size_t last,
               kv_rows<T> after = {}) const noexcept {
        for (std::size_t t = first; t < last; t += attention_block) {
            const std::size_t n = last - t < attention_block ? last - t : attention_block;
            const kv_rows<T> keys = k.from(t - origin);
            const kv_rows<T> ahead = t + attention_block >= last       ? after
                                     : t + 2 * attention_block <= last ? keys.from(attention_block)
                                                                       : kv_rows<T>{};
            dense_block<T>(keys, v.from(t - origin), t, n, ahead);
        }
    }

    template <class T>
    void dense_block(kv_rows<T> k, kv_rows<T> v, std::size_t t, std::size_t n,
                     kv_rows<T> ahead) const noexcept {
        // What many queries read, or what has ends of rows, is converted once.
        const bool as_it_lies =
            padded == args.head_size && (sizeof(T) == sizeof(float) || queries <= converted_above);
        if (as_it_lies) {
            score(k, t, n, v);
        } else {
            convert(k, n);
            score(block(), t, n, {});
        }
        weigh(t, n);
        if (as_it_lies) {
            add(v, t, n, ahead);
        } else {
            convert(v, n);
            add(block(), t, n, {});
        }
    }
    /// The converted block.
    CRUMB_INLINE kv_rows<float> block() const noexcept { return {converted, padded}; }

    // The values of a block are prefetched while its keys are read, the next keys while the values are.
    template <class T>
    using prefetcher = row_prefetcher<std::remove_cvref_t<decltype(*kv_rows<T>().data)>>;
    template <class T>
    CRUMB_INLINE prefetcher<T> prefetching(const kv_rows<T>& ahead, std::size_t n,
                                           std::size_t i) const noexcept {
        constexpr std::size_t tile = query_tile;
        return prefetcher_of<T>(ahead.data, n, ahead.stride, padded, i / tile, (queries + tile - 1) / tile,
                                args.two_streams);
    }

    // Channels c .. c + lanes - 1 of a row.
    template <class T>
    static CRUMB_INLINE f32 read(const T* r, std::size_t c) noexcept {
        return I::load(r + c);
    }
    static CRUMB_INLINE f32 read(const kv_byte_row& r, std::size_t c) noexcept {
        return I::mul(I::set1(r.scales[c / kv_group_channels]), I::load_integers(r.codes + c));
    }

    template <class T>
    void convert(kv_rows<T> from, std::size_t n) const noexcept {
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t c = 0; c < padded; c += lanes)
                I::store(converted + i * padded + c, M::load(from.row(i) + c, args.head_size - c));
    }

    // ---- scores ----
    // Compiled once per type of rows, for all who call it; and for a copy of the pass, whose members stay in
    // registers: as far as the compiler knows, stores of vectors may change those of *this.
    template <class T>
    void score(kv_rows<T> k, std::size_t t, std::size_t n, kv_rows<T> ahead) const noexcept {
        attention_pass(*this).score_tiles(k, t, n, ahead);
    }
    template <class T>
    CRUMB_INLINE void score_tiles(kv_rows<T> k, std::size_t t, std::size_t n,
                                  kv_rows<T> ahead) const noexcept {
        std::size_t i = 0;
        for (; i + query_tile <= queries; i += query_tile)
            score_tile<query_tile>(k, i, visible(i + query_tile - 1, t, n), ahead);
        if constexpr (query_tile > 2)
            for (; i + 2 <= queries; i += 2)
                score_tile<2>(k, i, visible(i + 1, t, n), ahead);
        if constexpr (query_tile > 1)
            if (i < queries)
                score_tile<1>(k, i, visible(i, t, n), ahead);
    }

    // Two or four tokens at a time; beyond the end the last token again, so that every score is summed alike.
    template <int Queries, class T>
    CRUMB_INLINE void score_tile(kv_rows<T> k, std::size_t i, std::size_t n,
                                 kv_rows<T> ahead) const noexcept {
        constexpr std::size_t tile = Queries, together = 4 * Queries <= sums ? 4 : sums / Queries;
        prefetcher<T> soon = prefetching(ahead, n, i);
        for (std::size_t t = 0; t < n; t += together) {
            decltype(k.row(0)) key[together];
            CRUMB_UNROLL
            for (std::size_t j = 0; j < together; ++j)
                key[j] = k.row(t + j < n ? t + j : n - 1);
            f32 dot[tile * together];
            CRUMB_UNROLL
            for (std::size_t j = 0; j < tile * together; ++j)
                dot[j] = I::zero();
            const float* query = q + i * padded;
            for (std::size_t c = 0; c < padded; c += lanes) {
                soon.template step<int(lanes * together)>();
                f32 keys[together];
                CRUMB_UNROLL
                for (std::size_t j = 0; j < together; ++j)
                    keys[j] = read(key[j], c);
                CRUMB_UNROLL
                for (std::size_t a = 0; a < tile; ++a) {
                    const f32 x = I::load(query + a * padded + c);
                    CRUMB_UNROLL
                    for (std::size_t j = 0; j < together; ++j)
                        dot[together * a + j] = I::fma(x, keys[j], dot[together * a + j]);
                }
            }
            float* to = scores + i * stride + t;
            CRUMB_UNROLL
            for (std::size_t a = 0; a < tile * together; a += 4) {
                const std::size_t first = a / together * stride;
                if constexpr (together == 4) {
                    I::sum4(dot[a], dot[a + 1], dot[a + 2], dot[a + 3], to + first);
                } else {
                    float four[4];
                    I::sum4(dot[a], dot[a + 1], dot[a + 2], dot[a + 3], four);
                    __builtin_memcpy(to + first, four, 2 * sizeof(float));
                    __builtin_memcpy(to + first + stride, four + 2, 2 * sizeof(float));
                }
            }
        }
    }

    // ---- weights ----
    /// Turns scores into exp(score - max), and brings what is summed so far to the new maxima. Queries
    /// take every step together, because each step alone waits for its own result.
    void weigh(std::size_t t, std::size_t n) const noexcept {
        if (oldest(queries - 1) > t)
            hide(t, n);
        for (std::size_t i = 0; i < queries; ++i)
            fresh[i] = maximum(i, visible(i, t, n));
        for (std::size_t i = 0; i < queries; i += lanes)
            I::store(factors + i, M::exp_of_negative(I::sub(I::load(maxima + i), I::load(fresh + i))));
        for (std::size_t i = 0; i < queries; ++i) {
            if (fresh[i] == maxima[i])
                continue;
            const f32 f = I::set1(factors[i]);
            for (std::size_t c = i * padded; c < (i + 1) * padded; c += lanes)
                I::store(o + c, I::mul(I::load(o + c), f));
            totals[i] *= factors[i];
            maxima[i] = fresh[i];
        }
        for (std::size_t i = 0; i < queries; ++i)
            totals[i] += exponentials(i, visible(i, t, n));
    }

    /// Takes the weight from tokens that are older than a query sees.
    void hide(std::size_t t, std::size_t n) const noexcept {
        for (std::size_t i = 0; i < queries; ++i)
            for (std::size_t j = 0; j < n && t + j < oldest(i); ++j)
                scores[i * stride + j] = -__builtin_inff();
    }

    /// The maximum of n scores of query i and those before.
    CRUMB_INLINE float maximum(std::size_t i, std::size_t n) const noexcept {
        float* s = scores + i * stride;
        for (std::size_t j = n; j % lanes != 0; ++j)
            s[j] = -__builtin_inff();
        // Two at a time: each waits for its own last result.
        f32 most = I::set1(maxima[i]), other = most;
        std::size_t j = 0;
        for (; j + lanes < n; j += 2 * lanes) {
            most = I::max(most, I::load(s + j));
            other = I::max(other, I::load(s + j + lanes));
        }
        if (j < n)
            most = I::max(most, I::load(s + j));
        return I::maximum(I::max(most, other));
    }

    /// Turns n scores of query i into weights; their sum.
    CRUMB_INLINE float exponentials(std::size_t i, std::size_t n) const noexcept {
        float* s = scores + i * stride;
        // A query that has seen no token yet has no maximum that could be subtracted.
        const f32 top = I::set1(maxima[i] == -__builtin_inff() ? 0.0f : maxima[i]);
        f32 total = I::zero();
        for (std::size_t j = 0; j < n; j += lanes) {
            const f32 e = M::exp_of_negative(I::sub(I::load(s + j), top));
            I::store(s + j, e);
            total = I::add(total, e);
        }
        return I::sum(total);
    }

    // ---- values ----
    template <class T>
    void add(kv_rows<T> v, std::size_t t, std::size_t n, kv_rows<T> ahead) const noexcept {
        attention_pass(*this).add_tiles(v, t, n, ahead);
    }
    // Queries of a tile see equally many tokens or later rows a few more; those are added query by query,
    // because 0 times a value that a query must not see could be NaN.
    template <class T>
    CRUMB_INLINE void add_tiles(kv_rows<T> v, std::size_t t, std::size_t n, kv_rows<T> ahead) const noexcept {
        std::size_t i = 0;
        for (; i + query_tile <= queries; i += query_tile)
            add_tile<query_tile>(v, i, t, n, ahead);
        if constexpr (query_tile > 2)
            for (; i + 2 <= queries; i += 2)
                add_tile<2>(v, i, t, n, ahead);
        if constexpr (query_tile > 1)
            if (i < queries)
                add_tile<1>(v, i, t, n, ahead);
    }

    /// Registers of channels that are summed together: no more than heads of 128 channels have.
    static constexpr int vectors_of(int tile) noexcept {
        const int most = 128 / static_cast<int>(lanes);
        return sums / tile < most ? sums / tile : most;
    }
    template <int Queries, class T>
    CRUMB_INLINE void add_tile(kv_rows<T> v, std::size_t i, std::size_t t, std::size_t n,
                               kv_rows<T> ahead) const noexcept {
        const std::size_t common = visible(i, t, n);
        add_tokens<Queries, vectors_of(Queries)>(v, i, 0, 0, common, prefetching(ahead, n, i));
        if constexpr (Queries > 1) {
            for (std::size_t a = 1; a < std::size_t{Queries}; ++a)
                if (common < visible(i + a, t, n))
                    add_rest(v, i + a, common, visible(i + a, t, n));
        }
    }

    /// Tokens first .. last - 1 for one query: one copy for all tiles.
    template <class T>
    CRUMB_NOINLINE void add_rest(const kv_rows<T>& v, std::size_t i, std::size_t first,
                                 std::size_t last) const noexcept {
        attention_pass(*this).template add_tokens<1, 4>(v, i, 0, first, last,
                                                        prefetcher<T>{nullptr, 0, 0, 0, {}, false});
    }

    template <int Queries, int Vectors, class T>
    CRUMB_INLINE void add_tokens(kv_rows<T> v, std::size_t i, std::size_t c, std::size_t first,
                                 std::size_t last, prefetcher<T> soon) const noexcept {
        if (first >= last)
            return;
        for (; c + Vectors * lanes <= padded; c += Vectors * lanes) {
            f32 sum[unsigned(Queries * Vectors)];
            each<Queries, Vectors>(sum, o + i * padded + c, false);
            for (std::size_t t = first; t < last; ++t) {
                soon.template step<int(Vectors * lanes)>();
                const auto value = v.row(t);
                const float* weight = scores + i * stride + t;
                CRUMB_UNROLL
                for (std::size_t j = 0; j < std::size_t{Vectors}; ++j) {
                    const f32 x = read(value, c + j * lanes);
                    CRUMB_UNROLL
                    for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
                        sum[a * Vectors + j] = I::fma(I::set1(weight[a * stride]), x, sum[a * Vectors + j]);
                }
            }
            each<Queries, Vectors>(sum, o + i * padded + c, true);
        }
        // Twos would be code for heads of few sizes.
        if constexpr (Vectors > 1)
            add_tokens<Queries, (Vectors > 4 ? Vectors / 2 : 1)>(v, i, c, first, last, soon);
    }

    template <int Queries, int Vectors>
    CRUMB_INLINE void each(f32* sum, float* at, bool store) const noexcept {
        CRUMB_UNROLL
        for (std::size_t a = 0; a < std::size_t{Queries}; ++a) {
            CRUMB_UNROLL
            for (std::size_t j = 0; j < std::size_t{Vectors}; ++j) {
                if (store)
                    I::store(at + a * padded + j * lanes, sum[a * Vectors + j]);
                else
                    sum[a * Vectors + j] = I::load(at + a * padded + j * lanes);
            }
        }
    }

    // ---- results ----
    void end() const noexcept {
        const std::size_t heads = args.q.cols / args.head_size;
        for (std::size_t i = 0; i < queries; ++i) {
            const std::size_t r = row + i / args.group;
            const std::size_t head = kv_head * args.group + i % args.group;
            float* to = args.partials != nullptr ? args.partials + (r * heads + head) * (args.head_size + 2)
                                                 : args.y.row(r) + head * args.head_size;
            const f32 total = I::set1(args.partials != nullptr || totals[i] == 0 ? 1.0f : totals[i]);
            for (std::size_t c = 0; c < args.head_size; c += lanes)
                M::store(to + c, I::div(I::load(o + i * padded + c), total), args.head_size - c);
            if (args.partials != nullptr) {
                to[args.head_size] = maxima[i];
                to[args.head_size + 1] = totals[i];
            }
        }
    }

  private:
    // Called once for some queries and a block: out of line, and not of members, which would leave their
    // registers.
    static CRUMB_NOINLINE std::size_t visible_of(const attention_query_args& args, std::size_t row,
                                                 std::size_t i, std::size_t t, std::size_t n) noexcept {
        std::size_t end = args.position + row + i / args.group + 1;
        end = end < args.tokens.end ? end : args.tokens.end;
        return end <= t ? 0 : end - t < n ? end - t : n;
    }
    template <class T>
    static CRUMB_NOINLINE prefetcher<T>
    prefetcher_of(const decltype(kv_rows<T>::data) first, std::size_t rows, std::size_t stride,
                  std::size_t channels, std::size_t i, std::size_t count, bool two) noexcept {
        return {first, rows, stride, channels, {i, count}, two};
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
