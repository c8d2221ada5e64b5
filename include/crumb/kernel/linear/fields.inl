// Packed codes without a sign, register by register, as what an ISA multiplies. No loops but over registers.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/fields.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// Codes of four f of a group from its register rows, see `field_codes`.
template <int Bits>
struct field_reader<isa::CRUMB_THIS_ISA, Bits> {
    using I = isa::CRUMB_THIS_ISA;
    using bytes = typename I::bytes;
    using bits = field_bits<I>;

    /// `rows.raw(i, v)` is register v of row i.
    template <int Four, class Source>
    static CRUMB_INLINE bytes four(const Source& rows, int v) noexcept {
        if constexpr (Bits == 1) {
            return kept<1, Four, 1>(rows.raw(0, v));
        } else if constexpr (Bits == 2) {
            return kept<2, pair_of(Four), 3>(rows.raw(Four / 4, v));
        } else if constexpr (Bits == 3) {
            return I::template select_bits<4>(moved<2 - Four>(rows.raw(2, v)),
                                              kept<2, pair_of(Four), 3>(rows.raw(Four / 4, v)));
        } else {
            const bytes low = kept<4, (Four < 4 ? 0 : 4), 15>(rows.raw(Four % 4, v));
            if constexpr (Bits == 4)
                return low;
            else if constexpr (Bits == 5)
                return I::template select_bits<16>(moved<4 - Four>(rows.raw(4, v)), low);
            else
                return I::template select_bits<48>(moved<4 - pair_of(Four)>(rows.raw(4 + Four / 4, v)), low);
        }
    }

  private:
    static constexpr int pair_of(int four) noexcept { return four % 4 * 2; }
    /// The `Width` bits at bit `At`.
    template <int Width, int At, int Mask>
    static CRUMB_INLINE bytes kept(bytes x) noexcept {
        // Nothing is above the uppermost bits where shifts stay within bytes.
        if constexpr (bits::shifts_bytes && At + Width == 8)
            return moved<-At>(x);
        else
            return bits::template keep<Mask>(moved<-At>(x));
    }
    /// Shifted left, or right where `By` is negative; what crosses bytes is not kept.
    template <int By>
    static CRUMB_INLINE bytes moved(bytes x) noexcept {
        if constexpr (By > 0)
            return I::template shift_left<By>(x);
        else if constexpr (By < 0)
            return I::template shift_right<-By>(x);
        else
            return x;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
