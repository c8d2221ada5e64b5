// Scores of product-quantized keys, two channels to a code, whose codes are expanded into bytes, both
// channels of a token beside each other, and multiplied with integers of 16 bits: both planes of a query at
// once, for ISAs that multiply these as fast as bytes with signs. Loops:
//     blocks of 64 tokens > pairs of channels, expanded
//                         > four queries > 16 tokens > pairs of channels
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/pq.inl>

#include <crumb/kernel/cache/pq_lookup.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class W>
struct pq_words_run<isa::CRUMB_THIS_ISA, W> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename I::pq;
    static constexpr std::size_t max_pairs = 256, pair_bytes = 2 * kv_block_tokens;
    static constexpr std::size_t together = 16; ///< tokens that are scored together

    const pq_score_args& args;
    const pq_codes& codes;
    const std::size_t pairs;
    alignas(64) std::int16_t words[few_queries][2 * max_pairs];
    alignas(64) std::uint8_t kept[max_pairs * pair_bytes];

    explicit pq_words_run(const pq_score_args& a) noexcept
        : args(a), codes(a.codes), pairs(a.codes.head_size / 2) {
        alignas(32) static constexpr std::uint8_t none[32] = {};
        for (std::size_t q = 0; q < args.count; ++q)
            for (std::size_t c = 0; c < codes.head_size; c += 32)
                W::widen(args.queries[q].high + c, args.is_coarse(q) ? none : args.queries[q].low + c,
                         words[q] + c);
    }

    template <pq_kind Kind>
    void run() noexcept {
        const std::uint8_t* ahead = codes.ahead != nullptr ? codes.ahead : codes.codes;
        for (std::size_t b = codes.first_block; b < codes.last_block; ++b) {
            ahead = expand<Kind>(b, ahead);
            std::size_t q = 0;
            for (; q + 4 <= args.count; q += 4)
                multiply<4>(q, b);
            if (q + 2 <= args.count) {
                multiply<2>(q, b);
                q += 2;
            }
            if (q < args.count)
                multiply<1>(q, b);
        }
    }

  private:
    /// Expands a block's codes, and asks for as many bytes from `ahead` on; what follows these.
    template <pq_kind Kind>
    const std::uint8_t* expand(std::size_t b, const std::uint8_t* ahead) noexcept {
        using L = pq_lookup<I, Kind>;
        constexpr std::size_t each = L::row_bytes * kv_block_tokens / kv_part_tokens; // bytes of a row
        constexpr std::size_t units = L::last_unit(1);
        const std::uint8_t* row = codes.codes;
        const std::int8_t* entries = args.entries;
        std::size_t asked = 0;
        for (std::size_t pair = 0; pair < pairs; ++pair) {
            std::uint8_t* to = kept + pair * pair_bytes;
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

    template <std::size_t Queries>
    void multiply(std::size_t q, std::size_t b) const noexcept {
        for (std::size_t t = 0; t < kv_block_tokens; t += together) {
            typename W::acc sum[2 * Queries];
            CRUMB_UNROLL
            for (std::size_t i = 0; i < 2 * Queries; ++i)
                sum[i] = W::zero();
            const std::size_t in_register = t % 32 / 8;
            const std::uint8_t *first = kept + 2 * (t - t % 32) + W::place(in_register),
                               *second = kept + 2 * (t - t % 32) + W::place(in_register + 1);
            const std::int16_t* by = words[q];
            for (std::size_t left = pairs; left > 0; --left) {
                const auto x = W::load(first), y = W::load(second);
                first += pair_bytes;
                second += pair_bytes;
                CRUMB_UNROLL
                for (std::size_t i = 0; i < Queries; ++i) {
                    const auto two = W::load_query(by + i * 2 * max_pairs);
                    W::dot(sum[2 * i], x, two);
                    W::dot(sum[2 * i + 1], y, two);
                }
                by += 2;
            }
            CRUMB_UNROLL
            for (std::size_t i = 0; i < Queries; ++i) {
                const auto step = I::set1(args.queries[q + i].step);
                float* out = args.out + (q + i) * kv_part_tokens + b * kv_block_tokens + t;
                W::store(sum[2 * i], step, out);
                W::store(sum[2 * i + 1], step, out + 8);
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
