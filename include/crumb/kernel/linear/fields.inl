// Packed codes without a sign, register by register, as what an ISA multiplies. No loops but over registers.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/fields.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// Codes of a four of a group from its register rows, see `field_codes`.
template <int Bits>
struct field_reader<isa::CRUMB_THIS_ISA, Bits> {
    using I = isa::CRUMB_THIS_ISA;
    using bytes = typename I::bytes;
    using bits = field_bits<I>;
    using codes = field_codes<Bits>;

    /// 2^Up times the codes; `rows.raw(i, v)` is register v of row i.
    template <int Four, int Up, class Source>
    static CRUMB_INLINE bytes four(const Source& rows, int v) noexcept {
        constexpr auto of = codes::pieces_of(Four);
        constexpr auto p = of.at[0];
        constexpr bool replaced = Up == 0;
        static_assert(replaced || of.count == 1);
        const bytes code = first<p.bit, p.bits, p.shift + Up, replaced>(rows.raw(p.row, v));
        if constexpr (of.count == 1)
            return code;
        else
            return with_pieces<Four, 1>(code, rows, v);
    }

  private:
    template <int Four, int At, class Source>
    static CRUMB_INLINE bytes with_pieces(bytes code, const Source& rows, int v) noexcept {
        constexpr auto of = codes::pieces_of(Four);
        constexpr auto p = of.at[At];
        const bytes more = bits::template put_below<p.bit, p.bits, p.shift>(code, rows.raw(p.row, v));
        if constexpr (At + 1 == of.count)
            return more;
        else
            return with_pieces<Four, At + 1>(more, rows, v);
    }
    /// `Replaced`: what is below the bits is replaced later, or there is nothing.
    template <int At, int Width, int Shift, bool Replaced>
    static CRUMB_INLINE bytes first(bytes x) noexcept {
        const bytes moved = bits::template shifted<At - Shift>(x);
        // Nothing is above the uppermost bits where shifts stay within bytes.
        if constexpr (bits::shifts_bytes && At + Width == 8 && Replaced)
            return moved;
        else
            return bits::template keep<((1 << Width) - 1) << Shift>(moved);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
