// Means of blocks of 32 tokens in a pass of attention over product-quantized codes: what they add to scores
// and to outputs. Loops:
//     scores    4 blocks > registers of channels > queries of a tile
//     outputs   registers of channels > blocks > queries of a tile
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct kv_means<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = M::lanes;
    static constexpr std::size_t blocks = kv_part_layout::mean_blocks;

    const attention_pass<I>& pass;
    const kv_layer_view& cache;
    std::size_t head_size;

    /// Scores of some queries, with their products with the means of the blocks begin .. end - 1.
    /// `ahead`: where as many bytes are prefetched as means and scales have, or null.
    template <int Queries>
    CRUMB_NOINLINE void add_levels(const std::byte* part, const float* s, std::size_t i, std::size_t begin,
                                   std::size_t end, const std::byte* ahead) const noexcept {
        float of_blocks[unsigned(Queries)][blocks];
        const std::size_t head = piece_bytes(cache.keys().codes_offset(), blocks);
        const float* q = pass.q + i * pass.padded;
        for (std::size_t b = begin; b < end; b += 4) {
            const half* means[4];
            f32 dots[unsigned(4 * Queries)];
            CRUMB_UNROLL
            for (std::size_t j = 0; j < 4; ++j) {
                prefetch_piece(ahead, b + j, head);
                means[j] = mean(part, cache.keys(), b + j < end ? b + j : end - 1);
            }
            CRUMB_UNROLL
            for (int j = 0; j < 4 * Queries; ++j)
                dots[j] = I::zero();
            for (std::size_t c = 0; c < head_size; c += lanes) {
                f32 m[4];
                CRUMB_UNROLL
                for (int j = 0; j < 4; ++j)
                    m[j] = M::load(means[j] + c, head_size - c);
                CRUMB_UNROLL
                for (std::size_t a = 0; a < std::size_t{Queries}; ++a) {
                    const f32 x = I::load(q + a * pass.padded + c);
                    CRUMB_UNROLL
                    for (std::size_t j = 0; j < 4; ++j)
                        dots[4 * a + j] = I::fma(x, m[j], dots[4 * a + j]);
                }
            }
            CRUMB_UNROLL
            for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
                I::sum4(dots[4 * a], dots[4 * a + 1], dots[4 * a + 2], dots[4 * a + 3], of_blocks[a] + b);
        }
        for (std::size_t a = 0; a < std::size_t{Queries}; ++a) {
            float* x = pass.scores + (i + a) * pass.stride;
            for (std::size_t b = begin; b < end; ++b) {
                const f32 level = I::set1(of_blocks[a][b]);
                CRUMB_UNROLL
                for (std::size_t t = 0; t < kv_mean_tokens; t += lanes) {
                    float* to = x + b * kv_mean_tokens + t;
                    I::store(to, I::fma(I::load(to), I::load(s + b * kv_mean_tokens + t), level));
                }
            }
        }
    }

    /// o += sum over blocks begin .. end - 1 of (sum of the block's weights) * mean, for some queries from i
    /// on. `ahead`: a part whose means and scales are prefetched, or null.
    template <int Queries>
    CRUMB_NOINLINE void add(const std::byte* part, const kv_part_weights& weights, std::size_t i,
                            std::size_t begin, std::size_t end, const std::byte* ahead) const noexcept {
        const std::size_t head = piece_bytes(cache.values().codes_offset(), pass.vectors);
        float sums[unsigned(Queries)][blocks];
        for (std::size_t a = 0; a < std::size_t{Queries}; ++a) {
            const float* p = weights.row(i + a);
            const float level =
                weights.levels == pass.maxima ? 1.0f : M::exp_of(weights.levels[i + a] - pass.maxima[i + a]);
            for (std::size_t b = begin / 4 * 4; b < end; b += 4) {
                f32 of_block[4];
                CRUMB_UNROLL
                for (std::size_t j = 0; j < 4; ++j) {
                    const float* w = p + (b + j) * kv_mean_tokens;
                    of_block[j] = I::load(w);
                    CRUMB_UNROLL
                    for (std::size_t t = lanes; t < kv_mean_tokens; t += lanes)
                        of_block[j] = I::add(of_block[j], I::load(w + t));
                }
                I::sum4(of_block[0], of_block[1], of_block[2], of_block[3], sums[a] + b);
            }
            for (std::size_t b = begin; b < end; ++b)
                sums[a][b] *= level;
        }
        float* o = pass.o + i * pass.padded;
        for (std::size_t c = 0; c < head_size; c += lanes) {
            prefetch_piece(ahead, c / lanes, head);
            f32 y[unsigned(Queries)];
            CRUMB_UNROLL
            for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
                y[a] = I::load(o + a * pass.padded + c);
            for (std::size_t b = begin; b < end; ++b) {
                const f32 m = M::load(mean(part, cache.values(), b) + c, head_size - c);
                CRUMB_UNROLL
                for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
                    y[a] = I::fma(I::set1(sums[a][b]), m, y[a]);
            }
            CRUMB_UNROLL
            for (std::size_t a = 0; a < std::size_t{Queries}; ++a)
                I::store(o + a * pass.padded + c, y[a]);
        }
    }

  private:
    static CRUMB_INLINE const half* mean(const std::byte* part, const kv_part_layout& layout,
                                         std::size_t b) noexcept {
        return reinterpret_cast<const half*>(part) + b * layout.head_size();
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
