// Sums of activations times what minima and offsets of codes are multiplied with. Loops:
//     numbers of a block > rows > registers of channels
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/fields.inl>
#include <crumb/kernel/linear/records.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// For panels with `Subs` sums per group, see `record_shape`.
template <int Subs>
struct record_term_sums<isa::CRUMB_THIS_ISA, Subs> {
    using I = isa::CRUMB_THIS_ISA;
    using f32 = typename I::f32;
    using i32 = typename I::i32;
    static constexpr int per_tile = static_cast<int>(tile_channels) / I::lanes;

    /// Sums of a block's activations as integers are multiplied with them: of 16 or 32, two to a number where
    /// `add_products` takes two.
    template <int Rows>
    struct sums {
        static constexpr int count = (Subs == 2 ? 16 : 8) / I::products;
        /// A dependent name, since not all ISAs have pairs.
        using bits = std::conditional_t<(Subs >= 0), field_bits<I>, void>;
        alignas(16) std::int32_t at[unsigned(Rows)][unsigned(count)];

        explicit CRUMB_INLINE sums(const std::int16_t* of) noexcept {
            for (int r = 0; r < Rows; ++r, of += 16) {
                if constexpr (I::products == 1) {
                    for (int p = 0; p < count; ++p)
                        at[r][p] = Subs == 2 ? of[p] : of[2 * p] + of[2 * p + 1];
                } else if constexpr (Subs == 2) {
                    __builtin_memcpy(at[r], of, sizeof at[r]);
                } else {
                    bits::pair_sums(of, at[r]);
                }
            }
        }
    };
    /// sum[r][v] += numbers `of` times the sums of activations.
    template <int Rows, int Vectors, std::size_t Count>
    static CRUMB_INLINE void add(float (record_terms::*of)[Count][tile_channels], const record_terms* terms,
                                 int first, const sums<Rows>& x, i32* sum) noexcept {
        for (int p = 0; p < sums<Rows>::count; ++p) {
            i32 t[unsigned(Vectors)];
            CRUMB_UNROLL
            for (int v = 0; v < Vectors; ++v)
                t[v] = I::as_i32(I::load(at(terms[(first + v) / per_tile].*of, p, first + v)));
            CRUMB_UNROLL
            for (int r = 0; r < Rows; ++r) {
                CRUMB_UNROLL
                for (int v = 0; v < Vectors; ++v)
                    sum[r * Vectors + v] =
                        I::add_products(sum[r * Vectors + v], t[v], I::set1_i32(x.at[r][p]));
            }
        }
    }
    /// total[r][v] += terms of group g times the sums of activations, of which a row has one or two.
    template <int Rows, int Vectors>
    static CRUMB_INLINE void add_floats(const record_terms* terms, int first, int g, const float* x,
                                        f32* total) noexcept {
        constexpr int subs = Subs == 0 ? 1 : Subs;
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r) {
            CRUMB_UNROLL
            for (int i = 0; i < subs * Vectors; ++i) {
                const int sub = i / Vectors, v = i % Vectors;
                const record_terms& t = terms[(first + v) / per_tile];
                f32& to = total[r * Vectors + v];
                to = I::fma(I::set1(x[r * subs + sub]), I::load(at(t.terms, g * subs + sub, first + v)), to);
            }
        }
    }

    /// Row i of some numbers, for register v of channels.
    static CRUMB_INLINE const float* at(const float (*rows)[tile_channels], int i, int v) noexcept {
        return rows[i] + v % per_tile * I::lanes;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
