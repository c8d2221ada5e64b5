// Indices into codebooks: bits of a tile's rows and the group's selector become nibbles, and one table lookup
// makes each nibble the entry that is multiplied. No loops but over registers.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/expand.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <int Bits, int Selectors>
struct product_of<isa::CRUMB_THIS_ISA, index_codes<Bits, Selectors>> {
    using type = isa::CRUMB_THIS_ISA::lookups;
};

/// As the primary, for the layouts of `index_codes`.
template <class Format, class Product, int Vectors>
requires indexed_codes<typename Format::codes>
struct packed_operands<isa::CRUMB_THIS_ISA, Format, Product, Vectors>
    : packed_reader<isa::CRUMB_THIS_ISA, Format, Vectors> {
    using base = packed_reader<isa::CRUMB_THIS_ISA, Format, Vectors>;
    using I = isa::CRUMB_THIS_ISA;
    using bytes = typename I::bytes;
    using operand_type = typename Product::operand;
    using index = typename Format::codes;
    using base::raw;
    static constexpr bool paired = index::paired; // one table for either index of a nibble
    /// Whether bytes are looked up that hold one index of two bits and the selector, in the order in which
    /// the bits of the register row need no shift. Saves the masks.
    static constexpr bool direct =
        index::bits == 2 && index::selector_bits == 2 && requires(half* p) { Product::selectors(p); };
    static constexpr bool two_tables = paired || direct;
    static constexpr bool row_free = !two_tables;
    typename Product::table tables[two_tables ? 2 : 1];
    /// Of the group, in both nibbles or, if `direct`, at bit 0 beside zeros.
    bytes selectors[index::selector_bits != 0 ? Vectors : 1];

    CRUMB_INLINE packed_operands(const linear_args& args, pass_tiles pass, int first = 0) noexcept
        : base(args, pass, first) {
        tables[0] = Product::load_table(args.codebooks);
        if constexpr (two_tables)
            tables[1] = Product::load_table(args.codebooks + index::table_entries);
    }

    CRUMB_INLINE void begin_group() noexcept {
        base::scales.begin_group();
        if constexpr (index::selector_bits != 0) {
            CRUMB_UNROLL
            for (int v = 0; v < Vectors; ++v)
                selectors[v] = spread(base::scales.of(v));
        }
    }
    /// Register row `row` of nibbles.
    CRUMB_INLINE bytes cells(int row, int v) const noexcept {
        if constexpr (index::bits == 4)
            return raw(row, v);
        else if constexpr (paired)
            return raw(row / 2, v);
        else {
            const bytes pairs = row % 2 == 0 ? raw(row / 2, v) : I::template shift_left<2>(raw(row / 2, v));
            return I::template select_bits<0xcc>(pairs, below_pairs(row, v));
        }
    }
    template <int X>
    CRUMB_INLINE operand_type expand(bytes cells, int row) const noexcept {
        return Product::template look_up<X>(tables[paired ? row % 2 : 0], cells);
    }
    template <int X>
    CRUMB_INLINE operand_type operand(int row, int v) const noexcept {
        if constexpr (direct) {
            const bytes pairs = X == 0 ? raw(row / 2, v) : I::template shift_right<4>(raw(row / 2, v));
            const bytes& s = selectors[v];
            return row % 2 == 0
                       ? Product::template look_up_pair<0x0c>(tables[0], pairs, s)
                       : Product::template look_up_pair<0x03>(tables[1], pairs, I::template shift_left<2>(s));
        } else {
            return expand<X>(cells(row, v), row);
        }
    }
    template <int X, class Multiplier>
    CRUMB_INLINE auto requantized(int row, int v, Multiplier m) const noexcept {
        return Product::requantize_operand(operand<X>(row, v), m);
    }

  private:
    template <class Unit>
    static CRUMB_INLINE bytes spread(const Unit* scales) noexcept {
        if constexpr (direct)
            return Product::selectors(scales);
        else
            return I::spread_low_nibbles(scales);
    }
    /// The two low bits of each nibble.
    CRUMB_INLINE bytes below_pairs(int row, int v) const noexcept {
        if constexpr (index::bits == 2) {
            return selectors[v];
        } else {
            const bytes low = raw(2, v);
            return I::template select_bits<0x22>(row == 0   ? low
                                                 : row == 1 ? I::template shift_right<1>(low)
                                                 : row == 2 ? I::template shift_left<1>(low)
                                                            : I::template shift_right<2>(low),
                                                 selectors[v]);
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
