// The nearest codes of a product-quantized cache in one sub-space, as kv_search.hpp says. Loops of a search
// of 64 tokens: centroids > 4 registers of tokens.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// The centroids of sub-space j, and what keys (see kv_search.hpp) are made of, per code.
template <std::same_as<isa::CRUMB_THIS_ISA> I>
class kv_code_search<I> {
    using M = math<I>;
    using f32 = typename I::f32;
    using i32 = typename I::i32;
    static constexpr std::size_t lanes = M::lanes, tokens = kv_block_tokens;
    static constexpr std::size_t products = static_cast<std::size_t>(I::products);
    static constexpr std::size_t max_operands = 4 / products;

  public:
    CRUMB_INLINE kv_code_search(const kv_codec& codec, const pq_tables& tables, std::size_t j) noexcept
        : codec_(codec) {
        prepare(tables, j);
    }

    /// Component i of W times the centroid of a code.
    CRUMB_INLINE float centroid(std::size_t i, std::uint8_t code) const noexcept { return w_[i][code]; }

    /// The codes of y times `inverse` of each token.
    CRUMB_INLINE void run(const float* y, const float* inverse, std::uint8_t* out) const noexcept {
        const std::size_t count = std::size_t{1} << codec_.bits;
        const f32 high = I::set1(static_cast<float>(kv_grid_residual)),
                  low = I::set1(-static_cast<float>(kv_grid_residual));
        for (std::size_t t = 0; t < tokens; t += 4 * lanes) {
            i32 r[max_operands][4];
            for (std::size_t v = 0; v < 4; ++v) {
                const std::size_t at = t + v * lanes;
                f32 x[4];
                for (std::size_t i = 0; i < 4; ++i) {
                    x[i] = I::zero();
                    if (i < codec_.dims) {
                        x[i] = I::mul(I::mul(I::load(y + i * tokens + at), I::load(inverse + at)),
                                      I::set1(gain_));
                        x[i] = I::to_f32(I::round_to_i32(I::max(I::min(x[i], high), low)));
                        x[i] = I::mul(x[i], I::set1(16));
                    }
                }
                for (std::size_t i = 0; i < max_operands; ++i)
                    r[i][v] = operand(x, i);
            }
            const std::size_t operands = (codec_.dims + products - 1) / products;
            if constexpr (max_operands > 2)
                best_of<0>(operands, count, r, out + t);
            else if (operands == 1)
                best_of<1>(operands, count, r, out + t);
            else
                best_of<2>(operands, count, r, out + t);
        }
    }

    /// W v for n vectors v, a multiple of 16, components `stride` apart; sums as `kv_weighted` forms them.
    static CRUMB_NOINLINE void apply_metric(const float* metric, std::size_t dims, std::size_t n,
                                            const float* v, std::size_t stride, float* to) noexcept {
        for (std::size_t i = 0; i < dims; ++i)
            for (std::size_t at = 0; at < n; at += 16) {
                double sums[16] = {};
                for (std::size_t b = 0; b < dims; ++b)
                    for (std::size_t k = 0; k < 16; ++k)
                        sums[k] += double{metric[i * dims + b]} * double{v[b * stride + at + k]};
                for (std::size_t k = 0; k < 16; ++k)
                    to[i * stride + at + k] = static_cast<float>(sums[k]);
            }
    }

  private:
    CRUMB_INLINE void prepare(const pq_tables& tables, std::size_t j) noexcept {
        const std::size_t dims = codec_.dims, count = std::size_t{1} << codec_.bits;
        for (std::size_t i = 0; i < dims; ++i) {
            const std::int8_t* entries = tables.entries + (j * dims + i) * codec_.entries();
            const f32 scale = I::set1(tables.scales[j * dims + i]);
            for (std::size_t code = 0; code < count; code += lanes) {
                f32 e = I::load_integers(entries + (codec_.additive ? code % 16 : code));
                if (codec_.additive)
                    e = I::add(e, I::set1(static_cast<float>(entries[16 + code / 16])));
                I::store(w_[i] + code, I::mul(scale, e));
            }
        }
        if (tables.metric != nullptr) {
            float plain[4][256];
            for (std::size_t i = 0; i < dims; ++i)
                __builtin_memcpy(plain[i], w_[i], count * sizeof(float));
            apply_metric(tables.metric + j * dims * dims, dims, count, plain[0], 256, w_[0]);
        }
        f32 most = I::zero();
        for (std::size_t i = 0; i < dims; ++i)
            for (std::size_t code = 0; code < count; code += lanes)
                most = I::max(most, I::abs(I::load(w_[i] + code)));
        gain_ = kv_gain_of(I::maximum(most));
        float lane[lanes];
        for (std::size_t i = 0; i < lanes; ++i)
            lane[i] = static_cast<float>(i);
        const f32 first = I::load(lane), gain = I::set1(gain_);
        for (std::size_t code = 0; code < count; code += lanes) {
            f32 e[4], squares = I::zero();
            for (std::size_t i = 0; i < 4; ++i) {
                e[i] = I::zero();
                if (i < dims)
                    e[i] = I::to_f32(I::round_to_i32(I::mul(I::load(w_[i] + code), gain)));
                squares = I::fma(e[i], e[i], squares);
                e[i] = I::mul(e[i], I::set1(-32));
            }
            // As a float the key would not be exact.
            M::store(start_ + code,
                     I::add_i32(I::round_to_i32(I::mul(squares, I::set1(256))),
                                I::round_to_i32(I::add(first, I::set1(static_cast<float>(code))))));
            for (std::size_t i = 0; i < max_operands; ++i)
                M::store(factor_[i] + code, operand(e, i));
        }
    }
    /// Components of operand i of `add_products`, integers below 2^15.
    static CRUMB_INLINE i32 operand(const f32* x, std::size_t i) noexcept {
        if (products == 1)
            return I::round_to_i32(x[i]);
        const f32 low = x[2 * i];
        return I::add_i32(I::round_to_i32(I::select_less(low, I::zero(), I::add(low, I::set1(65536)), low)),
                          I::round_to_i32(I::mul(x[(2 * i + 1) % 4], I::set1(65536))));
    }

    /// `Operands`: how many there are, or 0 for a loop over them.
    template <std::size_t Operands>
    CRUMB_INLINE void best_of(std::size_t operands, std::size_t count, const i32 (*r)[4],
                              std::uint8_t* out) const noexcept {
        i32 best[4];
        CRUMB_UNROLL
        for (std::size_t v = 0; v < 4; ++v)
            best[v] = I::set1_i32(INT32_MAX);
        for (std::size_t code = 0; code < count; code += 2) {
            const auto add = [&](i32& first, i32& second, std::size_t i, std::size_t v) {
                first = I::add_products(first, r[i][v], I::set1_i32(factor_[i][code]));
                second = I::add_products(second, r[i][v], I::set1_i32(factor_[i][code + 1]));
            };
            if constexpr (Operands == 0) {
                for (std::size_t v = 0; v < 4; ++v) {
                    i32 first = I::set1_i32(start_[code]), second = I::set1_i32(start_[code + 1]);
                    for (std::size_t i = 0; i < operands; ++i)
                        add(first, second, i, v);
                    best[v] = I::min_i32(best[v], I::min_i32(first, second));
                }
            } else {
                CRUMB_UNROLL
                for (std::size_t v = 0; v < 4; ++v) {
                    i32 first = I::set1_i32(start_[code]), second = I::set1_i32(start_[code + 1]);
                    CRUMB_UNROLL
                    for (std::size_t i = 0; i < Operands; ++i)
                        add(first, second, i, v);
                    best[v] = I::min_i32(best[v], I::min_i32(first, second));
                }
            }
        }
        for (std::size_t v = 0; v < 4; ++v) {
            std::int32_t ranks[lanes];
            M::store(ranks, best[v]);
            for (std::size_t i = 0; i < lanes; ++i)
                out[v * lanes + i] = static_cast<std::uint8_t>(ranks[i] & 255);
        }
    }

    kv_codec codec_;
    float w_[4][256];
    std::int32_t start_[256];                ///< 256 sum of e[i]^2 + code
    std::int32_t factor_[max_operands][256]; ///< -32 e[i]
    float gain_;
};

} // namespace crumb::inline CRUMB_ABI::kernel
