// Blocks of 64 tokens to codes.
namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct kv_encode_run<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
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
            for (std::size_t t = 0; t < kv_block_tokens; t += kv_mean_tokens)
                nearest(args, t);
        }
    }

  private:
    static CRUMB_INLINE half* halves_at(const kv_block_args& args, std::size_t offset) noexcept {
        return reinterpret_cast<half*>(args.part + offset);
    }
    static CRUMB_INLINE float number(half h) noexcept {
        half all[lanes] = {h};
        float out[lanes];
        I::store(out, I::load(all));
        return out[0];
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
                round(x, n, 0, number(d), -127, 127, rounded);
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
        round(x, n, number(z), number(d), 0, most, codes);
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
                for (std::size_t b = 0; b < kv_block_tokens; b += kv_mean_tokens) {
                    for (std::size_t i = 0; i < kv_mean_tokens; ++i)
                        group[i] = x[(b + i) * size + c];
                    const std::size_t at = (first + b) / kv_mean_tokens * size + c;
                    uniform_group(group, kv_mean_tokens, bits, halves_at(args, 0)[at],
                                  halves_at(args, l.origins_offset())[at], rounded);
                    for (std::size_t i = 0; i < kv_mean_tokens; ++i)
                        set_kv_code(codes + c * l.row_bytes(), bits, first + b + i,
                                    static_cast<unsigned>(rounded[i]));
                }
            }
            return;
        }
        for (std::size_t t = 0; t < kv_block_tokens; ++t) {
            for (std::size_t g = 0; g < l.groups(); ++g) {
                const std::size_t begin = g * kv_group_channels;
                const std::size_t n = size - begin < kv_group_channels ? size - begin : kv_group_channels;
                const std::size_t at = g * kv_page_tokens + first + t;
                uniform_group(x + t * size + begin, n, bits, halves_at(args, 0)[at],
                              halves_at(args, l.origins_offset())[at], rounded);
                for (std::size_t i = 0; i < n; ++i)
                    set_kv_code(codes + (begin + i) * l.row_bytes(), bits, first + t,
                                static_cast<unsigned>(rounded[i]));
            }
        }
    }

    // ---- product quantization ----
    static constexpr std::size_t tokens = kv_mean_tokens;

    /// 32 tokens from token `first` of the block on, as kv_search.hpp says. The lanes are tokens.
    static void nearest(const kv_block_args& args, std::size_t first) noexcept {
        const kv_part_layout& l = args.layout;
        const kv_codec& codec = l.codec();
        const std::size_t size = l.head_size(), t0 = args.block * kv_block_tokens + first;
        float* rest = args.scratch; // [size][tokens]
        take_means(args, first, rest);
        float inverse[tokens];
        double with[tokens] = {}, own[tokens] = {};
        for (std::size_t c = 0; c < size && codec.residual; ++c)
            for (std::size_t t = 0; t < tokens; ++t)
                own[t] += double{rest[c * tokens + t]} * double{rest[c * tokens + t]};
        for (std::size_t t = 0; t < tokens; ++t) {
            float scale = 1;
            if (codec.residual) {
                scale = static_cast<float>(__builtin_sqrt(own[t] / static_cast<double>(size)));
                scale = scale < kv_least_scale ? 0.0f : scale;
            }
            inverse[t] = scale > 0 ? 1 / scale : 0.0f;
            own[t] = 0;
        }
        std::uint8_t* codes = reinterpret_cast<std::uint8_t*>(args.part + l.codes_offset());
        for (std::size_t j = 0; j < l.rows(); ++j) {
            float y[4 * tokens], w[4 * 256];
            weighted(args, j, rest + j * codec.dims * tokens, y, w);
            std::uint8_t best[tokens];
            search(codec, y, w, inverse, best);
            for (std::size_t t = 0; t < tokens; ++t)
                set_kv_code(codes + j * l.row_bytes(), codec.bits, t0 + t, best[t]);
            for (std::size_t i = 0; i < codec.dims && codec.residual; ++i) {
                for (std::size_t t = 0; t < tokens; ++t) {
                    const double e{w[i * 256 + best[t]]};
                    with[t] += double{y[i * tokens + t]} * e;
                    own[t] += e * e;
                }
            }
        }
        for (std::size_t t = 0; t < tokens && codec.residual; ++t) {
            const double fitted = inverse[t] > 0 && own[t] > 0 && with[t] > 0 ? with[t] / own[t] : 0.0;
            halves_at(args, l.scales_offset())[t0 + t] = to_half(static_cast<float>(fitted));
        }
    }

    /// Tokens less their mean, channel by channel; writes the means.
    static CRUMB_INLINE void take_means(const kv_block_args& args, std::size_t first, float* rest) noexcept {
        const std::size_t size = args.layout.head_size();
        const half* from = args.from + first * size;
        half* means = halves_at(args, 0) + (args.block * kv_block_tokens + first) / tokens * size;
        for (std::size_t c = 0; c < size; c += lanes) {
            const std::size_t n = size - c < lanes ? size - c : lanes;
            f32 mean = I::zero();
            if (args.layout.codec().residual) {
                for (std::size_t t = 0; t < tokens; ++t)
                    mean = I::add(mean, M::load(from + t * size + c, n));
                mean = I::div(mean, I::set1(static_cast<float>(tokens)));
                half rounded[lanes];
                I::store(rounded, I::min(I::max(mean, I::set1(-65504)), I::set1(65504)));
                for (std::size_t i = 0; i < n; ++i)
                    means[c + i] = rounded[i];
                mean = I::load(rounded);
            }
            for (std::size_t t = 0; t < tokens; ++t) {
                float row[lanes];
                I::store(row, I::sub(M::load(from + t * size + c, n), mean));
                for (std::size_t i = 0; i < n; ++i)
                    rest[(c + i) * tokens + t] = row[i];
            }
        }
    }

    /// y of 32 tokens and w of all codes in sub-space j.
    static CRUMB_INLINE void weighted(const kv_block_args& args, std::size_t j, const float* rest, float* y,
                                      float* w) noexcept {
        const kv_codec& codec = args.layout.codec();
        const std::size_t dims = codec.dims, count = std::size_t{1} << codec.bits;
        for (std::size_t i = 0; i < dims; ++i) {
            if (args.tables.metric != nullptr) {
                for (std::size_t t = 0; t < tokens; ++t) {
                    float x[4] = {};
                    for (std::size_t b = 0; b < dims; ++b)
                        x[b] = rest[b * tokens + t];
                    y[i * tokens + t] = kv_weighted(codec, args.tables, j, i, x);
                }
                for (unsigned code = 0; code < count; ++code)
                    w[i * 256 + code] = kv_weighted_centroid(codec, args.tables, j, i, code);
                continue;
            }
            const std::int8_t* entries = args.tables.entries + (j * dims + i) * codec.entries();
            const float scale = args.tables.scales[j * dims + i];
            for (std::size_t t = 0; t < tokens; ++t)
                y[i * tokens + t] = rest[i * tokens + t];
            if (codec.additive) {
                for (std::size_t high = 0; high < 16; ++high)
                    for (std::size_t low = 0; low < 16; ++low)
                        w[i * 256 + 16 * high + low] =
                            scale * static_cast<float>(entries[low] + entries[16 + high]);
            } else {
                for (std::size_t code = 0; code < count; ++code)
                    w[i * 256 + code] = scale * static_cast<float>(entries[code]);
            }
        }
    }

    /// The codes of 32 tokens in a sub-space. Scores are integers below 2^24: exact as floats.
    static CRUMB_INLINE void search(const kv_codec& codec, const float* y, const float* w,
                                    const float* inverse, std::uint8_t* out) noexcept {
        const std::size_t dims = codec.dims, count = std::size_t{1} << codec.bits;
        f32 most = I::zero();
        for (std::size_t i = 0; i < dims; ++i)
            for (std::size_t code = 0; code < count; code += lanes)
                most = I::max(most, I::abs(I::load(w + i * 256 + code)));
        const float gain = kv_gain_of(I::maximum(most));
        // Per code -2 e[i], then the sum of e[i]^2.
        float grid[5 * 256];
        for (std::size_t code = 0; code < count; code += lanes) {
            f32 squares = I::zero();
            for (std::size_t i = 0; i < dims; ++i) {
                const f32 e = I::to_f32(I::round_to_i32(I::mul(I::load(w + i * 256 + code), I::set1(gain))));
                I::store(grid + i * 256 + code, I::mul(e, I::set1(-2)));
                squares = I::fma(e, e, squares);
            }
            I::store(grid + 4 * 256 + code, squares);
        }
        const f32 high = I::set1(static_cast<float>(kv_grid_residual)),
                  low = I::set1(-static_cast<float>(kv_grid_residual));
        for (std::size_t t = 0; t < tokens; t += lanes) {
            f32 r[4];
            for (std::size_t i = 0; i < 4; ++i) {
                r[i] = I::zero();
                if (i < dims) {
                    const f32 x =
                        I::mul(I::mul(I::load(y + i * tokens + t), I::load(inverse + t)), I::set1(gain));
                    r[i] = I::to_f32(I::round_to_i32(I::max(I::min(x, high), low)));
                }
            }
            switch (dims) {
            case 1:
                best_of<1>(grid, count, r, out + t);
                break;
            case 2:
                best_of<2>(grid, count, r, out + t);
                break;
            default:
                best_of<4>(grid, count, r, out + t);
            }
        }
    }
    template <int Dims>
    static CRUMB_INLINE void best_of(const float* grid, std::size_t count, const f32* r,
                                     std::uint8_t* out) noexcept {
        f32 least = I::set1(__builtin_inff()), best = I::zero();
        for (std::size_t code = 0; code < count; ++code) {
            f32 score = I::set1(grid[4 * 256 + code]);
            CRUMB_UNROLL
            for (int i = 0; i < Dims; ++i)
                score = I::fma(I::set1(grid[static_cast<std::size_t>(i) * 256 + code]), r[i], score);
            best = I::select_less(score, least, I::set1(static_cast<float>(code)), best);
            least = I::min(score, least);
        }
        float codes[lanes];
        I::store(codes, best);
        for (std::size_t i = 0; i < lanes; ++i)
            out[i] = static_cast<std::uint8_t>(codes[i]);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
