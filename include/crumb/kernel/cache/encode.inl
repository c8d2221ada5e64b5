// Blocks of 64 tokens to codes. Loops:
//     q8_0      tokens > groups of 32 channels
//     uniform   keys: channels > 32 tokens; values: groups of 32 channels > tokens
//     pq        sub-spaces > centroids > 4 registers of tokens
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct kv_encode_run<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;

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
    static CRUMB_INLINE void round(const float* x, std::size_t n, float origin, float d, float low,
                                   float high, std::int32_t* to) noexcept {
        if (!(d > 0)) {
            __builtin_memset(to, 0, n * sizeof *to);
            return;
        }
        for (std::size_t i = 0; i < n; i += lanes) {
            const f32 y = I::div(I::sub(M::load(x + i, n - i), I::set1(origin)), I::set1(d));
            const f32 z = I::min(I::max(y, I::set1(low)), I::set1(high));
            std::int32_t all[lanes];
            store_integers(all, I::round_to_i32(z));
            for (std::size_t j = 0; j < lanes && i + j < n; ++j)
                to[i + j] = all[j];
        }
    }
    static CRUMB_INLINE void store_integers(std::int32_t* to, typename I::i32 x) noexcept {
        float bits[lanes];
        I::store(bits, I::as_f32(x));
        __builtin_memcpy(to, bits, sizeof bits);
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
    static CRUMB_INLINE void uniform_group(const float* x, std::size_t n, int bits, half& d, half& z,
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
    static constexpr std::size_t tokens = kv_block_tokens;
    static constexpr std::size_t products = static_cast<std::size_t>(I::products);
    static constexpr std::size_t max_operands = 4 / products;

    /// Of a sub-space: centroids, and what keys (see kv_search.hpp) are made of, per code.
    struct grid {
        float w[4][256];
        std::int32_t start[256];                ///< 256 sum of e[i]^2 + code
        std::int32_t factor[max_operands][256]; ///< -32 e[i]
        float gain;
    };

    /// As kv_search.hpp says. The lanes are tokens.
    static void nearest(const kv_block_args& args) noexcept {
        const kv_part_layout& l = args.layout;
        const kv_codec& codec = l.codec();
        const std::size_t size = l.head_size(), t0 = args.block * tokens;
        float* rest = args.scratch; // [size][tokens]
        for (std::size_t t = 0; t < tokens; t += kv_mean_tokens)
            take_means(args, t, rest);
        float inverse[tokens];
        double with[tokens] = {}, own[tokens] = {};
        for (std::size_t c = 0; c < size && codec.residual; ++c)
            for (std::size_t t = 0; t < tokens; ++t)
                own[t] += double{rest[c * tokens + t]} * double{rest[c * tokens + t]};
        for (std::size_t t = 0; t < tokens; ++t) {
            float scale = 1;
            if (codec.residual) {
                scale = static_cast<float>(__builtin_sqrt(own[t] / static_cast<double>(size)));
                scale = scale < kv_min_scale ? 0.0f : scale;
            }
            inverse[t] = scale > 0 ? 1 / scale : 0.0f;
            own[t] = 0;
        }
        std::uint8_t* codes = reinterpret_cast<std::uint8_t*>(args.part + l.codes_offset());
        for (std::size_t j = 0; j < l.rows(); ++j) {
            float changed[4 * tokens];
            const float* y = rest + j * codec.dims * tokens;
            if (args.tables.metric != nullptr) {
                apply_metric<tokens>(args.tables.metric + j * codec.dims * codec.dims, codec.dims, tokens, y,
                                     changed);
                y = changed;
            }
            grid g;
            prepare(args, j, g);
            std::uint8_t best[tokens];
            search(codec, y, g, inverse, best);
            pack(codes + j * l.row_bytes(), codec.bits, args.block, best);
            for (std::size_t i = 0; i < codec.dims && codec.residual; ++i) {
                float e[tokens];
                for (std::size_t t = 0; t < tokens; ++t)
                    e[t] = g.w[i][best[t]];
                for (std::size_t t = 0; t < tokens; ++t) {
                    with[t] += double{y[i * tokens + t]} * double{e[t]};
                    own[t] += double{e[t]} * double{e[t]};
                }
            }
        }
        for (std::size_t t = 0; t < tokens && codec.residual; ++t) {
            const double fitted = inverse[t] > 0 && own[t] > 0 && with[t] > 0 ? with[t] / own[t] : 0.0;
            halves_at(args, l.scales_offset())[t0 + t] = to_half(static_cast<float>(fitted));
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

    /// W v for n vectors v, a multiple of 16, components `Stride` apart; sums as `kv_weighted` forms them.
    template <std::size_t Stride>
    static CRUMB_INLINE void apply_metric(const float* metric, std::size_t dims, std::size_t n,
                                          const float* v, float* to) noexcept {
        for (std::size_t i = 0; i < dims; ++i)
            for (std::size_t at = 0; at < n; at += 16) {
                double sums[16] = {};
                for (std::size_t b = 0; b < dims; ++b)
                    for (std::size_t k = 0; k < 16; ++k)
                        sums[k] += double{metric[i * dims + b]} * double{v[b * Stride + at + k]};
                for (std::size_t k = 0; k < 16; ++k)
                    to[i * Stride + at + k] = static_cast<float>(sums[k]);
            }
    }

    static CRUMB_INLINE void prepare(const kv_block_args& args, std::size_t j, grid& g) noexcept {
        const kv_codec& codec = args.layout.codec();
        const std::size_t dims = codec.dims, count = std::size_t{1} << codec.bits;
        for (std::size_t i = 0; i < dims; ++i) {
            const std::int8_t* entries = args.tables.entries + (j * dims + i) * codec.entries();
            const f32 scale = I::set1(args.tables.scales[j * dims + i]);
            for (std::size_t code = 0; code < count; code += lanes) {
                f32 e = I::load_integers(entries + (codec.additive ? code % 16 : code));
                if (codec.additive)
                    e = I::add(e, I::set1(static_cast<float>(entries[16 + code / 16])));
                I::store(g.w[i] + code, I::mul(scale, e));
            }
        }
        if (args.tables.metric != nullptr) {
            float plain[4][256];
            for (std::size_t i = 0; i < dims; ++i)
                __builtin_memcpy(plain[i], g.w[i], count * sizeof(float));
            apply_metric<256>(args.tables.metric + j * dims * dims, dims, count, plain[0], g.w[0]);
        }
        f32 most = I::zero();
        for (std::size_t i = 0; i < dims; ++i)
            for (std::size_t code = 0; code < count; code += lanes)
                most = I::max(most, I::abs(I::load(g.w[i] + code)));
        g.gain = kv_gain_of(I::maximum(most));
        float lane[lanes];
        for (std::size_t i = 0; i < lanes; ++i)
            lane[i] = static_cast<float>(i);
        const f32 first = I::load(lane), gain = I::set1(g.gain);
        for (std::size_t code = 0; code < count; code += lanes) {
            f32 e[4], squares = I::zero();
            for (std::size_t i = 0; i < 4; ++i) {
                e[i] = I::zero();
                if (i < dims)
                    e[i] = I::to_f32(I::round_to_i32(I::mul(I::load(g.w[i] + code), gain)));
                squares = I::fma(e[i], e[i], squares);
                e[i] = I::mul(e[i], I::set1(-32));
            }
            // As a float the key would not be exact.
            store_integers(g.start + code,
                           I::add_i32(I::round_to_i32(I::mul(squares, I::set1(256))),
                                      I::round_to_i32(I::add(first, I::set1(static_cast<float>(code))))));
            for (std::size_t i = 0; i < max_operands; ++i)
                store_integers(g.factor[i] + code, operand(e, i));
        }
    }
    /// Components of operand i of `add_products`, integers below 2^15.
    static CRUMB_INLINE typename I::i32 operand(const f32* x, std::size_t i) noexcept {
        if (products == 1)
            return I::round_to_i32(x[i]);
        const f32 low = x[2 * i];
        return I::add_i32(I::round_to_i32(I::select_less(low, I::zero(), I::add(low, I::set1(65536)), low)),
                          I::round_to_i32(I::mul(x[(2 * i + 1) % 4], I::set1(65536))));
    }

    /// The codes of a block in a sub-space: four registers of tokens at once.
    static CRUMB_INLINE void search(const kv_codec& codec, const float* y, const grid& g,
                                    const float* inverse, std::uint8_t* out) noexcept {
        const std::size_t count = std::size_t{1} << codec.bits;
        const f32 high = I::set1(static_cast<float>(kv_grid_residual)),
                  low = I::set1(-static_cast<float>(kv_grid_residual));
        for (std::size_t t = 0; t < tokens; t += 4 * lanes) {
            typename I::i32 r[max_operands][4];
            for (std::size_t v = 0; v < 4; ++v) {
                const std::size_t at = t + v * lanes;
                f32 x[4];
                for (std::size_t i = 0; i < 4; ++i) {
                    x[i] = I::zero();
                    if (i < codec.dims) {
                        x[i] = I::mul(I::mul(I::load(y + i * tokens + at), I::load(inverse + at)),
                                      I::set1(g.gain));
                        x[i] = I::to_f32(I::round_to_i32(I::max(I::min(x[i], high), low)));
                        x[i] = I::mul(x[i], I::set1(16));
                    }
                }
                for (std::size_t i = 0; i < max_operands; ++i)
                    r[i][v] = operand(x, i);
            }
            switch ((codec.dims + products - 1) / products) {
            case 1:
                best_of<1>(g, count, r, out + t);
                break;
            case 2:
                best_of<2>(g, count, r, out + t);
                break;
            default:
                best_of<max_operands>(g, count, r, out + t);
            }
        }
    }
    template <std::size_t Operands>
    static CRUMB_INLINE void best_of(const grid& g, std::size_t count, const typename I::i32 (*r)[4],
                                     std::uint8_t* out) noexcept {
        typename I::i32 best[4];
        CRUMB_UNROLL
        for (std::size_t v = 0; v < 4; ++v)
            best[v] = I::set1_i32(INT32_MAX);
        for (std::size_t code = 0; code < count; code += 2) {
            CRUMB_UNROLL
            for (std::size_t v = 0; v < 4; ++v) {
                typename I::i32 first = I::set1_i32(g.start[code]), second = I::set1_i32(g.start[code + 1]);
                CRUMB_UNROLL
                for (std::size_t i = 0; i < Operands; ++i) {
                    first = I::add_products(first, r[i][v], I::set1_i32(g.factor[i][code]));
                    second = I::add_products(second, r[i][v], I::set1_i32(g.factor[i][code + 1]));
                }
                best[v] = I::min_i32(best[v], I::min_i32(first, second));
            }
        }
        for (std::size_t v = 0; v < 4; ++v) {
            std::int32_t ranks[lanes];
            store_integers(ranks, best[v]);
            for (std::size_t i = 0; i < lanes; ++i)
                out[v * lanes + i] = static_cast<std::uint8_t>(ranks[i] & 255);
        }
    }

    /// A block's codes into its places of a row.
    static CRUMB_INLINE void pack(std::uint8_t* row, int bits, std::size_t block,
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
