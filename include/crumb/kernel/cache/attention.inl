// Causal attention with grouped queries over a cache of sinks, codes and a window. Loops:
//     blocks of rows > kv heads that go together > ranges > parts of a page > those heads > a part, by its
//     route
//     skipping values: kv heads > all keys, then the values that matter
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>

#include <crumb/isa/portable/pq.inl>

#include <crumb/kernel/cache/expand_query.inl>
#include <crumb/kernel/cache/pq_tables.inl>
#include <crumb/kernel/cache/scan_means.inl>
#include <crumb/kernel/cache/scan_rounding.inl>

#include <crumb/kernel/cache/scans.inl>

#include <crumb/kernel/cache/unpack.inl>

#include <crumb/kernel/cache/decode.inl>

#include <crumb/kernel/cache/scan.inl>

#include <crumb/kernel/cache/fields.inl>
#include <crumb/kernel/cache/integers.inl>
#include <crumb/kernel/cache/matrices.inl>
#include <crumb/kernel/cache/uniform.inl>

#include <crumb/kernel/cache/skip.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct kv_attention_run<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;

    static void run(const kv_attention_args& args) noexcept {
        for (std::size_t r = args.rows.begin, rows = 0; r < args.rows.end; r += rows) {
            const std::size_t left = args.rows.end - r;
            rows = left < args.row_block ? left : args.row_block;
            if (args.memory.route() == kv_route::matrices)
                if (const std::size_t alike = kv_rows_alike(args.position + r, args.cache.sinks);
                    alike < rows)
                    rows = alike;
            for (std::size_t h = args.kv_heads.begin; h < args.kv_heads.end; h += args.memory.heads()) {
                const std::size_t end = h + args.memory.heads();
                const range heads{h, end < args.kv_heads.end ? end : args.kv_heads.end};
                if (args.skip_scratch == nullptr)
                    codes_by_heads(args, heads, r, rows);
                else if constexpr (reads_codes<I>)
                    skipping(args, heads, r, rows);
            }
        }
    }

  private:
    // Memory is fastest where it is read from end to end, and in short pages all heads lie beside each other.
    // But each head comes with tables and sums, which the first cache holds for one of them: a head goes
    // through a page, or through a few short ones, before the next one does.
    static void codes_by_heads(kv_attention_args args, const range& heads, std::size_t r,
                               std::size_t rows) noexcept {
        const auto of = [&](std::size_t h) { return pass(args, h, r, rows, h - heads.begin); };
        for (std::size_t h = heads.begin; h < heads.end; ++h)
            of(h).start(h + 1 < heads.end);
        const kv_layer_view& cache = args.cache;
        const std::size_t begin = of(heads.begin).first(cache.sinks), last = of(heads.begin).last(),
                          coded = cache.sinks + cache.coded, end = coded < last ? coded : last;
        const auto parts = [&](std::size_t tokens) { return (tokens + kv_part_tokens - 1) / kv_part_tokens; };
        const std::size_t first_part = begin > cache.sinks ? (begin - cache.sinks) / kv_part_tokens : 0,
                          last_part = end > cache.sinks && end > begin ? parts(end - cache.sinks) : 0,
                          least = args.memory.scans() ? args.memory.parts() : 1,
                          step = least < cache.page.parts() ? cache.page.parts() : least;
        // The part that the next range begins with.
        std::size_t later = args.ranges - 1, cut = first_part + args.range_tokens / kv_part_tokens;
        const auto next_range = [&] {
            for (std::size_t h = heads.begin; h < heads.end; ++h)
                of(h).finish();
            args.partials += args.partial_step;
            for (std::size_t h = heads.begin; h < heads.end; ++h)
                of(h).restart();
            --later;
            cut += args.range_tokens / kv_part_tokens;
        };
        kv_parts here, next;
        if (first_part < last_part)
            next = cache.parts(first_part, heads.begin);
        for (std::size_t p = first_part, stop = p; p < last_part; p = stop) {
            if (later != 0 && p == cut)
                next_range();
            stop = p + step < last_part ? p + step : last_part;
            stop = later != 0 && cut < stop ? cut : stop;
            for (std::size_t h = heads.begin; h < heads.end; ++h)
                for (std::size_t i = p; i < stop; ++i) {
                    here = next;
                    next = {};
                    if (i + 1 < stop)
                        next = cache.parts(i + 1, h);
                    else if (h + 1 < heads.end)
                        next = cache.parts(p, h + 1);
                    else if (stop < last_part)
                        next = cache.parts(stop, heads.begin);
                    const std::size_t t = cache.sinks + i * kv_part_tokens;
                    of(h).attend(here, t, begin > t ? begin : t,
                                 end < t + kv_part_tokens ? end : t + kv_part_tokens, next);
                }
        }
        // Ranges may end within the window.
        std::size_t t = begin;
        while (later != 0) {
            const std::size_t until = cache.sinks + cut * kv_part_tokens;
            for (std::size_t h = heads.begin; h < heads.end; ++h)
                of(h).window(t, until, false);
            t = until;
            next_range();
        }
        for (std::size_t h = heads.begin; h < heads.end; ++h) {
            const pass p = of(h);
            p.window(t, last, h + 1 < heads.end);
            p.finish();
        }
    }

    // Values can be left out when all scores are known: the window's come first.
    static void skipping(const kv_attention_args& args, const range& heads, std::size_t r,
                         std::size_t rows) noexcept {
        for (std::size_t h = heads.begin; h < heads.end; ++h) {
            pass p(args, h, r, rows, 0);
            p.start(false);
            p.window(p.first(args.cache.sinks), p.last(), false);
            const kv_scan<I> scan = p.scan();
            const kv_skip_report report = kv_skip<I>(p, scan, args).run();
            if (args.skipped != nullptr)
                args.skipped[h] = report;
            p.finish();
        }
    }

    // What happens once per part or less is not inlined: it is asked for in many places.
    struct pass : attention_pass<I> {
        using base = attention_pass<I>;
        const kv_attention_args& args;
        const kv_layer_view& cache;
        std::size_t place; ///< of the head among those that go together

        CRUMB_INLINE pass(const kv_attention_args& a, std::size_t h, std::size_t r, std::size_t rows,
                          std::size_t i) noexcept
            : base(a, h, r, rows, a.memory.state(a.scratch, i), a.memory.work(a.scratch)), args(a),
              cache(a.cache), place(i) {}

        CRUMB_INLINE kv_scan<I> scan() const noexcept { return {*this, args, place}; }
        CRUMB_INLINE kv_matrices<I> matrices() const noexcept { return {*this, args, place}; }
        /// Calls f with the scans of codes, on an ISA that reads them.
        template <class F>
        CRUMB_INLINE void with_scan([[maybe_unused]] F&& f) const noexcept {
            if constexpr (reads_codes<I>)
                f(scan());
        }
        /// Calls f with the products of integers, on an ISA that has them.
        template <class F, class Isa = I>
        CRUMB_INLINE void with_integers([[maybe_unused]] F&& f) const noexcept {
            if constexpr (has_field_products<Isa>)
                if (cache.keys().codec().kind == kv_kind::uniform)
                    return f(kv_fields<I, typename Isa::field_products>{*this, args, place});
            if constexpr (has_byte_products<Isa>)
                f(kv_integers<I, typename Isa::byte_products>{*this, args, place});
        }
        /// `more`: whether the next head's sinks are read soon.
        CRUMB_NOINLINE void start(bool more) const noexcept {
            base::begin();
            sinks(more);
            if (args.memory.scans())
                with_scan([](const auto& x) { x.begin(); });
            else if (args.memory.route() == kv_route::integers)
                with_integers([](const auto& x) { x.begin(); });
            else if (args.memory.route() == kv_route::matrices)
                matrices().begin();
        }
        /// Begins again with the same queries and tables, behind the sinks.
        CRUMB_NOINLINE void restart() const noexcept {
            base::begin();
            if (args.memory.scans())
                with_scan([](const auto& x) { x.restart(); });
            else if (args.memory.route() == kv_route::integers)
                with_integers([](const auto& x) { x.restart(); });
        }
        CRUMB_NOINLINE void finish() const noexcept {
            if (args.memory.scans())
                with_scan([](const auto& x) { x.end(); });
            else if (args.memory.route() == kv_route::integers)
                with_integers([](const auto& x) { x.end(); });
            base::end();
        }

        CRUMB_INLINE std::size_t last() const noexcept { return base::visible(base::queries - 1); }

        CRUMB_NOINLINE void sinks(bool more) const noexcept {
            const std::size_t before = base::kv_head * cache.sinks;
            base::dense(cache.sink_keys.from(before), cache.sink_values.from(before), 0,
                        base::first(cache.sinks), cache.sinks < last() ? cache.sinks : last(),
                        more ? cache.sink_keys.from(before + cache.sinks) : kv_rows<half>{});
        }

        /// Tokens begin .. end - 1, as far as they are in the window. `more`: whether the next head's window
        /// is read next.
        CRUMB_NOINLINE void window(std::size_t begin, std::size_t end, bool more) const noexcept {
            const std::size_t first = cache.sinks + cache.coded;
            const std::size_t before = base::kv_head * cache.slots;
            for (std::size_t t = first > begin ? first : begin; t < end;) {
                // Up to where the window begins again at its first slot.
                const std::size_t slot = (t - cache.sinks) % cache.slots;
                const std::size_t n = cache.slots - slot < end - t ? cache.slots - slot : end - t;
                const std::size_t at = before + slot;
                base::dense(cache.window_keys.from(at), cache.window_values.from(at), t, t, t + n,
                            more ? cache.window_keys.from(at + cache.slots) : kv_rows<half>{});
                t += n;
            }
        }

        /// Tokens first .. stop - 1, all in the parts `here`, whose token 0 is t; `next` is read after that.
        CRUMB_NOINLINE void attend(const kv_parts& here, std::size_t t, std::size_t first, std::size_t stop,
                                   const kv_parts& next) const noexcept {
            switch (args.memory.route()) {
            case kv_route::floats:
                return rows<float>(here, t, first, stop, next);
            case kv_route::halves:
                return rows<half>(here, t, first, stop, next);
            case kv_route::bytes:
                if constexpr (reads_codes<I>)
                    bytes(here, t, first, stop, next);
                return;
            case kv_route::integers:
                return with_integers([&](const auto& x) { x.attend(here, t, first, stop, next); });
            case kv_route::channels:
                if constexpr (reads_codes<I> && !has_field_products<I>)
                    kv_uniform<I>(*this, args).attend(here, t, first - t, stop - t, next);
                return;
            case kv_route::tables:
            case kv_route::expanded:
                return with_scan([&](const auto& x) { x.attend(here, t, first - t, stop - t, next); });
            case kv_route::decoded:
                return decoded(here, t, first, stop);
            case kv_route::matrices:
                return by_matrices(here, t, first, stop);
            }
        }

        void by_matrices(const kv_parts& here, std::size_t t, std::size_t first,
                         std::size_t stop) const noexcept {
            const bool halves = cache.keys().codec().is_uncoded();
            const kv_matrices<I> matrices = this->matrices();
            const std::size_t end = matrices.end(first, stop);
            if (first < end)
                matrices.attend(first, end - first, [&](bool keys, std::size_t i) {
                    const std::byte* part = keys ? here.keys : here.values;
                    if (halves)
                        base::convert(rows_of<half>(part).from(first - t + i), attention_block);
                    else
                        decode(part, keys, first - t + i, attention_block);
                });
            if (end == stop)
                return;
            if (halves)
                rows<half>(here, t, end, stop, {});
            else
                decoded(here, t, end, stop);
        }

        template <class T>
        CRUMB_INLINE kv_rows<T> rows_of(const std::byte* part) const noexcept {
            return {reinterpret_cast<const T*>(part), cache.keys().head_size()};
        }
        template <class T>
        CRUMB_NOINLINE void rows(const kv_parts& here, std::size_t t, std::size_t first, std::size_t stop,
                                 const kv_parts& next) const noexcept {
            base::dense(rows_of<T>(here.keys), rows_of<T>(here.values), t, first, stop,
                        rows_of<T>(next.keys));
        }

        // Bytes as they lie; `converted` is free for their scales.
        void bytes(const kv_parts& here, std::size_t t, std::size_t first, std::size_t stop,
                   const kv_parts& next) const noexcept {
            const std::size_t scales =
                piece_bytes(cache.keys().codes_offset(), kv_part_tokens / attention_block);
            for (std::size_t from = first; from < stop; from += attention_block) {
                const std::size_t n = stop - from < attention_block ? stop - from : attention_block;
                const kv_rows<kv_bytes> k = byte_rows(here.keys, true, from - t, n);
                const kv_rows<kv_bytes> v = byte_rows(here.values, false, from - t, n);
                kv_rows<kv_bytes> ahead = k;
                ahead.data = n < attention_block ? nullptr
                             : from + n < stop   ? k.data + n * k.stride
                             : next.keys         ? codes_of(next.keys)
                                                 : nullptr;
                const std::size_t b = (from - t) / attention_block;
                base::score(k, from, n, v);
                prefetch_piece(next.keys, b, scales);
                base::weigh(from, n);
                prefetch_piece(next.values, b, scales);
                base::add(v, from, n, ahead);
            }
        }
        CRUMB_INLINE const std::int8_t* codes_of(const std::byte* part) const noexcept {
            return reinterpret_cast<const std::int8_t*>(part + cache.keys().codes_offset());
        }
        /// Tokens first .. first + n - 1 of a part.
        CRUMB_INLINE kv_rows<kv_bytes> byte_rows(const std::byte* part, bool keys, std::size_t first,
                                                 std::size_t n) const noexcept {
            const std::size_t size = args.head_size, groups = cache.keys().groups();
            float* scales = base::converted + (keys ? 0 : attention_block * groups);
            const half* from = reinterpret_cast<const half*>(part);
            for (std::size_t i = 0; i < n * groups; i += lanes)
                I::store(scales + i, M::load(from + first * groups + i, n * groups - i));
            return {codes_of(part) + first * size, scales, size, groups};
        }

        CRUMB_NOINLINE void decoded(const kv_parts& here, std::size_t t, std::size_t first,
                                    std::size_t stop) const noexcept {
            for (std::size_t from = first; from < stop; from += attention_block) {
                const std::size_t n = stop - from < attention_block ? stop - from : attention_block;
                decode(here.keys, true, from - t, n);
                base::score(base::block(), from, n, kv_rows<float>{});
                base::weigh(from, n);
                decode(here.values, false, from - t, n);
                base::add(base::block(), from, n, kv_rows<float>{});
            }
        }
        CRUMB_NOINLINE void decode(const std::byte* part, bool keys, std::size_t first,
                                   std::size_t n) const noexcept {
            if (base::padded != args.head_size)
                for (std::size_t i = 0; i < n; ++i)
                    I::store(base::converted + (i + 1) * base::padded - lanes, I::zero());
            kv_decode_run<I>::run({keys ? cache.keys() : cache.values(), cache.tables(base::kv_head, keys),
                                   part, first, first + n, base::converted, base::padded});
        }
    };
};

} // namespace crumb::inline CRUMB_ABI::kernel
