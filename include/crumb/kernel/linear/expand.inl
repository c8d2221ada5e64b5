// From a bit layout to the ISA's products: the only place that knows both. No loops.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct product_of<isa::CRUMB_THIS_ISA, nibble_codes> {
    using type = isa::CRUMB_THIS_ISA::nibbles;
};

/// A product of nibbles whose low ones are stored with an offset of 8: toggles that bit first.
template <class Product>
struct toggled_product<isa::CRUMB_THIS_ISA, Product> : Product {
    using I = isa::CRUMB_THIS_ISA;
    using rows = toggled_product<I, typename product_for_rows<Product>::type>;
    template <int X>
    static CRUMB_INLINE typename Product::operand expand(typename I::bytes raw) noexcept {
        if constexpr (X == 0)
            return Product::template expand<0>(raw ^ I::load_bytes(offset_bytes));
        else
            return Product::template expand<1>(raw);
    }

    template <int X, class Multiplier>
    static CRUMB_INLINE auto requantize(typename I::bytes raw, Multiplier m) noexcept {
        return Product::template requantize<X>(raw ^ I::load_bytes(offset_bytes), m);
    }

  private:
    alignas(64) static constexpr std::uint8_t offset_bytes[64] = {
        8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8,
        8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
};

template <>
struct product_of<isa::CRUMB_THIS_ISA, absorbing_nibble_codes> {
    using type = toggled_product<isa::CRUMB_THIS_ISA, isa::CRUMB_THIS_ISA::nibbles>;
};

template <>
struct product_of<isa::CRUMB_THIS_ISA, byte_codes> {
    using type = isa::CRUMB_THIS_ISA::int8s;
};

/// Register `v` of a pass is register v % vectors of tile v / vectors.
template <class Format>
struct tile_shape<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename product_of<I, typename Format::codes>::type;
    using Q = typename product_for_rows<P>::type;
    static constexpr int vectors = static_cast<int>(tile_row_bytes) / I::width; ///< registers per tile
    static constexpr int rows = static_cast<int>(Format::codes::rows);          ///< register rows per tile
    static constexpr int per_row = 8 / rows; ///< operands that a register row expands to
    static constexpr std::size_t code_bytes = Format::codes::bytes;
};

} // namespace crumb::inline CRUMB_ABI::kernel
