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
        const auto code = field_reader<I, rows>::template four<Four, shape::up>(*this, v);
        if constexpr (looks_up)
            return P::operand_of(bits::look_up(table, code));
        else
            return P::operand_of(code);
    }
};

/// The codes for one row, which ask for those that are read later.
template <class Format>
struct single_codes<isa::CRUMB_THIS_ISA, Format> : record_codes<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using base = record_codes<I, Format>;
    lines_ahead& ahead;

    CRUMB_INLINE single_codes(const std::uint8_t* codes, decltype(base::table) t, lines_ahead& lines) noexcept
        : base(codes, t), ahead(lines) {}

    template <int Line>
    CRUMB_INLINE void prefetch() const noexcept {
        if constexpr (I::prefetch_bytes != 0 && Line < base::rows)
            ahead.next();
    }
};

/// What the loops over tiles of a format share.
template <class Format>
struct record_tile<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using shape = record_shape<Format>;
    using P = field_product<I, shape::bits>;
    using bits = field_bits<I>;
    static constexpr int vectors = static_cast<int>(tile_channels) / I::lanes; ///< registers of a tile
    static constexpr bool trits = codes_of_blocks<typename Format::codes>;
    static constexpr bool minima = has_minima<Format>;
    static constexpr std::size_t block_groups = block_inputs<Format> / group_size;
    static constexpr std::size_t block_bytes = (trits ? 1 : block_groups) * Format::codes::bytes;

    static CRUMB_INLINE std::size_t blocks_of(const linear_args& args) noexcept {
        return args.groups / block_groups;
    }
    /// Of the groups of a block from `g` on that have activations.
    static CRUMB_INLINE int groups_left(const linear_args& args, std::size_t g, std::size_t most) noexcept {
        const std::size_t left = args.x_groups - g;
        return static_cast<int>(left < most ? left : most);
    }
    static CRUMB_INLINE float factor(const linear_args& args) noexcept {
        return has_tensor_scale<Format> ? args.tensor_scale : 1.0f;
    }
    static CRUMB_INLINE auto table() noexcept {
        return bits::load_table(record_codes<I, Format>::table_entries.at);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
