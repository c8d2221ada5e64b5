// Blocks of 64 tokens to codes. Loops:
//     q8_0      tokens > groups of 32 channels
//     uniform   keys: channels > 32 tokens; values: groups of 32 channels > tokens
//     pq        sub-spaces > scales that are tried > centroids > 4 registers of tokens (code_search.inl)
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/cache/code_search.inl>
#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct kv_encode_run<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    using search = kv_code_search<I>;
    static constexpr std::size_t lanes = M::lanes, tokens = kv_block_tokens;

    static void run(const kv_block_args& args) noexcept {
        switch (args.layout.codec().kind) {
        case kv_kind::f32:
        case kv_kind::f16:
            return; // written as they come
        case kv_kind::q8_0:
            return bytes(args);
        case kv_kind::uniform:
            return uniform(args);
        case kv_kind::pq:
            return nearest(args);
        }
    }

  private:
    static CRUMB_INLINE half* halves_at(const kv_block_args& args, std::size_t offset) noexcept {
        return reinterpret_cast<half*>(args.part + offset);
    }
    /// The finite half nearest to x.
    static CRUMB_INLINE half to_half(float x) noexcept {
        half out[lanes];
        I::store(out, I::min(I::max(I::set1(x), I::set1(-65504)), I::set1(65504)));
        return out[0];
    }

    /// round((x[i] - origin) / d), kept within [low, high], for n <= 32 numbers; d = 0: 0.
    static CRUMB_NOINLINE void round(const float* x, std::size_t n, float origin, float d, float low,
                                     float high, std::int32_t* to) noexcept {
        if (!(d > 0)) {
            __builtin_memset(to, 0, n * sizeof *to);
            return;
        }
        for (std::size_t i = 0; i < n; i += lanes) {
            const f32 y = I::div(I::sub(M::load(x + i, n - i), I::set1(origin)), I::set1(d));
            const f32 z = I::min(I::max(y, I::set1(low)), I::set1(high));
            std::int32_t all[lanes];
            M::store(all, I::round_to_i32(z));
            for (std::size_t j = 0; j < lanes && i + j < n; ++j)
                to[i + j] = all[j];
        }
    }

    static void bytes(const kv_block_args& args) noexcept {
        const std::size_t size = args.layout.head_size(), groups = args.layout.groups();
        std::int8_t* codes = reinterpret_cast<std::int8_t*>(args.part + args.layout.codes_offset());
        for (std::size_t i = 0; i < kv_block_tokens; ++i) {
            const std::size_t t = args.block * kv_block_tokens + i;
            for (std::size_t g = 0; g < groups; ++g) {
                const std::size_t begin = g * kv_group_channels;
                const std::size_t n = size - begin < kv_group_channels ? size - begin : kv_group_channels;
                float x[kv_group_channels];
                float most = 0;
                for (std::size_t c = 0; c < n; c += lanes)
                    M::store(x + c, M::load(args.from + i * size + begin + c, n - c), n - c);
                for (std::size_t c = 0; c < n; ++c)
                    most = __builtin_fabsf(x[c]) > most ? __builtin_fabsf(x[c]) : most;
                const half d = to_half(most / 127);
                std::int32_t rounded[kv_group_channels];
                round(x, n, 0, M::number(d), -127, 127, rounded);
                halves_at(args, 0)[t * groups + g] = d;
                for (std::size_t c = 0; c < n; ++c)
                    codes[t * size + begin + c] = static_cast<std::int8_t>(rounded[c]);
            }
        }
    }

    /// Scale and origin of n numbers, and their codes: x = z + d c.
    static CRUMB_NOINLINE void uniform_group(const float* x, std::size_t n, int bits, half& d, half& z,
                                             std::int32_t* codes) noexcept {
        float low = x[0], high = x[0];
        for (std::size_t i = 1; i < n; ++i) {
            low = x[i] < low ? x[i] : low;
            high = x[i] > high ? x[i] : high;
        }
        const float most = static_cast<float>((1 << bits) - 1);
        z = to_half(low);
        d = to_half((high - low) / most);
        round(x, n, M::number(z), M::number(d), 0, most, codes);
    }

    static void uniform(const kv_block_args& args) noexcept {
        const kv_part_layout& l = args.layout;
        const std::size_t size = l.head_size(), first = args.block * kv_block_tokens;
        std::uint8_t* codes = reinterpret_cast<std::uint8_t*>(args.part + l.codes_offset());
        const int bits = l.codec().bits;
        float* x = args.scratch;
        for (std::size_t i = 0; i < kv_block_tokens * size; i += lanes)
            M::store(x + i, M::load(args.from + i, kv_block_tokens * size - i), kv_block_tokens * size - i);
        float group[kv_mean_tokens];
        std::int32_t rounded[kv_mean_tokens];
        static_assert(kv_mean_tokens == kv_group_channels);
        if (l.keys()) {
            for (std::size_t c = 0; c < size; ++c) {
                std::uint8_t all[kv_block_tokens];
                for (std::size_t b = 0; b < kv_block_tokens; b += kv_mean_tokens) {
                    for (std::size_t i = 0; i < kv_mean_tokens; ++i)
                        group[i] = x[(b + i) * size + c];
                    const std::size_t at = (first + b) / kv_mean_tokens * size + c;
                    uniform_group(group, kv_mean_tokens, bits, halves_at(args, 0)[at],
                                  halves_at(args, l.origins_offset())[at], rounded);
                    for (std::size_t i = 0; i < kv_mean_tokens; ++i)
                        all[b + i] = static_cast<std::uint8_t>(rounded[i]);
                }
                pack(codes + c * l.row_bytes(), bits, args.block, all);
            }
            return;
        }
        for (std::size_t g = 0; g < l.groups(); ++g) {
            const std::size_t begin = g * kv_group_channels;
            const std::size_t n = size - begin < kv_group_channels ? size - begin : kv_group_channels;
            std::uint8_t all[kv_group_channels][kv_block_tokens];
            for (std::size_t t = 0; t < kv_block_tokens; ++t) {
                const std::size_t at = g * kv_part_tokens + first + t;
                uniform_group(x + t * size + begin, n, bits, halves_at(args, 0)[at],
                              halves_at(args, l.origins_offset())[at], rounded);
                for (std::size_t i = 0; i < n; ++i)
                    all[i][t] = static_cast<std::uint8_t>(rounded[i]);
            }
            for (std::size_t i = 0; i < n; ++i)
                pack(codes + (begin + i) * l.row_bytes(), bits, args.block, all[i]);
        }
    }

    // ---- product quantization ----
    /// As kv_search.hpp says. The lanes are tokens.
    static void nearest(const kv_block_args& args) noexcept {
        const kv_part_layout& l = args.layout;
        const kv_codec& codec = l.codec();
        const std::size_t size = l.head_size(), rows = l.rows();
        float* rest = args.scratch; // [size][tokens]
        for (std::size_t t = 0; t < tokens; t += kv_mean_tokens)
            take_means(args, t, rest);
        float inverse[kv_scale_trials][tokens];
        inverse_scales(codec, rest, size, inverse);
        const std::size_t trials = codec.residual ? args.scale_trials : 1;
        double with[kv_scale_trials][tokens] = {}, own[kv_scale_trials][tokens] = {};
        auto* found = reinterpret_cast<std::uint8_t*>(rest + size * tokens); // [trial][row][tokens]
        for (std::size_t j = 0; j < rows; ++j) {
            float changed[4 * tokens];
            const float* y = rest + j * codec.dims * tokens;
            if (args.tables.metric != nullptr) {
                search::apply_metric(args.tables.metric + j * codec.dims * codec.dims, codec.dims, tokens, y,
                                     tokens, changed);
                y = changed;
            }
            const search of(codec, args.tables, j);
            for (std::size_t k = 0; k < trials; ++k) {
                std::uint8_t* best = found + (k * rows + j) * tokens;
                of.run(y, inverse[k], best);
                for (std::size_t i = 0; i < codec.dims && codec.residual; ++i) {
                    float e[tokens];
                    for (std::size_t t = 0; t < tokens; ++t)
                        e[t] = of.centroid(i, best[t]);
                    for (std::size_t t = 0; t < tokens; ++t) {
                        with[k][t] += double{y[i * tokens + t]} * double{e[t]};
                        own[k][t] += double{e[t]} * double{e[t]};
                    }
                }
            }
        }
        std::uint8_t kept[tokens] = {};
        for (std::size_t t = 0; t < tokens && codec.residual; ++t) {
            for (std::size_t k = 1; k < trials; ++k)
                if (kv_fit(with[k][t], own[k][t]) > kv_fit(with[kept[t]][t], own[kept[t]][t]))
                    kept[t] = static_cast<std::uint8_t>(k);
            const double w = with[kept[t]][t], o = own[kept[t]][t];
            halves_at(args, l.scales_offset())[args.block * tokens + t] =
                to_half(inverse[0][t] > 0 && o > 0 && w > 0 ? static_cast<float>(w / o) : 0.0f);
        }
        std::uint8_t* codes = reinterpret_cast<std::uint8_t*>(args.part + l.codes_offset());
        for (std::size_t j = 0; j < rows; ++j) {
            std::uint8_t best[tokens];
            for (std::size_t t = 0; t < tokens; ++t)
                best[t] = found[(kept[t] * rows + j) * tokens + t];
            pack(codes + j * l.row_bytes(), codec.bits, args.block, best);
        }
    }

    /// What residuals are multiplied with in each trial.
    static CRUMB_INLINE void inverse_scales(const kv_codec& codec, const float* rest, std::size_t size,
                                            float (&inverse)[kv_scale_trials][tokens]) noexcept {
        double own[tokens] = {};
        for (std::size_t c = 0; c < size && codec.residual; ++c)
            for (std::size_t t = 0; t < tokens; ++t)
                own[t] += double{rest[c * tokens + t]} * double{rest[c * tokens + t]};
        for (std::size_t t = 0; t < tokens; ++t) {
            float scale = 1;
            if (codec.residual) {
                scale = static_cast<float>(__builtin_sqrt(own[t] / static_cast<double>(size)));
                scale = scale < kv_min_scale ? 0.0f : scale;
            }
            const float first = scale > 0 ? 1 / scale : 0.0f;
            for (std::size_t k = 0; k < kv_scale_trials; ++k)
                inverse[k][t] = first * kv_scale_factors[k];
        }
    }

    /// 32 tokens less their mean, channel by channel; writes the means.
    static CRUMB_INLINE void take_means(const kv_block_args& args, std::size_t first, float* rest) noexcept {
        const std::size_t size = args.layout.head_size();
        const half* from = args.from + first * size;
        half* means = halves_at(args, 0) + (args.block * tokens + first) / kv_mean_tokens * size;
        for (std::size_t c = 0; c < size; c += lanes) {
            const std::size_t n = size - c < lanes ? size - c : lanes;
            f32 mean = I::zero();
            if (args.layout.codec().residual) {
                for (std::size_t t = 0; t < kv_mean_tokens; ++t)
                    mean = I::add(mean, M::load(from + t * size + c, n));
                mean = I::div(mean, I::set1(static_cast<float>(kv_mean_tokens)));
                half rounded[lanes];
                I::store(rounded, I::min(I::max(mean, I::set1(-65504)), I::set1(65504)));
                for (std::size_t i = 0; i < n; ++i)
                    means[c + i] = rounded[i];
                mean = I::load(rounded);
            }
            for (std::size_t t = 0; t < kv_mean_tokens; ++t) {
                float row[lanes];
                I::store(row, I::sub(M::load(from + t * size + c, n), mean));
                for (std::size_t i = 0; i < n; ++i)
                    rest[(c + i) * tokens + first + t] = row[i];
            }
        }
    }

    /// A block's codes into its places of a row.
    static CRUMB_NOINLINE void pack(std::uint8_t* row, int bits, std::size_t block,
                                    const std::uint8_t* codes) noexcept {
        if (bits == 8) {
            __builtin_memcpy(row + block * tokens, codes, tokens);
            return;
        }
        // Arrays of their own: bytes may be anything's.
        std::uint8_t nibbles[32], twos[16];
        if (bits >= 4) {
            for (std::size_t i = 0; i < 32; ++i)
                nibbles[i] = static_cast<std::uint8_t>((codes[i] & 15) | codes[i + 32] << 4);
            __builtin_memcpy(row + block * 32, nibbles, 32);
        }
        if (bits == 4)
            return;
        const int down = bits == 6 ? 4 : 0;
        for (std::size_t i = 0; i < 16; ++i)
            twos[i] = static_cast<std::uint8_t>(codes[i] >> down | codes[i + 16] >> down << 2 |
                                                codes[i + 32] >> down << 4 | codes[i + 48] >> down << 6);
        __builtin_memcpy(row + (bits == 6 ? kv_part_tokens / 2 : 0) + block * 16, twos, 16);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
