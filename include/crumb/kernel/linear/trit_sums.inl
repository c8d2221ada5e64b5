// Sums of ternary digits times activations. Where instructions multiply bytes of any size with signed ones,
// digits need not be taken out. Loops:
//     of           three stretches of rows whose digits are equally far apart > rows of bytes > digits
//     taken_out    rows of bytes > digits
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/fields.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct trit_sums<I> {
    using i32 = typename I::i32;

    /// The sum of digits, 0 to 2, times the activations of a block: sums of products by P::dot. Digit d of a
    /// byte is (3 r[d] - r[d + 1]) / 256, r[d] = 3^d byte modulo 256, so the sum of digit d times x[d] is
    /// that of r[d] (3 x[d] - x[d - 1]), divided by 256.
    template <class P>
    static CRUMB_INLINE i32 of(const std::uint8_t* rows, const std::int8_t* x, lines_ahead& ahead) noexcept {
        // Two of each would wait for one another: five are added to them in the ten cycles that a row takes.
        i32 own[3] = {P::start(), P::start(), P::start()}, before[3] = {P::start(), P::start(), P::start()};
        add_rows<P, 0, 8, 5>(rows, x, ahead, own, before);
        add_rows<P, 8, 4, 5>(rows, x, ahead, own, before);
        add_rows<P, 12, 1, 4>(rows, x, ahead, own, before);
        const i32 sum = I::add_i32(I::add_i32(own[0], own[1]), own[2]);
        const i32 less = I::add_i32(I::add_i32(before[0], before[1]), before[2]);
        return P::whole_trits(sum, less);
    }

    /// The same by any product, of digits that are taken out one by one.
    template <class P>
    static CRUMB_INLINE i32 taken_out(const std::uint8_t* rows, const std::int8_t* x) noexcept {
        using bits = field_bits<I>;
        typename P::acc s[5];
        CRUMB_UNROLL
        for (int d = 0; d < 5; ++d)
            s[d] = P::start();
        for (int row = 0; row < 13; ++row) {
            auto raw = I::load_bytes(rows + row * static_cast<int>(tile_row_bytes));
            CRUMB_UNROLL
            for (int d = 0; d < 5; ++d) {
                if (row == 12 && d == 4)
                    break;
                P::template step<0>(s[d], P::operand_of(bits::digit(raw)),
                                    P::load_four(x + 4 * trit_codes::four_of(row, d)));
                raw = bits::triple(raw);
            }
        }
        i32 sum = P::sum(s[0]);
        CRUMB_UNROLL
        for (int d = 1; d < 5; ++d)
            sum = I::add_i32(sum, P::sum(s[d]));
        return sum;
    }

  private:
    /// `Rows` rows of bytes from row `First` on, in which `Digits` digits are equally far apart.
    template <class P, int First, int Rows, int Digits>
    static CRUMB_INLINE void add_rows(const std::uint8_t* rows, const std::int8_t* x, lines_ahead& ahead,
                                      i32* own, i32* before) noexcept {
        constexpr int step = 4 * (trit_codes::four_of(First, 1) - trit_codes::four_of(First, 0));
        rows += First * static_cast<int>(tile_row_bytes);
        x += 4 * trit_codes::four_of(First, 0);
        for (int row = 0; row < Rows; ++row) {
            const std::uint8_t* at = rows + row * static_cast<int>(tile_row_bytes);
            ahead.next();
            typename I::bytes r = I::load_bytes(at);
            typename I::quad four = I::load_quad(x + 4 * row);
            add<P>(own[0], r, four);
            CRUMB_UNROLL
            for (int d = 1; d <= Digits; ++d) {
                r = field_bits<I>::triple(r);
                P::pin(r);
                add<P>(before[d % 3], r, four);
                if (d < Digits) {
                    four = I::load_quad(x + 4 * row + step * d);
                    add<P>(own[d % 3], r, four);
                }
            }
        }
    }
    /// Pinned, or compilers multiply bytes by powers of 3 and copy sums from register to register.
    template <class P, class Quad>
    static CRUMB_INLINE void add(i32& s, typename P::operand r, Quad four) noexcept {
        P::dot(s, r, four);
        P::pin(s);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
