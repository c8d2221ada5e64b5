// Packed scales and minima as what the loops over groups multiply with. Loops: groups of a block > registers.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/fields.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// Integers of a group of 32 with 16 channels each: the scales of its sums, and the minima where records have
/// some.
template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct record_integers<I> {
    using bits = field_bits<I>;
    using sixteen = typename bits::sixteen;
    sixteen scale[2], minimum[2]; ///< of groups of 16; of a group of 32 the first

    template <class Records>
    requires std::is_same_v<Records, six_bit_minima_records>
    static CRUMB_INLINE record_integers of(const std::uint8_t* record, int g, int i,
                                           const Records*) noexcept {
        record_integers x;
        six_bits(record + Records::unit_bytes + g / 2 * six_bit_bytes, i, x.scale[0], x.minimum[0]);
        return x;
    }
    template <std::size_t Groups>
    static CRUMB_INLINE record_integers of(const std::uint8_t* record, int g, int i,
                                           const six_bit_scale_records<Groups>*) noexcept {
        using records = six_bit_scale_records<Groups>;
        record_integers x;
        sixteen pair[2];
        // Of 8 groups two pairs belong to four of them.
        const std::uint8_t* at = record + records::unit_bytes;
        if constexpr (Groups == 16)
            six_bits(at + g / 2 * six_bit_bytes, i, pair[0], pair[1]);
        else
            six_bits(at + g / 4 * six_bit_bytes, g / 2 % 2, pair[0], pair[1]);
        x.scale[0] = bits::minus(Groups == 16 || i == 0 ? pair[0] : pair[1], records::offset);
        x.scale[1] = bits::minus(pair[1], records::offset);
        return x;
    }
    template <class Records>
    requires std::is_same_v<Records, byte_records>
    static CRUMB_INLINE record_integers of(const std::uint8_t* record, int g, int i,
                                           const Records*) noexcept {
        record_integers x;
        const std::uint8_t* at = record + Records::unit_bytes + 2 * (g + i) * static_cast<int>(tile_channels);
        x.scale[0] = bits::load_sixteen(at);
        x.scale[1] = bits::load_sixteen(at + tile_channels);
        return x;
    }
    template <class Records>
    requires std::is_same_v<Records, nibble_records>
    static CRUMB_INLINE record_integers of(const std::uint8_t* record, int g, int i,
                                           const Records*) noexcept {
        record_integers x;
        const std::uint8_t* at = record + Records::unit_bytes + 2 * (g + i) * static_cast<int>(tile_channels);
        CRUMB_UNROLL
        for (int sub = 0; sub < 2; ++sub) {
            const sixteen both = bits::load_sixteen(at + sub * static_cast<int>(tile_channels));
            x.scale[sub] = bits::template part<0, 0, 15>(both);
            x.minimum[sub] = bits::template part<4, 0, 15>(both);
        }
        return x;
    }

  private:
    /// Two pairs of numbers of 6 bits, see `six_bit_records`.
    static constexpr int six_bit_bytes = 3 * static_cast<int>(tile_channels);
    static CRUMB_INLINE void six_bits(const std::uint8_t* pairs, int pair, sixteen& a, sixteen& b) noexcept {
        const sixteen low = bits::load_sixteen(pairs + pair * static_cast<int>(tile_channels));
        const sixteen high = bits::load_sixteen(pairs + 2 * tile_channels);
        if (pair == 0) {
            a = bits::template part<0, 4, 0x30>(high);
            b = bits::template part<0, 2, 0x30>(high);
        } else {
            a = bits::template part<0, 0, 0x30>(high);
            b = bits::template part<2, 0, 0x30>(high);
        }
        a = bits::join(a, bits::template part<0, 0, 15>(low));
        b = bits::join(b, bits::template part<4, 0, 15>(low));
    }
};

template <class Format>
struct record_reader<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using f32 = typename I::f32;
    using i32 = typename I::i32;
    using bits = field_bits<I>;
    using records = typename Format::records;
    using shape = record_shape<Format>;
    using P = field_product<I, shape::bits>;
    static constexpr int vectors = static_cast<int>(tile_channels) / I::lanes;
    static constexpr int subs = shape::sub_groups;
    static constexpr bool minima = has_minima<Format>;
    /// What is subtracted from integers: they come with an offset, but for entries of a table where a product
    /// takes signs.
    static constexpr int offset = has_table<Format> && takes_signs<P> ? 0 : shape::offset + P::offset;
    static constexpr record_sums use = shape::sum_factor == 0 ? record_sums::terms
                                       : offset == 0          ? record_sums::none
                                                              : record_sums::starts;
    static_assert(use != record_sums::starts || P::offset == 0);

    /// Group g + i, g even.
    static CRUMB_INLINE record_integers<I> group(const std::uint8_t* record, int g, int i) noexcept {
        return record_integers<I>::of(record, g, i, static_cast<const records*>(nullptr));
    }
    /// sum[v] += what minima, or scales where codes have an offset, are multiplied with, of a group.
    static CRUMB_INLINE void add_terms(const record_integers<I>& x, const std::int16_t* sums,
                                       i32* sum) noexcept {
        const auto& of = minima ? x.minimum : x.scale;
        bits::template add_terms<vectors, subs == 1>(sum, of[0], of[subs - 1], sums);
    }
    static CRUMB_INLINE f32 unit(const std::uint8_t* record, int v) noexcept {
        return I::load(reinterpret_cast<const half*>(record) + v * I::lanes);
    }
    /// What sums of minima are multiplied with.
    static CRUMB_INLINE f32 minimum_unit(const std::uint8_t* record, int v) noexcept {
        return I::sub(I::zero(),
                      I::load(reinterpret_cast<const half*>(record) + tile_channels + v * I::lanes));
    }

    /// The terms of a block of 256 with integer scales, for panels by a `Block` of `record_block`.
    template <class Block>
    static CRUMB_INLINE void integers(const std::uint8_t* record, record_terms& to) noexcept {
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v) {
            I::store(to.unit + v * I::lanes, unit(record, v));
            if constexpr (minima)
                I::store(to.minimum_unit + v * I::lanes, minimum_unit(record, v));
        }
        if constexpr (subs != 0) {
            record_integers<I> before; // of the group before
            CRUMB_UNROLL
            for (int g = 0; g < 8; ++g) {
                const auto x = group(record, g - g % 2, g % 2);
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v) {
                    CRUMB_UNROLL
                    for (int sub = 0; sub < subs; ++sub) {
                        const i32 scale = bits::widen(x.scale[sub], v);
                        if constexpr (Block::narrow)
                            put(to.factors[g * subs + sub], v, P::run_factor(scale));
                        else
                            put(to.factors[g * subs + sub], v, P::factor(scale));
                    }
                    if constexpr (minima)
                        put_terms<1>(to.terms, before.minimum, x.minimum, g, v);
                    else if constexpr (offset != 0 && !Block::starts)
                        put_terms<-offset>(to.terms, before.scale, x.scale, g, v);
                    if constexpr (minima && Block::middle != 0)
                        put_terms<Block::middle>(to.middles, before.scale, x.scale, g, v);
                }
                before = x;
            }
        }
    }

    /// The terms of groups of 32 of a block with scales that are floats, from number `at` on.
    static CRUMB_INLINE void floats(const std::uint8_t* record, int groups, int at,
                                    record_terms& to) noexcept {
        for (int g = 0; g < groups; ++g) {
            CRUMB_UNROLL
            for (int sub = 0; sub < subs; ++sub) {
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v) {
                    const f32 d = scale(record, g * subs + sub, v);
                    const int i = (at + g) * subs + sub;
                    I::store(to.factors[i] + v * I::lanes, factor(d));
                    if constexpr (use == record_sums::terms)
                        I::store(to.terms[i] + v * I::lanes, term(record, d, v));
                }
            }
        }
    }

    /// The scale of a group (of 16, or the block's), in units of `scale_unit`.
    static CRUMB_INLINE f32 scale(const std::uint8_t* record, int group, int v) noexcept {
        if constexpr (std::is_same_v<typename Format::scales::value, half>) {
            return I::load(reinterpret_cast<const half*>(record) + v * I::lanes);
        } else if constexpr (std::is_same_v<typename Format::scales::value, e8m0>) {
            return bits::load_e8m0(record, v);
        } else {
            return bits::load_e4m3_halves(record + group * static_cast<int>(tile_channels), v);
        }
    }
    static constexpr float scale_unit = std::is_same_v<typename Format::scales::value, ue4m3> ? 256 : 1;
    /// What a sum of codes is multiplied with.
    static CRUMB_INLINE f32 factor(f32 scale) noexcept {
        constexpr float by = scale_unit * table_unit_of<Format>;
        return by == 1 ? scale : I::mul(scale, I::set1(by));
    }
    /// What a sum of activations is multiplied with.
    static CRUMB_INLINE f32 term(const std::uint8_t* record, f32 scale, int v) noexcept {
        if constexpr (minima)
            return I::load(reinterpret_cast<const half*>(record) + tile_channels + v * I::lanes);
        else
            return I::mul(scale, I::set1(-scale_unit * table_unit_of<Format> * float(offset)));
    }

  private:
    static CRUMB_INLINE void put(float* row, int v, i32 x) noexcept {
        I::store(row + v * I::lanes, I::as_f32(x));
    }
    /// `By` times numbers of group g and the one before, in the order of `record_term_sums::sums`.
    template <int By>
    static CRUMB_INLINE void put_terms(float (*to)[tile_channels], const typename bits::sixteen* before,
                                       const typename bits::sixteen* of, int g, int v) noexcept {
        if constexpr (I::products == 2 && subs == 2) {
            put(to[g], v, bits::pair(times<By>(of[0], v), times<By>(of[1], v)));
        } else if constexpr (I::products == 2) {
            if (g % 2 == 1)
                put(to[g / 2], v, bits::pair(times<By>(before[0], v), times<By>(of[0], v)));
        } else {
            CRUMB_UNROLL
            for (int sub = 0; sub < subs; ++sub)
                put(to[g * subs + sub], v, times<By>(of[sub], v));
        }
    }
    template <int By>
    static CRUMB_INLINE i32 times(typename bits::sixteen x, int v) noexcept {
        const i32 wide = bits::widen(x, v);
        if constexpr (By == 1)
            return wide;
        else
            return bits::mul_i32(wide, I::set1_i32(By));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
