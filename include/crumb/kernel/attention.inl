// Causal attention with grouped queries over a cache of floats or halves.
namespace crumb::inline CRUMB_ABI::kernel {

template <class T>
struct attention_run<isa::CRUMB_THIS_ISA, T> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;
    static constexpr int widest =
        I::registers >= 32 ? 4 : 2;               ///< queries that share a register of keys or values
    static constexpr std::size_t few = 8;         ///< queries for which halves are converted again and again
    static constexpr int sums = I::registers / 2; ///< accumulators that values are summed in

    static void run(const attention_args<T>& args) noexcept {
        for (std::size_t h = args.kv_heads.begin; h < args.kv_heads.end; ++h) {
            for (std::size_t r = args.rows.begin; r < args.rows.end; r += args.row_block) {
                const std::size_t left = args.rows.end - r;
                pass p(args, h, r, left < args.row_block ? left : args.row_block);
                p.begin();
                for (std::size_t t = args.tokens.begin; t < p.visible(p.queries - 1); t += attention_block)
                    p.block(t);
                p.end();
            }
        }
    }

  private:
    // Queries of one kv head that go through the tokens together: i = (row - first row) * group + head in
    // group.
    struct pass {
        const attention_args<T>& args;
        std::size_t kv_head, row, queries, vectors, padded;
        float *q, *o, *converted, *scores, *maxima, *totals, *fresh, *factors;

        CRUMB_INLINE pass(const attention_args<T>& a, std::size_t h, std::size_t r, std::size_t rows) noexcept
            : args(a), kv_head(h), row(r), queries(rows * a.group),
              vectors((a.head_size + lanes - 1) / lanes), padded(vectors * lanes) {
            const attention_scratch at{a.row_block * a.group, padded};
            q = a.scratch;
            o = q + at.queries * padded;
            converted = a.scratch + at.block();
            scores = a.scratch + at.scores();
            maxima = a.scratch + at.state();
            totals = maxima + at.state_each();
            fresh = totals + at.state_each();
            factors = fresh + at.state_each();
        }

        /// One past the last token that query i sees.
        CRUMB_INLINE std::size_t visible(std::size_t i) const noexcept {
            const std::size_t end = args.position + row + i / args.group + 1;
            return end < args.tokens.end ? end : args.tokens.end;
        }
        /// How many of `n` tokens from t on query i sees.
        CRUMB_INLINE std::size_t visible(std::size_t i, std::size_t t, std::size_t n) const noexcept {
            const std::size_t end = visible(i);
            return end <= t ? 0 : end - t < n ? end - t : n;
        }

        void begin() const noexcept {
            const f32 scale = I::set1(args.scale);
            for (std::size_t i = 0; i < queries; ++i) {
                const float* from = args.q.row(row + i / args.group) +
                                    (kv_head * args.group + i % args.group) * args.head_size;
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

        void block(std::size_t t) const noexcept {
            const std::size_t n = visible(queries - 1, t, attention_block);
            const T* k = args.k + t * args.k_token_stride + kv_head * args.k_head_stride;
            const T* v = args.v + t * args.v_token_stride + kv_head * args.v_head_stride;
            // What many queries read, or what has ends of rows, is converted once.
            const bool as_it_lies =
                padded == args.head_size && (sizeof(T) == sizeof(float) || queries <= few);
            if (as_it_lies) {
                score(k, args.k_token_stride, t, n, v);
            } else {
                convert(k, args.k_token_stride, n);
                score(converted, padded, t, n, nullptr);
            }
            weigh(t, n);
            const bool more = t + 2 * attention_block <= visible(queries - 1);
            if (as_it_lies) {
                add(v, args.v_token_stride, t, n, more ? k + attention_block * args.k_token_stride : nullptr);
            } else {
                convert(v, args.v_token_stride, n);
                add(converted, padded, t, n, nullptr);
            }
        }

        // With few queries memory is the limit, and the hardware does not foresee jumps from row to row: the
        // values of a block are asked for while its keys are read, the next keys while the values are.
        CRUMB_INLINE void prefetch(const T* row_of_cache) const noexcept {
            for (std::size_t c = 0; c < args.head_size; c += 64 / sizeof(T))
                __builtin_prefetch(row_of_cache + c);
        }

        CRUMB_INLINE void convert(const T* from, std::size_t stride, std::size_t n) const noexcept {
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t c = 0; c < padded; c += lanes)
                    I::store(converted + i * padded + c, M::load(from + i * stride + c, args.head_size - c));
        }

        // ---- scores ----
        template <class S>
        CRUMB_INLINE void score(const S* k, std::size_t stride, std::size_t t, std::size_t n,
                                const T* ahead) const noexcept {
            std::size_t i = 0;
            for (; i + widest <= queries; i += widest)
                score_tile<widest>(k, stride, i, visible(i + widest - 1, t, n), i == 0 ? ahead : nullptr);
            for (; widest > 2 && i + 2 <= queries; i += 2)
                score_tile<2>(k, stride, i, visible(i + 1, t, n), i == 0 ? ahead : nullptr);
            if (i < queries)
                score_tile<1>(k, stride, i, visible(i, t, n), i == 0 ? ahead : nullptr);
        }

        // Four tokens at a time; beyond the end the last token again, so that every score is summed alike.
        template <int Queries, class S>
        CRUMB_INLINE void score_tile(const S* k, std::size_t stride, std::size_t i, std::size_t n,
                                     const T* ahead) const noexcept {
            for (std::size_t t = 0; t < n; t += 4) {
                if (ahead != nullptr) {
                    CRUMB_UNROLL
                    for (std::size_t j = 0; j < 4; ++j)
                        prefetch(ahead + (t + j < n ? t + j : n - 1) * args.v_token_stride);
                }
                const S* key[4];
                CRUMB_UNROLL
                for (std::size_t j = 0; j < 4; ++j)
                    key[j] = k + (t + j < n ? t + j : n - 1) * stride;
                f32 dot[4 * Queries];
                CRUMB_UNROLL
                for (int j = 0; j < 4 * Queries; ++j)
                    dot[j] = I::zero();
                const float* query = q + i * padded;
                for (std::size_t c = 0; c < padded; c += lanes) {
                    f32 keys[4];
                    CRUMB_UNROLL
                    for (int j = 0; j < 4; ++j)
                        keys[j] = I::load(key[j] + c);
                    CRUMB_UNROLL
                    for (int a = 0; a < Queries; ++a) {
                        const f32 x = I::load(query + static_cast<std::size_t>(a) * padded + c);
                        CRUMB_UNROLL
                        for (int j = 0; j < 4; ++j)
                            dot[4 * a + j] = I::fma(x, keys[j], dot[4 * a + j]);
                    }
                }
                CRUMB_UNROLL
                for (int a = 0; a < Queries; ++a)
                    I::sum4(dot[4 * a], dot[4 * a + 1], dot[4 * a + 2], dot[4 * a + 3],
                            scores + (i + static_cast<std::size_t>(a)) * attention_block + t);
            }
        }

        // ---- weights ----
        /// Turns scores into exp(score - max), and brings what is summed so far to the new maxima. Queries
        /// take every step together, because each step alone waits for its own result.
        CRUMB_INLINE void weigh(std::size_t t, std::size_t n) const noexcept {
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

        /// The maximum of n scores of query i and those before.
        CRUMB_INLINE float maximum(std::size_t i, std::size_t n) const noexcept {
            float* s = scores + i * attention_block;
            for (std::size_t j = n; j % lanes != 0; ++j)
                s[j] = -__builtin_inff();
            f32 most = I::set1(maxima[i]);
            for (std::size_t j = 0; j < n; j += lanes)
                most = I::max(most, I::load(s + j));
            return I::maximum(most);
        }

        /// Turns n scores of query i into weights; their sum.
        CRUMB_INLINE float exponentials(std::size_t i, std::size_t n) const noexcept {
            float* s = scores + i * attention_block;
            const f32 top = I::set1(maxima[i]);
            f32 total = I::zero();
            for (std::size_t j = 0; j < n; j += lanes) {
                const f32 e = M::exp_of_negative(I::sub(I::load(s + j), top));
                I::store(s + j, e);
                total = I::add(total, e);
            }
            return I::sum(total);
        }

        // ---- values ----
        // Queries of a tile see equally many tokens or later rows a few more; those are added query by query,
        // because 0 times a value that a query must not see could be NaN.
        template <class S>
        CRUMB_INLINE void add(const S* v, std::size_t stride, std::size_t t, std::size_t n,
                              const T* ahead) const noexcept {
            std::size_t i = 0;
            for (; i + widest <= queries; i += widest)
                add_tile<widest>(v, stride, i, t, n, i == 0 ? ahead : nullptr);
            for (; widest > 2 && i + 2 <= queries; i += 2)
                add_tile<2>(v, stride, i, t, n, i == 0 ? ahead : nullptr);
            if (i < queries)
                add_tile<1>(v, stride, i, t, n, i == 0 ? ahead : nullptr);
        }

        template <int Queries, class S>
        CRUMB_INLINE void add_tile(const S* v, std::size_t stride, std::size_t i, std::size_t t,
                                   std::size_t n, const T* ahead) const noexcept {
            const std::size_t common = visible(i, t, n);
            add_tokens<Queries, sums / Queries>(v, stride, i, 0, 0, common, ahead);
            if constexpr (Queries > 1) {
                for (std::size_t a = 1; a < std::size_t{Queries}; ++a)
                    add_tokens<1, sums / 2>(v, stride, i + a, 0, common, visible(i + a, t, n), nullptr);
            }
        }

        template <int Queries, int Vectors, class S>
        CRUMB_INLINE void add_tokens(const S* v, std::size_t stride, std::size_t i, std::size_t c,
                                     std::size_t first, std::size_t last, const T* ahead) const noexcept {
            if (first >= last)
                return;
            for (; c + Vectors * lanes <= padded; c += Vectors * lanes) {
                f32 sum[Queries * Vectors];
                each<Queries, Vectors>(sum, o + i * padded + c, false);
                for (std::size_t t = first; t < last; ++t) {
                    if (ahead != nullptr)
                        prefetch(ahead + t * args.k_token_stride);
                    const S* value = v + t * stride + c;
                    const float* weight = scores + i * attention_block + t;
                    CRUMB_UNROLL
                    for (std::size_t j = 0; j < std::size_t{Vectors}; ++j) {
                        const f32 x = I::load(value + j * lanes);
                        CRUMB_UNROLL
                        for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
                            sum[a * Vectors + j] =
                                I::fma(I::set1(weight[a * attention_block]), x, sum[a * Vectors + j]);
                    }
                }
                each<Queries, Vectors>(sum, o + i * padded + c, true);
                ahead = nullptr;
            }
            if constexpr (Vectors > 1)
                add_tokens<Queries, Vectors / 2>(v, stride, i, c, first, last, ahead);
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
                float* to = args.partials != nullptr
                                ? args.partials + (r * heads + head) * (args.head_size + 2)
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
    };
};

template <>
struct merge_run<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;

    static void run(const merge_args& args) noexcept {
        for (std::size_t r = args.rows.begin; r < args.rows.end; ++r)
            for (std::size_t h = args.head_range.begin; h < args.head_range.end; ++h)
                head(args, args.partials + (r * args.heads + h) * (args.head_size + 2),
                     args.y.row(r) + h * args.head_size);
    }

  private:
    static void head(const merge_args& args, const float* first, float* y) noexcept {
        const std::size_t d = args.head_size;
        float most = -__builtin_inff();
        for (std::size_t i = 0; i < args.count; ++i)
            most = first[i * args.stride + d] > most ? first[i * args.stride + d] : most;
        for (std::size_t c = 0; c < d; ++c)
            y[c] = 0;
        float total = 0;
        for (std::size_t i = 0; i < args.count; ++i) {
            const float* o = first + i * args.stride;
            if (o[d + 1] == 0)
                continue;
            const float factor = M::exp_of(o[d] - most);
            total += factor * o[d + 1];
            const f32 f = I::set1(factor);
            for (std::size_t c = 0; c < d; c += M::lanes)
                M::store(y + c, I::fma(f, M::load(o + c, d - c), M::load(y + c, d - c)), d - c);
        }
        const f32 divisor = I::set1(total == 0 ? 1.0f : total);
        for (std::size_t c = 0; c < d; c += M::lanes)
            M::store(y + c, I::div(M::load(y + c, d - c), divisor), d - c);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
