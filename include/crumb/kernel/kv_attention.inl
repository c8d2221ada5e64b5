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
                case kv_kind::q8_0:
                    if (base::padded == args.head_size && base::queries <= base::few)
                        bytes(p, t, first, stop, end);
                    else
                        decoded(p, t, first, stop);
                    break;
                default:
                    const bool more = stop == t + kv_page_tokens && stop < end;
                    if (args.by_tables)
                        scan.page(p, t, first - t, stop - t, more);
                    else if (args.by_channels)
                        kv_uniform<I>(*this, args).page(p, t, first - t, stop - t, more);
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

        // Bytes as they lie; `converted` is free for their scales.
        CRUMB_INLINE void bytes(std::size_t p, std::size_t t, std::size_t first, std::size_t stop,
                                std::size_t end) const noexcept {
            for (std::size_t from = first; from < stop; from += attention_block) {
                const std::size_t n = stop - from < attention_block ? stop - from : attention_block;
                const kv_rows<kv_bytes> k = byte_rows(p, true, from - t, n);
                const kv_rows<kv_bytes> v = byte_rows(p, false, from - t, n);
                const std::size_t next = from + attention_block;
                kv_rows<kv_bytes> ahead;
                if (n == attention_block && next + attention_block <= end) {
                    ahead = k;
                    ahead.data = next < t + kv_page_tokens ? k.data + n * k.stride : codes_of(p + 1, true);
                }
                base::score(k, from, n, v);
                base::weigh(from, n);
                base::add(v, from, n, ahead);
            }
        }
        CRUMB_INLINE const std::int8_t* codes_of(std::size_t p, bool keys) const noexcept {
            return reinterpret_cast<const std::int8_t*>(cache.part(p, base::kv_head, keys) +
                                                        cache.keys.codes_offset());
        }
        /// Tokens first .. first + n - 1 of page p.
        CRUMB_INLINE kv_rows<kv_bytes> byte_rows(std::size_t p, bool keys, std::size_t first,
                                                 std::size_t n) const noexcept {
            const std::size_t size = args.head_size, groups = cache.keys.groups();
            float* scales = base::converted + (keys ? 0 : attention_block * groups);
            const half* from = reinterpret_cast<const half*>(cache.part(p, base::kv_head, keys));
            for (std::size_t i = 0; i < n * groups; i += lanes)
                I::store(scales + i, M::load(from + first * groups + i, n * groups - i));
            return {codes_of(p, keys) + first * size, scales, size, groups};
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
