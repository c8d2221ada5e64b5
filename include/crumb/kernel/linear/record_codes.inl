// Packed codes of formats with records as operands of a product. No loops.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/fields.inl>
#include <crumb/kernel/linear/fields.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// Codes of a block as they are packed: of register v of channels, from a group on.
template <class Format>
struct record_codes<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using shape = record_shape<Format>;
    using P = field_product<I, shape::bits>;
    using bits = field_bits<I>;
    static constexpr int rows = Format::codes::field_bits;
    static constexpr bool looks_up = has_table<Format>;
    const std::uint8_t* at;
    decltype(bits::load_table(nullptr)) table;
    /// Whether a group's rows are loaded once: the only one, and where codes have bits of several.
    static constexpr bool holds = bits::holds_rows && rows != 2 && rows != 4;
    static_assert(!holds || I::width == static_cast<int>(tile_row_bytes));
    typename I::bytes held[std::size_t{holds ? rows : 1}]; ///< of the group

    CRUMB_INLINE record_codes(const std::uint8_t* codes, decltype(table) t) noexcept : at(codes), table(t) {}

    struct entries {
        alignas(16) std::int8_t at[16] = {};
        constexpr entries() noexcept {
            for (int i = 0; i < 16 && looks_up; ++i)
                if constexpr (looks_up)
                    at[i] = static_cast<std::int8_t>(Format::codebooks[i] + record_reader<I, Format>::offset);
        }
    };
    static constexpr entries table_entries{}; ///< as registers hold them

    /// Whether those of the first and of the second half of a group come by turns.
    static constexpr bool alternates = rows == 4;
    static_assert(rows != 5 || shape::sub_groups != 2, "fours of both halves are mixed");
    /// The order of fours in which few rows are needed at a time.
    static constexpr int four_at(int i) noexcept {
        constexpr int of_five_bits[8] = {0, 1, 5, 2, 3, 6, 4, 7};
        return rows == 4 ? i % 2 * 4 + i / 2 : rows == 5 ? of_five_bits[i] : i;
    }

    CRUMB_INLINE typename I::bytes raw(int row, int v) const noexcept {
        if constexpr (holds)
            return held[row];
        else
            return I::load_bytes(at + row * static_cast<int>(tile_row_bytes) + v * I::width);
    }
    /// Before the operands of a group.
    CRUMB_INLINE void begin_group() noexcept {
        if constexpr (holds) {
            CRUMB_UNROLL
            for (int row = 0; row < rows; ++row) {
                held[row] = I::load_bytes(at + row * static_cast<int>(tile_row_bytes));
                bits::hold(held[row]);
            }
        }
    }
    template <int Four>
    CRUMB_INLINE typename P::operand operand(int, int v) const noexcept {
        const auto code = field_reader<I, rows>::template four<Four>(*this, v);
        if constexpr (looks_up)
            return P::operand_of(bits::look_up(table, code));
        else
            return P::operand_of(code);
    }
    /// One line at a time: all at once would fill the line buffers, and loads wait behind that.
    template <int Line>
    CRUMB_INLINE void prefetch() const noexcept {
        if constexpr (I::prefetch_bytes != 0 && Line < rows)
            __builtin_prefetch(at + I::prefetch_bytes + Line * static_cast<int>(tile_row_bytes));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
