// Products of int8 panels with blocks of rows, the same for all formats. Loops:
//     groups > 4 inputs > rows > registers of channels
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vnni
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct panel_product<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using f32 = typename I::f32;
    using dot = typename I::int8s; ///< multiplies the requantized codes
    static constexpr std::size_t max_rows = I::panel_row_block;
    static constexpr std::size_t panel_groups = panel_inputs / group_size;

    /// Codes of 4 inputs after each other, in the order of inputs.
    template <std::size_t Tiles>
    struct panel {
        static constexpr int vectors = static_cast<int>(Tiles); ///< a register of channels each
        static constexpr std::size_t group_bytes = 8 * Tiles * tile_row_bytes;
        alignas(64) std::uint8_t codes[panel_groups * group_bytes];
        alignas(64) float scales[Tiles * tile_channels];
    };

    template <std::size_t Tiles>
    static CRUMB_NOINLINE void whole_block(const linear_args& args, const panel<Tiles>& p, std::size_t r,
                                           std::size_t g, std::size_t groups, float* totals) noexcept {
        multiply<static_cast<int>(max_rows)>(args, p, r, max_rows, 0, g, groups, totals);
    }
    /// Fewer rows than a block has: four at a time, then one. Filling the panel takes most of the time then.
    template <std::size_t Tiles>
    static CRUMB_NOINLINE void last_block(const linear_args& args, const panel<Tiles>& p, std::size_t r,
                                          std::size_t height, std::size_t g, std::size_t groups,
                                          float* totals) noexcept {
        constexpr std::size_t width = Tiles * tile_channels;
        std::size_t i = 0;
        for (; i + 4 <= height; i += 4)
            multiply<4>(args, p, r, height, i, g, groups, totals + i * width);
        for (; i < height; ++i)
            multiply<1>(args, p, r, height, i, g, groups, totals + i * width);
    }

  private:
    /// Rows i .. i + Rows - 1 of the block of `height` rows that begins at row r.
    template <int Rows, std::size_t Tiles>
    static CRUMB_INLINE void multiply(const linear_args& args, const panel<Tiles>& p, std::size_t r,
                                      std::size_t height, std::size_t i, std::size_t g, std::size_t groups,
                                      float* totals) noexcept {
        constexpr int vectors = panel<Tiles>::vectors;
        const std::size_t blocks = (args.groups + panel_groups - 1) / panel_groups;
        const std::size_t at = r * blocks + g / panel_groups * height + i;
        const std::int8_t* x = args.x_codes + (r * args.groups + g * height) * group_size + 8 * i;
        typename dot::acc s[unsigned(Rows * vectors)];
        CRUMB_UNROLL
        for (int j = 0; j < Rows * vectors; ++j)
            s[j] = dot::start(args.x_starts + at + j / vectors);
        const std::uint8_t* codes = p.codes;
        for (; groups != 0; --groups) {
            CRUMB_UNROLL
            for (int k = 0; k < 8; ++k) {
                typename dot::operand w[unsigned(vectors)];
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v)
                    w[v] = dot::load_operand(codes + (k * vectors + v) * I::width);
                CRUMB_UNROLL
                for (int row = 0; row < Rows; ++row) {
                    const auto quad =
                        I::load_quad(x + static_cast<std::size_t>(k / 2 * 8) * height + 8 * row + k % 2 * 4);
                    CRUMB_UNROLL
                    for (int v = 0; v < vectors; ++v)
                        dot::template step<0>(s[row * vectors + v], w[v], quad);
                }
                CRUMB_HOLD_LOADS();
                // Products that are put off keep their operands alive until some are spilled.
                CRUMB_UNROLL
                for (int j = 0; j < Rows * vectors; ++j)
                    dot::pin(s[j]);
            }
            codes += panel<Tiles>::group_bytes;
            x += height * group_size;
        }
        CRUMB_UNROLL
        for (int row = 0; row < Rows; ++row) {
            const f32 scale = I::set1(args.x_scales[at + static_cast<std::size_t>(row)]);
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v) {
                float* total = totals + (row * vectors + v) * I::lanes;
                const f32 scaled = I::mul(I::to_f32(dot::finish(s[row * vectors + v], nullptr)), scale);
                I::store(total, I::fma(scaled, I::load(p.scales + v * I::lanes),
                                       g == 0 ? I::zero() : I::load(total)));
            }
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
