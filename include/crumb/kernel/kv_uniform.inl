// Parts of uniformly quantized codes (KIVI) in a pass of attention, as they lie: channel by channel, with the
// scales multiplied to what all tokens of a block share.
namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct kv_uniform<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;
    static constexpr std::size_t tile_channels = 4; ///< whose values are summed together

    const attention_pass<I>& pass;
    const kv_layer_view& cache;
    const kv_attention_args& args;
    float* factors;      ///< per query 2 * padded of scores, or 256 of values
    std::uint8_t* codes; ///< of a block of keys or a group of values

    CRUMB_INLINE kv_uniform(const attention_pass<I>& p, const kv_attention_args& a) noexcept
        : pass(p), cache(a.cache), args(a), factors(a.memory.factors(a.memory.work(a.scratch))),
          codes(a.memory.codes(a.memory.work(a.scratch))) {}

    /// Tokens first .. stop - 1 of the parts `here`, whose token 0 is the sequence's token t. `next`: what is
    /// read after them, or nothing.
    CRUMB_INLINE void attend(const kv_parts& here, std::size_t t, std::size_t first, std::size_t stop,
                             const kv_parts& next) const noexcept {
        score(here.keys, here.values, first, stop);
        pass.weigh(t, stop);
        add(here.values, next.keys, stop);
    }

  private:
    // q . k = sum over channels of (q d) code + q . z, where d and z are those of the token's mean block.
    CRUMB_INLINE void score(const std::byte* part, const std::byte* ahead, std::size_t first,
                            std::size_t stop) const noexcept {
        const kv_part_layout& l = cache.keys;
        for (std::size_t b = first / kv_block_tokens; b * kv_block_tokens < stop; ++b) {
            // Lines of the values, as many per channel as are all of them by the last block.
            const std::size_t each =
                pass.piece(cache.values.bytes(), kv_part_tokens / kv_block_tokens * l.head_size());
            unpack(part, l, 0, l.head_size(), b, b + 1, kv_block_tokens, ahead + b * l.head_size() * each,
                   each);
            for (std::size_t i = 0; i < pass.queries; ++i)
                for (std::size_t half_block = 0; half_block < 2; ++half_block) {
                    const std::size_t m = 2 * b + half_block;
                    const half* d = halves(part) + m * l.head_size();
                    const half* z = halves(part + l.origins_offset()) + m * l.head_size();
                    const float* q = pass.q + i * pass.padded;
                    float* f = factors + (2 * i + half_block) * pass.padded;
                    f32 dot = I::zero();
                    for (std::size_t c = 0; c < l.head_size(); c += lanes) {
                        const std::size_t n = l.head_size() - c;
                        I::store(f + c, I::mul(I::load(q + c), M::load(d + c, n)));
                        dot = I::fma(I::load(q + c), M::load(z + c, n), dot);
                    }
                    const f32 sum = I::set1(I::sum(dot));
                    float* s = pass.scores + i * pass.stride + m * kv_mean_tokens;
                    for (std::size_t t = 0; t < kv_mean_tokens; t += lanes)
                        I::store(s + t, sum);
                }
            std::size_t i = 0;
            for (; i + 4 <= pass.queries; i += 4)
                score_block<4>(i, b);
            for (; i < pass.queries; ++i)
                score_block<1>(i, b);
        }
        for (std::size_t i = 0; i < pass.queries; ++i)
            for (std::size_t t = 0; t < first; ++t)
                pass.scores[i * pass.stride + t] = -__builtin_inff();
    }

    /// Adds the sums over channels to the scores of block b.
    template <int Queries>
    CRUMB_INLINE void score_block(std::size_t i, std::size_t b) const noexcept {
        // One query needs more sums than several, because each waits for the one before.
        constexpr int vectors = Queries == 1 && lanes < 16 ? 8 : I::registers >= 32 || Queries == 1 ? 4 : 2;
        constexpr std::size_t tokens = vectors * lanes;
        for (std::size_t t = 0; t < kv_block_tokens; t += tokens) {
            f32 sum[Queries * vectors];
            CRUMB_UNROLL
            for (std::size_t a = 0; a < std::size_t{Queries}; ++a) {
                CRUMB_UNROLL
                for (std::size_t v = 0; v < std::size_t{vectors}; ++v)
                    sum[a * vectors + v] = I::load(score_at(i + a, b, t + v * lanes));
            }
            const float* f = factors + 2 * i * pass.padded;
            const std::int8_t* x = reinterpret_cast<const std::int8_t*>(codes) + t;
            for (std::size_t c = 0; c < args.head_size; ++c) {
                CRUMB_UNROLL
                for (std::size_t v = 0; v < std::size_t{vectors}; ++v) {
                    const f32 code = I::load_integers(x + c * kv_block_tokens + v * lanes);
                    const std::size_t half_block = (t + v * lanes) / kv_mean_tokens;
                    CRUMB_UNROLL
                    for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
                        sum[a * vectors + v] = I::fma(I::set1(f[(2 * a + half_block) * pass.padded + c]),
                                                      code, sum[a * vectors + v]);
                }
            }
            CRUMB_UNROLL
            for (std::size_t a = 0; a < std::size_t{Queries}; ++a) {
                CRUMB_UNROLL
                for (std::size_t v = 0; v < std::size_t{vectors}; ++v)
                    I::store(score_at(i + a, b, t + v * lanes), sum[a * vectors + v]);
            }
        }
    }
    CRUMB_INLINE float* score_at(std::size_t i, std::size_t b, std::size_t t) const noexcept {
        return pass.scores + i * pass.stride + b * kv_block_tokens + t;
    }

    // o = sum over tokens of (p d) code + p . z, where d and z are those of the channel's group.
    CRUMB_INLINE void add(const std::byte* part, const std::byte* ahead, std::size_t stop) const noexcept {
        const kv_part_layout& l = cache.values;
        const std::size_t blocks = (stop + kv_block_tokens - 1) / kv_block_tokens;
        for (std::size_t g = 0; g < l.groups(); ++g) {
            const std::size_t c = g * kv_group_channels;
            const std::size_t channels =
                l.head_size() - c < kv_group_channels ? l.head_size() - c : kv_group_channels;
            const std::size_t each = pass.piece(cache.keys.bytes(), l.head_size());
            unpack(part, l, c, c + channels, 0, blocks, kv_part_tokens,
                   ahead == nullptr ? nullptr : ahead + c * each, each);
            const half* d = halves(part) + g * kv_part_tokens;
            const half* z = halves(part + l.origins_offset()) + g * kv_part_tokens;
            for (std::size_t i = 0; i < pass.queries; ++i) {
                const float* p = pass.scores + i * pass.stride;
                float* w = factors + i * kv_part_tokens;
                f32 dot = I::zero();
                std::size_t t = 0;
                // `weigh` has filled the last register up with zeros.
                for (; t < stop; t += lanes) {
                    I::store(w + t, I::mul(I::load(p + t), I::load(d + t)));
                    dot = I::fma(I::load(p + t), I::load(z + t), dot);
                }
                for (; t < blocks * kv_block_tokens; t += lanes)
                    I::store(w + t, I::zero());
                add_group(i, c, channels, blocks * kv_block_tokens, I::sum(dot));
            }
        }
    }

    /// o[c + j] += base + sum over tokens of w * code.
    CRUMB_INLINE void add_group(std::size_t i, std::size_t c, std::size_t channels, std::size_t tokens,
                                float base) const noexcept {
        const float* w = factors + i * kv_part_tokens;
        float* o = pass.o + i * pass.padded + c;
        for (std::size_t j = 0; j < channels; j += tile_channels) {
            const std::int8_t* x[tile_channels];
            for (std::size_t k = 0; k < tile_channels; ++k)
                x[k] = reinterpret_cast<const std::int8_t*>(codes) +
                       (j + k < channels ? j + k : channels - 1) * kv_part_tokens;
            f32 sum[2 * tile_channels];
            CRUMB_UNROLL
            for (std::size_t k = 0; k < 2 * tile_channels; ++k)
                sum[k] = I::zero();
            for (std::size_t t = 0; t < tokens; t += 2 * lanes) {
                CRUMB_UNROLL
                for (std::size_t k = 0; k < 2 * tile_channels; ++k) {
                    const std::size_t at = t + k / tile_channels * lanes;
                    sum[k] = I::fma(I::load(w + at), I::load_integers(x[k % tile_channels] + at), sum[k]);
                }
            }
            float out[tile_channels];
            I::sum4(I::add(sum[0], sum[4]), I::add(sum[1], sum[5]), I::add(sum[2], sum[6]),
                    I::add(sum[3], sum[7]), out);
            for (std::size_t k = 0; k < tile_channels && j + k < channels; ++k)
                o[j + k] += base + out[k];
        }
    }

    /// Codes of channels begin .. end - 1 and blocks first .. last - 1 as bytes, a row of `stride` per
    /// channel. Asks for `each` bytes from `ahead` on per channel, or for nothing.
    CRUMB_INLINE void unpack(const std::byte* part, const kv_part_layout& l, std::size_t begin,
                             std::size_t end, std::size_t first, std::size_t last, std::size_t stride,
                             const std::byte* ahead, std::size_t each) const noexcept {
        const std::uint8_t* rows = reinterpret_cast<const std::uint8_t*>(part + l.codes_offset());
        for (std::size_t c = begin; c < end; ++c) {
            pass.prefetch_piece(ahead, c - begin, each);
            kv_unpack<I>::run(rows + c * l.row_bytes(), l.codec().bits, first, last,
                              codes + (c - begin) * stride);
        }
    }
    static CRUMB_INLINE const half* halves(const std::byte* p) noexcept {
        return reinterpret_cast<const half*>(p);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
