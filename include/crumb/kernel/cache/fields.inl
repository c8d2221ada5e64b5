// Parts of codes with a scale and an origin (KIVI) in a pass of attention, multiplied as integers: weights
// times scales are rounded to planes of 7 bits, as queries times scales are. Loops besides those of the
// scores:
//     weights    groups of 32 channels > queries > registers of tokens
//     sums       groups of 32 channels > tiles of planes > channels > registers of tokens
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>

#include <crumb/isa/portable/pq.inl>

#include <crumb/kernel/cache/scans.inl>

#include <crumb/kernel/cache/expand_query.inl>
#include <crumb/kernel/cache/pq_tables.inl>
#include <crumb/kernel/cache/scan_means.inl>
#include <crumb/kernel/cache/scan_rounding.inl>

#include <crumb/kernel/cache/field_scores.inl>
#include <crumb/kernel/cache/scan.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class N>
struct kv_fields<isa::CRUMB_THIS_ISA, N> : kv_field_scores<isa::CRUMB_THIS_ISA, N> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;
    using reg = typename N::reg;
    using acc = typename N::acc;
    using base = kv_field_scores<I, N>;
    using base::args;
    using base::at;
    using base::cache;
    using base::convert;
    using base::fine;
    using base::halves;
    using base::inverse_of;
    using base::lanes;
    using base::levels;
    using base::middle;
    using base::own;
    using base::pass;
    using base::place;
    using base::registers;
    using base::states;
    using base::unit;
    using base::width;
    using base::work;
    static constexpr std::size_t tile = 4; ///< planes of weights that share a pass

    /// `place_`: the number of the pass's head among those that go through the parts together.
    CRUMB_INLINE kv_fields(const attention_pass<I>& p, const kv_attention_args& a,
                           std::size_t place_) noexcept
        : base(p, a, place_) {}

    CRUMB_INLINE void begin() const noexcept { restart(); }
    CRUMB_INLINE void restart() const noexcept { scan().restart(); }

    /// Tokens first .. stop - 1 of the parts `here`, whose token 0 is the sequence's token t. `next`: what is
    /// read after them, or nothing.
    void attend(const kv_parts& here, std::size_t t, std::size_t first, std::size_t stop,
                const kv_parts& next) const noexcept {
        base::score(here.keys, first - t, stop - t, here.values);
        pass.weigh(t, stop - t);
        add(here.values, stop - t, next.keys);
    }

    /// Adds what was summed to the pass's results.
    void end() const noexcept {
        float *sum = pass.converted, *ones = sum + pass.padded;
        for (std::size_t c = 0; c < pass.padded; c += lanes)
            I::store(ones + c, I::set1(1));
        for (std::size_t i = 0; i < pass.queries; ++i) {
            const kv_scan_state& state = states[i];
            const bool some = state.reference != -__builtin_inff();
            const float factor = some ? M::exp_of(state.reference - pass.maxima[i]) : 0.0f;
            if (some) {
                for (std::size_t c = 0; c < pass.padded; c += lanes)
                    I::store(sum + c, I::zero());
                pq_add_run<I>::finish({at.sums(own, i), args.head_size, ones, sum, false});
                float* o = pass.o + i * pass.padded;
                for (std::size_t c = 0; c < pass.padded; c += lanes)
                    I::store(o + c, I::fma(I::load(sum + c), I::set1(factor), I::load(o + c)));
            }
            scan().report(i, factor, middle);
        }
    }

  private:
    CRUMB_INLINE kv_scan<I> scan() const noexcept { return {pass, args, place}; }

    // ---- values ----
    // o = sum over tokens of (p d) (code - m) + p . (z + m d), where d and z are those of the channel's group
    // and m is the middle of the codes.
    void add(const std::byte* part, std::size_t stop, const std::byte* ahead) const noexcept {
        const kv_part_layout& l = cache.values();
        const adders& by = l.codec().bits == 4 ? adders_of<4> : adders_of<2>;
        // Registers of rounded weights take about as long as channels.
        const std::size_t rounded = streams_vary ? l.groups() * pass.queries * (kv_part_tokens / width) : 0,
                          each = piece_bytes(cache.keys().bytes(), l.head_size() + rounded);
        float factor[few_queries], lost[few_queries] = {};
        for (std::size_t i = 0; i < pass.queries; ++i) {
            // A query that has seen no token yet has no weights either.
            factor[i] = pass.totals[i] > 0 ? scan().relative(i, pass.maxima[i]) : 0.0f;
            // `attention_pass::weigh` has filled the last register up with zeros.
            for (std::size_t t = round_up(stop, lanes); t < kv_part_tokens; t += lanes)
                I::store(pass.scores + i * pass.stride + t, I::zero());
        }
        line_prefetcher next(ahead != nullptr ? ahead : part, cache.keys().bytes(), args.two_streams);
        const auto* codes = reinterpret_cast<const std::uint8_t*>(part + l.codes_offset());
        for (std::size_t g = 0; g < l.groups(); ++g, codes += kv_group_channels * l.row_bytes()) {
            const std::size_t left = l.head_size() - g * kv_group_channels,
                              channels = left < kv_group_channels ? left : kv_group_channels,
                              planes = round_weights(part, g, channels, stop, factor, lost, next, each);
            for (std::size_t p = 0; p < planes;) {
                const adder add_some = planes - p == 1 ? by.one : planes - p == 2 ? by.two : by.all;
                p += (this->*add_some)(codes, channels, p, planes, next, p == 0 ? each : 0);
            }
        }
        for (std::size_t i = 0; i < pass.queries; ++i)
            states[i].lost += lost[i];
    }
    /// Weights times scales of a group for all queries, rounded, and what is not times codes to the results;
    /// the number of planes. `lost`: the largest of what rounding may change, of all groups.
    std::size_t round_weights(const std::byte* part, std::size_t g, std::size_t channels, std::size_t stop,
                              const float* factor, float* lost, line_prefetcher& next,
                              std::size_t each) const noexcept {
        const half* d = halves(part) + g * kv_part_tokens;
        const half* z = halves(part + cache.values().origins_offset()) + g * kv_part_tokens;
        float *scales = pass.converted, *origins = scales + kv_part_tokens;
        convert(d, z, stop, kv_part_tokens, scales, origins);
        std::size_t count = 0;
        const auto take = [&]<std::size_t Queries>(std::size_t first) {
            count = round_tile<Queries>(first, g, channels, stop, factor, lost, count, next, each);
        };
        std::size_t i = 0;
        for (; i + 4 <= pass.queries; i += 4)
            take.template operator()<4>(i);
        for (; i < pass.queries; ++i)
            take.template operator()<1>(i);
        return count;
    }
    template <std::size_t Queries>
    CRUMB_INLINE std::size_t round_tile(std::size_t first, std::size_t g, std::size_t channels,
                                        std::size_t stop, const float* factor, float* lost, std::size_t count,
                                        line_prefetcher& next, std::size_t each) const noexcept {
        const float *scales = pass.converted, *origins = scales + kv_part_tokens,
                    *p = pass.scores + first * pass.stride;
        const std::size_t stride = pass.stride;
        f32 tops[4], totals[4], dots[4];
        CRUMB_UNROLL
        for (std::size_t a = 0; a < 4; ++a)
            tops[a] = totals[a] = dots[a] = I::zero();
        for (std::size_t t = 0; t < kv_part_tokens; t += lanes) {
            const f32 scale = I::load(scales + t), origin = I::load(origins + t);
            CRUMB_UNROLL
            for (std::size_t a = 0; a < Queries; ++a) {
                const f32 weight = I::load(p + a * stride + t), x = I::mul(weight, scale);
                tops[a] = I::max(tops[a], x);
                totals[a] = I::add(totals[a], x);
                dots[a] = I::fma(weight, origin, dots[a]);
            }
        }
        float most[4], mass[4], bases[4];
        N::maxima(tops, most);
        I::sum4(totals[0], totals[1], totals[2], totals[3], mass);
        I::sum4(dots[0], dots[1], dots[2], dots[3], bases);
        CRUMB_UNROLL
        for (std::size_t a = 0; a < Queries; ++a) {
            const std::size_t i = first + a;
            if (inverse_of(most[a], true) != 0) {
                kv_scan_state& state = states[i];
                state.mass += mass[a] * factor[i];
                const float tokens = static_cast<float>(stop) * factor[i];
                const bool one =
                    scan().one_plane(state, most[a] / levels * tokens, args.limits.scaled_weight);
                const float step = most[a] / (one ? levels : fine), loss = 0.505f * step * tokens;
                lost[i] = loss > lost[i] ? loss : lost[i];
                const float sum = one ? round_plane<false>(i, g, most[a], step * factor[i], count, next, each)
                                      : round_plane<true>(i, g, most[a], step * factor[i], count, next, each);
                bases[a] -= middle * step * sum;
                count += one ? 1 : 2;
            }
            float* o = pass.o + i * pass.padded + g * kv_group_channels;
            for (std::size_t c = 0; c < channels; c += lanes)
                I::store(o + c, I::add(I::load(o + c), I::set1(bases[a])));
        }
        return count;
    }
    /// Rounds weights times scales of query i to planes; the sum of the integers.
    template <bool Two>
    float round_plane(std::size_t i, std::size_t g, float most, float step, std::size_t count,
                      line_prefetcher& next, std::size_t each) const noexcept {
        const float *p = pass.scores + i * pass.stride, *d = pass.converted;
        const f32 by = I::set1(inverse_of(most, Two));
        std::int8_t *high = at.weights(work, 2 * i), *low = at.weights(work, 2 * i + 1);
        acc total = N::zero();
        for (std::size_t r = 0; r < kv_part_tokens / width; ++r) {
            // In the order in which the codes of a channel are multiplied.
            const std::size_t t = r / (2 * registers) * unit +
                                  r % (2 * registers) / registers * kv_mean_tokens + r % registers * width;
            if (streams_vary)
                next.step(each);
            f32 x[4];
            CRUMB_UNROLL
            for (std::size_t j = 0; j < 4; ++j)
                x[j] = I::mul(I::mul(I::load(p + t + N::token(j)), I::load(d + t + N::token(j))), by);
            N::template round<Two, true>(x, high + r * width, low + r * width, total);
        }
        const auto take = [&](const std::int8_t* plane, float factor) {
            at.planes(work)[count++] = {reinterpret_cast<const std::uint8_t*>(plane), factor,
                                        at.sums(own, i) + g * kv_group_channels * pq_sums};
        };
        take(high, Two ? 128 * step : step);
        if constexpr (Two)
            take(low, step);
        return I::sum(I::to_f32(total));
    }
    /// `add_planes` of some codes and planes.
    using adder = std::size_t (kv_fields::*)(const std::uint8_t* codes, std::size_t channels, std::size_t p,
                                             std::size_t count, line_prefetcher& next,
                                             std::size_t each) const noexcept;
    struct adders {
        adder one, two, all; ///< of a plane, of two and of a tile
    };
    /// Adds codes of a group's channels times some planes of weights; the number of planes that a pass takes.
    template <int Bits, std::size_t Planes>
    std::size_t add_planes(const std::uint8_t* codes, std::size_t channels, std::size_t p, std::size_t count,
                           line_prefetcher& next, std::size_t each) const noexcept {
        constexpr std::size_t row_bytes = kv_part_tokens * Bits / 8, together = N::channels;
        pq_plane planes[Planes];
        CRUMB_UNROLL
        for (std::size_t j = 0; j < Planes; ++j) {
            // Fewer than a pass has room for: the last one is summed again, and not stored.
            planes[j] = at.planes(work)[p + j < count ? p + j : count - 1];
            if (p + j >= count)
                planes[j].sums = nullptr;
        }
        line_prefetcher ahead = next; // a copy, whose members stay in registers
        for (std::size_t c = 0; c < channels; c += together, codes += together * row_bytes) {
            ahead.step(together * each);
            acc sum[Planes * together];
            CRUMB_UNROLL
            for (std::size_t j = 0; j < Planes * together; ++j)
                sum[j] = N::zero();
            CRUMB_UNROLL
            for (std::size_t u = 0; u < kv_part_tokens / unit; ++u)
                add_unit<Bits, Planes, 0>(codes + u * (unit * Bits / 8), planes, u * unit, sum);
            CRUMB_UNROLL
            for (std::size_t j = 0; j < Planes; ++j)
                if (Planes < 3 || planes[j].sums != nullptr)
                    N::add_to(planes[j].sums + c * pq_sums, planes[j].factor, sum + j * together);
        }
        next = ahead;
        return Planes;
    }
    /// Registers R and on of a unit's codes, of some channels; the unit's weights begin at `first`.
    template <int Bits, std::size_t Planes, int R>
    static CRUMB_INLINE void add_unit(const std::uint8_t* codes, const pq_plane* planes, std::size_t first,
                                      acc* sum) noexcept {
        constexpr std::size_t row_bytes = kv_part_tokens * Bits / 8, together = N::channels;
        reg x[together];
        CRUMB_UNROLL
        for (std::size_t k = 0; k < together; ++k)
            x[k] = N::template codes<Bits, R / int{registers}, R % int{registers}>(codes + k * row_bytes);
        CRUMB_UNROLL
        for (std::size_t j = 0; j < Planes; ++j) {
            const reg weights = N::load(planes[j].weights + first + R * width);
            CRUMB_UNROLL
            for (std::size_t k = 0; k < together; ++k)
                N::dot(sum[j * together + k], x[k], weights);
        }
        if constexpr (R + 1 < int{2 * registers})
            add_unit<Bits, Planes, R + 1>(codes, planes, first, sum);
    }

    template <int Bits>
    static constexpr adders adders_of = {&kv_fields::add_planes<Bits, 1>, &kv_fields::add_planes<Bits, 2>,
                                         &kv_fields::add_planes<Bits, tile>};
};

} // namespace crumb::inline CRUMB_ABI::kernel
