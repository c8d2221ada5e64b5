// Scores of codes with a scale and an origin (KIVI): queries times scales are rounded to planes of 7 bits.
// Loops:
//     factors    queries > mean blocks of 128 tokens > registers of channels
//     scores     units of 64 or 128 tokens > halves of blocks > registers of tokens > tiles of planes > quads
//                of channels
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class N>
struct kv_field_scores<isa::CRUMB_THIS_ISA, N> {
    using I = isa::CRUMB_THIS_ISA;
    using f32 = typename I::f32;
    using reg = typename N::reg;
    using acc = typename N::acc;
    static constexpr std::size_t lanes = math<I>::lanes, width = N::width, tile = N::tile;
    /// Tokens of a unit, one or two blocks of codes; registers of the codes of a half of its blocks.
    static constexpr std::size_t unit = 2 * width < kv_block_tokens ? kv_block_tokens : 2 * width,
                                 registers = unit / 2 / width;
    /// Tokens whose factors are made together, and their blocks of keys with scales of their own.
    static constexpr std::size_t stretch = kv_factor_tokens, means = stretch / kv_mean_tokens;
    static constexpr std::size_t max_quads = 128, quad_bytes = 4 * width;
    static constexpr float levels = static_cast<float>(pq_max), fine = 127 * 128;
    static constexpr float tiny = 0x1p-90f; ///< factors below are taken for 0

    const attention_pass<I>& pass;
    const kv_layer_view& cache;
    const kv_attention_args& args;
    const kv_scratch& at;
    std::size_t place;
    std::size_t factor_bytes; ///< of a plane of factors: channels, up to whole registers
    float middle;             ///< what codes are counted from
    float *own, *work;        ///< of the head, and of all that go together
    kv_scan_state* states;

    /// `place_`: the number of the pass's head among those that go through the parts together.
    CRUMB_INLINE kv_field_scores(const attention_pass<I>& p, const kv_attention_args& a,
                                 std::size_t place_) noexcept
        : pass(p), cache(a.cache), args(a), at(a.memory), place(place_),
          factor_bytes(round_up(a.head_size, kv_factor_channels)),
          middle(a.cache.keys().codec().bits == 4 ? 8 : 2), own(at.state(a.scratch, place_)),
          work(at.work(a.scratch)), states(at.states(own)) {}

    /// Scores tokens first .. stop - 1 of a part of keys. `ahead`: a part of values to prefetch.
    void score(const std::byte* part, std::size_t first, std::size_t stop,
               const std::byte* ahead) const noexcept {
        const multipliers* by =
            cache.keys().codec().bits == 4 ? multipliers_of<4>.data() : multipliers_of<2>.data();
        numbers of[few_queries];
        // A register of the query takes about as long as a quad of codes.
        const std::size_t quads = kv_part_tokens / width * (args.head_size / 4),
                          registers_of_q = pass.queries * (args.head_size / lanes),
                          floats = streams_vary ? kv_part_tokens / stretch * registers_of_q : 0,
                          each = piece_bytes(cache.values().bytes(), quads + floats);
        line_prefetcher next(ahead, cache.values().bytes(), args.two_streams);
        for (std::size_t u = first / unit, made = ~std::size_t{0}; u * unit < stop; ++u) {
            if (made != u * unit / stretch) {
                made = u * unit / stretch;
                make_factors(part, made, stop, of, next, each);
            }
            for (std::size_t r = 0; r < 2 * registers; ++r)
                score_register(part, u, r, by[r], of, next, each);
        }
        for (std::size_t i = 0; i < pass.queries; ++i)
            for (std::size_t t = 0; t < first; ++t)
                pass.scores[i * pass.stride + t] = -__builtin_inff();
    }

    /// What numbers up to `most` are multiplied with to be rounded.
    static CRUMB_INLINE float inverse_of(float most, bool two) noexcept {
        return most >= tiny && most <= __FLT_MAX__ ? (two ? fine : levels) / most : 0.0f;
    }
    /// d and z + middle * d of n numbers, and zeros up to `all`.
    CRUMB_INLINE void convert(const half* d, const half* z, std::size_t n, std::size_t all, float* scales,
                              float* origins) const noexcept {
        // A copy: stores of vectors may alias the members of *this.
        const f32 from = I::set1(middle);
        std::size_t c = 0;
        for (; c < n; c += lanes) {
            const f32 x = I::load(d + c);
            I::store(scales + c, x);
            I::store(origins + c, I::fma(x, from, I::load(z + c)));
        }
        for (; c < all; c += lanes) {
            I::store(scales + c, I::zero());
            I::store(origins + c, I::zero());
        }
    }
    static CRUMB_INLINE const half* halves(const std::byte* p) noexcept {
        return reinterpret_cast<const half*>(p);
    }

  private:
    // q . k = sum over channels of (q d) (code - m) + q . (z + m d), where d and z are those of the token's
    // mean block and m is the middle of the codes.

    /// Steps and what is added to products, by mean block of a stretch.
    struct numbers {
        float steps[means], bases[means];
    };
    /// The factors q d of query i in the k-th mean block of a stretch, in planes one after the other.
    CRUMB_INLINE std::int8_t* factors(std::size_t i, std::size_t k) const noexcept {
        return reinterpret_cast<std::int8_t*>(at.factors(work)) + 2 * (means * i + k) * factor_bytes;
    }

    /// Rounds the factors of a stretch's mean blocks before `stop`. How many planes a query takes does not
    /// depend on the token that a call begins with.
    void make_factors(const std::byte* part, std::size_t s, std::size_t stop, numbers* of,
                      line_prefetcher& next, std::size_t each) const noexcept {
        const std::size_t size = args.head_size, begin = s * means,
                          all = (stop + kv_mean_tokens - 1) / kv_mean_tokens - begin,
                          count = all < means ? all : means;
        const half* d = halves(part) + begin * size;
        const half* z = halves(part + cache.keys().origins_offset()) + begin * size;
        float *scales = pass.converted, *origins = scales + means * size;
        convert(d, z, count * size, means * size, scales, origins);
        line_prefetcher ahead = next; // a copy, whose members stay in registers
        for (std::size_t i = 0; i < pass.queries; ++i) {
            const float* q = pass.q + i * pass.padded;
            f32 tops[means], dots[means];
            CRUMB_UNROLL
            for (std::size_t k = 0; k < means; ++k)
                tops[k] = dots[k] = I::zero();
            for (std::size_t c = 0; c < size; c += lanes) {
                if (streams_vary)
                    ahead.step(each);
                const f32 x = I::load(q + c);
                CRUMB_UNROLL
                for (std::size_t k = 0; k < means; ++k) {
                    tops[k] = I::max(I::abs(I::mul(x, I::load(scales + k * size + c))), tops[k]);
                    dots[k] = I::fma(x, I::load(origins + k * size + c), dots[k]);
                }
            }
            float most[means], sums[means];
            N::maxima(tops, most);
            I::sum4(dots[0], dots[1], dots[2], dots[3], of[i].bases);
            float largest = 0;
            for (std::size_t k = 0; k < count; ++k)
                largest = most[k] <= largest ? largest : most[k];
            const bool one = choose(i, largest);
            if (one)
                round_factors<false>(q, scales, most, factors(i, 0), of[i].steps, sums);
            else
                round_factors<true>(q, scales, most, factors(i, 0), of[i].steps, sums);
            for (std::size_t k = 0; k < means; ++k)
                of[i].bases[k] -= middle * of[i].steps[k] * sums[k];
        }
        next = ahead;
    }
    /// Rounds q d / step to planes, by mean block; the steps, and the sums of the integers.
    template <bool Two>
    CRUMB_INLINE void round_factors(const float* q, const float* d, const float* most, std::int8_t* out,
                                    float* steps, float* sums) const noexcept {
        const std::size_t size = args.head_size;
        f32 total[means];
        for (std::size_t k = 0; k < means; ++k) {
            const float by = inverse_of(most[k], Two);
            steps[k] = by == 0 ? 0 : most[k] / (Two ? fine : levels);
            acc sum = N::zero();
            std::int8_t* const high = out + 2 * k * factor_bytes;
            for (std::size_t c = 0; c < size; c += width) {
                f32 x[4];
                CRUMB_UNROLL
                for (std::size_t j = 0; j < 4; ++j) {
                    const std::size_t i = c + j * lanes;
                    x[j] = i < size ? I::mul(I::mul(I::load(q + i), I::load(d + k * size + i)), I::set1(by))
                                    : I::zero();
                }
                N::template round<Two, false>(x, high + c, high + factor_bytes + c, sum);
            }
            total[k] = I::to_f32(sum);
        }
        I::sum4(total[0], total[1], total[2], total[3], sums);
    }
    /// Whether one plane of factors up to `most` is enough for query i.
    CRUMB_INLINE bool choose(std::size_t i, float most) const noexcept {
        kv_scan_state& state = states[i];
        // Half a step of each factor, and what products of floats add; roundings of the sums.
        const float half_step = 0.505f * middle, floats = 2 * middle * 0x1p-20f,
                    all = most * static_cast<float>(args.head_size),
                    coarse = all * (half_step / levels + floats);
        const bool one = coarse <= args.limits.score && args.limits.score > 0;
        float error = one ? coarse : all * (half_step / fine + floats);
        if (most < tiny)
            error = all * middle;
        if (!(error <= __FLT_MAX__))
            error = __builtin_inff();
        at.counts(work)[i] = one ? 1 : 2;
        state.error = error > state.error ? error : state.error;
        ++state.scored;
        state.second_scores += one ? 0 : 1;
        return one;
    }

    /// Sums of codes times factors of some planes: `multiply`. `kept`: the codes of quads of channels, which
    /// products with the first planes store there if it is not null.
    using products = void (kv_field_scores::*)(const std::uint8_t* rows, const std::int8_t* const* planes,
                                               std::uint8_t* kept, acc* out, line_prefetcher& next,
                                               std::size_t each) const noexcept;
    /// Products of one plane, of two and of a tile, and of a tile with codes that are kept.
    struct multipliers {
        products one, two, all, kept;
    };
    /// Register r of a unit's codes.
    void score_register(const std::byte* part, std::size_t u, std::size_t r, const multipliers& by,
                        const numbers* of, line_prefetcher& next, std::size_t each) const noexcept {
        const std::size_t half_block = r / registers;
        const std::int8_t* planes[2 * few_queries + tile];
        std::size_t owner[2 * few_queries + tile], count = 0;
        constexpr std::size_t none = ~std::size_t{0};
        const std::uint8_t* counts = at.counts(work);
        const std::size_t k = u * unit % stretch / kv_mean_tokens + half_block;
        const auto take = [&](const std::int8_t* plane, std::size_t query) {
            planes[count] = plane;
            owner[count++] = query;
        };
        for (const std::uint8_t n : {std::uint8_t{2}, std::uint8_t{1}})
            for (std::size_t i = 0; i < pass.queries; ++i)
                if (counts[i] == n) {
                    take(factors(i, k), i);
                    if (n == 2)
                        take(factors(i, k) + factor_bytes, none);
                }
        const std::size_t used = count;
        while (count % tile != 0)
            take(planes[0], none);
        const std::uint8_t* rows = reinterpret_cast<const std::uint8_t*>(part + cache.keys().codes_offset()) +
                                   u * (unit * cache.keys().codec().bits / 8);
        float* to = pass.scores + u * unit + half_block * kv_mean_tokens + r % registers * width;
        alignas(64) std::uint8_t kept[max_quads * quad_bytes];
        acc sum[4 * tile];
        std::uint8_t* const keep = used > tile ? kept : nullptr;
        (this->*(used == 1 ? by.one : used == 2 ? by.two : by.all))(rows, planes, keep, sum, next, each);
        for (std::size_t p = 0;;) {
            CRUMB_UNROLL
            for (std::size_t j = 0; j < tile; ++j) {
                const std::size_t i = owner[p + j];
                if (i == none)
                    continue;
                acc total[4];
                CRUMB_UNROLL
                for (std::size_t n = 0; n < 4; ++n)
                    total[n] = j + 1 < tile && counts[i] == 2
                                   ? N::plus(N::times_128(sum[4 * j + n]), sum[4 * (j + 1) + n])
                                   : sum[4 * j + n];
                N::put(total, of[i].steps + k, of[i].bases + k, to + i * pass.stride);
            }
            if ((p += tile) >= used)
                break;
            (this->*by.kept)(rows, planes + p, kept, sum, next, 0);
        }
    }
    /// Codes come from `rows`, register R of a unit, or from `kept` if Bits is 0.
    template <int Bits, int R, std::size_t Planes, std::size_t AtOnce = N::at_once(Bits)>
    void multiply(const std::uint8_t* rows, const std::int8_t* const* planes, std::uint8_t* kept, acc* out,
                  line_prefetcher& next, [[maybe_unused]] std::size_t each) const noexcept {
        constexpr std::size_t row_bytes = kv_part_tokens * Bits / 8;
        // Quads whose factors lie as those of the first ones do, beside constant addresses.
        constexpr std::size_t together = Bits == 0 ? 4 : 1;
        static_assert(AtOnce % together == 0);
        const std::size_t quads = args.head_size / 4, to_second = 4 * factor_bytes;
        const std::int8_t* from[Planes];
        CRUMB_UNROLL
        for (std::size_t p = 0; p < Planes; ++p)
            from[p] = planes[p];
        if constexpr (AtOnce < max_quads) {
            CRUMB_UNROLL
            for (std::size_t k = 0; k < 4 * Planes; ++k)
                out[k] = N::zero();
        }
        line_prefetcher ahead = next; // a copy, whose members stay in registers
        for (std::size_t quad = 0; quad < quads;) {
            const std::size_t end = quads - quad < AtOnce ? quads : quad + AtOnce;
            acc sum[4 * Planes];
            CRUMB_UNROLL
            for (std::size_t k = 0; k < 4 * Planes; ++k)
                sum[k] = N::zero();
            for (; quad < end; quad += together) {
                const std::size_t first = N::place(quad);
                CRUMB_UNROLL
                for (std::size_t i = 0; i < together; ++i) {
                    reg codes[4];
                    if constexpr (Bits != 0) {
                        ahead.step(each);
                        reg x[4];
                        CRUMB_UNROLL
                        for (std::size_t j = 0; j < 4; ++j)
                            x[j] = N::template codes<Bits, R / int{registers}, R % int{registers}>(
                                rows + (4 * (quad + i) + j) * row_bytes);
                        N::by_quads(x, codes);
                        if (kept != nullptr) {
                            CRUMB_UNROLL
                            for (std::size_t k = 0; k < 4; ++k)
                                N::store(kept + (quad + i) * quad_bytes + k * width, codes[k]);
                        }
                    } else {
                        CRUMB_UNROLL
                        for (std::size_t k = 0; k < 4; ++k)
                            codes[k] = N::load(kept + (quad + i) * quad_bytes + k * width);
                    }
                    CRUMB_UNROLL
                    for (std::size_t p = 0; p < Planes; ++p) {
                        const reg by = N::factors(from[p] + first + N::place(i), to_second);
                        CRUMB_UNROLL
                        for (std::size_t k = 0; k < 4; ++k)
                            N::dot(sum[4 * p + k], codes[k], by);
                    }
                }
            }
            CRUMB_UNROLL
            for (std::size_t k = 0; k < 4 * Planes; ++k)
                out[k] = AtOnce < max_quads ? N::plus(out[k], N::widen(sum[k])) : sum[k];
        }
        next = ahead;
    }

    static constexpr std::size_t pair = tile > 2 ? 2 : tile;
    template <int Bits, int R>
    static constexpr multipliers of_register() noexcept {
        return {&kv_field_scores::multiply<Bits, R, 1>, &kv_field_scores::multiply<Bits, R, pair>,
                &kv_field_scores::multiply<Bits, R, tile>,
                &kv_field_scores::multiply<0, 0, tile, N::at_once(Bits)>};
    }
    template <int Bits>
    static constexpr auto multipliers_of = []<std::size_t... R>(std::index_sequence<R...>) {
        return std::array{of_register<Bits, int{R}>()...};
    }(std::make_index_sequence<2 * registers>{});
};

} // namespace crumb::inline CRUMB_ABI::kernel
