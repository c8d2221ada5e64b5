// Packed weights of any format as tiles of bytes. Loops: tiles > groups > register rows.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <class Format>
struct unpack_run<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using shape = tile_shape<I, Format>;
    using P = typename shape::Q; ///< whose operands are in one unit
    using operands = packed_operands<I, Format, P, shape::vectors>;
    static constexpr bool indexed = indexed_codes<typename Format::codes>;
    static constexpr bool nibbles = !indexed && Format::codes::rows == 4;

    static float run(const unpack_args& args) noexcept {
        linear_args weights = args.weights;
        std::int8_t tables[table_bytes];
        int most = 128, unit = 1;
        if constexpr (indexed) {
            most = 1;
            for (std::size_t i = 0; i < table_bytes; ++i) {
                const int entry = weights.codebooks[i], magnitude = entry < 0 ? -entry : entry;
                most = most < magnitude ? magnitude : most;
            }
            unit = most < 127 ? 127 / most : 1;
            most *= unit;
            for (std::size_t i = 0; i < table_bytes; ++i)
                tables[i] = static_cast<std::int8_t>(weights.codebooks[i] * unit);
            weights.codebooks = tables;
        }
        const auto factor = I::set1(P::factor / static_cast<float>(unit << shift));
        std::int8_t* codes = args.codes;
        float* scales = args.scales;
        const std::size_t end = (args.weights.channels.end + tile_channels - 1) / tile_channels;
        for (std::size_t t = args.weights.channels.begin / tile_channels; t < end; ++t) {
            operands w(weights, t);
            for (std::size_t g = 0; g < weights.groups; ++g) {
                w.begin_group();
                CRUMB_UNROLL
                for (int row = 0; row < shape::rows; ++row) {
                    store<0>(w, row, codes);
                    if constexpr (shape::per_row == 2)
                        store<1>(w, row, codes);
                }
                CRUMB_UNROLL
                for (int v = 0; v < shape::vectors; ++v)
                    I::store(scales + v * I::lanes, I::mul(w.scale(v), factor));
                w.next_group();
                codes += byte_codes::bytes;
                scales += tile_channels;
            }
        }
        return static_cast<float>(most);
    }

  private:
    static constexpr std::size_t table_bytes = [] {
        if constexpr (codes_in_planes<typename Format::codes>)
            return Format::codes::tables * Format::codes::table_entries;
        else if constexpr (indexed)
            return 2 * Format::codes::table_entries;
        else
            return std::size_t{1};
    }();
    // Nibbles come as they are, with an offset of 8 or none, or times 16.
    static constexpr int shift = nibbles && P::factor == 1 ? 4 : 0;

    template <int X>
    static CRUMB_INLINE void store(const operands& w, int row, std::int8_t* codes) noexcept {
        constexpr std::uint64_t ones = 0x0101010101010101u;
        std::int8_t* to = codes + (row + X * shape::rows) * static_cast<int>(tile_row_bytes);
        CRUMB_UNROLL
        for (int v = 0; v < shape::vectors; ++v) {
            const auto operand = w.template operand<X>(row, v);
            std::uint64_t eight[I::width / 8];
            __builtin_memcpy(eight, &operand, sizeof eight);
            for (auto& x : eight)
                x = (x << shift & (0xffu << shift & 0xffu) * ones) ^ (P::offset != 0 ? 0x80 * ones : 0);
            __builtin_memcpy(to + v * I::width, eight, sizeof eight);
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
