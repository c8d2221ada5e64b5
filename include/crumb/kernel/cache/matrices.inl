// Attention of many queries to whole blocks of 64 tokens, by products of int8 matrices: keys become a matrix
// with a scale per token and 32 channels, values one with a scale per channel and 32 tokens, queries and
// weights are rounded by the products. Loops:
//     attend        blocks of keys, a product, weights, blocks of values, a product
//     pack_keys     groups of channels > tokens
//     pack_values   groups of tokens > groups of channels > fours of tokens
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/attention/attention_pass.inl>

#include <crumb/kernel/cache/byte_rows.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct kv_matrices<I> {
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = I::lanes;
    static constexpr std::size_t quads = group_size / 4; ///< of inputs that lie beside each other
    static constexpr std::size_t unit_bytes = byte_codes::bytes;

    const attention_pass<I>& pass;
    const kv_attention_args& args;
    std::byte* queries; ///< rounded
    std::byte* weights; ///< the same
    half* scales;       ///< of the matrix that is multiplied next
    std::uint8_t* codes;

    CRUMB_INLINE kv_matrices(const attention_pass<I>& p, const kv_attention_args& a,
                             std::size_t place) noexcept
        : pass(p), args(a), queries(a.memory.rounded_queries(a.memory.state(a.scratch, place))),
          weights(a.memory.rounded_weights(a.memory.work(a.scratch))),
          scales(a.memory.matrix_scales(a.memory.work(a.scratch))),
          codes(a.memory.matrix_codes(a.memory.work(a.scratch))) {}

    void begin() const noexcept {
        const auto& by = args.products;
        by.quantize(by.functions, {pass.q, pass.queries, args.head_size, pass.padded}, queries);
    }

    /// The end of the tokens from t on, up to `stop`, that products take. A row decides that by its own
    /// position, and the rows of a pass decide alike: see `kv_rows_alike`.
    CRUMB_INLINE std::size_t end(std::size_t t, std::size_t stop) const noexcept {
        const std::size_t at = args.position + pass.row;
        const std::size_t seen = at < t ? t : at < stop ? at : stop;
        return t + (seen - t) / attention_block * attention_block;
    }

    /// Tokens t .. t + n - 1, whole blocks. load(keys, i) puts the block at t + i into `converted`.
    template <class Load>
    CRUMB_INLINE void attend(std::size_t t, std::size_t n, const Load& load) const noexcept {
        const auto& by = args.products;
        for (std::size_t i = 0; i < n; i += attention_block) {
            load(true, i);
            pack_keys(i);
        }
        by.multiply(by.functions, {scales, codes, n, args.head_size}, queries,
                    {pass.scores, pass.queries, n, pass.stride}, false);
        pass.weigh(t, n);
        by.quantize(by.functions, {pass.scores, pass.queries, n, pass.stride}, weights);
        for (std::size_t i = 0; i < n; i += attention_block) {
            load(false, i);
            pack_values(i, n / group_size);
        }
        by.multiply(by.functions, {scales, codes, args.head_size, n}, weights,
                    {pass.o, pass.queries, args.head_size, pass.padded}, true);
    }

  private:
    /// Scales for `lanes` largest magnitudes, and what to multiply by instead of dividing; 0 for 0.
    static CRUMB_INLINE void scale(f32 most, half* to, float* inverse) noexcept {
        I::store(to, I::min(I::mul(most, I::set1(1.0f / 127)), I::set1(65504.0f)));
        const f32 s = I::load(to);
        I::store(inverse, I::select_less(I::zero(), s, I::div(I::set1(1), s), I::zero()));
    }
    /// 32 floats, of which n are there.
    static CRUMB_INLINE const float* whole(const float* x, std::size_t n, float* padded) noexcept {
        if (n >= group_size)
            return x;
        for (std::size_t i = 0; i < group_size; ++i)
            padded[i] = i < n ? x[i] : 0;
        return padded;
    }

    /// 64 tokens to tiles first / 16 and following.
    void pack_keys(std::size_t first) const noexcept {
        const std::size_t groups = (args.head_size + group_size - 1) / group_size;
        for (std::size_t g = 0; g < groups; ++g) {
            const float* x = pass.converted + g * group_size;
            const std::size_t left = args.head_size - g * group_size,
                              n = left < group_size ? left : group_size;
            alignas(64) float most[attention_block], inverse[attention_block];
            for (std::size_t i = 0; i < attention_block; ++i) {
                f32 m = I::abs(I::load(x + i * pass.padded));
                for (std::size_t c = lanes; c < n; c += lanes)
                    m = I::max(m, I::abs(I::load(x + i * pass.padded + c)));
                most[i] = I::maximum(m);
            }
            const auto unit = [&](std::size_t i) { return (first + i) / tile_channels * groups + g; };
            for (std::size_t i = 0; i < attention_block; i += lanes)
                scale(I::load(most + i), scales + unit(i) * tile_channels + i % tile_channels, inverse + i);
            for (std::size_t i = 0; i < attention_block; ++i) {
                alignas(64) std::int8_t code[group_size];
                float padded[group_size];
                I::round_group(whole(x + i * pass.padded, n, padded), inverse[i], code);
                std::uint8_t* to = codes + unit(i) * unit_bytes + byte_codes::byte_of(i % tile_channels, 0);
                CRUMB_UNROLL
                for (std::size_t j = 0; j < quads; ++j)
                    __builtin_memcpy(to + j * tile_row_bytes, code + 4 * j, 4);
            }
        }
    }

    /// 64 tokens to groups first / 32 and the next, of `groups`.
    void pack_values(std::size_t first, std::size_t groups) const noexcept {
        for (std::size_t t = 0; t < attention_block; t += group_size)
            for (std::size_t c = 0; c < args.head_size; c += group_size) {
                const float* x = pass.converted + t * pass.padded + c;
                const std::size_t left = args.head_size - c, n = left < group_size ? left : group_size;
                const auto unit = [&](std::size_t i) {
                    return (c + i) / tile_channels * groups + (first + t) / group_size;
                };
                alignas(64) float inverse[group_size];
                for (std::size_t i = 0; i < n; i += lanes) {
                    f32 m = I::abs(I::load(x + i));
                    for (std::size_t j = 1; j < group_size; ++j)
                        m = I::max(m, I::abs(I::load(x + j * pass.padded + i)));
                    scale(m, scales + unit(i) * tile_channels + i % tile_channels, inverse + i);
                }
                for (std::size_t j = 0; j < quads; ++j) {
                    alignas(64) std::int8_t code[4][group_size];
                    CRUMB_UNROLL
                    for (std::size_t a = 0; a < 4; ++a)
                        round(x + (4 * j + a) * pass.padded, inverse, n, code[a]);
                    for (std::size_t i = 0; i < n; i += tile_channels)
                        byte_rows<I>::interleave(code[0] + i, code[1] + i, code[2] + i, code[3] + i,
                                                 codes + unit(i) * unit_bytes + j * tile_row_bytes);
                }
            }
    }
    /// Codes of n channels of a token.
    static CRUMB_INLINE void round(const float* x, const float* inverse, std::size_t n,
                                   std::int8_t* to) noexcept {
        alignas(64) float scaled[group_size] = {};
        for (std::size_t i = 0; i < n; i += lanes)
            I::store(scaled + i, I::mul(I::load(x + i), I::load(inverse + i)));
        I::round_group(scaled, 1.0f, to);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
