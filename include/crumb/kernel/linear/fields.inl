// Packed codes without a sign, register by register, as what an ISA multiplies. No loops but over registers.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/avx512/fields.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// Codes of four f of a group from its register rows, see `field_codes`.
template <int Bits>
struct field_reader<isa::CRUMB_THIS_ISA, Bits> {
    using I = isa::CRUMB_THIS_ISA;
    using bytes = typename I::bytes;
    using bits = field_bits<I>;

    template <int Four>
    static CRUMB_INLINE bytes four(const bytes* rows) noexcept {
        if constexpr (Bits == 1) {
            return bits::template keep<1>(moved<-Four>(rows[0]));
        } else if constexpr (Bits == 2) {
            return bits::template keep<3>(moved<-pair_of(Four)>(rows[Four / 4]));
        } else if constexpr (Bits == 3) {
            return bits::template keep<7>(
                I::template select_bits<4>(moved<2 - Four>(rows[2]), moved<-pair_of(Four)>(rows[Four / 4])));
        } else {
            const bytes low = moved<(Four < 4 ? 0 : -4)>(rows[Four % 4]);
            if constexpr (Bits == 4)
                return bits::template keep<15>(low);
            else if constexpr (Bits == 5)
                return bits::template keep<31>(I::template select_bits<16>(moved<4 - Four>(rows[4]), low));
            else
                return bits::template keep<63>(
                    I::template select_bits<48>(moved<4 - pair_of(Four)>(rows[4 + Four / 4]), low));
        }
    }

  private:
    static constexpr int pair_of(int four) noexcept { return four % 4 * 2; }
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
