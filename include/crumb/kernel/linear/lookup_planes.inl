// Indices whose bits lie in planes: bit-selects merge them to nibbles, in an order of bits that each register
// row has a table for. No loops but over registers.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/expand.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <int Bits>
struct product_of<isa::CRUMB_THIS_ISA, plane_codes<Bits>> {
    using type = isa::CRUMB_THIS_ISA::lookups;
};

template <class Format, class Product, int Vectors>
requires codes_in_planes<typename Format::codes>
struct packed_operands<isa::CRUMB_THIS_ISA, Format, Product, Vectors>
    : packed_reader<isa::CRUMB_THIS_ISA, Format, Vectors> {
    using base = packed_reader<isa::CRUMB_THIS_ISA, Format, Vectors>;
    using I = isa::CRUMB_THIS_ISA;
    using bytes = typename I::bytes;
    using operand_type = typename Product::operand;
    using index = typename Format::codes;
    static constexpr bool row_free = false;
    typename Product::table tables[index::tables];

    CRUMB_INLINE packed_operands(const linear_args& args, pass_tiles pass, int first = 0) noexcept
        : base(args, pass, first) {
        CRUMB_UNROLL
        for (std::size_t row = 0; row < index::tables; ++row)
            tables[row] = Product::load_table(args.codebooks + row * index::table_entries);
    }

    CRUMB_INLINE void begin_group() noexcept { base::scales.begin_group(); }
    /// Register row `row` of nibbles.
    CRUMB_INLINE bytes cells(int row, int v) const noexcept {
        const bytes pairs = base::raw(row / 2, v), others = beside_pairs(row, v);
        return row % 2 == 0 ? I::template select_bits<0xcc>(pairs, others)
                            : I::template select_bits<0xcc>(others, pairs);
    }
    template <int X>
    CRUMB_INLINE operand_type expand(bytes cells, int row) const noexcept {
        // Where lookups ignore upper bits, nothing has to be masked.
        if constexpr (requires { Product::look_up(tables[0], cells); })
            return Product::look_up(tables[row], X == 0 ? cells : I::template shift_right<4>(cells));
        else
            return Product::template look_up<X>(tables[row], cells);
    }
    template <int X>
    CRUMB_INLINE operand_type operand(int row, int v) const noexcept {
        return expand<X>(cells(row, v), row);
    }
    template <int X, class Multiplier>
    CRUMB_INLINE auto requantized(int row, int v, Multiplier m) const noexcept {
        return Product::requantize_operand(operand<X>(row, v), m);
    }

  private:
    /// The halves of nibbles beside the pairs, for rows 0 and 1, or for rows 2 and 3.
    CRUMB_INLINE bytes beside_pairs(int row, int v) const noexcept {
        const bytes third = base::planes.raw(0, v);
        if constexpr (index::planes == 1) {
            return third;
        } else {
            const bytes fourth = base::planes.raw(1, v);
            return row < 2 ? I::template select_bits<0x55>(third, fourth)
                           : I::template select_bits<0x55>(fourth, third);
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
