// How product-quantized codes lie in rows, and their lookups: a register holds codes of one sub-space and as
// many tokens as it has bytes. No loops.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/pq.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// Codes of one kind. A unit is what is loaded together: a register of
/// codes of nibbles or bytes, or what `P::load_six` makes of codes of 6 bits.
template <pq_kind Kind>
struct pq_lookup<isa::CRUMB_THIS_ISA, Kind> {
    using P = typename isa::CRUMB_THIS_ISA::pq;
    using reg = typename P::reg;
    static constexpr std::size_t width = static_cast<std::size_t>(P::width);
    /// Whether registers are arrays, whose loops gain nothing from being unrolled.
    static constexpr bool loops = P::most == 1;
    /// Whether weights of a whole part fit into registers, so that its sums are worth unrolling.
    static constexpr bool keeps_weights = !loops && isa::CRUMB_THIS_ISA::registers >= 32;
    static constexpr bool nibble = Kind == pq_kind::nibble, additive = Kind == pq_kind::additive,
                          six = Kind == pq_kind::six;
    /// Registers of looked-up bytes that a unit gives.
    static constexpr int sets = six ? P::sets_64 : nibble ? 2 : 1;
    static constexpr std::size_t entries = additive ? 32 : nibble ? 16 : six ? 64 : 256;
    static constexpr std::size_t row_bytes = six ? 192 : nibble ? 128 : 256;
    static constexpr std::size_t units = kv_part_tokens / width / static_cast<std::size_t>(sets);
    /// Whether a register of nibbles holds two blocks. The halves of its looked-up bytes are then 64 tokens
    /// apart, else they follow each other.
    static constexpr bool split = width == 64 && (nibble || six);
    static constexpr int table_registers = additive ? 2
                                           : nibble ? 1
                                           : six    ? P::table_registers_64
                                                    : P::table_registers_256;

    /// Units out of n that are loaded beside each other: two, so that Arm loads pairs of registers; one
    /// where that is a line already.
    template <std::size_t N>
    static constexpr std::size_t loads_of() noexcept {
        return !six && width < 64 && N % 2 == 0 ? 2 : 1;
    }
    struct register_codes {
        reg x;
    };
    struct nibble_table {
        typename P::table_16 x;
    };
    struct additive_table {
        typename P::table_16 low, high;
    };
    struct six_table {
        typename P::table_64 x;
    };
    struct byte_table {
        typename P::table_256 x;
    };
    struct nibble_index {
        typename P::index_16 x;
    };
    struct additive_index {
        typename P::index_16 low, high;
    };
    struct six_index {
        typename P::index_64 x;
    };
    struct byte_index {
        typename P::index_256 x;
    };
    template <class Nibble, class Additive, class Six, class Byte>
    using choice =
        std::conditional_t<nibble, Nibble,
                           std::conditional_t<additive, Additive, std::conditional_t<six, Six, Byte>>>;
    using table = choice<nibble_table, additive_table, six_table, byte_table>;
    using index = choice<nibble_index, additive_index, six_index, byte_index>;
    using unit = std::conditional_t<six, typename P::six_codes, register_codes>;

    template <class T>
    static CRUMB_INLINE table load_table(const T* p) noexcept {
        if constexpr (nibble)
            return {P::load_table_16(p)};
        else if constexpr (additive)
            return {P::load_table_16(p), P::load_table_16(p + 16)};
        else if constexpr (six)
            return {P::load_table_64(p)};
        else
            return {P::load_table_256(p)};
    }
    static CRUMB_INLINE unit load(const std::uint8_t* row, std::size_t u) noexcept {
        if constexpr (six)
            return P::load_six(row, row + kv_part_tokens / 2, u);
        else
            return {P::load(row + u * width)};
    }
    /// Asks for the lines that begin with unit u; there are some if `begins_line(u)`.
    static CRUMB_INLINE void prefetch(const std::uint8_t* row, std::size_t u) noexcept {
        if constexpr (six) {
            __builtin_prefetch(row + kv_part_tokens / 2, 0, attention_locality);
            if constexpr (units == 1)
                __builtin_prefetch(row + 64, 0, attention_locality);
            __builtin_prefetch(row + u * 32, 0, attention_locality);
        } else {
            __builtin_prefetch(row + u * width, 0, attention_locality);
        }
    }
    static constexpr std::size_t unit_bytes = six ? 32 : width;
    static constexpr bool begins_line(std::size_t u) noexcept { return u * unit_bytes % 64 == 0; }
    /// Units of a line.
    static constexpr std::size_t line_units = unit_bytes < 64 ? 64 / unit_bytes : 1;
    static CRUMB_INLINE index index_of(const unit& x, int set) noexcept {
        if constexpr (nibble)
            return {set == 0 ? P::low_nibbles(x.x) : P::high_nibbles(x.x)};
        else if constexpr (additive)
            return {P::low_nibbles(x.x), P::high_nibbles(x.x)};
        else if constexpr (six)
            return {P::six_bits(x, set)};
        else
            return {P::eight_bits(x.x)};
    }
    static CRUMB_INLINE reg look_up(const table& t, const index& i) noexcept {
        if constexpr (nibble)
            return P::look_up_16(t.x, i.x);
        else if constexpr (additive)
            return P::add(P::look_up_16(t.low, i.low), P::look_up_16(t.high, i.high));
        else if constexpr (six)
            return P::look_up_64(t.x, i.x);
        else
            return P::look_up_256(t.x, i.x);
    }
    /// The token of a set's first byte.
    static constexpr std::size_t token(std::size_t u, std::size_t set) noexcept {
        if constexpr (split) // six: sets are low and high nibbles of two registers
            return (nibble ? u : set / 2) * 128 + set % 2 * 32;
        else if constexpr (nibble)
            return u * width / 32 * 64 + set * 32 + u * width % 32;
        else
            return u * width * static_cast<std::size_t>(sets) + set * width;
    }
    /// The token of the byte in the middle of the register.
    static constexpr std::size_t middle(std::size_t u, std::size_t set) noexcept {
        return token(u, set) + (split ? kv_block_tokens : width / 2);
    }
    /// Units of the blocks from `block` on, and up to it.
    static constexpr std::size_t first_unit(std::size_t block) noexcept {
        return block * kv_block_tokens * units / kv_part_tokens;
    }
    static constexpr std::size_t last_unit(std::size_t block) noexcept {
        return (block * kv_block_tokens * units + kv_part_tokens - 1) / kv_part_tokens;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
