// Codes of 3 bits from a table of what six bits mean. No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vbmi
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// vpermb takes no notice of the upper two bits of an index. The other six are two neighbouring fours' codes,
/// the lower bits of both below their upper ones, so that two lookups take the place of what masks them, and
/// one choice of bits and two shifts serve both.
template <>
struct field_reader<isa::CRUMB_THIS_ISA, 3> {
    using I = isa::CRUMB_THIS_ISA;
    using bytes = typename I::bytes;

    template <int Four, class Source>
    static CRUMB_INLINE bytes four(const Source& rows, int v) noexcept {
        constexpr int up = 4 - Four / 2 * 2; // from the upper bits of fours 4 and 5
        const bytes low = rows.raw(Four / 4, v), high = rows.raw(2, v);
        const bytes index = I::template select_bits<15>(moved<Four % 4 < 2 ? 0 : -4>(low), moved<up>(high));
        return _mm512_permutexvar_epi8(index, _mm512_load_si512(codes<Four % 2>::table.at));
    }

  private:
    /// The first or second code of all indices.
    template <int Which>
    struct codes {
        alignas(64) std::uint8_t at[64] = {};
        constexpr codes() noexcept {
            for (int i = 0; i < 64; ++i)
                at[i] = static_cast<std::uint8_t>((i >> 2 * Which & 3) | (i >> (4 + Which) & 1) << 2);
        }
        static const codes table;
    };
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
template <int Which>
inline constexpr field_reader<isa::CRUMB_THIS_ISA, 3>::codes<Which>
    field_reader<isa::CRUMB_THIS_ISA, 3>::codes<Which>::table{};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
