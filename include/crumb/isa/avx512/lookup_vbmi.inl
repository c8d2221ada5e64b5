// Indices into codebooks for vpermb, which looks up six bits of a byte and ignores the two above: no masks,
// and with a table for each place, indices are looked up where they lie. No loops but over registers.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vbmi
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/expand.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <int Bits, int Selectors>
struct product_of<isa::CRUMB_THIS_ISA, index_codes<Bits, Selectors>> {
    using type = isa::CRUMB_THIS_ISA::lookups;
};

/// As in lookup.inl. What a register of six bits holds, and so the tables, depends on the format:
///   4 bits               the nibble
///   3 bits, a selector   the selector at bit 4, the pair of register row r at bit 2 (r even) or 0, the
///   lowest
///                        bit of the index at one of the other two
///   2 bits, a selector   the selector at bit 4, the pair of row r at bit 2 (r even) or 0, that of the other
///   row
///                        in the rest: one register for two rows
///   2 bits               the pair where it lies
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
    static constexpr int table_count = index::bits == 4 ? 1 : index::bits == 3 ? 4 : index::paired ? 3 : 2;
    typename Product::table tables[unsigned(table_count)];
    bytes selectors[index::selector_bits != 0 ? Vectors : 1]; ///< of the group, at bit 4

    CRUMB_INLINE packed_operands(const linear_args& args, pass_tiles pass, int first = 0) noexcept
        : base(args, pass, first) {
        load_tables(args.codebooks, std::make_integer_sequence<int, table_count>{});
    }

    CRUMB_INLINE void begin_group() noexcept {
        base::scales.begin_group();
        if constexpr (index::selector_bits != 0) {
            CRUMB_UNROLL
            for (int v = 0; v < Vectors; ++v)
                selectors[v] = I::template shift_left<4>(I::spread(base::scales.of(v)));
        }
    }
    template <int X>
    CRUMB_INLINE operand_type operand(int row, int v) const noexcept {
        if constexpr (index::bits == 4)
            return Product::look_up(tables[0], halves<X>(row, v));
        else if constexpr (index::bits == 3)
            return Product::look_up(tables[row],
                                    row % 2 == 0 ? with_low<X, 0x0c>(row, v) : with_low<X, 0x03>(row, v));
        else if constexpr (index::paired)
            return X == 1 && row % 2 != 0 ? Product::look_up(tables[2], raw(row / 2, v))
                                          : Product::look_up(tables[row % 2], halves<X>(row / 2, v));
        else
            return Product::look_up(tables[row % 2], select<0x30>(selectors[v], halves<X>(row / 2, v)));
    }
    template <int X, class Multiplier>
    CRUMB_INLINE auto requantized(int row, int v, Multiplier m) const noexcept {
        return Product::requantize_operand(operand<X>(row, v), m);
    }

  private:
    template <int Mask>
    static CRUMB_INLINE bytes select(bytes a, bytes b) noexcept {
        return I::template select_bits<Mask>(a, b);
    }
    /// A register row with its low (X = 0) or its high nibbles at bit 0.
    template <int X>
    CRUMB_INLINE bytes halves(int row, int v) const noexcept {
        return X == 0 ? raw(row, v) : I::template shift_right<4>(raw(row, v));
    }
    template <int X, int Mask>
    CRUMB_INLINE bytes with_low(int row, int v) const noexcept {
        return select<Mask>(halves<X>(row / 2, v), select<0x10>(selectors[v], halves<X>(2, v)));
    }

    /// The entry of the table set that six bits stand for in table T.
    template <int T>
    static constexpr std::size_t entry_of(std::size_t six) noexcept {
        if constexpr (index::bits == 4)
            return six & 15;
        else if constexpr (index::paired)
            return six >> (T == 0 ? 2 : T == 1 ? 0 : 4) & 3;
        const std::size_t pair = six >> (T % 2 == 0 ? 2 : 0) & 3;
        if constexpr (index::bits == 3)
            return 4 * pair + 2 * (six >> index::low_of(T) & 1) + (six >> 4 & 1);
        return 4 * pair + (six >> 4 & 3);
    }
    template <int... T>
    CRUMB_INLINE void load_tables(const std::int8_t* entries, std::integer_sequence<int, T...>) noexcept {
        // Of paired indices, the tables of the lower one begin with the codebook itself.
        if constexpr (index::paired)
            entries += index::table_entries;
        ((tables[T] = Product::load_table(entries, order<T>.at)), ...);
    }
    struct entry_order {
        alignas(64) std::uint8_t at[64];
    };
    template <int T>
    static constexpr entry_order order = [] {
        entry_order o{};
        for (std::size_t six = 0; six < 64; ++six)
            o.at[six] = static_cast<std::uint8_t>(entry_of<T>(six));
        return o;
    }();
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
