// Codes without a sign and ternary digits on xsimd. Loops: lanes, where xsimd has no function for all of
// them.
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA portable
#include <crumb/isa/editor.hpp>
#endif

#include <crumb/kernel/linear/byte_shifts.inl>
#include <crumb/kernel/linear/quad_rows.inl>

namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct field_bits<isa::CRUMB_THIS_ISA> : byte_shifts<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using bytes = typename I::bytes; // two to a lane of 16 bits
    /// The bits whose product serves codes of `bits` bits in panels as well.
    static constexpr int product_bits(int bits, int) noexcept { return bits == 8 ? 8 : 4; }
    /// Whether shifts move no bit into another byte.
    static constexpr bool shifts_bytes = false;
    /// Whether rows that all fours of a group read are loaded once.
    static constexpr bool holds_rows = false;
    static CRUMB_INLINE void hold(bytes&) noexcept {}
    template <int Mask>
    static CRUMB_INLINE bytes keep(bytes x) noexcept {
        return x & bytes(static_cast<std::int16_t>(Mask * 0x0101));
    }
    /// Puts `Width` bits of x, from bit At on, at bit Shift of codes whose bits above are in place.
    template <int At, int Width, int Shift>
    static CRUMB_INLINE bytes put_below(bytes code, bytes x) noexcept {
        return code | keep<((1 << Width) - 1) << Shift>(field_bits::template shifted<At - Shift>(x));
    }
    static CRUMB_NOINLINE bytes triple(bytes x) noexcept {
        const bytes low = bytes(std::int16_t{0x00ff});
        const bytes even = x & low, odd = (x >> 8) & low;
        return ((even + even + even) & low) | ((odd + odd + odd) << 8);
    }
    static CRUMB_NOINLINE bytes digit(bytes x) noexcept {
        const bytes low = bytes(std::int16_t{0x00ff});
        const bytes even = x & low, odd = (x >> 8) & low;
        return ((even + even + even) >> 8) | ((odd + odd + odd) & bytes(std::int16_t{0x0300}));
    }
    using table = const std::int8_t*;
    static CRUMB_INLINE table load_table(const std::int8_t* entries) noexcept { return entries; }
    static CRUMB_INLINE bytes look_up(table entries, bytes nibbles) noexcept {
        return I::lookups::look_up<0>(entries, nibbles);
    }
    struct sixteen {
        std::uint8_t at[16];
    };
    static CRUMB_INLINE sixteen load_sixteen(const std::uint8_t* p) noexcept {
        sixteen x;
        __builtin_memcpy(x.at, p, sizeof x.at);
        return x;
    }
    /// (x >> Right << Left) & Mask of each byte.
    template <int Right, int Left, int Mask>
    static CRUMB_NOINLINE sixteen part(sixteen x) noexcept {
        for (auto& byte : x.at)
            byte = static_cast<std::uint8_t>((byte >> Right << Left) & Mask);
        return x;
    }
    static CRUMB_NOINLINE sixteen join(sixteen a, const sixteen& b) noexcept {
        for (int i = 0; i < 16; ++i)
            a.at[i] = static_cast<std::uint8_t>(a.at[i] | b.at[i]);
        return a;
    }
    static CRUMB_NOINLINE sixteen minus(sixteen x, int y) noexcept {
        for (auto& byte : x.at)
            byte = static_cast<std::uint8_t>(byte - y);
        return x;
    }
    /// Register v of 16 E4M3 without sign as the bits of halves, which have one more bit of exponent and
    /// seven more of mantissa: 1/256 of the numbers.
    static CRUMB_NOINLINE typename I::f32 load_e4m3_halves(const std::uint8_t* p, int v) noexcept {
        half halves[I::lanes];
        for (int i = 0; i < I::lanes; ++i)
            halves[i].bits = static_cast<std::uint16_t>((p[v * I::lanes + i] & 0x7f) << 7);
        return I::load(halves);
    }
    /// Register v of 16 powers of two; the exponent 0 is the power below that of 1.
    static CRUMB_INLINE typename I::f32 load_e8m0(const std::uint8_t* p, int v) noexcept {
        const typename I::i32 power = I::as_i32(I::load_powers(p + v * I::lanes));
        return I::as_f32(I::max_i32(power, I::set1_i32(1 << 22)));
    }
    /// Of 16 signed bytes, those of register v.
    static CRUMB_INLINE typename I::i32 widen(const sixteen& x, int v) noexcept {
        std::int32_t wide[I::lanes];
        for (int i = 0; i < I::lanes; ++i)
            wide[i] = static_cast<std::int8_t>(x.at[v * I::lanes + i]);
        return I::i32::load_unaligned(wide);
    }
    /// sum[v] += a x[0] + b x[1]: numbers of 16 channels times sums of activations. `Same`: a is b.
    template <int Vectors, bool Same>
    static CRUMB_NOINLINE void add_terms(typename I::i32* sum, const sixteen& a, const sixteen& b,
                                         const std::int16_t* x) noexcept {
        for (int v = 0; v < Vectors; ++v)
            sum[v] = sum[v] + widen(a, v) * I::i32(x[0]) + widen(b, v) * I::i32(x[1]);
    }
    static CRUMB_INLINE typename I::i32 mul_i32(typename I::i32 a, typename I::i32 b) noexcept {
        return a * b;
    }
    static CRUMB_INLINE typename I::i32 pair(typename I::i32 a, typename I::i32 b) noexcept {
        return (a & I::i32(0xffff)) | (b << 16);
    }
};

template <int Bits>
struct field_product<isa::CRUMB_THIS_ISA, Bits> : quad_rows<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    static constexpr int offset = 0;
    static constexpr int steps = 8;
    using operand = typename I::bytes;
    using acc = typename I::i32;
    using row = typename quad_rows<I>::row;
    static CRUMB_INLINE operand operand_of(typename I::bytes x) noexcept { return x; }
    static CRUMB_INLINE void store_operand(std::uint8_t* p, operand x) noexcept {
        __builtin_memcpy(p, static_cast<const void*>(&x), sizeof x);
    }
    static CRUMB_INLINE operand load_operand(const std::uint8_t* p) noexcept { return I::load_bytes(p); }
    static CRUMB_INLINE acc start() noexcept { return acc(0); }
    template <int Four>
    static CRUMB_INLINE void step(acc& s, operand w, const row& x) noexcept {
        I::int8s::step<0>(s, w, quad_rows<I>::template quad<Four>(x));
    }
    static CRUMB_INLINE typename I::i32 sum(const acc& s) noexcept { return s; }
    static CRUMB_INLINE typename I::i32 factor(typename I::i32 x) noexcept { return x; }
    static CRUMB_INLINE typename I::i32 add(typename I::i32 total, const acc& s,
                                            typename I::i32 factor) noexcept {
        return total + s * factor;
    }
    static CRUMB_INLINE void pin(acc&) noexcept {}
};

} // namespace crumb::inline CRUMB_ABI::kernel
