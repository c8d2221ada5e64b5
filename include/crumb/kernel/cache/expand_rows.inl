// Codes of 8 bits where tables of 256 entries do not fit into registers: the entries of a code, one per
// channel of its sub-space, lie beside each other in a copy and are loaded together, once for all queries.
// Loops:
//     sums of values: rows of a register > tokens, expanded > four planes of weights > registers of values
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/pq.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct pq_join_run<I> {
    using P = typename I::pq;

    template <class Primitives = P>
    static void join([[maybe_unused]] const pq_join_args& args) noexcept {
        if constexpr (joins<Primitives>()) {
            using Q = typename Primitives::quads;
            const std::size_t rows = args.head_size / args.codec.dims, bytes = 256 * args.codec.dims;
            for (std::size_t at = 0; at < rows * bytes; at += bytes)
                if (args.codec.dims == 4)
                    Q::template join<4>(args.entries + at, args.keys, args.out + at);
                else
                    Q::template join<2>(args.entries + at, args.keys, args.out + at);
        }
    }
    template <class Primitives = P>
    static void add([[maybe_unused]] const pq_add_args& args) noexcept {
        if constexpr (joins<Primitives>()) {
            if (args.codes.codec.dims == 4)
                adder<Primitives, 4>::run(args);
            else
                adder<Primitives, 2>::run(args);
        }
    }

    /// Of the keys of block b the entries of its codes, a quad of channels of 64 tokens after the other. Asks
    /// for as many bytes from `ahead` on; what follows these.
    template <std::size_t Dims, class Primitives = P>
    static const std::uint8_t* expand_keys(const pq_score_args& args, std::size_t b,
                                           const std::uint8_t* ahead, std::uint8_t* to) noexcept {
        using Q = typename Primitives::quads;
        const auto* table = reinterpret_cast<const std::uint8_t*>(args.entries);
        const std::uint8_t* code = args.codes.codes + b * kv_block_tokens;
        for (std::size_t left = args.codes.head_size / 4; left > 0; --left) {
            CRUMB_UNROLL
            for (std::size_t c = 0; c < 4; c += Dims) {
                __builtin_prefetch(ahead, 0, attention_locality);
                ahead += 64;
                for (std::size_t t = 0; t < kv_block_tokens; t += 16) {
                    CRUMB_UNROLL
                    for (std::size_t k = 0; k < 16; k += 8) {
                        std::uint8_t* at = to + Q::place(t) * 4 + c;
                        expand<Dims>(table, code + t + k, at + Q::place(k) * 4, at + Q::place(k + 4) * 4);
                    }
                }
                table += 256 * Dims;
                code += kv_part_tokens;
            }
            to += 4 * kv_block_tokens;
        }
        return ahead;
    }

    /// The entries of eight codes, a quad of channels apart: those of four codes at `first`, the others at
    /// `second`.
    template <std::size_t Dims, class Primitives = P>
    static CRUMB_INLINE void expand(const std::uint8_t* table, const std::uint8_t* code, std::uint8_t* first,
                                    std::uint8_t* second) noexcept {
        if constexpr (Dims == 4) {
            Primitives::quads::load_eight(table, code, first, second);
        } else {
            CRUMB_UNROLL
            for (std::size_t k = 0; k < 8; ++k)
                __builtin_memcpy((k < 4 ? first : second) + k % 4 * 4, table + code[k] * Dims, Dims);
        }
    }

  private:
    template <class Primitives>
    static constexpr bool joins() noexcept {
        if constexpr (has_quads<Primitives>)
            return Primitives::quads::joins;
        else
            return false;
    }

    template <class Primitives, std::size_t Dims>
    struct adder {
        using Q = typename Primitives::quads;
        static constexpr std::size_t tile = 4; ///< planes of a pass
        static constexpr std::size_t width = static_cast<std::size_t>(P::width);
        static constexpr std::size_t quads = width / 16; ///< of channels in a register, for 4 tokens
        static constexpr std::size_t channels = 4 * quads;

        static void run(const pq_add_args& args) noexcept {
            const pq_codes& codes = args.codes;
            const std::size_t first = codes.first_block * kv_block_tokens,
                              last = codes.last_block * kv_block_tokens;
            const std::uint8_t* ahead = codes.ahead != nullptr ? codes.ahead : codes.codes;
            alignas(64) std::uint8_t kept[quads * 4 * kv_part_tokens] = {};
            for (std::size_t c = 0; c < codes.head_size; c += channels) {
                for (std::size_t i = 0; i < quads; ++i) {
                    // Behind the last channel the same again, which nobody reads.
                    const std::size_t at = c + 4 * i < codes.head_size ? c + 4 * i : c;
                    for (std::size_t r = 0; r < 4 / Dims; ++r) {
                        const std::size_t row = at / Dims + r;
                        const std::uint8_t* from = codes.codes + row * kv_part_tokens;
                        const auto* entries =
                            reinterpret_cast<const std::uint8_t*>(args.entries) + row * 256 * Dims;
                        std::uint8_t* to = kept + 16 * i + r * Dims;
                        for (std::size_t t = first; t < last; t += 16) {
                            if (t % 64 == 0)
                                __builtin_prefetch(ahead + row * kv_part_tokens + t, 0, attention_locality);
                            CRUMB_UNROLL
                            for (std::size_t k = 0; k < 16; k += 8) {
                                std::uint8_t* at_token = to + (t + k) * channels;
                                expand<Dims>(entries, from + t + k, at_token, at_token + 4 * channels);
                            }
                        }
                    }
                }
                if (args.count == 1)
                    multiply<1>(args, 0, c, kept, first, last);
                else
                    for (std::size_t p = 0; p < args.count; p += tile)
                        multiply<tile>(args, p, c, kept, first, last);
            }
        }

        template <std::size_t Planes>
        static void multiply(const pq_add_args& args, std::size_t p, std::size_t c, const std::uint8_t* kept,
                             std::size_t first, std::size_t last) noexcept {
            pq_plane planes[Planes];
            typename P::dots sum[Planes];
            CRUMB_UNROLL
            for (std::size_t i = 0; i < Planes; ++i) {
                planes[i] = args.planes[p + i < args.count ? p + i : args.count - 1];
                sum[i] = P::start_dots();
            }
            for (std::size_t t = first; t < last; t += 4) {
                const typename P::reg x = Q::by_channels(P::load(kept + t * channels));
                CRUMB_UNROLL
                for (std::size_t i = 0; i < Planes; ++i)
                    P::dot(sum[i], Q::load_weights(planes[i].weights + t), x);
            }
            CRUMB_UNROLL
            for (std::size_t i = 0; i < Planes; ++i)
                if (p + i < args.count)
                    I::store(planes[i].sums + c, I::fma(I::set1(planes[i].factor), Q::to_f32(sum[i]),
                                                        I::load(planes[i].sums + c)));
        }
    };
};

} // namespace crumb::inline CRUMB_ABI::kernel
