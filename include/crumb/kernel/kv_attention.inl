// Causal attention with grouped queries over a cache of sinks, codes and a window.
namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct kv_attention_run<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;

    static void run(const kv_attention_args& args) noexcept {
        for (std::size_t h = args.kv_heads.begin; h < args.kv_heads.end; ++h) {
            for (std::size_t r = args.rows.begin; r < args.rows.end; r += args.row_block) {
                const std::size_t left = args.rows.end - r;
                pass p(args, h, r, left < args.row_block ? left : args.row_block);
                p.begin();
                p.sinks();
                kv_scan<I> scan(p, args);
                if (args.by_tables)
                    scan.begin();
                // Values can be left out when all scores are known: the window's come first then.
                if (args.skip_scratch == nullptr)
                    p.pages(scan);
                p.window();
                if (args.skip_scratch != nullptr)
                    args.skipped[h] = kv_skip<I>(p, scan, args).run();
                if (args.by_tables)
                    scan.end();
                p.end();
            }
        }
    }

  private:
    struct pass : attention_pass<I> {
        using base = attention_pass<I>;
        const kv_attention_args& args;
        const kv_layer_view& cache;

        CRUMB_INLINE pass(const kv_attention_args& a, std::size_t h, std::size_t r, std::size_t rows) noexcept
            : base(a, h, r, rows), args(a), cache(a.cache) {}

        CRUMB_INLINE std::size_t last() const noexcept { return base::visible(base::queries - 1); }

        CRUMB_INLINE void sinks() const noexcept {
            const std::size_t before = base::kv_head * cache.sinks;
            base::dense(cache.sink_keys.from(before), cache.sink_values.from(before), 0, args.tokens.begin,
                        cache.sinks < last() ? cache.sinks : last());
        }

        CRUMB_INLINE void window() const noexcept {
            const std::size_t first = cache.sinks + cache.coded, end = last();
            const std::size_t before = base::kv_head * cache.slots;
            for (std::size_t t = first > args.tokens.begin ? first : args.tokens.begin; t < end;) {
                // Up to where the window begins again at its first slot.
                const std::size_t slot = (t - cache.sinks) % cache.slots;
                const std::size_t n = cache.slots - slot < end - t ? cache.slots - slot : end - t;
                base::dense(cache.window_keys.from(before + slot), cache.window_values.from(before + slot), t,
                            t, t + n);
                t += n;
            }
        }

        CRUMB_INLINE void pages(kv_scan<I>& scan) const noexcept {
            const std::size_t coded = cache.sinks + cache.coded;
            const std::size_t end = coded < last() ? coded : last();
            for (std::size_t p = 0, t = cache.sinks; t < end; ++p, t += kv_page_tokens) {
                const std::size_t first = args.tokens.begin > t ? args.tokens.begin : t;
                const std::size_t stop = end < t + kv_page_tokens ? end : t + kv_page_tokens;
                if (first >= stop)
                    continue;
                switch (cache.keys.codec().kind) {
                case kv_kind::f32:
                    rows<float>(p, t, first, stop);
                    break;
                case kv_kind::f16:
                    rows<half>(p, t, first, stop);
                    break;
                default:
                    if (args.by_tables)
                        scan.page(p, t, first - t, stop - t, stop == t + kv_page_tokens && stop < end);
                    else
                        decoded(p, t, first, stop);
                }
            }
        }

        template <class T>
        CRUMB_INLINE void rows(std::size_t p, std::size_t t, std::size_t first,
                               std::size_t stop) const noexcept {
            const std::size_t size = cache.keys.head_size();
            base::dense(kv_rows<T>{reinterpret_cast<const T*>(cache.part(p, base::kv_head, true)), size},
                        kv_rows<T>{reinterpret_cast<const T*>(cache.part(p, base::kv_head, false)), size}, t,
                        first, stop);
        }

        CRUMB_INLINE void decoded(std::size_t p, std::size_t t, std::size_t first,
                                  std::size_t stop) const noexcept {
            for (std::size_t from = first; from < stop; from += attention_block) {
                const std::size_t n = stop - from < attention_block ? stop - from : attention_block;
                decode(p, true, from - t, n);
                base::score(base::block(), from, n, kv_rows<float>{});
                base::weigh(from, n);
                decode(p, false, from - t, n);
                base::add(base::block(), from, n, kv_rows<float>{});
            }
        }
        CRUMB_INLINE void decode(std::size_t p, bool keys, std::size_t first, std::size_t n) const noexcept {
            if (base::padded != args.head_size)
                for (std::size_t i = 0; i < n; ++i)
                    I::store(base::converted + (i + 1) * base::padded - lanes, I::zero());
            kv_decode_run<I>::run({keys ? cache.keys : cache.values, cache.tables(base::kv_head, keys),
                                   cache.part(p, base::kv_head, keys), first, first + n, base::converted,
                                   base::padded});
        }
    };
};

} // namespace crumb::inline CRUMB_ABI::kernel
