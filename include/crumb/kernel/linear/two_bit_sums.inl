// Sums of codes of two bits times activations where instructions multiply bytes of any size with signed ones,
// and codes stay where they are in their bytes. Loops:
//     of    rows of bytes, two at a time > codes of a byte
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/fields.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct two_bit_sums<I> {
    using i32 = typename I::i32;

    /// The sum of codes, 0 to 3, times the activations of a block of 256: code i of a byte is multiplied as
    /// 4^i times itself, and the sum of those is divided.
    template <class P>
    static CRUMB_INLINE i32 of(const std::uint8_t* rows, const std::int8_t* x, lines_ahead& ahead) noexcept {
        // Of every second row each: an addition waits for the one before.
        i32 even[4], odd[4];
        CRUMB_UNROLL
        for (int i = 0; i < 4; ++i)
            even[i] = odd[i] = P::start();
        for (int row = 0; row < static_cast<int>(record_inputs / 16); row += 2) {
            ahead.next();
            add_row<P, 0>(rows, x, even);
            ahead.next();
            add_row<P, 0>(rows + tile_row_bytes, x + 16, odd);
            rows += 2 * tile_row_bytes;
            x += 32;
        }
        CRUMB_UNROLL
        for (int i = 0; i < 4; ++i)
            even[i] = I::add_i32(even[i], odd[i]);
        return P::whole_pairs(even);
    }

  private:
    template <class P, int At>
    static CRUMB_INLINE void add_row(const std::uint8_t* row, const std::int8_t* x, i32* sum) noexcept {
        P::dot(sum[At], field_bits<I>::template keep<3 << 2 * At>(I::load_bytes(row)),
               I::load_quad(x + 4 * At));
        if constexpr (At < 3)
            add_row<P, At + 1>(row, x, sum);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
