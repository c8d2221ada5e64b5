// Scores of product-quantized keys whose codes are expanded into bytes, two or four channels of a token
// beside each other, and multiplied with integers of 16 bits: both planes of a query at once, for ISAs that
// multiply these as fast as bytes with signs. Loops:
//     blocks of 64 tokens > pairs or quads of channels, expanded
//                         > four queries > 16 or 8 tokens > pairs or quads of channels
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/pq.inl>

#include <crumb/kernel/cache/expand_rows.inl>
#include <crumb/kernel/cache/pq_lookup.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class W>
struct pq_words_run<isa::CRUMB_THIS_ISA, W> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename I::pq;
    static constexpr std::size_t max_channels = 512;

    const pq_score_args& args;
    const pq_codes& codes;
    alignas(64) std::int16_t words[few_queries][max_channels];
    alignas(64) std::uint8_t kept[max_channels * kv_block_tokens];

    explicit pq_words_run(const pq_score_args& a) noexcept : args(a), codes(a.codes) {
        alignas(32) static constexpr std::uint8_t none[32] = {};
        for (std::size_t q = 0; q < args.count; ++q)
            for (std::size_t c = 0; c < codes.head_size; c += 32)
                W::widen(args.queries[q].high + c, args.is_coarse(q) ? none : args.queries[q].low + c,
                         words[q] + c);
    }

    void run() noexcept {
        switch (pq_kind_of(codes.codec)) {
        case pq_kind::byte:
            return codes.codec.dims == 4 ? blocks<pq_kind::byte, 4>() : blocks<pq_kind::byte, 2>();
        case pq_kind::additive:
            return blocks<pq_kind::additive, 2>();
        case pq_kind::six:
            return blocks<pq_kind::six, 2>();
        case pq_kind::nibble:
            return; // by tables only
        }
    }

  private:
    template <pq_kind Kind, std::size_t Dims>
    void blocks() noexcept {
        constexpr std::size_t beside = Kind == pq_kind::byte ? 4 : 2;
        const std::uint8_t* ahead = codes.ahead != nullptr ? codes.ahead : codes.codes;
        for (std::size_t b = codes.first_block; b < codes.last_block; ++b) {
            if constexpr (Kind == pq_kind::byte)
                ahead = pq_join_run<I>::template expand_keys<Dims>(args, b, ahead, kept);
            else
                ahead = expand<Kind>(b, ahead);
            std::size_t q = 0;
            for (; q + 4 <= args.count; q += 4)
                multiply<4, beside>(q, b);
            if (q + 2 <= args.count) {
                multiply<2, beside>(q, b);
                q += 2;
            }
            if (q < args.count)
                multiply<1, beside>(q, b);
        }
    }

    /// Expands a block's codes, and asks for as many bytes from `ahead` on; what follows these.
    template <pq_kind Kind>
    const std::uint8_t* expand(std::size_t b, const std::uint8_t* ahead) noexcept {
        using L = pq_lookup<I, Kind>;
        constexpr std::size_t each = L::row_bytes * kv_block_tokens / kv_part_tokens; // bytes of a row
        constexpr std::size_t units = L::last_unit(1);
        const std::uint8_t* row = codes.codes;
        const std::int8_t* entries = args.entries;
        std::size_t asked = 0;
        for (std::size_t c = 0; c < codes.head_size; c += 2) {
            std::uint8_t* to = kept + c * kv_block_tokens;
            // One line with every line that is read.
            if (each >= 64 || asked % 64 < each)
                __builtin_prefetch(ahead + asked, 0, attention_locality);
            asked += each;
            CRUMB_UNROLL
            for (std::size_t u = 0; u < units; ++u) {
                CRUMB_UNROLL
                for (int set = 0; set < L::sets; ++set) {
                    const auto index = L::index_of(L::load(row, L::first_unit(b) + u), set);
                    typename P::reg channel[2];
                    CRUMB_UNROLL
                    for (std::size_t i = 0; i < 2; ++i) {
                        channel[i] = L::look_up(L::load_table(entries + i * L::entries), index);
                        P::pin(channel[i]);
                    }
                    W::keep(to + 2 * L::token(u, static_cast<std::size_t>(set)), channel[0], channel[1]);
                }
            }
            row += L::row_bytes;
            entries += 2 * L::entries;
        }
        return ahead + asked;
    }

    /// `Beside`: channels of a token that lie beside each other.
    template <std::size_t Queries, std::size_t Beside>
    void multiply(std::size_t q, std::size_t b) const noexcept {
        for (std::size_t t = 0; t < kv_block_tokens; t += 32 / Beside) {
            typename W::acc sum[2 * Queries];
            CRUMB_UNROLL
            for (std::size_t i = 0; i < 2 * Queries; ++i)
                sum[i] = W::zero();
            const std::uint8_t *first = kept + W::template place<Beside>(t, 0),
                               *second = kept + W::template place<Beside>(t, 1);
            const std::int16_t* by = words[q];
            for (std::size_t left = codes.head_size / Beside; left > 0; --left) {
                const auto x = W::load(first), y = W::load(second);
                first += Beside * kv_block_tokens;
                second += Beside * kv_block_tokens;
                CRUMB_UNROLL
                for (std::size_t i = 0; i < Queries; ++i) {
                    const auto some = W::template load_query<Beside>(by + i * max_channels);
                    W::dot(sum[2 * i], x, some);
                    W::dot(sum[2 * i + 1], y, some);
                }
                by += Beside;
            }
            CRUMB_UNROLL
            for (std::size_t i = 0; i < Queries; ++i)
                W::template store<Beside>(sum[2 * i], sum[2 * i + 1], I::set1(args.queries[q + i].step),
                                          args.out + (q + i) * kv_part_tokens + b * kv_block_tokens + t);
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
