// Packed scales and minima as what the loops over groups multiply with. Loops: groups of a block > registers.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/avx512/fields.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class Format>
struct record_reader<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using f32 = typename I::f32;
    using i32 = typename I::i32;
    using bits = field_bits<I>;
    using records = typename Format::records;
    using shape = record_shape<Format>;
    using P = field_product<I, shape::bits>;
    using sixteen = std::uint8_t __attribute__((vector_size(16)));
    static constexpr int vectors = static_cast<int>(tile_channels) / I::lanes;
    static constexpr int subs = shape::sub_groups;
    static constexpr bool minima = has_minima<Format>;
    /// What is subtracted from integers: they come with an offset.
    static constexpr int offset = shape::offset + P::offset;

    /// The terms of a block of 256 with integer scales.
    static CRUMB_INLINE void integers(const std::uint8_t* record, record_terms& to) noexcept {
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v) {
            const auto* units = reinterpret_cast<const half*>(record) + v * I::lanes;
            I::store(to.unit + v * I::lanes, I::load(units));
            if constexpr (minima)
                I::store(to.minimum_unit + v * I::lanes, I::sub(I::zero(), I::load(units + tile_channels)));
        }
        if constexpr (subs != 0)
            numbers(record, to, static_cast<const records*>(nullptr));
    }

    /// The terms of groups of 32 of a block with scales that are floats, from number `at` on.
    static CRUMB_INLINE void floats(const std::uint8_t* record, int groups, int at,
                                    record_terms& to) noexcept {
        for (int g = 0; g < groups; ++g) {
            CRUMB_UNROLL
            for (int sub = 0; sub < subs; ++sub) {
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v) {
                    const int i = (at + g) * subs + sub;
                    const f32 d = scale(record, g * subs + sub, v);
                    I::store(to.factors[i] + v * I::lanes, I::mul(d, I::set1(unit * float(shape::step))));
                    if constexpr (minima)
                        I::store(to.terms[i] + v * I::lanes, I::load(reinterpret_cast<const half*>(record) +
                                                                     tile_channels + v * I::lanes));
                    else
                        I::store(to.terms[i] + v * I::lanes, I::mul(d, I::set1(-unit * float(offset))));
                }
            }
        }
    }

  private:
    static constexpr float unit = table_unit_of<Format>;

    static CRUMB_INLINE f32 scale(const std::uint8_t* record, int group, int v) noexcept {
        if constexpr (std::is_same_v<typename Format::scales::value, half>) {
            return I::load(reinterpret_cast<const half*>(record) + v * I::lanes);
        } else if constexpr (std::is_same_v<typename Format::scales::value, e8m0>) {
            // The exponent 0 is the power below that of 1.
            const i32 power = I::as_i32(I::load_powers(record + v * I::lanes));
            return I::as_f32(I::max_i32(power, I::set1_i32(1 << 22)));
        } else {
            // A half has one more bit of exponent and seven more of mantissa.
            half halves[I::lanes];
            for (int i = 0; i < I::lanes; ++i)
                halves[i].bits = static_cast<std::uint16_t>(
                    (record[group * static_cast<int>(tile_channels) + v * I::lanes + i] & 0x7f) << 7);
            return I::mul(I::load(halves), I::set1(256.0f));
        }
    }

    static CRUMB_INLINE sixteen load(const std::uint8_t* p) noexcept {
        sixteen x;
        __builtin_memcpy(&x, p, sizeof x);
        return x;
    }
    /// The i-th scales of a block, and the terms that offsets make of them.
    static CRUMB_INLINE void factor(int i, sixteen x, record_terms& to) noexcept {
        alignas(16) std::int8_t bytes[16];
        __builtin_memcpy(bytes, &x, sizeof x);
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            I::store(to.factors[i] + v * I::lanes,
                     I::as_f32(P::factor(bits::load_i32(bytes + v * I::lanes))));
    }
    /// The terms of groups 2 p and 2 p + 1 of 16, or of group p of 32 twice.
    static CRUMB_INLINE void pair_of_terms(int p, sixteen x, sixteen y, int by, record_terms& to) noexcept {
        alignas(16) std::int8_t first[16], second[16];
        __builtin_memcpy(first, &x, sizeof x);
        __builtin_memcpy(second, &y, sizeof y);
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v) {
            i32 a = bits::load_i32(first + v * I::lanes), b = bits::load_i32(second + v * I::lanes);
            if (by != 1) {
                a = bits::mul_i32(a, I::set1_i32(by));
                b = bits::mul_i32(b, I::set1_i32(by));
            }
            if constexpr (I::products == 2) {
                I::store(to.terms[p] + v * I::lanes, I::as_f32(bits::pair(a, b)));
            } else if constexpr (subs == 2) {
                I::store(to.terms[2 * p] + v * I::lanes, I::as_f32(a));
                I::store(to.terms[2 * p + 1] + v * I::lanes, I::as_f32(b));
            } else {
                I::store(to.terms[p] + v * I::lanes, I::as_f32(a));
            }
        }
    }
    /// Numbers of 6 bits: low nibbles of a pair, and where its upper bits are.
    static CRUMB_INLINE void six_bits(const std::uint8_t* record, int pair, sixteen& a, sixteen& b) noexcept {
        const std::uint8_t* at =
            record + records::unit_bytes + pair / 2 * 3 * static_cast<int>(tile_channels);
        const sixteen low = load(at + pair % 2 * static_cast<int>(tile_channels));
        const sixteen both = load(at + 2 * tile_channels);
        const sixteen high = pair % 2 == 0 ? both : both >> 4;
        a = (low & 15) | (high << 4 & 0x30);
        b = (low >> 4) | (high << 2 & 0x30);
    }

    template <class Records>
    requires std::is_same_v<Records, six_bit_minima_records>
    static CRUMB_INLINE void numbers(const std::uint8_t* record, record_terms& to, const Records*) noexcept {
        CRUMB_UNROLL
        for (int g = 0; g < 8; ++g) {
            sixteen scale, minimum;
            six_bits(record, g, scale, minimum);
            factor(g, scale, to);
            pair_of_terms(g, minimum, minimum, 1, to);
        }
    }
    template <std::size_t Groups>
    static CRUMB_INLINE void numbers(const std::uint8_t* record, record_terms& to,
                                     const six_bit_scale_records<Groups>*) noexcept {
        CRUMB_UNROLL
        for (int p = 0; p < static_cast<int>(Groups / 2); ++p) {
            sixteen a, b;
            six_bits(record, p, a, b);
            a = a - 32;
            b = b - 32;
            factor(2 * p, a, to);
            factor(2 * p + 1, b, to);
            if constexpr (offset != 0 && Groups == 16) {
                pair_of_terms(p, a, b, -offset, to);
            } else if constexpr (offset != 0) {
                pair_of_terms(2 * p, a, a, -offset, to);
                pair_of_terms(2 * p + 1, b, b, -offset, to);
            }
        }
    }
    template <class Records>
    requires std::is_same_v<Records, byte_records>
    static CRUMB_INLINE void numbers(const std::uint8_t* record, record_terms& to, const Records*) noexcept {
        CRUMB_UNROLL
        for (int p = 0; p < 8; ++p) {
            const std::uint8_t* at = record + records::unit_bytes + 2 * p * static_cast<int>(tile_channels);
            const sixteen a = load(at), b = load(at + tile_channels);
            factor(2 * p, a, to);
            factor(2 * p + 1, b, to);
            pair_of_terms(p, a, b, -offset, to);
        }
    }
    template <class Records>
    requires std::is_same_v<Records, nibble_records>
    static CRUMB_INLINE void numbers(const std::uint8_t* record, record_terms& to, const Records*) noexcept {
        CRUMB_UNROLL
        for (int p = 0; p < 8; ++p) {
            const std::uint8_t* at = record + records::unit_bytes + 2 * p * static_cast<int>(tile_channels);
            const sixteen a = load(at), b = load(at + tile_channels);
            factor(2 * p, a & 15, to);
            factor(2 * p + 1, b & 15, to);
            pair_of_terms(p, a >> 4, b >> 4, 1, to);
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
